/* SPDX-License-Identifier: BSD-3-Clause
 * base/log: levelled log lines to one callback or to stderr, and the text of a far_error.
 * Floor: base. Thread: any. */
#include "base/log.h"

#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 2048 };

static const char *const level_names[] = {
    [FAR_LOG_ERROR] = "error",
    [FAR_LOG_WARNING] = "warning",
    [FAR_LOG_INFO] = "info",
    [FAR_LOG_DEBUG] = "debug",
};

/* Formats; what does not fit is cut between two characters, never inside one of UTF-8, because
 * Python decodes these texts. Returns the length. */
__attribute__((format(printf, 3, 0))) static size_t format_text(char *out, size_t size,
                                                                const char *format, va_list args)
{
    int wanted = vsnprintf(out, size, format, args);
    if (wanted < 0) {
        out[0] = 0;
        return 0;
    }
    if ((size_t)wanted < size)
        return (size_t)wanted;
    size_t end = size - 1;
    size_t start = end;
    while (start > 0 && end - start < 4 && ((unsigned char)out[start - 1] & 0xc0) == 0x80)
        start--;
    if (start > 0 && ((unsigned char)out[start - 1] & 0xc0) == 0xc0) {
        unsigned char lead = (unsigned char)out[start - 1];
        size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
        if (start - 1 + length > end)
            end = start - 1;
    }
    out[end] = 0;
    return end;
}

void far__log_init(far__log *log, far_log_fn fn, void *arg, far_log_level level)
{
    *log = (far__log){.fn = fn, .arg = arg, .level = level};
    const char *wish = getenv("FARCALL_LOG");
    if (!wish)
        return;
    for (size_t i = 0; i < sizeof level_names / sizeof *level_names; i++) {
        if (strcmp(wish, level_names[i]) == 0)
            log->level = (far_log_level)i;
    }
}

static atomic_uint lines_lost; /* since the last one that was written */

/* A pipe that is writable has room for a whole line, and one without a reader would raise SIGPIPE. */
static bool stderr_has_room(void)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && p.revents == POLLOUT;
}

/* One write a line: lines of several threads and processes do not mix. A text that came from a peer
 * must not be able to forge a second line or to drive a terminal. Never blocks: the loop thread logs,
 * and whoever should read stderr may be stuck; what there is no room for is counted. */
static void write_line(far_log_level level, char *text)
{
    for (char *c = text; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = ' ';
    }
    if (!stderr_has_room()) {
        atomic_fetch_add(&lines_lost, 1);
        return;
    }
    char line[LINE_MAX_BYTES + 160];
    int size = 0;
    unsigned lost = atomic_exchange(&lines_lost, 0);
    if (lost > 0)
        size = snprintf(line, sizeof line, "farcall: warning: %u lines are missing here\n", lost);
    size += snprintf(line + size, sizeof line - (size_t)size, "farcall: %s: %s\n",
                     level_names[level], text);
    /* Nobody is left to tell that stderr cannot be written. */
    ssize_t written = write(STDERR_FILENO, line, (size_t)size);
    (void)written;
}

void far__log_write(const far__log *log, far_log_level level, const char *format, ...)
{
    if (level > log->level)
        return;
    char text[LINE_MAX_BYTES];
    va_list args;
    va_start(args, format);
    format_text(text, sizeof text, format, args);
    va_end(args);
    if (log->fn)
        log->fn(level, text, log->arg);
    else
        write_line(level, text);
}

far_status far__error_set(far_error *error, far_status status, const char *format, ...)
{
    if (!error)
        return status;
    /* Not straight into the error: its old text may be among the arguments. */
    char text[sizeof error->text];
    va_list args;
    va_start(args, format);
    size_t size = format_text(text, sizeof text, format, args);
    va_end(args);
    memcpy(error->text, text, size + 1);
    error->status = status;
    return status;
}

__attribute__((format(printf, 3, 4))) static size_t print_text(char *out, size_t size,
                                                               const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t length = format_text(out, size, format, args);
    va_end(args);
    return length;
}

void far__error_prefix(far_error *error, const char *format, ...)
{
    if (!error)
        return;
    char context[sizeof error->text], text[sizeof error->text];
    va_list args;
    va_start(args, format);
    format_text(context, sizeof context, format, args);
    va_end(args);
    size_t size = print_text(text, sizeof text, "%s: %s", context, error->text);
    memcpy(error->text, text, size + 1);
}
