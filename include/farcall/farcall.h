/* SPDX-License-Identifier: BSD-3-Clause
 * farcall: remote procedure calls between the processes of one distributed program.
 * This is the whole public C API of libfarcall.
 *
 * A caller: far_options_init, far_agent_open, far_agent_find; for each call far_message_create,
 * far_message_put_..., far_call_sync, far_message_values, far_message_discard; at the end
 * far_agent_shutdown, far_agent_release. A callee fills options.methods. See examples/matrix.c.
 *
 * Conventions
 *   Every function may be called from any thread and does not block, unless its text says otherwise.
 *   Pointers: "borrows" = used during the call only; "copies" = the callee keeps its own copy;
 *   "takes" = ownership passes to the callee, also when the function fails.
 *   Out-parameters come last and are filled only when FAR_OK is returned.
 *   Durations are nanoseconds. Text is UTF-8 and zero-terminated unless a length stands beside it.
 *   Handler and callback functions run with no lock of farcall held; they may call anything here.
 */
#ifndef FARCALL_FARCALL_H
#define FARCALL_FARCALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FAR_API __attribute__((visibility("default")))
#define FAR_MUST_USE __attribute__((warn_unused_result))
#else
#define FAR_API
#define FAR_MUST_USE
#endif

#define FAR_VERSION "0.1.0"
#define FAR_VERSION_MAJOR 0
#define FAR_VERSION_MINOR 1
#define FAR_VERSION_PATCH 0

/* The version of the library that is loaded, as "major.minor.patch". Static storage. */
FAR_API const char *far_version(void);

/* ------------------------------------------------------------------------------------- status */

/* code, value, category, text. The values are part of the wire format: never renumber. */
#define FAR_STATUS_MAP(X)                                                                          \
    X(OK, 0, NONE, "success")                                                                      \
    X(EINVAL, 1, USAGE, "invalid argument")                                                        \
    X(ECLOSED, 2, USAGE, "the agent is not open")                                                  \
    X(EBUSY, 3, USAGE, "already in use")                                                           \
    X(ENOWORKER, 4, USAGE, "no such worker")                                                       \
    X(ENOMETHOD, 5, REMOTE, "no such function at the worker")                                      \
    X(EVALUE, 6, USAGE, "the value cannot be sent or read")                                        \
    X(ETOOBIG, 7, USAGE, "larger than the limit")                                                  \
    X(EAGAIN, 8, USAGE, "no room now, try again")                                                  \
    X(EUNSUPPORTED, 9, USAGE, "not supported by this version")                                     \
    X(ETIMEOUT, 10, TIMEOUT, "timed out")                                                          \
    X(ECANCELED, 11, CANCELLED, "cancelled")                                                       \
    X(EINTR, 12, SYSTEM, "interrupted by a signal")                                                \
    X(EPEER, 13, PEER, "the worker was lost")                                                      \
    X(EAUTH, 14, PEER, "authentication failed")                                                    \
    X(EVERSION, 15, PEER, "no common protocol version")                                            \
    X(EPROTO, 16, PEER, "malformed bytes from the peer")                                           \
    X(EREMOTE, 17, REMOTE, "the handler failed")                                                   \
    X(ENOMEM, 18, MEMORY, "out of memory")                                                         \
    X(ESYSTEM, 19, SYSTEM, "a system call failed")

typedef enum far_status {
#define FAR_STATUS_ENUM(name, value, category, text) FAR_##name = value,
    FAR_STATUS_MAP(FAR_STATUS_ENUM)
#undef FAR_STATUS_ENUM
} far_status;

typedef enum far_status_category {
    FAR_CATEGORY_NONE,
    FAR_CATEGORY_USAGE,     /* the caller asked for something impossible */
    FAR_CATEGORY_TIMEOUT,   /* a limit given by the caller ran out */
    FAR_CATEGORY_CANCELLED, /* the caller took it back */
    FAR_CATEGORY_PEER,      /* the other worker is gone, or is not who it must be */
    FAR_CATEGORY_REMOTE,    /* the other worker answered with an error */
    FAR_CATEGORY_SYSTEM,    /* the kernel refused */
    FAR_CATEGORY_MEMORY,    /* allocation failed */
} far_status_category;

