/* exact.cuh - sums of float32 without roundings, in integers, which have one sum in any order: so blocks may add to
 * them as they come. A sum is CUDA_SUM_CELLS numbers of 64 bits: one for each 16 exponents, in units of the least bit
 * of the first of these, which 2^24 elements do not overflow; then how many infinities there were, of either sign, and
 * how many NaNs. */
#ifndef GOMLX_CUDA_EXACT_CUH
#define GOMLX_CUDA_EXACT_CUH
#include "args.h"
#include "vocabulary.cuh"

constexpr int SUM_WINDOWS = 16, SUM_INFINITIES = 16, SUM_NANS = 17;
constexpr int SUM_DIGITS = SUM_WINDOWS + 4; /* of 16 bits, in units of 2^-150 */

/* To which cell a number adds, and what. */
struct sum_part {
    uint32_t cell;
    int64_t value;
};
DEVICE sum_part sum_part_of(float x) {
    const uint32_t bits = bits_of_float(x), exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;
    const bool negative = bits >> 31;
    if (exponent == 255) return fraction ? sum_part{SUM_NANS, 1} : sum_part{SUM_INFINITIES, negative ? 1LL << 32 : 1};
    const uint32_t size = exponent ? fraction | 0x800000 : fraction << 1; /* exponents 0 and 1 have the same unit */
    const int64_t value = (int64_t)((uint64_t)size << (exponent & 15));
    return {exponent >> 4, negative ? -value : value};
}
/* A whole number of the unit of an exponent up to SUM_LAST, as what it adds to the cell of this and to the next. */
constexpr int SUM_LAST = 16 * (SUM_WINDOWS - 1) - 1;
struct sum_parts { sum_part low, high; };
DEVICE sum_parts sum_parts_of(int64_t units, int exponent) {
    const int by = exponent & 15;
    const int64_t low = units & ((1 << (16 - by)) - 1);
    const uint32_t cell = (uint32_t)exponent >> 4;
    return {{cell, low << by}, {cell + 1, units >> (16 - by)}};
}
/* The digits of a sum's size, from the lowest: of its cells and of more. The result: whether the sum is negative. */
DEVICE bool sum_digits(const int64_t (&cell)[CUDA_SUM_CELLS], const sum_part (&more)[3],
                       uint32_t (&digit)[SUM_DIGITS]) {
    int64_t carry = 0;
    UNROLL for (int i = 0; i < SUM_WINDOWS; i++) {
        for (const sum_part &part : more)
            if ((int)part.cell == i) carry += part.value;
        const int64_t low = (cell[i] & 0xffff) + (carry & 0xffff);
        digit[i] = (uint32_t)low & 0xffff;
        carry = (cell[i] >> 16) + (carry >> 16) + (low >> 16);
    }
    UNROLL for (int i = SUM_WINDOWS; i < SUM_DIGITS; i++)
        digit[i] = (uint32_t)(carry >> 16 * (i - SUM_WINDOWS)) & 0xffff;
    const bool negative = carry < 0;
    uint32_t up = negative;
    UNROLL for (int i = 0; i < SUM_DIGITS; i++) {
        up += negative ? digit[i] ^ 0xffff : digit[i];
        digit[i] = up & 0xffff;
        up >>= 16;
    }
    return negative;
}
/* The bits of the float32 next to a size, the even one of two. */
DEVICE uint32_t rounded_digits(const uint32_t (&digit)[SUM_DIGITS]) {
    uint64_t first = 0; /* the first four digits, from the first that is not 0 on */
    uint32_t rest = 0;
    int taken = 0, top = 0;
    UNROLL for (int i = SUM_DIGITS - 1; i >= 0; i--) {
        if (taken == 4) rest |= digit[i];
        else if (taken || digit[i]) {
            if (taken == 0) top = i;
            first = first << 16 | digit[i];
            taken++;
        }
    }
    if (taken == 0) return 0;
    first <<= 16 * (4 - taken);
    const int low = 16 * (top - 3), high = 63 - leading_zeros(first) + low; /* where its bits are */
    const int unit = high - 23 > 1 ? high - 23 : 1, by = unit - low;        /* of the float32 */
    uint32_t kept = (uint32_t)(first >> by);
    const uint64_t lost = first << (64 - by), half = (uint64_t)1 << 63;
    if (lost > half || (lost == half && (rest || kept & 1))) kept++;
    return unit < 255 ? ((uint32_t)(unit - 1) << 23) + kept : 255u << 23; /* the most is infinity */
}
/* The sum of what its cells have, of units as above, and of `before`, rounded once. Where it is zero, a `before` that
 * is zero stays as it is. */
DEVICE float rounded_sum(const int64_t (&cell)[CUDA_SUM_CELLS], int64_t units, int exponent, float before) {
    const sum_part own = sum_part_of(before);
    const sum_parts others = sum_parts_of(units, exponent);
    const uint64_t infinities = (uint64_t)(cell[SUM_INFINITIES] + (own.cell == SUM_INFINITIES ? own.value : 0));
    if (infinities || cell[SUM_NANS] || own.cell == SUM_NANS) {
        const bool plus = (uint32_t)infinities != 0, minus = infinities >> 32 != 0;
        return cell[SUM_NANS] || own.cell == SUM_NANS || (plus && minus) ? NAN : plus ? INFINITY : -INFINITY;
    }
    uint32_t digit[SUM_DIGITS];
    const sum_part more[3] = {own, others.low, others.high};
    const bool negative = sum_digits(cell, more, digit);
    const uint32_t size = rounded_digits(digit);
    if (size == 0) return before == 0.0f ? before : 0.0f;
    return float_of_bits(size | (uint32_t)negative << 31);
}
#endif
