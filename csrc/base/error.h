/* error.h - one thread-local slot for the cause of the last failure.
 *  (1) A function that fails writes the slot once, through gm_fail; callers pass the status on.
 *  (2) gm_take_error (gomlx.h) reads and clears it. */
#ifndef GOMLX_BASE_ERROR_H
#define GOMLX_BASE_ERROR_H
#include "gomlx.h"

/* Stores {code, text} for this thread and returns code. The text says what failed, what was got and what was expected.
 */
gm_status gm_fail(gm_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* GM_ECONTEXT: there are `tokens` tokens, and the context holds `context`. */
gm_status gm_fail_context(int64_t tokens, int64_t context, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for a failed system call: appends strerror(errno) and keeps errno for OSError. Returns GM_EFILE. */
gm_status gm_fail_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The code in the slot without clearing it; GM_OK when the slot is empty. */
gm_status error_code(void);
/* Makes the stored text of GM_EBADFILE, GM_EUNSUPPORTED and GM_EMODEL begin with the file's name, if it does not yet.
 * Returns status. */
gm_status error_in_file(const char *file, gm_status status);
/* Stores a failure of another thread in this thread's slot. */
void error_restore(gm_status code, int os_errno, const char *text);

#define GM_TRY(call)                                                                                                   \
    do {                                                                                                               \
        gm_status status_ = (call);                                                                                    \
        if (status_ != GM_OK)                                                                                          \
            return status_;                                                                                            \
    } while (0)
#endif
