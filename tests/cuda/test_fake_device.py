"""Arrays on a device that is not the processor: the fake one (fake_device.c), whose memory faults when the host touches
it, and whose work runs as late as possible. Each test is a process, for a device is chosen once."""
import json
import os
import shutil
import subprocess
import sys

import pytest
from gpu_programs import FORK, run_program
from places import ROOT

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler: gcc")


@pytest.fixture
def run(library):
    def run(program, **environment):
        """What the program prints."""
        environment = {"GOMLX_DEVICE_LIBRARY": library, "GOMLX_DEVICE": "", **environment}
        return run_program(program, "GOMLX_DEVICE_LIBRARY", {**os.environ, **environment}, timeout=120)

    return run


# Parts of the array tests, the longer ones among the slow tests. The whole suite runs so with GOMLX_TEST_DEVICE=fake.
@pytest.mark.parametrize("tests", [
    pytest.param(["core/test_ops_by_hand.py", "core/test_array.py", "core/test_indexing.py"], id="arrays"),
    pytest.param(["core/test_transforms.py", "core/test_compile.py", "nn/test_optimizers.py"], id="transforms"),
    pytest.param(["core/test_sort.py", "core/test_products.py", "core/test_random.py", "core/test_export.py",
                  "core/test_exchange.py", "core/test_gradients.py"], id="operations", marks=pytest.mark.slow),
    pytest.param(["nn/test_layers.py", "nn/test_nn.py", "nn/test_train.py"], id="nn", marks=pytest.mark.slow),
])
def test_the_suite_on_the_device(tests):
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=short"]
    paths = [os.path.join("tests", path) for path in tests]
    done = subprocess.run([sys.executable, "-P", "-m", "pytest", *options, *paths], cwd=ROOT, text=True, timeout=900,
                          env={**os.environ, "GOMLX_TEST_DEVICE": "fake"}, capture_output=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_exchanges_where_no_line_is_lent(run):
    """On the processor, which is counted; the result goes back."""
    run("""
        from gomlx import _gomlx
        seen = []

        def carry(kind, group, peer, dtype, shape, x, out, line):
            seen.append((dtype, shape, line))
            out[:] = bytes(x)[::-1]

        _gomlx._set_carrier(carry)
        x = mx.contiguous(mx.array([1, 2, 3], mx.uint8) + mx.array(0, mx.uint8))
        assert (_gomlx._exchange(x, 0, 0, -1, 0, mx.uint8, (3,), True) + mx.array(1, mx.uint8)).tolist() == [4, 3, 2]
        assert seen == [("uint8", (3,), None)] and mx.device_info()["fallbacks"] == {"exchange": 1}
    """)


def test_attention_keeps_for_its_gradient_what_is_small(run):
    """Its softmax, which would else be made again: for as many scores as have room, and many queries."""
    run("""
        import io
        def names(queries, keys=40, device=mx.gpu):
            def attend(q, k):
                return mx.fast.scaled_dot_product_attention(q, k, k, scale=0.5).sum()
            with mx.stream(device):
                q, k = mx.random.normal((1, 2, queries, 8)), mx.random.normal((1, 2, keys, 8))
                mx.eval(q, k)
                value, gradients = mx.value_and_grad(attend, argnums=(0, 1))(q, k)
                mx.export_to_dot(text := io.StringIO(), value, gradients)
            return text.getvalue().lower(), value, gradients, mx.grad(attend)(q, k)

        assert names(32)[0].count('"softmax"') == 1 and "attention" not in names(32)[0]
        for other in (names(31), names(32, device=mx.cpu), names(512, 80000)):
            assert other[0].count('"softmax"') == 1 and other[0].count("attention") == 1, other[0]
        _, value, (dq, dk), again = names(33)
        assert np.array_equal(np.array(dq), np.array(again)) and np.isfinite(np.array(dk)).all()
    """)


def test_devices_and_streams(run):
    run("""
        assert mx.default_device() == mx.Device(mx.gpu, 0) and mx.device_count(mx.gpu) == 2
        assert mx.is_available(mx.gpu) and not mx.is_available(mx.Device(mx.gpu, 2))
        info = mx.device_info()
        assert info["device_name"] == "Fake device" and info["architecture"] == "fake_1" and info["fallbacks"] == {}
        assert "memory_size" in mx.device_info(mx.cpu) and "fallbacks" not in mx.device_info(mx.cpu)
        assert mx.default_stream(mx.gpu).device == mx.gpu and mx.default_stream(mx.cpu).device == mx.cpu
        launches = fake.fake_count(b"launch")
        a = mx.arange(100, stream=mx.cpu)
        assert mx.add(a, 1, stream=mx.cpu).tolist() == list(range(1, 101)) and a.sum(stream=mx.cpu).item() == 4950
        with mx.stream(mx.cpu):
            assert mx.default_device() == mx.cpu and (a * 2).tolist()[-1] == 198
            with mx.stream(mx.new_stream(mx.gpu)):
                assert mx.default_device() == mx.gpu
        assert mx.default_device() == mx.gpu and fake.fake_count(b"launch") == launches
        assert (a * 2).tolist() == list(range(0, 200, 2)) and fake.fake_count(b"launch") > launches
        mx.set_default_device(mx.Device(mx.gpu, 1))
        b = a + mx.ones(100)
        mx.set_default_device(mx.gpu)
        assert (b + a).sum().item() == 2 * 4950 + 100       # from one to the other
        mx.synchronize(mx.gpu)
        fails(lambda: mx.Device(mx.gpu, 7) and mx.set_default_device(mx.Device(mx.gpu, 7)), IndexError)
        fails(lambda: mx.add(1, 2, stream=mx.Device(mx.gpu, 7)), IndexError)
    """)


@pytest.mark.parametrize("asked, device", [("cpu", "Device(cpu, 0)"), ("cuda", "Device(gpu, 0)"),
                                           ("cuda:1", "Device(gpu, 1)"), ("", "Device(gpu, 0)")])
def test_the_default_device_is_asked_for(run, asked, device):
    assert run("print(mx.default_device(), mx.arange(3).tolist())", GOMLX_DEVICE=asked) == f"{device} [0, 1, 2]\n"


def test_no_device(run):
    say = """
        assert mx.default_device() == mx.cpu and mx.arange(3).tolist() == [0, 1, 2]
        assert mx.device_count(mx.gpu) == 0 and mx.device_info(mx.gpu) == {} and not mx.is_available(mx.gpu)
        print(fails(lambda: mx.set_default_device(mx.gpu), ValueError))
        print(fails(lambda: mx.add(1, 2, stream=mx.gpu), ValueError))
    """
    for line in run(say, GOMLX_FAKE_DEVICE="none").splitlines():
        assert "there is no gpu backend: the fake device is switched off; switch it on" in line


@pytest.mark.parametrize("program, environment, said", [
    ("import gomlx.core as mx; mx.set_default_device(mx.gpu)", {"GOMLX_DEVICE_LIBRARY": "/nothing.so"},
     "ValueError: set_default_device: there is no gpu backend: GOMLX_DEVICE_LIBRARY: /nothing.so"),
    ("import gomlx.core as mx; mx.set_default_device(mx.gpu)", {"GOMLX_DEVICE_LIBRARY": ""},
     "ValueError: set_default_device: there is no gpu backend"),
    ("import gomlx.core as mx; mx.arange(3)", {"GOMLX_DEVICE_LIBRARY": "", "GOMLX_DEVICE": "cuda"},
     "ValueError: there is no gpu backend"),
    ("import gomlx", {"GOMLX_DEVICE": "tpu"}, "GOMLX_DEVICE=tpu: expected cpu, cuda or cuda:N"),
])
def test_what_is_asked_for_is_not_there(program, environment, said):
    done = subprocess.run([sys.executable, "-P", "-c", program], env={**os.environ, "GOMLX_DEVICE": "", **environment},
                          cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and said in done.stderr, done.stderr


def test_a_broken_device(run):
    run("""
        assert "gpu 0 cannot be used: the fake device is broken" in fails(lambda: mx.arange(3), gomlx.Error)
        assert mx.arange(3, stream=mx.cpu).tolist() == [0, 1, 2]
    """, GOMLX_FAKE_DEVICE="broken")


def test_a_tensor_of_one_device_opens_no_other(run):
    run("""
        x = mx.arange(3) + 1
        assert x.__dlpack_device__() == (2, 1)
        assert mx.from_dlpack(x, copy=False).tolist() == mx.from_dlpack(x).tolist() == [1, 2, 3]
        assert "gpu 0 cannot be used" in fails(lambda: mx.arange(3, stream=mx.Device(mx.gpu, 0)), gomlx.Error)
    """, GOMLX_FAKE_DEVICE="broken 0", GOMLX_DEVICE="cuda:1")


@pytest.mark.parametrize("state, said", [
    ("", "Fake device"), ("broken", "gpu 0 cannot be used: the fake device is broken"),
    ("none", "the fake device is switched off; switch it on")])
def test_doctor(library, state, said):
    environment = {**os.environ, "GOMLX_DEVICE_LIBRARY": library, "GOMLX_DEVICE": "", "GOMLX_FAKE_DEVICE": state}
    command = [sys.executable, "-P", "-m", "gomlx", "doctor"]
    text = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert said in text.stdout
    found = json.loads(subprocess.run([*command, "--json"], cwd=ROOT, env=environment, capture_output=True, text=True,
                                      timeout=60, check=True).stdout)["gpu"]
    assert found["found"] == (0 if state == "none" else 2) and said in str(found)
    assert state or found["gpu 1"]["memory bytes"] == 4 << 30


def test_nothing_looks_for_devices_at_import(library):
    program = """if True:
        import os, gomlx, gomlx.core as mx
        is_loaded = lambda: os.environ["GOMLX_DEVICE_LIBRARY"] in open("/proc/self/maps").read()
        assert mx.array([1, 2]).tolist() == [1, 2] and not is_loaded()
        assert mx.arange(2).tolist() == [0, 1] and is_loaded()
    """
    subprocess.run([sys.executable, "-P", "-c", program], check=True, cwd=ROOT, timeout=60,
                   env={**os.environ, "GOMLX_DEVICE_LIBRARY": library, "GOMLX_DEVICE": ""})


def test_what_a_gpu_does_not_do(run):
    run("""
        x = mx.array(np.eye(4, dtype=np.float32))
        assert "has no kernel on the GPU" in fails(lambda: mx.linalg.qr(x), ValueError)
        assert mx.linalg.inv(x, stream=mx.cpu).tolist() == x.tolist()
        assert "float64" in fails(lambda: x.astype(mx.float64), ValueError)
        d = mx.array([1.0, 2.0], dtype=mx.float64)
        assert d.tolist() == [1, 2] and mx.add(d, d, stream=mx.cpu).tolist() == [2, 4]
        assert "float64" in fails(lambda: d + d, ValueError)
        assert mx.fft.fft(x).shape == (4, 4) and mx.device_info()["fallbacks"] == {"fft": 1}
        assert np.allclose(np.array(mx.fft.ifft(mx.fft.fft(x * 2)).real), 2 * np.eye(4), atol=1e-6)
    """)


def test_copies(run):
    """What is large is uploaded once, and read once; what may be written meanwhile is not kept."""
    run("""
        x = mx.array(np.arange(1 << 20, dtype=np.float32))
        copies = fake.fake_count(b"copy")
        y = x + 1
        mx.eval(y)
        mx.eval(x + 2, x * x)
        assert fake.fake_count(b"copy") - copies <= 4        # x, and the constants of two batches
        copies = fake.fake_count(b"copy")
        assert y[5].item() == 6 and fake.fake_count(b"copy") - copies <= 3
        a = np.asarray(y)
        copies = fake.fake_count(b"copy")
        assert a[7] == 8 and not a.flags.writeable and np.asarray(y)[8] == 9 and fake.fake_count(b"copy") == copies
        shared = np.zeros(1 << 20, dtype=np.float32)
        z = mx.asarray(shared, copy=False)
        assert (z + 1).sum().item() == 1 << 20
        shared[:] = 1
        assert (z + 1).sum().item() == 2 << 20
        w = mx.array(np.zeros(1 << 20, dtype=np.float32))
        mx.eval(w + 1)
        view = np.asarray(w)
        if view.flags.writeable:
            view[:] = 3
            assert (w + 1).sum().item() == 4 << 20
    """)


def test_views_of_the_host_do_not_stop_the_device(run):
    run("""
        layers = [mx.array(np.random.rand(8, 8).astype(np.float32)) for _ in range(50)]
        x = mx.ones((4, 8))
        want = np.ones((4, 8), dtype=np.float32)
        for w in layers:
            x, want = mx.tanh(x @ w.T), np.tanh(want @ np.array(w).T)
        mx.eval(layers)
        waits = fake.fake_count(b"wait")
        got = np.array(x)
        assert np.allclose(got, want, atol=1e-5) and fake.fake_count(b"wait") - waits <= 12
    """)


def test_many_launches(run):
    run("""
        x = mx.zeros((16,))
        for _ in range(20000):
            x = x + 1
        assert x.tolist() == [20000] * 16
        a, b = mx.ones((8,)), mx.ones((8,))
        for i in range(300):                                # the processor and the device in turn
            a = mx.add(a, b, stream=mx.cpu if i % 2 else mx.gpu)
        assert a.tolist() == [301] * 8
    """)


def test_memory(run):
    run("""
        assert mx.get_active_memory(mx.gpu) == 0
        x = mx.zeros((1 << 20,)) + 1
        mx.eval(x)
        assert mx.get_active_memory() >= 4 << 20 and mx.get_peak_memory(mx.gpu) >= 4 << 20
        assert mx.get_active_memory(mx.cpu) < 4 << 20
        del x
        assert mx.get_active_memory() <= 1 << 20 and mx.get_cache_memory() >= 4 << 20
        mx.clear_cache()
        assert mx.get_cache_memory() == 0 and fake.fake_used() <= 32 << 20
        old = mx.set_memory_limit(8 << 20)
        assert "memory limit" in fails(lambda: mx.eval(mx.zeros((1 << 22,)) + 1), MemoryError)
        assert mx.set_memory_limit(old) == 8 << 20 and old < 4 << 30
        assert (mx.zeros((1 << 22,)) + 1).sum().item() == 1 << 22
        for _ in range(20):                                  # 20 x 512 MiB of 4 GiB
            mx.eval(mx.zeros((1 << 27,)) + 1)
    """)


@pytest.mark.parametrize("what", ["alloc", "copy", "launch", "wait", "pinned"])
def test_each_call_fails_in_turn(run, what):
    """An error that says so, and then all goes on: no value is wrong and nothing is lost."""
    run(f"""
        data = np.arange(300 * 300, dtype=np.float32).reshape(300, 300) / 1e4
        def work():
            x = mx.array(data)
            w = mx.array(data[:, :7])
            y = mx.tanh(x @ w)[::2].sum(axis=0) + 1
            return np.array(y), mx.add(y, 1, stream=mx.cpu).tolist(), y.tolist()
        want = (np.tanh(data @ data[:, :7])[::2].sum(axis=0) + 1)
        failed = 0
        for nth in range(1, 60):
            mx.clear_cache()
            fake.fake_fail(b"{what}", nth)
            try:
                got = work()
                assert np.allclose(got[0], want, rtol=1e-4) and np.allclose(got[2], want, rtol=1e-4)
            except (gomlx.Error, MemoryError, RuntimeError) as error:
                failed += 1
                assert "fake" in str(error) or "pinned" in str(error), error
            fake.fake_fail(b"{what}", 0)
            got = work()
            assert np.allclose(got[0], want, rtol=1e-4) and np.allclose(got[1], want + 1, rtol=1e-4)
        import gc
        gc.collect()
        del got
        assert mx.get_active_memory(mx.gpu) < 4 << 20, mx.get_active_memory(mx.gpu)
        print(failed)
    """)


def test_a_device_that_is_lost(run):
    """From then on every use of it says so, and the processor goes on."""
    run("""
        x = mx.ones((1000,)) + 1
        mx.eval(x)
        here = mx.arange(5, stream=mx.cpu)
        fake.fake_fail(b"lose", 3)
        for _ in range(3):
            said = fails(lambda: ((x + 1).sum().item(), (x * 2).sum().item()), gomlx.Error)
            assert "lost" in said and "fall off the bus" in said, said
        assert "lost" in fails(lambda: x.tolist(), gomlx.Error)
        assert mx.add(here, 1, stream=mx.cpu).tolist() == [1, 2, 3, 4, 5]
        mx.set_default_device(mx.Device(mx.gpu, 1))
        assert (mx.ones((10,)) + 1).sum().item() == 20      # the other one is well
        mx.clear_cache()
    """)


def test_compiled_functions_follow_the_default_device(run):
    run("""
        f = mx.compile(lambda x: mx.exp(x * 2) + mx.arange(3))
        x = mx.array([1.0, 2.0, 3.0])
        for device, launches in ((mx.gpu, True), (mx.cpu, False), (mx.gpu, True), (mx.cpu, False)):
            before = fake.fake_count(b"launch")
            with mx.stream(device):
                y = f(x)
                mx.eval(y)
            assert (fake.fake_count(b"launch") > before) == launches, device
            assert np.allclose(np.array(y), np.exp([2, 4, 6]) + np.arange(3))
    """)


def test_training_computes_where_the_model_is(run, shared):
    """Losses and the optimiser too: nothing goes to the default device."""
    steps = """
        rows = [{"prompt": f"Tell me of {i}.", "chosen": f"{i} met a cat.", "rejected": "No."} for i in range(4)]
        with gomlx.load() as model:
            before = fake.fake_count(b"launch"), fake.fake_count(b"copy")
            run = gomlx.train(model, rows, loss="dpo", steps=2, batch=2, eval_data=rows, eval_every=1, progress=False)
            run.finish()
        assert (fake.fake_count(b"launch"), fake.fake_count(b"copy")) == before
        print([step.loss for step in run.history], run.history[-1].eval_loss)
    """
    assert run(steps) == run(steps, GOMLX_DEVICE="cpu")


def test_jobs_that_wait_are_one_evaluation(run):
    run("""
        x = mx.ones((16,)) + 1
        mx.eval(x)
        for bad in (False, True):
            slow = y = mx.ones((600, 600), stream=mx.cpu)
            for _ in range(30):
                slow = mx.matmul(slow, y, stream=mx.cpu)
            mx.async_eval(slow)
            waits = fake.fake_count(b"wait")
            made = [x * i for i in range(8)]
            if bad:
                made[3] = mx.take(x, mx.array([99])) * 2
            for one in made:
                mx.async_eval(one)
            if bad:
                assert "index 99" in fails(mx.synchronize, IndexError)
            mx.synchronize()
            assert bad or fake.fake_count(b"wait") - waits < 8, fake.fake_count(b"wait") - waits
            for i, one in enumerate(made):
                if bad and i == 3:
                    assert "index 99" in fails(one.tolist, IndexError)
                else:
                    assert one.tolist() == [2 * i] * 16
    """)


def test_all_parameters_move_by_few_launches(run):
    run("""
        from gomlx import optimizers
        for optimizer in (optimizers.Adam(1e-3), optimizers.AdamW(1e-3), optimizers.AdamW(1e-3, bias_correction=True)):
            parameters = {f"p{i}": mx.ones((30, 20 + i)) for i in range(9)}
            for _ in range(2):
                mx.eval(parameters, optimizer.state)
                before = fake.fake_count(b"launch")
                parameters = optimizer.apply_gradients(parameters, parameters)
                mx.eval(parameters, optimizer.state)
            assert fake.fake_count(b"launch") - before <= 12, fake.fake_count(b"launch") - before
    """)


def test_fork(run):
    run(FORK)


def test_a_signal_ends_a_long_evaluation(run):
    """What is begun runs to its end, which is little; the rest never runs, and has no value."""
    run("""
        import signal, threading, time
        # Large enough that half a second, which an evaluation still has after a signal, is far from a batch's end:
        # what is interrupted between two batches can be evaluated later.
        x = y = mx.array(np.eye(512, dtype=np.float32))
        for _ in range(10000):
            y = mx.tanh(y @ x)
        launches = fake.fake_count(b"launch")
        sent = []
        def interrupt():
            while fake.fake_count(b"launch") - launches < 100:
                time.sleep(0.001)
            sent.append(time.monotonic())
            signal.raise_signal(signal.SIGINT)
        threading.Thread(target=interrupt).start()
        fails(lambda: mx.eval(y), KeyboardInterrupt)
        assert time.monotonic() - sent[0] < 5               # a bound for a loaded machine
        assert fake.fake_count(b"launch") - launches < 10000, fake.fake_count(b"launch")
        assert "interrupted" in fails(y.tolist, RuntimeError)
        assert (x + 1).sum().item() == 512 * 512 + 512
    """)


def test_few_launches_that_take_long_are_on_their_way(run):
    """What is begun cannot be cancelled: so Ctrl-C waits for the length of these."""
    run("""
        x = y = mx.array(np.eye(1000, dtype=np.float32))
        for _ in range(30):
            y = y @ x
        mx.eval(y)                                          # each takes more than 5 ms
        assert fake.fake_most_waiting() <= 8
        x = y = mx.ones((4,))
        for _ in range(2000):
            y = y * x
        mx.eval(y)
        assert 8 < fake.fake_most_waiting() <= 128
    """)


def test_dlpack(run):
    """Without a copy among those that use the same GPU; to the host only when it is asked for."""
    run("""
        import gc
        x = mx.arange(12).reshape(3, 4) * 1.5
        want = (np.arange(12).reshape(3, 4) * 1.5).tolist()
        assert x.__dlpack_device__() == (2, 0)
        mx.eval(x)
        used = mx.get_active_memory()
        shared, turned = mx.from_dlpack(x, copy=False), mx.from_dlpack(x.__dlpack__(max_version=(1, 0)), copy=False).T
        assert mx.get_active_memory() == used and shared.__dlpack_device__() == (2, 0)
        assert (shared + 1).tolist() == (np.array(want) + 1).tolist() and turned.tolist() == np.array(want).T.tolist()
        copies = [mx.from_dlpack(x), mx.array(x.T), mx.from_dlpack(x[::-1, ::2]), mx.from_dlpack(mx.zeros((0, 3)))]
        mx.eval(copies)
        assert mx.get_active_memory() > used and copies[0].__dlpack_device__() == (2, 0)
        mx.eval(x + 1)                                          # what it had may be used again, if it is nobody's
        del x
        gc.collect()
        assert shared.tolist() == want and copies[0].tolist() == want
        assert copies[1].tolist() == np.array(want).T.tolist()
        assert copies[2].tolist() == np.array(want)[::-1, ::2].tolist() and copies[3].shape == (0, 3)
        assert np.asarray(shared).tolist() == want
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
            assert np.from_dlpack(shared, device="cpu").tolist() == want
        assert "device" in fails(lambda: np.from_dlpack(shared), BufferError, RuntimeError)
        assert "only be a copy" in fails(lambda: shared.__dlpack__(dl_device=(1, 0), copy=False), BufferError)
        assert "not on (2, 1)" in fails(lambda: shared.__dlpack__(dl_device=(2, 1)), BufferError)
        here = mx.add(mx.array([1, 2]), 1, stream=mx.cpu)
        assert here.__dlpack_device__() == (1, 0) and np.from_dlpack(here).tolist() == [2, 3]
        with mx.stream(mx.Device(mx.gpu, 1)):
            other = mx.arange(3) + 1
        assert other.__dlpack_device__() == (2, 1) and mx.from_dlpack(other).__dlpack_device__() == (2, 1)
        del shared, turned, copies, other
        gc.collect()
        assert mx.get_active_memory() < used
    """)


def test_threads(run):
    run("""
        import threading
        x = mx.array(np.arange(50000, dtype=np.float32))
        wrong = []
        def work(i):
            mx.set_default_device(mx.gpu if i % 2 else mx.cpu)
            for k in range(20):
                if ((x + k) * i).sum().item() != mx.add(x, k, stream=mx.cpu).sum().item() * i and i < 2:
                    wrong.append((i, k))
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert not wrong and mx.default_device() == mx.gpu
    """)


def test_errors_of_indices(run):
    run("""
        a = mx.arange(10)
        assert "out of range" in fails(lambda: mx.eval(mx.take(a + 1, mx.array([3, 99]))), IndexError)
        assert mx.take(a + 1, mx.array([3, 9])).tolist() == [4, 10]
    """)


def test_mirrors_give_way_to_memory_that_is_needed(run):
    run("""
        mx.set_memory_limit(100 << 20, mx.gpu)
        data = [mx.array(np.full(4 << 20, i, dtype=np.float32)) for i in range(12)]      # 16 MiB each
        for k in range(3):
            for i, x in enumerate(data):
                assert mx.max(x + k).item() == i + k
        assert mx.get_active_memory(mx.gpu) <= 100 << 20
        kept = [x + 1 for x in data[:8]]
        assert "memory limit" in fails(lambda: mx.eval(kept), MemoryError)
        assert mx.max(data[3]).item() == 3
    """)


@pytest.mark.parametrize("contract, name", [("scan", "cumsum"), ("sort", "sort"), ("reduce", "sum")])
def test_what_a_device_lacks_runs_on_the_processor(run, contract, name):
    run(f"""
        x = mx.array(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32))
        def f(x, stream=None):
            y = mx.tanh(x * 2) + 1
            return mx.exp(mx.{name}(y, axis=0)) * y
        want = mx.grad(lambda x: f(x).sum())(mx.array(x))
        got = f(x)
        mx.eval(got, want)
        assert sum(mx.device_info()["fallbacks"].values()) >= 2, mx.device_info()
        with mx.stream(mx.cpu):
            there = f(x), mx.grad(lambda x: f(x).sum())(mx.array(x))
        assert np.array_equal(np.array(got), np.array(there[0]))
        assert np.allclose(np.array(want), np.array(there[1]), rtol=1e-4)
    """, GOMLX_FAKE_LACKS=contract)
