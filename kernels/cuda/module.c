/* module.c - finds the file of kernels, checks that it is this engine's, and looks up its functions. */
#include "cuda/module.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[CUDA_KERNELS] = {
#define CUDA_KERNEL(name) "gm_" #name,
#include "cuda/kernels.def"
};
static const cuda_kernel firsts[CUDA_PARTS] = {
#define CUDA_PART(name) CUDA_first_##name,
#define CUDA_KERNEL(name)
#include "cuda/kernels.def"
};

const char *module_kernel_name(cuda_kernel kernel) { return names[kernel]; }

static char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    char *data = NULL;
    if (!file) return NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        const long size = ftell(file);
        rewind(file);
        *bytes = size > 0 ? (size_t)size : 0;
        data = malloc(*bytes + 1);
        if (data && fread(data, 1, *bytes, file) != *bytes) {
            free(data);
            data = NULL;
        }
    }
    fclose(file);
    return data;
}

static bool check_file(cuda_module *m, char *why, size_t bytes) {
    const module_head *head = (const module_head *)(const void *)m->file;
    if (m->bytes < sizeof *head || memcmp(head->magic, MODULE_MAGIC, sizeof MODULE_MAGIC) != 0) {
        snprintf(why, bytes, "%s is not a file of kernels", m->path);
        return false;
    }
    if (memcmp(head->digest, CUDA_DIGEST, sizeof head->digest) != 0) {
        snprintf(why, bytes,
                 "the kernels in %s are of another version (%.12s, not %.12s): install gomlx and gomlx-cuda13 from the "
                 "same source",
                 m->path, head->digest, CUDA_DIGEST);
        return false;
    }
    for (int p = 0; p < CUDA_PARTS; p++)
        if (head->parts[p].at > m->bytes || head->parts[p].bytes > m->bytes - head->parts[p].at) {
            snprintf(why, bytes, "the file of kernels %s is cut off", m->path);
            return false;
        }
    snprintf(m->architectures, sizeof m->architectures, "%.64s", head->architectures);
    return true;
}

bool module_beside(const char *name, char *path, size_t bytes) {
    Dl_info here;
    if (!dladdr((const void *)names, &here) || !here.dli_fname) return false;
    const char *end = strrchr(here.dli_fname, '/');
    if (!end || (size_t)snprintf(path, bytes, "%.*s/../%s", (int)(end - here.dli_fname), here.dli_fname, name) >= bytes)
        return false;
    return access(path, R_OK) == 0;
}

bool module_open(cuda_module *m, char *why, size_t bytes) {
    const char *named = getenv("GOMLX_CUDA_KERNELS");
    memset(m, 0, sizeof *m);
    if (named && *named) {
        snprintf(m->path, sizeof m->path, "%s", named);
    } else if (!module_beside("gomlx_cuda13/kernels", m->path, sizeof m->path)) {
        snprintf(
            why, bytes,
            "there are no kernels for NVIDIA GPUs: pip install ./kernels/cuda in gomlx's sources, or name a file by "
            "GOMLX_CUDA_KERNELS");
        return false;
    }
    m->file = read_file(m->path, &m->bytes);
    if (!m->file) {
        snprintf(why, bytes, "the file of kernels %s cannot be read", m->path);
        return false;
    }
    if (check_file(m, why, bytes)) return true;
    free(m->file);
    m->file = NULL;
    return false;
}

/* One word of the file's list: machine code is for a capability and later ones of its family, or, with a letter, for
 * that one alone; code that the driver compiles is for all later ones. */
static bool word_fits(const char *word, int major, int minor) {
    const bool is_compiled = strncmp(word, "sm_", 3) == 0;
    char *end;
    const int version = (int)strtol(word + (is_compiled ? 3 : strlen("compute_")), &end, 10), own = 10 * major + minor;
    if (!is_compiled) return own >= version;
    return *end == 'a' ? own == version : own >= version && major == version / 10;
}

bool module_fits(const cuda_module *m, int major, int minor, char *why, size_t bytes) {
    char words[sizeof m->architectures], *rest = NULL;
    memcpy(words, m->architectures, sizeof words);
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        if (word_fits(word, major, minor)) return true;
    snprintf(why, bytes,
             "the kernels in %.200s are for %s, this GPU is sm_%d%d: in gomlx's sources, GOMLX_CUDA_ARCHS=%d%d%s pip "
             "install ./kernels/cuda",
             m->path, m->architectures, major, minor, major, minor, major == 9 ? "a" : "");
    return false;
}

static int load_function(const cuda_driver *driver, cuda_module *m, cuda_kernel kernel) {
    const module_head *head = (const module_head *)(const void *)m->file;
    int part = CUDA_PARTS - 1, error = DRIVER_SUCCESS;
    while (firsts[part] > kernel) part--;
    if (!m->parts[part]) error = driver->module_load(&m->parts[part], m->file + head->parts[part].at);
    return error ? error : driver->module_function(&m->functions[kernel], m->parts[part], names[kernel]);
}

/* Kernels whose blocks need so much have all of it: a processor whose memory is to be divided anew must be empty first,
 * and those of a decoding step follow one another without such a pause. */
#define MUCH_SHARED (16 << 10)
driver_function *module_function(const cuda_driver *driver, cuda_module *m, cuda_kernel kernel, size_t shared,
                                 int *error) {
    *error = m->functions[kernel] ? DRIVER_SUCCESS : load_function(driver, m, kernel);
    if (*error) return NULL;
    if ((int)shared > m->shared[kernel]) { /* without asking it may have 48 KiB less what is its own */
        *error = driver->function_set(m->functions[kernel], DRIVER_FUNCTION_SHARED, (int)shared);
        if (!*error && shared >= MUCH_SHARED)
            *error = driver->function_set(m->functions[kernel], DRIVER_FUNCTION_CARVEOUT, 100);
        m->shared[kernel] = (int)shared;
    }
    return *error ? NULL : m->functions[kernel];
}
