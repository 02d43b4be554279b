/* SPDX-License-Identifier: BSD-3-Clause
 * A worker that serves products with a matrix it holds, and clients that call it: how a C program
 * uses farcall. Rank 0 is the worker, all others are clients.
 *
 *     farcall run -n 3 build/dev/examples/matrix [options]
 *
 * or by hand, one terminal each (more ranks: a larger WORLD_SIZE):
 *
 *     export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2
 *     RANK=0 build/dev/examples/matrix
 *     RANK=1 build/dev/examples/matrix
 *
 * A Python worker of the same job may call it as well, for it uses values, which all languages
 * read: farcall.rpc_sync("matrix", "product", args=(array,), timeout=0.5).
 */
#include <dlpack/dlpack.h>
#include <errno.h>
#include <farcall/farcall.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    IN_FLIGHT = 16, /* calls that the rate is measured with at a time */
};

struct settings {
    const char *file; /* of the matrix, or NULL: generated */
    int64_t size;     /* rows and columns of a generated matrix */
    int64_t columns;  /* of what a client sends */
    int64_t calls;
    far_duration timeout; /* of each call */
};

struct matrix {
    int64_t rows, columns;
    double *cells; /* row after row */
};

static void complain(const char *what, const far_error *error)
{
    fprintf(stderr, "matrix: %s: %s: %s\n", what, far_status_name(error->status), error->text);
}

/* ------------------------------------------------------------------- tensors as farcall sees them */

static far_tensor describe(int64_t rows, int64_t columns)
{
    return (far_tensor){
        .dtype_code = kDLFloat,
        .dtype_bits = 64,
        .dtype_lanes = 1,
        .ndim = 2,
        .shape = {rows, columns},
    };
}

/* NULL unless `value` is a matrix of doubles; so nothing below trusts what another process sent. */
static const far_tensor *as_matrix(const far_value *value)
{
    if (value->kind != FAR_TENSOR)
        return NULL;
    const far_tensor *tensor = value->as.tensor;
    if (tensor->dtype_code != kDLFloat || tensor->dtype_bits != 64 || tensor->dtype_lanes != 1 ||
        tensor->ndim != 2)
        return NULL;
    return tensor;
}

/* A call by name is a list of its arguments, then a map of its keyword arguments: what Python's
 * callers send, and what they understand. */
static const far_tensor *only_argument(far_message *message)
{
    const far_value *values;
    size_t count;
    if (far_message_values(message, &values, &count) != FAR_OK || count == 0 ||
        values[0].kind != FAR_LIST || values[0].as.list.count != 1)
        return NULL;
    return as_matrix(&values[0].as.list.items[0]);
}

/* --------------------------------------------------------------------------------- the worker */

static void multiply(const struct matrix *left, const double *right, int64_t columns, double *out)
{
    memset(out, 0, (size_t)(left->rows * columns) * sizeof *out);
    for (int64_t i = 0; i < left->rows; i++)
        for (int64_t k = 0; k < left->columns; k++) {
            double factor = left->cells[i * left->columns + k];
            for (int64_t j = 0; j < columns; j++)
                out[i * columns + j] += factor * right[k * columns + j];
        }
}

/* Takes milliseconds, so it is an ordinary method: it runs on a handler thread, and several run at
 * a time. It only reads the matrix, so it needs no lock. */
static void serve_product(far_incoming *call, void *arg)
{
    const struct matrix *matrix = arg;
    const far_tensor *right = only_argument(far_incoming_message(call));
    if (right == NULL || right->shape[0] != matrix->columns) {
        char text[96];
        snprintf(text, sizeof text, "one matrix of float64 with %" PRId64 " rows is expected",
                 matrix->columns);
        far_incoming_fail(call, FAR_EREMOTE, "ValueError", text, NULL, NULL);
        return;
    }

    /* The result is computed where it is sent from: memory of the library, sent without a copy and
     * used again for a later one. */
    int64_t columns = right->shape[1];
    far_buffer *buffer;
    far_status status =
        far_buffer_alloc((size_t)(matrix->rows * columns) * sizeof(double), &buffer);
    if (status != FAR_OK)
        goto err;
    multiply(matrix, right->data, columns, far_buffer_data(buffer));

    far_message *reply;
    status = far_message_create(FAR_ENCODING_VALUES, &reply);
    if (status != FAR_OK)
        goto err_release_buffer;
    far_tensor shape = describe(matrix->rows, columns);
    status = far_message_put_buffer(reply, &shape, buffer); /* takes the buffer, also on failure */
    if (status != FAR_OK)
        goto err_discard_reply;
    far_incoming_reply(call, reply);
    return;

err_discard_reply:
    far_message_discard(reply);
    goto err;
err_release_buffer:
    far_buffer_release(buffer);
err:
    far_incoming_fail(call, status, NULL, far_status_text(status), NULL, NULL);
}

