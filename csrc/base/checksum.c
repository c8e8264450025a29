/* checksum.c - see checksum.h. Words are mixed in one by one, with a multiplier and a shift from the finaliser of
 * Stafford's mix 13 (2011). */
#include "base/checksum.h"
#include <string.h>

uint64_t checksum_of(const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    uint64_t sum = n;
    for (; n > 0; p += 8) {
        uint64_t word = 0;
        size_t take = n < 8 ? n : 8;
        memcpy(&word, p, take);
        sum = (sum ^ word) * 0xbf58476d1ce4e5b9u;
        sum ^= sum >> 27;
        n -= take;
    }
    return sum;
}