/* "FAR_ETIMEOUT"; "FAR_?" for a number that is none of the above. Static storage. */
FAR_API const char *far_status_name(far_status status);
/* A short English text for the code alone. Static storage. */
FAR_API const char *far_status_text(far_status status);
FAR_API far_status_category far_status_category_of(far_status status);

/* Detail of a failure of a set-up call: what and where. Filled only on failure. The caller owns the
 * struct; functions that take one accept NULL. */
typedef struct far_error {
    far_status status;
    char text[512];
} far_error;

/* ---------------------------------------------------------------------------------- durations */

typedef int64_t far_duration; /* nanoseconds */

#define FAR_MICROSECOND ((far_duration)1000)
#define FAR_MILLISECOND ((far_duration)1000000)
#define FAR_SECOND ((far_duration)1000000000)
#define FAR_NO_LIMIT ((far_duration)0)                /* of a call: never times out */
#define FAR_TIMEOUT_DEFAULT ((far_duration)INT64_MIN) /* of a call: what the agent's default says */
#define FAR_FOREVER ((far_duration)INT64_MAX)         /* of a wait: until completed */
/* Any other negative duration is FAR_EINVAL. Anything above 0 is a real limit, however small. */

/* ------------------------------------------------------------------------------------- buffers */

/* Counted bytes. A buffer's bytes do not change once it was put into a message. */
typedef struct far_buffer far_buffer;

typedef void (*far_free_fn)(void *arg);

enum {
    /* free_fn may run on any thread, the loop thread included. Without it free_fn runs only on a
     * thread of the user (one that calls farcall), on a handler thread, on the agent's service
     * thread or out of far_service_next; and never under a lock. */
    FAR_BUFFER_FREE_ANYWHERE = 1,
};

/* Wraps `size` bytes at `data`, which stay the caller's until free_fn(arg) has run; it runs exactly
 * once, after the last reference is gone. free_fn may be NULL (nothing to free). On failure free_fn
 * is not run. One reference is returned. */
FAR_API far_status far_buffer_wrap(void *data, size_t size, far_free_fn free_fn, void *arg,
                                   unsigned flags, far_buffer **out) FAR_MUST_USE;
/* `size` uninitialised bytes (64-byte aligned) in the library's own memory. */
FAR_API far_status far_buffer_alloc(size_t size, far_buffer **out) FAR_MUST_USE;
FAR_API void *far_buffer_data(const far_buffer *buffer);
FAR_API size_t far_buffer_size(const far_buffer *buffer);
FAR_API far_buffer *far_buffer_hold(far_buffer *buffer); /* returns its argument */
FAR_API void far_buffer_release(far_buffer *buffer);     /* NULL is accepted */

/* ------------------------------------------------------------------------------------ messages */

/* What is sent: an encoding tag, a body and a list of segments. A message belongs to one owner and
 * one thread at a time; sending takes it. */
typedef struct far_message far_message;

typedef enum far_encoding {
    FAR_ENCODING_RAW = 0,    /* body and segments are the users' own business */
    FAR_ENCODING_VALUES = 1, /* body is MessagePack, segments are tensors */
    FAR_ENCODING_PICKLE = 2, /* body is a Python pickle, segments its out-of-band buffers */
} far_encoding;

FAR_API far_status far_message_create(far_encoding encoding, far_message **out) FAR_MUST_USE;
/* Drops a message that was not sent, with all that it holds. NULL is accepted. */
FAR_API void far_message_discard(far_message *message);

FAR_API far_encoding far_message_encoding(const far_message *message);
/* Appends to the body; copies. FAR_ENOMEM. */
FAR_API far_status far_message_append(far_message *message, const void *data,
                                      size_t size) FAR_MUST_USE;
/* Makes `buffer` the body (nothing may have been appended: FAR_EBUSY). Takes the reference. */
FAR_API far_status far_message_set_body(far_message *message, far_buffer *buffer) FAR_MUST_USE;
FAR_API const void *far_message_body(const far_message *message);
FAR_API size_t far_message_body_size(const far_message *message);
/* Adds a segment; takes the reference. `index` may be NULL. */
FAR_API far_status far_message_add_segment(far_message *message, far_buffer *buffer,
                                           size_t *index) FAR_MUST_USE;
FAR_API size_t far_message_segment_count(const far_message *message);
/* Borrowed from the message; hold it to keep it longer. NULL if there is no such index. */
FAR_API far_buffer *far_message_segment(const far_message *message, size_t index);

/* ------------------------------------------------------------------------------------- values */

