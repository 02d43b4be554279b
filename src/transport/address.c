/* SPDX-License-Identifier: BSD-3-Clause
 * transport/address: addresses of sockets as text and back.
 * Floor: transport. Thread: any. */
#include "transport/address.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char host_text[64];
static pthread_once_t host_once = PTHREAD_ONCE_INIT;

static void find_host(void)
{
    char boot[9] = "00000000", ns[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, boot, 8) != 8)
            memcpy(boot, "00000000", 8);
        close(fd);
    }
    ssize_t n = readlink("/proc/self/ns/net", ns, sizeof ns - 1);
    unsigned long inode = 0;
    if (n > 0) {
        ns[n] = 0;
        const char *digits = strchr(ns, '[');
        if (digits)
            inode = strtoul(digits + 1, NULL, 10);
    }
    snprintf(host_text, sizeof host_text, "%s-%lu", boot, inode);
}

const char *far__address_host(void)
{
    pthread_once(&host_once, find_host);
    return host_text;
}

static far_status parse_port(const char *text, uint16_t *port)
{
    char *end;
    if (*text < '0' || *text > '9')
        return FAR_EINVAL;
    unsigned long v = strtoul(text, &end, 10);
    if (*end || v > 65535)
        return FAR_EINVAL;
    *port = (uint16_t)v;
    return FAR_OK;
}

static far_status parse_tcp(const char *text, far__address *out)
{
    char host[INET6_ADDRSTRLEN + IF_NAMESIZE + 1];
    const char *colon = strrchr(text, ':');
    uint16_t port;
    if (!colon || parse_port(colon + 1, &port) != FAR_OK)
        return FAR_EINVAL;
    size_t size = (size_t)(colon - text);
    bool v6 = size >= 2 && text[0] == '[' && colon[-1] == ']';
    if (v6) {
        text++;
        size -= 2;
    }
    if (size >= sizeof host)
        return FAR_EINVAL;
    memcpy(host, text, size);
    host[size] = 0;
    far__address a = {0};
    if (v6) {
        char *scope = strchr(host, '%');
        if (scope) {
            *scope = 0;
            a.as.v6.sin6_scope_id = if_nametoindex(scope + 1);
        }
        a.size = sizeof a.as.v6;
        a.as.v6.sin6_family = AF_INET6;
        a.as.v6.sin6_port = htons(port);
        if (inet_pton(AF_INET6, host, &a.as.v6.sin6_addr) != 1)
            return FAR_EINVAL;
    } else {
        a.size = sizeof a.as.v4;
        a.as.v4.sin_family = AF_INET;
        a.as.v4.sin_port = htons(port);
        if (inet_pton(AF_INET, host, &a.as.v4.sin_addr) != 1)
            return FAR_EINVAL;
    }
    *out = a;
    return FAR_OK;
}

static far_status parse_unix(const char *text, far__address *out)
{
    const char *name = strchr(text, ':');
    if (!name || !name[1])
        return FAR_EINVAL;
    const char *host = far__address_host();
    size_t host_size = (size_t)(name - text), size = strlen(++name);
    far__address a = {0};
    if (size > sizeof a.as.un.sun_path - 1)
        return FAR_EINVAL;
    if (host_size != strlen(host) || memcmp(text, host, host_size) != 0)
        return FAR_EPEER;
    a.as.un.sun_family = AF_UNIX;
    memcpy(a.as.un.sun_path + 1, name, size); /* a leading zero byte: abstract */
    a.size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + size);
    *out = a;
    return FAR_OK;
}

far_status far__address_parse(const char *text, far__address *out)
{
    if (strncmp(text, "tcp:", 4) == 0)
        return parse_tcp(text + 4, out);
    if (strncmp(text, "unix:", 5) == 0)
        return parse_unix(text + 5, out);
    return FAR_EINVAL;
}

void far__address_format(const far__address *a, char text[FAR__ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?", scope[IF_NAMESIZE] = "";
    switch (a->as.any.sa_family) {
    case AF_INET:
        inet_ntop(AF_INET, &a->as.v4.sin_addr, host, sizeof host);
        snprintf(text, FAR__ADDRESS_TEXT, "tcp:%s:%u", host, ntohs(a->as.v4.sin_port));
        return;
    case AF_INET6:
        inet_ntop(AF_INET6, &a->as.v6.sin6_addr, host, sizeof host);
        if (a->as.v6.sin6_scope_id && if_indextoname(a->as.v6.sin6_scope_id, scope))
            snprintf(text, FAR__ADDRESS_TEXT, "tcp:[%s%%%s]:%u", host, scope,
                     ntohs(a->as.v6.sin6_port));
        else
            snprintf(text, FAR__ADDRESS_TEXT, "tcp:[%s]:%u", host, ntohs(a->as.v6.sin6_port));
        return;
    case AF_UNIX: {
        size_t head = offsetof(struct sockaddr_un, sun_path) + 1;
        int size = a->size > head ? (int)(a->size - head) : 0;
        snprintf(text, FAR__ADDRESS_TEXT, "unix:%s:%.*s", far__address_host(), size,
                 a->as.un.sun_path + 1);
        return;
    }
    default: snprintf(text, FAR__ADDRESS_TEXT, "?"); return;
    }
}

bool far__address_is_loopback(const far__address *a)
{
    if (a->as.any.sa_family == AF_INET)
        return (ntohl(a->as.v4.sin_addr.s_addr) >> 24) == 127;
    if (a->as.any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&a->as.v6.sin6_addr);
    return a->as.any.sa_family == AF_UNIX;
}

bool far__address_is_wildcard(const far__address *a)
{
    if (a->as.any.sa_family == AF_INET)
        return a->as.v4.sin_addr.s_addr == htonl(INADDR_ANY);
    return a->as.any.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&a->as.v6.sin6_addr);
}

static far_status append(far__bytes *out, const far__address *a)
{
    char text[FAR__ADDRESS_TEXT + 1] = " ";
    far__address_format(a, text + 1);
    return far__bytes_append(out, text, strlen(text));
}

/* The address of one interface with the bound port; false: of no use to others. */
static bool interface_address(const struct ifaddrs *i, const far__address *bound, far__address *out)
{
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP))
        return false;
    far__address a = {0};
    if (i->ifa_addr->sa_family == AF_INET) {
        a.size = sizeof a.as.v4;
        memcpy(&a.as.v4, i->ifa_addr, sizeof a.as.v4);
    } else if (i->ifa_addr->sa_family == AF_INET6 && bound->as.any.sa_family == AF_INET6) {
        a.size = sizeof a.as.v6;
        memcpy(&a.as.v6, i->ifa_addr, sizeof a.as.v6);
        if (IN6_IS_ADDR_LINKLOCAL(&a.as.v6.sin6_addr))
            return false;
    } else {
        return false;
    }
    if (far__address_is_loopback(&a))
        return false;
    /* Both families keep the port at the same place. */
    a.as.v4.sin_port = bound->as.v4.sin_port;
    *out = a;
    return true;
}

far_status far__address_publish(const far__address *bound, far__bytes *out)
{
    if (!far__address_is_wildcard(bound))
        return append(out, bound);
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return FAR_ESYSTEM;
    far_status status = FAR_OK;
    for (struct ifaddrs *i = all; i && status == FAR_OK; i = i->ifa_next) {
        far__address a;
        if (interface_address(i, bound, &a))
            status = append(out, &a);
    }
    freeifaddrs(all);
    return status;
}
