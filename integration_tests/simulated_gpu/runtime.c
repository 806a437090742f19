/* A CUDA runtime over driver.c: what torch's libraries call of libcudart.so.13, for one device.
 *
 * Kernels of torch's own cannot run: the launch of one is an error that names it.
 * The operators that would launch them are computed on the CPU instead (operators.py). The one exception are kernels of
 * random numbers, which are not run either, but whose place in the generator's stream is kept for random_numbers.py. */

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define STREAM(s) ((struct sim_stream *)(s))
#define EVENT(e) ((struct sim_event *)(e))
#define UNSUPPORTED(name) (fprintf(stderr, "simulated GPU: no %s\n", name), sim_miss(name), fail(cudaErrorNotSupported))
#define NOT_BUILT(name, ...) cudaError_t name(__VA_ARGS__) { return UNSUPPORTED(#name); }

enum { PHILOX_STATE = 32 };              /* bytes of at::PhiloxCudaState */

static __thread cudaError_t last;
static __thread char drawn[PHILOX_STATE];
static __thread int draws, drawing;
static const size_t TOTAL = 8ull << 30, FREE = 4ull << 30;

static cudaError_t fail(cudaError_t error) { if (error) last = error; return error; }
/* The end of calls that give their thread the device's context. */
static cudaError_t ended(void) { sim_bind(); return fail(sim_failure()); }

/* For random_numbers.py: the kernels of random numbers that this thread launches between the two, of which there is to
 * be one, are not run; of the last one there is the state. */
void sim_begin_draw(void) { draws = 0, drawing = 1; }
int sim_end_draw(void *state) { drawing = 0; memcpy(state, drawn, PHILOX_STATE); return draws; }

/* Devices. */

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *number) { *number = sim_device(); return cudaSuccess; }
cudaError_t cudaSetDevice(int number) { return number ? fail(cudaErrorInvalidDevice) : (sim_use_device(0), ended()); }
cudaError_t cudaDriverGetVersion(int *version) { *version = SIM_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return fail(sim_current_capture() ? cudaErrorStreamCaptureUnsupported : sim_failure()); }
cudaError_t cudaDeviceCanAccessPeer(int *can, int one, int other) { *can = 0; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0, *greatest = -5; return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char *id, int most, int number) { snprintf(id, most, "0000:00:00.0"); return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int number) {
    if (number) return fail(cudaErrorInvalidDevice);
    int asked = atoi(getenv("FRAMESMITH_SIMULATED_GPU"));
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "simulated GPU");
    p->major = asked / 10, p->minor = asked % 10, p->multiProcessorCount = 132, p->warpSize = 32;
    p->totalGlobalMem = TOTAL, p->l2CacheSize = 50 << 20, p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = 2048, p->maxBlocksPerMultiProcessor = 32;
    p->sharedMemPerBlock = SIM_FREELY_SHARED, p->sharedMemPerBlockOptin = SIM_MOST_SHARED, p->sharedMemPerMultiprocessor = 228 << 10;
    for (int k = 0; k < 3; k++) p->maxThreadsDim[k] = k < 2 ? 1024 : 64, p->maxGridSize[k] = k ? 65535 : 0x7FFFFFFF;
    p->unifiedAddressing = p->managedMemory = p->concurrentKernels = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int number) {
    struct cudaDeviceProp p;
    cudaGetDeviceProperties(&p, number);
    *value = which == cudaDevAttrMultiProcessorCount ? p.multiProcessorCount
        : which == cudaDevAttrComputeCapabilityMajor ? p.major
        : which == cudaDevAttrComputeCapabilityMinor ? p.minor
        : which == cudaDevAttrMaxSharedMemoryPerBlockOptin ? (int)p.sharedMemPerBlockOptin
        : which == cudaDevAttrMaxThreadsPerMultiProcessor ? p.maxThreadsPerMultiProcessor
        : 0;
    return cudaSuccess;
}

/* Errors. */

