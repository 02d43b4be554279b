/* SPDX-License-Identifier: BSD-3-Clause
 * transport/sock: what sock.c (connections) and sock_listen.c (listening, dialling, the transport itself)
 * share. Nobody else includes it.
 * Floor: transport. */
#ifndef FAR_TRANSPORT_SOCK_H
#define FAR_TRANSPORT_SOCK_H

#include "base/ref.h"
#include "transport/address.h"
#include "transport/transport.h"

/* An eventfd with which a thread in ppoll is woken; lent to whoever drives a connection, so that a
 * connection costs one descriptor. */
typedef struct far__waker {
    int fd;
    struct far__waker *next;
} far__waker;

typedef struct far__listener {
    far__watch watch;
    far__transport *transport;
    bool is_unix;
    struct far__listener *next;
} far__listener;

struct far__transport {
    far__loop *loop;
    far__transport_up up;
    far__mutex lock; /* conns, wakers */
    far__map conns;  /* id -> conn, all that are not closed */
    uint64_t next_id;
    far__waker *wakers;
    far__listener *listeners;
    int spare_fd;       /* given up to accept and refuse when descriptors run out */
    int serve_fd;       /* epoll of the serving set */
    int serve_event;    /* eventfd in it */
    far__watch serve_w; /* serve_fd in the loop */
};

typedef struct far__sock_conn {
    far__conn head;
    far__ref refs;
    far__transport *transport;
    uint64_t id;
    int fd;
    far__watch watch;
    far__stream_out *out; /* guarded by head.lock */
    far__stream_in *in;   /* the reader's */

    /* Guarded by head.lock. */
    uint32_t events;    /* registered in the loop; 0: not at all */
    bool want_read;     /* the loop shall watch it for reading */
    bool blocked;       /* the socket was full */
    bool polling;       /* a driver is in ppoll ... */
    bool polls_writing; /* ... and waits for room to write too */
    bool hung_up;       /* the loop saw the hang-up while somebody else was reading */
    bool connecting;
    bool serving;
    bool closed; /* close was called */
    bool broken;
    bool woken; /* no drive has answered a wake yet; waker, if set, was written */
    far__waker *waker;

    far_status status; /* why it broke; set once, before closed_task is posted */
    char why[160];
    far__task closed_task;
    char peer[FAR__ADDRESS_TEXT];
} far__sock_conn;

/* sock.c */
far_status far__sock_conn_create(far__transport *t, int fd, far__sock_conn **out) FAR_MUST_USE;
void far__sock_conn_release(far__sock_conn *c);
/* Registers with the loop what the state asks for; head.lock held. */
void far__sock_update(far__sock_conn *c);
/* head.lock held. */
void far__sock_break(far__sock_conn *c, far_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Reads what is there. The caller is the reader. False: broken. */
bool far__sock_read(far__sock_conn *c);
void far__sock_ready(far__watch *w, uint32_t events);

far_status far__sock_send(far__conn *head, const far__outgoing *message, uint64_t *token);
void far__sock_flush(far__conn *head);
uint64_t far__sock_pending(const far__conn *head);
bool far__sock_started(const far__conn *head, uint64_t token);
void far__sock_abandon(far__conn *head, uint64_t token);
far__drive_result far__sock_drive(far__conn *head, int64_t deadline);
void far__sock_wake(far__conn *head);
void far__sock_watch(far__conn *head, bool on);
void far__sock_limit(far__conn *head, uint64_t message_max);
void far__sock_close(far__conn *head);

#endif
