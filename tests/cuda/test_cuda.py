"""The host's side of CUDA (kernels/cuda/*.c) over a driver without a card (fake_driver.c), and the kernels as the
host's compiler makes them (emulate.h). Each test is a process, for a device is chosen once."""
import json
import os
import subprocess
import sys
import textwrap

import pytest
from architectures import Golden
from fake_driver import build_fake_blaslt, build_fake_driver, environment, write_kernels
from gpu_programs import FORK, run_program
from places import ROOT

# ---- what refuses a GPU: the processor goes on, and who asks for the GPU is told why ----
REFUSED = """if True:
    import gomlx.core as mx
    assert mx.default_device() == mx.cpu and mx.arange(3).tolist() == [0, 1, 2]
    assert mx.device_count(mx.gpu) == 0 and not mx.cuda.is_available()
    mx.set_default_device(mx.gpu)
"""


def refused(driver, kernels, **more):
    done = subprocess.run([sys.executable, "-P", "-c", REFUSED], cwd=ROOT, env=environment(driver, kernels, **more),
                          capture_output=True, text=True, timeout=60)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "ValueError: set_default_device: there is no gpu backend: " in last, done.stderr
    return last


@pytest.mark.parametrize("changed, said", [
    ({"GOMLX_CUDA_DRIVER": "/nothing.so"}, "there is no NVIDIA driver: install 580 or newer (/nothing.so: "),
    ({"GOMLX_CUDA_DRIVER": "libm.so.6"}, "NVIDIA's driver has no cuInit: it is too old; driver 580 or newer is needed"),
    ({"GOMLX_FAKE_VERSION": "12080"}, "NVIDIA's driver is for CUDA 12.8: driver 580 or newer (CUDA 13.0) is needed"),
    ({"GOMLX_FAKE_INIT": "100"}, "NVIDIA's driver does not start: "),
    ({"GOMLX_FAKE_COUNT": "0"}, "NVIDIA's driver finds no GPU"),
    ({"GOMLX_FAKE_MAJOR": "7"}, "this GPU is of architecture sm_70: sm_80 or newer is needed"),
    ({"GOMLX_CUDA_KERNELS": "/nothing"}, "the file of kernels /nothing cannot be read"),
])
def test_what_refuses_a_gpu(kernels, changed, said):
    driver = build_fake_driver(kernels=False)
    assert said in refused(**{"driver": driver, "kernels": kernels, **changed})


def test_the_kernels_are_not_installed(kernels):
    import gomlx
    if os.path.exists(os.path.join(os.path.dirname(gomlx.__file__), "..", "gomlx_cuda13")):
        pytest.skip("they are")
    said = refused(build_fake_driver(kernels=False), "")
    assert "there are no kernels for NVIDIA GPUs: pip install ./kernels/cuda" in said


def doctor(driver, kernels, **more):
    """The part of doctor's report that is of GPUs."""
    said = subprocess.run([sys.executable, "-P", "-m", "gomlx", "doctor", "--json"], cwd=ROOT, capture_output=True,
                          env=environment(driver, kernels, **more), text=True, timeout=60, check=True).stdout
    return json.loads(said)["gpu"]


def test_doctor_names_the_cure_of_each_part_that_is_missing(tmp_path, kernels):
    driver = build_fake_driver(kernels=False)
    for said, found in (
            ("there is no NVIDIA driver: install 580 or newer", doctor("/nothing.so", kernels)),
            ("driver 580 or newer (CUDA 13.0) is needed", doctor(driver, kernels, GOMLX_FAKE_VERSION="12080")),
            ("GOMLX_CUDA_ARCHS=90a pip install ./kernels/cuda",
             doctor(driver, write_kernels(tmp_path / "kernels", ["sm_80"])))):
        assert found["found"] == 0 and said in found["why"], found
    found = doctor(driver, kernels)
    assert found["found"] == 1 and found["gpu 0"]["kernels"].endswith("(sm_90a)")
    assert 'no cuBLASLt: pip install "nvidia-cublas>=13,<14"' in found["gpu 0"]["libraries"], found


