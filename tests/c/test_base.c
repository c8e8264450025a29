/* test_base.c - csrc/base without the file formats: errors, memory, names, JSON, files, the thread team.
 * Links csrc/base/{error,memory,grow,names,json,file,team}.c. Also meant for -fsanitize=address,undefined and =thread.
 */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/error.h"
#include "base/file.h"
#include "base/grow.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/names.h"
#include "base/team.h"
#include "check.h"

static void test_error(void) {
    gm_error e;
    CHECK(gm_take_error(&e) == GM_OK && e.code == GM_OK && e.text[0] == 0);
    CHECK(gm_fail(GM_EVALUE, "who: %d, expected %d", 3, 4) == GM_EVALUE);
    CHECK(error_code() == GM_EVALUE);
    CHECK_ERROR(error_code(), GM_EVALUE, "who: 3, expected 4");
    CHECK(error_code() == GM_OK);
    errno = ENOENT;
    CHECK(gm_fail_errno("cannot open %s", "x") == GM_EFILE);
    CHECK(gm_take_error(&e) == GM_EFILE && e.os_errno == ENOENT &&
          strcmp(e.text, "cannot open x: No such file or directory") == 0);
    error_restore(GM_ESTATE, 7, "from another thread");
    CHECK(gm_take_error(&e) == GM_ESTATE && e.os_errno == 7 && strcmp(e.text, "from another thread") == 0);
    /* A text that is too long is cut between characters, whatever the cut falls on. */
    for (int start = 0; start < 3; start++) {
        char text[3001];
        memset(text, 'a', 3);
        for (int i = start; i + 3 <= 3000; i += 3)
            memcpy(text + i, "\xE2\x82\xAC", 3);
        text[start + (3000 - start) / 3 * 3] = 0;
        gm_fail(GM_EVALUE, "%s", text);
        gm_take_error(&e);
        size_t n = strlen(e.text);
        CHECK(n > 1000 && n < sizeof e.text && strcmp(e.text + n - 3, "...") == 0 && (n - 3 - (size_t)start) % 3 == 0);
    }
}

static void test_memory(void) {
    CHECK(memory_array(SIZE_MAX / 2, 3) == NULL);
    CHECK_ERROR(error_code(), GM_ENOMEM, "more than can be addressed");
    CHECK(memory_reserve(SIZE_MAX) == NULL);
    CHECK_ERROR(error_code(), GM_ENOMEM, "bytes could not be allocated");
    void *empty = memory_new(0);
    CHECK(empty != NULL);
    memory_free(empty);
    char *text = memory_copy_text("abcdef", 3);
    CHECK(text && strcmp(text, "abc") == 0);
    text = memory_resize(text, 100);
    CHECK(text && strcmp(text, "abc") == 0);
    memory_free(text);
    void *aligned = memory_aligned(100, 256);
    CHECK(aligned && (uintptr_t)aligned % 256 == 0);
    memory_free(aligned);
    size_t room = (size_t)1 << 36;
    char *base = memory_reserve(room);
    CHECK(base != NULL);
    CHECK(memory_commit(base, 0, 10) == 0);
    base[9] = 1;
    CHECK(memory_commit(base, 10, 20000) == 0);
    base[19999] = 2;
    CHECK(base[9] == 1);
    memory_unreserve(base, room);
#ifdef GOMLX_FAULT_INJECTION
    memory_fail_at(2);
    void *first = memory_new(8), *second = memory_new(8), *third = memory_zeroed(8);
    CHECK(first && !second && third && memory_allocations() == 3);
    CHECK_ERROR(error_code(), GM_ENOMEM, "8 bytes");
    memory_free(first);
    memory_free(third);
    memory_fail_at(0);
#endif
}