/* What every language can read: nil, bool, int, float, string, bytes, list, map and tensors.
 * A call to an exported name carries a list of positional arguments, then a map of keyword arguments,
 * which may be left out; the reply is one value, or none for nil. */

struct DLManagedTensor; /* <dlpack/dlpack.h>, version 0.6 */

typedef enum far_kind {
    FAR_NIL,
    FAR_BOOL,
    FAR_INT,  /* fits int64_t */
    FAR_UINT, /* above INT64_MAX */
    FAR_FLOAT,
    FAR_STRING,
    FAR_BYTES,
    FAR_LIST,
    FAR_MAP,
    FAR_TENSOR,
} far_kind;

enum { FAR_TENSOR_DIMS_MAX = 32 };

/* A dense, row-major tensor. dtype_code, dtype_bits and dtype_lanes are DLPack's. */
typedef struct far_tensor {
    uint8_t dtype_code;
    uint8_t dtype_bits;
    uint16_t dtype_lanes;
    int32_t ndim;
    int64_t shape[FAR_TENSOR_DIMS_MAX];
    uint32_t segment; /* index of the message's segment that holds the elements */
    void *data;       /* the same bytes, borrowed from that segment; NULL if it has none */
    size_t size;      /* bytes */
} far_tensor;

typedef struct far_value far_value;
struct far_value {
    far_kind kind;
    union {
        bool boolean;
        int64_t integer;
        uint64_t unsigned_integer;
        double real;
        struct {
            const char *data; /* not zero-terminated */
            size_t size;
        } bytes; /* FAR_STRING and FAR_BYTES */
        struct {
            const far_value *items; /* FAR_MAP: key, value, key, value, ... */
            size_t count;           /* FAR_MAP: number of pairs */
        } list;                     /* FAR_LIST and FAR_MAP */
        const far_tensor *tensor;
    } as;
};

/* Writing: each appends one value to the body of a FAR_ENCODING_VALUES message (another encoding:
 * FAR_EINVAL). A list or map is its count, then that many values (a map: keys and values in turn).
 * FAR_ENOMEM. */
FAR_API far_status far_message_put_nil(far_message *message) FAR_MUST_USE;
FAR_API far_status far_message_put_bool(far_message *message, bool value) FAR_MUST_USE;
FAR_API far_status far_message_put_int(far_message *message, int64_t value) FAR_MUST_USE;
FAR_API far_status far_message_put_uint(far_message *message, uint64_t value) FAR_MUST_USE;
FAR_API far_status far_message_put_float(far_message *message, double value) FAR_MUST_USE;
/* FAR_ETOOBIG from 4 GiB on. Copy. */
FAR_API far_status far_message_put_string(far_message *message, const char *text,
                                          size_t size) FAR_MUST_USE;
FAR_API far_status far_message_put_bytes(far_message *message, const void *data,
                                         size_t size) FAR_MUST_USE;
FAR_API far_status far_message_put_list(far_message *message, uint32_t count) FAR_MUST_USE;
FAR_API far_status far_message_put_map(far_message *message, uint32_t count) FAR_MUST_USE;
/* Takes `tensor`, also on failure; its deleter runs once, never on the loop thread, never under a
 * lock. A dense row-major CPU tensor is sent from where it lies; a strided one is packed first.
 * FAR_EVALUE: not in CPU memory, or more than FAR_TENSOR_DIMS_MAX dimensions. */
FAR_API far_status far_message_put_tensor(far_message *message,
                                          struct DLManagedTensor *tensor) FAR_MUST_USE;
/* The same for memory that is already a buffer: `tensor` says dtype, ndim and shape (its other
 * fields are ignored) and the buffer must have exactly that many bytes (else FAR_EINVAL). Borrows
 * `tensor`, takes `buffer`. */
FAR_API far_status far_message_put_buffer(far_message *message, const far_tensor *tensor,
                                          far_buffer *buffer) FAR_MUST_USE;

/* Reading: all values of the body, in order. They are borrowed from the message and live as long.
 * FAR_EVALUE: not values, or malformed, too deep, or a tensor that does not fit its segment. */
FAR_API far_status far_message_values(far_message *message, const far_value **values,
                                      size_t *count) FAR_MUST_USE;
/* A DLPack view of a received tensor that keeps its segment alive by itself; the receiver calls the
 * deleter. FAR_EVALUE if `value` is no tensor. */
