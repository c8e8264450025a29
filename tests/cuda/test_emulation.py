"""What runs kernels without a card (emulate.h, fibers.cpp): threads that exchange, wait and multiply together, and what
is an error there because a card does not forgive it."""
import subprocess

import pytest
from fake_driver import compiler_of, emulated
from places import ROOT

pytestmark = pytest.mark.slow

PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include "vocabulary.cuh"
extern "C" void emulated_launch(void (*)(const void *), const void *, const unsigned *, unsigned, size_t, unsigned);

enum { THREADS = 200, BLOCKS = 4 };
struct arguments { int *out; int fault; };
/* The sum of the numbers of a block's threads, and of its neighbour's in a cluster. */
KERNEL(gm_sums, arguments, THREADS) {
    SHARED int each[BLOCKS][7];
    const int thread = thread_index(), warp = thread / WARP, lane = thread % WARP;
    const int size = (int)(thread < 192 ? 32 : 8); /* lanes of the last warp */
    int sum = thread;
    for (int by = size / 2; by > 0; by /= 2)
        sum += lane_xor(sum, by);
    if (lane == 0)
        each[block_index()][warp + (a.fault == 1 && warp == 6 ? 7 * BLOCKS : 0)] = sum;
    if (a.fault != 2 || thread != 5)
        barrier();
    float *total = (float *)block_memory();
    if (thread == 0) {
        total[a.fault == 3 ? 32 : 0] = 0;
        for (int i = 0; i < 7; i++)
            total[0] += (float)each[block_index()][i];
    }
    cluster_barrier();
    const float both = total[0] + cluster_read(total, cluster_rank() ^ 1);
    a.out[block_index() * THREADS + thread] = (int)both;
    cluster_barrier();
}
struct products { float *out; };
/* a[i][k] = i + k, b[k][j] = k - j, each as the lanes of a warp have them. */
KERNEL(gm_products, products, WARP) {
    const int row = thread_index() / 4, pair = thread_index() % 4 * 2;
    uint32_t x[4], w[2];
    float d[4] = {1, 1, 1, 1};
    for (int part = 0; part < 4; part++) {
        const float first = (float)(row + part % 2 * 8 + pair + part / 2 * 8);
        x[part] = bfloat_of_float(first) | (uint32_t)bfloat_of_float(first + 1) << 16;
    }
    for (int part = 0; part < 2; part++) {
        const float first = (float)(pair + part * 8 - row);
        w[part] = bfloat_of_float(first) | (uint32_t)bfloat_of_float(first + 1) << 16;
    }
    mma_bf16(d, x, w);
    for (int i = 0; i < 4; i++)
        a.out[(row + i / 2 * 8) * 8 + pair + i % 2] = d[i];
}

int main(int, char **argv) {
    const unsigned grid[3] = {BLOCKS, 1, 1}, one[3] = {1, 1, 1};
    static int sums[BLOCKS * THREADS];
    static float out[16 * 8];
    const arguments a = {sums, atoi(argv[1])};
    const products p = {out};
    emulated_launch(gm_sums, &a, grid, THREADS, 128, 2);
    for (int i = 0; i < BLOCKS * THREADS; i++)
        if (sums[i] != THREADS * (THREADS - 1))
            return printf("thread %d: %d\n", i, sums[i]), 1;
    emulated_launch(gm_products, &p, one, WARP, 0, 1);
    for (int i = 0; i < 16 * 8; i++) {
        int want = 1;
        for (int k = 0; k < 16; k++)
            want += (i / 8 + k) * (k - i % 8);
        if (out[i] != (float)want)
            return printf("product %d: %g, not %d\n", i, (double)out[i], want), 1;
    }
    return puts("right"), 0;
}
"""


@pytest.fixture(scope="module")
def program(engine, tmp_path_factory):
    """The program's path."""
    source = tmp_path_factory.mktemp("emulation") / "program.cu"
    source.write_text(PROGRAM)
    path = str(source.with_suffix(""))
    objects = emulated([str(source)], *engine.addresses)
    subprocess.run([*compiler_of("CXX", "g++"), *engine.addresses, *objects, "-o", path], cwd=ROOT, check=True)
    return path


@pytest.mark.parametrize("fault, said", [
    (0, "right"), (1, "AddressSanitizer: global-buffer-overflow"),
    (2, "a barrier that not all threads of block 0 meet"), (3, "AddressSanitizer: heap-buffer-overflow")])
def test_threads_that_work_together(program, engine, fault, said):
    """0: exchanges, barriers of warps, blocks and clusters, products of tensor cores. 1: a write beyond a block's
    arrays, 2: a barrier that one thread leaves out, 3: a write beyond the memory of a block."""
    if said.startswith("Address") and not engine.sanitize:
        pytest.skip("the compiler has no AddressSanitizer")
    done = subprocess.run([program, str(fault)], capture_output=True, text=True, timeout=60)
    assert said in done.stdout + done.stderr and (done.returncode == 0) == (fault == 0), done.stdout + done.stderr
