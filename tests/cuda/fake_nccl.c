/* fake_nccl.c - an NCCL that GOMLX_CUDA_NCCL names: its messages go through sockets between the processes of one host,
 * from and to memory of the fake driver (fake_driver.c), whose copies it asks for. It takes what is used of the library
 * and nothing else: communicators that do not block, NVLS switched off, a context that is current, messages of as many
 * bytes as are received. Nothing moves but in ncclCommGetAsyncError.
 *
 * GOMLX_FAKE_NCCL=hangs: what this process sends and receives never ends; dies: it is killed where its second group of
 * messages ends; refuses: it meets nobody. GOMLX_FAKE_NCCL_VERSION is what it says of itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST 16 /* ranks */
enum { SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };

typedef struct { char bytes[128]; } identity;
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
} config;
typedef struct message {
    struct message *next;
    bool sends;
    int peer;
    uint64_t at; /* of the device */
    void *stream;
    size_t bytes, done; /* done: with the eight bytes of the length */
    char *data;         /* the length, and what follows it */
} message;
typedef struct {
    identity id;
    int rank, size, listening, peers[MOST], status;
    bool met;
    message *messages;
} communicator;

static _Thread_local message *group, *group_end; /* in their order */
static _Thread_local communicator *grouped;
static _Thread_local int depth;
static char last[256] = "";

static int fail(int status, const char *why) {
    snprintf(last, sizeof last, "%s", why);
    return status;
}
static bool is_told(const char *what) {
    const char *said = getenv("GOMLX_FAKE_NCCL");
    return said && strcmp(said, what) == 0;
}

/* ---- the driver ---- */
static void *driver_call(const char *name) {
    void *driver = dlopen(getenv("GOMLX_CUDA_DRIVER"), RTLD_NOW | RTLD_NOLOAD);
    return driver ? dlsym(driver, name) : NULL;
}
static bool in_context(void) {
    int (*get)(void **) = (int (*)(void **))(uintptr_t)driver_call("cuCtxGetCurrent");
    void *context = NULL;
    return get && get(&context) == 0 && context;
}
/* In the stream, and done when it returns: what was asked for before it too. */
static bool copy(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    int (*start)(uint64_t, uint64_t, size_t,
                 void *) = (int (*)(uint64_t, uint64_t, size_t, void *))(uintptr_t)driver_call("cuMemcpyAsync");
    int (*settle)(void) = (int (*)(void))(uintptr_t)driver_call("cuCtxSynchronize");
    return start && settle && start(to, from, bytes, stream) == 0 && settle() == 0;
}

/* ---- meeting ---- */
static socklen_t address_of(const identity *id, int rank, struct sockaddr_un *out) {
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX; /* an abstract name: it begins with a zero, and no file is left behind */
    const int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "%.40s-%d", id->bytes, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}
