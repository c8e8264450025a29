/* buffer.c - the growth of arrays: by half, so that n appends cost O(n). */
#include "text/buffer.h"

gm_status buffer_grow(void **data, size_t size, size_t *capacity, size_t more, size_t item_bytes) {
    if (more > SIZE_MAX / 2 / item_bytes - size)
        return gm_fail(GM_ENOMEM, "tokenizer: a buffer of %zu + %zu items does not fit in memory", size, more);
    size_t wanted = size + more, grown = *capacity + *capacity / 2 + 16;
    if (wanted < grown)
        wanted = grown;
    void *block = memory_resize(*data, wanted * item_bytes);
    if (!block)
        return GM_ENOMEM;
    *data = block;
    *capacity = wanted;
    return GM_OK;
}
