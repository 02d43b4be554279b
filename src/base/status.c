/* SPDX-License-Identifier: BSD-3-Clause
 * base/status: names, texts and categories of the codes of FAR_STATUS_MAP, and the version.
 * Floor: base. Thread: any. */
#include <farcall/farcall.h>

typedef struct status_row {
    const char *name, *text;
    far_status_category category;
} status_row;

static const status_row rows[] = {
#define STATUS_ROW(name, value, category, text)                                                    \
    [value] = {"FAR_" #name, text, FAR_CATEGORY_##category},
    FAR_STATUS_MAP(STATUS_ROW)
#undef STATUS_ROW
};

/* A status may have come from a peer or from a caller's cast: any number is possible. */
static const status_row *row_of(far_status status)
{
    unsigned value = (unsigned)status;
    if (value >= sizeof rows / sizeof *rows || !rows[value].name)
        return NULL;
    return &rows[value];
}

const char *far_status_name(far_status status)
{
    const status_row *row = row_of(status);
    return row ? row->name : "FAR_?";
}

const char *far_status_text(far_status status)
{
    const status_row *row = row_of(status);
    return row ? row->text : "unknown status";
}

far_status_category far_status_category_of(far_status status)
{
    const status_row *row = row_of(status);
    return row ? row->category : FAR_CATEGORY_SYSTEM;
}

const char *far_version(void)
{
    return FAR_VERSION;
}
