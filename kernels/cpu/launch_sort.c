/* launch_sort.c - sorting, of which all threads do a long row, and scans, of which a long row goes by blocks. */
#include "cpu/launch.h"

/* ---- running sums ---- */
#define FEW_ROWS 8 /* rows fewer than that are worked on by blocks when they are long */
#define LONG_SCAN (128 * GM_SCAN_BLOCK)

/* Columns side by side share their pages. */
static bool scan_columns(gm_recorder *r, const gm_scan_args *a, int64_t rows) {
    const int64_t least = GRAIN / a->length / 64 * 64, threads = r->threads(r);
    int64_t grain = (a->inner + threads - 1) / threads;
    grain = (grain < least ? least : grain) / 64 * 64;
    return LAUNCH(r, scan_columns, a, rows * a->inner, grain < 64 ? 64 : grain, 0);
}

bool cpu_scan(gm_recorder *r, const gm_scan_args *a, int64_t n) {
    const bool is_float = a->type == GM_T_F32 || a->type == GM_T_F16 || a->type == GM_T_BF16;
    if (n == 0) return true;
    if (a->inner > 1) return scan_columns(r, a, n);
    if (!is_float || n >= FEW_ROWS || a->length < LONG_SCAN)
        return LAUNCH(r, scan, a, n, a->length < GRAIN ? GRAIN / a->length : 1, 0);
    const int64_t blocks = (a->length + GM_SCAN_BLOCK - 1) / GM_SCAN_BLOCK;
    gm_scan_args by_blocks = *a;
    by_blocks.carry = r->workspace(r, (size_t)(n * blocks) * sizeof *by_blocks.carry);
    if (!by_blocks.carry || !LAUNCH(r, scan_totals, &by_blocks, n * blocks, 8, 0)) return false;
    r->fence(r);
    if (!LAUNCH(r, scan_carries, &by_blocks, n, n, 0)) return false;
    r->fence(r);
    return LAUNCH(r, scan, &by_blocks, n * blocks, 8, 0);
}

/* ---- orders ---- */
#define LONG_ROW 131072 /* from here on all threads work on one row, when there are few */
#define CHUNK 65536     /* of such a row */
#define DIGIT 8         /* bits */

/* One digit of the items moved from `from` to `to`. */
static bool sort_digit(gm_recorder *r, gm_radix_args *a, const char *from, char *to) {
    const int64_t chunks = (a->length + CHUNK - 1) / CHUNK;
    a->from = from;
    a->to = to;
    r->fence(r);
    if (!LAUNCH(r, radix_count, a, chunks, 1, 0)) return false;
    r->fence(r);
    if (!LAUNCH(r, radix_offsets, a, 1, 1, 0)) return false;
    r->fence(r);
    return LAUNCH(r, radix_place, a, chunks, 1, 0);
}

static bool sort_long_row(gm_recorder *r, const gm_sort_args *row, void *out, const void *in) {
    gm_radix_args a = {.type = row->type, .width = row->indices ? 8 : 4, .length = row->length, .chunk = CHUNK};
    const int64_t chunks = (a.length + CHUNK - 1) / CHUNK;
    const int total = 8 * (int)type_bytes(a.type);
    char *from = r->workspace(r, (size_t)(2 * a.length * a.width));
    a.counts = from ? r->workspace(r, (size_t)(chunks << DIGIT) * sizeof *a.counts) : NULL;
    if (!a.counts) return false;
    char *to = from + a.length * a.width;
    a.from = in;
    a.to = from;
    if (!LAUNCH(r, radix_keys, &a, a.length, CHUNK, 0)) return false;
    for (int done = 0; done < total; done += a.bits) {
        a.bits = total - done < DIGIT ? total - done : DIGIT;
        a.shift = done + (row->indices ? 32 : 0);
        if (!sort_digit(r, &a, from, to)) return false;
        char *swap = from;
        from = to;
        to = swap;
    }
    a.from = from;
    a.to = out;
    r->fence(r);
    return LAUNCH(r, radix_values, &a, a.length, CHUNK, 0);
}

bool cpu_sort(gm_recorder *r, const gm_sort_args *a, int64_t n) {
    const int64_t item = type_bytes(a->type), out_item = a->indices ? 4 : item;
    if (n > 0 && n < 4 && a->length >= LONG_ROW && a->length <= UINT32_MAX && item < 8) {
        for (int64_t i = 0; i < n; i++) {
            if (i) r->fence(r);
            if (!sort_long_row(r, a, (char *)a->out + i * a->length * out_item,
                               (const char *)a->in + i * a->length * item))
                return false;
        }
        return true;
    }
    gm_sort_args rows = *a;
    rows.scratch = r->workspace(r, (size_t)(n * a->length) * (a->indices || item == 8 ? 16 : 8));
    return rows.scratch && LAUNCH(r, sort, &rows, n, sort_grain(a->length), 0);
}
