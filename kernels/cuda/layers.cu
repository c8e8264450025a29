/* layers.cu - parts of networks: 8-bit floats, MLX's quantised matrices, rotary positions, recurrences, convolutions,
 * attention over plain arrays. The plain form of each: every result is one thread's, warp's or block's, in an order
 * that its own shape gives. */
#include "functions.cuh"

/* ---- 8-bit floats, as groups.inc of the processor has them ---- */
DEVICE float fp8_value(uint32_t code) {
    const uint32_t magnitude = code & 127;
    const float small = (float)magnitude * 0x1p-9f, normal = float_of_bits((magnitude << 20) + (120u << 23));
    const float x = magnitude == 127 ? float_of_bits(0x7fc00000) : magnitude < 8 ? small : normal;
    return float_of_bits(bits_of_float(x) | (code & 128) << 24);
}
DEVICE uint8_t fp8_code(float x) {
    const uint32_t sign = bits_of_float(x) >> 31;
    const float magnitude = vf_min(vf_abs(x), 448.0f);
    const uint32_t bits = bits_of_float(magnitude), odd = bits >> 20 & 1;
    const uint32_t normal = ((bits + odd + 0x7ffff) >> 20) - (120 << 3);
    const uint32_t code = magnitude < 0x1p-6f ? (uint32_t)vf_to_vi(magnitude * 0x1p9f) : normal;
    return (uint8_t)(code | sign << 7);
}
KERNEL(gm_fp8_encode, cuda_fp8_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index();
    if (i < a.count) ((uint8_t *)a.out)[i] = fp8_code(load_float(a.in, i, a.type));
}
KERNEL(gm_fp8_decode, cuda_fp8_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index();
    if (i < a.count) store_float(a.out, i, fp8_value(((const uint8_t *)a.in)[i]), a.type);
}

