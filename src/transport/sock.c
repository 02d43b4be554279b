/* SPDX-License-Identifier: BSD-3-Clause
 * transport/sock: one connection over a Unix or TCP socket: writing, reading, waiting.
 * Floor: transport. Thread: said in transport.h at each operation.
 *
 * Design notes. A connection is written by anybody under its owner's lock and read by one reader at a
 * time, whom the owner chooses. Three places may watch the descriptor: the loop's epoll (for a broken
 * connection always; for reading when the owner asks; for writing when the socket was full and nobody
 * is in ppoll), a waiter in ppoll (far__sock_drive), or the serving set (sock_listen.c).
 * The descriptor is closed when the last reference is gone, so no thread can meet a recycled number. */
#include "transport/sock.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/mem.h"

enum { VECTORS = 64 };

static void closed_task(far__task *task);

static far_status up_memory(size_t size, far_buffer **out, void *arg)
{
    far__sock_conn *c = arg;
    return c->transport->up.memory(&c->head, size, out, c->transport->up.arg);
}

static far_status up_received(far__inbound *message, void *arg)
{
    far__sock_conn *c = arg;
    return c->transport->up.received(&c->head, message, c->transport->up.arg);
}

static void give_orphans(far__sock_conn *c, far_buffer *orphans)
{
    if (orphans)
        c->transport->up.orphans(orphans, c->transport->up.arg);
}

far_status far__sock_conn_create(far__transport *t, int fd, far__sock_conn **out)
{
    far__sock_conn *c = far__mem_zalloc(sizeof *c);
    if (!c)
        return FAR_ENOMEM;
    far__stream_up up = {.memory = up_memory, .received = up_received, .arg = c};
    far_status status = far__stream_out_create(&c->out);
    if (status != FAR_OK)
        goto err_free;
    /* A stranger's messages are as small as a handshake's. */
    status = far__stream_in_create(&up, FAR__SEGMENT_OWN, &c->in);
    if (status != FAR_OK)
        goto err_out;
    far__ref_init(&c->refs);
    c->head.ops = &far__sock_ops;
    c->transport = t;
    c->fd = fd;
    c->watch.fd = fd;
    c->watch.ready = far__sock_ready;
    c->closed_task.run = closed_task;

    far__mutex_lock(&t->lock);
    c->id = ++t->next_id;
    status = far__map_put(&t->conns, c->id, c);
    far__mutex_unlock(&t->lock);
    if (status != FAR_OK)
        goto err_in;
    *out = c;
    return FAR_OK;

err_in:
    far__stream_in_destroy(c->in, &(far_buffer *){NULL});
err_out:
    far__stream_out_destroy(c->out, &(far_buffer *){NULL});
err_free:
    far__mem_free(c);
    return status;
}

void far__sock_conn_release(far__sock_conn *c)
{
    if (!far__ref_release(&c->refs))
        return;
    far_buffer *orphans = NULL;
    far__transport *t = c->transport;
    void *owner = c->head.owner;
    far__stream_out_destroy(c->out, &orphans);
    far__stream_in_destroy(c->in, &orphans);
    give_orphans(c, orphans);
    close(c->fd);
    far__mem_free(c);
    if (owner)
        t->up.gone(owner, t->up.arg);
}

void far__sock_update(far__sock_conn *c)
{
    far__loop *loop = c->transport->loop;
    uint32_t want = 0;
    if (!c->closed && !c->broken && !c->hung_up) {
        if (c->connecting)
            want = EPOLLOUT;
        else if (!c->serving)
            want = EPOLLRDHUP;
        if (c->want_read && !c->serving)
            want |= EPOLLIN;
        if (c->blocked && !c->polls_writing)
            want |= EPOLLOUT;
    }
    if (want == c->events)
        return;
    if (want == 0)
        far__loop_remove(loop, &c->watch);
    else if (c->events)
        far__loop_change(loop, &c->watch, want);
    else if (far__loop_add(loop, &c->watch, want) != FAR_OK)
        want = 0; /* out of watches: the connection is still read by those who wait */
    c->events = want;
}

static void closed_task(far__task *task)
{
    far__sock_conn *c = far__container_of(task, far__sock_conn, closed_task);
    far__mutex_lock(c->head.lock);
    bool closed = c->closed;
    far__mutex_unlock(c->head.lock);
    if (!closed)
        c->transport->up.closed(&c->head, c->status, c->why, c->transport->up.arg);
    far__sock_conn_release(c);
}

void far__sock_break(far__sock_conn *c, far_status status, const char *format, ...)
{
    if (c->broken || c->closed)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(c->why, sizeof c->why, format, args);
    va_end(args);
    c->broken = true;
    c->status = status;
    if (c->serving)
        epoll_ctl(c->transport->serve_fd, EPOLL_CTL_DEL, c->fd, NULL);
    far__sock_update(c);
    far__ref_hold(&c->refs);
    far__loop_post(c->transport->loop, &c->closed_task);
}

