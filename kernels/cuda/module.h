/* module.h - the device code: one file, of which each part (kernels.def) is loaded when a kernel of it is first used.
 */
#ifndef GOMLX_CUDA_MODULE_H
#define GOMLX_CUDA_MODULE_H
#include "cuda/driver.h"
#include "cuda/launch.h"

enum {
#define CUDA_PART(name) CUDA_PART_##name,
#define CUDA_KERNEL(name)
#include "cuda/kernels.def"
    CUDA_PARTS
};

/* How the file begins (build.py writes it): what the kernels were made of, and where the image of each part is. */
#define MODULE_MAGIC "gomlx kernels 1"
typedef struct {
    char magic[16];
    char digest[64], architectures[64];
    struct { uint64_t at, bytes; } parts[CUDA_PARTS];
} module_head;

typedef struct {
    char path[256], architectures[65];
    char *file;
    size_t bytes;
    driver_module *parts[CUDA_PARTS];         /* NULL until first used */
    driver_function *functions[CUDA_KERNELS]; /* likewise */
    int shared[CUDA_KERNELS];                 /* bytes of a block's memory that were asked for so far */
} cuda_module;

/* The file that GOMLX_CUDA_KERNELS names, or that of the package gomlx_cuda13 beside this library's; of no context.
 * False with the reason. */
bool module_open(cuda_module *m, char *why, size_t bytes);
/* Whether the file has kernels for GPUs of a compute capability; if not, the reason. */
bool module_fits(const cuda_module *m, int major, int minor, char *why, size_t bytes);
/* In the current context. NULL with the driver's error. */
driver_function *module_function(const cuda_driver *driver, cuda_module *m, cuda_kernel kernel, size_t shared,
                                 int *error);
const char *module_kernel_name(cuda_kernel kernel);
/* The path of a file of the packages that are beside this library's, .../gomlx/_gomlx.abi3.so, where it is there. */
bool module_beside(const char *name, char *path, size_t bytes);
#endif
