/* SPDX-License-Identifier: BSD-3-Clause
 * agent/meet: where rank 0 is to be found: environment, init methods, listening near the way to it.
 *   env://              MASTER_ADDR and FARCALL_PORT or MASTER_PORT
 *   tcp://host:port     [v6]:port too
 *   file:///path        rank 0 writes its addresses there; stale files do no harm, since whoever answers
 *                       there must prove that it is rank 0
 *   at://ADDRESS        an address of a transport as it stands, and "NAME:*" for all but rank 0 (tests)
 * Floor: agent. Thread: the one that joins. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/mem.h"
#include "transport/address.h"

#define FILE_HEAD "farcall 1"

/* ------------------------------------------------------------------------------- environment */

static far_status env_number(const char *const *names, int64_t *value, far_error *error)
{
    for (; *names; names++) {
        const char *text = getenv(*names);
        if (!text || !text[0])
            continue;
        char *end;
        errno = 0;
        long long v = strtoll(text, &end, 10);
        if (*end || errno || v < 0 || v >= UINT32_MAX)
            return far__error_set(error, FAR_EINVAL, "%s=%.40s is not a number of a worker", *names,
                                  text);
        *value = v;
        return FAR_OK;
    }
    return FAR_OK;
}

far_status far__meet_environment(far_agent *a, far_error *error)
{
    static const char *const ranks[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID",
                                        NULL};
    static const char *const sizes[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                        "SLURM_NTASKS", NULL};
    far_status status = FAR_OK;
    if (a->rank < 0)
        status = env_number(ranks, &a->rank, error);
    if (status == FAR_OK && a->world_size < 0)
        status = env_number(sizes, &a->world_size, error);
    if (status != FAR_OK)
        return status;
    if (a->world_size < 0)
        a->world_size = 0;
    if (a->world_size > 0 && a->rank >= a->world_size)
        return far__error_set(error, FAR_EINVAL, "rank %lld is outside of a world of %lld",
                              (long long)a->rank, (long long)a->world_size);
    if (!a->bind_address) {
        const char *bind = getenv("FARCALL_BIND");
        if (bind && bind[0] && !(a->bind_address = far__mem_copy_text(bind, strlen(bind))))
            return far__error_set(error, FAR_ENOMEM, "out of memory");
    }
    return FAR_OK;
}

static far_status parse_port(const char *text, const char *what, uint16_t *port, far_error *error)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || v == 0 || v > 65535)
        return far__error_set(error, FAR_EINVAL, "%s: \"%.40s\" is not a port", what, text);
    *port = (uint16_t)v;
    return FAR_OK;
}

static far_status meet_env(far__meeting *m, far_error *error)
{
    const char *host = getenv("MASTER_ADDR"), *name = "FARCALL_PORT", *port = getenv(name);
    if (!host || !host[0])
        return far__error_set(error, FAR_EINVAL,
                              "env:// needs MASTER_ADDR, the host of rank 0 (or "
                              "give an init method such as tcp://host:port)");
    bool own = port && port[0];
    if (!own)
        port = getenv(name = "MASTER_PORT");
    if (!port || !port[0])
        return far__error_set(error, FAR_EINVAL,
                              "env:// needs MASTER_PORT or FARCALL_PORT, the port of rank 0");
    m->kind = FAR__MEET_TCP;
    snprintf(m->host, sizeof m->host, "%s", host);
    far_status status = parse_port(port, name, &m->port, error);
    /* There torchrun's agent itself listens at MASTER_PORT. */
    const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (status == FAR_OK && !own && store && strcmp(store, "True") == 0)
        m->port++;
    return status;
}

static far_status meet_tcp(const char *rest, far__meeting *m, far_error *error)
{
    const char *colon = strrchr(rest, ':');
    if (!colon)
        return far__error_set(error, FAR_EINVAL, "tcp://%.200s: a port is missing", rest);
    size_t size = (size_t)(colon - rest);
    if (size >= 2 && rest[0] == '[' && colon[-1] == ']') {
        rest++;
        size -= 2;
    }
    if (size == 0 || size >= sizeof m->host)
        return far__error_set(error, FAR_EINVAL, "tcp://%.200s: no valid host", rest);
    m->kind = FAR__MEET_TCP;
    memcpy(m->host, rest, size);
    m->host[size] = 0;
    return parse_port(colon + 1, "tcp://", &m->port, error);
}

