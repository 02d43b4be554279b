/* SPDX-License-Identifier: BSD-3-Clause
 * Tests of base/log. */
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/test.h"

typedef struct heard {
    int count;
    far_log_level level;
    char text[4096];
} heard;

static void hear(far_log_level level, const char *text, void *arg)
{
    heard *h = arg;
    h->count++;
    h->level = level;
    snprintf(h->text, sizeof h->text, "%s", text);
}

static void levels_filter(void **state)
{
    (void)state;
    unsetenv("FARCALL_LOG");
    heard h = {0};
    far__log log;
    far__log_init(&log, hear, &h, FAR_LOG_WARNING);
    far__log_info(&log, "not heard");
    far__log_debug(&log, "not heard");
    assert_int_equal(h.count, 0);
    far__log_warning(&log, "worker %s %d", "w", 7);
    assert_int_equal(h.count, 1);
    assert_int_equal(h.level, FAR_LOG_WARNING);
    assert_string_equal(h.text, "worker w 7");
    far__log_error(&log, "bad");
    assert_int_equal(h.count, 2);
    assert_int_equal(h.level, FAR_LOG_ERROR);
}

static void environment_overrides(void **state)
{
    (void)state;
    far__log log;
    setenv("FARCALL_LOG", "debug", 1);
    far__log_init(&log, NULL, NULL, FAR_LOG_ERROR);
    assert_int_equal(log.level, FAR_LOG_DEBUG);
    setenv("FARCALL_LOG", "error", 1);
    far__log_init(&log, NULL, NULL, FAR_LOG_INFO);
    assert_int_equal(log.level, FAR_LOG_ERROR);
    setenv("FARCALL_LOG", "nonsense", 1);
    far__log_init(&log, NULL, NULL, FAR_LOG_INFO);
    assert_int_equal(log.level, FAR_LOG_INFO);
    unsetenv("FARCALL_LOG");
}

/* Logs `text` with stderr going into a pipe; what arrived is in `out`. */
static void capture(const far__log *log, const char *text, char *out, size_t size)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    int kept = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    far__log_warning(log, "%s", text);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(ends[1]);
    /* One read gives one line, because it was one write. */
    ssize_t got = read(ends[0], out, size - 1);
    assert_true(got >= 0);
    out[got] = 0;
    close(ends[0]);
}

static void stderr_gets_one_line(void **state)
{
    (void)state;
    unsetenv("FARCALL_LOG");
    far__log log;
    char out[8192];
    far__log_init(&log, NULL, NULL, FAR_LOG_WARNING);
    capture(&log, "peer lost", out, sizeof out);
    assert_string_equal(out, "farcall: warning: peer lost\n");
    capture(&log, "forged\nfarcall: error: x\x1b[2J", out, sizeof out);
    assert_string_equal(out, "farcall: warning: forged farcall: error: x [2J\n");
    static char big[6000];
    memset(big, 'a', sizeof big - 1);
    capture(&log, big, out, sizeof out);
    size_t length = strlen(out);
    assert_true(length > 1000 && length < 3000);
    assert_int_equal(out[length - 1], '\n');
}

/* Whoever should read stderr is stuck, or gone: nobody waits for it, and nobody dies of it. */
static void stderr_never_blocks(void **state)
{
    (void)state;
    unsetenv("FARCALL_LOG");
    far__log log;
    far__log_init(&log, NULL, NULL, FAR_LOG_WARNING);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    int kept = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    static char out[1 << 20];
    size_t lines = 0, written = 0;
    for (int i = 0; i < 10000; i++)
        far__log_warning(&log, "line %d", i);
    ssize_t got = read(ends[0], out, sizeof out);
    far__log_warning(&log, "the last");
    ssize_t last = read(ends[0], out + got, sizeof out - (size_t)got - 1);
    close(ends[0]);
    far__log_warning(&log, "no reader");
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(ends[1]);
    assert_true(got > 0 && last > 0);
    out[got + last] = 0;
    for (char *c = out; c < out + got; c++)
        written += *c == '\n';
    assert_true(written < 10000);
    assert_int_equal(sscanf(out + got, "farcall: warning: %zu lines are missing here\n", &lines),
                     1);
    assert_int_equal(lines, 10000 - written);
    assert_non_null(strstr(out + got, "\nfarcall: warning: the last\n"));
}

static void error_is_filled(void **state)
{
    (void)state;
    far_error error = {0};
    assert_status(FAR_ETIMEOUT, far__error_set(&error, FAR_ETIMEOUT, "waited for %s", "b"));
    assert_status(FAR_ETIMEOUT, error.status);
    assert_string_equal(error.text, "waited for b");
    far__error_prefix(&error, "init of %d", 3);
    assert_string_equal(error.text, "init of 3: waited for b");
    assert_status(FAR_ETIMEOUT, error.status);
    /* The old text may be an argument. */
    assert_status(FAR_EPEER, far__error_set(&error, FAR_EPEER, "again: %s", error.text));
    assert_string_equal(error.text, "again: init of 3: waited for b");
    assert_status(FAR_EBUSY, far__error_set(NULL, FAR_EBUSY, "nobody reads this"));
    far__error_prefix(NULL, "nor this");
}

static void error_is_cut(void **state)
{
    (void)state;
    far_error error;
    char big[2000];
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = 0;
    (void)far__error_set(&error, FAR_EINVAL, "%s", big);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    far__error_prefix(&error, "where");
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    assert_memory_equal(error.text, "where: xxx", 10);
}

/* Characters of 1 to 4 bytes, at every distance from the end. */
static void cut_between_characters(void **state)
{
    (void)state;
    static const char *const characters[] = {"a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    for (size_t c = 0; c < 4; c++) {
        size_t length = c + 1;
        for (size_t pad = 0; pad < 4; pad++) {
            char text[1024] = {0};
            memset(text, 'p', pad);
            for (size_t at = pad; at + length < sizeof text; at += length)
                memcpy(text + at, characters[c], length);
            far_error error;
            (void)far__error_set(&error, FAR_EINVAL, "%s", text);
            size_t kept = strlen(error.text);
            assert_int_equal((kept - pad) % length, 0);
            assert_true(kept + length > sizeof error.text - 1);
            assert_memory_equal(error.text, text, kept);
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(levels_filter),          cmocka_unit_test(environment_overrides),
    cmocka_unit_test(stderr_gets_one_line),   cmocka_unit_test(stderr_never_blocks),
    cmocka_unit_test(error_is_filled),        cmocka_unit_test(error_is_cut),
    cmocka_unit_test(cut_between_characters),
};
FAR_TEST_MAIN(tests)