EXPORT int ncclGetVersion(int *version) {
    const char *said = getenv("GOMLX_FAKE_NCCL_VERSION");
    *version = said ? atoi(said) : 22703;
    return SUCCESS;
}
EXPORT int ncclGetUniqueId(identity *out) {
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return fail(SYSTEM_ERROR, "no random bytes");
    memset(out, 0, sizeof *out);
    snprintf(out->bytes, sizeof out->bytes, "%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    return SUCCESS;
}
EXPORT int ncclCommInitRankConfig(communicator **out, int size, identity id, int rank, const config *how) {
    const char *nvls = getenv("NCCL_NVLS_ENABLE");
    struct sockaddr_un address;
    if (how->size < sizeof *how || how->magic != 0xcafebeef || how->version < 21400 || how->blocking != 0)
        return fail(INVALID_ARGUMENT, "a config that is none, or that blocks");
    if (!nvls || strcmp(nvls, "0") != 0)
        return fail(INVALID_USAGE, "NVLS is on");
    if (!in_context() || rank < 0 || rank >= size || size > MOST)
        return fail(INVALID_USAGE, "no context, or no such rank");
    communicator *c = calloc(1, sizeof *c);
    *c = (communicator){.id = id, .rank = rank, .size = size, .status = IN_PROGRESS};
    memset(c->peers, -1, sizeof c->peers);
    c->listening = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const socklen_t length = address_of(&id, rank, &address);
    if (is_told("refuses") || bind(c->listening, (struct sockaddr *)&address, length) != 0 ||
        listen(c->listening, MOST) != 0) {
        close(c->listening);
        free(c);
        return fail(SYSTEM_ERROR, "no way to meet the others");
    }
    *out = c;
    return IN_PROGRESS;
}
static void meet(communicator *c) {
    int known = 0;
    for (int i = 0; i < c->rank; i++) {
        struct sockaddr_un address;
        const socklen_t length = address_of(&c->id, i, &address);
        const int peer = c->peers[i] < 0 ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
        if (peer >= 0 && connect(peer, (struct sockaddr *)&address, length) == 0 && write(peer, &c->rank, 4) == 4)
            c->peers[i] = peer;
        else if (peer >= 0)
            close(peer);
    }
    for (int peer = accept(c->listening, NULL, NULL), other; peer >= 0; peer = accept(c->listening, NULL, NULL))
        if (recv(peer, &other, 4, MSG_WAITALL) == 4 && other > c->rank && other < c->size)
            c->peers[other] = peer;
    for (int i = 0; i < c->size; i++)
        known += c->peers[i] >= 0;
    c->met = known == c->size - 1;
    for (int i = 0; c->met && i < c->size; i++)
        if (i != c->rank)
            fcntl(c->peers[i], F_SETFL, O_NONBLOCK);
    if (c->met)
        c->status = SUCCESS;
}

/* ---- messages ---- */
static int add(bool sends, uint64_t at, size_t bytes, int type, int peer, communicator *c, void *stream) {
    if (depth == 0 || type != 1 || !c->met || c->messages || peer < 0 || peer >= c->size || (grouped && grouped != c))
        return fail(INVALID_USAGE, "a message outside a group, of another type, or before the last ones have ended");
    message *m = calloc(1, sizeof *m);
    *m = (message){.sends = sends, .peer = peer, .at = at, .stream = stream, .bytes = bytes, .data = malloc(bytes + 8)};
    memcpy(m->data, &m->bytes, 8);
    *(group ? &group_end->next : &group) = m;
    group_end = m;
    grouped = c;
    return SUCCESS;
}
EXPORT int ncclGroupStart(void) {
    depth++;
    return SUCCESS;
}
EXPORT int ncclSend(uint64_t from, size_t n, int type, int peer, communicator *c, void *stream) {
    return add(true, from, n, type, peer, c, stream);
}
EXPORT int ncclRecv(uint64_t to, size_t n, int type, int peer, communicator *c, void *stream) {
    return add(false, to, n, type, peer, c, stream);
}
EXPORT int ncclGroupEnd(void) {
    static int ends;
    communicator *c = grouped;
    depth--;
    if (!c)
        return SUCCESS;
    if (++ends == 2 && is_told("dies"))
        kill(getpid(), SIGKILL);
    c->messages = group;
    group = NULL;
    grouped = NULL;
    c->status = in_context() ? IN_PROGRESS : CUDA_ERROR;
    for (message *m = c->messages; m && c->status == IN_PROGRESS; m = m->next)
        if (m->sends && !copy((uint64_t)(uintptr_t)(m->data + 8), m->at, m->bytes, m->stream))
            c->status = CUDA_ERROR;
    return c->status;
}

/* The first message of this kind with a peer that has not ended. */
static message *first(communicator *c, bool sends, int peer) {
    for (message *m = c->messages; m; m = m->next)
        if (m->sends == sends && m->peer == peer && m->done < m->bytes + 8)
            return m;
    return NULL;
}
static void move_own(communicator *c) {
    for (message *to = first(c, true, c->rank), *of = first(c, false, c->rank); to && of && c->status == IN_PROGRESS;
         to = first(c, true, c->rank), of = first(c, false, c->rank)) {
        if (to->bytes != of->bytes)
            c->status = fail(INTERNAL, "a message of other bytes than are received");
        else
            memcpy(of->data, to->data, to->bytes + 8);
        to->done = of->done = to->bytes + 8;
    }
}
/* Whether a call has moved something; it is -1 and again where it cannot now. */
static bool moves(communicator *c, message *m, ssize_t moved) {
    if (moved > 0)
        m->done += (size_t)moved;
    else if (moved == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
        c->status = fail(REMOTE_ERROR, "a peer has closed its connection");
    return moved > 0;
}
static void move_with(communicator *c, int peer) {
    for (message *m = first(c, true, peer); m && c->status == IN_PROGRESS; m = first(c, true, peer))
        if (!moves(c, m, send(c->peers[peer], m->data + m->done, m->bytes + 8 - m->done, MSG_NOSIGNAL)))
            break;
    for (message *m = first(c, false, peer); m && c->status == IN_PROGRESS; m = first(c, false, peer)) {
        const size_t wanted = m->done < 8 ? 8 - m->done : m->bytes + 8 - m->done;
        if (!moves(c, m, recv(c->peers[peer], m->data + m->done, wanted, 0)))
            break;
        if (m->done == 8 && memcmp(m->data, &m->bytes, 8) != 0)
            c->status = fail(INTERNAL, "a message of other bytes than are received");
    }
}
static void forget(communicator *c) {
    while (c->messages) {
        message *next = c->messages->next;
        free(c->messages->data);
        free(c->messages);
        c->messages = next;
    }
}
static void move(communicator *c) {
    move_own(c);
    for (int i = 0; i < c->size && c->status == IN_PROGRESS; i++)
        if (i != c->rank)
            move_with(c, i);
    for (message *m = c->messages; m; m = m->next)
        if (c->status != IN_PROGRESS || m->done < m->bytes + 8)
            return;
    for (message *m = c->messages; m; m = m->next)
        if (!m->sends && !copy(m->at, (uint64_t)(uintptr_t)(m->data + 8), m->bytes, m->stream)) {
            c->status = CUDA_ERROR;
            return;
        }
    forget(c);
    c->status = SUCCESS;
}
EXPORT int ncclCommGetAsyncError(communicator *c, int *status) {
    if (c->status == IN_PROGRESS && !c->met)
        meet(c);
    else if (c->status == IN_PROGRESS && !is_told("hangs"))
        move(c);
    *status = c->status;
    return SUCCESS;
}
EXPORT int ncclCommAbort(communicator *c) {
    forget(c);
    for (int i = 0; i < c->size; i++)
        if (c->peers[i] >= 0)
            close(c->peers[i]);
    close(c->listening);
    free(c);
    return SUCCESS;
}
EXPORT const char *ncclGetErrorString(int status) {
    static const char *const words[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process exited",  "NCCL operation in progress"};
    return status >= 0 && status <= IN_PROGRESS ? words[status] : "unknown result code";
}
EXPORT const char *ncclGetLastError(communicator *c) {
    (void)c;
    return last;
}