/* ---- MLX's quantised matrices ---- */
DEVICE float fp4_value(uint32_t code) {
    const uint32_t twice = 0xc8643210u >> (code & 7) * 4 & 15; /* of 0, 0.5, 1, 1.5, 2, 3, 4, 6 */
    const float x = (float)twice * 0.5f;
    return code & 8 ? -x : x;
}
DEVICE uint32_t field_of(const uint8_t *row, int64_t i, int bits) {
    const int64_t at = i * bits, first = at / 8, last = (at + bits - 1) / 8;
    const uint32_t pair = row[first] | (uint32_t)row[last] << 8; /* one byte twice where the field is in one */
    return pair >> at % 8 & ((1u << bits) - 1);
}
/* A scale that is the exponent of a float. */
DEVICE float exponent_scale(uint32_t code) { return code ? float_of_bits(code << 23) : 0x1p-127f; }
DEVICE float group_scale(const cuda_group_args &a, const void *scales, int64_t group) {
    if (a.mode == GM_AFFINE) return load_float(scales, group, a.scale_type);
    const uint32_t code = ((const uint8_t *)scales)[group];
    return a.mode == GM_NVFP4 ? fp8_value(code) : exponent_scale(code);
}
/* Field i of a row of fields whose groups begin with number `group`, times its scale, unrounded. */
DEVICE float weight_of(const cuda_group_args &a, const uint8_t *row, int64_t i, int64_t group) {
    const uint32_t field = field_of(row, i, a.bits);
    const int64_t g = group + i / a.group;
    const float scale = group_scale(a, a.scales, g);
    if (a.mode == GM_AFFINE) return fmaf((float)field, scale, load_float(a.biases, g, a.scale_type));
    return (a.bits == 4 ? fp4_value(field) : fp8_value(field)) * scale;
}
/* The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6; of two the smaller. No negative zero. */
DEVICE uint32_t fp4_code(float x) {
    const float magnitude = vf_abs(x);
    const uint32_t code = (0.25f < magnitude) + (0.75f < magnitude) + (1.25f < magnitude) + (1.75f < magnitude) +
                          (2.5f < magnitude) + (3.5f < magnitude) + (5.0f < magnitude);
    return x < 0 && code > 0 ? code + 8 : code;
}
/* The least whole power of two that is not below x > 0, as the exponent of a float. */
DEVICE uint32_t power_above(float x) {
    const uint32_t bits = bits_of_float(x), exponent = (bits >> 23) + ((bits & 0x7fffff) != 0);
    return exponent < 254 ? exponent : 254;
}
typedef struct { float scale, bias; } affine_steps;
/* The edge of greater magnitude is met exactly: it is an integer number of steps from zero, or zero is not a step. */
DEVICE affine_steps affine_of(float least, float greatest, int bits) {
    const float width = (greatest - least) / (float)((1 << bits) - 1),
                scale = width > 1e-7f || width != width ? width : 1e-7f;
    if (bits == 1) return {scale, least};
    const bool down = vf_abs(least) > vf_abs(greatest);
    const float edge = down ? least : greatest, step = down ? scale : -scale, steps = rintf(edge / step);
    return steps == 0 ? affine_steps{step, 0} : affine_steps{edge / steps, edge};
}
/* The code of a scale, and the step that it stands for. */
DEVICE uint32_t float_step(const gm_group_quantize_args &a, float largest, float *step) {
    const float limit = a.bits == 4 ? 6.0f : 448.0f;
    if (a.mode == GM_NVFP4) {
        const float encode = a.global ? 448.0f * 6.0f / *a.global : 1.0f;
        const uint32_t code = fp8_code(largest / limit * encode);
        *step = fp8_value(code) / encode;
        return code;
    }
    const float exact = largest / limit, rounded = round_float(exact, a.in_type); /* MLX divides in the type of w */
    const uint32_t code = largest > 0 ? power_above(rounded > 0 ? rounded : exact) : 127;
    *step = code ? float_of_bits(code << 23) : 0x1p-127f;
    return code;
}
/* A warp for each group, whose fields meet in the block's memory; a lane then makes every 32nd byte. */
KERNEL(gm_group_quantize, cuda_group_quantize_args, CUDA_THREADS) {
    SHARED uint8_t shared[CUDA_THREADS / WARP][CUDA_GROUP];
    const gm_group_quantize_args &to = a.to;
    const int64_t g = block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP;
    const int lane = thread_index() % WARP;
    uint8_t *fields = shared[thread_index() / WARP];
    if (g >= a.count) return;
    float x[CUDA_GROUP / WARP], low = INFINITY, high = -INFINITY;
    UNROLL for (int i = 0; i < CUDA_GROUP / WARP; i++) {
        if (lane + i * WARP >= to.group) break;
        x[i] = load_float(to.in, g * to.group + lane + i * WARP, to.in_type);
        low = vf_min(x[i], low);
        high = vf_max(x[i], high);
    }
    const float greatest = join_warp(high, [](float p, float q) { return vf_max(p, q); });
    const float least = -(0.0f - join_warp(low, [](float p, float q) { return vf_min(p, q); }));
    const bool affine = to.mode == GM_AFFINE;
    const affine_steps steps = affine ? affine_of(least, greatest, to.bits) : affine_steps{0, 0};
    float step = 0;
    const uint32_t code = affine ? 0 : float_step(to, -least > greatest ? -least : greatest, &step);
    if (lane == 0 && affine) {
        store_float(to.scales, g, steps.scale, to.in_type);
        store_float(to.biases, g, steps.bias, to.in_type);
    } else if (lane == 0) {
        ((uint8_t *)to.scales)[g] = (uint8_t)code;
    }
    const float most = (float)((1 << to.bits) - 1);
    UNROLL for (int i = 0; i < CUDA_GROUP / WARP; i++) {
        if (lane + i * WARP >= to.group) break;
        const float value = step == 0 ? 0.0f : x[i] / step;
        fields[lane + i * WARP] = affine ? (uint8_t)vf_min(vf_max(rintf((x[i] - steps.bias) / steps.scale), 0.0f), most)
                                  : to.bits == 4 ? (uint8_t)fp4_code(value)
                                                 : fp8_code(value);
    }
    warp_barrier();
    const int bytes = to.group * to.bits / 8;
    for (int b = lane; b < bytes; b += WARP) {
        uint32_t value = 0;
        for (int i = 8 * b / to.bits; i * to.bits < 8 * b + 8; i++) { /* fields that reach into the byte */
            const int shift = i * to.bits - 8 * b;
            value |= shift < 0 ? (uint32_t)fields[i] >> -shift : (uint32_t)fields[i] << shift;
        }
        ((uint8_t *)to.weight)[g * bytes + b] = (uint8_t)value;
    }
}
/* Product and sum are each rounded to the type, as MLX's are. */
KERNEL(gm_group_dequantize, cuda_group_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index();
    if (i >= a.count * a.group) return;
    const int64_t g = i / a.group;
    const uint32_t field = field_of((const uint8_t *)a.weight + g * (a.group * a.bits / 8), i % a.group, a.bits);
    float scale = group_scale(a, a.scales, g);
    if (a.mode == GM_AFFINE) {
        const float product = round_float((float)field * scale, a.scale_type);
        store_float(a.out, i, product + load_float(a.biases, g, a.scale_type), a.scale_type);
        return;
    }
    if (a.mode == GM_NVFP4 && a.global) scale = scale * (*a.global / (448.0f * 6.0f));
    ((float *)a.out)[i] = (a.bits == 4 ? fp4_value(field) : fp8_value(field)) * scale;
}
/* Eight fields side by side. Those of a matrix begin with a word. */
DEVICE uint64_t eight_fields(const void *weight, int64_t number, int bits) {
    const int parts = bits % 4 == 0 ? bits / 4 : bits % 2 == 0 ? bits / 2 : bits;
    uint64_t fields = 0;
    for (int p = 0; p < parts; p++) {
        const int64_t at = number * parts + p;
        if (bits % 4 == 0) fields |= (uint64_t)((const uint32_t *)weight)[at] << 32 * p;
        else if (bits % 2 == 0) fields |= (uint64_t)((const uint16_t *)weight)[at] << 16 * p;
        else fields |= (uint64_t)((const uint8_t *)weight)[at] << 8 * p;
    }
    return fields;
}
template <int TYPE> DEVICE void put_eight(void *out, int64_t number, const float *values) {
    typedef typename float_item<TYPE>::raw raw;
    pack<raw, 8> all;
    UNROLL for (int j = 0; j < 8; j++)
        all.at[j] = narrow<TYPE>(values[j]);
    ((pack<raw, 8> *)out)[number] = all;
}
/* A matrix in the type of x, for products of many rows: each value is rounded once, and a thread makes eight. */
KERNEL(gm_group_values, cuda_group_args, CUDA_THREADS) {
    const int64_t number = block_index() * CUDA_THREADS + thread_index(), g = number * 8 / a.group;
    if (number * 8 >= a.rows * a.k) return;
    const uint64_t fields = eight_fields(a.weight, number, a.bits);
    const float scale = group_scale(a, a.scales, g);
    const float bias = a.mode == GM_AFFINE ? load_float(a.biases, g, a.scale_type) : 0;
    float values[8];
    UNROLL for (int j = 0; j < 8; j++) {
        const uint32_t field = (uint32_t)(fields >> j * a.bits) & ((1u << a.bits) - 1);
        if (a.mode == GM_AFFINE) values[j] = fmaf((float)field, scale, bias);
        else values[j] = (a.bits == 4 ? fp4_value(field) : fp8_value(field)) * scale;
    }
    if (a.out_type == GM_T_F16) put_eight<GM_T_F16>(a.out, number, values);
    else if (a.out_type == GM_T_BF16) put_eight<GM_T_BF16>(a.out, number, values);
    else put_eight<GM_T_F32>(a.out, number, values);
}
DEVICE int64_t chosen(const int64_t *index, int64_t item, int64_t count) {
    const int64_t i = index ? index[item] : 0, from_end = i < 0 ? i + count : i;
    return from_end >= 0 && from_end < count ? from_end : -1;
}
/* A warp for each element of out: lanes take groups in turn, a group's values in order. */
KERNEL(gm_quantized_matmul, cuda_group_args, CUDA_THREADS) {
    const int64_t at = block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP, tokens = a.items * a.tokens;
    const bool real = at < tokens * a.rows;
    const int64_t token = real ? at / a.rows : 0, row = real ? at % a.rows : 0, item = token / a.tokens;
    const int64_t x_number = chosen(a.x_index, item, a.x_count), matrix = chosen(a.matrix_index, item, a.matrices);
    float sum = 0;
    if (real && x_number >= 0 && matrix >= 0) {
        const int64_t x = (x_number * a.tokens + token % a.tokens) * a.k, line = matrix * a.rows + row;
        const uint8_t *fields = (const uint8_t *)a.weight + line * a.k * a.bits / 8;
        for (int64_t g = thread_index() % WARP; g < a.k / a.group; g += WARP)
            for (int64_t i = g * a.group; i < (g + 1) * a.group; i++)
                sum = fmaf(weight_of(a, fields, i, line * (a.k / a.group)), load_float(a.x, x + i, a.x_type), sum);
    }
    sum = join_warp(sum, [](float x, float y) { return x + y; });
    if (real && thread_index() % WARP == 0) store_float(a.out, at, sum, a.out_type);
}
/* ---- 4-bit affine matrices, groups of 32, 64 or 128: each warp of a block makes two elements of out, a lane with 32
 * fields of every 1024. x is in the block's memory as float32, in the order in which lanes read it, beside the sums of
 * each 32: of a lane's fields q, scale * sum(q * x) + bias * sum(x) is added to what the lane has. ---- */
