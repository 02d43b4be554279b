/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/test: what every C test includes, and its main.
 * A test file ends with
 *     static const struct CMUnitTest tests[] = {cmocka_unit_test(name), ...};
 *     FAR_TEST_MAIN(tests)
 * The program runs all its cases, or those that its first argument names (cmocka's * and ?). It
 * fails also when an allocation of farcall's own is still alive at the end. */
#ifndef FAR_TESTS_SUPPORT_TEST_H
#define FAR_TESTS_SUPPORT_TEST_H

/* cmocka.h needs these four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <farcall/farcall.h>

/* Takes the filter from the arguments. */
void far_test_begin(int argc, char **argv);
/* The exit code: 0 only if no case failed and nothing is alive. */
int far_test_end(int failed);

#define FAR_TEST_MAIN(tests) FAR_TEST_MAIN_WITH(tests, NULL, NULL)
/* With cmocka's set-up and tear-down functions of the whole group. */
#define FAR_TEST_MAIN_WITH(tests, setup, teardown)                                                 \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        far_test_begin(argc, argv);                                                                \
        return far_test_end(cmocka_run_group_tests(tests, setup, teardown));                       \
    }

#define assert_ok(expression) assert_status(FAR_OK, (expression))
/* Compares by name, so that a failure can be read. */
#define assert_status(wanted, expression)                                                          \
    assert_string_equal(far_status_name(expression), far_status_name(wanted))

#endif
