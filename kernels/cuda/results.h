/* results.h - of what type the results of the functions of unary.def and binary.def are, for host and device. */
#ifndef GOMLX_CUDA_RESULTS_H
#define GOMLX_CUDA_RESULTS_H
#ifdef __cplusplus
#define RESULT DEVICE constexpr
#else
#define RESULT static inline
#endif

RESULT bool gives_bool(int op) {
    switch (op) {
#define UNARY_VALUE(name, ...)                                                                                         \
    case GM_U_##name: break;
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: return true;
#include "unary.def"
    }
    return false;
}
/* Of complex numbers. */
RESULT bool gives_real_part(int op) {
    switch (op) {
#define SAME false
#define MODULUS false
#define REAL_PART true
#define UNARY_VALUE(name, doc, result, ...)                                                                            \
    case GM_U_##name: return result;
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: break;
#include "unary.def"
#undef SAME
#undef MODULUS
#undef REAL_PART
    }
    return false;
}
/* Of two operands. */
RESULT bool gives_bool_2(int op) {
    switch (op) {
#define BINARY_VALUE(name, ...)                                                                                        \
    case GM_B_##name: break;
#define BINARY_TEST(name, ...)                                                                                         \
    case GM_B_##name: return true;
#include "binary.def"
    }
    return false;
}
#undef RESULT
#endif