static far_status meet_file(const char *path, far__meeting *m, far_error *error)
{
    char folder[sizeof m->path];
    if (path[0] != '/' || strlen(path) >= sizeof m->path - 32)
        return far__error_set(error, FAR_EINVAL, "file://%.200s: not an absolute path", path);
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    slash[slash == folder] = 0;
    struct stat st;
    if (stat(folder, &st) != 0)
        return far__error_set(error, FAR_EINVAL, "file://%.200s: folder %.200s: %s", path, folder,
                              strerror(errno));
    m->kind = FAR__MEET_FILE;
    snprintf(m->path, sizeof m->path, "%s", path);
    return FAR_OK;
}

far_status far__meet_parse(const char *init_method, far__meeting *out, far_error *error)
{
    const char *init = init_method;
    far__meeting *m = out;
    *m = (far__meeting){0};
    if (!init)
        init = getenv("FARCALL_INIT");
    if (!init || !init[0])
        init = "env://";
    if (strcmp(init, "env://") == 0)
        return meet_env(m, error);
    if (strncmp(init, "tcp://", 6) == 0)
        return meet_tcp(init + 6, m, error);
    if (strncmp(init, "file://", 7) == 0)
        return meet_file(init + 7, m, error);
    if (strncmp(init, "at://", 5) == 0 && strlen(init) < sizeof m->path) {
        m->kind = FAR__MEET_ADDRESS;
        snprintf(m->path, sizeof m->path, "%s", init + 5);
        return FAR_OK;
    }
    return far__error_set(error, FAR_EINVAL,
                          "init method \"%.200s\": must be env://, tcp://host:port or file:///path",
                          init);
}

/* --------------------------------------------------------------------------------- resolving */

