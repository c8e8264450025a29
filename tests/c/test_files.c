/* test_files.c - GGUF and safetensors files, and checkpoints of them: what is read, and how what is wrong is refused.
 * Links csrc/base/{error,memory,names,json,file,gguf}.c, csrc/io/{safetensors,checkpoint}.c and kernels/quants.c.
 * Also meant for -fsanitize=address,undefined, with GOMLX_FAULT_INJECTION. */
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/gguf.h"
#include "base/memory.h"
#include "check.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"
#include "quants.h"

/* ---- bytes of a file in the making ---- */

typedef struct {
    uint8_t data[4096];
    size_t size;
} bytes;

static void put(bytes *b, const void *data, size_t size) {
    memcpy(b->data + b->size, data, size);
    b->size += size;
}
static void put_u32(bytes *b, uint32_t v) { put(b, &v, 4); }
static void put_u64(bytes *b, uint64_t v) { put(b, &v, 8); }
static void put_text(bytes *b, const char *text) {
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}
static void put_zeros(bytes *b, size_t n) {
    memset(b->data + b->size, 0, n);
    b->size += n;
}
static void align_to(bytes *b, size_t alignment) { put_zeros(b, (alignment - b->size % alignment) % alignment); }

static char folder[] = "/tmp/gomlx-files-XXXXXX";