FAR_API far_status far_value_to_dlpack(const far_message *message, const far_value *value,
                                       struct DLManagedTensor **out) FAR_MUST_USE;

/* -------------------------------------------------------------------------------------- agents */

typedef struct far_agent far_agent;       /* one worker of a job */
typedef struct far_future far_future;     /* the result of a call, once it is there */
typedef struct far_incoming far_incoming; /* a call being served */
typedef struct far_rref far_rref;         /* a reference to a value that lives at a worker */

typedef uint32_t far_worker_id; /* the worker's rank */

enum { FAR_NAME_MAX = 127 }; /* bytes; a name is of [A-Za-z0-9_.:-] */

typedef struct far_worker {
    far_worker_id id;
    uint64_t incarnation; /* differs each time a worker is started; compare only for equality */
    char name[FAR_NAME_MAX + 1];
} far_worker;

/* Serves one call. It owns `call` until it has called far_incoming_reply or far_incoming_fail, which
 * it must do exactly once, before or after it returns, from any thread. */
typedef void (*far_handler)(far_incoming *call, void *arg);

enum {
    /* The handler never waits and takes microseconds: it runs on the thread that read the call. */
    FAR_METHOD_NEVER_BLOCKS = 1,
};

typedef struct far_method {
    const char *name; /* 1 to 255 bytes; names that begin with "far." are reserved */
    far_handler handler;
    void *arg;
    unsigned flags;
} far_method;

typedef enum far_log_level {
    FAR_LOG_ERROR,
    FAR_LOG_WARNING,
    FAR_LOG_INFO,
    FAR_LOG_DEBUG,
} far_log_level;

/* May be called on any thread of farcall; must not call farcall. `text` is borrowed. */
typedef void (*far_log_fn)(far_log_level level, const char *text, void *arg);

/* Where received segments above a few KiB go: returns memory of at least `size` bytes, or NULL to
 * use the library's pool. Called on any thread; the memory is given back by free_fn(arg), which
 * may run on any thread. */
typedef void *(*far_alloc_fn)(size_t size, void *arg, far_free_fn *free_fn, void **free_arg);

/* All options of an agent. Initialise with far_options_init, then change what is needed. Everything
 * is copied. */
typedef struct far_options {
    size_t size; /* sizeof(far_options), set by far_options_init */

    const char *name;        /* of this worker, unique in the job; required */
    int64_t rank;            /* -1: from the environment (RANK, OMPI_COMM_WORLD_RANK, PMI_RANK,
                                SLURM_PROCID), else given by rank 0 (open world) */
    int64_t world_size;      /* -1: from the environment (WORLD_SIZE, ...), else open; 0: an open
                                world */
    const char *init_method; /* "env://" (default), "tcp://host:port", "file:///path" */
    const char *secret;      /* of the job; NULL: FARCALL_SECRET, FARCALL_SECRET_FILE, else the
                                user's own secret file, made at first use */
    size_t secret_size;
    const char *bind_address; /* numeric IPv4 or IPv6 address to listen on, or an interface's name;
                                 NULL: FARCALL_BIND, else chosen by the route to rank 0 */
    unsigned transports;      /* FAR_TRANSPORT_... or-ed; 0: all */

    far_duration init_timeout;    /* of far_agent_join; default 300 s, 0 = no limit */
    far_duration default_timeout; /* what FAR_TIMEOUT_DEFAULT means; default 0 = no limit */

    unsigned threads;     /* handler threads started without a stall; default 16, at least 1 */
    unsigned threads_max; /* never more than that; default 512 */
    bool foreign_threads; /* threads enter by far_executor_enter and far_service_next; the library
                             starts none but its loop thread */

    uint64_t message_size_max; /* bytes, body and segments of one message; default 64 GiB */

    const far_method *methods; /* registered before the first call can arrive */
    size_t method_count;
    far_handler fallback; /* serves names that are not registered; NULL: FAR_ENOMETHOD */
    void *fallback_arg;
    far_handler fetch; /* serves the fetch of a value that is no message (far_rref_create,
                          far_incoming_keep): far_incoming_kept gives the value; NULL: refused */
    void *fetch_arg;
    far_duration
        lost_grace; /* how long an owner keeps the references of a lost worker; default 15 s */

    far_alloc_fn alloc;
    void *alloc_arg;
    far_log_fn log; /* NULL: warnings and errors on stderr */
    void *log_arg;
    far_log_level log_level; /* default FAR_LOG_WARNING; FARCALL_LOG overrides it */
} far_options;