def test_files_that_are_not_this_engine_s_kernels(tmp_path, kernels):
    driver, path = build_fake_driver(kernels=False), tmp_path / "kernels"
    with open(kernels, "rb") as file:
        good = file.read()
    path.write_bytes(b"something else")
    assert "is not a file of kernels" in refused(driver, str(path))
    path.write_bytes(good[:16] + b"0" * 64 + good[80:])
    assert "are of another version (000000000000, not " in refused(driver, str(path))
    path.write_bytes(good[:144] + (1 << 40).to_bytes(8, "little") + good[152:])
    assert "is cut off" in refused(driver, str(path))
    said = refused(driver, write_kernels(path, ["sm_80", "sm_120a"]))
    assert "are for sm_80 sm_120a, this GPU is sm_90" in said
    assert "GOMLX_CUDA_ARCHS=90a pip install ./kernels/cuda" in said


@pytest.mark.parametrize("architectures, fits", [
    (["sm_80", "sm_90"], True), (["sm_90a"], True), (["sm_91"], False), (["sm_89"], False), (["sm_100a"], False),
    (["sm_80", "compute_80"], True), (["compute_100"], False)])
def test_which_cards_a_file_of_kernels_is_for(tmp_path, architectures, fits):
    """The card is of capability 9.0."""
    path = write_kernels(tmp_path / "kernels", architectures)
    program = "import gomlx.core as mx; print(mx.device_count(mx.gpu))"
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60,
                          env=environment(build_fake_driver(kernels=False), path))
    assert done.stdout == f"{int(fits)}\n", done.stderr


# ---- arrays, on kernels as the host's compiler makes them, which run when somebody waits for them ----
@pytest.fixture
def run(kernels):
    driver = build_fake_driver()

    def run(program, **more):
        """What the program prints."""
        late = environment(driver, kernels, **{"GOMLX_FAKE_LATE": "1", **more})
        return run_program(program, "GOMLX_CUDA_DRIVER", late, timeout=300)

    return run


@pytest.mark.slow
def test_a_gpu(run):
    run("""
        assert mx.default_device() == mx.Device(mx.gpu, 0) and mx.cuda.is_available()
        info = mx.device_info()
        assert info["device_name"] == "a card that is not there" and info["architecture"] == "sm_90"
        assert info["driver"] == "CUDA 13.0" and info["kernels"].endswith("(sm_90a)")
        assert info["libraries"].startswith("no cuBLASLt: pip install \\"nvidia-cublas>=13,<14\\" (/nothing.so: ")
        x = mx.array(np.arange(12, dtype=np.float32).reshape(3, 4))
        assert (x @ x.T).sum().item() == float((np.arange(12).reshape(3, 4) @ np.arange(12).reshape(3, 4).T).sum())
        assert mx.sort(-x, axis=1).tolist()[0] == [-3, -2, -1, 0] and mx.device_info()["fallbacks"] == {}
    """)


@pytest.mark.slow
def test_more_dimensions_than_kernels_walk_over_are_the_processor_s(run):
    run("""
        x = mx.array(np.arange(2**18, dtype=np.float32).reshape((2,) * 18))
        y = mx.array(np.arange(2**9, dtype=np.int32).reshape((2,) * 9))
        turned = mx.contiguous(mx.arange(2**11).reshape((2,) * 11)).astype(mx.float32)
        turned = turned.transpose(8, 6, 4, 2, 0, 7, 5, 3, 1, 9, 10)
        every_other = tuple(range(0, 18, 2))
        for name, f in [("sum", lambda: mx.sum(x, axis=every_other)), ("pad", lambda: mx.pad(y, 1)),
                        ("argmax", lambda: mx.argmax(turned, axis=-1)),
                        ("matmul", lambda: turned @ turned.transpose(*range(9), 10, 9)),
                        ("take", lambda: mx.take_along_axis(turned, mx.zeros(turned.shape[:10] + (1,), mx.int32), -1)),
                        ("index", lambda: turned[:, :, mx.array([1, 0])] * 2),
                        ("elements", lambda: mx.exp(turned / 100) + turned), ("copy", lambda: mx.contiguous(turned))]:
            got = f()
            mx.eval(got)
            with mx.stream(mx.cpu):
                want = f()
                assert np.allclose(np.array(got), np.array(want), rtol=1e-5), name
        fallbacks = mx.device_info(mx.gpu)["fallbacks"]
        assert sum(fallbacks.values()) >= 2 and all(count == 1 for count in fallbacks.values()), fallbacks
        print(fallbacks)
    """)


