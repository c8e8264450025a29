/* checksum.h - a number that tells whether bytes are what they were: against accidents, not against design. */
#ifndef GOMLX_BASE_CHECKSUM_H
#define GOMLX_BASE_CHECKSUM_H
#include <stddef.h>
#include <stdint.h>

uint64_t checksum_of(const void *bytes, size_t n);
#endif
