/* binary.cu - the functions of binary.def, as unary.cu has those of unary.def. */
#include "maps.cuh"

template <int TYPE, int OP> DEVICE void binary_floats(const cuda_binary_args &a) {
    typedef typename float_item<TYPE>::raw raw;
    if constexpr (binary_has(OP, true))
        map_binary<raw, raw, float_each<TYPE>::N>(
            a, [](raw x, raw y) { return narrow<TYPE>(binary_float(widen<TYPE>(x), widen<TYPE>(y), OP)); });
}
template <int TYPE, int OP> DEVICE void compare_floats(const cuda_binary_args &a) {
    typedef typename float_item<TYPE>::raw raw;
    map_binary<uint8_t, raw, float_each<TYPE>::N>(
        a, [](raw x, raw y) { return (uint8_t)binary_test(widen<TYPE>(x), widen<TYPE>(y), OP); });
}
template <class RAW, int OP> DEVICE void binary_ints_of(const cuda_binary_args &a) {
    const int type = a.type;
    constexpr int N = int_each<RAW>::N;
    const auto value = [=](RAW x, RAW y) {
        const int64_t z = binary_int(whole_of(x, type), whole_of(y, type), OP, type);
        return gives_bool_2(OP) || type == GM_T_BOOL ? (int64_t)(z != 0) : z;
    };
    if constexpr (gives_bool_2(OP)) map_binary<uint8_t, RAW, N>(a, [=](RAW x, RAW y) { return (uint8_t)value(x, y); });
    else map_binary<RAW, RAW, N>(a, [=](RAW x, RAW y) { return (RAW)value(x, y); });
}
template <int OP> DEVICE void binary_ints(const cuda_binary_args &a) {
    if constexpr (binary_has(OP, false)) {
        switch (item_size(a.type)) {
        case 1: binary_ints_of<uint8_t, OP>(a); break;
        case 2: binary_ints_of<uint16_t, OP>(a); break;
        case 4: binary_ints_of<uint32_t, OP>(a); break;
        default: binary_ints_of<uint64_t, OP>(a);
        }
    }
}
#define BINARY_VALUE(name, ...)                                                                                        \
    KERNEL(gm_binary_##name##_f32, cuda_binary_args, CUDA_THREADS) { binary_floats<GM_T_F32, GM_B_##name>(a); }        \
    KERNEL(gm_binary_##name##_f16, cuda_binary_args, CUDA_THREADS) { binary_floats<GM_T_F16, GM_B_##name>(a); }        \
    KERNEL(gm_binary_##name##_bf16, cuda_binary_args, CUDA_THREADS) { binary_floats<GM_T_BF16, GM_B_##name>(a); }      \
    KERNEL(gm_binary_##name##_int, cuda_binary_args, CUDA_THREADS) { binary_ints<GM_B_##name>(a); }
#define BINARY_TEST(name, ...)                                                                                         \
    KERNEL(gm_binary_##name##_f32, cuda_binary_args, CUDA_THREADS) { compare_floats<GM_T_F32, GM_B_##name>(a); }       \
    KERNEL(gm_binary_##name##_f16, cuda_binary_args, CUDA_THREADS) { compare_floats<GM_T_F16, GM_B_##name>(a); }       \
    KERNEL(gm_binary_##name##_bf16, cuda_binary_args, CUDA_THREADS) { compare_floats<GM_T_BF16, GM_B_##name>(a); }     \
    KERNEL(gm_binary_##name##_int, cuda_binary_args, CUDA_THREADS) { binary_ints<GM_B_##name>(a); }
#include "binary.def"
