/* part_sort.c - scans, sorts, selections. See part.h. */
#include "cpu/part.h"
#include "cpu/scan.inc"
#include "cpu/select.inc"

#define EXPORTS_sort EXPORTED
#include "cpu/exports.h"