static const char *path_of(const char *name) {
    static char path[4][300];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static const char *write_file(const char *name, const void *data, size_t size) {
    const char *path = path_of(name);
    FILE *f = fopen(path, "wb");
    bool written = f && fwrite(data, 1, size, f) == size;
    CHECK(f && fclose(f) == 0 && written);
    return path;
}

static void remove_file(const char *name) { unlink(path_of(name)); }

/* ---- GGUF ---- */

static void gguf_header(bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_entries) {
    b->size = 0;
    put(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_entries);
}

static void put_tensor(bytes *b, const char *name, uint32_t type, uint64_t offset, int n_dims, const int64_t *ne) {
    put_text(b, name);
    put_u32(b, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++)
        put_u64(b, (uint64_t)ne[i]);
    put_u32(b, type);
    put_u64(b, offset);
}

static void put_int_entry(bytes *b, const char *key, uint32_t value) {
    put_text(b, key);
    put_u32(b, GGUF_U32);
    put_u32(b, value);
}

/* Three tensors and one metadata entry of each kind. */
static void sample_gguf(bytes *b, uint32_t version) {
    float f = 1.5f;
    double d = 2.5;
    gguf_header(b, version, 3, 9);
    put_text(b, "general.architecture"), put_u32(b, GGUF_STRING), put_text(b, "llama");
    put_int_entry(b, "general.alignment", 64);
    put_text(b, "a.i8"), put_u32(b, GGUF_I8), put(b, "\xFE", 1);
    put_text(b, "a.u64"), put_u32(b, GGUF_U64), put_u64(b, UINT64_MAX);
    put_text(b, "a.f32"), put_u32(b, GGUF_F32), put(b, &f, 4);
    put_text(b, "a.f64"), put_u32(b, GGUF_F64), put(b, &d, 8);
    put_text(b, "a.bool"), put_u32(b, GGUF_BOOL), put(b, "\1", 1);
    put_text(b, "a.strings"), put_u32(b, GGUF_ARRAY), put_u32(b, GGUF_STRING), put_u64(b, 3);
    put_text(b, "one"), put_text(b, ""), put_text(b, "three");
    put_text(b, "a.numbers"), put_u32(b, GGUF_ARRAY), put_u32(b, GGUF_I16), put_u64(b, 2), put(b, "\1\0\xFF\xFF", 4);
    put_tensor(b, "dense", 0, 0, 2, (int64_t[]){3, 2});
    put_tensor(b, "packed", 8, 64, 3, (int64_t[]){64, 2, 1});
    put_tensor(b, "strange", 9999, 256, 1, (int64_t[]){5});
    align_to(b, 64);
    for (int i = 0; i < 256; i++)
        put(b, &(uint8_t){(uint8_t)i}, 1);
}

static void test_gguf_reading(uint32_t version) {
    bytes b;
    gguf *g;
    int64_t i = -7;
    double d = 0;
    bool flag = false, found = true;
    gguf_string s;
    sample_gguf(&b, version);
    const char *path = write_file("sample.gguf", b.data, b.size);
    CHECK(gguf_open(path, &g) == GM_OK);
    if (!g)
        return;
    CHECK(gguf_n_entries(g) == 9 && gguf_n_tensors(g) == 3 && strcmp(gguf_file(g)->path, path) == 0);
    CHECK(gguf_get_string(g, "general.architecture", &s, NULL) == GM_OK && s.length == 5 &&
          memcmp(s.text, "llama", 5) == 0);
    CHECK(gguf_get_int(g, "a.i8", &i, &found) == GM_OK && i == -2 && found);
    CHECK(gguf_get_int(g, "absent", &i, &found) == GM_OK && i == -2 && !found);
    CHECK_ERROR(gguf_get_int(g, "a.u64", &i, NULL), GM_EBADFILE,
                "a.u64 is 18446744073709551615, expected less than 2**63");
    CHECK_ERROR(gguf_get_int(g, "a.f32", &i, NULL), GM_EBADFILE, "a.f32 is of type f32, expected an integer");
    CHECK_ERROR(gguf_get_int(g, "a.bool", &i, NULL), GM_EBADFILE, "a.bool is of type bool, expected an integer");
    CHECK_ERROR(gguf_get_int(g, "a.numbers", &i, NULL), GM_EBADFILE,
                "a.numbers is of type array of i16, expected an integer");
    CHECK(gguf_get_float(g, "a.f32", &d, NULL) == GM_OK && d == 1.5);
    CHECK(gguf_get_float(g, "a.f64", &d, NULL) == GM_OK && d == 2.5);
    CHECK(gguf_get_float(g, "a.i8", &d, NULL) == GM_OK && d == -2);
    CHECK_ERROR(gguf_get_float(g, "general.architecture", &d, NULL), GM_EBADFILE, "of type string, expected a number");
    CHECK(gguf_get_bool(g, "a.bool", &flag, NULL) == GM_OK && flag);
    CHECK_ERROR(gguf_get_bool(g, "a.i8", &flag, NULL), GM_EBADFILE, "a.i8 is of type i8, expected bool");
    CHECK_ERROR(gguf_get_string(g, "a.strings", &s, NULL), GM_EBADFILE, "array of string, expected a string");
    const gguf_entry *e = gguf_find(g, "a.strings");
    CHECK(e && e->type == GGUF_ARRAY && e->item_type == GGUF_STRING && e->count == 3 && !gguf_find(g, "a.string"));
    const uint8_t *cursor = e->data;
    CHECK(gguf_next_string(&cursor).length == 3 && gguf_next_string(&cursor).length == 0);
    s = gguf_next_string(&cursor);
    CHECK(s.length == 5 && memcmp(s.text, "three", 5) == 0 && cursor == e->data + e->bytes);
    e = gguf_find(g, "a.numbers");
    CHECK(gguf_item_int(e, 1, &i) == GM_OK && i == -1 && gguf_item_float(e, 0, &d) == GM_OK && d == 1);
    CHECK_ERROR(gguf_item_int(e, 2, &i), GM_EINDEX, "a.numbers has 2 items, but item 2 was requested");
    const gguf_tensor *dense = gguf_tensor_at(g, 0), *packed = gguf_tensor_at(g, 1), *strange = gguf_tensor_at(g, 2);
    CHECK(dense->n_dims == 2 && dense->shape[0] == 2 && dense->shape[1] == 3 && dense->bytes == 24 &&
          dense->data[5] == 5);
    CHECK(packed->shape[0] == 1 && packed->shape[2] == 64 && packed->bytes == 2 * 2 * 34 && packed->data[0] == 64);
    CHECK(strange->type == 9999 && strange->data == NULL && strange->bytes == 0);
    gguf_close(g);
}

/* Nothing that is cut or changed may crash; a cut one may not be taken. */
static void test_gguf_damage(void) {
    bytes b;
    gguf *g;
    sample_gguf(&b, 3);
    int taken = 0;
    for (size_t n = 0; n < b.size; n++) {
        taken += gguf_open(write_file("cut.gguf", b.data, n), &g) == GM_OK;
        gguf_close(g);
    }
    CHECK(taken == 0);
    for (size_t at = 0; at < b.size; at++) {
        uint8_t was = b.data[at];
        b.data[at] = at % 2 ? 0xFF : (uint8_t)(was ^ 0x81);
        if (gguf_open(write_file("cut.gguf", b.data, b.size), &g) == GM_OK)
            gguf_close(g);
        b.data[at] = was;
    }
    gm_error ignored;
    gm_take_error(&ignored);
    remove_file("cut.gguf");
}

static void refuse_gguf(const bytes *b, gm_status code, const char *text) {
    gguf *g;
    CHECK_ERROR(gguf_open(write_file("bad.gguf", b->data, b->size), &g), code, text);
    CHECK(g == NULL);
    remove_file("bad.gguf");
}

static void refuse_tensor(uint32_t type, uint64_t offset, int n_dims, const int64_t *ne, const char *text) {
    bytes b;
    gguf_header(&b, 3, 1, 0);
    put_tensor(&b, "t", type, offset, n_dims, ne);
    align_to(&b, 32);
    put_zeros(&b, 64);
    refuse_gguf(&b, GM_EBADFILE, text);
}

static void test_gguf_refusals(void) {
    bytes b;
    gguf_header(&b, 1, 0, 0), refuse_gguf(&b, GM_EUNSUPPORTED, "GGUF version 1");
    gguf_header(&b, 4, 0, 0), refuse_gguf(&b, GM_EUNSUPPORTED, "GGUF version 4");
    gguf_header(&b, 3u << 24, 0, 0), refuse_gguf(&b, GM_EUNSUPPORTED, "big-endian");
    gguf_header(&b, 3, 0, 0), b.data[0] = 'X', refuse_gguf(&b, GM_EBADFILE, "expected \"GGUF\"");
    gguf_header(&b, 3, UINT64_MAX, 0), refuse_gguf(&b, GM_EBADFILE, "18446744073709551615 tensors");
    gguf_header(&b, 3, 0, 1 << 20), put_zeros(&b, 100), refuse_gguf(&b, GM_EBADFILE, "1048576 metadata entries");
    gguf_header(&b, 3, 0, 2), put_int_entry(&b, "k", 1), put_int_entry(&b, "k", 1);
    refuse_gguf(&b, GM_EBADFILE, "key k appears twice");
    gguf_header(&b, 3, 0, 1), put_int_entry(&b, "", 1), put_zeros(&b, 9),
        refuse_gguf(&b, GM_EBADFILE, "a key at byte 24 has 0 bytes");
    gguf_header(&b, 3, 0, 1), put_u64(&b, 3), put(&b, "a\0b", 3), put_zeros(&b, 9), refuse_gguf(&b, GM_EBADFILE, "NUL");
    gguf_header(&b, 3, 0, 1), put_u64(&b, UINT64_MAX - 3), put_zeros(&b, 40),
        refuse_gguf(&b, GM_EBADFILE, "middle of a key");
    gguf_header(&b, 3, 0, 1), put_text(&b, "k"), put_u32(&b, 13), put_zeros(&b, 9),
        refuse_gguf(&b, GM_EBADFILE, "value type 13");
    gguf_header(&b, 3, 0, 1), put_text(&b, "k"), put_u32(&b, GGUF_ARRAY), put_u32(&b, GGUF_ARRAY), put_zeros(&b, 30);
    refuse_gguf(&b, GM_EBADFILE, "array of arrays");
    gguf_header(&b, 3, 0, 1), put_text(&b, "k"), put_u32(&b, GGUF_ARRAY), put_u32(&b, GGUF_F64),
        put_u64(&b, (uint64_t)1 << 61);
    refuse_gguf(&b, GM_EBADFILE, "2305843009213693952 items");
    gguf_header(&b, 3, 0, 1), put_text(&b, "k"), put_u32(&b, GGUF_ARRAY), put_u32(&b, GGUF_STRING), put_u64(&b, 2);
    put_text(&b, "ok"), put_u64(&b, 100), refuse_gguf(&b, GM_EBADFILE, "middle of a string");
    gguf_header(&b, 3, 0, 1), put_int_entry(&b, "general.alignment", 24),
        refuse_gguf(&b, GM_EBADFILE, "alignment is 24");
    gguf_header(&b, 3, 0, 1), put_int_entry(&b, "general.alignment", 0), refuse_gguf(&b, GM_EBADFILE, "alignment is 0");
    gguf_header(&b, 3, 2, 0), put_tensor(&b, "t", 0, 0, 1, (int64_t[]){1}),
        put_tensor(&b, "t", 0, 0, 1, (int64_t[]){1});
    align_to(&b, 32), put_zeros(&b, 64), refuse_gguf(&b, GM_EBADFILE, "tensor t appears twice");
    gguf_header(&b, 3, 1, 0),
        put_tensor(&b, "0123456789012345678901234567890123456789012345678901234567890123", 0, 0, 0, NULL);
    align_to(&b, 32), put_zeros(&b, 64), refuse_gguf(&b, GM_EBADFILE, "64 bytes, expected 1 to 63");
    const int64_t big = (int64_t)1 << 40;
    refuse_tensor(0, 0, 5, (int64_t[]){1, 1, 1, 1, 1}, "5 dimensions");
    refuse_tensor(0, 0, 2, (int64_t[]){4, -4}, "dimension of -4");
    refuse_tensor(0, 0, 2, (int64_t[]){big, big}, "too large");
    refuse_tensor(0, 0, 4, (int64_t[]){4, 0, big, big}, "too large");
    refuse_tensor(0, 0, 1, (int64_t[]){INT64_MAX}, "more than can be addressed");
    refuse_tensor(0, 0, 1, (int64_t[]){17}, "68 bytes at offset 0, but there are 64");
    refuse_tensor(0, 64, 1, (int64_t[]){1}, "4 bytes at offset 64, but there are 64");
    refuse_tensor(0, UINT64_MAX - 31, 1, (int64_t[]){16}, "but there are 64");
    refuse_tensor(0, 16, 1, (int64_t[]){1}, "offset 16, expected a multiple of 32");
    refuse_tensor(8, 0, 1, (int64_t[]){33}, "rows of 33 values, expected a multiple of 32 for Q8_0");
    refuse_tensor(9999, 96, 1, (int64_t[]){1}, "but there are 64");
}

/* ---- safetensors ---- */

static void make_safetensors(bytes *b, const char *header, size_t data_bytes) {
    b->size = 0;
    put_text(b, header);
    for (size_t i = 0; i < data_bytes; i++)
        put(b, &(uint8_t){(uint8_t)i}, 1);
}

static const char sample_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
    "\"a\\u00e9\":{\"data_offsets\":[0,8],\"shape\":[],\"dtype\":\"I64\"},"
    "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[20,20]},"
    "\"odd\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[20,22],\"more\":[{}]}}   ";

static void test_safetensors_reading(void) {
    bytes b;
    safetensors *s;
    make_safetensors(&b, sample_header, 22);
    CHECK(safetensors_open(write_file("sample.safetensors", b.data, b.size), &s) == GM_OK);
    if (!s)
        return;
    CHECK(safetensors_count(s) == 4);
    const gm_tensor *t = safetensors_at(s, 0), *u = safetensors_at(s, 1), *v = safetensors_at(s, 2),
                    *w = safetensors_at(s, 3);
    CHECK(strcmp(t->name, "b") == 0 && strcmp(t->type, "BF16") == 0 && t->format == GM_QUANT_bf16 && t->ndim == 2);
    CHECK(t->shape[0] == 2 && t->shape[1] == 3 && t->bytes == 12 && t->data[0] == 8);
    CHECK(strcmp(u->name, "a\xC3\xA9") == 0 && strcmp(u->type, "I64") == 0 && u->format == -1 && u->ndim == 0 &&
          u->bytes == 8);
    CHECK(v->format == GM_QUANT_f32 && v->ndim == 2 && v->bytes == 0);
    CHECK(strcmp(w->type, "F4") == 0 && w->format == -1 && w->bytes == 2 && w->data[1] == 21);
    safetensors_close(s);
    int taken = 0;
    for (size_t n = 0; n < b.size; n++) {
        taken += safetensors_open(write_file("cut.safetensors", b.data, n), &s) == GM_OK;
        safetensors_close(s);
    }
    CHECK(taken == 0);
    for (size_t at = 0; at < b.size; at++) {
        uint8_t was = b.data[at];
        b.data[at] = at % 2 ? '9' : (uint8_t)(was ^ 0x81);
        if (safetensors_open(write_file("cut.safetensors", b.data, b.size), &s) == GM_OK)
            safetensors_close(s);
        b.data[at] = was;
    }
    gm_error ignored;
    gm_take_error(&ignored);
    remove_file("cut.safetensors");
    remove_file("sample.safetensors");
}

static void refuse_safetensors(const char *header, const char *text) {
    bytes b;
    safetensors *s;
    make_safetensors(&b, header, 16);
    CHECK_ERROR(safetensors_open(write_file("bad.safetensors", b.data, b.size), &s), GM_EBADFILE, text);
    CHECK(s == NULL);
    remove_file("bad.safetensors");
}

#define TENSOR(name, type, shape, range)                                                                               \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" range "}"

static void test_safetensors_refusals(void) {
    bytes b = {.size = 0};
    safetensors *s;
    refuse_safetensors("{" TENSOR("x", "F32", "[2]", "[0,8]") "," TENSOR("y", "F32", "[2]", "[4,12]") "}",
                       "x and y overlap");
    refuse_safetensors("{" TENSOR("x", "U8", "[1]", "[0,1]") "," TENSOR("x", "U8", "[1]", "[1,2]") "}",
                       "tensor x appears twice");
    refuse_safetensors("{" TENSOR("x", "F32", "[3]", "[0,8]") "}", "tensor x has 8 bytes, expected 3 values of F32");
    refuse_safetensors("{" TENSOR("x", "F32", "[5]", "[0,20]") "}", "expected a range inside 16 bytes");
    refuse_safetensors("{" TENSOR("x", "F32", "[1]", "[8,4]") "}", "expected a range inside 16 bytes");
    refuse_safetensors("{" TENSOR("x", "F32", "[-1]", "[0,4]") "}", "negative size");
    refuse_safetensors("{" TENSOR("x", "F32", "[1.0]", "[0,4]") "}", "expected an integer");
    refuse_safetensors("{" TENSOR("x", "F32", "[4611686018427387904,4]", "[0,0]") "}", "more than 2**63 values");
    refuse_safetensors("{" TENSOR("x", "F32", "[4611686018427387904]", "[0,0]") "}",
                       "expected 4611686018427387904 values");
    refuse_safetensors("{" TENSOR("x", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", "more than 8 numbers");
    refuse_safetensors("{" TENSOR("x", "F32", "[1]", "[0]") "}", "data_offsets has 1 numbers, expected 2");
    refuse_safetensors("{" TENSOR("x\\u0000y", "F32", "[1]", "[0,4]") "}", "NUL");
    refuse_safetensors("{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", "tensor x has no data_offsets");
    refuse_safetensors("{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", "twice");
    refuse_safetensors("{\"__metadata__\":{\"a\":1}}", "a number, expected a string");
    refuse_safetensors("[]", "an array, expected an object");
    refuse_safetensors("{} x", "text after the end");
    put_u64(&b, 100000000), put_zeros(&b, 100);
    CHECK_ERROR(safetensors_open(write_file("bad.safetensors", b.data, b.size), &s), GM_EBADFILE,
                "the header has 100000000 bytes");
    CHECK_ERROR(safetensors_open(write_file("bad.safetensors", b.data, 7), &s), GM_EBADFILE,
                "too few for a safetensors file");
    remove_file("bad.safetensors");
}

/* ---- checkpoints ---- */

static void write_tensors(const char *file, const char *header, size_t bytes_of_data) {
    bytes b;
    make_safetensors(&b, header, bytes_of_data);
    write_file(file, b.data, b.size);
}

static void write_text(const char *file, const char *text) { write_file(file, text, strlen(text)); }

static void refuse_folder(gm_status code, const char *text) {
    gm_checkpoint *c;
    CHECK_ERROR(checkpoint_open(folder, &c), code, text);
    CHECK(c == NULL);
}

static int64_t count_folder(void) {
    gm_checkpoint *c;
    if (checkpoint_open(folder, &c) != GM_OK)
        return -1;
    int64_t n = checkpoint_count(c);
    checkpoint_close(c);
    return n;
}

#define INDEX "model.safetensors.index.json"

static void test_checkpoint_safetensors(void) {
    gm_checkpoint *c;
    refuse_folder(GM_EFILE, "this folder has no .safetensors and no .gguf");
    write_tensors("other.safetensors", "{" TENSOR("o", "U8", "[1]", "[0,1]") "}", 1);
    write_tensors("adapter_model.safetensors", "{" TENSOR("l", "U8", "[1]", "[0,1]") "}", 1);
    write_tensors("consolidated.safetensors", "{" TENSOR("k", "U8", "[1]", "[0,1]") "}", 1);
    write_text(".hidden.safetensors", "x");
    CHECK(count_folder() == 1);
    write_tensors("model-00001-of-00002.safetensors", "{" TENSOR("x", "F32", "[1]", "[0,4]") "}", 4);
    refuse_folder(GM_EFILE, "model-00002-of-00002.safetensors is missing");
    write_tensors("model-00002-of-00002.safetensors",
                  "{" TENSOR("y", "F16", "[2,2]", "[0,8]") "," TENSOR("z", "U8", "[1]", "[8,9]") "}", 9);
    CHECK(checkpoint_open(folder, &c) == GM_OK && checkpoint_count(c) == 3 && !checkpoint_gguf(c));
    const gm_tensor *t = checkpoint_find(c, "y");
    CHECK(t && t->file == 1 && t->shape[1] == 2 && t->format == GM_QUANT_f16 && !checkpoint_find(c, "o"));
    checkpoint_will_need(c, t);
    checkpoint_done_with(c, t);
    CHECK(t->data[7] == 7);
    checkpoint_close(c);
    write_text(INDEX, "{\"metadata\":{\"total_size\":13},\"weight_map\":{\"y\":\"model-00002-of-00002.safetensors\"}}");
    CHECK(count_folder() == 2);
    write_text(
        INDEX,
        "{\"weight_map\":{\"y\":\"model-00002-of-00002.safetensors\",\"x\":\"model-00003-of-00003.safetensors\"}}");
    refuse_folder(GM_EFILE, "names the shard model-00003-of-00003.safetensors, which is missing");
    write_text(
        INDEX,
        "{\"weight_map\":{\"x\":\"model-00002-of-00002.safetensors\",\"y\":\"model-00001-of-00002.safetensors\"}}");
    refuse_folder(GM_EBADFILE, "tensor x is not in its shard model-00002-of-00002.safetensors");
    write_text(INDEX, "{\"weight_map\":{\"q\":\"model-00002-of-00002.safetensors\"}}");
    refuse_folder(GM_EBADFILE, "tensor q is not in its shard");
    write_text(INDEX, "{\"weight_map\":{\"q\":\"../other.safetensors\"}}");
    refuse_folder(GM_EBADFILE, "a shard named ../other.safetensors");
    write_text(INDEX, "{\"weight_map\":{\"q\":\"sub/other.safetensors\"}}");
    refuse_folder(GM_EBADFILE, "in the same folder");
    write_text(INDEX, "{\"weight_map\":{}}");
    refuse_folder(GM_EBADFILE, "weight_map is missing");
    write_text(INDEX, "{\"weight_map\":{\"q\":1}}");
    refuse_folder(GM_EBADFILE, "a number, expected a string");
    remove_file(INDEX);
    write_tensors("model-00001-of-00002.safetensors", "{" TENSOR("y", "F32", "[1]", "[0,4]") "}", 4);
    refuse_folder(GM_EBADFILE, "tensor y is in two files, ");
    CHECK(checkpoint_open(path_of("other.safetensors"), &c) == GM_OK && checkpoint_count(c) == 1);
    checkpoint_close(c);
    CHECK_ERROR(checkpoint_open(path_of("nowhere"), &c), GM_EFILE, "nowhere");
    remove_file("other.safetensors");
    remove_file("adapter_model.safetensors");
    remove_file("consolidated.safetensors");
    remove_file(".hidden.safetensors");
    remove_file("model-00001-of-00002.safetensors");
    remove_file("model-00002-of-00002.safetensors");
}

static void write_part(int number, int says, int count, const char *tensor) {
    bytes b;
    char name[64];
    gguf_header(&b, 3, 1, 3);
    put_int_entry(&b, "split.no", (uint32_t)says);
    put_int_entry(&b, "split.count", (uint32_t)count);
    put_int_entry(&b, "split.tensors.count", 3);
    put_tensor(&b, tensor, 0, 0, 1, (int64_t[]){8});
    align_to(&b, 32);
    put_zeros(&b, 32);
    snprintf(name, sizeof name, "m-%05d-of-00003.gguf", number);
    write_file(name, b.data, b.size);
}

static void test_checkpoint_gguf(void) {
    gm_checkpoint *c;
    bytes b;
    sample_gguf(&b, 3);
    write_file("sample.gguf", b.data, b.size);
    CHECK(checkpoint_open(folder, &c) == GM_OK && checkpoint_count(c) == 3);
    CHECK(strcmp(checkpoint_at(c, 1)->type, "Q8_0") == 0 && checkpoint_at(c, 1)->format == GM_QUANT_q8_0);
    CHECK(strcmp(checkpoint_at(c, 2)->type, "type 9999") == 0 && checkpoint_at(c, 2)->format == -1);
    CHECK(checkpoint_gguf(c) && gguf_find(checkpoint_gguf(c), "a.f32"));
    for (int i = 0; i < 3; i++)
        checkpoint_will_need(c, checkpoint_at(c, i)), checkpoint_done_with(c, checkpoint_at(c, i));
    checkpoint_close(c);
    write_file("again.gguf", b.data, b.size);
    refuse_folder(GM_EVALUE, "2 .gguf files, expected one model; give the path of one: again.gguf, sample.gguf");
    remove_file("again.gguf");
    remove_file("sample.gguf");
    write_part(1, 0, 3, "x");
    write_part(2, 1, 3, "y");
    CHECK_ERROR(checkpoint_open(path_of("m-00001-of-00003.gguf"), &c), GM_EFILE, "m-00003-of-00003.gguf: No such file");
    write_part(3, 2, 3, "z");
    CHECK(count_folder() == 3);
    for (int i = 1; i <= 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "m-%05d-of-00003.gguf", i);
        CHECK(checkpoint_open(path_of(name), &c) == GM_OK && checkpoint_count(c) == 3 &&
              checkpoint_find(c, "z")->file == 2);
        checkpoint_close(c);
    }
    write_part(3, 1, 3, "z");
    refuse_folder(GM_EBADFILE, "says that it is part 2 of 3, expected part 3 of 3");
    write_part(3, 2, 3, "y");
    refuse_folder(GM_EBADFILE, "tensor y is in two files");
    rename(path_of("m-00001-of-00003.gguf"), path_of("first.gguf"));
    CHECK_ERROR(checkpoint_open(path_of("first.gguf"), &c), GM_EBADFILE,
                "expected a file name such as x-00001-of-00003.gguf");
    remove_file("first.gguf");
    remove_file("m-00002-of-00003.gguf");
    remove_file("m-00003-of-00003.gguf");
}

#ifdef GOMLX_FAULT_INJECTION
/* Each allocation made to fail in turn: the status says so, and (under a sanitizer) nothing is lost. */
static void fail_each(const char *path) {
    gm_checkpoint *c;
    gm_status status = GM_ENOMEM;
    for (long n = 1; status != GM_OK && n < 1000; n++) {
        memory_fail_at(n);
        status = checkpoint_open(path, &c);
        gm_error e;
        gm_take_error(&e);
        CHECK(status == GM_OK || (status == GM_ENOMEM && e.code == GM_ENOMEM && !c));
    }
    CHECK(status == GM_OK);
    memory_fail_at(0);
    checkpoint_close(c);
}

static void test_no_memory(void) {
    bytes b;
    sample_gguf(&b, 3);
    fail_each(write_file("sample.gguf", b.data, b.size));
    remove_file("sample.gguf");
    for (int i = 0; i < 3; i++)
        write_part(i + 1, i, 3, (const char *[]){"x", "y", "z"}[i]);
    fail_each(folder);
    for (int i = 0; i < 3; i++)
        remove_file((const char *[]){"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"}[i]);
    write_tensors("model-00001-of-00001.safetensors", sample_header, 22);
    fail_each(folder);
    write_text(INDEX, "{\"weight_map\":{\"b\":\"model-00001-of-00001.safetensors\",\"a\\u00e9\":\"model-00001-of-00001."
                      "safetensors\"}}");
    fail_each(folder);
    remove_file(INDEX);
    remove_file("model-00001-of-00001.safetensors");
}
#endif

int main(void) {
    CHECK(mkdtemp(folder) != NULL);
    test_gguf_reading(2);
    test_gguf_reading(3);
    remove_file("sample.gguf");
    test_gguf_damage();
    test_gguf_refusals();
    test_safetensors_reading();
    test_safetensors_refusals();
    test_checkpoint_safetensors();
    test_checkpoint_gguf();
#ifdef GOMLX_FAULT_INJECTION
    test_no_memory();
#endif
    CHECK(rmdir(folder) == 0);
    return check_summary();
}
