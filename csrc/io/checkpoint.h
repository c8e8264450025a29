/* checkpoint.h - the tensors of a model on disk, by name: a GGUF file (split ones joined) or safetensors (sharded ones
 * joined). Tensors are views of read-only mappings; every extent is checked when the files are opened. */
#ifndef GOMLX_IO_CHECKPOINT_H
#define GOMLX_IO_CHECKPOINT_H
#include "base/file.h"
#include "base/gguf.h"

typedef struct {
    const char *name; /* NUL-terminated, as in the file */
    const char *type; /* "BF16", "Q4_K", "I64", "IQ4_XS": its name in the file */
    int format;       /* gm_quant, or -1 for a type without kernels */
    int ndim;
    int64_t shape[8]; /* row-major, the contiguous dimension last */
    const uint8_t *data;
    size_t bytes;
    int file; /* index of the checkpoint's file */
} gm_tensor;

typedef struct gm_checkpoint gm_checkpoint;
/* path: a .gguf file (the first of "x-00001-of-0000N.gguf"), one .safetensors file, or a folder. In a folder:
 * model.safetensors.index.json names the files if it exists; else model*.safetensors; else all *.safetensors but
 * adapter* and consolidated*. Errors name the file, the tensor, what it has and what was expected. */
gm_status checkpoint_open(const char *path, gm_checkpoint **out);
void checkpoint_close(gm_checkpoint *c);
int64_t checkpoint_count(const gm_checkpoint *c);
const gm_tensor *checkpoint_at(const gm_checkpoint *c, int64_t i);
const gm_tensor *checkpoint_find(const gm_checkpoint *c, const char *name); /* NULL when absent */
const gguf *checkpoint_gguf(const gm_checkpoint *c);                        /* metadata; NULL for safetensors */
/* Paging hints before and after a tensor is used. */
void checkpoint_will_need(const gm_checkpoint *c, const gm_tensor *t);
void checkpoint_done_with(const gm_checkpoint *c, const gm_tensor *t);
gm_status checkpoint_check_unchanged(const gm_checkpoint *c); /* GM_ESTATE: a file was written to */
#endif
