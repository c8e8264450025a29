/* file.c - files mapped read-only or read whole. Regular files only: a pipe has no size to check against. */
#include "base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <stdatomic.h>
#include <stdio.h>
#include "base/error.h"
#include "base/memory.h"

/* O_NONBLOCK: opening a pipe without a writer would block for ever. */
static gm_status open_regular(const char *path, int *fd, struct stat *st) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return gm_fail_errno("cannot open %s", path);
    int fault = fstat(*fd, st) != 0 ? errno : S_ISDIR(st->st_mode) ? EISDIR : S_ISREG(st->st_mode) ? 0 : ESPIPE;
    if (fault == 0)
        return GM_OK;
    close(*fd);
    errno = fault;
    return gm_fail_errno("cannot read %s as a regular file", path);
}

#if defined(__APPLE__)
#define st_mtim st_mtimespec
#endif
static int64_t changed_ns(const struct stat *st) {
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

gm_status file_map(const char *path, gm_file *out) {
    int fd;
    struct stat st;
    *out = (gm_file){0};
    GM_TRY(open_regular(path, &fd, &st));
    const size_t size = (size_t)st.st_size;
    char *name = memory_copy_text(path, strlen(path));
    if (!name) {
        close(fd);
        return GM_ENOMEM;
    }
    void *data = size ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    int fault = errno;
    close(fd);
    if (data == MAP_FAILED) {
        memory_free(name);
        errno = fault;
        return gm_fail_errno("cannot map %s (%zu bytes)", path, size);
    }
    *out = (gm_file){.data = data,
                     .size = size,
                     .path = name,
                     .device = (int64_t)st.st_dev,
                     .inode = (int64_t)st.st_ino,
                     .changed_ns = changed_ns(&st)};
    return GM_OK;
}

gm_status file_check_unchanged(const gm_file *file) {
    struct stat st;
    if (stat(file->path, &st) != 0 || (int64_t)st.st_dev != file->device || (int64_t)st.st_ino != file->inode)
        return GM_OK;
    if ((size_t)st.st_size == file->size && changed_ns(&st) == file->changed_ns)
        return GM_OK;
    return gm_fail(GM_ESTATE, "%s was changed since it was opened: load the model again", file->path);
}

void file_unmap(gm_file *file) {
    if (file->data)
        munmap((void *)(uintptr_t)file->data, file->size);
    memory_free(file->path);
    *file = (gm_file){0};
}

/* Advises the system about [begin, end) of the mapping. A refusal changes nothing. */
static void advise(const gm_file *file, size_t begin, size_t end, int advice) {
    if (begin < end)
        madvise((void *)(uintptr_t)(file->data + begin), end - begin, advice);
}

static size_t end_of(const gm_file *file, size_t offset, size_t bytes) {
    if (offset > file->size)
        return file->size;
    return bytes > file->size - offset ? file->size : offset + bytes;
}

/* Advises about every page that overlaps the range. */
void file_will_need(const gm_file *file, size_t offset, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    advise(file, offset & ~(page - 1), end_of(file, offset, bytes), MADV_WILLNEED);
}

/* Advises about the pages that hold nothing but the range. The file's last page ends with the file. */
void file_done_with(const gm_file *file, size_t offset, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), end = end_of(file, offset, bytes);
    if (offset > file->size)
        return;
    advise(file, (offset + page - 1) & ~(page - 1), end == file->size ? end : end & ~(page - 1), MADV_DONTNEED);
}

static gm_status read_all(int fd, const char *path, char *text, size_t size, size_t *length) {
    *length = 0;
    while (*length < size) {
        ssize_t n = read(fd, text + *length, size - *length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return gm_fail_errno("cannot read %s", path);
        if (n == 0)
            break;
        *length += (size_t)n;
    }
    text[*length] = 0;
    return GM_OK;
}

gm_status file_read(const char *path, size_t max_bytes, char **text, size_t *length) {
    int fd;
    struct stat st;
    size_t got;
    *text = NULL;
    GM_TRY(open_regular(path, &fd, &st));
    const size_t size = (size_t)st.st_size;
    if (size > max_bytes) {
        close(fd);
        return gm_fail(GM_EBADFILE, "%s: the file has %zu bytes, expected at most %zu", path, size, max_bytes);
    }
    char *block = memory_new(size + 1);
    gm_status status = block ? read_all(fd, path, block, size, &got) : GM_ENOMEM;
    close(fd);
    if (status != GM_OK) {
        memory_free(block);
        return status;
    }
    *text = block;
    if (length)
        *length = got;
    return GM_OK;
}

/* ---- writing ---- */
#define WRITER_BUFFER ((size_t)64 << 10)

static bool is_special(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

gm_status file_create(const char *path, gm_file_writer *out) {
    static _Atomic unsigned count;
    const size_t name_bytes = strlen(path) + 48;
    *out = (gm_file_writer){.fd = -1};
    out->path = memory_copy_text(path, strlen(path));
    out->temporary = out->path ? memory_new(name_bytes) : NULL;
    out->buffer = out->temporary ? memory_new(WRITER_BUFFER) : NULL;
    if (!out->buffer) {
        file_discard(out);
        return GM_ENOMEM;
    }
    if (is_special(path)) {
        out->temporary[0] = 0;
        out->fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        snprintf(out->temporary, name_bytes, "%s.%ld-%u.part", path, (long)getpid(), atomic_fetch_add(&count, 1));
        out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    if (out->fd < 0) {
        out->temporary[0] = 0;
        gm_status status = gm_fail_errno("cannot write %s", path);
        file_discard(out);
        return status;
    }
    return GM_OK;
}

static gm_status write_all(gm_file_writer *w, const uint8_t *bytes, size_t size) {
    while (size) {
        ssize_t n = write(w->fd, bytes, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return gm_fail_errno("cannot write %s", w->path);
        bytes += n;
        size -= (size_t)n;
    }
    return GM_OK;
}

gm_status file_write(gm_file_writer *w, const void *bytes, size_t size) {
    if (w->used + size > WRITER_BUFFER) {
        GM_TRY(write_all(w, w->buffer, w->used));
        w->used = 0;
    }
    if (size > WRITER_BUFFER)
        return write_all(w, bytes, size);
    memcpy(w->buffer + w->used, bytes, size);
    w->used += size;
    return GM_OK;
}

gm_status file_commit(gm_file_writer *w) {
    gm_status status = write_all(w, w->buffer, w->used);
    if (close(w->fd) != 0 && status == GM_OK)
        status = gm_fail_errno("cannot write %s", w->path);
    w->fd = -1;
    if (status == GM_OK && w->temporary[0]) {
        if (rename(w->temporary, w->path) == 0)
            w->temporary[0] = 0;
        else
            status = gm_fail_errno("cannot rename %s to %s", w->temporary, w->path);
    }
    file_discard(w);
    return status;
}

void file_discard(gm_file_writer *w) {
    if (w->fd >= 0)
        close(w->fd);
    if (w->temporary && w->temporary[0])
        unlink(w->temporary);
    memory_free(w->path);
    memory_free(w->temporary);
    memory_free(w->buffer);
    *w = (gm_file_writer){.fd = -1};
}