@pytest.mark.slow
def test_a_thread_keeps_the_context_that_it_has(run):
    """That of another library on another card, or none."""
    run("""
        other, now = ctypes.c_void_p(), ctypes.c_void_p(1)

        def work():
            x = mx.ones((1000,)) + 1
            assert x.sum().item() == 2000 and mx.device_info()["architecture"] == "sm_90"
            mx.clear_cache()
            fake.cuCtxGetCurrent(ctypes.byref(now))
            return now.value

        assert work() is None
        fake.cuDevicePrimaryCtxRetain(ctypes.byref(other), 1)
        fake.cuCtxPushCurrent_v2(other)
        assert work() == other.value
        assert (fake.fake_retained(0), fake.fake_retained(1)) == (1, 1)
    """, GOMLX_FAKE_COUNT="2")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["alloc", "pinned", "copy", "launch", "load"])
def test_each_call_of_the_driver_fails_in_turn(run, what):
    """An error that says so, and then all goes on: no value is wrong and nothing is lost."""
    run(f"""
        data = np.arange(60 * 60, dtype=np.float32).reshape(60, 60) / 1e3
        def work():
            x = mx.array(data)
            y = mx.tanh(x @ mx.array(data[:, :7]))[::2].sum(axis=0) + 1
            return y.tolist(), mx.add(y, 1, stream=mx.cpu).tolist()
        want = np.tanh(data @ data[:, :7])[::2].sum(axis=0) + 1
        failed = 0
        for nth in range(1, 25):
            mx.clear_cache()
            fake.fake_fail(b"{what}", nth)
            try:
                got = work()
                assert np.allclose(got[0], want, rtol=1e-4)
            except (gomlx.Error, MemoryError) as error:
                failed += 1
                assert "CUDA_ERROR" in str(error) or "pinned" in str(error), error
            fake.fake_fail(b"{what}", 0)
            got = work()
            assert np.allclose(got[0], want, rtol=1e-4) and np.allclose(got[1], want + 1, rtol=1e-4)
        assert failed
        mx.clear_cache()
    """)


@pytest.mark.slow
@pytest.mark.parametrize("what, nth", [("lose", 1), ("lose", 4), ("lose", 9), ("mark", 2)])
def test_a_card_that_falls_off_the_bus(run, what, nth):
    """From then on every use of it says so, and the processor goes on."""
    run(f"""
        x = mx.ones((1000,)) + 1
        mx.eval(x)
        fake.fake_fail(b"{what}", {nth})
        def use():
            for _ in range(5):
                assert (x + 1).sum().item() == 3000
        for _ in range(3):
            said = fails(use, gomlx.Error)
            assert "lost" in said and "CUDA_ERROR" in said, said
        assert mx.add(mx.array([1, 2]), 1, stream=mx.cpu).tolist() == [2, 3]
        mx.clear_cache()
    """)


@pytest.mark.slow
def test_a_fork_and_the_end_of_the_process(run):
    """What was begun and not waited for stops nobody."""
    run(textwrap.dedent(FORK) + "mx.async_eval(*(mx.exp(x + i) for i in range(50)))")


