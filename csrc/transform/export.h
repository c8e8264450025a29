/* export.h - the file of an exported function, as export.c writes it and import.c reads it.
 *
 *   head      8 bytes EXPORT_MAGIC, uint32 version, uint32 catalogue, uint32 shapeless, uint32 0
 *   sections  uint32 tag, uint32 0, uint64 bytes, the bytes
 *   tail      uint32 EXPORT_END, uint32 0, uint64 bytes of the whole file, uint64 checksum of all before the checksum
 *
 * All numbers are little-endian, as the machines that this engine runs on are. Sections come in any order, what is
 * referred to before what refers to it. Operations and constants are numbered as they come. */
#ifndef GOMLX_TRANSFORM_EXPORT_H
#define GOMLX_TRANSFORM_EXPORT_H
#include "transform/compile.h"

#define EXPORT_MAGIC "GOMLXFN\n"
#define EXPORT_VERSION 1u

typedef enum {
    EXPORT_METADATA = 1, /* text */
    EXPORT_OP,           /* uint64 layout of its parameters, its name */
    EXPORT_CONSTANT,     /* a shape (below), the elements */
    EXPORT_TRACE,        /* counts and items of inputs, code, outputs */
    EXPORT_END,
} export_tag;
/* A shape: uint32 dtype, uint32 ndim, int64 sizes. A trace:
 *   uint32 n_inputs; each: a shape, uint32 bytes of its name (0: positional), the name
 *   uint32 n_code;   each: uint32 op, n_in, n_out, bytes of parameters; int32 operands; the parameters
 *   uint32 n_outputs; int32 operands
 * An operand is a value's number (inputs first, then results as they come), -1 - number of a constant, or EXPORT_NONE
 * for an optional input that is absent. */
#define EXPORT_NONE INT32_MIN

typedef struct {
    uint64_t state;
    uint8_t rest[8];
    size_t n_rest;
} export_checksum; /* zeroed: of nothing */
void export_sum(export_checksum *c, const void *bytes, size_t n);
uint64_t export_sum_end(const export_checksum *c);

/* Numbers that change when the tables do by which parameters name functions. */
uint32_t export_catalogue(void);
uint64_t export_layout(const gm_op *op);
#endif
