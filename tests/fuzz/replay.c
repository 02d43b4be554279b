/* SPDX-License-Identifier: BSD-3-Clause
 * tests/fuzz: a main for compilers without libFuzzer: runs the target once for each file that the
 * arguments name, as itself or by its folder. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t files;

static void run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    static char room[1 << 20];
    size_t size = fread(room, 1, sizeof room, file);
    fclose(file);
    /* A block of the exact size, so that a sanitizer sees a read behind its end. */
    uint8_t *data = malloc(size ? size : 1);
    if (!data)
        exit(1);
    memcpy(data, room, size);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    files++;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (!folder) {
            run_file(argv[i]);
            continue;
        }
        for (struct dirent *entry; (entry = readdir(folder));) {
            char path[4096];
            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            run_file(path);
        }
        closedir(folder);
    }
    printf("%zu inputs\n", files);
    return files ? 0 : 1;
}