# A meaningful part of the array tests; the whole suite runs so by GOMLX_TEST_DEVICE=gpu and the variables above.
@pytest.mark.slow
@pytest.mark.parametrize("tests, late", [
    (["tests/core/test_ops_by_hand.py", "tests/core/test_array.py", *(f"tests/core/test_ops.py::{test}" for test in (
        "test_reductions_whose_prefixes_are_finite", "test_running_products_whose_prefixes_are_finite",
        "test_a_zero_before_large_numbers"))], "1"),
    (["tests/core/test_fast.py", "tests/core/test_random.py", "tests/core/test_quantized.py",
      "tests/core/test_convolutions.py::test_sums_that_underflow_have_one_zero"], ""),
], ids=["arrays", "layers"])
def test_the_suite_on_the_kernels(kernels, tests, late):
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run([sys.executable, "-P", "-m", "pytest", *options, *tests], cwd=ROOT, text=True, timeout=900,
                          env=environment(build_fake_driver(), kernels, GOMLX_TEST_DEVICE="gpu", GOMLX_FAKE_LATE=late),
                          capture_output=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_kernels_begin_while_the_one_before_ends(run, tmp_path):
    """Where they are machine code that waits for it, unless GOMLX_CUDA_PDL=0 says otherwise; the same bits."""
    program = """
        x = mx.softmax(mx.sin(mx.arange(20000, dtype=mx.float32)).reshape(2, 10000) @ mx.ones((10000, 3)), axis=0)
        print(x.tolist(), fake.fake_count(b"early") == fake.fake_count(b"launch"), fake.fake_count(b"early") == 0)
    """
    early, late = run(program), run(program, GOMLX_CUDA_PDL="0")
    other = run(program, GOMLX_CUDA_KERNELS=write_kernels(tmp_path / "kernels", ["sm_80", "sm_90"]))
    assert early.endswith("True False\n") and late.endswith("False True\n") and other.endswith("False True\n")
    assert early.split("]]")[0] == late.split("]]")[0]


@pytest.mark.slow
def test_launches_over_few_elements_are_one_kernel(run):
    """A chain of them is a kernel for each run of launches, with the processor's bits; what is between has its turn."""
    run("""
        def work(n, dtype, stream):
            values = np.random.default_rng(n).integers(0, 9, n)
            with mx.stream(stream):
                x, y = mx.array(values).astype(dtype), mx.array(values[::-1].copy()).astype(dtype)
                a = mx.where(x > y, (x + y) * y, mx.maximum(x, 3)) - x[0] * y
                b = mx.abs(a)[::-1] + a                  # a step of other order: a kernel of its own between two runs
                c = (b != y).astype(mx.float16) + mx.square(x).astype(mx.float16)
                d = mx.concatenate([mx.broadcast_to(y[:1], (n,)), c.astype(dtype)]) * 2
                return [np.array(one.astype(mx.float32)) for one in (a, b, c, d)]

        for n in (1, 3, 100, 1024, 1025):
            for dtype in (mx.float32, mx.float16, mx.bfloat16, mx.int32, mx.uint16, mx.int64):
                for got, want in zip(work(n, dtype, mx.gpu), work(n, dtype, mx.cpu)):
                    assert np.array_equal(got, want), (n, dtype, got, want)

        def chain(n, times=150):
            x = y = mx.full((n,), 0.5)
            mx.eval(x)
            for _ in range(times):
                y = (y + x) * x
            before = fake.fake_count(b"launch")
            assert y.tolist() == [0.5] * n
            return fake.fake_count(b"launch") - before

        assert chain(100) < 20 and chain(1024) < 20 and chain(1025) >= 300
    """)


# ---- products by cuBLASLt ----
BLASLT = """
blaslt = ctypes.CDLL(os.environ["GOMLX_CUDA_BLASLT"])
blaslt.fake_blaslt_fail.argtypes = [ctypes.c_char_p, ctypes.c_long]
blaslt.fake_blaslt_count.argtypes = [ctypes.c_char_p]
random = np.random.default_rng(0)
def draw(*shape, dtype=mx.float32):
    return mx.array(random.standard_normal(shape).astype(np.float32)).astype(dtype)
def uses(function):
    before = blaslt.fake_blaslt_count(b"multiply")
    got = np.asarray(function().astype(mx.float32))
    return got, blaslt.fake_blaslt_count(b"multiply") - before
def close(got, *wanted):
    return np.allclose(got, np.matmul(*wanted[:2]) + sum(wanted[2:]), rtol=1e-2, atol=1e-2)
"""


@pytest.fixture
def run_blaslt(run):
    path = build_fake_blaslt()

    def run_with_library(program, **more):      # which multiplies when it is called: what is before it has run then
        return run(BLASLT + textwrap.dedent(program), GOMLX_CUDA_BLASLT=path, GOMLX_FAKE_LATE="", **more)

    return run_with_library


@pytest.mark.slow
def test_products_by_cublaslt(run_blaslt):
    """Dense ones of all types, turned, in batches, with what is added; what it has no form for is made as before."""
    run_blaslt("""
        assert mx.device_info()["libraries"].startswith("cuBLASLt 13.1.2 (/"), mx.device_info()["libraries"]
        for dtype in (mx.float32, mx.float16, mx.bfloat16):
            x, w, c, bias = (draw(*shape, dtype=dtype) for shape in ((96, 112), (112, 104), (96, 104), (104,)))
            X, W, C, B = (np.asarray(a.astype(mx.float32)) for a in (x, w, c, bias))
            for left, right in ((x, w), (mx.contiguous(x.T).T, w), (x, mx.contiguous(w.T).T)):
                got, calls = uses(lambda: left @ right)
                assert calls == 1 and close(got, X, W), (dtype, calls)
            got, calls = uses(lambda: mx.addmm(c, x, w, 0.5, 2.0))
            assert calls == 1 and close(got / 0.5, X, W, C * 4)
            got, calls = uses(lambda: mx.addmm(bias, x, w))
            assert calls == 1 and close(got, X, W, B)
            got, calls = uses(lambda: mx.addmm(bias, x, w, 1.0, 2.0))
            assert calls == 0 and close(got, X, W, 2 * B)
            got, calls = uses(lambda: mx.contiguous(x)[1:, 1:] @ w[1:])
            assert calls == 1 and close(got, X[1:, 1:], W[1:])
        x, w, bias = draw(7, 1, 1600), draw(1600, 200), draw(200)
        for left in (x, draw(7, 6, 1600), draw(7, 12, 1600)[:, ::2], x[::2], draw(2, 3, 5, 1600)):
            for added in (None, bias, draw(*left.shape[:-1], 200), draw(left.shape[-2], 200)):
                got, calls = uses(lambda: left @ w if added is None else mx.addmm(added, left, w))
                wanted = [np.asarray(a) for a in (left, w, added) if a is not None]
                assert calls == 1 and close(got, *wanted), left.shape
        x, w = draw(5, 130, 72), draw(5, 72, 65)
        X, W = np.asarray(x), np.asarray(w)
        for left, right in ((x, w), (x, w[2]), (x[:1], w), (x[:, ::2], w), (x, w[::-1])):
            got, calls = uses(lambda: left @ right)
            assert calls == 1 and close(got, np.asarray(left), np.asarray(right))
        heads = [draw(4, 70, 6, 48).transpose(0, 2, 1, 3) for _ in range(2)]     # no single step apart: copied
        got, calls = uses(lambda: heads[0] @ heads[1].swapaxes(-1, -2))
        assert calls == 1 and close(got, np.asarray(heads[0]), np.asarray(heads[1]).swapaxes(-1, -2))
        added = draw(4, 1, 70, 70)
        got, calls = uses(lambda: mx.addmm(added, heads[0], heads[1].swapaxes(-1, -2)))
        assert calls == 4 and close(got, np.asarray(heads[0]), np.asarray(heads[1]).swapaxes(-1, -2), np.asarray(added))
        got, calls = uses(lambda: mx.contiguous(heads[0]) @ heads[1].swapaxes(-1, -2))
        assert calls == 1 and close(got, np.asarray(heads[0]), np.asarray(heads[1]).swapaxes(-1, -2))
        got, calls = uses(lambda: heads[0].swapaxes(-1, -2) @ heads[1])
        assert calls == 1 and close(got, np.asarray(heads[0]).swapaxes(-1, -2), np.asarray(heads[1]))
        many, added = draw(17, 20, 18, 16).transpose(0, 2, 1, 3), draw(17, 1, 20, 20)
        got, calls = uses(lambda: many @ many.swapaxes(-1, -2))
        assert calls == 1 and close(got, np.asarray(many), np.asarray(many).swapaxes(-1, -2))
        got, calls = uses(lambda: mx.addmm(added, many, many.swapaxes(-1, -2)))
        assert calls == 0 and close(got, np.asarray(many), np.asarray(many).swapaxes(-1, -2), np.asarray(added))
        got, calls = uses(lambda: x[:, :, ::2] @ w[:, ::2])
        assert calls == 0 and close(got, X[:, :, ::2], W[:, ::2])
        got, calls = uses(lambda: draw(3, 3) @ draw(3, 3))
        assert calls == 0
        wide = draw(1, 4000)
        assert uses(lambda: wide @ wide.T)[1] == 0 and uses(lambda: wide.T @ wide)[1] == 1
    """)


@pytest.mark.slow
def test_attention_of_many_queries_by_cublaslt(run_blaslt):
    """Both of its products, where there is a form for them; a mask is what the first one adds."""
    run_blaslt("""
        q, k, v = (draw(4, 70, 6, 48).transpose(0, 2, 1, 3) for _ in range(3))
        def attend(mask):
            return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask)
        Q, K, V = (np.asarray(x) for x in (q, k, v))
        row, lane, apart = draw(70), draw(70, 70), draw(4, 1, 70, 70)
        for mask, calls in ((None, 2), (lane, 2), (row[None], 2), (apart, 5), (lane.T, 2)):
            got, made = uses(lambda: attend(mask))
            scores = 0.3 * Q @ K.swapaxes(-1, -2) + (0 if mask is None else np.asarray(mask))
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            assert np.allclose(got, scores / scores.sum(-1, keepdims=True) @ V, rtol=1e-4, atol=1e-4)
            assert made == calls, (made, calls)
    """)


@pytest.mark.slow
@pytest.mark.parametrize("what, says", [("create", ""), ("set", ""), ("choose", ""),
                                        ("multiply", "a product by cuBLASLt: CUBLAS_STATUS_EXECUTION_FAILED")])
def test_each_call_of_cublaslt_fails_in_turn(run_blaslt, what, says):
    """Without a description or an algorithm the product is made as before; what fails on the way says so."""
    run_blaslt(f"""
        import gc
        for nth in range(1, 16):
            x, w = draw(100 + nth, 128), draw(128, 96)
            blaslt.fake_blaslt_fail(b"{what}", nth if {what!r} != "multiply" else 1)
            if {says!r}:
                said = fails(lambda: mx.eval(x @ w), gomlx.Error)
                assert {says!r} in said, said
            else:
                assert close(np.asarray(x @ w), np.asarray(x), np.asarray(w))
            blaslt.fake_blaslt_fail(b"{what}", 0)
            assert close(np.asarray(x @ w), np.asarray(x), np.asarray(w))
    """)


@pytest.mark.slow
def test_cublaslt_is_asked_once_about_a_shape(run_blaslt):
    """And what it was told is given back when another shape takes the place."""
    run_blaslt("""
        x, w = draw(128, 128), draw(128, 128)
        for _ in range(5):
            mx.eval(x @ w)
        assert blaslt.fake_blaslt_count(b"choose") == 1 and blaslt.fake_blaslt_alive() == 5
        for i in range(300):
            mx.eval(x @ draw(128, 64 + i))
        assert blaslt.fake_blaslt_alive() <= 5 * 256 and blaslt.fake_blaslt_count(b"multiply") == 305
    """)


@pytest.mark.slow
def test_a_cublaslt_that_has_no_algorithm_or_is_something_else(run, run_blaslt):
    run_blaslt("""
        x, w = draw(96, 112), draw(112, 104)
        got, calls = uses(lambda: x @ w)
        assert calls == 0 and close(got, np.asarray(x), np.asarray(w))
    """, GOMLX_FAKE_BLASLT="refuses")
    run("""
        assert "no cuBLASLt: the library that was found has no cublasLtCreate" in mx.device_info()["libraries"]
        assert (mx.ones((64, 64)) @ mx.ones((64, 64))).sum().item() == 64 ** 3
    """, GOMLX_CUDA_BLASLT="libm.so.6")


# ---- models ----
@pytest.mark.slow
@pytest.mark.parametrize("case", ["llama", "qwen3_moe", "qwen3_next", "gemma4, experts", "gpt_oss"])
def test_a_model(run, tmp_path, case):
    """Within 1e-5 of the processor, greedy tokens the same; sequences together, parts of a prompt and what goes on from
    the other side have the bits that they have alone."""
    path = Golden().save(str(tmp_path), case)
    run(f"""
        models = [gomlx._gomlx.load_model({path!r}, device=device, activations="float32") for device in (0, 1)]
        ids = {Golden().ids(case)[:13]!r}
        cpu, gpu = (np.array(model.logits([ids])[0], dtype=np.float64) for model in models)
        away = np.sqrt(((gpu - cpu) ** 2).mean() / (cpu ** 2).mean())
        assert 0 < away < 1e-5, away
        assert np.array_equal(gpu, np.array(models[1].logits([ids[:7], ids, ids[:1]])[1]))

        def go_on(session, ids, n=6):
            return [(e.id, np.float32(e.logprob).tobytes()) for e in
                    gomlx._gomlx.stream(session, None, ids, max_tokens=n) if e.id >= 0]

        sessions = [model.new_session() for model in models]
        here, there = (go_on(session, ids) for session in sessions)
        assert [e[0] for e in here] == [e[0] for e in there]
        parts = models[1].new_session()
        go_on(parts, ids[:5], 0)
        assert go_on(parts, ids) == there
        saved = sessions[1].save()
        assert models[0].restore_session(saved).save() == saved
        again = models[1].restore_session(saved)
        assert go_on(again, again.ids) == go_on(sessions[1], sessions[1].ids)
        print(away)
    """)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["llama", "qwen3", "qwen3_5", "gpt_oss"])