static void test_grow(void) {
    typedef struct {
        int64_t n;
        char tag;
    } item;
    item *items = NULL;
    size_t size = 0, capacity = 0, moves = 0;
    for (; size < 1000; size++) {
        const size_t before = capacity;
        CHECK(grow_array(&items, size, &capacity, 1, sizeof *items) == GM_OK && capacity > size);
        moves += capacity != before;
        items[size] = (item){(int64_t)size, 'x'};
    }
    bool kept = true;
    for (size_t i = 0; i < size; i++)
        kept = kept && items[i].n == (int64_t)i && items[i].tag == 'x';
    CHECK(kept && moves < 20); /* by half each time */
    item *same = items;
    const size_t full = capacity;
    CHECK(grow_array(&items, size, &capacity, capacity - size, sizeof *items) == GM_OK && items == same);
    CHECK_ERROR(grow_array(&items, size, &capacity, SIZE_MAX / 2 / sizeof *items, sizeof *items), GM_ENOMEM,
                "more than can be addressed");
    CHECK(items == same && capacity == full);
    CHECK(grow_array(&items, size, &capacity, 5000, sizeof *items) == GM_OK && capacity >= size + 5000);
    CHECK(items[999].n == 999);
#ifdef GOMLX_FAULT_INJECTION
    const size_t grown = capacity;
    same = items;
    memory_fail_at(1);
    CHECK_ERROR(grow_array(&items, capacity, &capacity, 1, sizeof *items), GM_ENOMEM, "could not be allocated");
    CHECK(items == same && capacity == grown && items[0].tag == 'x');
    memory_fail_at(0);
#endif
    memory_free(items);
}

static void test_names(void) {
    enum { N = 3000 };
    static char text[N][24];
    name_table t = {0};
    int64_t earlier;
    CHECK(names_find(&t, "x", 1) == -1);
    for (int i = 0; i < N; i++) {
        int n = snprintf(text[i], sizeof text[i], "blk.%d.%.*s", i, i % 8, "weights");
        CHECK(names_add(&t, text[i], (size_t)n, i, &earlier) == GM_OK && earlier == -1);
    }
    int found = 0;
    for (int i = 0; i < N; i++)
        found += names_find(&t, text[i], strlen(text[i])) == i;
    CHECK(found == N);
    CHECK(names_add(&t, "blk.17.w", 8, 5, &earlier) == GM_OK && earlier == 17);
    CHECK(names_find(&t, "blk.17.w", 8) == 17 && names_find(&t, "blk.17.w", 7) == -1 && names_find(&t, "", 0) == -1);
    names_free(&t);
}

/* ---- JSON ---- */

static bool accepts(const char *text, size_t length) {
    json_reader r;
    json_token token;
    char *exact = malloc(length ? length : 1); /* so that a sanitizer sees a byte read too far */
    memcpy(exact, text, length);
    json_open(&r, exact, length, "t");
    do
        token = json_next(&r);
    while (token != JSON_END && token != JSON_ERROR);
    bool stays = json_next(&r) == token;
    free(exact);
    gm_error e;
    gm_status status = gm_take_error(&e);
    CHECK(stays && status == (token == JSON_END ? GM_OK : GM_EBADFILE));
    return token == JSON_END;
}