#define QMM_LINES 2
#define QMM_CHUNK 1024
/* Where x[i] is: [chunk][i / 4 of a lane's][lane][i % 4]. */
DEVICE int64_t qmm_place(int64_t i) {
    const int64_t chunk = i / QMM_CHUNK, lane = i % QMM_CHUNK / 32, part = i % 32 / 4;
    return chunk * QMM_CHUNK + part * 128 + lane * 4 + i % 4;
}
typedef pack<uint32_t, 4> qmm_fields;
struct qmm_group {
    qmm_fields fields;
    float scale, bias;
};
DEVICE qmm_group read_qmm_group(const cuda_group_args &a, int64_t line, int64_t first) {
    const int64_t at = line * a.k + first, g = at / a.group; /* rows are whole groups */
    return {*(const qmm_fields *)((const uint8_t *)a.weight + at / 2), load_float(a.scales, g, a.scale_type),
            load_float(a.biases, g, a.scale_type)};
}
KERNEL(gm_quantized_matmul_4, cuda_group_args, CUDA_THREADS) {
    constexpr int LINES = QMM_LINES, WARPS = CUDA_THREADS / WARP;
    const int64_t blocks = (a.rows + LINES * WARPS - 1) / (LINES * WARPS);
    const int64_t token = block_index() / blocks, item = token / a.tokens;
    const int64_t row = (block_index() % blocks * WARPS + thread_index() / WARP) * LINES;
    const int64_t x_number = chosen(a.x_index, item, a.x_count), matrix = chosen(a.matrix_index, item, a.matrices);
    const int64_t from = (x_number * a.tokens + token % a.tokens) * a.k, pieces = (a.k + QMM_CHUNK - 1) / QMM_CHUNK;
    const int lane = thread_index() % WARP;
    const bool real = x_number >= 0 && matrix >= 0;
    float *x = (float *)block_memory(), *sums = x + pieces * QMM_CHUNK;
    qmm_group next[LINES] = {};
    UNROLL for (int l = 0; l < LINES; l++)
        if (real && row + l < a.rows && lane * 32 < a.k)
            next[l] = read_qmm_group(a, matrix * a.rows + row + l, lane * 32);
    for (int64_t g = thread_index(); g < pieces * 32; g += CUDA_THREADS) {
        float sum = 0;
        UNROLL for (int i = 0; i < 32; i++) {
            const float value = real && g * 32 + i < a.k ? load_float(a.x, from + g * 32 + i, a.x_type) : 0.0f;
            x[qmm_place(g * 32 + i)] = value;
            sum += value;
        }
        sums[g] = sum;
    }
    barrier();
    float out[LINES] = {};
    for (int64_t c = 0; c < pieces; c++) {
        qmm_group group[LINES];
        const int64_t first = (c + 1) * QMM_CHUNK + lane * 32;
        UNROLL for (int l = 0; l < LINES; l++) {
            group[l] = next[l];
            if (real && row + l < a.rows && first < a.k) next[l] = read_qmm_group(a, matrix * a.rows + row + l, first);
        }
        if (c * QMM_CHUNK + lane * 32 >= a.k) break;
        float dots[LINES] = {};
        UNROLL for (int word = 0; word < 4; word++) {
            float values[8];
            UNROLL for (int part = 0; part < 2; part++) {
                const pack<float, 4> four = *(
                    const pack<float, 4> *)&x[c * QMM_CHUNK + (2 * word + part) * 128 + lane * 4];
                UNROLL for (int i = 0; i < 4; i++)
                    values[4 * part + i] = four.at[i];
            }
            UNROLL for (int l = 0; l < LINES; l++) {
                const uint32_t fields = group[l].fields.at[word];
                UNROLL for (int i = 0; i < 8; i++) /* 2^23 + q, less 2^23 */
                    dots[l] = fmaf(float_of_bits((fields >> 4 * i & 15) | 0x4b000000u) - 0x1p23f, values[i], dots[l]);
            }
        }
        const float sum = sums[c * 32 + lane];
        UNROLL for (int l = 0; l < LINES; l++)
            out[l] = fmaf(group[l].scale, dots[l], fmaf(group[l].bias, sum, out[l]));
    }
    UNROLL for (int l = 0; l < LINES; l++) {
        out[l] = join_warp(out[l], [](float p, float q) { return p + q; });
        if (lane == 0 && row + l < a.rows) store_float(a.out, token * a.rows + row + l, out[l], a.out_type);
    }
}
/* ---- affine matrices of 4 or 8 bits, where x and the scales are of one type of 16 bits, and those of MXFP4 where x is
 * of one, by the tensor cores ----
 * A block makes spans of 16 elements of out. Each of its eight warps has every eighth stretch along k, 128 bytes of a
 * row, and copies them ahead of itself: of four rows by one request, as requests are what such a product waits for.
 * Lane (g, t) gets of a stretch, of rows g / 2 + 4 j, run t of half g % 2: 16 bytes. Half a stretch of a row is a row
 * of the tensor cores', and a column is a run: 2 t + h for run t of half h; so each run gets its own scale, and lane
 * (g, t) gets the sums of its own four. Fields are in the low bits of float16, where they are whole multiples of 2^-24,
 * and floats of four bits at bits 15, 11, 10 and 9, where they are times 2^-14 what they are;
 * x of a warp is times a power of two that brings its largest to [2^13, 2^14). ---- */
