/* SPDX-License-Identifier: BSD-3-Clause
 * tests/fuzz: proto/wire. A header that is read is written again as the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t again[FAR__WIRE_HEADER_MAX];
    far__wire_header header;
    const char *why = NULL;
    far_status status = far__wire_decode(data, size, &header, &why);
    if ((status != FAR_OK) != (why != NULL))
        abort();
    if (status != FAR_OK)
        return 0;
    far__writer w = far__writer_over(again, sizeof again);
    far__wire_encode(&header, &w);
    if (w.failed || w.used != size || far__wire_size(&header) != size ||
        memcmp(again, data, size) != 0)
        abort();
    return 0;
}