def test_layers_on_both(run, tmp_path, case):
    """At every number of layers on the GPU: logits within 1e-5 of the processor's and greedy tokens the same; sequences
    together, parts of a prompt, a fork and a session of another placement have the bits that they have alone, with the
    launches of a step as a graph and without."""
    path = Golden().save(str(tmp_path), case)
    run(f"""
        n_layers, ids = gomlx._gomlx.describe({path!r})["n_layers"], {Golden().ids(case)[:13]!r}

        def go_on(session, ids, n=6):
            return [(e.id, np.float32(e.logprob).tobytes()) for e in
                    gomlx._gomlx.stream(session, None, ids, max_tokens=n) if e.id >= 0]

        here = gomlx._gomlx.load_model({path!r}, activations="float32")
        cpu, text = np.array(here.logits([ids])[0], dtype=np.float64), [e[0] for e in go_on(here.new_session(), ids)]
        for host in range(n_layers):
            model = gomlx._gomlx.load_model({path!r}, device=1, host_layers=host, activations="float32")
            gpu = np.array(model.logits([ids])[0], dtype=np.float64)
            away = np.sqrt(((gpu - cpu) ** 2).mean() / (cpu ** 2).mean())
            assert 0 < away < 1e-5, (host, away)
            assert np.array_equal(gpu, np.array(model.logits([ids[:7], ids, ids[:1]])[1]))
            session, parts = model.new_session(), model.new_session()
            there = go_on(session, ids)
            assert [e[0] for e in there] == text, host
            go_on(parts, ids[:5], 0)
            assert go_on(parts, ids) == there
            saved, fork = session.save(), session.fork()
            assert here.restore_session(saved).save() == saved
            again, want = model.restore_session(saved), go_on(session, session.ids)
            assert go_on(again, again.ids) == want == go_on(fork, fork.ids)
    """)


