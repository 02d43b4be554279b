/* SPDX-License-Identifier: BSD-3-Clause
 * Floors: what the kernel alone needs to take bytes to another process and back. Two processes, a
 * socket between them, and nothing above it.
 *
 *     sockets (unix|tcp) SIZE COUNT
 *
 * SIZE bytes go there and 64 come back, COUNT times, in memory that is used again. Each side waits
 * in epoll_wait before it reads, as every program must that waits for more than one thing. Prints a
 * JSON line with microseconds.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    SMALL = 64,
    HUGE_PAGE = 2 << 20,
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* A pair of connected descriptors. */
static void connect_pair(int tcp, int fds[2])
{
    if (!tcp) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
            die("socketpair");
        return;
    }
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &size))
        die("listen");
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fds[0] < 0 || connect(fds[0], (struct sockaddr *)&address, size))
        die("connect");
    fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fds[1] < 0)
        die("accept");
    close(listener);
    for (int i = 0; i < 2; i++)
        if (setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)))
            die("TCP_NODELAY");
}

/* Memory as a careful program has it: huge pages where they are to be had, touched once. */
static char *take_memory(size_t size)
{
    size_t page = HUGE_PAGE, room = (size + page - 1) / page * page;
    char *memory = aligned_alloc(page, room);
    if (memory == NULL)
        die("aligned_alloc");
    madvise(memory, room, MADV_HUGEPAGE);
    memset(memory, 1, size);
    return memory;
}

static int send_all(int fd, const char *at, size_t size)
{
    while (size > 0) {
        ssize_t sent = write(fd, at, size);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return -1;
        at += sent;
        size -= (size_t)sent;
    }
    return 0;
}

static int receive_all(int fd, int poller, char *at, size_t size)
{
    struct epoll_event event;
    while (epoll_wait(poller, &event, 1, -1) < 0)
        if (errno != EINTR)
            return -1;
    while (size > 0) {
        ssize_t got = read(fd, at, size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        at += got;
        size -= (size_t)got;
    }
    return 0;
}

static int watch(int fd)
{
    int poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (poller < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event))
        die("epoll");
    return poller;
}

static void answer(int fd, size_t size)
{
    int poller = watch(fd);
    char *memory = take_memory(size), small[SMALL] = {0};
    while (receive_all(fd, poller, memory, size) == 0 && send_all(fd, small, SMALL) == 0)
        ;
}

static size_t measure(int fd, size_t size, size_t count, double *took)
{
    int poller = watch(fd);
    char *memory = take_memory(size), small[SMALL];
    size_t warm = count / 10 + 2;
    for (size_t i = 0; i < count + warm; i++) {
        double start = now_us();
        if (send_all(fd, memory, size) || receive_all(fd, poller, small, SMALL))
            die("socket");
        if (i >= warm)
            took[i - warm] = now_us() - start;
    }
    return count;
}

int main(int argc, char **argv)
{
    size_t size = argc > 3 ? strtoul(argv[2], NULL, 10) : 0;
    size_t count = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
    int tcp = argc > 3 && strcmp(argv[1], "tcp") == 0;
    if (size == 0 || count == 0 || (!tcp && strcmp(argv[1], "unix") != 0)) {
        fprintf(stderr, "usage: sockets (unix|tcp) SIZE COUNT\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    int fds[2];
    connect_pair(tcp, fds);
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        answer(fds[1], size);
        _exit(0);
    }
    close(fds[1]);
    double *took = calloc(count, sizeof *took);
    if (took == NULL)
        die("calloc");
    measure(fds[0], size, count, took);
    close(fds[0]);
    waitpid(child, NULL, 0);

    qsort(took, count, sizeof *took, compare);
    printf("{\"median\": %.3f, \"p99\": %.3f, \"unit\": \"us\", \"n\": %zu}\n", took[count / 2],
           took[count * 99 / 100], count);
    free(took);
    return 0;
}