enum {
    FAR_TRANSPORT_UNIX = 1,
    FAR_TRANSPORT_TCP = 2,
};

FAR_API void far_options_init(far_options *options);

/* Makes an agent that is not yet part of a job; starts no thread, opens nothing. Copies `options`.
 * One reference is returned. FAR_EINVAL (error names the option), FAR_ENOMEM. */
FAR_API far_status far_agent_create(const far_options *options, far_agent **out,
                                    far_error *error) FAR_MUST_USE;
/* Joins the job; blocks until the world is complete (fixed size) or rank 0 has answered (open), at
 * most init_timeout. On failure the agent is closed and the error says who is missing or why.
 * FAR_ETIMEOUT, FAR_EAUTH, FAR_EVERSION, FAR_EBUSY (name, rank or port taken), FAR_ESYSTEM, ... */
FAR_API far_status far_agent_join(far_agent *agent, far_error *error) FAR_MUST_USE;
/* far_agent_create and far_agent_join in one. One reference is returned; far_agent_shutdown and
 * far_agent_release end it. */
FAR_API far_status far_agent_open(const far_options *options, far_agent **out,
                                  far_error *error) FAR_MUST_USE;
/* Leaves gracefully; blocks: serves calls until every worker has called it and no call is in flight
 * anywhere, then closes. FAR_ETIMEOUT: the agent stays open, the error says who was waited for.
 * FAR_EPEER: closed, but a worker was lost on the way. FAR_ECLOSED: far_agent_close came first.
 * FAR_EINVAL: inside a handler or callback of this agent. `timeout`: 0 = no limit. */
FAR_API far_status far_agent_shutdown(far_agent *agent, far_duration timeout,
                                      far_error *error) FAR_MUST_USE;
/* Leaves at once: pending calls complete with FAR_ECLOSED here and FAR_EPEER there. Does not wait
 * for handlers that are running. Idempotent. Must not be called on the loop thread (a never-blocking
 * handler or callback). Blocks for as long as the loop thread needs to end. */
FAR_API void far_agent_close(far_agent *agent);
FAR_API far_agent *far_agent_hold(far_agent *agent);
FAR_API void far_agent_release(far_agent *agent); /* the last one closes; NULL is accepted */

/* Adds a method while running. FAR_EBUSY: the name is taken. FAR_EINVAL: reserved or too long. */
FAR_API far_status far_agent_register(far_agent *agent, const far_method *method) FAR_MUST_USE;
FAR_API void far_agent_set_default_timeout(far_agent *agent, far_duration timeout);
FAR_API far_duration far_agent_default_timeout(const far_agent *agent);

/* Who is in the job. FAR_ENOWORKER (error lists near names), FAR_ECLOSED. */
FAR_API far_status far_agent_self(const far_agent *agent, far_worker *out) FAR_MUST_USE;
FAR_API far_status far_agent_find(far_agent *agent, const char *name, far_worker *out,
                                  far_error *error) FAR_MUST_USE;
FAR_API far_status far_agent_worker(far_agent *agent, far_worker_id id, far_worker *out,
                                    far_error *error) FAR_MUST_USE;
/* Fills up to `capacity` entries in order of id; *count is how many there are. */
FAR_API far_status far_agent_workers(far_agent *agent, far_worker *out, size_t capacity,
                                     size_t *count) FAR_MUST_USE;

#define FAR_COUNTER_MAP(X)                                                                         \
    X(calls_started, "calls made by users of this agent")                                          \
    X(calls_completed, "calls made here that ended with a result")                                 \
    X(calls_failed, "calls made here that ended with an error of any kind")                        \
    X(calls_timed_out, "of the failed ones, by their own limit")                                   \
    X(calls_cancelled, "of the failed ones, by cancel")                                            \
    X(calls_served, "handlers run here")                                                           \
    X(calls_expired_unrun, "calls received whose time was up before a handler began")              \
    X(calls_cancelled_unrun, "calls received that were cancelled before a handler began")          \
    X(replies_late, "replies that found their call ended, and were dropped")                       \
    X(self_calls, "of calls_started, those to this worker itself")                                 \
    X(bytes_sent, "bytes written to sockets")                                                      \
    X(bytes_received, "bytes read from sockets")                                                   \
    X(connections_opened, "handshakes that succeeded")                                             \
    X(connections_refused, "handshakes that failed")                                               \
    X(calls_pending, "now: calls made here that have not ended")                                   \
    X(calls_serving, "now: calls received that have not been answered")                            \
    X(rrefs_held, "now: references held by the program")                                           \
    X(rrefs_owned, "now: values kept here for references")                                         \
    X(rrefs_lent, "now: copies elsewhere of references to values kept here")                       \
    X(threads, "now: handler threads")