@pytest.mark.slow
def test_prompts_have_an_arithmetic_of_their_own(run, tmp_path):
    """Of weights and a cache of 16 bits, by the tensor cores: a row has its bits however its prompt is cut, down to a
    single row, and whatever else is decoded; prompts by single rows have the arithmetic of rows that decode."""
    path = Golden().save(str(tmp_path), "llama")
    run(f"""
        model = gomlx._gomlx.load_model({path!r}, device=1, dtype="float16", kv_dtype="float16")
        ids = {Golden().ids("llama")[:13]!r}

        def go_on(session, ids, n=4, **options):
            return [(e.id, np.float32(e.logprob).tobytes()) for e in
                    gomlx._gomlx.stream(session, None, ids, max_tokens=n, **options) if e.id >= 0]

        whole = go_on(model.new_session(), ids)
        for cuts in ([5], [12], [1, 2, 12]):
            parts = model.new_session()
            for cut in cuts:
                go_on(parts, ids[:cut], 0)
            assert go_on(parts, ids) == whole, cuts
        logits = model.logits([ids])[0]
        assert np.array_equal(logits, model.logits([ids[:7], ids, ids[:1]])[1])
        by_rows = go_on(model.new_session(), ids, prefill="token")
        assert by_rows[0] != whole[0] and [e[0] for e in by_rows] == [e[0] for e in whole]
    """)


