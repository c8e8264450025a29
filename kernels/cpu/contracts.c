/* contracts.c - the processor's table of contracts, and the launches of those that are one loop. */
#include "cpu/launch.h"

#define CONTRACT(name, range, doc)
#define LOOP(name, range, part, grain, doc)                                                                            \
    bool cpu_##name(gm_recorder *r, const gm_##name##_args *a, int64_t n) { return LAUNCH(r, name, a, n, grain, 0); }
#include "contracts.def"

const gm_contracts contracts_cpu = {
#define CONTRACT(name, range, doc) .name = cpu_##name,
#include "contracts.def"
    .packed_bytes = cpu_packed_bytes,
    .multiplies_bf16 = cpu_multiplies_bf16,
};