#define QMM_ROWS 16
#define QMM_PARTS CUDA_QMM_PARTS
#define QMM_AHEAD CUDA_QMM_AHEAD
#define QMM_PIECES 128 /* of 16 bytes, of a stretch */
/* RUN, STRETCH: values; EACH: of a stretch of x, a lane's; BATCH: stretches of x that a warp reads at once. */
template <int BITS_, bool FLOATS_> struct qmm_form {
    static constexpr bool FLOATS = FLOATS_; /* and their scales are powers of two, of a byte, without biases */
    static constexpr int SCALE_BYTES = FLOATS ? 1 : 2, SCALES = FLOATS ? 1 : 2;
    static constexpr float UNIT = FLOATS ? 0x1p14f : 0x1p24f;
    static constexpr int BITS = BITS_, RUN = 128 / BITS, STRETCH = 8 * RUN, EACH = STRETCH / WARP, BATCH = 64 / EACH;
};
/* The block's memory: after what warps have copied of matrices. */
struct qmm_room {
    qmm_fields *x; /* of a stretch, [RUN / 8][run]: see stage_x */
    float *runs;   /* sums of x */
    char *scales;  /* [spans][scales, and biases][QMM_ROWS][groups], as they lie in memory */
    int spans, groups;
};
struct qmm_source {
    const char *weight, *scales, *biases;
    const uint16_t *x;
    int k, rows, end; /* end: the first span that is another block's */
    int part, stretches;
};
/* Where a warp copies from next. */
struct qmm_cursor {
    const char *weight; /* the lane's first row */
    int row, span, stretch, slot, scales;
};
template <class FORM> DEVICE void copy_scales(const qmm_source &p, const qmm_room &room, qmm_cursor &at) {
    const int row = room.groups * FORM::SCALE_BYTES, size = QMM_ROWS * row, rows = p.rows - at.span * QMM_ROWS;
    const int left = (rows < QMM_ROWS ? rows : QMM_ROWS) * row;
    const int64_t from = (int64_t)at.span * size;
    char *const to = room.scales + at.scales * FORM::SCALES * size;
    for (int i = thread_index() * 16; i < left; i += QMM_PARTS * WARP * 16) {
        if (left - i >= 16) {
            copy_16(to + i, p.scales + from + i, 16);
            if (!FORM::FLOATS) copy_16(to + size + i, p.biases + from + i, 16);
            continue;
        }
        _Pragma("unroll 1") for (int j = i; j < left; j++) { /* of the matrix's last row */
            to[j] = p.scales[from + j];
            if (!FORM::FLOATS) to[size + j] = p.biases[from + j];
        }
    }
    at.scales = at.scales + 1 == room.spans ? 0 : at.scales + 1;
}
template <class FORM> DEVICE void find_rows(const qmm_source &p, qmm_cursor &at) {
    const int lane = thread_index() % WARP, g = lane / 4, t = lane % 4;
    at.row = at.span * QMM_ROWS + g / 2;
    at.stretch = p.part;
    at.weight = p.weight + (int64_t)at.row * (p.k / 8 * FORM::BITS) + p.part * 128 + g % 2 * 64 + t * 16;
}
/* The next stretch, and after a span's last the scales of the next span. */
template <class FORM>
DEVICE void copy_stretch(const qmm_source &p, const qmm_room &room, qmm_fields *ring, qmm_cursor &at) {
    const int lane = thread_index() % WARP;
    if (at.span < p.end) {
        const int64_t four_rows = (int64_t)p.k / 2 * FORM::BITS;
        if (at.stretch * FORM::STRETCH + (lane / 4 % 2 * 4 + lane % 4) * FORM::RUN < p.k) UNROLL
            for (int j = 0; j < 4; j++)
                if (at.row + 4 * j < p.rows)
                    copy_16_of_row(ring + at.slot * QMM_PIECES + j * WARP + lane, at.weight + j * four_rows);
        at.weight += QMM_PARTS * 128;
        at.slot = at.slot + 1 == QMM_AHEAD ? 0 : at.slot + 1;
        at.stretch += QMM_PARTS;
        if (at.stretch >= p.stretches) {
            at.span++;
            find_rows<FORM>(p, at);
            if (at.span < p.end) copy_scales<FORM>(p, room, at);
        }
    }
    commit_copies();
}
/* A power of two that brings a magnitude, finite, to [2^13, 2^14), as an exponent. */
DEVICE int exponent_to_half(float top) {
    const int exponent = (int)(bits_of_float(top) >> 23);
    return exponent < 14 ? 126 : 140 - exponent;
}
DEVICE float power_of_two(int exponent) { return float_of_bits((uint32_t)(exponent + 127) << 23); }
template <class FORM> struct qmm_x { /* of a batch of stretches */
    pack<uint16_t, FORM::EACH> of[FORM::BATCH];
    METHOD void read(const qmm_source &p, int first) {
        UNROLL for (int i = 0; i < FORM::BATCH; i++) {
            const int at = (first + i * QMM_PARTS) * FORM::STRETCH + thread_index() % WARP * FORM::EACH;
            of[i] = {};
            if (at < p.k) of[i] = *(const pack<uint16_t, FORM::EACH> *)(p.x + at);
        }
    }
};
/* x of a warp's stretches to its room as the tensor cores take it, of a word of 8 fields 0 4 1 5 2 6 3 7, odd ones
 * divided by 16, or of a word of 4 fields 0 2 1 3; and sums of runs, times 2^-24. All is times a power of two: returns
 * the one that takes it back. x: what read(p, p.part) reads. */
