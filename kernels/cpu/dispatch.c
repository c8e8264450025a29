/* dispatch.c - which table of kernels runs here. The CPU is asked for features, never for its family or model, and
 * the operating system for the registers that it saves: a hypervisor may hide either. Nothing is cached. */
#include "cpu/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

/* A bit for each feature, by the name that Linux has for it. */
enum {
    CPU_avx2 = 1 << 0,
    CPU_fma = 1 << 1,
    CPU_f16c = 1 << 2,
    CPU_bmi2 = 1 << 3,
    CPU_avx_vnni = 1 << 4,
    CPU_avx512f = 1 << 5,
    CPU_avx512bw = 1 << 6,
    CPU_avx512dq = 1 << 7,
    CPU_avx512vl = 1 << 8,
    CPU_avx512_vnni = 1 << 9,
    CPU_avx512vbmi = 1 << 10,
    CPU_avx512_bf16 = 1 << 11,
    CPU_asimd = 1 << 12,
    CPU_fphp = 1 << 13,
    CPU_asimdhp = 1 << 14,
    CPU_asimddp = 1 << 15,
    CPU_i8mm = 1 << 16,
    CPU_bf16 = 1 << 17,
    CPU_amx_tile = 1 << 18,
    CPU_amx_bf16 = 1 << 19,
};

/* Asks the system for tiles, which are large: a process has them from then on, with all of its threads. */
static bool tiles_allowed(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
    const unsigned long ask = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, which older headers do not name */
    return syscall(SYS_arch_prctl, ask, tile_data) == 0;
#else
    return false;
#endif
}

#if defined(__x86_64__)
/* Registers whose state the operating system saves: 0x6 xmm and ymm, 0xe0 mask registers and zmm, 0x60000 tiles. */
static uint64_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static unsigned features(void) {
    enum { LEAF_1_C, LEAF_7_B, LEAF_7_C, LEAF_7_D, LEAF_7_1_A, LEAVES };
    static const struct {
        unsigned feature, leaf, bit;
    } places[] = {
        {CPU_fma, LEAF_1_C, 12},         {CPU_f16c, LEAF_1_C, 29},      {CPU_avx2, LEAF_7_B, 5},
        {CPU_bmi2, LEAF_7_B, 8},         {CPU_avx512f, LEAF_7_B, 16},   {CPU_avx512dq, LEAF_7_B, 17},
        {CPU_avx512bw, LEAF_7_B, 30},    {CPU_avx512vl, LEAF_7_B, 31},  {CPU_avx512vbmi, LEAF_7_C, 1},
        {CPU_avx512_vnni, LEAF_7_C, 11}, {CPU_avx_vnni, LEAF_7_1_A, 4}, {CPU_avx512_bf16, LEAF_7_1_A, 5},
        {CPU_amx_tile, LEAF_7_D, 24},    {CPU_amx_bf16, LEAF_7_D, 22},
    };
    const unsigned osxsave = 1u << 27, avx = 1u << 28; /* leaf 1, ecx */
    unsigned a, b, c, d, leaves[LEAVES] = {0}, found = 0;
    if (!__get_cpuid(1, &a, &b, &leaves[LEAF_1_C], &d) || (leaves[LEAF_1_C] & (osxsave | avx)) != (osxsave | avx))
        return 0;
    const uint64_t saved = saved_state();
    if ((saved & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &leaves[LEAF_7_B], &leaves[LEAF_7_C], &leaves[LEAF_7_D]))
        return 0;
    if (a >= 1) __get_cpuid_count(7, 1, &leaves[LEAF_7_1_A], &b, &c, &d);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (leaves[places[i].leaf] >> places[i].bit & 1) found |= places[i].feature;
    if ((saved & 0x60000) != 0x60000) found &= ~(unsigned)CPU_amx_tile;
    return (saved & 0xe0) == 0xe0 ? found : found & ~(unsigned)CPU_avx512f;
}
#elif defined(__aarch64__) && defined(__linux__)
static unsigned features(void) {
    const unsigned long has = getauxval(AT_HWCAP), has2 = getauxval(AT_HWCAP2);
    const unsigned long i8mm = 1ul << 13, bf16 = 1ul << 14; /* of has2: older headers do not name them */
    return (has & HWCAP_ASIMD ? CPU_asimd : 0u) | (has & HWCAP_FPHP ? CPU_fphp : 0u) |
           (has & HWCAP_ASIMDHP ? CPU_asimdhp : 0u) | (has & HWCAP_ASIMDDP ? CPU_asimddp : 0u) |
           (has2 & i8mm ? CPU_i8mm : 0u) | (has2 & bf16 ? CPU_bf16 : 0u);
}
#elif defined(__aarch64__)
static unsigned features(void) {
    unsigned found = CPU_asimd | CPU_fphp | CPU_asimdhp | CPU_asimddp; /* all of Apple's have them */
#if defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    if (!sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, NULL, 0) && has) found |= CPU_i8mm;
    if (!sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, NULL, 0) && has) found |= CPU_bf16;