cudaError_t cudaGetLastError(void) { cudaError_t found = sim_failure() ? sim_failure() : last; last = cudaSuccess; return found; }
cudaError_t cudaPeekAtLastError(void) { return sim_failure() ? sim_failure() : last; }

const char *cudaGetErrorName(cudaError_t error) {
    static __thread char name[32];
    snprintf(name, sizeof name, "cudaError %d", error);
    return name;
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == (cudaError_t)SIM_ASSERT ? "device-side assert triggered"
        : error == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
        : error == cudaErrorNotSupported ? "the simulated GPU cannot do that"
        : error == cudaErrorStreamCaptureUnsupported ? "operation not permitted when stream is capturing"
        : error == cudaErrorStreamCaptureInvalidated ? "operation failed due to a previous error during capture"
        : cudaGetErrorName(error);
}

/* Memory. */

cudaError_t cudaMalloc(void **made, size_t size) {
    if (sim_failure()) return ended();
    sim_bind();
    *made = size > FREE ? NULL : sim_allocate(size, true);
    return *made ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaHostAlloc(void **made, size_t size, unsigned flags) {
    *made = sim_allocate(size, false);
    return *made ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void *p) { return sim_free(p) ? cudaSuccess : fail(cudaErrorInvalidValue); }
cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }
cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) { *unused = FREE, *total = TOTAL; return ended(); }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *p) {
    char *base;
    size_t size;
    int kind = sim_find(p, &base, &size);
    memset(found, 0, sizeof *found);
    found->type = kind == SIM_DEVICE ? cudaMemoryTypeDevice : kind == SIM_HOST ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    if (kind == SIM_DEVICE) found->devicePointer = (void *)p;
    if (kind == SIM_HOST) found->devicePointer = found->hostPointer = (void *)p;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t s) {
    sim_bind();
    return fail(sim_copy(STREAM(s), to, from, size));
}
cudaError_t cudaMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t size, cudaStream_t s) {
    sim_bind();
    return fail(sim_copy(STREAM(s), to, from, size));
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    cudaError_t error = cudaDeviceSynchronize();
    return error ? error : fail(sim_copy(NULL, to, from, size));
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t there, const void *from, size_t here, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t s) {
    for (size_t k = 0; k < height; k++) sim_copy(STREAM(s), (char *)to + k * there, (char *)from + k * here, width);
    return ended();
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t size, cudaStream_t s) { sim_bind(); return fail(sim_fill(STREAM(s), p, value, size)); }
cudaError_t cudaMemset(void *p, int value, size_t size) { return fail(sim_fill(NULL, p, value, size)); }