template <int TYPE, class FORM> DEVICE float stage_x(const qmm_source &p, const qmm_room &room, qmm_x<FORM> &x) {
    constexpr uint32_t INFINITE = TYPE == GM_T_F16 ? 0x7c00 : 0x7f80;
    constexpr int EACH = FORM::EACH, HALF = EACH / 2, AT_ONCE = FORM::BATCH * QMM_PARTS;
    const int lane = thread_index() % WARP, word = lane % 4, run = lane / 4;
    uint32_t top = 0;
    for (int first = p.part; first < p.stretches; first += AT_ONCE) {
        if (first > p.part) x.read(p, first);
        UNROLL for (int i = 0; i < FORM::BATCH; i++) UNROLL
            for (int j = 0; j < EACH; j++) {
                const uint32_t magnitude = x.of[i].at[j] & 0x7fffu;
                top = magnitude > top && magnitude < INFINITE ? magnitude : top;
            }
    }
    const int exponent = exponent_to_half(widen<TYPE>((uint16_t)most_of_lanes(top)));
    const float factor = power_of_two(exponent);
    for (int first = p.part; first < p.stretches; first += AT_ONCE) {
        if (p.stretches - p.part > AT_ONCE) x.read(p, first);
        UNROLL for (int i = 0; i < FORM::BATCH; i++) {
            const int stretch = first + i * QMM_PARTS;
            if (stretch >= p.stretches) break;
            float value[EACH], sum = 0;
            UNROLL for (int j = 0; j < EACH; j++) {
                value[j] = widen<TYPE>(x.of[i].at[j]) * factor;
                sum += value[j];
            }
            sum += lane_xor(sum, 1);
            sum += lane_xor(sum, 2);
            if (word == 0) room.runs[stretch * 8 + run] = sum * 0x1p-24f;
            pack<uint32_t, HALF> pairs;
            UNROLL for (int j = 0; j < HALF; j++) {
                const float less = FORM::BITS == 4 && !FORM::FLOATS && j % 2 ? 0.0625f : 1.0f;
                pairs.at[j] = two_halves(value[j] * less, value[j + HALF] * less);
            }
            ((pack<uint32_t, HALF> *)
                 room.x)[(stretch * FORM::STRETCH / 8 + word * HALF / 4 * 8 + run) * (4 / HALF) + word % (4 / HALF)] =
                pairs;
        }
    }
    return power_of_two(-exponent);
}
/* Pair i of a word's fields, side by side as float16: two nibbles of its lower and its upper half, or two bytes. */
template <class FORM> DEVICE uint32_t field_pair(uint32_t word, int i) {
    if (FORM::FLOATS) {
        const uint32_t magnitudes = i < 3 ? word << (9 - 4 * i) : word >> 3;
        return (word << (12 - 4 * i) & 0x80008000u) | (magnitudes & 0x0e000e00u);
    }
    if (FORM::BITS == 8) return word >> 8 * i & 0x00ff00ffu;
    return word >> i / 2 * 8 & (i % 2 ? 0x00f000f0u : 0x000f000fu);
}
/* Scale number i: of float16 or bfloat16, or the exponent of a float. */
template <int TYPE, class FORM> DEVICE float scale_at(const char *scales, int i) {
    if (!FORM::FLOATS) return widen<TYPE>(((const uint16_t *)scales)[i]);
    return exponent_scale(((const uint8_t *)scales)[i]);
}
/* out += a stretch of four rows. x: zeros, where a lane has no run of the tensor cores' column. Scales that are powers
 * of two may be near a float's least or greatest: their sums are brought to size before. */
