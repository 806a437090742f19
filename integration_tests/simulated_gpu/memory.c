/* Memory of the device and pinned memory of the host, and for how long there is some of it.
 *
 * With torch's allocator in between, memory is gone when it is freed. Where each tensor is an allocation of its own, what
 * takes the place of a graph's pool is here: memory that was allocated, or freed, while a graph was captured is there
 * until it is freed and that graph is gone, and those that were captured while it was in use. */

#include "driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct user { unsigned long long graph; struct user *next; };
struct allocation {
    char *base; size_t size; bool device, freed;
    unsigned long long number;           /* no two allocations have the same, whatever their address */
    struct user *users;
    struct allocation *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;
static unsigned long long numbers, capture;

static bool each_alone(void) {
    const char *set = getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
    return set && strcmp(set, "0");
}

static void use(struct allocation *one, unsigned long long graph) {
    struct user *made = malloc(sizeof *made);
    *made = (struct user){graph, one->users};
    one->users = made;
}

void *sim_allocate(size_t size, bool on_device) {
    struct allocation *made = calloc(1, sizeof *made);
    size_t whole = (size + 511) / 512 * 512;
    made->base = aligned_alloc(512, whole ? whole : 512);
    if (!made->base) { free(made); return NULL; }
    memset(made->base, 0xFF, whole);     /* not a number, in every type that has one */
    pthread_mutex_lock(&lock);
    made->size = size, made->device = on_device, made->number = ++numbers, made->next = allocations;
    if (capture && each_alone()) use(made, capture);
    allocations = made;
    pthread_mutex_unlock(&lock);
    return made->base;
}

static void release(struct allocation **at) {
    struct allocation *found = *at;
    *at = found->next;
    memset(found->base, 0xFF, found->size);
    free(found->base);
    free(found);
}

bool sim_free(void *pointer) {
    bool known = pointer == NULL;
    pthread_mutex_lock(&lock);
    for (struct allocation **at = &allocations; *at && !known; at = &(*at)->next)
        if ((*at)->base == pointer && !(*at)->freed) {
            if (capture && each_alone()) use(*at, capture);
            (*at)->freed = true, known = true;
            if (!(*at)->users) { release(at); break; }
        }
    pthread_mutex_unlock(&lock);
    return known;
}

static struct allocation *holder(const void *pointer) {
    for (struct allocation *at = allocations; at; at = at->next)
        if ((char *)pointer >= at->base && (char *)pointer < at->base + (at->size ? at->size : 1)) return at;
    return NULL;
}

int sim_find(const void *pointer, char **base, size_t *size) {
    int kind = SIM_UNKNOWN;
    pthread_mutex_lock(&lock);
    struct allocation *found = holder(pointer);
    if (found) *base = found->base, *size = found->size, kind = found->device ? SIM_DEVICE : SIM_HOST;
    pthread_mutex_unlock(&lock);
    return kind;
}

/* The number of the allocation that has the address, or 0. */
unsigned long long sim_number_of(const void *pointer) {
    pthread_mutex_lock(&lock);
    struct allocation *found = holder(pointer);
    unsigned long long number = found ? found->number : 0;
    pthread_mutex_unlock(&lock);
    return number;
}

/* Of the device. */
int sim_count_allocations(void) {
    int count = 0;
    pthread_mutex_lock(&lock);
    for (struct allocation *at = allocations; at; at = at->next) count += at->device;
    pthread_mutex_unlock(&lock);
    return count;
}

/* A capture begins, or with 0 the one that went on has ended: what earlier graphs hold may be used by this one. */
void sim_memory_of_capture(unsigned long long graph) {
    pthread_mutex_lock(&lock);
    capture = graph;
    for (struct allocation *at = allocations; at && graph; at = at->next)
        if (at->users && !at->freed) use(at, graph);
    pthread_mutex_unlock(&lock);
}

void sim_memory_of_graph_ends(unsigned long long graph) {
    pthread_mutex_lock(&lock);
    for (struct allocation **at = &allocations; *at;) {
        for (struct user **user = &(*at)->users; *user;) {
            struct user *gone = *user;
            if (gone->graph != graph) { user = &gone->next; continue; }
            *user = gone->next;
            free(gone);
        }
        if ((*at)->freed && !(*at)->users) release(at);
        else at = &(*at)->next;
    }
    pthread_mutex_unlock(&lock);
}
