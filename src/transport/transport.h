/* SPDX-License-Identifier: BSD-3-Clause
 * transport/transport: the operations table behind which messages move. A transport may be a byte
 * stream or whole messages, addressed by connection or by rank, usable from any thread or on the loop
 * thread only. A connection is dialled or accepted, carries messages both ways, and is closed once.
 * Floor: transport. */
#ifndef FAR_TRANSPORT_TRANSPORT_H
#define FAR_TRANSPORT_TRANSPORT_H

#include "async/loop.h"
#include "base/mutex.h"
#include "transport/stream.h"

typedef struct far__transport far__transport;
typedef struct far__transport_ops far__transport_ops;
typedef struct far__conn far__conn;

enum {
    FAR__TRANSPORT_LOOP_ONLY = 1, /* send, flush and drive only on the loop thread: others post */
};

/* Called with no lock held. conn->owner is the agent's, counted by it: it stays until `gone`. */
typedef struct far__transport_up {
    /* Loop thread: somebody dialled us. Sets conn->owner and conn->lock; false: refuse it. */
    bool (*accepted)(far__conn *conn, void *arg);
    /* Loop thread: a dialled connection is up. */
    void (*opened)(far__conn *conn, void *arg);
    /* Loop thread: a watched connection can be read: the owner calls drive with deadline 0. */
    void (*readable)(far__conn *conn, void *arg);
    /* Loop thread: the serving set can be read, while serve_watch is on: the owner calls serve. */
    void (*serve_readable)(void *arg);
    /* On the thread that drives the connection; as far__stream_up. */
    far_status (*memory)(far__conn *conn, size_t size, far_buffer **out, void *arg);
    far_status (*received)(far__conn *conn, far__inbound *message, void *arg);
    /* Loop thread: the connection broke (or the dialling failed). Exactly once, unless close came first;
     * the owner must still close it. */
    void (*closed)(far__conn *conn, far_status status, const char *text, void *arg);
    /* The last use of the connection is over, after close. Any thread. */
    void (*gone)(void *owner, void *arg);
    /* Buffers whose free_fn must run on another kind of thread. Any thread. */
    void (*orphans)(far_buffer *list, void *arg);
    _Atomic uint64_t *bytes_sent, *bytes_received; /* totals, kept by the transport */
    void *arg;
} far__transport_up;

/* The common head of every transport's connection. */
struct far__conn {
    const far__transport_ops *ops;
    void *owner;
    far__mutex *lock; /* the owner's; guards all that is sent */
};

typedef enum far__drive_result {
    FAR__DRIVE_READ,    /* something was read or written */
    FAR__DRIVE_TIMEOUT, /* the deadline passed */
    FAR__DRIVE_WOKEN,   /* by far__transport_ops.wake */
    FAR__DRIVE_SIGNAL,  /* a signal arrived */
    FAR__DRIVE_CLOSED,  /* broken or closed; the loop thread will say so */
} far__drive_result;

struct far__transport_ops {
    const char *name;
    unsigned flags;
    /* Does this transport dial addresses like `address` ("tcp:1.2.3.4:5")? */
    bool (*handles)(const char *address);
    far_status (*create)(far__loop *loop, const far__transport_up *up, far__transport **out);
    void (*destroy)(far__transport *t); /* the loop is stopped; every connection was closed */
    /* Listens on `wish` ("tcp:127.0.0.1:0", "tcp:[::]:0", "unix:"); appends " ADDRESS" to be published
     * (for a wildcard: of every interface) to `published`. Nothing is accepted before accept_start. */
    far_status (*listen)(far__transport *t, const char *wish, far__bytes *published,
                         far_error *error);
    far_status (*accept_start)(far__transport *t);
    void (*accept_stop)(far__transport *t); /* loop thread */
    /* Loop thread. `opened` or `closed` follows; `owner` is counted from now on until `gone`. */
    far_status (*dial)(far__transport *t, const char *address, void *owner, far__mutex *lock,
                       far__conn **out, far_error *error);
    /* conn->lock held. Queues; nothing is written before flush. */
    far_status (*send)(far__conn *c, const far__outgoing *message, uint64_t *token);
    /* conn->lock held. Writes what the socket takes; does not block. The rest is written by the reader
     * or the loop as soon as there is room. */
    void (*flush)(far__conn *c);
    uint64_t (*pending)(const far__conn *c); /* conn->lock held: bytes not yet written */
    bool (*started)(const far__conn *c, uint64_t token); /* conn->lock held */
    void (*abandon)(far__conn *c, uint64_t token);       /* conn->lock held */
    /* The caller is the only reader of `c`; no lock held. Waits until something was read, the
     * deadline or a wake; reads and calls up. deadline 0: does not wait. */
    far__drive_result (*drive)(far__conn *c, int64_t deadline);
    void (*wake)(far__conn *c); /* makes the reader in drive return; any thread, no lock held */
    /* Whether the loop thread watches the connection for reading. conn->lock held. */
    void (*watch)(far__conn *c, bool on);
    /* The handshake is over: bytes of all segments of one message. By the reader. */
    void (*limit)(far__conn *c, uint64_t message_max);
    /* Moves the connection into the serving set: it is read by serve from now on. Loop thread. */
    void (*serve_add)(far__conn *c);
    /* Reads from all connections of the serving set that have something, after waiting for one until
     * `deadline` or serve_wake. One thread at a time. */
    void (*serve)(far__transport *t, int64_t deadline);
    void (*serve_wake)(far__transport *t);
    void (*serve_watch)(far__transport *t, bool on); /* any thread */
    void (*hold)(far__conn *c);                      /* so that it stays valid beyond close */
    void (*release)(far__conn *c);
    /* Loop thread. No upcall but gone follows on it. Gives up the reference of dial or accepted. */
    void (*close)(far__conn *c);
    const char *(*peer_text)(const far__conn *c); /* for logs: "tcp:127.0.0.1:4242" */
    /* In a forked child: closes the descriptors, touches no lock. */
    void (*forked)(far__transport *t);
};

extern const far__transport_ops far__sock_ops; /* transport/sock: Unix and TCP sockets */

#endif
