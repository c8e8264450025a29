/* driver.c - the driver's library, opened when a device is asked for, and not before. */
#include "cuda/driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once_found = PTHREAD_ONCE_INIT, once_started = PTHREAD_ONCE_INIT;
static cuda_driver driver;
static bool is_found, is_started;
static atomic_bool is_forked; /* since it was started */
static char reason[512];      /* written before anybody reads it */

void driver_says(const cuda_driver *d, int error, char *out, size_t bytes) {
    const char *name = NULL, *text = NULL;
    d->error_name(error, &name);
    d->error_text(error, &text);
    snprintf(out, bytes, "%s (%s)", text ? text : "unknown error", name ? name : "?");
}

static bool find_functions(void *library) {
    static const struct {
        const char *symbol;
        size_t at;
    } functions[] = {
#define DRIVER_ROW(name, symbol, arguments) {symbol, offsetof(cuda_driver, name)},
        DRIVER_FUNCTIONS(DRIVER_ROW)
#undef DRIVER_ROW
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(library, functions[i].symbol);
        if (!function) {
            snprintf(reason, sizeof reason, "NVIDIA's driver has no %s: it is too old; driver 580 or newer is needed",
                     functions[i].symbol);
            return false;
        }
        memcpy((char *)&driver + functions[i].at, &function, sizeof function);
    }
    return true;
}

static void find_once(void) {
    const char *named = getenv("GOMLX_CUDA_DRIVER"), *path = named && *named ? named : "libcuda.so.1";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library) is_found = find_functions(library);
    else snprintf(reason, sizeof reason, "there is no NVIDIA driver: install 580 or newer (%.300s)", dlerror());
}

static void in_child(void) { atomic_store(&is_forked, true); }
bool driver_is_forked(void) { return atomic_load_explicit(&is_forked, memory_order_relaxed); }

static void start_once(void) {
    int version = 0;
    const int error = driver.init(0);
    if (error) {
        char words[256];
        driver_says(&driver, error, words, sizeof words);
        snprintf(reason, sizeof reason, "NVIDIA's driver does not start: %s", words);
        return;
    }
    driver.version(&version);
    if (version < DRIVER_LEAST) {
        snprintf(reason, sizeof reason, "NVIDIA's driver is for CUDA %d.%d: driver 580 or newer (CUDA 13.0) is needed",
                 version / 1000, version % 1000 / 10);
        return;
    }
    pthread_atfork(NULL, NULL, in_child);
    is_started = true;
}

bool driver_found(char *why, size_t bytes) {
    pthread_once(&once_found, find_once);
    if (!is_found) snprintf(why, bytes, "%s", reason);
    return is_found;
}

const cuda_driver *driver_open(char *why, size_t bytes) {
    if (!driver_found(why, bytes)) return NULL;
    pthread_once(&once_started, start_once);
    if (is_started && !driver_is_forked()) return &driver;
    snprintf(why, bytes, "%s", is_started ? DRIVER_FORKED : reason);
    return NULL;
}
