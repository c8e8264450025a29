/* driver.h - the functions of NVIDIA's driver that are used, declared here: nothing of CUDA is needed to build. */
#ifndef GOMLX_CUDA_DRIVER_H
#define GOMLX_CUDA_DRIVER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers of the driver's interface, which do not change. */
enum {
    DRIVER_SUCCESS = 0,
    DRIVER_OUT_OF_MEMORY = 2,
    DRIVER_DEINITIALIZED = 4,
    DRIVER_NO_DEVICE = 100,
    DRIVER_NOT_READY = 600,
    DRIVER_ECC = 214,
    DRIVER_MAJOR = 75, /* attributes of a device */
    DRIVER_MINOR = 76,
    DRIVER_PROCESSORS = 16,
    DRIVER_BLOCK_MEMORY = 97,     /* bytes of a block's memory for a kernel that asks for more than 48 KiB */
    DRIVER_FUNCTION_SHARED = 8,   /* attribute of a function: most memory of a block that a launch may ask for */
    DRIVER_FUNCTION_CARVEOUT = 9, /* ... the part in a hundred that processors give blocks, the rest is a cache */
    DRIVER_STREAM_NON_BLOCKING = 1,
    DRIVER_EVENT_NO_TIMING = 2,
    DRIVER_HOST_PORTABLE_MAPPED = 3,
    DRIVER_LAUNCH_CLUSTER = 4, /* attributes of a launch */
    DRIVER_LAUNCH_EARLY = 6,
    DRIVER_CAPTURE_THREAD = 1, /* what other threads ask of the driver meanwhile is their own */
};

typedef struct driver_context driver_context;
typedef struct driver_stream driver_stream;
typedef struct driver_event driver_event;
typedef struct driver_module driver_module;
typedef struct driver_function driver_function;
typedef struct driver_graph driver_graph;
typedef struct driver_prepared driver_prepared; /* a graph that can be launched */
typedef uint64_t driver_pointer;
typedef struct {
    uint32_t attribute;
    union {
        uint64_t room[8];
        int32_t yes;
        uint32_t cluster[3];
    } value;
} driver_attribute;
typedef struct {
    uint32_t blocks[3], threads[3], shared;
    driver_stream *stream;
    const driver_attribute *attributes;
    uint32_t count;
} driver_launch;

/* F(name here, symbol, arguments) */
#define DRIVER_FUNCTIONS(F)                                                                                            \
    F(init, "cuInit", (unsigned flags))                                                                                \
    F(version, "cuDriverGetVersion", (int *version))                                                                   \
    F(device_count, "cuDeviceGetCount", (int *count))                                                                  \
    F(device_get, "cuDeviceGet", (int *device, int index))                                                             \
    F(device_name, "cuDeviceGetName", (char *name, int bytes, int device))                                             \
    F(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                               \
    F(device_memory, "cuDeviceTotalMem_v2", (size_t *bytes, int device))                                               \
    F(context_retain, "cuDevicePrimaryCtxRetain", (driver_context * *context, int device))                             \
    F(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                                                   \
    F(context_push, "cuCtxPushCurrent_v2", (driver_context * context))                                                 \
    F(context_pop, "cuCtxPopCurrent_v2", (driver_context * *context))                                                  \
    F(context_wait, "cuCtxSynchronize", (void))                                                                        \
    F(memory_info, "cuMemGetInfo_v2", (size_t *free, size_t *total))                                                   \
    F(alloc, "cuMemAlloc_v2", (driver_pointer * pointer, size_t bytes))                                                \
    F(free, "cuMemFree_v2", (driver_pointer pointer))                                                                  \
    F(host_alloc, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags))                                     \
    F(host_free, "cuMemFreeHost", (void *memory))                                                                      \
    F(copy, "cuMemcpyAsync", (driver_pointer to, driver_pointer from, size_t bytes, driver_stream *stream))            \
    F(stream_create, "cuStreamCreate", (driver_stream * *stream, unsigned flags))                                      \
    F(stream_destroy, "cuStreamDestroy_v2", (driver_stream * stream))                                                  \
    F(stream_query, "cuStreamQuery", (driver_stream * stream))                                                         \
    F(event_create, "cuEventCreate", (driver_event * *event, unsigned flags))                                          \
    F(event_destroy, "cuEventDestroy_v2", (driver_event * event))                                                      \
    F(event_record, "cuEventRecord", (driver_event * event, driver_stream * stream))                                   \
    F(event_query, "cuEventQuery", (driver_event * event))                                                             \
    F(event_elapsed, "cuEventElapsedTime", (float *ms, driver_event *from, driver_event *to))                          \
    F(module_load, "cuModuleLoadData", (driver_module * *module, const void *image))                                   \
    F(module_function, "cuModuleGetFunction", (driver_function * *function, driver_module * module, const char *name)) \
    F(function_set, "cuFuncSetAttribute", (driver_function * function, int attribute, int value))                      \
    F(launch, "cuLaunchKernelEx", (const driver_launch *how, driver_function *function, void **params, void **extra))  \
    F(capture_begin, "cuStreamBeginCapture_v2", (driver_stream * stream, int mode))                                    \
    F(capture_end, "cuStreamEndCapture", (driver_stream * stream, driver_graph * *graph))                              \
    F(graph_prepare, "cuGraphInstantiateWithFlags",                                                                    \
      (driver_prepared * *prepared, driver_graph * graph, unsigned long long flags))                                   \
    F(graph_launch, "cuGraphLaunch", (driver_prepared * prepared, driver_stream * stream))                             \
    F(graph_free, "cuGraphDestroy", (driver_graph * graph))                                                            \
    F(prepared_free, "cuGraphExecDestroy", (driver_prepared * prepared))                                               \
    F(error_name, "cuGetErrorName", (int error, const char **name))                                                    \
    F(error_text, "cuGetErrorString", (int error, const char **text))

typedef struct {
#define DRIVER_MEMBER(name, symbol, arguments) int(*name) arguments;
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
} cuda_driver;

#define DRIVER_LEAST 13000 /* what cubins of nvcc 13 ask for: driver 580 */

#define DRIVER_FORKED "this process was forked from one that uses the GPU: start it with \"spawn\""

/* Whether there is one: its library is opened, and nothing of it is called. GOMLX_CUDA_DRIVER names another library. */
bool driver_found(char *why, size_t bytes);
/* Started at the first call, once. Both: the reason, of so many bytes, where not. */
const cuda_driver *driver_open(char *why, size_t bytes);
/* Whether this process is a child, by fork, of one that started the driver. */
bool driver_is_forked(void);
/* The driver's word for an error: its name and text. */
void driver_says(const cuda_driver *driver, int error, char *out, size_t bytes);
#endif
