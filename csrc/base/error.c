/* error.c - the calling thread's slot for the cause of the last failure. */
#include "base/error.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local gm_error slot;

/* Stores a text. One that is too long is cut between UTF-8 characters and ends in "...". */
static void store(gm_status code, int os_errno, const char *text) {
    size_t length = strlen(text), most = sizeof slot.text - 1;
    slot.code = code;
    slot.os_errno = os_errno;
    slot.tokens = slot.context = 0;
    if (length <= most) {
        memcpy(slot.text, text, length + 1);
        return;
    }
    size_t kept = most - 3;
    while (kept > 0 && ((unsigned char)text[kept] & 0xC0) == 0x80)
        kept--;
    memcpy(slot.text, text, kept);
    memcpy(slot.text + kept, "...", 4);
}

gm_status gm_fail(gm_status code, const char *format, ...) {
    char text[sizeof slot.text + 64];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    store(code, 0, text);
    return code;
}

gm_status gm_fail_context(int64_t tokens, int64_t context, const char *format, ...) {
    char text[sizeof slot.text + 64];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    store(GM_ECONTEXT, 0, text);
    slot.tokens = tokens;
    slot.context = context;
    return GM_ECONTEXT;
}

gm_status gm_fail_errno(const char *format, ...) {
    int os_errno = errno;
    char text[sizeof slot.text + 64], reason[128];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length >= 0 && (size_t)length < sizeof text)
        snprintf(text + length, sizeof text - (size_t)length, ": %s", strerror_r(os_errno, reason, sizeof reason));
    store(GM_EFILE, os_errno, text);
    return GM_EFILE;
}

gm_status error_code(void) { return slot.code; }

void error_restore(gm_status code, int os_errno, const char *text) { store(code, os_errno, text); }

gm_status error_in_file(const char *file, gm_status status) {
    char text[sizeof slot.text];
    const bool of_file = status == GM_EBADFILE || status == GM_EUNSUPPORTED || status == GM_EMODEL;
    if (of_file && strncmp(slot.text, file, strlen(file)) != 0) {
        memcpy(text, slot.text, sizeof text);
        gm_fail(status, "%s: %s", file, text);
    }
    return status;
}

gm_status gm_take_error(gm_error *out) {
    gm_status code = slot.code;
    *out = slot;
    slot = (gm_error){.code = GM_OK};
    return code;
}
