/* check.h - counts what held and what did not. A test program ends with `return check_summary();`. */
#ifndef GOMLX_TESTS_CHECK_H
#define GOMLX_TESTS_CHECK_H
#include <stdio.h>
#include <string.h>
#include "gomlx.h"

static int check_passed, check_failed;

static inline void check_one(bool held, const char *file, int line, const char *what) {
    if (held) {
        check_passed++;
        return;
    }
    check_failed++;
    printf("%s:%d: %s\n", file, line, what);
}
#define CHECK(condition) check_one((condition), __FILE__, __LINE__, #condition)

/* The call fails with this code, and the message holds this text. */
static inline void check_error(gm_status got, gm_status code, const char *text, const char *file, int line) {
    gm_error e;
    gm_take_error(&e);
    if (got == code && e.code == code && strstr(e.text, text)) {
        check_passed++;
        return;
    }
    check_failed++;
    printf("%s:%d: status %d, error %d \"%s\", expected %d and \"%s\"\n", file, line, (int)got, (int)e.code, e.text,
           (int)code, text);
}
#define CHECK_ERROR(call, code, text) check_error((call), (code), (text), __FILE__, __LINE__)

static inline int check_summary(void) {
    printf("%d passed, %d failed\n", check_passed, check_failed);
    return check_failed != 0;
}
#endif
