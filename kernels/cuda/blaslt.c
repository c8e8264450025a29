/* blaslt.c - cuBLASLt, looked for when a product is first asked for, or what a card is, and not before: it has hundreds
 * of megabytes. */
#include "cuda/blaslt.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cuda/module.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cuda_blaslt library;
static bool is_found;
static char said[256]; /* written before anybody reads it */

/* Newest first; those of CUDA 12 work with its later drivers too. */
static const struct {
    const char *name, *package; /* package: from the folder that holds gomlx */
} places[] = {{"libcublasLt.so.13", "nvidia/cu13/lib/libcublasLt.so.13"},
              {"libcublasLt.so.12", "nvidia/cublas/lib/libcublasLt.so.12"}};
#define PLACES (int)(sizeof places / sizeof *places)

static void *open_library(void) {
    const char *named = getenv("GOMLX_CUDA_BLASLT");
    char path[512];
    void *found = NULL;
    if (named && *named) return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < PLACES && !found; i++) found = dlopen(places[i].name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    for (int i = 0; i < PLACES && !found; i++)
        if (module_beside(places[i].package, path, sizeof path)) found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < PLACES && !found; i++) found = dlopen(places[i].name, RTLD_NOW | RTLD_LOCAL);
    return found;
}

static bool find_functions(void *opened) {
    static const struct {
        const char *symbol;
        size_t at;
    } functions[] = {
#define BLASLT_ROW(name, symbol, arguments) {symbol, offsetof(cuda_blaslt, name)},
        BLASLT_FUNCTIONS(BLASLT_ROW)
#undef BLASLT_ROW
            {"cublasLtGetVersion", offsetof(cuda_blaslt, version)},
        {"cublasLtGetStatusString", offsetof(cuda_blaslt, status_text)},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(opened, functions[i].symbol);
        if (!function) {
            snprintf(said, sizeof said, "no cuBLASLt: the library that was found has no %s", functions[i].symbol);
            return false;
        }
        memcpy((char *)&library + functions[i].at, &function, sizeof function);
    }
    return true;
}

static void look(void) {
    void *opened = open_library();
    if (!opened) {
        snprintf(said, sizeof said, "no cuBLASLt: pip install \"nvidia-cublas>=13,<14\" (%.150s)", dlerror());
        return;
    }
    if (!find_functions(opened)) return;
    Dl_info from;
    void *function;
    memcpy(&function, &library.multiply, sizeof function);
    const int version = (int)library.version();
    snprintf(said, sizeof said, "cuBLASLt %d.%d.%d (%.200s)", version / 10000, version / 100 % 100, version % 100,
             dladdr(function, &from) && from.dli_fname ? from.dli_fname : "?");
    is_found = true;
}

const cuda_blaslt *blaslt_open(void) {
    pthread_once(&once, look);
    return is_found ? &library : NULL;
}
void blaslt_says(char *out, size_t bytes) {
    blaslt_open();
    snprintf(out, bytes, "%s", said);
}