static void test_json_grammar(void) {
    static const char *const good[] = {
        "0",
        " -0 ",
        "-1.5e+10",
        "1E400",
        "[]",
        "{}",
        "[[],{},\"\",null,true,false]",
        "{\"a\":1,\"b\":[2,3]}",
        "\"\\u0000\\\"\\\\\\/\\b\\f\\n\\r\\t\\uD83D\\uDE00\\u20ac\"",
        "\"\x7F\"",
        "\"\xC2\x80\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\"",
        "\"\xF0\x90\x80\x80\xF4\x8F\xBF\xBF\"",
        "\t[1\r,\n2 ]\n",
        "{\"\":{\"\":[]}}",
        "\"0123456701234567\xC3\xA9tail\"",
    };
    static const char *const bad[] = {
        "",
        " ",
        "01",
        "-",
        "+1",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x1",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[",
        "]",
        "{",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\" 1}",
        "{1:2}",
        "[1}",
        "{\"a\":1]",
        "1 2",
        "nul",
        "nulll",
        "True",
        "NaN",
        "Infinity",
        "'a'",
        "\"",
        "\"abcdefghijkl",
        "\"\\\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\uD800\"",
        "\"\\uDC00\"",
        "\"\\uD800\\n\"",
        "\"\\uD800\\uD800\"",
        "\"a\nb\"",
        "\"\x1F\"",
        "\"\x80\"",
        "\"\xC0\xAF\"",
        "\"\xC3\"",
        "\"\xE2\x82\"",
        "\"\xE0\x9F\xBF\"",
        "\"\xED\xA0\x80\"",
        "\"\xF0\x8F\xBF\xBF\"",
        "\"\xF4\x90\x80\x80\"",
        "\"\xF5\x80\x80\x80\"",
        "\"\xFF\"",
        "\xEF\xBB\xBF[]",
        "/**/1",
        "\"01234567\x01\"",
        "\"0123456\xC3(\"",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (!accepts(good[i], strlen(good[i])))
            printf("refused: %s\n", good[i]);
        CHECK(accepts(good[i], strlen(good[i])));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (accepts(bad[i], strlen(bad[i])))
            printf("taken: %s\n", bad[i]);
        CHECK(!accepts(bad[i], strlen(bad[i])));
    }
    CHECK(!accepts("\"a\0b\"", 5) && !accepts("\"\\\0\"", 4) && !accepts("1\0", 2));
    char deep[2 * 200];
    for (size_t n = 127; n <= 130; n++) {
        memset(deep, '[', n);
        memset(deep + n, ']', n);
        CHECK(accepts(deep, 2 * n) == (n <= JSON_MAX_DEPTH));
    }
    /* A stop byte at each place of the eight that are looked at together. */
    int wrong = 0;
    for (size_t at = 0; at < 24; at++)
        for (int byte = 0; byte < 256; byte++) {
            char text[26];
            memset(text, 'x', sizeof text);
            text[0] = '"';
            text[25] = '"';
            text[at + 1] = (char)byte;
            bool plain = byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\';
            if (accepts(text, sizeof text) != plain) {
                printf("byte %02x at %zu\n", (unsigned)byte, at);
                wrong++;
            }
        }
    CHECK(wrong == 0);
}

static void test_json_values(void) {
    static const char text[] =
        "{\"a\\u0062\":\"x\\u20ac\\ud83d\\ude00\\u0000y\",\"n\":[-9223372036854775808,9223372036854775807,"
        "9223372036854775808,1.5,12],\"skip\":{\"a\":[1,{\"b\":2}]},\"z\":null}";
    json_reader r;
    int64_t value;
    size_t length;
    json_open(&r, text, sizeof text - 1, "file.json");
    CHECK(json_next(&r) == JSON_OBJECT && json_next(&r) == JSON_KEY);
    CHECK(json_is(&r, "ab") && !json_is(&r, "a") && !json_is(&r, "abc"));
    CHECK(json_next(&r) == JSON_STRING && json_string_length(&r) == 10);
    char *s = json_string_new(&r, &length);
    CHECK(s && length == 10 && memcmp(s, "x\xE2\x82\xAC\xF0\x9F\x98\x80\0y", 11) == 0);
    memory_free(s);
    CHECK(json_next(&r) == JSON_KEY && json_is(&r, "n") && json_expect(&r, JSON_ARRAY) == GM_OK);
    CHECK(json_next(&r) == JSON_NUMBER && json_int(&r, &value) == GM_OK && value == INT64_MIN);
    CHECK(json_next(&r) == JSON_NUMBER && json_int(&r, &value) == GM_OK && value == INT64_MAX);
    json_reader fork = r;
    CHECK(json_next(&fork) == JSON_NUMBER);
    CHECK_ERROR(json_int(&fork, &value), GM_EBADFILE, "does not fit in 64 bits");
    json_next(&r);
    fork = r;
    CHECK(json_next(&fork) == JSON_NUMBER);
    CHECK_ERROR(json_int(&fork, &value), GM_EBADFILE, "expected an integer");
    CHECK(json_next(&fork) == JSON_ERROR && json_skip(&fork) == GM_EBADFILE);
    json_next(&r);
    CHECK(json_next(&r) == JSON_NUMBER && json_int(&r, &value) == GM_OK && value == 12);
    CHECK(json_next(&r) == JSON_ARRAY_END && json_next(&r) == JSON_KEY && json_is(&r, "skip"));
    CHECK(json_skip(&r) == GM_OK && json_next(&r) == JSON_KEY && json_is(&r, "z"));
    char message[80];
    snprintf(message, sizeof message, "file.json: byte %d: null, expected a string",
             (int)(strstr(text, "null") - text));
    CHECK_ERROR(json_expect(&r, JSON_STRING), GM_EBADFILE, message);
    json_open(&r, "[{\"a\":[1,2],\"b\":{}},3]", 22, "t");
    CHECK(json_next(&r) == JSON_ARRAY && json_next(&r) == JSON_OBJECT && json_skip(&r) == GM_OK);
    CHECK(json_next(&r) == JSON_NUMBER && json_next(&r) == JSON_ARRAY_END && json_next(&r) == JSON_END);
}