/* Takes microseconds and never waits, so it may run on the thread that read the call. */
static void serve_shape(far_incoming *call, void *arg)
{
    const struct matrix *matrix = arg;
    far_message *reply;
    far_status status = far_message_create(FAR_ENCODING_VALUES, &reply);
    if (status != FAR_OK)
        goto err;
    if ((status = far_message_put_list(reply, 2)) != FAR_OK ||
        (status = far_message_put_int(reply, matrix->rows)) != FAR_OK ||
        (status = far_message_put_int(reply, matrix->columns)) != FAR_OK)
        goto err_discard_reply;
    far_incoming_reply(call, reply);
    return;

err_discard_reply:
    far_message_discard(reply);
err:
    far_incoming_fail(call, status, NULL, far_status_text(status), NULL, NULL);
}

/* Numbers apart by white space, one row a line. */
static int read_matrix(const char *path, struct matrix *out)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        fprintf(stderr, "matrix: %s: %s\n", path, strerror(errno));
        return -1;
    }
    struct matrix matrix = {0};
    size_t count = 0, room = 0, line_size = 0;
    char *line = NULL;
    while (getline(&line, &line_size, file) > 0) {
        int64_t columns = 0;
        char *end;
        for (char *at = line;; at = end, columns++) {
            double cell = strtod(at, &end);
            if (end == at)
                break;
            if (count == room) {
                room = room ? 2 * room : 1024;
                double *cells = realloc(matrix.cells, room * sizeof *cells);
                if (cells == NULL)
                    goto err;
                matrix.cells = cells;
            }
            matrix.cells[count++] = cell;
        }
        if (columns == 0)
            continue;
        if (matrix.rows > 0 && columns != matrix.columns) {
            fprintf(stderr, "matrix: %s: rows of different lengths\n", path);
            goto err;
        }
        matrix.columns = columns;
        matrix.rows++;
    }
    if (count == 0) {
        fprintf(stderr, "matrix: %s: no numbers\n", path);
        goto err;
    }
    free(line);
    fclose(file);
    *out = matrix;
    return 0;

err:
    free(line);
    free(matrix.cells);
    fclose(file);
    return -1;
}

static int generate_matrix(int64_t size, struct matrix *out)
{
    double *cells = malloc((size_t)(size * size) * sizeof *cells);
    if (cells == NULL)
        return -1;
    for (int64_t i = 0; i < size * size; i++)
        cells[i] = sin((double)i);
    *out = (struct matrix){.rows = size, .columns = size, .cells = cells};
    return 0;
}

static int serve(const struct settings *settings)
{
    struct matrix matrix;
    if (settings->file ? read_matrix(settings->file, &matrix)
                       : generate_matrix(settings->size, &matrix))
        return 1;

    /* Methods that stand in the options are there before the first call can come. */
    const far_method methods[] = {
        {.name = "product", .handler = serve_product, .arg = &matrix},
        {.name = "shape", .handler = serve_shape, .arg = &matrix, .flags = FAR_METHOD_NEVER_BLOCKS},
    };
    far_options options;
    far_options_init(&options);
    options.name = "matrix";
    options.methods = methods;
    options.method_count = sizeof methods / sizeof *methods;

    int result = 1;
    far_agent *agent;
    far_error error;
    if (far_agent_open(&options, &agent, &error) != FAR_OK) {
        complain("joining", &error);
        goto err_free_matrix;
    }
    printf("serving a matrix of %" PRId64 " x %" PRId64 "\n", matrix.rows, matrix.columns);
    /* Serves until every client has left. */
    if (far_agent_shutdown(agent, FAR_NO_LIMIT, &error) != FAR_OK) {
        complain("leaving", &error);
        goto err_release_agent;
    }
    result = 0;

err_release_agent:
    far_agent_release(agent);
err_free_matrix:
    free(matrix.cells);
    return result;
}

/* ---------------------------------------------------------------------------------- the client */

struct client {
    far_agent *agent;
    far_worker worker;
    const struct settings *settings;
    int64_t rows, columns; /* of the worker's matrix */
};

