/* grow.c - see py.h. The pointer is copied as bytes, because it is of the caller's type. */
#include "py/py.h"
#include <string.h>

bool py_grow(void *array, size_t size, size_t *capacity, size_t more, size_t item_bytes) {
    if (*capacity - size >= more)
        return true;
    const size_t by_half = *capacity + *capacity / 2 + 16, needed = size + more;
    const size_t n = needed < by_half ? by_half : needed;
    void *block;
    memcpy(&block, array, sizeof block);
    block = n <= PY_SSIZE_T_MAX / item_bytes ? PyMem_Realloc(block, n * item_bytes) : NULL;
    if (!block) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(array, &block, sizeof block);
    *capacity = n;
    return true;
}
