/* vector_accesses.c - AddressSanitizer's checks of loads and stores of vectors, in the place of its own, which take
 * most of a program's time: what is around them is looked at eight bytes of shadow at a time. Where that is not all
 * accessible, the sanitizer's own check decides, and reports. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sanitizer/asan_interface.h>
#include <stdint.h>
#include <string.h>

enum { GRANULE = 8 }; /* bytes of memory that a byte of shadow stands for; of shadow that are read at once */

static uintptr_t shadow;

__attribute__((constructor)) static void find_shadow(void) {
    size_t scale, offset;
    __asan_get_shadow_mapping(&scale, &offset);
    if ((size_t)1 << scale == GRANULE)
        shadow = offset;
}

/* Whether all of it is known to be accessible: the shadow is zero. */
static inline int is_open(uintptr_t at, size_t size) {
    if (!shadow || size > GRANULE * GRANULE)
        return 0;
    const uintptr_t first = at / GRANULE, last = (at + size - 1) / GRANULE;
    uint64_t found;
    memcpy(&found, (const void *)(first + shadow), sizeof found);
    const uintptr_t beyond = first + GRANULE - 1 > last ? first + GRANULE - 1 - last : 0;
    return !(found << beyond * 8) && !*(const uint8_t *)(last + shadow);
}

#define CHECK_OF(name)                                                                                                 \
    void name(const void *at, size_t size);                                                                            \
    __attribute__((visibility("default"))) void name(const void *at, size_t size) {                                    \
        if (is_open((uintptr_t)at, size))                                                                              \
            return;                                                                                                    \
        void (*own)(const void *, size_t);                                                                             \
        *(void **)&own = dlsym(RTLD_NEXT, #name);                                                                      \
        own(at, size);                                                                                                 \
    }
CHECK_OF(__asan_loadN)
CHECK_OF(__asan_storeN)
