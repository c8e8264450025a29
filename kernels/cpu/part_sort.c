/* part_sort.c - scans, sorts, selections. See part.h. */
#include "cpu/part.h"
#include "cpu/scan.inc"
#include "cpu/select.inc"

EXPORT(scan)
EXPORT(scan_totals)
EXPORT(scan_carries)
EXPORT(scan_columns)
EXPORT(sort)
EXPORT(radix_keys)
EXPORT(radix_count)
EXPORT(radix_offsets)
EXPORT(radix_place)
EXPORT(radix_values)
EXPORT(partition)
EXPORT(topk)
EXPORT(search)
