/* SPDX-License-Identifier: BSD-3-Clause
 * proto/message: makes, fills and frees messages: encoding, body and segments.
 * Floor: proto. Thread: the message's owner. */
#include "proto/message.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "proto/values.h"

enum { SEGMENT_ROOM_MIN = 4 };

far_status far_message_create(far_encoding encoding, far_message **out)
{
    if (!out || (unsigned)encoding > FAR_ENCODING_PICKLE)
        return FAR_EINVAL;
    far_message *message = far__mem_alloc(sizeof *message);
    if (!message)
        return FAR_ENOMEM;
    /* All but the bytes of the body, which nobody reads before they are written. */
    memset(message, 0, offsetof(far_message, inline_body));
    message->encoding = encoding;
    message->body = message->inline_body;
    message->body_room = sizeof message->inline_body;
    *out = message;
    return FAR_OK;
}

static bool body_is_own(const far_message *message)
{
    return !message->body_buffer && message->body != message->inline_body;
}

void far__message_destroy(far_message *message, far_buffer **orphans)
{
    if (!message)
        return;
    if (message->refs)
        message->refs_end(message);
    far__values_free(message->values);
    for (size_t i = 0; i < message->segment_count; i++)
        far__buffer_drop(message->segments[i], orphans);
    far__mem_free(message->segments);
    if (body_is_own(message))
        far__mem_free(message->body);
    far__buffer_drop(message->body_buffer, orphans);
    far__mem_free(message);
}

far_status far__message_clone(const far_message *from, far_message **out)
{
    far_message *m;
    far_status status = far_message_create(from->encoding, &m);
    if (status != FAR_OK)
        return status;
    if (from->body_buffer)
        status = far_message_set_body(m, far_buffer_hold(from->body_buffer));
    else
        status = far_message_append(m, from->body, from->body_size);
    for (size_t i = 0; i < from->segment_count && status == FAR_OK; i++)
        status = far_message_add_segment(m, far_buffer_hold(from->segments[i]), NULL);
    if (status == FAR_OK)
        *out = m;
    else
        far_message_discard(m);
    return status;
}

void far_message_discard(far_message *message)
{
    far_buffer *orphans = NULL;
    far__message_destroy(message, &orphans);
    far__buffers_free(orphans);
}

uint64_t far__message_size(const far_message *message)
{
    uint64_t size = message->body_size;
    for (size_t i = 0; i < message->segment_count; i++)
        size += message->segments[i]->size;
    return size;
}

far_encoding far_message_encoding(const far_message *message)
{
    return message->encoding;
}

static far_status grow_body(far_message *message, size_t more)
{
    if (more > SIZE_MAX - message->body_size)
        return FAR_ENOMEM;
    size_t room = message->body_size + more;
    if (message->body_room <= SIZE_MAX / 2 && room < message->body_room * 2)
        room = message->body_room * 2;
    bool own = body_is_own(message);
    uint8_t *body = far__mem_resize(own ? message->body : NULL, room);
    if (!body)
        return FAR_ENOMEM;
    if (!own)
        memcpy(body, message->inline_body, message->body_size);
    message->body = body;
    message->body_room = room;
    return FAR_OK;
}

far_status far_message_append(far_message *message, const void *data, size_t size)
{
    if (!message || (!data && size))
        return FAR_EINVAL;
    /* Decoded values point into the body, so it must not move any more. */
    if (message->body_buffer || message->values)
        return FAR_EBUSY;
    if (!size)
        return FAR_OK;
    if (size > message->body_room - message->body_size) {
        far_status status = grow_body(message, size);
        if (status != FAR_OK)
            return status;
    }
    memcpy(message->body + message->body_size, data, size);
    message->body_size += size;
    return FAR_OK;
}

far_status far_message_set_body(far_message *message, far_buffer *buffer)
{
    if (!buffer)
        return FAR_EINVAL;
    far_status status = FAR_OK;
    if (!message)
        status = FAR_EINVAL;
    else if (message->body_buffer || message->body_size || message->values)
        status = FAR_EBUSY;
    if (status != FAR_OK) {
        far_buffer_release(buffer);
        return status;
    }
    /* Room may have been taken by a write that was rolled back. */
    if (body_is_own(message))
        far__mem_free(message->body);
    message->body_buffer = buffer;
    message->body = buffer->data;
    message->body_size = message->body_room = buffer->size;
    return FAR_OK;
}

const void *far_message_body(const far_message *message)
{
    return message->body;
}

size_t far_message_body_size(const far_message *message)
{
    return message->body_size;
}

static far_status grow_segments(far_message *message)
{
    size_t room = message->segment_room ? message->segment_room * 2 : SEGMENT_ROOM_MIN;
    size_t size;
    if (__builtin_mul_overflow(room, sizeof(far_buffer *), &size))
        return FAR_ENOMEM;
    far_buffer **segments = far__mem_resize(message->segments, size);
    if (!segments)
        return FAR_ENOMEM;
    message->segments = segments;
    message->segment_room = room;
    return FAR_OK;
}

far_status far_message_add_segment(far_message *message, far_buffer *buffer, size_t *index)
{
    if (!buffer)
        return FAR_EINVAL;
    far_status status = FAR_OK;
    if (!message)
        status = FAR_EINVAL;
    else if (message->segment_count == message->segment_room)
        status = grow_segments(message);
    if (status != FAR_OK) {
        far_buffer_release(buffer);
        return status;
    }
    if (index)
        *index = message->segment_count;
    message->segments[message->segment_count++] = buffer;
    return FAR_OK;
}

size_t far_message_segment_count(const far_message *message)
{
    return message->segment_count;
}

far_buffer *far_message_segment(const far_message *message, size_t index)
{
    return index < message->segment_count ? message->segments[index] : NULL;
}
