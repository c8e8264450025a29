/* part_fft.c - Fourier transforms. See part.h. */
#include "cpu/part.h"
#include "cpu/fft.inc"

EXPORT(fft_roots)
EXPORT(fft_chirp)
EXPORT(fft)