static void test_json_doubles(void) {
    static const char *const texts[] = {
        "0",
        "-0",
        "1",
        "0.1",
        "-8.3747",
        "3.14159265358979",
        "1e22",
        "1e23",
        "123456789012345678",
        "9007199254740993",
        "1e-5",
        "4.9e-324",
        "1.7976931348623157e308",
        "2.2250738585072011e-308",
        "0.30000000000000004",
        "1E5",
        "1e-22",
        "5e-1",
        "100000000000000000000000000000000000000000000000000",
        "0.000000000000000000000000000000000000000000001",
        "1e-400",
    };
    setlocale(LC_ALL, "C");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_reader r;
        double got = NAN, want = strtod(texts[i], NULL);
        json_open(&r, texts[i], strlen(texts[i]), "t");
        CHECK(json_next(&r) == JSON_NUMBER && json_double(&r, &got) == GM_OK);
        CHECK(memcmp(&got, &want, sizeof got) == 0);
    }
    json_reader r;
    double got;
    json_open(&r, "1e400", 5, "t");
    CHECK(json_next(&r) == JSON_NUMBER);
    CHECK_ERROR(json_double(&r, &got), GM_EBADFILE, "too large");
}

/* ---- files ---- */

static void test_file(void) {
    char folder[] = "/tmp/gomlx-base-XXXXXX", path[64], pipe_path[64];
    gm_file f;
    gm_error e;
    char *text;
    size_t length;
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", folder);
    CHECK(file_map(path, &f) == GM_EFILE && gm_take_error(&e) == GM_EFILE && e.os_errno == ENOENT &&
          strstr(e.text, path));
    CHECK(file_map(folder, &f) == GM_EFILE && gm_take_error(&e) == GM_EFILE && e.os_errno == EISDIR &&
          strstr(e.text, folder));
    CHECK(mkfifo(pipe_path, 0600) == 0);
    CHECK_ERROR(file_map(pipe_path, &f), GM_EFILE, pipe_path);
    CHECK_ERROR(file_read("/dev/zero", 100, &text, &length), GM_EFILE, "/dev/zero");
    file_unmap(&f);
    FILE *out = fopen(path, "wb");
    CHECK(out != NULL);
    CHECK(file_map(path, &f) == GM_OK && f.size == 0 && f.data == NULL);
    file_will_need(&f, 0, 10);
    file_unmap(&f);
    for (int i = 0; i < 10000; i++)
        fputc(i % 251, out);
    fclose(out);
    CHECK(file_map(path, &f) == GM_OK && f.size == 10000 && f.data[9999] == 9999 % 251);
    file_will_need(&f, 5000, 100);
    file_will_need(&f, 9000, SIZE_MAX);
    file_will_need(&f, SIZE_MAX, 1);
    file_done_with(&f, 100, 9900);
    file_done_with(&f, SIZE_MAX - 5, 9);
    bool same = true;
    for (int i = 0; i < 10000; i++)
        same &= f.data[i] == i % 251;
    CHECK(same);
    file_unmap(&f);
    CHECK_ERROR(file_read(path, 9999, &text, &length), GM_EBADFILE, "expected at most 9999");
    CHECK(file_read(path, 10000, &text, &length) == GM_OK && length == 10000 && text[10000] == 0 &&
          text[250] == (char)250);
    memory_free(text);
    unlink(path);
    unlink(pipe_path);
    rmdir(folder);
}

