/* test_kernels.c - every contract of the GPU against the processor's on random shapes, strides, types and sizes: equal
 * bits where that is promised, a tolerance in units in the last place elsewhere. GOMLX_CUDA_DRIVER and
 * GOMLX_CUDA_KERNELS choose the card, or the fake one. test_kernels [cases [contract ...]]; prints 'N passed, M
 * failed'. */
#include "decoder_checks.h"
#include "element_checks.h"
#include "layer_checks.h"
#include "order_checks.h"
#include "packed_checks.h"
#include "product_checks.h"
#include "prompt_checks.h"
#include "reduction_checks.h"

static const struct {
    const char *name;
    void (*check)(void);
    const char *promise;
} checks[] = {
    {"copy", check_copy, "equal bits"},
    {"copy_parts", check_copy_parts, "equal bits"},
    {"copy_at", check_copy_at, "equal bits"},
    {"unary", check_unary, "equal bits where the row is a vector form, else 8 ulp; complex 64"},
    {"binary", check_binary, "equal bits where the row is a vector form, else 8 ulp; complex 256"},
    {"select", check_select, "equal bits"},
    {"fused", check_fused, "equal bits"},
    {"arange", check_arange, "equal bits"},
    {"pad", check_pad, "equal bits"},
    {"reduce", check_reduce, "integers and extremes equal; sums within 64 ulp of their terms"},
    {"arg_reduce", check_arg_reduce, "equal"},
    {"best_rows", check_best_rows, "ids and logits equal, log-sums within 4 ulp"},
    {"softmax", check_softmax, "32 ulp, halves 1"},
    {"rms_norm", check_rms_norm, "64 ulp, halves 1"},
    {"layer_norm", check_layer_norm, "64 ulp of 4, halves 1"},
    {"scan", check_scan, "integers and extremes equal; sums within 64 ulp of their terms"},
    {"sort", check_sort, "equal"},
    {"partition", check_partition, "equal"},
    {"topk", check_topk, "equal, but for the sign of zeros"},
    {"search", check_search, "equal"},
    {"word_order", check_word_order, "equal"},
    {"threefry", check_threefry, "equal bits"},
    {"positions", check_positions, "equal"},
    {"take", check_take, "equal"},
    {"scatter", check_scatter, "equal bits, in the order of i"},
    {"scatter_sums", check_scatter_sums, "the float32 nearest to the sum; equal runs"},
    {"product", check_product, "32 ulp of a sum's size, halves 2"},
    {"gather_product", check_gather_product, "as product"},
    {"pack", check_pack, "equal bits of rows out of it"},
    {"embed", check_embed, "equal bits"},
    {"dequantize", check_dequantize, "equal bits"},
    {"rounded_rows", check_rounded_rows, "equal bits"},
    {"large_prompts", check_large_prompts, "a row's bits are those it has alone"},
    {"packed_matmul", check_packed_matmul,
     "256 ulp of 1, of tiles 1024 of the largest, of prompts eight bits; a row's bits are those it has alone"},
    {"packed_glu", check_packed_glu,
     "1024 ulp of the largest, of prompts 4096, halves 1; a row's bits are those it has alone"},
    {"packed_products", check_packed_products,
     "1024 ulp of the largest, of rounded rows eight bits; a row's bits are those it has alone"},
    {"made_glu", check_made_glu, "1024 ulp of the largest, halves 2; a row's bits are those it has alone"},
    {"experts", check_experts, "1024 ulp of the largest; a row's bits are those it has alone"},
    {"fp8_encode", check_fp8_encode, "equal"},
    {"fp8_decode", check_fp8_decode, "equal bits"},
    {"group_quantize", check_group_quantize, "equal bits"},
    {"group_dequantize", check_group_dequantize, "equal bits"},
    {"quantized_matmul", check_quantized_matmul, "64 ulp of the largest, halves 1"},
    {"quantized_matmul_columns", check_quantized_matmul_columns, "64 ulp of the largest, halves 1"},
    {"rope_table", check_rope_table, "4 ulp"},
    {"rope", check_rope, "equal bits"},
    {"glu", check_glu, "8 ulp"},
    {"softcap", check_softcap, "8 ulp"},
    {"route", check_route, "ids equal, weights 32 ulp"},
    {"rope_angles", check_rope_angles, "4 ulp"},
    {"rope_cache", check_rope_cache, "equal bits, of caches too"},
    {"attention", check_attention,
     "256 ulp of the largest, 2^14 and 2^17 where it rounds; a row's bits are those it has alone"},
    {"turned_attention", check_turned_attention, "as attention; the bits of its parts, of caches too"},
    {"recurrent_conv", check_recurrent_conv, "16 ulp of the largest, states equal"},
    {"recurrent_delta", check_recurrent_delta, "256 ulp of the largest"},
    {"rms_norm_grad", check_rms_norm_grad, "256 ulp of the largest"},
    {"layer_norm_grad", check_layer_norm_grad, "256 ulp of the largest"},
    {"softmax_grad", check_softmax_grad, "64 ulp of the largest"},
    {"adam", check_adam, "the processor's bits"},
    {"gated_delta", check_gated_delta, "256 ulp of the largest"},
    {"convolution", check_convolution, "32 ulp of a sum's size, halves 2"},
    {"sdpa", check_sdpa, "128 ulp of 1, halves 1"},
    {"many_tokens", check_many_tokens, "of products by tiles: what packed_matmul and packed_glu promise"},
    {"tiled_experts", check_tiled_experts, "of experts in tiles: what experts promise"},
};

int main(int argc, char **argv) {
    char why[DEVICE_WHY] = "";
    const char *unknown = NULL;
    gm_device_facts facts;
    if (argc > 1)
        cases = atoi(argv[1]);
    host_recorder.kernels = device_recorder.kernels = kernels_select(&unknown);
    device_recorder.contracts = device_cuda.contracts;
    if (device_cuda.open(0, &device, why) != DEVICE_OK) {
        printf("no device: %s\n", why);
        return 2;
    }
    device_cuda.facts(device, &facts);
    printf("%s, %s, driver %s, %s; the processor's table: %s\n", facts.name, facts.architecture, facts.driver,
           facts.kernels, kernels_isa(host_recorder.kernels));
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        bool wanted = argc < 3;
        for (int k = 2; k < argc; k++)
            wanted = wanted || strcmp(argv[k], checks[i].name) == 0;
        if (!wanted)
            continue;
        begin_contract();
        checks[i].check();
        end_contract(checks[i].name, checks[i].promise);
    }
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed > 0;
}
