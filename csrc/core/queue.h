/* queue.h - launches recorded in order for one device, and what works through them: a team of threads, or the device.
 *  (1) Recording computes where barriers are needed from the buffers that launches read and write; kernels between two
 *      barriers run side by side. Memory is stream-ordered: a buffer that dies while recording may be reused by a later
 *      launch of the same queue, by nobody else before the queue has run.
 *  (2) A recorded queue can run any number of times (a plan): nothing in it changes but its counters.
 *  (3) Work is cut by range; threads take pieces as they come, so a thread that is not running holds up nobody. Each
 *      checks for cancellation between pieces. Thread 0 is the caller, in time slices.
 *  (4) On a device launches run in their order, each whole: there are no barriers and no pieces. */
#ifndef GOMLX_CORE_QUEUE_H
#define GOMLX_CORE_QUEUE_H
#include "core/array.h"
#include "core/device.h"
#include "recorder.h"

gm_queue *queue_new(int device);         /* NULL with the cause */
void queue_free(gm_queue *q);            /* returns what it holds to the allocator */
void queue_reset(gm_queue *q);           /* forgets launches, keeps its own memory; not while running */
int64_t queue_length(const gm_queue *q); /* launches */

int queue_device(const gm_queue *q);

/* Memory of the host that lives as long as the recorded launches; for arguments. NULL with GM_ENOMEM. */
void *queue_arena(gm_queue *q, size_t bytes);
/* Where launches read a copy of these bytes, as long as they live. NULL with the cause. */
const void *queue_constant(gm_queue *q, const void *data, size_t bytes);
/* A buffer of a device with a copy of these bytes of the host, which launches from now on read. */
gm_buffer *queue_staged(gm_queue *q, const void *data, size_t bytes);
/* Scratch for the node being recorded: dies with it, in stream order. */
void *queue_scratch(gm_queue *q, size_t bytes);
/* Copies args and records fn over [0, n), in pieces of about `grain` (a launch of n <= grain stays on one thread). */
gm_status queue_launch(gm_queue *q, gm_kernel fn, const void *args, size_t size, int64_t n, int64_t grain, int flags);
/* The same of fn(args, line), once, on a device that lends its line; recorded so, a queue becomes no graph. */
gm_status queue_lend(gm_queue *q, device_guest fn, const void *args, size_t size);
/* The range of the last launch is n * *factor at run time. */
void queue_scale(gm_queue *q, const int32_t *factor);
/* Launches after this see the results of those before it. Needed only between launches of one node. */
void queue_fence(gm_queue *q);
/* A word that a kernel sets to 1 where it finds no answer: then the queue's run ends with GM_ESTATE and the message,
 * which lives as long as the launches: a constant, or of queue_arena. NULL with GM_ENOMEM. */
int32_t *queue_flag(gm_queue *q, const char *message);
/* The same for an index that is out of range for an axis of `size` items: GM_EINDEX. op is a constant. */
gm_index_fault *queue_index_flag(gm_queue *q, const char *op, int64_t size);
/* The node being recorded writes this buffer besides its output. */
gm_status queue_writes(gm_queue *q, gm_buffer *b);

static inline gm_recorder *queue_recorder(gm_queue *q) { return (gm_recorder *)q; } /* its first member */
/* Records what a contract (kernels/contracts.def) makes of these arguments. Where the device has none, recording the
 * node fails, and graph.c puts it on the processor. */
