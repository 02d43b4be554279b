/* SPDX-License-Identifier: BSD-3-Clause
 * agent/secret: where the job's secret comes from: the option, FARCALL_SECRET, FARCALL_SECRET_FILE, else
 * the user's own file, made at first use: $XDG_CONFIG_HOME/farcall/secret or ~/.config/farcall/secret.
 * Floor: agent. Thread: any; reads and writes files. */
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"

enum { RANDOM_BYTES = 32, PATH_SIZE = 1024 };

static far_status read_file(const char *path, uint8_t *out, size_t *size, far_error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return far__error_set(error, FAR_EAUTH, "cannot read the secret file %s: %s", path,
                              strerror(errno));
    struct stat st;
    far_status status = FAR_EAUTH;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        far__error_set(error, status, "the secret file %s is not a regular file", path);
        goto out_close;
    }
    if (st.st_mode & (S_IRWXG | S_IRWXO)) {
        far__error_set(error, status,
                       "the secret file %s can be read by others (mode %04o): chmod 600 it", path,
                       (unsigned)(st.st_mode & 07777));
        goto out_close;
    }
    ssize_t n = read(fd, out, FAR__SECRET_MAX);
    while (n > 0 && (out[n - 1] == '\n' || out[n - 1] == '\r'))
        n--;
    if (n <= 0) {
        far__error_set(error, status, "the secret file %s is empty", path);
        goto out_close;
    }
    *size = (size_t)n;
    status = FAR_OK;
out_close:
    close(fd);
    return status;
}

/* Writes a fresh secret beside the place and moves it there by link, which fails if another process was
 * faster: then that one's counts. */
static far_status make_file(const char *path, far_error *error)
{
    uint8_t random[RANDOM_BYTES];
    size_t size = 2 * sizeof random + 1;
    char text[2 * RANDOM_BYTES + 2], temporary[PATH_SIZE + 32];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return far__error_set(error, FAR_ESYSTEM, "no random bytes: %s", strerror(errno));
    for (size_t i = 0; i < RANDOM_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", random[i]);
    text[size - 1] = '\n';
    snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return far__error_set(error, FAR_EAUTH,
                              "cannot make the secret file %s: %s (set FARCALL_SECRET or "
                              "FARCALL_SECRET_FILE instead)",
                              path, strerror(errno));
    bool written = write(fd, text, size) == (ssize_t)size && fsync(fd) == 0;
    close(fd);
    if (written && link(temporary, path) != 0 && errno != EEXIST)
        written = false;
    int saved = errno;
    unlink(temporary);
    explicit_bzero(random, sizeof random);
    explicit_bzero(text, sizeof text);
    if (!written)
        return far__error_set(error, FAR_EAUTH, "cannot write the secret file %s: %s", path,
                              strerror(saved));
    return FAR_OK;
}

static void make_folder(const char *path)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return; /* making the file in it says why */
}

static far_status user_file(char path[PATH_SIZE], far_error *error)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    char folder[PATH_SIZE - 8];
    struct passwd entry, *pw = NULL;
    char text[2048];
    if (!home || !home[0]) {
        if (getpwuid_r(geteuid(), &entry, text, sizeof text, &pw) != 0)
            pw = NULL;
        home = pw ? pw->pw_dir : NULL;
    }
    int n;
    if (config && config[0])
        n = snprintf(folder, sizeof folder, "%s/farcall", config);
    else if (home && home[0])
        n = snprintf(folder, sizeof folder, "%s/.config/farcall", home);
    else
        return far__error_set(error, FAR_EAUTH,
                              "no secret: there is no home directory to keep it in; set "
                              "FARCALL_SECRET or FARCALL_SECRET_FILE on all workers");
    if (n < 0 || (size_t)n >= sizeof folder)
        return far__error_set(error, FAR_EAUTH, "the path of the secret file is too long");
    char *slash = strrchr(folder, '/');
    *slash = 0;
    make_folder(folder);
    *slash = '/';
    make_folder(folder);
    snprintf(path, PATH_SIZE, "%s/secret", folder);
    return FAR_OK;
}

far_status far__secret_load(const void *given, size_t given_size, uint8_t out[FAR__SECRET_MAX],
                            size_t *size, far_error *error)
{
    if (given_size > 0) {
        memmove(out, given, given_size);
        *size = given_size;
        return FAR_OK;
    }
    const char *text = getenv("FARCALL_SECRET");
    if (text && text[0]) {
        size_t n = strlen(text);
        if (n > FAR__SECRET_MAX)
            return far__error_set(error, FAR_EAUTH, "FARCALL_SECRET is longer than %d bytes",
                                  FAR__SECRET_MAX);
        memcpy(out, text, n);
        *size = n;
        return FAR_OK;
    }
    const char *file = getenv("FARCALL_SECRET_FILE");
    if (file && file[0])
        return read_file(file, out, size, error);
    char path[PATH_SIZE];
    far_status status = user_file(path, error);
    if (status == FAR_OK && access(path, F_OK) != 0)
        status = make_file(path, error);
    if (status == FAR_OK)
        status = read_file(path, out, size, error);
    return status;
}
