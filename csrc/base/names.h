/* names.h - a table from names to numbers, for names that come from files.
 *  (1) Names are borrowed: they must live as long as the table.
 *  (2) The hash has a random seed, so that no file can be made whose names collide. */
#ifndef GOMLX_BASE_NAMES_H
#define GOMLX_BASE_NAMES_H
#include <stddef.h>
#include <stdint.h>
#include "gomlx.h"

typedef struct {
    const char *text;
    size_t length;
    int64_t number;
} name_slot;

typedef struct {
    name_slot *slots;       /* text NULL: free */
    size_t capacity, count; /* capacity: a power of two, at least twice count */
    uint64_t seed;
} name_table; /* zero-initialise */

/* Adds a name, and *earlier is -1. If it is there already, nothing changes and *earlier is its number. */
gm_status names_add(name_table *t, const char *text, size_t length, int64_t number, int64_t *earlier);
int64_t names_find(const name_table *t, const char *text, size_t length); /* -1 when absent */
void names_free(name_table *t);
#endif
