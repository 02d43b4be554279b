/* SPDX-License-Identifier: BSD-3-Clause
 * transport/address: addresses of sockets as text and back.
 *   tcp:1.2.3.4:5   tcp:[::1]:5   unix:HOST:NAME (HOST names this host and network namespace, NAME is in
 *   Linux's abstract namespace, so nothing is left on disk)
 * Floor: transport. Thread: any. */
#ifndef FAR_TRANSPORT_ADDRESS_H
#define FAR_TRANSPORT_ADDRESS_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/buf.h"

typedef struct far__address {
    socklen_t size;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_un un;
        struct sockaddr_storage storage;
    } as;
} far__address;

enum { FAR__ADDRESS_TEXT = 160 };

/* FAR_EINVAL: not of the forms above. FAR_EPEER: a Unix socket of another host. */
far_status far__address_parse(const char *text, far__address *out) FAR_MUST_USE;
void far__address_format(const far__address *address, char text[FAR__ADDRESS_TEXT]);
/* Appends " tcp:..." for every interface's address of this family with that port (loopback and
 * link-local ones left out), for a socket bound to a wildcard; others: the address itself. */
far_status far__address_publish(const far__address *bound, far__bytes *out) FAR_MUST_USE;
bool far__address_is_loopback(const far__address *address);
bool far__address_is_wildcard(const far__address *address);
/* "BOOT-NETNS", 8 and up to 20 characters: equal where abstract Unix sockets meet. Static. */
const char *far__address_host(void);

#endif