/* Streams and events. Whatever is launched has been done when the call returns. */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *made, unsigned flags, int priority) {
    struct sim_stream *stream = calloc(1, sizeof *stream);
    stream->priority = priority;
    *made = (cudaStream_t)stream;
    return ended();
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *made, unsigned flags) { return cudaStreamCreateWithPriority(made, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t *made) { return cudaStreamCreateWithPriority(made, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { free(s); return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) { *priority = s ? STREAM(s)->priority : 0; return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t s) { sim_bind(); return fail(sim_wait(STREAM(s))); }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { sim_bind(); return fail(sim_wait(STREAM(s))); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *made, unsigned flags) {
    *made = (cudaEvent_t)calloc(1, sizeof(struct sim_event));
    return ended();
}
cudaError_t cudaEventCreate(cudaEvent_t *made) { return cudaEventCreateWithFlags(made, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { free(e); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    EVENT(e)->at = sim_now();
    EVENT(e)->capture = sim_is_capturing(STREAM(s)) ? STREAM(s)->capture : 0;
    return ended();
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) { return cudaEventRecord(e, s); }
static cudaError_t reached(cudaEvent_t e) {
    struct sim_graph *now = sim_current_capture();
    return fail(now && EVENT(e)->capture == now->number ? (int)cudaErrorCapturedEvent : sim_failure());
}
cudaError_t cudaEventQuery(cudaEvent_t e) { return reached(e); }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { return reached(e); }
cudaError_t cudaEventElapsedTime(float *time, cudaEvent_t from, cudaEvent_t to) {
    *time = (float)(EVENT(to)->at - EVENT(from)->at);
    return ended();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    struct sim_graph *now = sim_current_capture();
    if (now && EVENT(e)->capture == now->number) {
        if (!s) return fail(cudaErrorStreamCaptureImplicit);
        STREAM(s)->capture = now->number;
    } else if (sim_is_capturing(STREAM(s))) {
        return fail(cudaErrorStreamCaptureIsolation);
    }
    return ended();
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t call, void *data) {
    sim_call(STREAM(s), call, data);
    return ended();
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t call, void *data, unsigned flags) {
    call(s, cudaSuccess, data);
    return ended();
}

/* Graphs. */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) { return fail(sim_begin_capture(STREAM(s))); }
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    return fail(sim_end_capture(STREAM(s), (struct sim_graph **)graph));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
    *status = !sim_is_capturing(STREAM(s)) ? cudaStreamCaptureStatusNone
        : sim_current_capture()->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return ended();
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *number,
                                     cudaGraph_t *graph, const cudaGraphNode_t **before, const cudaGraphEdgeData **edges,
                                     size_t *count) {
    cudaStreamIsCapturing(s, status);
    struct sim_graph *now = *status == cudaStreamCaptureStatusNone ? NULL : sim_current_capture();
    if (number) *number = now ? now->number : 0;
    if (graph) *graph = (cudaGraph_t)now;
    if (before) *before = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return ended();
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    return cuThreadExchangeStreamCaptureMode((int *)mode) ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    *count = ((struct sim_graph *)graph)->nodes ? 1 : 0;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
    ((struct sim_graph *)graph)->instances++;
    *made = (cudaGraphExec_t)graph;
    return ended();
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s) { sim_bind(); return fail(sim_run_graph((struct sim_graph *)graph)); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { sim_free_graph((struct sim_graph *)graph); return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { sim_free_graph((struct sim_graph *)graph); return cudaSuccess; }

/* Kernels of torch's. */

struct named { const void *function; const char *name; struct named *next; };
static struct named *names[4096];
static struct named **slot(const void *f) { return &names[((size_t)f >> 4) % 4096]; }

void **__cudaRegisterFatBinary(void *code) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
char __cudaInitModule(void **handle) { return 1; }
void __cudaRegisterVar(void **handle, char *host, char *there, const char *name, int ext, size_t size, int constant, int global) {}
void __cudaRegisterFunction(void **handle, const char *function, char *there, const char *name, int limit, void *thread,
                            void *block, void *blocks, void *grid, int *warps) {
    struct named *made = malloc(sizeof *made);
    *made = (struct named){function, name, *slot(function)};
    *slot(function) = made;
}

static const char *name_of(const void *function) {
    for (struct named *at = *slot(function); at; at = at->next) if (at->function == function) return at->name;
    return "a kernel without a name";
}

static cudaError_t launched(const void *function, void **parameters) {
    const char *name = name_of(function);
    if (drawing && strstr(name, "distribution_elementwise_grid_stride_kernel")) {
        memcpy(drawn, parameters[1], PHILOX_STATE);
        draws++;
        return ended();
    }
    fprintf(stderr, "simulated GPU: torch launches %s\n", name);
    sim_miss(name);
    return fail(cudaErrorNotSupported);
}

static __thread struct { dim3 grid, block; size_t shared; cudaStream_t stream; } configuration;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    configuration.grid = grid, configuration.block = block, configuration.shared = shared, configuration.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = configuration.grid, *block = configuration.block, *shared = configuration.shared;
    *(cudaStream_t *)stream = configuration.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *found, const void *function) { *found = (cudaKernel_t)function; return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **parameters, size_t shared, cudaStream_t s) {
    return launched((const void *)kernel, parameters);
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **parameters, size_t shared, cudaStream_t s) {
    return launched(function, parameters);
}
cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 grid, dim3 block, void **parameters, size_t shared, cudaStream_t s) {
    return launched(f, parameters);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **parameters) { return launched(f, parameters); }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024, found->numRegs = 32;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute which, int value) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *f, int size, size_t shared) { *count = 2; return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *f, int size, size_t shared, unsigned flags) {
    *count = 2;
    return cudaSuccess;
}

/* Not built. */

cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }
NOT_BUILT(cudaDeviceEnablePeerAccess, int number, unsigned flags)
NOT_BUILT(cudaDeviceGetDefaultMemPool, cudaMemPool_t *pool, int number)
NOT_BUILT(cudaFreeAsync, void *p, cudaStream_t s)
NOT_BUILT(cudaGetDriverEntryPointByVersion, const char *name, void **found, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *status)
NOT_BUILT(cudaGetSymbolAddress, void **found, const void *symbol)
NOT_BUILT(cudaGraphAddNode, cudaGraphNode_t *made, cudaGraph_t graph, const cudaGraphNode_t *before, const cudaGraphEdgeData *edges, size_t count, struct cudaGraphNodeParams *p)
NOT_BUILT(cudaGraphConditionalHandleCreate, cudaGraphConditionalHandle *made, cudaGraph_t graph, unsigned value, unsigned flags)
NOT_BUILT(cudaGraphDebugDotPrint, cudaGraph_t graph, const char *path, unsigned flags)
NOT_BUILT(cudaGraphNodeGetDependencies, cudaGraphNode_t node, cudaGraphNode_t *before, cudaGraphEdgeData *edges, size_t *count)
NOT_BUILT(cudaHostRegister, void *p, size_t size, unsigned flags)
NOT_BUILT(cudaHostUnregister, void *p)
NOT_BUILT(cudaIpcCloseMemHandle, void *p)
NOT_BUILT(cudaIpcGetEventHandle, cudaIpcEventHandle_t *handle, cudaEvent_t e)
NOT_BUILT(cudaIpcGetMemHandle, cudaIpcMemHandle_t *handle, void *p)
NOT_BUILT(cudaIpcOpenEventHandle, cudaEvent_t *e, cudaIpcEventHandle_t handle)
NOT_BUILT(cudaIpcOpenMemHandle, void **p, cudaIpcMemHandle_t handle, unsigned flags)
NOT_BUILT(cudaKernelSetAttributeForDevice, cudaKernel_t kernel, enum cudaFuncAttribute which, int value, int number)
NOT_BUILT(cudaLibraryGetKernel, cudaKernel_t *found, cudaLibrary_t library, const char *name)
NOT_BUILT(cudaLibraryLoadData, cudaLibrary_t *found, const void *code, enum cudaJitOption *jit, void **values, unsigned count, enum cudaLibraryOption *options, void **option_values, unsigned option_count)
NOT_BUILT(cudaLibraryUnload, cudaLibrary_t library)
NOT_BUILT(cudaMallocAsync, void **made, size_t size, cudaStream_t s)
NOT_BUILT(cudaMemcpyToSymbol, const void *symbol, const void *from, size_t size, size_t offset, enum cudaMemcpyKind kind)
NOT_BUILT(cudaMemPoolGetAttribute, cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value)
NOT_BUILT(cudaMemPoolSetAccess, cudaMemPool_t pool, const struct cudaMemAccessDesc *access, size_t count)
NOT_BUILT(cudaMemPoolSetAttribute, cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value)
NOT_BUILT(cudaMemPoolTrimTo, cudaMemPool_t pool, size_t least)
NOT_BUILT(cudaStreamBeginCaptureToGraph, cudaStream_t s, cudaGraph_t graph, const cudaGraphNode_t *before, const cudaGraphEdgeData *edges, size_t count, enum cudaStreamCaptureMode mode)
NOT_BUILT(cudaStreamUpdateCaptureDependencies, cudaStream_t s, cudaGraphNode_t *before, const cudaGraphEdgeData *edges, size_t count, unsigned flags)
