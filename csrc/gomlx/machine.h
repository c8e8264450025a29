/* machine.h - the processor, and memory in bytes: a chapter of gomlx.h. */
#ifndef GOMLX_MACHINE_H
#define GOMLX_MACHINE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "gomlx/arrays.h"

/* ---- machine ---- */
/* selects the kernels (GOMLX_ISA); every other call needs it once; thread-safe */
gm_status gm_init(void);
const char *gm_isa(void); /* "avx512vnni" */
const char *gm_isa_reason(void);
bool gm_multiplies_bfloat16(void); /* the instruction set does: then it is what models do by default */
int gm_default_threads(void);
const char *gm_default_threads_reason(void);
gm_status gm_set_threads(int n); /* for array evaluation; models have their own number */

/* ---- memory: bytes ---- */
size_t gm_active_memory(void);
size_t gm_peak_memory(void);
size_t gm_cache_memory(void);
size_t gm_promised_memory(void);          /* that loaded models take before their second pass: not active yet */
void gm_reset_peak_memory(void);          /* to 0: the next allocation makes it what is active then */
size_t gm_set_memory_limit(size_t bytes); /* returns the old one; an allocation above it is GM_ENOMEM */
size_t gm_memory_limit(void);
size_t gm_set_cache_limit(size_t bytes);
/* From true to false, which are counted, what is freed is kept for reuse beyond that limit, as long as it and what is
 * active are no more than was active at once in that time, and an eighth: for work that takes the same memory again and
 * again. */
void gm_keep_memory(bool keep);
/* Bytes of the memory behind an evaluated array, which other arrays may share: *identity tells which it is. */
size_t gm_array_memory(const gm_array *array, const void **identity);
void gm_clear_cache(void);
#endif
