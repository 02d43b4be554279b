/* SPDX-License-Identifier: BSD-3-Clause
 * transport/sock_listen: the sockets transport itself: listening, dialling, the serving set.
 * Floor: transport. Thread: said in transport.h at each operation. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "transport/sock.h"

enum { BACKLOG = 4096, EVENTS = 64 };

static void serve_ready(far__watch *w, uint32_t events)
{
    (void)events;
    far__transport *t = far__container_of(w, far__transport, serve_w);
    t->up.serve_readable(t->up.arg);
}

static far_status create(far__loop *loop, const far__transport_up *up, far__transport **out)
{
    far__transport *t = far__mem_zalloc(sizeof *t);
    if (!t)
        return FAR_ENOMEM;
    far_status status = FAR_ESYSTEM;
    t->loop = loop;
    t->up = *up;
    t->serve_fd = epoll_create1(EPOLL_CLOEXEC);
    if (t->serve_fd < 0)
        goto err_free;
    t->serve_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->serve_event < 0)
        goto err_epoll;
    t->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (t->spare_fd < 0)
        goto err_event;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0};
    if (epoll_ctl(t->serve_fd, EPOLL_CTL_ADD, t->serve_event, &event) != 0)
        goto err_spare;
    t->serve_w = (far__watch){.ready = serve_ready, .fd = t->serve_fd};
    far__mutex_init(&t->lock);
    *out = t;
    return FAR_OK;

err_spare:
    close(t->spare_fd);
err_event:
    close(t->serve_event);
err_epoll:
    close(t->serve_fd);
err_free:
    far__mem_free(t);
    return status;
}

static void destroy(far__transport *t)
{
    for (far__waker *w = t->wakers, *next; w; w = next) {
        next = w->next;
        close(w->fd);
        far__mem_free(w);
    }
    for (far__listener *l = t->listeners, *next; l; l = next) {
        next = l->next;
        close(l->watch.fd);
        far__mem_free(l);
    }
    close(t->spare_fd);
    close(t->serve_event);
    close(t->serve_fd);
    far__map_fini(&t->conns);
    far__mutex_fini(&t->lock);
    far__mem_free(t);
}

static bool handles(const char *address)
{
    return strncmp(address, "tcp:", 4) == 0 || strncmp(address, "unix:", 5) == 0;
}

/* ---------------------------------------------------------------------------------- listening */

/* Only processes of the same user, or root, may come in by a Unix socket. */
static bool peer_is_ours(int fd)
{
    struct ucred cred;
    socklen_t size = sizeof cred;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0)
        return false;
    return cred.uid == geteuid() || cred.uid == 0;
}