static far_status resolve(const far__meeting *m, struct addrinfo **out, far_error *error)
{
    char port[8];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    snprintf(port, sizeof port, "%u", m->port);
    int rc = getaddrinfo(m->host, port, &hints, out);
    if (rc != 0)
        return far__error_set(error, FAR_EINVAL, "the host of rank 0, \"%.200s\": %s", m->host,
                              rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    return FAR_OK;
}

static void from_info(const struct addrinfo *i, far__address *out)
{
    *out = (far__address){.size = i->ai_addrlen};
    memcpy(&out->as, i->ai_addr, i->ai_addrlen);
}

/* The address of this host that the kernel would use towards `to`: a UDP socket sends nothing. */
static bool local_address(const far__address *to, far__address *out)
{
    int fd = socket(to->as.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    far__address a = {.size = sizeof a.as};
    bool ok = connect(fd, &to->as.any, to->size) == 0 && getsockname(fd, &a.as.any, &a.size) == 0;
    close(fd);
    if (ok)
        *out = a;
    return ok;
}

/* ---------------------------------------------------------------------------------- listening */

static far_status listen_at(far_agent *a, const char *wish, far_error *error)
{
    far__transport_slot *slot = far__agent_slot(a, wish);
    if (!slot)
        return far__error_set(error, FAR_EUNSUPPORTED, "no transport listens on \"%.200s\"", wish);
    return slot->ops->listen(slot->transport, wish, &a->addresses, error);
}

static far_status listen_tcp(far_agent *a, const far__address *at, far_error *error)
{
    char text[FAR__ADDRESS_TEXT];
    far__address_format(at, text);
    return listen_at(a, text, error);
}

static void set_port(far__address *a, uint16_t port)
{
    a->as.v4.sin_port = htons(port); /* both families keep it at the same place */
}

static void make_wildcard(far__address *a)
{
    if (a->as.any.sa_family == AF_INET6)
        a->as.v6.sin6_addr = in6addr_any;
    else
        a->as.v4.sin_addr.s_addr = htonl(INADDR_ANY);
}

/* bind_address: a numeric address, or the name of an interface. */
static far_status chosen_address(const far_agent *a, far__address *out, far_error *error)
{
    char text[FAR__ADDRESS_TEXT];
    const char *b = a->bind_address;
    snprintf(text, sizeof text, strchr(b, ':') ? "tcp:[%.100s]:0" : "tcp:%.100s:0", b);
    if (far__address_parse(text, out) == FAR_OK)
        return FAR_OK;
    struct ifaddrs *all = NULL;
    far_status status = FAR_EINVAL;
    if (getifaddrs(&all) == 0) {
        for (struct ifaddrs *i = all; i && status != FAR_OK; i = i->ifa_next) {
            if (!i->ifa_addr || strcmp(i->ifa_name, b) != 0 ||
                (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
                continue;
            *out = (far__address){.size = i->ifa_addr->sa_family == AF_INET ? sizeof out->as.v4
                                                                            : sizeof out->as.v6};
            memcpy(&out->as, i->ifa_addr, out->size);
            status = FAR_OK;
        }
        freeifaddrs(all);
    }
    if (status != FAR_OK)
        far__error_set(error, status, "bind address \"%.100s\": no address and no interface", b);
    return status;
}

/* Puts the address by which rank 0 is reached before the other ones. */
static far_status prefer(far_agent *a, const far__address *local, size_t from)
{
    char text[FAR__ADDRESS_TEXT];
    far__address_format(local, text);
    char *port = strrchr(text, ':');
    port[1] = 0; /* all share the port */
    char *all = (char *)a->addresses.data;
    size_t size = a->addresses.size;
    for (size_t at = from; at + strlen(text) < size; at++) {
        if (all[at] != ' ' || memcmp(all + at + 1, text, strlen(text)) != 0)
            continue;
        size_t end = at + 1;
        while (end < size && all[end] != ' ')
            end++;
        char entry[FAR__ADDRESS_TEXT + 1];
        size_t n = end - at;
        if (n > sizeof entry)
            return FAR_OK;
        memcpy(entry, all + at, n);
        memmove(all + from + n, all + from, at - from);
        memcpy(all + from, entry, n);
        return FAR_OK;
    }
    return FAR_OK;
}

static far_status listen_near(far_agent *a, const far__address *root, far_error *error)
{
    far__address at = {0}, local = {0};
    bool known = local_address(root, &local);
    size_t from = a->addresses.size;
    if (a->bind_address) {
        far_status status = chosen_address(a, &at, error);
        if (status != FAR_OK)
            return status;
    } else if (known && far__address_is_loopback(&local)) {
        at = local;
    } else {
        at = *root;
        make_wildcard(&at);
    }
    set_port(&at, 0);
    far_status status = listen_tcp(a, &at, error);
    if (status == FAR_OK && known)
        status = prefer(a, &local, from);
    return status;
}

/* Rank 0 listens at the very place; where that is no address of an interface (a forwarded one), at that
 * port of every interface. */
static far_status listen_root(far_agent *a, const far__meeting *m, const struct addrinfo *info,
                              far_error *error)
{
    far_status status = FAR_EINVAL;
    for (const struct addrinfo *i = info; i; i = i->ai_next) {
        far__address at;
        from_info(i, &at);
        if (a->bind_address) {
            status = chosen_address(a, &at, error);
            if (status != FAR_OK)
                return status;
            set_port(&at, m->port);
        }
        status = listen_tcp(a, &at, error);
        if (status == FAR_ESYSTEM && errno == EADDRNOTAVAIL && !a->bind_address) {
            make_wildcard(&at);
            status = listen_tcp(a, &at, error);
        }
        if (status == FAR_OK || status == FAR_EBUSY)
            return status;
    }
    return status;
}

static bool wants(const far_agent *a, unsigned transport)
{
    return !a->transports_wanted || (a->transports_wanted & transport);
}

/* Rank 0 at the very address, the others wherever that transport has room. */
static far_status listen_as_told(far_agent *a, const char *address, far_error *error)
{
    char wish[64];
    if (a->rank == 0)
        return listen_at(a, address, error);
    snprintf(wish, sizeof wish, "%.*s:*", (int)strcspn(address, ":"), address);
    return listen_at(a, wish, error);
}

far_status far__meet_listen(far_agent *a, const far__meeting *m, far_error *error)
{
    if (m->kind == FAR__MEET_ADDRESS)
        return listen_as_told(a, m->path, error);
    far_status status = FAR_OK;
    if (wants(a, FAR_TRANSPORT_UNIX))
        status = listen_at(a, "unix:", error);
    if (status != FAR_OK)
        return status;
    if (m->kind == FAR__MEET_FILE) {
        far__address at;
        if (!wants(a, FAR_TRANSPORT_TCP))
            return FAR_OK;
        if (a->bind_address)
            status = chosen_address(a, &at, error);
        else
            status = far__address_parse("tcp:0.0.0.0:0", &at);
        return status == FAR_OK ? listen_tcp(a, &at, error) : status;
    }
    struct addrinfo *info;
    status = resolve(m, &info, error);
    if (status != FAR_OK)
        return status;
    if (a->rank == 0) {
        status = listen_root(a, m, info, error);
    } else if (wants(a, FAR_TRANSPORT_TCP)) {
        far__address root;
        from_info(info, &root);
        status = listen_near(a, &root, error);
    }
    freeaddrinfo(info);
    return status;
}

/* ------------------------------------------------------------------------------ announcing, finding */

far_status far__meet_announce(far_agent *a, const far__meeting *m, far_error *error)
{
    if (m->kind != FAR__MEET_FILE)
        return FAR_OK;
    char temporary[sizeof m->path + 32], head[64];
    const char *addresses = (const char *)a->addresses.data;
    size_t size = strlen(addresses);
    snprintf(temporary, sizeof temporary, "%s.%ld", m->path, (long)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return far__error_set(error, FAR_ESYSTEM, "file://%.300s: %s", m->path, strerror(errno));
    int n = snprintf(head, sizeof head, FILE_HEAD "\n");
    bool ok = write(fd, head, (size_t)n) == n && write(fd, addresses, size) == (ssize_t)size &&
              write(fd, "\n", 1) == 1;
    close(fd);
    if (!ok || rename(temporary, m->path) != 0) {
        far__error_set(error, FAR_ESYSTEM, "file://%.300s: %s", m->path, strerror(errno));
        unlink(temporary);
        return FAR_ESYSTEM;
    }
    return FAR_OK;
}

static far_status find_in_file(const far__meeting *m, far__bytes *out, far_error *error)
{
    char text[8192];
    int fd = open(m->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return far__error_set(error, FAR_EAGAIN, "file://%.300s: rank 0 has not written it yet",
                              m->path);
    if (fd < 0)
        return far__error_set(error, FAR_ESYSTEM, "file://%.300s: %s", m->path, strerror(errno));
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    size_t head = sizeof FILE_HEAD; /* with the line's end in the place of the zero */
    if (n <= (ssize_t)head || memcmp(text, FILE_HEAD "\n", head) != 0)
        return far__error_set(error, FAR_EAGAIN, "file://%.300s: not written by farcall", m->path);
    text[n] = 0;
    char *end = strchr(text + head, '\n');
    if (!end)
        return far__error_set(error, FAR_EAGAIN, "file://%.300s: cut short", m->path);
    return far__bytes_append(out, text + head, (size_t)(end - text) - head);
}

far_status far__meet_find(const far__meeting *m, far__bytes *addresses, far_error *error)
{
    if (m->kind == FAR__MEET_ADDRESS)
        return far__bytes_append(addresses, m->path, strlen(m->path));
    if (m->kind == FAR__MEET_FILE)
        return find_in_file(m, addresses, error);
    struct addrinfo *info;
    far_status status = resolve(m, &info, error);
    if (status != FAR_OK)
        return status;
    for (const struct addrinfo *i = info; i && status == FAR_OK; i = i->ai_next) {
        far__address at;
        char text[FAR__ADDRESS_TEXT + 1] = " ";
        from_info(i, &at);
        far__address_format(&at, text + 1);
        status = far__bytes_append(addresses, text, strlen(text));
    }
    freeaddrinfo(info);
    return status;
}
