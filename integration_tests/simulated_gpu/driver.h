/* What the stand-ins for CUDA's driver and runtime share. */

#include <stdbool.h>
#include <stddef.h>

/* Numbers of CUDA's errors, and kinds of memory. */
enum { SIM_INVALID_DEVICE = 101, SIM_INVALID_CONTEXT = 201, SIM_ILLEGAL_ADDRESS = 700, SIM_ASSERT = 710, SIM_UNSUPPORTED = 801, SIM_CAPTURE_UNSUPPORTED = 900, SIM_CAPTURE_INVALIDATED = 901 };
/* Bytes of shared memory: of any launch, and of one whose kernel was given the number. */
enum { SIM_FREELY_SHARED = 48 << 10, SIM_MOST_SHARED = 227 << 10, SIM_VERSION = 13000 };
enum { SIM_UNKNOWN, SIM_HOST, SIM_DEVICE };

/* `capture` is the number of the capture that the stream belongs to, or that of an earlier one. */
struct sim_stream { unsigned long long capture; int priority; };
struct sim_event { unsigned long long capture; double at; };
struct sim_graph {
    struct node *nodes, **end;
    unsigned long long number;
    int instances;                       /* executable graphs made of it: it is freed with the last of them */
    bool invalid;
};

/* Loads code: the number of its parameters, or -1; `number` and `sizes` are set. */
typedef int (*sim_loader)(const char *code, const char *name, int *number, int *sizes, int most);
typedef int (*sim_launcher)(int number, unsigned *grid, unsigned *block, unsigned shared, void **parameters);

int cuThreadExchangeStreamCaptureMode(int *mode);
void sim_set_callbacks(sim_loader loader, sim_launcher launcher);
void sim_fail(int error);
void sim_recover(void);
int sim_failure(void);
void sim_miss(const char *name);
const char *sim_next_missing(void);
int sim_device(void);
void sim_use_device(int number);
void sim_bind(void);
void *sim_allocate(size_t size, bool on_device);
bool sim_free(void *pointer);
int sim_find(const void *pointer, char **base, size_t *size);
unsigned long long sim_number_of(const void *pointer);
void sim_memory_of_capture(unsigned long long graph);
void sim_memory_of_graph_ends(unsigned long long graph);
bool sim_is_capturing(struct sim_stream *stream);
struct sim_graph *sim_current_capture(void);
int sim_begin_capture(struct sim_stream *stream);
int sim_end_capture(struct sim_stream *stream, struct sim_graph **graph);
int sim_wait(struct sim_stream *stream);
int sim_run_graph(struct sim_graph *graph);
void sim_free_graph(struct sim_graph *graph);
int sim_copy(struct sim_stream *stream, void *target, const void *source, size_t size);
int sim_fill(struct sim_stream *stream, void *target, int value, size_t size);
void sim_call(struct sim_stream *stream, void (*call)(void *), void *data);
double sim_now(void);