static void set_nodelay(int fd)
{
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void accepted(far__listener *l, int fd, const far__address *from)
{
    far__transport *t = l->transport;
    far__sock_conn *c;
    if ((l->is_unix && !peer_is_ours(fd)) || far__sock_conn_create(t, fd, &c) != FAR_OK) {
        close(fd);
        return;
    }
    if (l->is_unix)
        snprintf(c->peer, sizeof c->peer, "unix socket");
    else
        far__address_format(from, c->peer);
    if (!l->is_unix)
        set_nodelay(fd);
    if (!t->up.accepted(&c->head, t->up.arg)) {
        far__mutex_lock(&t->lock);
        far__map_remove(&t->conns, c->id);
        far__mutex_unlock(&t->lock);
        c->head.owner = NULL;
        far__sock_conn_release(c);
        return;
    }
    far__mutex_lock(c->head.lock);
    c->want_read = true;
    far__sock_update(c);
    far__mutex_unlock(c->head.lock);
}

/* No descriptor left: the queue of waiting connections would make the loop spin, so the first one is
 * taken with the spare descriptor and refused. */
static void refuse_one(far__listener *l)
{
    far__transport *t = l->transport;
    close(t->spare_fd);
    int fd = accept4(l->watch.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        close(fd);
    t->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void listener_ready(far__watch *w, uint32_t events)
{
    (void)events;
    far__listener *l = far__container_of(w, far__listener, watch);
    for (int i = 0; i < EVENTS; i++) {
        far__address from = {.size = sizeof from.as};
        int fd = accept4(w->fd, &from.as.any, &from.size, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            accepted(l, fd, &from);
        else if (errno == EMFILE || errno == ENFILE)
            refuse_one(l);
        else if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

static far_status bind_unix(int fd, far__address *bound)
{
    /* A random name: nobody can have taken it, and it says nothing. */
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return FAR_ESYSTEM;
    char text[FAR__ADDRESS_TEXT];
    snprintf(text, sizeof text, "unix:%s:farcall-%016llx", far__address_host(),
             (unsigned long long)random);
    far_status status = far__address_parse(text, bound);
    if (status != FAR_OK)
        return status;
    return bind(fd, &bound->as.any, bound->size) == 0 ? FAR_OK : FAR_ESYSTEM;
}

static far_status bind_tcp(int fd, far__address *bound)
{
    int one = 1, zero = 0;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bound->as.any.sa_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, &bound->as.any, bound->size) != 0)
        return errno == EADDRINUSE ? FAR_EBUSY : FAR_ESYSTEM;
    bound->size = sizeof bound->as;
    return getsockname(fd, &bound->as.any, &bound->size) == 0 ? FAR_OK : FAR_ESYSTEM;
}

static far_status listen_on(far__transport *t, const char *wish, far__bytes *published,
                            far_error *error)
{
    bool is_unix = strncmp(wish, "unix:", 5) == 0;
    far__address bound = {.as.any.sa_family = AF_UNIX};
    if (!is_unix && far__address_parse(wish, &bound) != FAR_OK)
        return far__error_set(error, FAR_EINVAL, "cannot listen on \"%s\": not an address", wish);
    far__listener *l = far__mem_zalloc(sizeof *l);
    if (!l)
        return far__error_set(error, FAR_ENOMEM, "cannot listen on %s: out of memory", wish);
    far_status status = FAR_ESYSTEM;
    int fd = socket(bound.as.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        goto err_free;
    status = is_unix ? bind_unix(fd, &bound) : bind_tcp(fd, &bound);
    if (status != FAR_OK)
        goto err_close;
    if (listen(fd, BACKLOG) != 0) {
        status = errno == EADDRINUSE ? FAR_EBUSY : FAR_ESYSTEM;
        goto err_close;
    }
    status = far__address_publish(&bound, published);
    if (status != FAR_OK)
        goto err_close;
    *l = (far__listener){.watch = {.ready = listener_ready, .fd = fd},
                         .transport = t,
                         .is_unix = is_unix,
                         .next = t->listeners};
    t->listeners = l;
    return FAR_OK;

err_close:
    far__error_set(error, status, "cannot listen on %s: %s", wish, strerror(errno));
    close(fd);
    far__mem_free(l);
    return status;
err_free:
    far__error_set(error, status, "cannot listen on %s: %s", wish, strerror(errno));
    far__mem_free(l);
    return status;
}

static far_status accept_start(far__transport *t)
{
    for (far__listener *l = t->listeners; l; l = l->next) {
        far_status status = far__loop_add(t->loop, &l->watch, EPOLLIN);
        if (status != FAR_OK)
            return status;
    }
    return FAR_OK;
}

static void accept_stop(far__transport *t)
{
    for (far__listener *l = t->listeners, *next; l; l = next) {
        next = l->next;
        far__loop_remove(t->loop, &l->watch);
        close(l->watch.fd);
        far__mem_free(l);
    }
    t->listeners = NULL;
}

/* ---------------------------------------------------------------------------------- dialling */

static far_status dial(far__transport *t, const char *address, void *owner, far__mutex *lock,
                       far__conn **out, far_error *error)
{
    far__address to;
    far_status status = far__address_parse(address, &to);
    if (status == FAR_EPEER)
        return far__error_set(error, status, "%s: a socket of another host", address);
    if (status != FAR_OK)
        return far__error_set(error, status, "%s: not an address", address);
    int fd = socket(to.as.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return far__error_set(error, FAR_ESYSTEM, "%s: %s", address, strerror(errno));
    if (to.as.any.sa_family != AF_UNIX)
        set_nodelay(fd);
    if (connect(fd, &to.as.any, to.size) != 0 && errno != EINPROGRESS) {
        far__error_set(error, FAR_EPEER, "%s: %s", address, strerror(errno));
        close(fd);
        return FAR_EPEER;
    }
    far__sock_conn *c;
    status = far__sock_conn_create(t, fd, &c);
    if (status != FAR_OK) {
        close(fd);
        return far__error_set(error, status, "%s: %s", address, far_status_text(status));
    }
    snprintf(c->peer, sizeof c->peer, "%s", address);
    c->head.owner = owner;
    c->head.lock = lock;
    far__mutex_lock(lock);
    c->connecting = true;
    far__sock_update(c);
    far__mutex_unlock(lock);
    *out = &c->head;
    return FAR_OK;
}

/* ------------------------------------------------------------------------------- serving set */

static void serve_add(far__conn *head)
{
    far__sock_conn *c = (far__sock_conn *)head;
    far__mutex_lock(head->lock);
    if (!c->broken && !c->closed) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = c->id};
        c->serving = true;
        c->want_read = false;
        far__sock_update(c);
        if (epoll_ctl(c->transport->serve_fd, EPOLL_CTL_ADD, c->fd, &event) != 0)
            far__sock_break(c, FAR_ESYSTEM, "%s: cannot watch it: %s", c->peer, strerror(errno));
    }
    far__mutex_unlock(head->lock);
}

static far__sock_conn *hold_by_id(far__transport *t, uint64_t id)
{
    far__mutex_lock(&t->lock);
    far__sock_conn *c = far__map_get(&t->conns, id);
    if (c)
        far__ref_hold(&c->refs);
    far__mutex_unlock(&t->lock);
    return c;
}

static void serve(far__transport *t, int64_t deadline)
{
    int limit = -1;
    if (deadline == 0) {
        limit = 0;
    } else if (deadline != FAR__NEVER) {
        int64_t left = deadline - far__clock_now();
        limit = left <= 0 ? 0 : (int)((left + 999999) / 1000000);
    }
    struct epoll_event events[EVENTS];
    int n = epoll_wait(t->serve_fd, events, EVENTS, limit);
    for (int i = 0; i < n; i++) {
        uint64_t id = events[i].data.u64, count;
        if (id == 0) {
            if (read(t->serve_event, &count, sizeof count) < 0)
                assert(errno == EAGAIN);
            continue;
        }
        /* Looked up, since it may have been closed after epoll_wait returned. */
        far__sock_conn *c = hold_by_id(t, id);
        if (c) {
            far__sock_read(c);
            far__sock_conn_release(c);
        }
    }
}

static void serve_wake(far__transport *t)
{
    uint64_t one = 1;
    if (write(t->serve_event, &one, sizeof one) != (ssize_t)sizeof one)
        assert(errno == EAGAIN);
}

static void serve_watch(far__transport *t, bool on)
{
    if (on)
        (void)!far__loop_add(t->loop, &t->serve_w, EPOLLIN);
    else
        far__loop_remove(t->loop, &t->serve_w);
}

/* -------------------------------------------------------------------------------------- rest */

static void hold(far__conn *c)
{
    far__ref_hold(&((far__sock_conn *)c)->refs);
}

static void release(far__conn *c)
{
    far__sock_conn_release((far__sock_conn *)c);
}

static const char *peer_text(const far__conn *c)
{
    return ((const far__sock_conn *)c)->peer;
}

static void forked(far__transport *t)
{
    size_t at = 0;
    uint64_t id;
    void *value;
    while (far__map_next(&t->conns, &at, &id, &value))
        close(((far__sock_conn *)value)->fd);
    for (far__listener *l = t->listeners; l; l = l->next)
        close(l->watch.fd);
    for (far__waker *w = t->wakers; w; w = w->next)
        close(w->fd);
    close(t->serve_event);
    close(t->serve_fd);
    close(t->spare_fd);
}

const far__transport_ops far__sock_ops = {
    .name = "sock",
    .handles = handles,
    .create = create,
    .destroy = destroy,
    .listen = listen_on,
    .accept_start = accept_start,
    .accept_stop = accept_stop,
    .dial = dial,
    .send = far__sock_send,
    .flush = far__sock_flush,
    .pending = far__sock_pending,
    .started = far__sock_started,
    .abandon = far__sock_abandon,
    .drive = far__sock_drive,
    .wake = far__sock_wake,
    .watch = far__sock_watch,
    .limit = far__sock_limit,
    .serve_add = serve_add,
    .serve = serve,
    .serve_wake = serve_wake,
    .serve_watch = serve_watch,
    .hold = hold,
    .release = release,
    .close = far__sock_close,
    .peer_text = peer_text,
    .forked = forked,
};