/* ---------------------------------------------------------------------------------- writing */

far_status far__sock_send(far__conn *head, const far__outgoing *message, uint64_t *token)
{
    far__sock_conn *c = (far__sock_conn *)head;
    far_buffer *orphans = NULL;
    far_status status = far__stream_put(c->out, message, token, &orphans);
    give_orphans(c, orphans);
    return status;
}

void far__sock_flush(far__conn *head)
{
    far__sock_conn *c = (far__sock_conn *)head;
    if (c->broken || c->closed || c->connecting)
        return;
    far_buffer *orphans = NULL;
    struct iovec iov[VECTORS];
    bool blocked = false;
    for (;;) {
        size_t count = far__stream_gather(c->out, far__clock_now(), iov, VECTORS);
        if (count == 0)
            break;
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = count};
        ssize_t n = sendmsg(c->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)
                blocked = true;
            else
                far__sock_break(c, FAR_EPEER, "%s: %s", c->peer, strerror(errno));
            break;
        }
        atomic_fetch_add_explicit(c->transport->up.bytes_sent, (uint64_t)n, memory_order_relaxed);
        far__stream_written(c->out, (size_t)n, &orphans);
    }
    if (blocked != c->blocked) {
        c->blocked = blocked;
        far__sock_update(c);
    }
    give_orphans(c, orphans);
}

uint64_t far__sock_pending(const far__conn *head)
{
    return far__stream_pending(((const far__sock_conn *)head)->out);
}

bool far__sock_started(const far__conn *head, uint64_t token)
{
    return far__stream_started(((const far__sock_conn *)head)->out, token);
}

void far__sock_abandon(far__conn *head, uint64_t token)
{
    far__sock_conn *c = (far__sock_conn *)head;
    far_buffer *orphans = NULL;
    far__stream_abandon(c->out, token, &orphans);
    give_orphans(c, orphans);
}

/* ---------------------------------------------------------------------------------- reading */

bool far__sock_read(far__sock_conn *c)
{
    for (;;) {
        struct iovec iov[2];
        size_t count = far__stream_in_prepare(c->in, iov);
        size_t room = 0;
        for (size_t i = 0; i < count; i++)
            room += iov[i].iov_len;
        ssize_t n = readv(c->fd, iov, (int)count);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        far_buffer *orphans = NULL;
        far_status status = FAR_EPEER;
        const char *why = n == 0 ? "closed by the peer" : NULL;
        if (n < 0)
            why = strerror(errno);
        if (n > 0) {
            atomic_fetch_add_explicit(c->transport->up.bytes_received, (uint64_t)n,
                                      memory_order_relaxed);
            why = NULL;
            status = far__stream_in_read(c->in, (size_t)n, &orphans, &why);
            give_orphans(c, orphans);
        }
        if (status != FAR_OK) {
            far__mutex_lock(c->head.lock);
            far__sock_break(c, status, "%s: %s", c->peer, why ? why : far_status_text(status));
            far__mutex_unlock(c->head.lock);
            return false;
        }
        if ((size_t)n < room)
            return true;
    }
}

static far__waker *borrow_waker(far__transport *t)
{
    far__mutex_lock(&t->lock);
    far__waker *w = t->wakers;
    if (w)
        t->wakers = w->next;
    far__mutex_unlock(&t->lock);
    if (w)
        return w;
    w = far__mem_alloc(sizeof *w);
    if (!w)
        return NULL;
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->fd < 0) {
        far__mem_free(w);
        return NULL;
    }
    return w;
}

static void return_waker(far__transport *t, far__waker *w, bool woken)
{
    uint64_t count;
    if (woken && read(w->fd, &count, sizeof count) != (ssize_t)sizeof count)
        assert(errno == EAGAIN);
    far__mutex_lock(&t->lock);
    w->next = t->wakers;
    t->wakers = w;
    far__mutex_unlock(&t->lock);
}

/* Waits in ppoll; the revents of the connection are left in *revents. */
static far__drive_result poll_conn(far__sock_conn *c, far__waker *w, short events, int64_t deadline,
                                   short *revents)
{
    struct pollfd fds[2] = {{.fd = c->fd, .events = events}, {.fd = w->fd, .events = POLLIN}};
    struct timespec ts, *limit = NULL;
    if (deadline != FAR__NEVER) {
        int64_t left = deadline - far__clock_now();
        if (left <= 0)
            left = 0;
        ts = (struct timespec){.tv_sec = (time_t)(left / 1000000000), .tv_nsec = left % 1000000000};
        limit = &ts;
    }
    int rc = ppoll(fds, 2, limit, NULL);
    *revents = 0;
    if (rc < 0)
        return errno == EINTR ? FAR__DRIVE_SIGNAL : FAR__DRIVE_TIMEOUT;
    if (rc == 0)
        return FAR__DRIVE_TIMEOUT;
    *revents = fds[0].revents;
    return fds[0].revents ? FAR__DRIVE_READ : FAR__DRIVE_WOKEN;
}