template <int TYPE, class FORM, int SHIFT>
DEVICE void add_stretch(const qmm_source &p, const qmm_room &room, const qmm_fields *ring, const char *scales,
                        int stretch, float back, qmm_fields (&x)[FORM::RUN / 8], float (&out)[4]) {
    constexpr int STEPS = FORM::RUN / 16; /* of the tensor cores, of a word */
    const int lane = thread_index() % WARP, g = lane / 4, t = lane % 4, run = g % 2 * 4 + t;
    float sums[2][4] = {};
    qmm_fields fields[4];
    UNROLL for (int j = 0; j < 4; j++)
        fields[j] = ring[j * WARP + lane];
    if (g / 2 == t) UNROLL
        for (int i = 0; i < FORM::RUN / 8; i++) x[i] = room.x[stretch * (FORM::STRETCH / 8) + i * 8 + run];
    UNROLL for (int word = 0; word < 4; word++) UNROLL
        for (int step = 0; step < STEPS; step++) UNROLL
            for (int r = 0; r < 2; r++) {
                const uint32_t near = fields[2 * r].at[word], far = fields[2 * r + 1].at[word];
                const uint32_t rows[4] = {field_pair<FORM>(near, 2 * step), field_pair<FORM>(far, 2 * step),
                                          field_pair<FORM>(near, 2 * step + 1), field_pair<FORM>(far, 2 * step + 1)};
                const int at = (word * STEPS + step) * 2;
                mma_f16(sums[r], rows, &x[at / 4].at[at % 4]);
            }
    const int first = stretch * FORM::STRETCH + run * FORM::RUN;
    if (first >= p.k) return;
    const float sum = room.runs[stretch * 8 + run];
    const int own = g / 2 * room.groups + (first >> SHIFT), to_biases = QMM_ROWS * room.groups;
    UNROLL for (int j = 0; j < 4; j++) {
        const float *of_row = &sums[j / 2][j % 2 * 2], sized = g % 2 ? of_row[1] : of_row[0];
        const float dot = FORM::FLOATS ? sized * back * FORM::UNIT : sized;
        const int at = own + j * 4 * room.groups;
        if (!FORM::FLOATS) out[j] = fmaf(scale_at<TYPE, FORM>(scales, at + to_biases), sum, out[j]);
        out[j] = fmaf(scale_at<TYPE, FORM>(scales, at), dot, out[j]);
    }
}
typedef float qmm_parts[QMM_ROWS][QMM_PARTS]; /* of a span of out */
template <int TYPE, class FORM, int SHIFT> DEVICE void quantized_halves(const cuda_group_args &a, qmm_parts *parts) {
    const int spans = (int)((a.rows + QMM_ROWS - 1) / QMM_ROWS), blocks = a.blocks;
    const int64_t item = block_index() / (blocks * a.tokens), of_item = block_index() % (blocks * a.tokens);
    const int64_t token = of_item % a.tokens, number = of_item / a.tokens, line = item * a.tokens + token;
    const int64_t x_number = chosen(a.x_index, item, a.x_count), matrix = chosen(a.matrix_index, item, a.matrices);
    const int begin = (int)(spans * number / blocks), end = (int)(spans * (number + 1) / blocks);
    const int lane = thread_index() % WARP, part = warp_number();
    if (x_number < 0 || matrix < 0) {
        for (int row = begin * QMM_ROWS + thread_index(); row < end * QMM_ROWS; row += QMM_PARTS * WARP)
            if (row < a.rows) store_float(a.out, line * a.rows + row, 0, a.out_type);
        return;
    }
    const int k = (int)a.k, in_k = (k + FORM::STRETCH - 1) / FORM::STRETCH;
    const int stretches = in_k < QMM_PARTS ? QMM_PARTS : in_k; /* each warp has one, if only of zeros */
    const int64_t values = matrix * a.rows * k;
    const qmm_source p = {(const char *)a.weight + values / 8 * FORM::BITS,
                          (const char *)a.scales + (values >> SHIFT) * FORM::SCALE_BYTES,
                          FORM::FLOATS ? nullptr : (const char *)a.biases + (values >> SHIFT) * 2,
                          (const uint16_t *)a.x + (x_number * a.tokens + token) * k,
                          k,
                          (int)a.rows,
                          end,
                          part,
                          stretches};
    qmm_fields *const memory = (qmm_fields *)block_memory(), *const ring = memory + part * QMM_AHEAD * QMM_PIECES;
    qmm_fields *const x_room = memory + QMM_PARTS * QMM_AHEAD * QMM_PIECES;
    const qmm_room room = {x_room, (float *)(x_room + stretches * (FORM::STRETCH / 8)),
                           (char *)(x_room + stretches * (FORM::STRETCH / 8 + 2)), a.scale_spans, k >> SHIFT};
    qmm_x<FORM> first_x; /* asked for before all that is copied ahead */
    first_x.read(p, part);
    qmm_cursor next = {nullptr, 0, begin, 0, 0, 0};
    find_rows<FORM>(p, next);
    copy_scales<FORM>(p, room, next);
    UNROLL for (int i = 0; i < QMM_AHEAD - 1; i++)
        copy_stretch<FORM>(p, room, ring, next);
    const float back = stage_x<TYPE, FORM>(p, room, first_x);
    wait_copies<QMM_AHEAD - 2>();
    barrier();
    qmm_fields x[FORM::RUN / 8] = {};
    int slot = 0, of_scales = 0;
    for (int span = begin; span < end; span++) {
        const char *scales = room.scales + of_scales * FORM::SCALES * QMM_ROWS * room.groups * FORM::SCALE_BYTES;
        float out[4] = {};
        for (int stretch = part; stretch < stretches; stretch += QMM_PARTS) {
            wait_copies<QMM_AHEAD - 2>();
            warp_barrier(); /* what the lane copied is not read before */
            copy_stretch<FORM>(p, room, ring, next);
            add_stretch<TYPE, FORM, SHIFT>(p, room, ring + slot * QMM_PIECES, scales, stretch, back, x, out);
            slot = slot + 1 == QMM_AHEAD ? 0 : slot + 1;
        }
        of_scales = of_scales + 1 == room.spans ? 0 : of_scales + 1;
        UNROLL for (int j = 0; j < 4; j++) {
            out[j] += lane_xor(out[j], 1);
            out[j] += lane_xor(out[j], 2);
            out[j] += lane_xor(out[j], 4);
            const float sum = FORM::FLOATS ? out[j] : out[j] * back * FORM::UNIT;
            if (lane % 8 == 0) parts[span % 2][lane / 8 + 4 * j][part] = sum;
        }
        barrier(); /* and the scales of the next span have come */
        const int row = span * QMM_ROWS + thread_index();
        if (thread_index() >= QMM_ROWS || row >= a.rows) continue;
        float sum = 0;
        UNROLL for (int w = 0; w < QMM_PARTS; w++)
            sum += parts[span % 2][thread_index()][w];
        store_float(a.out, line * a.rows + row, sum, a.out_type);
    }
}
template <int TYPE, int BITS> DEVICE void quantized_by_groups(const cuda_group_args &a, qmm_parts *parts) {
    if (a.group == 32) quantized_halves<TYPE, qmm_form<BITS, false>, 5>(a, parts);
    else if (a.group == 64) quantized_halves<TYPE, qmm_form<BITS, false>, 6>(a, parts);
    else quantized_halves<TYPE, qmm_form<BITS, false>, 7>(a, parts);
}
template <int TYPE> DEVICE void quantized_by_bits(const cuda_group_args &a) {
    SHARED qmm_parts parts[2];
    if (a.mode == GM_MXFP4) quantized_halves<TYPE, qmm_form<4, true>, 5>(a, parts);
    else if (a.bits == 4) quantized_by_groups<TYPE, 4>(a, parts);
    else quantized_by_groups<TYPE, 8>(a, parts);
}
KERNEL_OF_TWO(gm_quantized_halves_f16, cuda_group_args, CUDA_THREADS) { quantized_by_bits<GM_T_F16>(a); }
KERNEL_OF_TWO(gm_quantized_halves_bf16, cuda_group_args, CUDA_THREADS) { quantized_by_bits<GM_T_BF16>(a); }