/* ---- the team ---- */

#define TEAM_STEPS 50

typedef struct {
    team_gate gates[2 * TEAM_STEPS];
    _Atomic int arrived;
    int written[TEAM_MAX_THREADS]; /* plain memory: the gates and the join must order it */
    int faults;
} team_work;

static void meet(team_gate *gate) {
    team_gate_done(gate, 1);
    team_gate_wait(gate);
}

static void close_gates(team_work *w, int n_threads) {
    for (int i = 0; i < 2 * TEAM_STEPS; i++)
        w->gates[i].left = (uint32_t)n_threads;
}

/* Each step: every thread writes its cell, all meet, every thread reads all cells, all meet again. */
static void step_together(void *context, int thread, int n_threads) {
    team_work *w = context;
    int faults = 0;
    for (int step = 1; step <= TEAM_STEPS; step++) {
        w->written[thread] = step;
        meet(&w->gates[2 * step - 2]);
        for (int i = 0; i < n_threads; i++)
            faults += w->written[i] != step;
        meet(&w->gates[2 * step - 1]);
    }
    if (thread == 0)
        w->faults += faults;
    w->arrived += n_threads + (faults ? 1000000 : 0);
}

static bool run_team(team_work *w, int n_threads) {
    w->arrived = 0;
    close_gates(w, n_threads);
    int n = team_start(n_threads, step_together, w);
    step_together(w, 0, n);
    team_join();
    return n == n_threads && w->arrived == n * n && w->faults == 0;
}

static void nap(long ns) { nanosleep(&(struct timespec){.tv_nsec = ns}, NULL); }

static void test_team(void) {
    static team_work w;
    bool all = true;
    for (int i = 0; i < 400; i++) {
        all &= run_team(&w, 2);
        if (i % 40 == 0)
            nap(200000); /* long enough for the workers to fall asleep */
    }
    for (int i = 0; i < 40; i++)
        all &= run_team(&w, 1 + i % 5);
    CHECK(all);
    CHECK(run_team(&w, 1) && !team_lost());
    CHECK(team_default_threads() >= 1 && team_default_threads() <= TEAM_MAX_THREADS);
    CHECK(atoi(team_default_reason()) == team_default_threads() && strstr(team_default_reason(), "= min(affinity "));
    struct timespec cpu;
    nap(5000000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    int64_t before = cpu.tv_sec * 1000000000L + cpu.tv_nsec;
    nap(100000000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    CHECK(cpu.tv_sec * 1000000000L + cpu.tv_nsec - before <
          50000000); /* idle workers sleep: a spinning one takes 100 ms */
}

#if defined(__SANITIZE_THREAD__)
#define FORKS 0 /* ThreadSanitizer does not follow threads made after a fork */
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FORKS 0
#endif
#endif
#ifndef FORKS
#define FORKS 20
#endif

static int child_result(pid_t child) {
    int status = -1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_team_fork(void) {
    static team_work w;
    for (int i = 0; i < FORKS; i++) {
        CHECK(run_team(&w, 3));
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            _exit(run_team(&w, 3) && run_team(&w, 2) ? 0 : 1);
        }
        CHECK(run_team(&w, 3));
        CHECK(child_result(child) == 0);
    }
    for (int i = 0; i < FORKS; i++) { /* inside a run: the child gives the run up and starts another */
        w.arrived = 0;
        close_gates(&w, 3);
        int n = team_start(3, step_together, &w);
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            team_gate_wait(&w.gates[0]);
            bool lost = team_lost();
            team_join();
            memset(&w, 0, sizeof w);
            _exit(lost && run_team(&w, 3) && !team_lost() ? 0 : 1);
        }
        step_together(&w, 0, n);
        team_join();
        CHECK(w.arrived == n * n && w.faults == 0 && !team_lost());
        CHECK(child_result(child) == 0);
    }
}

int main(void) {
    test_error();
    test_memory();
    test_grow();
    test_names();
    test_json_grammar();
    test_json_values();
    test_json_doubles();
    test_file();
    test_team();
    test_team_fork();
    return check_summary();
}
