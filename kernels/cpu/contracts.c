/* contracts.c - the processor's table of contracts. */
#include "cpu/launch.h"

const gm_contracts contracts_cpu = {
#define CONTRACT(name, range, doc) .name = cpu_##name,
#include "contracts.def"
    .packed_bytes = cpu_packed_bytes,
    .multiplies_bf16 = cpu_multiplies_bf16,
};