KERNEL(gm_quantized_matmul_columns, cuda_group_args, CUDA_THREADS) {
    const int64_t at = block_index() * CUDA_THREADS + thread_index();
    if (at >= a.items * a.tokens * a.k) return;
    const int64_t token = at / a.k, column = at % a.k, item = token / a.tokens;
    const int64_t x_number = chosen(a.x_index, item, a.x_count), matrix = chosen(a.matrix_index, item, a.matrices);
    float sum = 0;
    for (int64_t r = 0; r < a.rows && x_number >= 0 && matrix >= 0; r++) {
        const int64_t line = matrix * a.rows + r;
        const uint8_t *fields = (const uint8_t *)a.weight + line * a.k * a.bits / 8;
        const float x = load_float(a.x, (x_number * a.tokens + token % a.tokens) * a.rows + r, a.x_type);
        sum = fmaf(weight_of(a, fields, column, line * (a.k / a.group)), x, sum);
    }
    store_float(a.out, at, sum, a.out_type);
}

/* ---- rotary positions ---- */
KERNEL(gm_rope_table, cuda_rope_table_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index();
    if (i >= a.rows * a.half) return;
    const int64_t row = i / a.half, k = i % a.half, at = row * 2 * a.half + k;
    const float frequency = a.freqs ? a.factor / a.freqs[k]
                                    : (float)(pow((double)a.base, -(double)k / (double)a.half) * (double)a.factor);
    const float angle = (float)((int64_t)a.positions[row / a.steps] + row % a.steps) * frequency;
    const float sine = sine_of(angle, false);
    a.out[at] = sine_of(angle, true);
    a.out[at + a.half] = a.inverse ? -sine : sine;
}
/* A thread for each pair, and for what is not turned: x may be out. */
KERNEL(gm_rope, cuda_rope_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index(), items = a.dim - a.half, row = i / items;
    const int64_t item = i % items;
    if (row >= a.rows) return;
    const int64_t step = row % a.steps, head = row / a.steps % a.heads, batch = row / a.steps / a.heads;
    const int64_t x = batch * a.batch_stride + head * a.head_stride + step * a.step_stride, out = row * a.dim;
    if (item >= a.half) {
        store_float(a.out, out + item + a.half, load_float(a.x, x + item + a.half, a.type), a.type);
        return;
    }
    const float *angles = a.angles + batch * a.angle_stride + step * 2 * a.half;
    const int64_t d = a.interleaved ? 2 * item : item, e = a.interleaved ? d + 1 : item + a.half;
    const float p = load_float(a.x, x + d, a.type), q = load_float(a.x, x + e, a.type);
    const float c = angles[item], s = angles[a.half + item];
    store_float(a.out, out + d, a.interleaved ? p * c - q * s : fmaf(-q, s, p * c), a.type);
    store_float(a.out, out + e, a.interleaved ? q * c + p * s : fmaf(p, s, q * c), a.type);
}

/* ---- recurrences ---- */
/* One token for a row of the state, by a warp: S *= gamma, S += (v - S . k) beta k; S . q. */
DEVICE float delta_step(float *s, int64_t n, const float *q, const float *k, float v, float gamma, float beta) {
    const auto add = [](float x, float y) { return x + y; };
    float sum = 0;
    for (int64_t i = thread_index() % WARP; i < n; i += WARP) sum = fmaf(s[i] * gamma, k[i], sum);
    const float change = (v - join_warp(sum, add)) * beta;
    sum = 0;
    for (int64_t i = thread_index() % WARP; i < n; i += WARP) {
        s[i] = fmaf(change, k[i], s[i] * gamma);
        sum = fmaf(s[i], q[i], sum);
    }
    return join_warp(sum, add);
}
KERNEL(gm_gated_delta, cuda_gated_delta_args, CUDA_THREADS) {
    const gm_gated_delta_args &g = a.layer;
    const int64_t r = block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP;
    if (r >= a.rows) return;
    const int64_t head = r / g.n_values % g.n_heads, batch = r / g.n_values / g.n_heads;
    float *out = g.out + r * (g.n_tokens + g.n_keys), *s = out + g.n_tokens;
    for (int64_t i = thread_index() % WARP; i < g.n_keys; i += WARP) s[i] = g.state ? g.state[r * g.n_keys + i] : 0.0f;
    for (int64_t t = 0; t < g.n_tokens; t++) {
        const int64_t token = batch * g.n_tokens + t, at = token * g.n_heads + head;
        const int64_t key = (token * g.n_key_heads + head / (g.n_heads / g.n_key_heads)) * g.n_keys;
        float value = 0;
        if (!g.mask || g.mask[token])
            value = delta_step(s, g.n_keys, g.q + key, g.k + key, g.v[at * g.n_values + r % g.n_values], g.gamma[at],
                               g.beta[at]);
        if (thread_index() % WARP == 0) out[t] = value;
    }
}

/* Rows of a state that is kept from pass to pass: of zeros where a sequence begins. */
KERNEL(gm_recurrent_delta, cuda_recurrent_delta_args, CUDA_THREADS) {
    const gm_cached_gated_delta_args &g = a.layer;
    const int64_t r = block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP, rows = g.n_heads * g.n_values;
    if (r >= a.sequences * rows) return;
    const int64_t sequence = r / rows, head = r % rows / g.n_values, value = r % g.n_values;
    const int64_t key_head = g.tiled ? head % g.n_key_heads : head / (g.n_heads / g.n_key_heads);
    const int64_t first = g.first[sequence], end = g.first[sequence + 1];
    float *s = g.states[sequence].state + r % rows * g.n_keys;
    if (first < end && g.positions[first] == 0)
        for (int64_t i = thread_index() % WARP; i < g.n_keys; i += WARP) s[i] = 0;
    for (int64_t t = first; t < end; t++) {
        const int64_t at = t * g.n_heads + head, key = (t * g.n_key_heads + key_head) * g.n_keys;
        const float out = delta_step(s, g.n_keys, g.q + key, g.k + key, g.v[at * g.n_values + value], g.decay[at],
                                     g.beta[at]);
        if (thread_index() % WARP == 0) g.out[at * g.n_values + value] = out;
    }
}

