/* file.h - files mapped read-only, and files written whole: a temporary name first, then renamed.
 * A file that is cut short by another program while it is mapped is outside the contract (SIGBUS). */
#ifndef GOMLX_BASE_FILE_H
#define GOMLX_BASE_FILE_H
#include <stddef.h>
#include <stdint.h>
#include "gomlx.h"

typedef struct {
    const uint8_t *data;   /* NULL for an empty file */
    size_t size;
    char *path;
} gm_file;

/* GM_EFILE with errno when it cannot be opened; directories refused */
gm_status file_map(const char *path, gm_file *out);
void file_unmap(gm_file *file);                       /* safe on a zeroed struct */
void file_will_need(const gm_file *file, size_t offset, size_t bytes);   /* read ahead */
void file_done_with(const gm_file *file, size_t offset, size_t bytes);   /* drop the mapped pages */
/* Whole small file as NUL-terminated text (memory.h); refuses files above max_bytes. */
gm_status file_read(const char *path, size_t max_bytes, char **text, size_t *length);
#endif