/* A call's arguments: one matrix, filled from `seed`. */
static far_status make_request(const struct client *client, double seed, far_message **out)
{
    int64_t cells = client->columns * client->settings->columns;
    far_buffer *buffer;
    far_status status = far_buffer_alloc((size_t)cells * sizeof(double), &buffer);
    if (status != FAR_OK)
        return status;
    double *at = far_buffer_data(buffer);
    for (int64_t i = 0; i < cells; i++)
        at[i] = seed + (double)(i % 7);

    far_message *message;
    status = far_message_create(FAR_ENCODING_VALUES, &message);
    if (status != FAR_OK)
        goto err_release_buffer;
    far_tensor shape = describe(client->columns, client->settings->columns);
    if ((status = far_message_put_list(message, 1)) != FAR_OK)
        goto err_discard_message;
    status = far_message_put_buffer(message, &shape, buffer);
    buffer = NULL; /* taken, also on failure */
    if (status != FAR_OK || (status = far_message_put_map(message, 0)) != FAR_OK)
        goto err_discard_message;
    *out = message;
    return FAR_OK;

err_discard_message:
    far_message_discard(message);
err_release_buffer:
    far_buffer_release(buffer);
    return status;
}

static int ask_shape(struct client *client)
{
    far_message *request, *reply;
    far_error error = {0};
    if (far_message_create(FAR_ENCODING_VALUES, &request) != FAR_OK)
        return -1;
    if (far_message_put_list(request, 0) != FAR_OK || far_message_put_map(request, 0) != FAR_OK) {
        far_message_discard(request);
        return -1;
    }
    if (far_call_sync(client->agent, client->worker.id, "shape", request, client->settings->timeout,
                      &reply, &error) != FAR_OK) {
        complain("shape", &error);
        return -1;
    }
    const far_value *values;
    size_t count;
    int result = -1;
    if (far_message_values(reply, &values, &count) == FAR_OK && count == 1 &&
        values[0].kind == FAR_LIST && values[0].as.list.count == 2 &&
        values[0].as.list.items[0].kind == FAR_INT && values[0].as.list.items[1].kind == FAR_INT) {
        client->rows = values[0].as.list.items[0].as.integer;
        client->columns = values[0].as.list.items[1].as.integer;
        result = 0;
    }
    far_message_discard(reply);
    return result;
}

/* One product, waited for. The sum of its cells goes to *sum, if the caller wants it. */
static far_status product(const struct client *client, double seed, far_duration timeout,
                          double *sum, far_error *error)
{
    far_message *request, *reply;
    far_status status = make_request(client, seed, &request);
    if (status != FAR_OK)
        return status;
    status =
        far_call_sync(client->agent, client->worker.id, "product", request, timeout, &reply, error);
    if (status != FAR_OK)
        return status;
    const far_value *values;
    size_t count;
    status = far_message_values(reply, &values, &count);
    const far_tensor *tensor = status == FAR_OK && count == 1 ? as_matrix(&values[0]) : NULL;
    if (tensor == NULL || tensor->shape[0] != client->rows) {
        status = FAR_EVALUE;
    } else if (sum != NULL) {
        const double *cells = tensor->data;
        double total = 0;
        for (size_t i = 0; i < tensor->size / sizeof *cells; i++)
            total += cells[i];
        *sum = total;
    }
    far_message_discard(reply);
    return status;
}

