/* tables.h - the tables of kernels, one per instruction set, and the names of kernels in them. A build need not hold
 * all of the tables (GOMLX_ISAS in setup.py): the address of one that it lacks is NULL. */
#ifndef GOMLX_KERNELS_CPU_TABLES_H
#define GOMLX_KERNELS_CPU_TABLES_H
#include "cpu/loops.h"

#define ISA(set, base, own, needs, flags, words) extern const gm_kernels kernels_##set __attribute__((weak));
#include "cpu/isa.def"
#undef ISA

#define KERNELS_JOIN_(a, b) a##_##b
#define KERNELS_JOIN(a, b) KERNELS_JOIN_(a, b)
#define KERNELS_TEXT_(a) #a
#define KERNELS_TEXT(a) KERNELS_TEXT_(a)
#define KERNEL_NAME(name) KERNELS_JOIN(name, KERNELS_SET)
#endif