typedef struct far_counters {
#define FAR_COUNTER_FIELD(name, text) uint64_t name;
    FAR_COUNTER_MAP(FAR_COUNTER_FIELD)
#undef FAR_COUNTER_FIELD
} far_counters;

FAR_API void far_agent_counters(far_agent *agent, far_counters *out);

/* Allocations of farcall's own that are alive in this process: 0 when every object was given back. */
FAR_API size_t far_memory_live(void);

/* --------------------------------------------------------------------------------------- calls */

enum {
    FAR_CALL_NOW = 1, /* the caller waits next: write at once instead of gathering small calls */
};

/* Calls `method` of worker `to`, this worker itself included. Takes `message`. The call ends exactly
 * once: by its reply, its timeout, cancel, loss of the worker or closing of the agent; the future
 * says which. timeout: FAR_TIMEOUT_DEFAULT, FAR_NO_LIMIT or more. One reference is returned.
 * At once: FAR_EINVAL, FAR_ENOWORKER, FAR_ECLOSED, FAR_ETOOBIG, FAR_ENOMEM. */
FAR_API far_status far_call(far_agent *agent, far_worker_id to, const char *method,
                            far_message *message, far_duration timeout, unsigned flags,
                            far_future **out) FAR_MUST_USE;
/* The same, and blocks for the result: *reply is the caller's to discard. Resumes after signals.
 * A failure's traceback and payload are with far_call and far_future_failure only. */
FAR_API far_status far_call_sync(far_agent *agent, far_worker_id to, const char *method,
                                 far_message *message, far_duration timeout, far_message **reply,
                                 far_error *error) FAR_MUST_USE;

/* ------------------------------------------------------------------------------------- futures */

/* Blocks until the call has ended: FAR_OK, whatever its result. FAR_ETIMEOUT: `limit` (0 polls,
 * FAR_FOREVER) ran out, the call goes on. FAR_EINTR: a signal arrived, wait again. Never returns
 * before `limit` otherwise. */
FAR_API far_status far_future_wait(far_future *future, far_duration limit) FAR_MUST_USE;
FAR_API bool far_future_done(const far_future *future);
/* How the call ended; FAR_EAGAIN while it has not. */
FAR_API far_status far_future_status(const far_future *future);
/* The result; NULL unless far_future_status is FAR_OK. Borrowed from the future. */
FAR_API far_message *far_future_message(const far_future *future);
/* Moves the result out: the caller owns it, the future has none any more. NULL if there is none. */
FAR_API far_message *far_future_take_message(far_future *future);

/* How a call failed. Strings are borrowed from the future. */
typedef struct far_failure {
    far_status status;
    const char *text;      /* what went wrong, with method, worker, limit, time passed */
    far_worker_id worker;  /* whom the call went to */
    bool from_handler;     /* it came out of the handler at the callee */
    bool may_have_run;     /* FAR_EPEER: the handler may have begun */
    const char *type_name; /* of a handler's error, such as "ValueError"; "" if unknown */
    const char *traceback; /* of a handler's error, "" if none */
    far_message *payload;  /* of a handler's error in the callee's own encoding, or NULL */
} far_failure;

/* Fills `out`; its status is FAR_OK if the call succeeded, FAR_EAGAIN while it has not ended. */
FAR_API void far_future_failure(const far_future *future, far_failure *out);

typedef void (*far_future_fn)(far_future *future, void *arg);

enum {
    FAR_CALLBACK_NEVER_BLOCKS = 1, /* may run on the loop thread */
};

/* Runs fn(future, arg) once the call has ended, on a handler thread, after those added before it; at
 * once in this thread if it has ended. */
FAR_API far_status far_future_on_done(far_future *future, far_future_fn fn, void *arg,
                                      unsigned flags) FAR_MUST_USE;