/* ---- convolutions: a thread makes one element, over taps, then channels ---- */
DEVICE int64_t conv_position(const gm_convolution_args &c, int d, int64_t out, int64_t tap) {
    const int64_t at = out * c.stride[d] + tap * c.dilation[d] - c.low[d], spread = c.spread[d];
    if (at < 0 || at % spread) return -1;
    return at / spread < c.in[d] ? at / spread : -1;
}
KERNEL_OF_THREE(gm_convolution, cuda_convolution_args, CUDA_THREADS) {
    const gm_convolution_args &c = a.conv;
    const int64_t positions = c.positions[0] * c.positions[1] * c.positions[2], filters = c.groups * c.filters;
    const int64_t i = block_index() * CUDA_THREADS + thread_index();
    if (i >= a.images * positions * filters) return;
    const int64_t filter = i % filters, position = i / filters % positions, image = i / filters / positions;
    const int64_t out[3] = {position / (c.positions[1] * c.positions[2]), position / c.positions[2] % c.positions[1],
                            position % c.positions[2]};
    const int64_t x = image * c.image + filter / c.filters * c.channels;
    int64_t w = filter * c.taps[0] * c.taps[1] * c.taps[2] * c.channels;
    float sum = 0;
    for (int64_t t0 = 0; t0 < c.taps[0]; t0++)
        for (int64_t t1 = 0; t1 < c.taps[1]; t1++)
            for (int64_t t2 = 0; t2 < c.taps[2]; t2++, w += c.channels) {
                const int64_t at0 = conv_position(c, 0, out[0], t0), at1 = conv_position(c, 1, out[1], t1);
                const int64_t at2 = conv_position(c, 2, out[2], t2);
                if (at0 < 0 || at1 < 0 || at2 < 0) continue;
                const int64_t from = x + at0 * c.steps[0] + at1 * c.steps[1] + at2 * c.steps[2];
                for (int64_t k = 0; k < c.channels; k++)
                    sum = fmaf(load_float(c.x, from + k, c.type), load_float(c.w, w + k, c.type), sum);
            }
    store_float(c.out, i, sum + 0.0f, c.type); /* not -0, as of products that underflow */
}

/* ---- attention over plain arrays: a block for each query, over blocks of 256 keys in order ---- */
#define LOWEST_SCORE -0x1.fffffep+127f
DEVICE float masked_score(const gm_sdpa_args &s, float score, int64_t batch, int64_t head, int64_t query, int64_t key) {
    const int64_t seen = s.causal ? query + 1 + s.keys - s.queries : s.keys;
    score *= s.scale;
    if (s.mask) {
        const int64_t at = batch * s.mask_strides[0] + head * s.mask_strides[1] + query * s.mask_strides[2] +
                           key * s.mask_strides[3];
        if (s.mask_type == GM_T_BOOL) score = ((const uint8_t *)s.mask)[at] ? score : LOWEST_SCORE;
        else score += load_float(s.mask, at, s.mask_type);
    }
    return key < seen ? score : LOWEST_SCORE;
}
KERNEL(gm_sdpa, cuda_sdpa_args, CUDA_THREADS) {
    SHARED float q[GM_SDPA_DIM], weight[CUDA_THREADS], shared[CUDA_THREADS / WARP];
    const gm_sdpa_args &s = a.sdpa;
    const auto greater = [](float x, float y) { return y != y || y > x ? y : x; };
    const auto add = [](float x, float y) { return x + y; };
    const int64_t row = block_index(), query = row % s.queries, head = row / s.queries % s.n_heads;
    const int64_t batch = row / s.queries / s.n_heads, kv_head = head / (s.n_heads / s.n_kv_heads);
    const int64_t q_at = batch * s.q_strides[0] + head * s.q_strides[1] + query * s.q_strides[2];
    const int64_t k_at = batch * s.k_strides[0] + kv_head * s.k_strides[1];
    const int64_t v_at = batch * s.v_strides[0] + kv_head * s.v_strides[1];
    float m = s.sinks ? s.sinks[head] : -INFINITY, l = s.sinks ? 1.0f : 0.0f, o[GM_SDPA_DIM / CUDA_THREADS] = {0, 0};
    for (int64_t d = thread_index(); d < s.dim; d += CUDA_THREADS) q[d] = load_float(s.q, q_at + d, s.type);
    barrier();
    for (int64_t first = 0; first < s.keys; first += CUDA_THREADS) {
        const int64_t key = first + thread_index(),
                      keys = s.keys - first < CUDA_THREADS ? s.keys - first : CUDA_THREADS;
        float score = -INFINITY;
        if (key < s.keys) {
            float dot = 0;
            for (int64_t d = 0; d < s.dim; d++)
                dot = fmaf(load_float(s.k, k_at + key * s.k_strides[2] + d, s.type), q[d], dot);
            score = masked_score(s, dot, batch, head, query, key);
        }
        const float top = greater(m, join_block(score, shared, greater));
        if (top == -INFINITY) continue; /* all are masked by minus infinity: the same for the whole block */
        const float keep = m == -INFINITY ? 0.0f : vf_exp(m - top), own = vf_exp(score - top);
        l = l * keep + join_block(key < s.keys ? own : 0.0f, shared, add);
        m = top;
        weight[thread_index()] = key < s.keys ? own : 0.0f;
        barrier();
        UNROLL for (int i = 0; i < GM_SDPA_DIM / CUDA_THREADS; i++) {
            const int64_t d = thread_index() + i * CUDA_THREADS;
            float sum = 0;
            for (int64_t j = 0; j < keys && d < s.value_dim; j++)
                sum = fmaf(weight[j], load_float(s.v, v_at + (first + j) * s.v_strides[2] + d, s.type), sum);
            o[i] = o[i] * keep + sum;
        }
        barrier();
    }
    UNROLL for (int i = 0; i < GM_SDPA_DIM / CUDA_THREADS; i++) {
        const int64_t d = thread_index() + i * CUDA_THREADS;
        if (d < s.value_dim)
            store_float(s.out, row * s.value_dim + d, s.keys == 0 && !s.sinks ? 0.0f : o[i] / l, s.type);
    }
}
