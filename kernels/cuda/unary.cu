/* unary.cu - the functions of unary.def: one kernel for each and kind of element, so that a light one has no more
 * registers than it needs. */
#include "maps.cuh"

template <int TYPE, int OP> DEVICE void unary_floats(const cuda_unary_args &a) {
    typedef typename float_item<TYPE>::raw raw;
    constexpr int N = float_each<TYPE>::N;
    if constexpr (unary_has(OP, true))
        map_unary<raw, raw, N>(a, [](raw x) { return narrow<TYPE>(unary_float(widen<TYPE>(x), OP, TYPE)); });
}
template <int TYPE, int OP> DEVICE void test_floats(const cuda_unary_args &a) {
    typedef typename float_item<TYPE>::raw raw;
    constexpr int N = float_each<TYPE>::N;
    map_unary<uint8_t, raw, N>(a, [](raw x) { return (uint8_t)unary_test(widen<TYPE>(x), OP); });
}
template <class RAW, int OP> DEVICE void unary_ints_of(const cuda_unary_args &a) {
    const int type = a.type;
    const auto value = [=](RAW x) {
        const int64_t y = unary_int(whole_of(x, type), OP, type);
        return gives_bool(OP) || type == GM_T_BOOL ? (int64_t)(y != 0) : y;
    };
    if constexpr (gives_bool(OP))
        map_unary<uint8_t, RAW, int_each<RAW>::N>(a, [=](RAW x) { return (uint8_t)value(x); });
    else map_unary<RAW, RAW, int_each<RAW>::N>(a, [=](RAW x) { return (RAW)value(x); });
}
template <int OP> DEVICE void unary_ints(const cuda_unary_args &a) {
    if constexpr (unary_has(OP, false)) {
        switch (item_size(a.type)) {
        case 1: unary_ints_of<uint8_t, OP>(a); break;
        case 2: unary_ints_of<uint16_t, OP>(a); break;
        case 4: unary_ints_of<uint32_t, OP>(a); break;
        default: unary_ints_of<uint64_t, OP>(a);
        }
    }
}
#define UNARY_VALUE(name, ...)                                                                                         \
    KERNEL(gm_unary_##name##_f32, cuda_unary_args, CUDA_THREADS) { unary_floats<GM_T_F32, GM_U_##name>(a); }           \
    KERNEL(gm_unary_##name##_f16, cuda_unary_args, CUDA_THREADS) { unary_floats<GM_T_F16, GM_U_##name>(a); }           \
    KERNEL(gm_unary_##name##_bf16, cuda_unary_args, CUDA_THREADS) { unary_floats<GM_T_BF16, GM_U_##name>(a); }         \
    KERNEL(gm_unary_##name##_int, cuda_unary_args, CUDA_THREADS) { unary_ints<GM_U_##name>(a); }
#define UNARY_TEST(name, ...)                                                                                          \
    KERNEL(gm_unary_##name##_f32, cuda_unary_args, CUDA_THREADS) { test_floats<GM_T_F32, GM_U_##name>(a); }            \
    KERNEL(gm_unary_##name##_f16, cuda_unary_args, CUDA_THREADS) { test_floats<GM_T_F16, GM_U_##name>(a); }            \
    KERNEL(gm_unary_##name##_bf16, cuda_unary_args, CUDA_THREADS) { test_floats<GM_T_BF16, GM_U_##name>(a); }          \
    KERNEL(gm_unary_##name##_int, cuda_unary_args, CUDA_THREADS) { unary_ints<GM_U_##name>(a); }
#include "unary.def"
