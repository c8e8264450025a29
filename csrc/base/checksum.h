/* checksum.h - a checksum that detects accidental changes of bytes, not deliberate ones. */
#ifndef GOMLX_BASE_CHECKSUM_H
#define GOMLX_BASE_CHECKSUM_H
#include <stddef.h>
#include <stdint.h>

uint64_t checksum_of(const void *bytes, size_t n);
#endif