/* A product is linear: what comes back for seeds 1, 2 and 3 must lie on a line. */
static int check_linear(const struct client *client)
{
    double sum[3];
    for (int i = 0; i < 3; i++) {
        far_error error = {0};
        if (product(client, i + 1, client->settings->timeout, &sum[i], &error) != FAR_OK) {
            complain("product", &error);
            return -1;
        }
    }
    double bend = sum[2] - 2 * sum[1] + sum[0];
    if (!(fabs(bend) <= 1e-9 * (fabs(sum[0]) + fabs(sum[1]) + fabs(sum[2]) + 1))) {
        fprintf(stderr, "matrix: the products are wrong\n");
        return -1;
    }
    return 0;
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

/* Calls one after another, each with its own timeout; a call that fails is counted, no more. */
static int measure_latency(const struct client *client)
{
    size_t calls = (size_t)client->settings->calls, good = 0;
    double *took = malloc(calls * sizeof *took);
    if (took == NULL)
        return -1;
    for (size_t i = 0; i < calls; i++) {
        far_error error = {0};
        double start = now_us();
        if (product(client, 1, client->settings->timeout, NULL, &error) == FAR_OK)
            took[good++] = now_us() - start;
    }
    qsort(took, good, sizeof *took, compare);
    printf("one after another: %zu calls, %zu failed", calls, calls - good);
    if (good > 0)
        printf(", p50 %.1f us, p90 %.1f us, p99 %.1f us, worst %.1f us", took[good / 2],
               took[good * 9 / 10], took[good * 99 / 100], took[good - 1]);
    printf("\n");
    free(took);
    return 0;
}

/* Keeps IN_FLIGHT calls under way: begins the next one when the oldest has ended. */
static int measure_rate(const struct client *client)
{
    far_future *window[IN_FLIGHT] = {0};
    int64_t calls = client->settings->calls, failed = 0;
    double start = now_us();
    for (int64_t i = 0; i < calls + IN_FLIGHT; i++) {
        far_future **slot = &window[i % IN_FLIGHT];
        if (*slot != NULL) {
            /* Each call has its own limit, so this wait needs none. A signal only interrupts it. */
            while (far_future_wait(*slot, FAR_FOREVER) == FAR_EINTR)
                ;
            failed += far_future_status(*slot) != FAR_OK;
            far_future_release(*slot);
            *slot = NULL;
        }
        if (i >= calls)
            continue;
        far_message *request;
        if (make_request(client, 1, &request) != FAR_OK ||
            far_call(client->agent, client->worker.id, "product", request,
                     client->settings->timeout, 0, slot) != FAR_OK)
            failed++;
    }
    double seconds = (now_us() - start) / 1e6;
    printf("%d at a time: %.0f calls/s, %" PRId64 " failed\n", (int)IN_FLIGHT,
           (double)calls / seconds, failed);
    return 0;
}

/* A limit that cannot be kept ends this one call, and nothing else. */
static int show_timeout(const struct client *client)
{
    far_error error = {0};
    far_status status = product(client, 1, FAR_MICROSECOND, NULL, &error);
    printf("with a limit of 1 us: %s (%s)\n", far_status_name(status), error.text);
    if (status != FAR_ETIMEOUT)
        return -1;
    return check_linear(client);
}

static int call(const struct settings *settings, const char *name)
{
    far_options options;
    far_options_init(&options);
    options.name = name;

    struct client client = {.settings = settings};
    int result = 1;
    far_error error;
    if (far_agent_open(&options, &client.agent, &error) != FAR_OK) {
        complain("joining", &error);
        return 1;
    }
    if (far_agent_find(client.agent, "matrix", &client.worker, &error) != FAR_OK) {
        complain("looking for the worker", &error);
        goto err_release_agent;
    }
    if (ask_shape(&client) || check_linear(&client) || measure_latency(&client) ||
        measure_rate(&client) || show_timeout(&client))
        goto err_release_agent;
    if (far_agent_shutdown(client.agent, FAR_NO_LIMIT, &error) != FAR_OK) {
        complain("leaving", &error);
        goto err_release_agent;
    }
    result = 0;

err_release_agent:
    far_agent_release(client.agent);
    return result;
}

/* ----------------------------------------------------------------------------------- both roles */

static int64_t number(const char *text, int64_t least, int64_t most)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most) {
        fprintf(stderr, "matrix: %s: a number from %" PRId64 " to %" PRId64 " is expected\n", text,
                least, most);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    struct settings settings = {
        .size = 128,
        .columns = 4,
        .calls = 2000,
        .timeout = FAR_SECOND,
    };
    static const struct option words[] = {
        {"file", required_argument, NULL, 'f'},    {"size", required_argument, NULL, 's'},
        {"calls", required_argument, NULL, 'n'},   {"columns", required_argument, NULL, 'c'},
        {"timeout", required_argument, NULL, 't'}, {0},
    };
    setvbuf(stdout, NULL, _IOLBF, 0); /* a pipe's reader sees each line at once too */
    int word;
    while ((word = getopt_long(argc, argv, "f:s:n:c:t:", words, NULL)) != -1) {
        switch (word) {
        case 'f': settings.file = optarg; break;
        case 's': settings.size = number(optarg, 1, 4096); break;
        case 'n': settings.calls = number(optarg, 1, 10000000); break;
        case 'c': settings.columns = number(optarg, 1, 4096); break;
        case 't': settings.timeout = number(optarg, 1, 3600000) * FAR_MILLISECOND; break;
        default:
            fprintf(stderr, "usage: matrix [--file TEXT | --size N] [--columns N] [--calls N] "
                            "[--timeout MILLISECONDS]\n");
            return 2;
        }
    }
    const char *rank = getenv("RANK");
    if (rank == NULL) {
        fprintf(stderr, "matrix: RANK is not set; the head of examples/matrix.c says how\n");
        return 2;
    }
    if (number(rank, 0, UINT32_MAX) == 0)
        return serve(&settings);
    char name[32];
    snprintf(name, sizeof name, "client-%s", rank);
    return call(&settings, name);
}
