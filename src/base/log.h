/* SPDX-License-Identifier: BSD-3-Clause
 * base/log: levelled log lines to one callback.
 * Floor: base. Thread: any. */
#ifndef FAR_BASE_LOG_H
#define FAR_BASE_LOG_H

#include <farcall/farcall.h>

typedef struct far__log {
    far_log_fn fn; /* NULL: stderr, one write a line: "farcall: warning: text" */
    void *arg;
    far_log_level level; /* less important lines are dropped before they are formatted */
} far__log;

/* FARCALL_LOG = error | warning | info | debug overrides `level`. */
void far__log_init(far__log *log, far_log_fn fn, void *arg, far_log_level level);
void far__log_write(const far__log *log, far_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define far__log_error(log, ...) far__log_write((log), FAR_LOG_ERROR, __VA_ARGS__)
#define far__log_warning(log, ...) far__log_write((log), FAR_LOG_WARNING, __VA_ARGS__)
#define far__log_info(log, ...) far__log_write((log), FAR_LOG_INFO, __VA_ARGS__)
#define far__log_debug(log, ...) far__log_write((log), FAR_LOG_DEBUG, __VA_ARGS__)

/* Fills `error` (which may be NULL) with a status and a formatted text; returns the status. */
far_status far__error_set(far_error *error, far_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Puts "context: " before the text that is there. */
void far__error_prefix(far_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
