/* A CUDA driver without a device: memory of the device is the host's, streams run at once, and what is launched goes to a
 * callback. Graphs are lists of what was asked for while a stream was captured, and done when they are run.
 *
 * The runtime (runtime.c) and Python (device.py) are its users. */

#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_PARAMETERS = 512 };

struct kernel { int number, count, shared; char *name; int sizes[MOST_PARAMETERS]; };
struct used { const void *address; unsigned long long number; };
struct node {
    enum { COPY, FILL, LAUNCH, CALL } kind;
    void *target; const void *source; size_t size; int value;
    struct kernel *kernel; unsigned grid[3], block[3], shared; char *parameters;
    void (*call)(void *); void *data;
    const char *what; struct used *used; int uses;   /* allocations that have to be there when it is done */
    struct node *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_graph *capturing;      /* at most one capture at a time */
static int sticky;                       /* what no call gets beyond: a failed kernel */
static __thread int device;
static __thread void *context;          /* of no device before a thread's first call of the runtime */
static sim_loader load;
static sim_launcher launch;
static void (*replay)(void *), (*forget)(void *);
static char report[512];                   /* what was wrong with the last graph that used memory which is gone */
static char primary;                     /* stands for the device's context */

void sim_set_callbacks(sim_loader loader, sim_launcher launcher) { load = loader, launch = launcher; }
void sim_set_replayer(void (*call)(void *), void (*release)(void *)) { replay = call, forget = release; }
void sim_fail(int error) { if (!sticky) sticky = error; }
void sim_recover(void) { sticky = 0, report[0] = 0; }
const char *sim_reported(void) { return report; }
int sim_failure(void) { return sticky; }
int sim_device(void) { return device; }
void sim_use_device(int number) { device = number; }
void sim_bind(void) { context = &primary; }

/* What was asked for and is not built, until it is taken, by names that stay. */

enum { MOST_MISSING = 64 };
static const char *missing[MOST_MISSING];
static int misses;

void sim_miss(const char *name) {
    pthread_mutex_lock(&lock);
    if (misses < MOST_MISSING) missing[misses] = misses + 1 < MOST_MISSING ? name : "more than are counted", misses++;
    pthread_mutex_unlock(&lock);
}

const char *sim_next_missing(void) {
    pthread_mutex_lock(&lock);
    const char *found = misses ? missing[--misses] : NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Captures. */

/* A stream is captured by one thread; others only ask whether theirs is. */

bool sim_is_capturing(struct sim_stream *stream) {
    pthread_mutex_lock(&lock);
    bool found = stream && capturing && stream->capture == capturing->number;
    pthread_mutex_unlock(&lock);
    return found;
}

static struct node *record(struct sim_stream *stream, int kind) {
    if (!sim_is_capturing(stream)) return NULL;
    struct node *made = calloc(1, sizeof *made);
    made->kind = kind;
    *capturing->end = made;
    capturing->end = &made->next;
    return made;
}

static void uses(struct node *node, const void *address) {
    unsigned long long number = sim_number_of(address);
    if (!number) return;
    node->used = realloc(node->used, (node->uses + 1) * sizeof *node->used);
    node->used[node->uses++] = (struct used){address, number};
}

static bool is_sound(struct node *node) {
    for (int k = 0; k < node->uses; k++)
        if (sim_number_of(node->used[k].address) != node->used[k].number) {
            snprintf(report, sizeof report, "a graph uses memory that was freed: %s at %p", node->what, node->used[k].address);
            fprintf(stderr, "simulated GPU: %s\n", report);
            sim_fail(SIM_ILLEGAL_ADDRESS);
            return false;
        }
    return true;
}

struct sim_graph *sim_current_capture(void) { return capturing; }

int sim_begin_capture(struct sim_stream *stream) {
    if (!stream) return SIM_CAPTURE_UNSUPPORTED;
    static unsigned long long count;
    pthread_mutex_lock(&lock);
    bool busy = capturing != NULL;
    if (!busy) {
        capturing = calloc(1, sizeof *capturing);
        capturing->end = &capturing->nodes, capturing->number = stream->capture = ++count;
    }
    pthread_mutex_unlock(&lock);
    if (!busy) sim_memory_of_capture(capturing->number);
    return busy ? SIM_CAPTURE_UNSUPPORTED : 0;
}

int sim_end_capture(struct sim_stream *stream, struct sim_graph **graph) {
    if (!sim_is_capturing(stream)) return SIM_CAPTURE_INVALIDATED;
    pthread_mutex_lock(&lock);
    struct sim_graph *made = capturing;
    capturing = NULL;
    pthread_mutex_unlock(&lock);
    sim_memory_of_capture(0);
    *graph = made->invalid ? NULL : made;
    if (*graph) return 0;
    sim_free_graph(made);
    return SIM_CAPTURE_INVALIDATED;
}

/* What waits for the device breaks a capture, as it does there. */
int sim_wait(struct sim_stream *stream) {
    if (sticky) return sticky;
    if (!sim_is_capturing(stream)) return 0;
    capturing->invalid = true;
    return SIM_CAPTURE_UNSUPPORTED;
}

static int run_launch(struct kernel *kernel, unsigned *grid, unsigned *block, unsigned shared, void **parameters) {
    int error = launch ? launch(kernel->number, grid, block, shared, parameters) : SIM_UNSUPPORTED;
    if (error) sim_fail(error);
    return 0;                            /* a kernel's failure is reported by what waits for it */
}

int sim_run_graph(struct sim_graph *graph) {
    for (struct node *at = graph->nodes; at && !sticky && is_sound(at); at = at->next)
        switch (at->kind) {
        case COPY: memmove(at->target, at->source, at->size); break;
        case FILL: memset(at->target, at->value, at->size); break;
        case CALL: at->call(at->data); break;
        case LAUNCH: {
            void *parameters[MOST_PARAMETERS];
            char *next = at->parameters;
            for (int k = 0; k < at->kernel->count; next += at->kernel->sizes[k++]) parameters[k] = next;
            run_launch(at->kernel, at->grid, at->block, at->shared, parameters);
        }
        }
    return sticky;
}

void sim_free_graph(struct sim_graph *graph) {
    if (graph->instances-- > 0) return;
    while (graph->nodes) {
        struct node *one = graph->nodes;
        graph->nodes = one->next;
        if (one->kind == CALL && one->call == replay && forget) forget(one->data);
        free(one->parameters);
        free(one->used);
        free(one);
    }
    sim_memory_of_graph_ends(graph->number);
    free(graph);
}

/* Work. */

int sim_copy(struct sim_stream *stream, void *target, const void *source, size_t size) {
    if (sticky) return sticky;
    struct node *made = record(stream, COPY);
    if (made) {
        made->target = target, made->source = source, made->size = size, made->what = "a copy";
        uses(made, target);
        uses(made, source);
    } else memmove(target, source, size);
    return 0;
}

int sim_fill(struct sim_stream *stream, void *target, int value, size_t size) {
    if (sticky) return sticky;
    struct node *made = record(stream, FILL);
    if (made) {
        made->target = target, made->value = value, made->size = size, made->what = "a fill";
        uses(made, target);
    } else memset(target, value, size);
    return 0;
}

void sim_call(struct sim_stream *stream, void (*call)(void *), void *data) {
    struct node *made = record(stream, CALL);
    if (made) made->call = call, made->data = data, made->what = "a call";
    else call(data);
}

/* A call of the replayer with a number, by a name that stays, with the addresses of what it uses. */
void sim_record(struct sim_stream *stream, void *number, const char *what, const void **addresses, int count) {
    struct node *made = record(stream, CALL);
    if (!made) { replay(number); return; }
    made->call = replay, made->data = number, made->what = what;
    for (int k = 0; k < count; k++) uses(made, addresses[k]);
}

double sim_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
}

/* The driver's own functions, those that torch and this project call. */

int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDriverGetVersion(int *version) { *version = SIM_VERSION; return 0; }
int cuDevicePrimaryCtxGetState(int number, unsigned *flags, int *active) { *flags = 0, *active = number == 0; return 0; }
int cuDevicePrimaryCtxRetain(void **found, int number) { *found = &primary; return number ? SIM_INVALID_DEVICE : 0; }
int cuCtxGetCurrent(void **found) { *found = context; return sticky; }
int cuCtxSetCurrent(void *other) { context = other; return sticky; }
int cuCtxGetDevice(int *number) {
    if (!context) return SIM_INVALID_CONTEXT;
    *number = device;
    return sticky;
}

/* How a thread is kept from what would break a capture: 0, 1, or, with 2, not at all. */
static __thread int exchanged;
int cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = exchanged;
    exchanged = *mode, *mode = before;
    return 0;
}

