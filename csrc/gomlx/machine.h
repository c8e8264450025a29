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

/* ---- devices: 0 is the processor, 1 + i is GPU i ---- */
int gm_device_count(const char **why); /* of GPUs; *why: what is to be done where there are none. why may be NULL */
gm_status gm_device_open(int number);  /* GM_EVALUE: there is none of that number; GM_EDEVICE: it cannot be used */
int gm_device_current(void);           /* of operations that this thread asks for */
int gm_device_enter(int number);       /* makes it another one that is open; -1: the process's default. Returns what
                                        * it was, for going back */
typedef struct {
    char name[128], architecture[32], driver[64], kernels[256], libraries[256];
    size_t memory, free; /* bytes of the card */
} gm_device_info;
gm_status gm_device_describe(int number, gm_device_info *out); /* of the processor: nothing */
int gm_device_ordinal(int number); /* by which other libraries of the process know it; it opens no device */
/* GM_AGAIN until all that gomlx asked the card for is done. */
gm_status gm_device_idle(int number);
gm_status gm_device_settle(int number); /* until all that the card was asked for is done, by other libraries too */
/* Operations that a GPU has not and that ran on the processor in its place: the i-th one's name, and how often; NULL
 * after the last. */
const char *gm_device_fallback(int i, int64_t *count);
typedef struct { size_t active, peak, cache, limit, cache_limit; } gm_memory;
gm_memory gm_device_memory(int number);                     /* all 0 of a device that is not open */
size_t gm_device_set_limit(int number, size_t bytes);       /* as gm_set_memory_limit */
size_t gm_device_set_cache_limit(int number, size_t bytes); /* as gm_set_cache_limit */
void gm_device_reset_peak(int number);
void gm_device_clear_cache(int number);

/* ---- memory of the processor: bytes ---- */
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
