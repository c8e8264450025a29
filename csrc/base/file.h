/* file.h - files that are mapped read-only, and files that are written under a temporary name and then renamed.
 * A file that is cut short by another program while it is mapped is outside the contract (SIGBUS). */
#ifndef GOMLX_BASE_FILE_H
#define GOMLX_BASE_FILE_H
#include <stddef.h>
#include <stdint.h>
#include "gomlx.h"

typedef struct {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
    char *path;
    int64_t device, inode, changed_ns; /* when it was mapped */
} gm_file;

/* GM_EFILE with errno when it cannot be opened or is not a regular file */
gm_status file_map(const char *path, gm_file *out);
void file_unmap(gm_file *file); /* safe on a zeroed struct */
/* GM_ESTATE when the file was written to since it was mapped. A file that was deleted or replaced under its name is
 * still mapped unchanged. */
gm_status file_check_unchanged(const gm_file *file);
void file_will_need(const gm_file *file, size_t offset, size_t bytes); /* read ahead */
void file_done_with(const gm_file *file, size_t offset, size_t bytes); /* drop the mapped pages */
/* A file that is written under a temporary name in its folder and renamed at the end, so that no reader sees half of it
 * and an older file stays until then. A path that is not a regular file (a pipe, a terminal) is written to
 * directly. */
typedef struct {
    int fd;
    char *path, *temporary;
    uint8_t *buffer;
    size_t used;
} gm_file_writer;
gm_status file_create(const char *path, gm_file_writer *out);
gm_status file_write(gm_file_writer *w, const void *bytes, size_t size);
gm_status file_commit(gm_file_writer *w); /* the writer is closed, also on failure */
void file_discard(gm_file_writer *w);     /* safe after commit */
/* A whole file as NUL-terminated text (memory.h); a file of more than max_bytes is GM_EBADFILE. */
gm_status file_read(const char *path, size_t max_bytes, char **text, size_t *length);
#endif
