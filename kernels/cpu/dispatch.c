/* dispatch.c - which table of kernels runs here. The CPU is asked for features, never for its family or model, and
 * the operating system for the registers that it saves: a hypervisor may hide either. Nothing is cached. */
#include "cpu/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

typedef struct {
    const char *isa;
    const gm_kernels *table; /* NULL: not in this build */
    bool (*usable)(void);
    const char *needs;
} candidate;

static bool always(void) { return true; }

#if defined(__x86_64__)
enum { CPU_AVX2 = 1, CPU_AVXVNNI = 2, CPU_AVX512 = 4, CPU_AVX512VNNI = 8, CPU_AVX512BF16 = 16 };

/* Registers whose state the operating system saves: 0x6 xmm and ymm, 0xe0 mask registers and zmm. */
static uint64_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static unsigned features(void) {
    const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29; /* leaf 1, ecx */
    const unsigned avx2 = 1u << 5, bmi2 = 1u << 8;                                      /* leaf 7, ebx */
    const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;                  /* F, DQ, BW, VL */
    const unsigned avx512_vbmi = 1u << 1, avx512_vnni = 1u << 11;                       /* leaf 7, ecx */
    const unsigned avx_vnni = 1u << 4, avx512_bf16 = 1u << 5;                           /* leaf 7.1, eax */
    const unsigned base = fma | osxsave | avx | f16c;
    unsigned a, b, c, d, a1 = 0, b7, c7, found = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & base) != base) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d)) return 0;
    if (a >= 1) __get_cpuid_count(7, 1, &a1, &b, &c, &d);
    const uint64_t saved = saved_state();
    if ((saved & 0x6) == 0x6 && (b7 & (avx2 | bmi2)) == (avx2 | bmi2)) found |= CPU_AVX2;
    if (found && (a1 & avx_vnni)) found |= CPU_AVXVNNI;
    if (found && (saved & 0xe6) == 0xe6 && (b7 & avx512) == avx512) {
        found |= CPU_AVX512;
        if (c7 & avx512_vnni) found |= CPU_AVX512VNNI;
        if (c7 & avx512_vnni && c7 & avx512_vbmi && a1 & avx512_bf16) found |= CPU_AVX512BF16;
    }
    return found;
}

static bool has_avx2(void) { return features() & CPU_AVX2; }
static bool has_avxvnni(void) { return features() & CPU_AVXVNNI; }
static bool has_avx512(void) { return features() & CPU_AVX512; }
static bool has_avx512vnni(void) { return features() & CPU_AVX512VNNI; }
static bool has_avx512bf16(void) { return features() & CPU_AVX512BF16; }
#elif defined(__aarch64__)
#if defined(__linux__)
static bool has_neon(void) {
    const unsigned long needed = HWCAP_ASIMD | HWCAP_FPHP | HWCAP_ASIMDHP | HWCAP_ASIMDDP;
    return (getauxval(AT_HWCAP) & needed) == needed;
}
static bool has_neon_i8mm(void) {
    const unsigned long needed = 1ul << 13 | 1ul << 14; /* I8MM and BF16: older headers do not name them */
    return has_neon() && (getauxval(AT_HWCAP2) & needed) == needed;
}
#else
#define has_neon always /* Apple's, all of which have it; there is no auxiliary vector to ask */
static bool has_neon_i8mm(void) {
#if defined(__APPLE__)
    int i8mm = 0, bf16 = 0;
    size_t size = sizeof i8mm;
    if (sysctlbyname("hw.optional.arm.FEAT_I8MM", &i8mm, &size, NULL, 0)) return false;
    return !sysctlbyname("hw.optional.arm.FEAT_BF16", &bf16, &size, NULL, 0) && i8mm && bf16;
#else
    return false;
#endif
}
#endif
#endif

/* In order of preference. avx512bf16 asks for VBMI, whose table lookups the grids of IQ1, IQ2 and IQ3 are read with: of
 * the processors with BF16 only those of Cooper Lake are without, and a set for them alone would be as large as this
 * one. They run avx512vnni. */
static const candidate candidates[] = {
#if defined(__x86_64__)
    {"avx512bf16", &kernels_avx512bf16, has_avx512bf16, "AVX-512 F/BW/DQ/VL, VNNI, VBMI and BF16"},
    {"avx512vnni", &kernels_avx512vnni, has_avx512vnni, "AVX-512 F/BW/DQ/VL and VNNI"},
    {"avx512", &kernels_avx512, has_avx512, "AVX-512 F/BW/DQ/VL"},
    {"avxvnni", &kernels_avxvnni, has_avxvnni, "AVX2, FMA, F16C, BMI2 and AVX-VNNI"},
    {"avx2", &kernels_avx2, has_avx2, "AVX2, FMA, F16C and BMI2"},
#elif defined(__aarch64__)
    {"neon_i8mm", &kernels_neon_i8mm, has_neon_i8mm, "NEON, float16 arithmetic, dot products, I8MM and BF16 (Armv8.6)"},
    {"neon", &kernels_neon, has_neon, "NEON, float16 arithmetic and dot products (Armv8.2)"},
#endif
    {"generic", &kernels_generic, always, "nothing"},
};
enum { N_CANDIDATES = sizeof candidates / sizeof *candidates };

static const candidate *find(const char *isa) {
    for (int i = 0; i < N_CANDIDATES; i++)
        if (!strcmp(candidates[i].isa, isa)) return &candidates[i];
    return NULL;
}

static bool is_usable(const candidate *c) { return c->table && c->usable(); }

static const char *forced(void) {
    const char *isa = getenv("GOMLX_ISA");
    return isa && *isa ? isa : NULL;
}

static const candidate *best(void) {
    const candidate *c = candidates;
    while (!is_usable(c)) c++;
    return c;
}

const char *const *kernels_names(void) {
    static const char *const names[] = {
#if defined(__x86_64__)
        "avx512bf16", "avx512vnni", "avx512", "avxvnni", "avx2",
#elif defined(__aarch64__)
        "neon_i8mm", "neon",
#endif
        "generic",    NULL};
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
    else snprintf(text, sizeof text, "GOMLX_ISA=%s needs a CPU with %s, which this one lacks", isa, c->needs);
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
    else snprintf(text, sizeof text, "%s: best of this build that runs here, needs %s", c->table->isa, c->needs);
    return text;
}
