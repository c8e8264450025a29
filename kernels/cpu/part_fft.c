/* part_fft.c - Fourier transforms. See part.h. */
#include "cpu/part.h"
#include "cpu/fft.inc"

#define EXPORTS_fft EXPORTED
#include "cpu/exports.h"
