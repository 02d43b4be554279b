/* SPDX-License-Identifier: BSD-3-Clause
 * Floor: from the kill of a process until its end of a socket is seen to be closed.
 *
 *     death COUNT
 *
 * Prints a JSON line with microseconds.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

static double one(void)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
        exit(1);
    pid_t child = fork();
    if (child < 0)
        exit(1);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        if (write(fds[1], "r", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(fds[1]);
    char byte;
    if (read(fds[0], &byte, 1) != 1)
        exit(1);
    struct pollfd end = {.fd = fds[0], .events = POLLIN};
    double start = now_us();
    kill(child, SIGKILL);
    while (poll(&end, 1, -1) < 1)
        ;
    double took = now_us() - start;
    close(fds[0]);
    waitpid(child, NULL, 0);
    return took;
}

int main(int argc, char **argv)
{
    size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    double *took = count > 0 ? calloc(count, sizeof *took) : NULL;
    if (took == NULL) {
        fprintf(stderr, "usage: death COUNT\n");
        return 2;
    }
    one();
    for (size_t i = 0; i < count; i++)
        took[i] = one();
    qsort(took, count, sizeof *took, compare);
    printf("{\"median\": %.3f, \"p99\": %.3f, \"unit\": \"us\", \"n\": %zu}\n", took[count / 2],
           took[(count - 1) * 99 / 100], count);
    free(took);
    return 0;
}
