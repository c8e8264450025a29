/* launch_products.c - how dense products are cut. None of it changes a bit of the result. */
#include "cpu/launch.h"

bool cpu_multiplies_bf16(const gm_kernels *kernels) { return kernels->gemm_pairs; }

#define PIECE_BYTES (64 << 10)          /* of a matrix of w that indices choose */

bool cpu_gather_gemm(gm_recorder *r, const gm_gather_gemm_args *a, int64_t n) {
    gm_gather_gemm_args g = *a;
    gm_gemm_args *p = &g.product;
    const gm_kernels *kernels = r->kernels;
    const bool wide = p->type == GM_T_F64 || p->type == GM_T_C64;
    p->block_rows = wide ? kernels->gemm_rows / 2 : kernels->gemm_rows;
    p->few = p->type != GM_T_C64 && (p->w_lane == 1 || p->w_k == 1);
    const int64_t panels = kernels_gemm_panels(kernels, p->type, p->lanes), most = GM_GEMM_FEW_PANELS / GM_GEMM_FEW;
    const int64_t share = PIECE_BYTES / (p->k * kernels_gemm_lanes(kernels, p->type) * type_bytes(p->type) + 1) + 1;
    p->block_panels = share < most ? share : most;
    g.items = n;
    return LAUNCH(r, gather_gemm, &g, a->w_matrices * ((panels + p->block_panels - 1) / p->block_panels), 1, 0);
}