#endif
    return found;
}
#else
static unsigned features(void) { return 0; }
#endif

typedef struct {
    const char *isa, *base;
    const gm_kernels *table; /* NULL: not in this build */
    unsigned needs;          /* beside what the base needs */
    const char *words;       /* what all of that is */
} candidate;

/* In order of preference. */
static const candidate candidates[] = {
#define ISA(set, base, own, needs, flags, words) {#set, #base, &kernels_##set, 0 needs, words},
#define NEEDS(feature) | CPU_##feature
#include "cpu/isa.def"
#undef NEEDS
#undef ISA
};
enum { N_CANDIDATES = sizeof candidates / sizeof *candidates };

static const candidate *find(const char *isa) {
    for (int i = 0; i < N_CANDIDATES; i++)
        if (!strcmp(candidates[i].isa, isa)) return &candidates[i];
    return NULL;
}

static unsigned all_needs(const candidate *c) {
    const candidate *base = find(c->base);
    return base == c ? c->needs : c->needs | all_needs(base);
}

static bool is_usable(const candidate *c) {
    const unsigned needs = all_needs(c);
    return c->table && (features() & needs) == needs && (!(needs & CPU_amx_tile) || tiles_allowed());
}

static const char *forced(void) {
    const char *isa = getenv("GOMLX_ISA");
    return isa && *isa ? isa : NULL;
}

static const candidate *best(void) {
    const candidate *c = candidates; /* the last one, generic, needs nothing and is in every build */
    while (!is_usable(c)) c++;
    return c;
}

const char *const *kernels_names(void) {
    static const char *const names[] = {
#define ISA(set, base, own, needs, flags, words) #set,
#include "cpu/isa.def"
#undef ISA
        NULL};
    return names;
}

/* " a, b": the sets that are known, or that this build holds. */
static void list(char *text, size_t size, bool built) {
    size_t n = 0;
    for (int i = 0; i < N_CANDIDATES && n < size; i++)
        if (!built || candidates[i].table)
            n += (size_t)snprintf(text + n, size - n, "%s %s", n ? "," : "", candidates[i].isa);
}

const gm_kernels *kernels_get(const char *isa) {
    const candidate *c = find(isa);
    return c && is_usable(c) ? c->table : NULL;
}

const gm_kernels *kernels_select(const char **why) {
    static _Thread_local char text[256];
    char sets[128];
    const char *isa = forced();
    if (!isa) return best()->table;
    const candidate *c = find(isa);
    if (c && is_usable(c)) return c->table;
    list(sets, sizeof sets, c != NULL);
    if (!c) snprintf(text, sizeof text, "GOMLX_ISA=%.32s is unknown; expected one of%s", isa, sets);
    else if (!c->table) snprintf(text, sizeof text, "GOMLX_ISA=%s is not in this build, which has%s", isa, sets);
    else snprintf(text, sizeof text, "GOMLX_ISA=%s needs a CPU with %s, which this one lacks", isa, c->words);
    if (why) *why = text;
    return NULL;
}

const char *kernels_isa(const gm_kernels *table) { return table->isa; }
const char *kernels_family(const gm_kernels *table) { return table->family; }
gm_host_loops kernels_host_loops(const gm_kernels *table) {
    return (gm_host_loops){table->draw_measure, table->draw_choose, table->draw_weigh};
}

const char *kernels_reason(void) {
    static _Thread_local char text[192];
    const char *isa = forced();
    const candidate *c = best();
    if (isa) snprintf(text, sizeof text, "GOMLX_ISA=%.32s, best usable here: %s", isa, c->table->isa);
    else snprintf(text, sizeof text, "%s: best of this build that runs here, needs %s", c->table->isa, c->words);
    return text;
}