/* Gives FAR_EVENT_FUTURE_DONE with `tag` out of far_service_next once the call has ended (also if it
 * has already). Foreign threads only, else FAR_EINVAL. */
FAR_API far_status far_future_notify(far_future *future, void *tag) FAR_MUST_USE;
/* Ends the call with FAR_ECANCELED unless it has ended; the callee is told. True if it did. False: it
 * has ended, or another thread is ending it at this moment. */
FAR_API bool far_future_cancel(far_future *future);
FAR_API far_future *far_future_hold(far_future *future);
/* NULL is accepted. A call whose future nobody holds goes on; its result is dropped. */
FAR_API void far_future_release(far_future *future);

/* A future that its holder completes: for replies that are made of several calls. `agent` runs its
 * callbacks; holds it. */
FAR_API far_status far_future_create(far_agent *agent, far_future **out) FAR_MUST_USE;
/* Takes `message`. False: it had ended already, the message is discarded. */
FAR_API bool far_future_complete(far_future *future, far_message *message);
/* Copies the text. False: it had ended already. */
FAR_API bool far_future_fail(far_future *future, far_status status, const char *text);

/* ------------------------------------------------------------------------------- references */

/* A far_rref is a counted handle. Its value lives at the owner and is freed when no handle is left
 * anywhere. Handles are passed in messages; distributed counting is described in docs/references.md. */

/* Runs `method` at `to`, this worker included, and keeps the result there. Takes `message`. Returns at
 * once; whether it worked shows at each use of the reference. `timeout` covers the running of the
 * function at the owner. Errors at once as far_call. One handle is returned. */
FAR_API far_status far_remote(far_agent *agent, far_worker_id to, const char *method,
                              far_message *message, far_duration timeout,
                              far_rref **out) FAR_MUST_USE;
/* A reference to a value of this worker: free_fn(value) runs once nobody refers to it any more, where
 * free_fn of a buffer without FAR_BUFFER_FREE_ANYWHERE may run. On failure it does not run.
 * `value` must not be NULL. FAR_ECLOSED, FAR_ENOMEM. */
FAR_API far_status far_rref_create(far_agent *agent, void *value, far_free_fn free_fn,
                                   far_rref **out) FAR_MUST_USE;
FAR_API far_rref *far_rref_hold(far_rref *rref);
FAR_API void far_rref_release(far_rref *rref); /* NULL is accepted; sends nothing by itself */

FAR_API bool far_rref_is_owner(const far_rref *rref);
/* Fills id, incarnation and (if known) name of the worker where the value lives. */
FAR_API void far_rref_owner(const far_rref *rref, far_worker *out);
/* The owner has said that it knows this reference. */
FAR_API bool far_rref_confirmed(const far_rref *rref);
/* Do both refer to the same value? And a hash that agrees with it. */
FAR_API bool far_rref_same(const far_rref *a, const far_rref *b);
FAR_API uint64_t far_rref_hash(const far_rref *rref);
/* For people: "worker 1, reference 0:5, CONFIRMED". Cut to `size`. */
FAR_API void far_rref_describe(const far_rref *rref, char *text, size_t size);

/* A future that ends when it is known whether the value exists: at the owner once it is made, at the
 * creator once the owner has said so, at others at once. It ends with the error of the creation. Its
 * result is an empty message. One reference is returned. */
FAR_API far_status far_rref_settled(far_rref *rref, far_future **out) FAR_MUST_USE;
/* The owner's value, borrowed while `rref` is held; NULL if it is a message (a C handler's reply).
 * FAR_EAGAIN: being made. FAR_EINVAL: this worker is not the owner. Else what the creation failed
 * with. */
FAR_API far_status far_rref_value(far_rref *rref, void **out) FAR_MUST_USE;
/* Brings the value here, as far_call: at the owner too. `encoding` is what the caller would like;
 * far_message_encoding of the result says what came. */
FAR_API far_status far_rref_fetch(far_rref *rref, far_encoding encoding, far_duration timeout,
                                  unsigned flags, far_future **out) FAR_MUST_USE;

/* Puts a reference into a message, for its body to name it by *index; borrows. The same reference
 * again gives the same index. What its creation failed with, if that is known; FAR_ETOOBIG: too many;
 * FAR_EINVAL: of another agent; FAR_ENOMEM. */
FAR_API far_status far_message_add_rref(far_message *message, far_rref *rref,
                                        size_t *index) FAR_MUST_USE;
