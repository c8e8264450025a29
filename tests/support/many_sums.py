"""Sums of many sizes over all ranks, while other threads keep the processors busy: `many_sums.py CALLS`; what a sum
takes beside that of the package mpi4py: `many_sums.py CALLS BYTES`. Each rank prints "rank: " and what it found."""
import statistics
import sys
import threading
import time

import numpy as np

import gomlx.core as mx

d = mx.distributed
SIZES = (0, 1, 3, 64, 1000, 20_011)


def busy(stop):
    while not stop.is_set():
        sum(range(1000))


def same_bits(calls, group):
    """All sums are those of NumPy in rank order."""
    stop = threading.Event()
    threads = [threading.Thread(target=busy, args=(stop,), daemon=True) for _ in range(2)]
    for one in threads:
        one.start()
    for i in range(calls):
        n = SIZES[i % len(SIZES)]
        parts = [np.random.default_rng([i, rank]).standard_normal(n).astype(np.float32) for rank in range(group.size())]
        want = parts[0].copy()
        for one in parts[1:]:
            want += one
        got = np.asarray(d.all_sum(mx.array(parts[group.rank()])))
        assert got.tobytes() == want.tobytes(), (i, n)
    stop.set()
    return f"{calls} sums"


def beside_mpi(calls, size):
    """The median seconds of a sum of so many bytes here and by MPI."""
    from mpi4py import MPI
    x, found = np.ones(size // 4, np.float32), [[], []]
    theirs, mine = np.empty_like(x), mx.array(x)
    for _ in range(calls):
        for times, call in zip(found, (lambda: mx.eval(d.all_sum(mine)),
                                       lambda: MPI.COMM_WORLD.Allreduce(x, theirs))):
            MPI.COMM_WORLD.Barrier()
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
    here, there = map(statistics.median, found)
    return f"{here * 1e3:.1f} ms, MPI {there * 1e3:.1f} ms, {here / there:.2f} times"


if __name__ == "__main__":
    world = d.init(strict=True)
    said = same_bits(int(sys.argv[1]), world) if len(sys.argv) == 2 else beside_mpi(int(sys.argv[1]), int(sys.argv[2]))
    print(f"{world.rank()}: {said}\n", end="", flush=True)