@pytest.mark.slow
def test_the_packaged_model(run):
    """Its formats, rows that are rounded as well, a cache in eight bits, and what a GPU does not have."""
    run("""
        said = fails(lambda: gomlx.load(device="cuda", activations="int8"), ValueError)
        assert "int8" in said and "the processor's" in said, said
        out = {}
        for device in ("cpu", "cuda"):
            with gomlx.load(device=device, activations="float32", kv_dtype="q8_0") as model:
                ids = model.tokenizer.encode_prompt("Once upon a time")
                out[device] = np.array(model.logits(ids)), model.info["placement"]
                weights = np.array(model._engine.weight("model.layers.0.mlp.up_proj.weight"))
                assert np.array_equal(weights, out.setdefault("weights", weights))
        (cpu, _), (gpu, placed) = out["cpu"], out["cuda"]
        assert placed["device_name"] == "a card that is not there"
        away = np.sqrt(((gpu - cpu) ** 2).mean() / (cpu ** 2).mean())
        assert away < 2e-3, away        # roundings of keys may differ, and queries and weights are rounded to ten bits
    """)


@pytest.mark.slow
def test_decoding_steps_are_graphs(run, tmp_path):
    """From the second one of a number of members on, with the bits that they have without; a profile sees launches."""
    path = Golden().save(str(tmp_path), "llama")
    program = f"""
        graphs, on = (lambda: fake.fake_count(b"graph")), os.environ["GOMLX_CUDA_GRAPHS"] == "1"
        model, ids = gomlx._gomlx.load_model({path!r}, device=1), {Golden().ids("llama")[:5]!r}

        def made(n=8, **options):
            return [(e.id, np.float32(e.logprob).tobytes()) for e in
                    gomlx._gomlx.stream(model.new_session(), None, ids, max_tokens=n, **options) if e.id >= 0]

        first = made()
        assert graphs() == (6 if on else 0), graphs()           # of 7 steps of one row
        assert made(profile=True) == first and graphs() == (6 if on else 0)
        print(first)
        if on:
            fake.fake_fail(b"graph", 3)
            said = fails(made, gomlx.Error)
            assert "a graph" in said, said
            fake.fake_fail(b"graph", 0)
        assert made() == first
    """
    assert run(program, GOMLX_CUDA_GRAPHS="1") == run(program, GOMLX_CUDA_GRAPHS="0")


@pytest.mark.slow
def test_a_layer_of_a_step_is_five_launches(run):
    """Products that norm what they read, and attention that turns its rows itself; angles are once for all layers."""
    run("""
        with gomlx.load(device="cuda") as model:
            layers, ids = model.info["n_layers"], model.tokenizer.encode_prompt("Once")
            profile = model.generate(ids, max_tokens=3, temperature=0, ignore_eos=True, profile=True).read().profile
        steps = profile["decode"]
        launches = {name: one["launches"] / steps["passes"] for name, one in steps["work"].items()}
        assert launches.get("norm", 0) == 0, launches
        assert launches["attention_projection"] == launches["mlp"] == 2 * layers, launches
        assert launches["attention"] == layers + 1, launches
    """)