int cuLibraryLoadData(void **library, const void *code, void *jit, void *values, unsigned count, void *options,
                      void *option_values, unsigned option_count) {
    *library = (void *)code;
    if (capturing && exchanged != 2) return SIM_CAPTURE_UNSUPPORTED;
    return load && !jit && !values && !count && !options && !option_values && !option_count ? 0 : SIM_UNSUPPORTED;
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    struct kernel *made = calloc(1, sizeof *made);
    made->name = strdup(name);
    made->count = load(library, name, &made->number, made->sizes, MOST_PARAMETERS);
    *kernel = made;
    return made->count < 0 ? SIM_UNSUPPORTED : 0;
}

int cuKernelSetAttribute(int attribute, int value, struct kernel *kernel, int number) {
    if (attribute != 8 || value > SIM_MOST_SHARED || !kernel || number) return 1;
    kernel->shared = value;
    return sticky;
}

int cuLaunchKernel(struct kernel *kernel, unsigned x, unsigned y, unsigned z, unsigned across, unsigned down,
                   unsigned deep, unsigned shared, struct sim_stream *stream, void **parameters, void **extra) {
    if (sticky) return sticky;
    if (!context) return SIM_INVALID_CONTEXT;
    if (!kernel || !x || extra || (shared > SIM_FREELY_SHARED && shared > (unsigned)kernel->shared)) return 1;
    unsigned grid[3] = {x, y, z}, block[3] = {across, down, deep};
    struct node *made = record(stream, LAUNCH);
    if (made) {
        size_t size = 0;
        for (int k = 0; k < kernel->count; k++) size += kernel->sizes[k];
        made->kernel = kernel, made->what = kernel->name, made->shared = shared, made->parameters = malloc(size + 1);
        memcpy(made->grid, grid, sizeof grid);
        memcpy(made->block, block, sizeof block);
        char *next = made->parameters;
        for (int k = 0; k < kernel->count; next += kernel->sizes[k++]) {
            memcpy(next, parameters[k], kernel->sizes[k]);
            if (kernel->sizes[k] == sizeof(void *)) uses(made, *(void **)parameters[k]);
        }
        return 0;
    }
    return run_launch(kernel, grid, block, shared, parameters);
}
