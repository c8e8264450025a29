/* exports.h - what part_X.c ends with, after `#define EXPORTS_X EXPORTED`: the kernels that kernels.def lists for the
 * part X get the names that tables (part_table.c) know them by. */
#define EXPORTED , EXPORT
#define EXPORT(name) extern void KERNEL_NAME(name)(const void *, int64_t, int64_t) __attribute__((alias(#name)));
#define LEAVE(name)
/* EXPORT for the part that is defined, LEAVE for all others, whose EXPORTS_... is not defined as EXPORTED. */
#define SECOND_(first, second, ...) second
#define SECOND(...) SECOND_(__VA_ARGS__, LEAVE, )
#define KERNEL(part, name, range, doc) SECOND(EXPORTS_##part)(name)
#include "cpu/kernels.def"
