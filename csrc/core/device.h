/* device.h - the devices that nodes can be on: 0 is the processor, 1 + i is GPU i.
 *  (1) A device is opened when it is first asked for, and never closed: at the end of the process its driver frees all.
 *      Nothing looks for devices before one is asked for, or a node is made while no default was chosen.
 *  (2) Calls for one device come one at a time, under its lock, which is a leaf.
 *  (3) A device that is lost stays lost: every use of it says so, and the processor goes on. A child of fork has no
 *      devices. */
#ifndef GOMLX_CORE_DEVICE_H
#define GOMLX_CORE_DEVICE_H
#include <stdatomic.h>
#include "base/error.h"
#include "kernels/device.h"

#define DEVICE_NUMBERS 17 /* the processor, and 16 others */

typedef struct {
    int number;
    const gm_contracts *contracts;
    const gm_device_calls *calls; /* NULL: the processor */
    gm_device_state *state;
} device;

/* NULL: GM_EVALUE where there is none of that number, GM_EDEVICE where it cannot be used. */
const device *device_get(int number);
/* Whether nodes may be on another device than the processor: every node asks, so this is one load. Once true, for ever.
 * Before it is known, true. */
typedef enum { DEVICES_UNKNOWN, DEVICES_UNUSED, DEVICES_USED } device_use;
extern _Atomic device_use devices_in_use;
static inline bool device_is_possible(void) {
    return atomic_load_explicit(&devices_in_use, memory_order_relaxed) != DEVICES_UNUSED;
}
/* Of nodes that this thread makes: what it entered, else the process's default. */
int device_current(void);
/* It is open, or the processor. -1: the default again. Returns what was entered before. */
int device_enter(int number);
/* GM_EVALUE unless GOMLX_DEVICE is empty or the name of a device. */
gm_status device_check_default(void);

/* Once, before the engine watches forks itself: its locks come first. */
void device_watch_forks(void);

/* Of a device that is open, lost or not. */
const gm_contracts *device_contracts(int number);
bool device_multiplies_bf16(int number);

/* An operation that the device has not was put on the processor instead. */
void device_fell_back(const char *op);

/* The calls of a device that is open, each with a gm_fail of its own. */
gm_status device_alloc(int number, size_t bytes, void **out);
void device_free(int number, void *memory);
gm_status device_copy(int number, void *to, const void *from, size_t bytes);
gm_status device_await(int number); /* until what was asked for before is done */
void *device_pinned(const device *d, size_t bytes);
void device_unpin(const device *d, void *memory);
/* fn(args, line) in this thread, which works in the device's line by another library's calls. It may wait for other
 * processes and for Python: no lock is held. */
typedef void (*device_guest)(const void *args, void *line);
bool device_can_lend(const device *d);
gm_status device_lend(const device *d, device_guest fn, const void *args);
gm_status device_launch(const device *d, const gm_device_launch *launches, int64_t n);
/* Launches that have all run before, to be begun with one call. NULL with GM_OK: the device begins them one by one. */
gm_status device_capture(const device *d, const gm_device_launch *launches, int64_t n, gm_device_graph **out);
gm_status device_replay(const device *d, gm_device_graph *graph);
void device_drop(const device *d, gm_device_graph *graph);
gm_status device_mark(const device *d, uint64_t *mark);
/* GM_AGAIN at the deadline, a time of clock_ns; 0: without one. */
gm_status device_wait(const device *d, uint64_t mark, int64_t deadline_ns);
/* Until everything that was asked for is done; false where that will never be known. */
bool device_drain(const device *d);
size_t device_total_memory(const device *d);
#endif
