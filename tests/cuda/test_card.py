"""What only a card can show: other libraries on it, the same bits again and again, how soon Ctrl-C ends its work. Each
test is a process. GOMLX_TEST_RUNS: how often the same is computed (30)."""
import os
import subprocess
import sys

import pytest
from gpu_programs import FORK, run_program
from places import ROOT

import gomlx.core as mx

# Asked in this process, which is the suite's: it stays on the device that the suite runs on.
if os.environ.get("GOMLX_DEVICE_LIBRARY") or os.environ.get("GOMLX_CUDA_DRIVER"):
    pytest.skip("a fake device stands in the card's place", allow_module_level=True)
if mx.device_count(mx.gpu) == 0:
    pytest.skip("there is no GPU that can be used here", allow_module_level=True)


def run(program, **more):
    """What the program prints."""
    return run_program(program, None, {**os.environ, "GOMLX_DEVICE": "cuda", **more}, timeout=500)


def test_torch_on_the_same_card():
    """Without a copy both ways, each behind what the other has begun."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    run("""
        import gc, torch
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool,
                      torch.complex64):
            t = torch.arange(4096 * 512, device="cuda").reshape(4096, 512).to(dtype)
            x = mx.from_dlpack(t, copy=False)
            back = torch.from_dlpack(x)
            assert x.__dlpack_device__() == (2, t.device.index) and back.data_ptr() == t.data_ptr(), dtype
            assert back.dtype == dtype and torch.equal(back, t)
            assert torch.equal(torch.from_dlpack(mx.from_dlpack(t.T[1:], copy=True)), t.T[1:])
            mine = mx.array(t)
            assert torch.from_dlpack(mine).data_ptr() != t.data_ptr()
        for i in range(20):                                 # one after the other, with work on its way
            a = torch.randn(2048, 2048, device="cuda")
            b = a @ a
            x = mx.from_dlpack(b, copy=False) + 1
            y = torch.from_dlpack(x) * 2
            want = (b + 1) * 2
            del b, x
            gc.collect()
            filler = [torch.zeros(2048, 2048, device="cuda") for _ in range(4)]
            mx.eval(mx.zeros((2048, 2048)) + i)
            assert torch.equal(y, want), i
        host = mx.from_dlpack(torch.arange(5).pin_memory())
        assert host.tolist() == [0, 1, 2, 3, 4]
        assert mx.array(torch.ones(3, device="cuda", dtype=torch.float64)).dtype == mx.float32
        assert np.from_dlpack(mx.ones(3) + 1, device="cpu").tolist() == [2, 2, 2]
    """)


def test_the_same_bits_every_time():
    out = run("""
        import gomlx.nn as nn, time
        runs, key = int(os.environ.get("GOMLX_TEST_RUNS", 30)), mx.random.key(1)
        normal = lambda *shape, dtype=mx.float32: mx.random.normal(shape, key=key).astype(dtype)
        x, half, row = normal(1000, 1000), normal(1000, 1000, dtype=mx.bfloat16), normal(1, 4096)
        deep = normal(2, 300, 8, 64, dtype=mx.float16).swapaxes(1, 2)
        quantised = mx.quantize(normal(2048, 4096), 64, 4)
        halves = [a.astype(mx.bfloat16) if a.dtype == mx.float32 else a for a in quantised]
        places = mx.random.randint(0, 500, (200000,), key=key)
        many = normal(200000)
        layers = nn.Sequential(nn.Linear(1000, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 10))
        mx.eval(x, half, row, deep, *quantised, *halves, places, many, layers.parameters())
        loss = nn.value_and_grad(layers, lambda v: nn.losses.cross_entropy(layers(v), places[:1000] % 10).mean())
        def leaves(tree):
            return [tree] if isinstance(tree, mx.array) else [a for v in
                   (tree.values() if isinstance(tree, dict) else tree) for a in leaves(v)]
        work = {
            "sums": lambda: [x.sum(), x.sum(0), x.sum(1), half.sum(0), many.sum(), x.var(0), mx.logsumexp(x, 1)],
            "extremes": lambda: [x.max(0), x.argmax(1), x.argmin(0), x.prod(0)],
            "products": lambda: [x @ x, half @ half.T, row @ normal(4096, 300), x[:3] @ x],
            "quantised": lambda: [mx.quantized_matmul(v, *quantised) for v in (row, normal(33, 4096))],
            "quantised halves": lambda: [mx.quantized_matmul(v, *halves) for v in (row.astype(mx.bfloat16),
                                                                                  normal(33, 4096, dtype=mx.bfloat16))],
            "layers": lambda: [mx.softmax(x, -1), mx.fast.rms_norm(half, None, 1e-5),
                               mx.fast.scaled_dot_product_attention(deep, deep, deep, scale=0.125)],
            "orders": lambda: [mx.sort(many), mx.argsort(x, 0), mx.partition(x, 7, 1), mx.cumsum(many),
                               mx.cumsum(x, 0)],
            "places": lambda: [mx.zeros(500).at[places].add(many), mx.zeros(500).at[places].maximum(many),
                               x[places % 1000][:99]],
            "convolution": lambda: [mx.conv2d(normal(2, 32, 32, 16), normal(8, 3, 3, 16))],
            "gradients": lambda: leaves(loss(x)),
        }
        for name, make in work.items():
            first, start = make(), time.perf_counter()
            mx.eval(first)
            for i in range(runs):
                again = make()
                same = [mx.array_equal(a.reshape(-1).view(mx.uint8), b.reshape(-1).view(mx.uint8))
                        for a, b in zip(first, again)]
                assert mx.stack(same).all().item(), (name, i, [s.item() for s in same])
            print(f"{name}: {runs} times in {time.perf_counter() - start:.1f} s")
    """)
    sys.stdout.write(out)


def test_ctrl_c_ends_a_long_evaluation():
    """The measured time is printed; the limit is ten times what is asked for."""
    out = run("""
        import signal, threading, time
        worst = 0
        for size, after in ((4096, 0.5), (512, 0.3), (8192, 0.5)):
            x = y = mx.random.normal((size, size)) / size**0.5
            for _ in range(30000 if size == 512 else 2000):
                y = mx.tanh(y @ x)
            sent = []
            def interrupt():
                time.sleep(after)
                sent.append(time.perf_counter())
                signal.raise_signal(signal.SIGINT)
            threading.Thread(target=interrupt).start()
            fails(lambda: mx.eval(y), KeyboardInterrupt)
            print(f"Ctrl-C in products of {size}: {(time.perf_counter() - sent[0]) * 1e3:.0f} ms")
            worst = max(worst, time.perf_counter() - sent[0])
            if size > 512:      # else it may have ended between two batches, and what is left can be evaluated
                assert "interrupted" in fails(y.tolist, RuntimeError)
            assert (x * 0 + 1).sum().item() == size * size
        assert worst < 1
    """)
    sys.stdout.write(out)


def test_an_exhausted_card():
    """An error that names it, and all goes on."""
    run("""
        free = mx.device_info()["memory_size"]
        x = mx.ones((1 << 20,))
        for _ in range(3):
            large = [mx.ones((16384, free // (1 << 18))) + i for i in range(6)]
            said = fails(lambda: mx.eval(large), MemoryError, gomlx.Error)
            del large
            assert "memory" in said, said
            assert (x + 1).sum().item() == 2 << 20
        mx.clear_cache()
    """)


def test_a_fork():
    run(FORK)


def test_an_index_out_of_range():
    run("""
        x = mx.arange(10)
        said = fails(lambda: mx.eval(x[mx.array([3, 12])]), IndexError)
        assert "12" in said and x[mx.array([3])].tolist() == [3]
    """)


def test_models():
    """The packaged one, and the shared ones where there are any: card_models.py says what has to be true."""
    shared = os.environ.get("GOMLX_SHARED") or os.path.join(os.path.dirname(ROOT), "shared")
    folders = [os.path.join(shared, "data", "models")] if os.path.isdir(shared) else []
    done = subprocess.run([sys.executable, os.path.join(ROOT, "tests", "cuda", "card_models.py"), *folders], cwd=ROOT,
                          text=True, env={**os.environ, "GOMLX_DEVICE": "cuda"}, capture_output=True, timeout=580)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
