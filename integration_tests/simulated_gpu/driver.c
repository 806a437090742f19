/* A CUDA driver without a device: memory of the device is the host's, streams run at once, and what is launched goes to a
 * callback. Graphs are lists of what was asked for while a stream was captured, and done when they are run.
 *
 * The runtime (runtime.c) and Python (device.py) are its users. */

#include "driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_PARAMETERS = 512 };

struct allocation { char *base; size_t size; bool device, kept; struct allocation *next; };
struct kernel { int number, count, shared; int sizes[MOST_PARAMETERS]; };
struct node {
    enum { COPY, FILL, LAUNCH, CALL } kind;
    void *target; const void *source; size_t size; int value;
    struct kernel *kernel; unsigned grid[3], block[3], shared; char *parameters;
    void (*call)(void *); void *data;
    struct node *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;
static struct sim_graph *capturing;      /* at most one capture at a time */
static int sticky;                       /* what no call gets beyond: a failed kernel */
static __thread int device;
static __thread void *context;          /* of no device before a thread's first call of the runtime */
static sim_loader load;
static sim_launcher launch;

void sim_set_callbacks(sim_loader loader, sim_launcher launcher) { load = loader, launch = launcher; }
void sim_fail(int error) { if (!sticky) sticky = error; }
void sim_recover(void) { sticky = 0; }
int sim_failure(void) { return sticky; }
int sim_device(void) { return device; }
void sim_use_device(int number) { device = number; }
void sim_bind(void) { context = &allocations; }

/* What was asked for and is not built, until it is taken, by names that stay. */

enum { MOST_MISSING = 64 };
static const char *missing[MOST_MISSING];
static int misses;

void sim_miss(const char *name) {
    pthread_mutex_lock(&lock);
    if (misses < MOST_MISSING) missing[misses++] = name;
    pthread_mutex_unlock(&lock);
}

const char *sim_next_missing(void) {
    pthread_mutex_lock(&lock);
    const char *found = misses ? missing[--misses] : NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Memory. */

void *sim_allocate(size_t size, bool on_device) {
    struct allocation *made = malloc(sizeof *made);
    size_t whole = (size + 511) / 512 * 512;
    made->base = aligned_alloc(512, whole ? whole : 512);
    if (!made->base) { free(made); return NULL; }
    memset(made->base, 0xFF, whole);     /* not a number, in every type that has one */
    pthread_mutex_lock(&lock);
    made->size = size, made->device = on_device, made->kept = capturing != NULL, made->next = allocations;
    allocations = made;
    pthread_mutex_unlock(&lock);
    return made->base;
}

/* What was allocated during a capture is kept for the graph, like everything that is freed during one. */
bool sim_free(void *pointer) {
    pthread_mutex_lock(&lock);
    for (struct allocation **at = &allocations; *at; at = &(*at)->next)
        if ((*at)->base == pointer) {
            struct allocation *found = *at;
            if (!found->kept && !capturing) {
                *at = found->next;
                free(found->base);
                free(found);
            }
            pthread_mutex_unlock(&lock);
            return true;
        }
    pthread_mutex_unlock(&lock);
    return pointer == NULL;
}

int sim_find(const void *pointer, char **base, size_t *size) {
    int kind = SIM_UNKNOWN;
    pthread_mutex_lock(&lock);
    for (struct allocation *at = allocations; at; at = at->next)
        if ((char *)pointer >= at->base && (char *)pointer < at->base + (at->size ? at->size : 1)) {
            *base = at->base, *size = at->size, kind = at->device ? SIM_DEVICE : SIM_HOST;
            break;
        }
    pthread_mutex_unlock(&lock);
    return kind;
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
    return busy ? SIM_CAPTURE_UNSUPPORTED : 0;
}

int sim_end_capture(struct sim_stream *stream, struct sim_graph **graph) {
    if (!sim_is_capturing(stream)) return SIM_CAPTURE_INVALIDATED;
    pthread_mutex_lock(&lock);
    struct sim_graph *made = capturing;
    capturing = NULL;
    pthread_mutex_unlock(&lock);
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
    return 0;                            /* a kernel's failure is told by what waits for it */
}

int sim_run_graph(struct sim_graph *graph) {
    for (struct node *at = graph->nodes; at && !sticky; at = at->next)
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
        free(one->parameters);
        free(one);
    }
    free(graph);
}

/* Work. */

int sim_copy(struct sim_stream *stream, void *target, const void *source, size_t size) {
    if (sticky) return sticky;
    struct node *made = record(stream, COPY);
    if (made) made->target = target, made->source = source, made->size = size;
    else memmove(target, source, size);
    return 0;
}

int sim_fill(struct sim_stream *stream, void *target, int value, size_t size) {
    if (sticky) return sticky;
    struct node *made = record(stream, FILL);
    if (made) made->target = target, made->value = value, made->size = size;
    else memset(target, value, size);
    return 0;
}

void sim_call(struct sim_stream *stream, void (*call)(void *), void *data) {
    struct node *made = record(stream, CALL);
    if (made) made->call = call, made->data = data;
    else call(data);
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
int cuDevicePrimaryCtxRetain(void **found, int number) { *found = &allocations; return number ? SIM_INVALID_DEVICE : 0; }
int cuCtxGetCurrent(void **found) { *found = context; return sticky; }
int cuCtxSetCurrent(void *other) { context = other; return sticky; }
int cuCtxGetDevice(int *number) {
    if (!context) return SIM_INVALID_CONTEXT;
    *number = device;
    return sticky;
}

int cuLibraryLoadData(void **library, const void *code, void *jit, void *values, unsigned count, void *options,
                      void *option_values, unsigned option_count) {
    *library = (void *)code;
    return load && !jit && !values && !count && !options && !option_values && !option_count ? 0 : SIM_UNSUPPORTED;
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    struct kernel *made = calloc(1, sizeof *made);
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
        made->kernel = kernel, made->shared = shared, made->parameters = malloc(size + 1);
        memcpy(made->grid, grid, sizeof grid);
        memcpy(made->block, block, sizeof block);
        char *next = made->parameters;
        for (int k = 0; k < kernel->count; next += kernel->sizes[k++]) memcpy(next, parameters[k], kernel->sizes[k]);
        return 0;
    }
    return run_launch(kernel, grid, block, shared, parameters);
}