#define DISPATCH(q, name, n, ...) DISPATCH_ARGS(q, name, n, (&(gm_##name##_args){__VA_ARGS__}))
#define DISPATCH_ARGS(q, name, n, args)                                                                                \
    (!queue_recorder(q)->contracts->name                              ? queue_lack(q, #name)                           \
     : queue_recorder(q)->contracts->name(queue_recorder(q), args, n) ? GM_OK                                          \
                                                                      : error_code())
gm_status queue_lack(gm_queue *q, const char *what); /* GM_EUNSUPPORTED */
bool queue_lacks(const gm_queue *q);                 /* since its reset */

/* For graph.c */
/* Drops the launches from `count` on, of a node whose recording failed. Nothing more may be recorded before a reset. */
void queue_forget(gm_queue *q, int64_t count);
gm_status queue_reads(gm_queue *q, gm_buffer *b);
/* The node being recorded ends. A bit where it has flags: its own, but that the last bit is shared by all from the 64th
 * such node on. */
uint64_t queue_end_node(gm_queue *q);
void queue_work(gm_queue *q, uint8_t work); /* of the launches that follow */
/* Reserves capacity for `buffers` drops and holds, which then cannot fail. */
gm_status queue_reserve(gm_queue *q, size_t buffers);
gm_buffer *queue_take(gm_queue *q, size_t bytes); /* a buffer in stream order: from those that died here, or new */
void queue_drop(gm_queue *q, gm_buffer *b);       /* the recording's reference to b ends here, in stream order */
void queue_hold(gm_queue *q, gm_buffer *b);       /* keep b alive until the launches have run */

/* Running: start, step until it is not GM_AGAIN, end. The caller holds the run lock. */
/* Before the start: where work and wait_ns of the run are added, or NULL. */
void queue_profile(gm_queue *q, gm_phase_profile *profile);
void queue_start(gm_queue *q, int n_threads);
/* GM_OK, GM_AGAIN at the deadline (0: none), what a flag says, or GM_ESTATE in a child forked meanwhile, which has not
 * the other threads. */
gm_status queue_step(gm_queue *q, int64_t deadline_ns);
/* Launches from the first that are known to have run to their end; asked between steps, or after the last one. */
int64_t queue_ran(const gm_queue *q);
gm_status queue_check(const gm_queue *q);                      /* what the raised flag says that was recorded first */
gm_status queue_check_flags(const gm_queue *q, uint64_t bits); /* of those with these bits */
uint64_t queue_raised(const gm_queue *q);                      /* the bits of the flags that are raised */
void queue_cancel(gm_queue *q);                                /* the rest is skipped; still step to its end */
void queue_finish(gm_queue *q);

/* The same on a device (device_run.c). What is recorded after an issue is begun by the next one. */
void device_start(gm_queue *q);
int64_t device_ran(const gm_queue *q);
gm_status device_issue(gm_queue *q, int64_t deadline_ns); /* begins what is recorded; GM_AGAIN as queue_step */
gm_status device_step(gm_queue *q, int64_t deadline_ns);  /* and waits for it */
/* Waits for what was begun. failed: what it came to is not known. */
void device_finish(gm_queue *q, bool failed);

/* The recorded launches run often, and are short: from the second run on a device begins them with one call, if it can
 * and no profile is asked for. What cancels such a run waits for all of it. */
void queue_repeats(gm_queue *q);
/* All that a device was asked for since, copies of results, is of the run too: it ends when they are done. */
gm_status queue_include(gm_queue *q);
/* Begins the launches once more, behind the run under way, which is begun to its end: where one call does that. What
 * follows may be taken as a run that has begun, once the one before it has ended well; or it is forgotten, by a new
 * beginning, which comes behind it, or by giving up, which waits for it. */
gm_status queue_follow(gm_queue *q);
bool queue_is_followed(const gm_queue *q);
void queue_take_following(gm_queue *q);
/* On whatever device it is of: begin, go on until it is not GM_AGAIN, then end; or give up at any time, which skips the
 * rest. A queue that has run can begin again. The caller holds the run lock. */
void queue_begin(gm_queue *q, int n_threads);
gm_status queue_go_on(gm_queue *q, int64_t deadline_ns); /* as queue_step */
void queue_end(gm_queue *q, bool failed);
void queue_give_up(gm_queue *q);
int64_t clock_ns(void);        /* monotonic */
int64_t coarse_clock_ns(void); /* at most a tick later than clock_ns, and cheaper */
#endif
