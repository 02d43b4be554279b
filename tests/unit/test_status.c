/* SPDX-License-Identifier: BSD-3-Clause
 * Tests of base/status. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

static void names_and_texts(void **state)
{
    (void)state;
    assert_string_equal(far_status_name(FAR_OK), "FAR_OK");
    assert_string_equal(far_status_name(FAR_ETIMEOUT), "FAR_ETIMEOUT");
    assert_string_equal(far_status_text(FAR_EPEER), "the worker was lost");
#define CHECK_ROW(name, value, category, text)                                                     \
    assert_string_equal(far_status_name((far_status)(value)), "FAR_" #name);                       \
    assert_string_equal(far_status_text(FAR_##name), text);                                        \
    assert_int_equal(far_status_category_of(FAR_##name), FAR_CATEGORY_##category);
    FAR_STATUS_MAP(CHECK_ROW)
#undef CHECK_ROW
}

/* They travel on the wire: a renumbering must be seen. */
static void values_stay(void **state)
{
    (void)state;
    assert_int_equal(FAR_OK, 0);
    assert_int_equal(FAR_EVALUE, 6);
    assert_int_equal(FAR_ETIMEOUT, 10);
    assert_int_equal(FAR_ESYSTEM, 19);
}

static void unknown_numbers(void **state)
{
    (void)state;
    const int odd[] = {-1, 20, 1000, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        assert_string_equal(far_status_name((far_status)odd[i]), "FAR_?");
        assert_string_equal(far_status_text((far_status)odd[i]), "unknown status");
        assert_int_equal(far_status_category_of((far_status)odd[i]), FAR_CATEGORY_SYSTEM);
    }
}

static void version(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", FAR_VERSION_MAJOR, FAR_VERSION_MINOR,
             FAR_VERSION_PATCH);
    assert_string_equal(far_version(), text);
    assert_string_equal(FAR_VERSION, text);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(names_and_texts),
    cmocka_unit_test(values_stay),
    cmocka_unit_test(unknown_numbers),
    cmocka_unit_test(version),
};
FAR_TEST_MAIN(tests)
