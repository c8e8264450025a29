/* foreign.c - Python objects whose memory a node uses.
 *  (1) The engine lets go of a node on any thread, under its lock or without the GIL: the callback only pushes the
 *      record on a lock-free stack and never allocates.
 *  (2) Records are given back with the GIL held: by the thread that drains (each array that dies, each evaluation that
 *      ends), or by the interpreter itself, which is asked to when the stack was empty. */
#include "py/py.h"
#include <stdatomic.h>

static _Atomic(foreign *) waiting;

static int drain_pending(void *unused) {
    (void)unused;
    foreign_drain();
    return 0;
}

void foreign_push(void *record) {
    foreign *entry = record;
    foreign *head = atomic_load(&waiting);
    do {
        entry->next = head;
    } while (!atomic_compare_exchange_weak(&waiting, &head, entry));
    if (!head)
        Py_AddPendingCall(drain_pending, NULL); /* a full queue is fine: a thread drains it soon */
}

void foreign_drain(void) {
    if (!atomic_load_explicit(&waiting, memory_order_relaxed))
        return;
    foreign *entry = atomic_exchange(&waiting, NULL);
    while (entry) {
        foreign *next = entry->next;
        entry->give_back(entry);
        entry = next;
    }
}
