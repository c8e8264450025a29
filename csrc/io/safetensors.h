/* safetensors.h - one .safetensors file opened and checked: its tensors by name, views of the mapping. */
#ifndef GOMLX_IO_SAFETENSORS_H
#define GOMLX_IO_SAFETENSORS_H
#include "io/checkpoint.h"

typedef struct safetensors safetensors;
gm_status safetensors_open(const char *path, safetensors **out);
void safetensors_close(safetensors *s); /* NULL is fine */
const gm_file *safetensors_file(const safetensors *s);
int64_t safetensors_count(const safetensors *s);
const gm_tensor *safetensors_at(const safetensors *s, int64_t i); /* in the header's order; `file` is 0 */
#endif
