/* memory.h - every host allocation of the engine goes through here, so that tests can make each one fail in turn.
 * All return NULL with GM_ENOMEM in the error slot. Sizes are checked for overflow by the *_array forms. */
#ifndef GOMLX_BASE_MEMORY_H
#define GOMLX_BASE_MEMORY_H
#include <stddef.h>

void *memory_new(size_t bytes);                      /* uninitialised, malloc alignment */
void *memory_zeroed(size_t bytes);                   /* zero-filled */
void *memory_array(size_t count, size_t item_bytes); /* count * item_bytes, uninitialised */
void *memory_resize(void *block, size_t bytes);      /* realloc; the block stays valid on failure */
void memory_free(void *block);
char *memory_copy_text(const char *text, size_t length); /* NUL-terminated copy */
void *memory_aligned(size_t bytes, size_t alignment);    /* for small tables; free with memory_free */
/* A table for random access: zero-filled, and in large pages where the system has them, so that a lookup costs one miss
 * and not two. */
void *memory_table(size_t bytes);
void memory_table_free(void *table, size_t bytes);
/* Requests large pages, which cost fewer faults, for a block that will be written from end to end. */
void memory_expect(void *block, size_t bytes);

/* Reserves address space without memory; memory_commit makes [0, bytes) usable (rounded up to pages; it never
 * shrinks). */
void *memory_reserve(size_t bytes);
int memory_commit(void *base, size_t committed, size_t bytes); /* 0 or -1 with the error slot set */
void memory_unreserve(void *base, size_t bytes);

/* Tests only (compiled in when GOMLX_FAULT_INJECTION is defined): the n-th allocation from now fails; 0 = none. */
void memory_fail_at(long n);
long memory_allocations(void); /* allocations since memory_fail_at */
#endif
