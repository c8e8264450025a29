/* launch_loops.c - launches of the contracts that are one loop: each comes from its line in contracts.def. */
#include "cpu/launch.h"

#define CONTRACT(name, range, doc)
#define LOOP(name, range, part, grain, doc)                                                                            \
    bool cpu_##name(gm_recorder *r, const gm_##name##_args *a, int64_t n) { return LAUNCH(r, name, a, n, grain, 0); }
#include "contracts.def"
