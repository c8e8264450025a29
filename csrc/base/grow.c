/* grow.c - see grow.h. The pointer is copied as bytes, because it is of the caller's type. */
#include "base/grow.h"
#include <stdint.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"

gm_status grow_array_now(void *array, size_t size, size_t *capacity, size_t more, size_t item_bytes) {
    if (more > SIZE_MAX / 2 / item_bytes - size)
        return gm_fail(GM_ENOMEM, "out of memory: %zu + %zu items of %zu bytes are more than can be addressed", size,
                       more, item_bytes);
    const size_t by_half = *capacity + *capacity / 2 + 16, needed = size + more;
    const size_t n = needed < by_half ? by_half : needed;
    void *block;
    memcpy(&block, array, sizeof block);
    block = memory_resize(block, n * item_bytes);
    if (!block)
        return GM_ENOMEM;
    memcpy(array, &block, sizeof block);
    *capacity = n;
    return GM_OK;
}
