/* queue_state.h - what a queue holds: for what records it (queue.c, queue_memory.c) and what runs it (queue_cpu.c). */
#ifndef GOMLX_CORE_QUEUE_STATE_H
#define GOMLX_CORE_QUEUE_STATE_H
#include "base/team.h"
#include "core/device.h"
#include "core/queue.h"

typedef struct {
    gm_kernel fn;
    const void *args;
    int64_t n, grain;
    const int32_t *factor; /* range is n * *factor */
    device_guest guest;    /* in place of fn, on a device that lends its line */
    int64_t range;         /* of this run */
    uint32_t pieces;       /* of `grain` indices each, in this run */
    _Atomic uint32_t next; /* the first piece that nobody has taken */
    uint32_t stage;        /* of this run: begins when all pieces of the stage before are done */
    bool barrier;          /* what was launched before must be done before this one begins */
    bool closing;          /* of this run: the thread that does the last piece of the stage does this too */
    bool solo;             /* runs on one thread alone: thread 0 unless it is closing */
    bool ftz;
    uint8_t work; /* a gm_work */
} launch;

typedef struct {
    gm_buffer *buf;
    bool solo;
} access;

typedef struct flag {
    struct flag *next;
    const char *message; /* of an index: the op's name */
    int64_t size;        /* of the axis that an index is out of; -1: no index */
    uint64_t bit;        /* of the node that may raise it */
    gm_index_fault fault;
} flag;

typedef struct arena {
    struct arena *next;
    size_t used, size;
    _Alignas(64) char data[];
} arena;

/* Bytes of the host on their way to a device: those from `sent` on are copied before the next launch is begun. */
typedef struct staging {
    struct staging *next;
    gm_buffer *memory; /* of the device; parts of it are buffers of their own, which may outlive the launches */
    size_t used, sent, size;
    char *data; /* pinned */
} staging;

/* stage: the last one whose gate was awaited. A thread may come to a stage at any of its launches. */
typedef struct {
    int64_t launch, at, end;
    uint32_t taken, stage;
    bool inside;
} cursor;

struct gm_queue {
    gm_recorder recorder; /* the first member: contracts are given its address */
    const device *device;
    launch *launches;
    int64_t count, capacity;
    arena *arenas, *spare;
    flag *flags;       /* in the arenas */
    uint64_t next_bit; /* of the node at hand; the last one is that of all nodes from the 64th on */
    bool flagged;      /* the node at hand has a flag */
    /* recording: what the node at hand reads and writes, and what launches since the last barrier did */
    access *reads, *writes, *past_reads, *past_writes;
    size_t n_reads, n_writes, n_past_reads, n_past_writes;
    size_t cap_reads, cap_writes, cap_past_reads, cap_past_writes;
    size_t noted_reads, noted_writes; /* of the node's last launch, which is among the past ones */
    bool noted;                       /* there is one since the last barrier, and it was solo */
    bool parts;                       /* the node's last launch was a part */
    bool fence, multi_since, any_multi;
    uint8_t work; /* of the node at hand */
    /* memory in stream order */
    gm_buffer **free_, **held, **scratch;
    size_t n_free, n_held, n_scratch, cap_free, cap_held, cap_scratch, reserved;
    uint64_t epoch;
    /* running */
    team_gate *gates; /* one for each stage: open when all its pieces are done */
    int64_t gates_capacity;
    uint32_t last_stage;
    cursor main;
    int n_threads;
    bool joined;
    gm_phase_profile *profile;                                  /* NULL: nobody asks. Thread 0 alone writes it, */
    _Atomic int64_t others_ns[GM_WORK_CLASSES], others_wait_ns; /* ... the other threads these, once each a run */
    _Atomic bool cancelled;
    /* on a device */
    bool lacks; /* a contract that a node asked for */
    bool lends; /* the line, to a launch */
    staging *staging;
    int64_t issued, done;   /* launches that were begun, and that are known to have run */
    uint64_t marks[2];      /* after the last launches that were begun, and after those before them; 0: none */
    int64_t marked[2];      /* how many launches these are after */
    uint64_t following;     /* the mark after a run that was begun behind the one under way; 0: none was */
    int64_t run_launches;   /* of the next run */
    gm_device_graph *graph; /* of all launches; NULL: they are begun one by one */
    bool repeats;           /* what is recorded runs often, and is short */
    bool has_run;           /* all of it, once */
    int64_t run_begun;      /* when the device came to the oldest run on its way */
};

/* Returns the buffers that the recording holds. Their marks are written under the run lock only: a queue that dies
 * outside it leaves them stale, which its unique epoch makes harmless. */
void queue_release(gm_queue *q, bool clear_marks);
void staging_reset(gm_queue *q); /* its memory may be written again */
void staging_free(gm_queue *q);
void device_forget_graph(gm_queue *q);
bool staging_waits(const gm_queue *q);
gm_status staging_send(gm_queue *q); /* begins the copies of what is not sent */
#endif