far__drive_result far__sock_drive(far__conn *head, int64_t deadline)
{
    far__sock_conn *c = (far__sock_conn *)head;
    if (deadline == 0)
        return far__sock_read(c) ? FAR__DRIVE_READ : FAR__DRIVE_CLOSED;
    far__waker *w = borrow_waker(c->transport);
    if (!w)
        return FAR__DRIVE_TIMEOUT;

    far__mutex_lock(head->lock);
    bool gone = c->broken || c->closed;
    bool already = c->woken; /* between two drives: who asked is not to ask twice */
    c->woken = false;
    short events = POLLIN;
    if (!gone && !already) {
        c->polling = true;
        c->waker = w;
        c->polls_writing = c->blocked;
        if (c->blocked)
            events |= POLLOUT;
        far__sock_update(c);
    }
    far__mutex_unlock(head->lock);
    if (gone || already) {
        return_waker(c->transport, w, false);
        return gone ? FAR__DRIVE_CLOSED : FAR__DRIVE_WOKEN;
    }

    short revents;
    far__drive_result result = poll_conn(c, w, events, deadline, &revents);
    if (revents & POLLOUT) {
        far__mutex_lock(head->lock);
        far__sock_flush(head);
        far__mutex_unlock(head->lock);
    }
    if ((revents & ~POLLOUT) && !far__sock_read(c))
        result = FAR__DRIVE_CLOSED;

    far__mutex_lock(head->lock);
    bool woken = c->woken;
    c->woken = false;
    c->waker = NULL;
    c->polling = c->polls_writing = false;
    c->hung_up = false;
    far__sock_update(c);
    far__mutex_unlock(head->lock);
    return_waker(c->transport, w, woken);
    return result;
}

void far__sock_wake(far__conn *head)
{
    far__sock_conn *c = (far__sock_conn *)head;
    far__mutex_lock(head->lock);
    c->woken = true;
    if (c->waker) {
        uint64_t one = 1;
        if (write(c->waker->fd, &one, sizeof one) != (ssize_t)sizeof one)
            assert(errno == EAGAIN); /* it is readable already */
    }
    far__mutex_unlock(head->lock);
}

void far__sock_watch(far__conn *head, bool on)
{
    far__sock_conn *c = (far__sock_conn *)head;
    if (c->want_read == on)
        return;
    c->want_read = on;
    far__sock_update(c);
}

void far__sock_limit(far__conn *head, uint64_t message_max)
{
    far__stream_in_limit(((far__sock_conn *)head)->in, message_max);
}

/* ---------------------------------------------------------------------------- the loop's part */

static void connected(far__sock_conn *c)
{
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    far__mutex_lock(c->head.lock);
    c->connecting = false;
    if (error)
        far__sock_break(c, FAR_EPEER, "%s: %s", c->peer, strerror(error));
    else
        far__sock_update(c);
    far__mutex_unlock(c->head.lock);
    if (!error)
        c->transport->up.opened(&c->head, c->transport->up.arg);
}

void far__sock_ready(far__watch *w, uint32_t events)
{
    far__sock_conn *c = far__container_of(w, far__sock_conn, watch);
    if (c->connecting) { /* only this thread changes it */
        connected(c);
        return;
    }
    far__ref_hold(&c->refs);
    if (events & EPOLLOUT) {
        far__mutex_lock(c->head.lock);
        far__sock_flush(&c->head);
        far__mutex_unlock(c->head.lock);
    }
    if (events & ~(uint32_t)EPOLLOUT) {
        c->transport->up.readable(&c->head, c->transport->up.arg);
        /* A hang-up is level-triggered. If another thread is the reader, it will find the end of
         * file; until then the loop must not spin. */
        far__mutex_lock(c->head.lock);
        if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) && !c->broken && !c->closed &&
            c->polling) {
            c->hung_up = true;
            far__sock_update(c);
        }
        far__mutex_unlock(c->head.lock);
    }
    far__sock_conn_release(c);
}

void far__sock_close(far__conn *head)
{
    far__sock_conn *c = (far__sock_conn *)head;
    far__transport *t = c->transport;
    far__mutex_lock(head->lock);
    assert(!c->closed);
    c->closed = true;
    if (c->events)
        far__loop_remove(t->loop, &c->watch);
    c->events = 0;
    if (c->serving && !c->broken)
        epoll_ctl(t->serve_fd, EPOLL_CTL_DEL, c->fd, NULL);
    shutdown(c->fd, SHUT_RDWR); /* gets a driver out of ppoll */
    far__mutex_unlock(head->lock);
    far__mutex_lock(&t->lock);
    far__map_remove(&t->conns, c->id);
    far__mutex_unlock(&t->lock);
    far__sock_conn_release(c);
}
