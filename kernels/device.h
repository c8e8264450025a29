/* device.h - what a device beside the processor offers: memory, copies, launches, and waiting for them.
 *  (1) A device has one line of work. Copies and launches are begun in the order in which they are asked for, and each
 *      sees the results of those before it: nothing but a mark has to be waited for, and only by the host.
 *  (2) Calls for one device come one at a time (csrc/core/device.c has a lock for each), but for facts, wait, settle,
 *      pinned, unpin and those of lending: these may come from any thread at any time. No call throws, prints or exits.
 *  (3) Addresses that alloc gives are the device's: the host passes them on and never touches them.
 *  (4) A launch is what a contract of the device's own table recorded (recorder.h), with its arguments. They are in
 *      pinned memory of the host and stay there until what was launched is done, as does what the contract asked the
 *      recorder for. Data among them has addresses of the device. A kernel that reads a list as data gets it by the
 *      recorder's `constant`; words where kernels report faults are pinned.
 *  (5) What fails says why in words for users, with the cure where there is one. After DEVICE_LOST every call but facts
 *      and why gives DEVICE_LOST. */
#ifndef GOMLX_DEVICE_H
#define GOMLX_DEVICE_H
#include "recorder.h"

typedef enum {
    DEVICE_OK,
    DEVICE_AGAIN,  /* not done yet */
    DEVICE_MEMORY, /* there is not enough */
    DEVICE_FAILED, /* this call; others may do */
    DEVICE_LOST,   /* it can do no more work in this process */
} gm_device_result;

typedef struct {
    char name[128];
    char architecture[32]; /* "sm_90" */
    size_t memory, free;   /* bytes of the card, and what nobody has taken now */
    char driver[64];       /* its version */
    char kernels[256];     /* where its kernels come from, and for which architectures they are */
} gm_device_facts;

#define DEVICE_WHY 512 /* bytes of a reason */

typedef struct gm_device_state gm_device_state;
typedef struct gm_device_graph gm_device_graph;
typedef struct {
    gm_kernel fn;
    const void *args;
    int64_t n;
} gm_device_launch;
typedef struct {
    const char *kind; /* "cuda" */
    const gm_contracts *contracts;
    /* How many there are; 0 with the reason. It opens no device. */
    int (*count)(char why[DEVICE_WHY]);
    /* The number among the driver's by which other libraries of the process know it. It opens no device. */
    int (*ordinal)(int index);
    gm_device_result (*open)(int index, gm_device_state **out, char why[DEVICE_WHY]);
    void (*facts)(const gm_device_state *d, gm_device_facts *out);
    /* Which libraries of others it uses, or why it has none; it looks for them. */
    void (*libraries)(char *out, size_t bytes);
    /* From the card itself, aligned to 256 bytes; free waits for what may still use it. */
    gm_device_result (*alloc)(gm_device_state *d, size_t bytes, void **out);
    void (*free)(gm_device_state *d, void *memory);
    /* Memory of the host that all devices can read and write at the same address. NULL: there is none. */
    void *(*pinned)(size_t bytes);
    void (*unpin)(void *memory);
    /* In the line of work, in any direction. Memory of the host stays as it is until the copy is done. */
    gm_device_result (*copy)(gm_device_state *d, void *to, const void *from, size_t bytes);
    /* Of each in turn fn(args, 0, n), which starts kernels; what one leaves to be started with later ones is started
     * before this returns. None is begun after one that fails. */
    gm_device_result (*launch)(gm_device_state *d, const gm_device_launch *launches, int64_t n);
    /* Launches that are begun together, as often as they are replayed, with what they read in memory then. None of them
     * begins now, and each has run before. NULL in out with DEVICE_OK: they are to be begun one by one, as always where
     * the call itself is NULL. drop waits for nothing: what was begun goes on. */
    gm_device_result (*capture)(gm_device_state *d, const gm_device_launch *launches, int64_t n, gm_device_graph **out);
    gm_device_result (*replay)(gm_device_state *d, gm_device_graph *graph);
    void (*drop)(gm_device_state *d, gm_device_graph *graph);
    /* What was asked for before is done when wait(mark) says DEVICE_OK. Marks rise from 1; 0: the device is lost. */
    uint64_t (*mark)(gm_device_state *d);
    /* DEVICE_AGAIN at the deadline, a time of CLOCK_MONOTONIC (0: only look). What failed on the way is said here. */
    gm_device_result (*wait)(gm_device_state *d, uint64_t mark, int64_t deadline_ns);
    /* Until all that the card was asked for is done, by other libraries of the process too. */
    gm_device_result (*settle)(gm_device_state *d);
    /* For work of another library in the line: its calls come from this thread, between lend and take_back. idle:
     * DEVICE_AGAIN until all that was asked for before is done. From any thread at any time, as wait. NULL in the
     * table: nobody else can work there. */
    gm_device_result (*lend)(gm_device_state *d, void **line);
    void (*take_back)(const gm_device_state *d);
    gm_device_result (*idle)(gm_device_state *d);
    /* Of this thread's last result that was not DEVICE_OK or DEVICE_AGAIN. */
    const char *(*why)(const gm_device_state *d);
} gm_device_calls;

extern const gm_device_calls device_cuda;

/* A library that GOMLX_DEVICE_LIBRARY names stands in CUDA's place. It exports its calls under this name. */
#define DEVICE_LIBRARY_SYMBOL "gomlx_device"
#endif
