/* device_state.h - what an open GPU is; device.c alone changes it. */
#ifndef GOMLX_CUDA_DEVICE_STATE_H
#define GOMLX_CUDA_DEVICE_STATE_H
#include <stdatomic.h>
#include <sys/types.h>
#include "cuda/module.h"

#define MARKS 256
struct gm_device_state {
    const cuda_driver *driver;
    int index, device, major, minor;
    pid_t owner;
    driver_context *context;
    driver_stream *stream;
    driver_event *events[MARKS];
    _Atomic uint64_t marks; /* the last one */
    atomic_bool lost;
    cuda_module module;
    char why[DEVICE_WHY];
};
#endif