FAR_API size_t far_message_rref_count(const far_message *message);
/* A handle on reference `index` of a received message, any number of times. FAR_EINVAL: no such. */
FAR_API far_status far_message_rref(far_message *message, size_t index,
                                    far_rref **out) FAR_MUST_USE;

/* What references there are. Borrowed strings end with the callback, which must not call farcall. */
typedef struct far_rref_info {
    far_worker_id owner;
    bool is_owner, held; /* held: by this program */
    const char *state;
    const far_worker_id *holders; /* is_owner: who holds forks of it */
    size_t holder_count;
} far_rref_info;
FAR_API void far_agent_rrefs(far_agent *agent, void (*fn)(const far_rref_info *info, void *arg),
                             void *arg);

/* -------------------------------------------------------------------------- serving: a handler */

FAR_API far_agent *far_incoming_agent(const far_incoming *call);         /* borrowed */
FAR_API const far_worker *far_incoming_caller(const far_incoming *call); /* borrowed */
FAR_API const char *far_incoming_method(const far_incoming *call);       /* borrowed */
FAR_API far_message *far_incoming_message(far_incoming *call);           /* borrowed */
FAR_API far_message *far_incoming_take_message(far_incoming *call); /* the caller's to discard */
/* Time left of the caller's limit: FAR_FOREVER if it gave none, 0 if it is up. */
FAR_API far_duration far_incoming_remaining(const far_incoming *call);
/* The caller has given up (cancel, timeout, loss): an answer would be dropped. */
FAR_API bool far_incoming_cancelled(const far_incoming *call);
/* Every worker has asked for shutdown: a service loop should return. */
FAR_API bool far_incoming_closing(const far_incoming *call);
/* The call came by far_remote: its result is to stay here. far_incoming_reply keeps the message,
 * far_incoming_keep another value. */
FAR_API bool far_incoming_is_remote(const far_incoming *call);
/* Ends a call that came by far_remote: takes `call` and keeps `value`, as far_rref_create (also when it
 * has expired: then free_fn runs soon). For other calls: fails them. */
FAR_API void far_incoming_keep(far_incoming *call, void *value, far_free_fn free_fn);
/* Of a call to the fetch handler: the value asked for, borrowed until the answer; what the caller would
 * like it to be encoded as. */
FAR_API void *far_incoming_kept(const far_incoming *call, far_encoding *encoding);
/* Answers; takes `message` (NULL: an empty raw one) and `call`. Errors end the call at its caller. */
FAR_API void far_incoming_reply(far_incoming *call, far_message *message);
/* Answers with an error; takes `call` and `payload` (may be NULL), copies the strings (`type_name`
 * and `traceback` may be NULL). `status`: FAR_EREMOTE for the handler's own, or what fits. */
FAR_API void far_incoming_fail(far_incoming *call, far_status status, const char *type_name,
                               const char *text, const char *traceback, far_message *payload);

/* ---------------------------------------------------------------------------- foreign threads */

/* For languages whose code may run only on threads that the language made (foreign_threads). */

/* Works as a handler thread until the library lets it go; blocks. Handlers and callbacks are called
 * from inside. FAR_OK: leave. */
FAR_API far_status far_executor_enter(far_agent *agent) FAR_MUST_USE;

typedef enum far_event_kind {
    FAR_EVENT_START_THREAD, /* start a thread that calls far_executor_enter */
    FAR_EVENT_RELEASE,      /* call fn(arg) */
    FAR_EVENT_FUTURE_DONE,  /* the call of the future with this tag has ended */
    FAR_EVENT_STOP,         /* the agent is closed: do not ask again */
} far_event_kind;

typedef struct far_event {
    far_event_kind kind;
    far_free_fn fn;
    void *arg; /* of fn; or the tag */
} far_event;

/* Blocks for the next thing that needs a foreign thread. One thread an agent calls it, from after
 * far_agent_create until FAR_EVENT_STOP, and must not wait for a call in between. */
FAR_API far_status far_service_next(far_agent *agent, far_event *event) FAR_MUST_USE;

/* In a forked child: closes the descriptors of every open agent of the parent, whose use gives
 * FAR_ECLOSED from then on. Called by the library itself (pthread_atfork); a child may open anew. */
FAR_API void far_after_fork_child(void);

#ifdef __cplusplus
}
#endif
#endif
