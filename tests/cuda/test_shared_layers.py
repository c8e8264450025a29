"""Models whose last layers are on a device and whose first ones are on the processor, at every number of layers: on the
fake device, whose kernels are the processor's, every bit is the processor's. Each test is a process."""
import functools
import glob
import json
import os
import shutil
import subprocess
import sys

import pytest
from architectures import CONFIGS
from device_models import GOLDEN, run_models
from places import ROOT

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler: gcc")


@pytest.fixture
def run(library):
    return functools.partial(run_models, library)


def test_every_number_of_layers(run):
    """Logits of a prompt longer than a block of keys, texts, what is said of the place, and launches: more with each
    layer on the device, none with none."""
    run("""
        ids, before = [i * 7 % 900 for i in range(300)], []
        with gomlx.load(device="cpu") as cpu:
            n_layers, want, text = cpu.info["n_layers"], logits_of(cpu, ids), greedy(cpu, n=20)
            for count in range(n_layers + 1):
                with gomlx.load(device="cuda", gpu_layers=count) as gpu:
                    said, start = gpu.info["placement"], launches()
                    assert np.array_equal(want, logits_of(gpu, ids)) and greedy(gpu, n=20) == text, count
                    before.append(launches() - start)
                    assert said["device"] == ("cuda:0" if count else "cpu") and said.get("gpu_layers", 0) == count
                    assert ("cpu" in said) == (0 < count < n_layers), said
                    assert gpu.info["weight_bytes"] == cpu.info["weight_bytes"]
            assert before[0] == 0 and all(a < b for a, b in zip(before, before[1:])), before
        with gomlx.load(device="cuda", gpu_layers=2) as gpu:
            said = gpu.info["placement"]
            assert said["cpu"] == "the embedding and layers 0 to 3", said
            assert said["gpu"] == "layers 4 to 5, the final norm and the head", said
        for more in (-1, 99):
            with gomlx.load(gpu_layers=more) as gpu:
                assert gpu.info["placement"]["gpu_layers"] == n_layers and "cpu" not in gpu.info["placement"]
    """)


@pytest.mark.slow
def test_every_architecture(run, tmp_path):
    """Logits and weights, at each number of layers that its layers' keys allow."""
    run(GOLDEN + f"""
        refused = 0
        for i, case in enumerate(CONFIGS):
            path, ids = golden.save({str(tmp_path)!r} + f"/{{i}}", case), golden.ids(case)
            cpu = gomlx._gomlx.load_model(path)
            want, names = np.array(cpu.logits([ids])[0]), cpu.weight_names()
            for host in range(1, cpu.info()["n_layers"]):
                try:
                    gpu = gomlx._gomlx.load_model(path, device=1, host_layers=host)
                except ValueError as error:
                    assert "reads the keys of layer" in str(error) and case.startswith("gemma4"), (case, error)
                    refused += 1
                    continue
                assert np.array_equal(want, np.array(gpu.logits([ids])[0])), (case, host)
                assert gpu.weight_names() == names
                for name in names if host == 1 else ():
                    assert np.array_equal(np.array(cpu.weight(name)), np.array(gpu.weight(name))), (case, host, name)
                gpu.close()
            for wrong in (-1, cpu.info()["n_layers"]):
                said = fails(lambda: gomlx._gomlx.load_model(path, device=1, host_layers=wrong), ValueError)
                assert f"{{wrong}} layers on the processor" in said, said
            cpu.close()
        assert refused > 0
    """)
    assert len(CONFIGS) > 12


def test_shared_models(run, shared):
    """The texts of trained models: layers with windows, states and experts on both sides."""
    paths = [os.path.join(shared, "data", "models", name) for name in ("llama3", "qwen3", "qwen3_5", "gpt_oss")]
    files = glob.glob(os.path.join(shared, "data", "models", "fable-gguf", "fable-Q4_K_M.gguf"))
    if not all(map(os.path.isdir, paths)) or not files:
        pytest.skip("no shared models")
    run(f"""
        for path in {paths + files!r}:
            with gomlx.load(path, device="cpu") as cpu:
                want = greedy(cpu, n=64)
                for count in range(1, cpu.info["n_layers"]):
                    with gomlx.load(path, device="cuda", gpu_layers=count) as gpu:
                        assert greedy(gpu, n=64) == want, (path, count)
    """)


def test_batches_sessions_and_what_ends_a_stream(run):
    """A batch has the bits of its members alone; forks, cuts, snapshots of one placement for another; cancelling and a
    timeout, in a prompt and in decoding, after which the model goes on."""
    run("""
        with both(gpu_layers=3) as (cpu, gpu):
            long = "The fox and the crow. " * 40
            prompts = ["A", "Once upon a time", long, "The king said to his son that he"]
            alone = [greedy(gpu, one) for one in prompts]
            assert alone == [greedy(cpu, one) for one in prompts]
            batch = gpu.generate_batch(prompts, max_tokens=12, temperature=0, ignore_eos=True)
            for _ in batch:
                pass
            assert [one.tokens for one in batch.results] == [[e[0] for e in one] for one in alone]
            assert [[np.float32(x).tobytes() for x in one.logprobs] for one in batch.results] == \\
                   [[e[1] for e in one] for one in alone]
            for first, second in ((gpu, cpu), (cpu, gpu), (gpu, gpu)):
                session_moves(first, second, "The fox. " * 90)
            want = greedy(cpu)
            stream = gpu.generate(long, max_tokens=400, ignore_eos=True)
            for _ in range(3):
                next(stream)
            stream.close()
            for seconds in (1e-6, 0.004, 0.02):
                timed = gpu.generate(long + str(seconds), max_tokens=400, ignore_eos=True, timeout=seconds).read()
                assert timed.finish_reason in ("timeout", "context", "length"), timed.finish_reason
            assert greedy(gpu) == want
            kept = [model.generate(long + "Then", max_tokens=8, temperature=0).read() for model in (cpu, gpu)]
            assert kept[0].tokens == kept[1].tokens and kept[1].cached_tokens > 100
    """)


def test_a_recurrent_model(run, tmp_path):
    """Its states and checkpoints lie with their layers."""
    run(GOLDEN + f"""
        recurrent = next(case for case in CONFIGS if LINEAR in str(CONFIGS[case]))
        path, ids = golden.save({str(tmp_path)!r}, recurrent), golden.ids(recurrent)
        n_layers = gomlx._gomlx.describe(path)["n_layers"]
        places = [(0, 0)] + [(1, host) for host in range(n_layers)]
        models = [gomlx._gomlx.load_model(path, device=device, host_layers=host) for device, host in places]

        sessions = [model.new_session() for model in models]
        texts = [go_on(session, ids, 9) for session in sessions]
        assert all(text == texts[0] for text in texts) and len(texts) == n_layers + 1 > 3
        saved = sessions[0].save()
        want = go_on(sessions[0].fork(), sessions[0].ids, 7)
        for model, session in zip(models, sessions):
            assert session.save() == saved
            there = model.restore_session(saved)
            assert there.save() == saved and go_on(there, there.ids, 7) == want
    """)


def test_inspection_and_steering(run):
    """Activations of layers on both sides, changed before and after the crossing; scores, and hidden states."""
    run("""
        with both(gpu_layers=4) as (cpu, gpu):
            found = [model.inspect("The fox said to the crow", ["*"]) for model in (cpu, gpu)]
            names = list(found[0])
            assert names == list(found[1]) and len(names) > 20
            for name in names:
                assert np.array_equal(np.array(found[0][name]), np.array(found[1][name])), name
            width = cpu.info["hidden_size"]
            for layer in range(cpu.info["n_layers"]):
                steer = gomlx.Steer(f"layers.{layer}.residual", np.linspace(-1, 1, width, dtype=np.float32))
                assert greedy(cpu, steer=steer) == greedy(gpu, steer=steer) != greedy(cpu), layer
            texts = ["A fox.", "Once upon a time there was a king."]
            for a, b in zip(cpu.score(texts), gpu.score(texts)):
                assert a.logprobs == b.logprobs
            assert np.array_equal(np.array(cpu.embed(texts)), np.array(gpu.embed(texts)))
            profile = gpu.generate("A cat", max_tokens=5, profile=True, ignore_eos=True).read().profile
            work = profile["decode"]["work"]
            assert work["mlp"]["pieces"] > 0 and work["head"]["pieces"] == 0, work
            said = fails(lambda: gpu._engine.load_adapter("one", []), NotImplementedError, ValueError)
            assert 'device="cpu"' in said, said
    """)


@pytest.mark.parametrize("what", ["alloc", "copy", "launch", "wait", "pinned"])
def test_each_call_fails_in_turn(run, what):
    """An error that says so, then the same tokens as ever; in the end no memory of the device is left."""
    run(f"""
        import gc
        failed = 0
        with gomlx.load(device="cuda", gpu_layers=3) as model:
            want = greedy(model, n=6)
        for nth in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144):
            mx.clear_cache()
            if {what == "alloc"}:                   # small blocks are parts of what loading has allocated
                fake.fake_fail(b"{what}", nth)
            try:
                with gomlx.load(device="cuda", gpu_layers=3) as model:
                    fake.fake_fail(b"{what}", nth)
                    assert greedy(model, n=6) == want
            except (gomlx.Error, MemoryError, RuntimeError) as error:
                failed += 1
                assert "fake" in str(error) or "pinned" in str(error), error
            fake.fake_fail(b"{what}", 0)
        assert failed > 0
        with gomlx.load(device="cuda", gpu_layers=3) as model:
            for nth in (1, 2, 4, 7):
                fake.fake_fail(b"{what}", nth)
                try:
                    assert greedy(model, n=6) == want
                except (gomlx.Error, MemoryError, RuntimeError) as error:
                    assert "fake" in str(error) or "pinned" in str(error), error
                fake.fake_fail(b"{what}", 0)
                assert greedy(model, n=6) == want, nth
        del model
        gc.collect()
        assert mx.get_active_memory(mx.gpu) == 0, mx.get_active_memory(mx.gpu)
    """)


def test_as_many_layers_as_fit(run):
    """What a plan counts is what loading takes; gpu_memory chooses, and says what one layer needs where none fits."""
    run("""
        n_layers = gomlx.plan_memory(device="cuda").gpu_layers
        plans = [gomlx.plan_memory(context=512, gpu_layers=count) for count in range(n_layers + 1)]
        assert [plan.gpu_layers for plan in plans] == list(range(n_layers + 1))
        assert [plan.device for plan in plans] == ["cpu"] + ["cuda:0"] * n_layers
        sizes = [plan.gpu_bytes for plan in plans]
        assert sizes[0] == 0 == plans[-1].cpu_bytes and sizes == sorted(set(sizes))
        assert all(plan.total_bytes == plan.gpu_bytes + plan.cpu_bytes and plan.fits for plan in plans)
        assert "layers 3 to 5, the final norm and the head: weights" in plans[3].why, plans[3].why
        for count in range(1, n_layers):
            held = mx.get_active_memory(mx.gpu)
            with gomlx.load(gpu_layers=count) as model:
                weights = mx.get_active_memory(mx.gpu) - held
            share = sizes[count] - plans[count].working_bytes // 2 - plans[-1].kv_bytes * count // n_layers
            assert -20000 < weights - share < (2 << 20) + 100000, (count, weights, share)       # in steps of 2 MiB
            for room, want in ((sizes[count], count), (sizes[count + 1] - 1, count)):
                plan = gomlx.plan_memory(context=512, device="cuda", gpu_memory=room)
                assert plan.gpu_layers == want and plan.fits and plan.budget_bytes == room, (room, plan)
        with gomlx.load(context_length=512, gpu_memory=sizes[2]) as model:
            assert model.info["placement"]["gpu_layers"] == 2 and greedy(model)
            assert "as many as fit" in model.info["placement"]["why"]
        with gomlx.load(device="cuda", gpu_memory="1GB") as model:
            assert model.info["placement"]["gpu_layers"] == n_layers
        none = gomlx.plan_memory(context=512, gpu_memory="1MB")
        assert not none.fits and none.gpu_layers == 0, none
        for kind in ("warn", "ignore"):
            said = fails(lambda: gomlx.load(context_length=512, gpu_memory="1MB", fits=kind), MemoryError)
            assert said == none.why and "1.0 MB (gpu_memory) hold no layer" in said and "one layer takes" in said, said
    """)


def test_what_is_asked_for_in_vain(run, tmp_path):
    run(GOLDEN + f"""
        for options, said in (
                (dict(device="cpu", gpu_layers=3), "gpu_layers is 3, and device is 'cpu'"),
                (dict(device="cpu", gpu_memory="1GB"), "gpu_memory is 1000000000, and device is 'cpu'"),
                (dict(gpu_layers=2, gpu_memory="1GB"), "got both"), (dict(gpu_layers=-2), "gpu_layers is -2"),
                (dict(gpu_memory="much"), "such as 8GB or 512MiB"), (dict(gpu_memory=0), "gpu_memory is 0"),
                (dict(device="cuda:7", gpu_layers=3), "there is no cuda:7")):
            for function in (gomlx.load, gomlx.plan_memory):
                told = fails(lambda: function(**options), ValueError)
                assert said in told, told
        assert "integer" in fails(lambda: gomlx.load(gpu_layers="all"), TypeError)
        with gomlx.load(gpu_layers=0) as model:
            assert model.info["placement"] == {{"device": "cpu", "why": "as asked for: gpu_layers is 0"}}
        path = golden.save({str(tmp_path)!r}, "gemma4, two shared wide layers")
        told = fails(lambda: gomlx.plan_memory(path, gpu_layers=1), ValueError)
        assert "gpu_layers is 1, expected 4 or more of 7" in told and "read the keys of earlier ones" in told, told
        assert gomlx.plan_memory(path, gpu_layers=5).gpu_layers == 5
        said = fails(lambda: gomlx.load(n_gpu_layers=3), TypeError)
        assert "gpu_layers" in said, said
    """)


def test_what_auto_chooses(run):
    """All on the GPU where that fits, else as many layers as do, the processor where these are few; and why."""
    run("""
        from gomlx._files import placement
        placement.LEAST_BYTES = 0
        n_layers, known = gomlx.plan_memory().layers, gomlx._gomlx._describe_device
        sizes = [gomlx.plan_memory(context=512, gpu_layers=count).gpu_bytes for count in range(len(n_layers) + 1)]
        for count in range(2, len(n_layers) + 1):
            free = int(sizes[count] / placement.SHARE) + 2
            gomlx._gomlx._describe_device = lambda i: {**known(i), "free": free} if i else known(i)
            with gomlx.load(device="auto", context_length=512) as model:
                said = model.info["placement"]
                assert said.get("gpu_layers", 0) == (count if count >= placement.LEAST_LAYERS else 0), (count, said)
                assert ("within 90%" if count == len(n_layers) else "more than 90%") in said["why"], said
                assert greedy(model)
        gomlx._gomlx._describe_device = known
        with gomlx.load(device="auto", context_length=512, gpu_memory=sizes[4]) as model:
            assert model.info["placement"]["gpu_layers"] == 4, model.info["placement"]
        with gomlx.load(device="auto", gpu_layers=1) as model:
            assert model.info["placement"]["gpu_layers"] == 1, model.info["placement"]
        with gomlx.load(device="auto", context_length=512, gpu_memory="1MB") as model:
            assert model.info["placement"]["device"] == "cpu" and "gpu_memory" in model.info["placement"]["why"]
    """)
    run("""
        with gomlx.load(device="auto", gpu_layers=1) as model:
            assert model.info["placement"]["device"] == "cpu"
        assert "no GPU that can be used" in fails(lambda: gomlx.load(gpu_layers=1), ValueError)
        with gomlx.load(gpu_layers=0) as model:
            assert model.info["placement"]["device"] == "cpu"
    """, GOMLX_FAKE_DEVICE="none")


def test_what_does_not_fit_names_the_cure(run):
    """A GPU that is too small for all of it: before anything is read, or when its memory ends."""
    run("""
        cure = "gpu_layers= or gpu_memory= leave layers on the processor"
        fake.fake_fail(b"alloc", 2)
        assert cure in fails(lambda: gomlx.load(device="cuda", fits="ignore"), MemoryError)
        fake.fake_fail(b"alloc", 0)
        known = gomlx._gomlx._describe_device
        gomlx._gomlx._describe_device = lambda i: {**known(i), "free": 1 << 20} if i else known(i)
        for kind in ("warn", "error"):
            said = fails(lambda: gomlx.load(device="cuda", fits=kind), MemoryError)
            assert "free on cuda:0" in said and "gpu_layers" in said, said
        with gomlx.load(device="cuda", fits="ignore") as model:
            assert model.info["placement"]["gpu_layers"] == model.info["n_layers"]
    """)


def test_the_command_line(library):
    def command(*arguments):
        done = subprocess.run([sys.executable, "-P", "-m", "gomlx", *arguments], cwd=ROOT, text=True,
                              capture_output=True, timeout=120,
                              env={**os.environ, "GOMLX_DEVICE_LIBRARY": library, "GOMLX_DEVICE": ""})
        return done.returncode, done.stdout, done.stderr

    status, out, err = command("info", "-ngl", "2", "--json")
    assert status == 0 and json.loads(out)["placement"]["gpu_layers"] == 2, err
    status, out, err = command("generate", "Once", "-n", "2", "--device", "cuda:1", "--gpu-memory", "1GB", "--json")
    assert status == 0, err
    status, out, err = command("plan", "--device", "cuda", "--gpu-layers", "3", "--json")
    found = json.loads(out)
    assert status == 0 and found["gpu_layers"] == 3 and 0 < found["gpu_bytes"] < found["total_bytes"], err
    status, out, err = command("plan", "--gpu-memory", "1MB")
    assert status == 1 and "hold no layer" in out, out + err
    wrong = command("generate", "A", "--gpu-memory", "lots")
    assert wrong[0] != 0 and "such as 8GB or 512MiB" in wrong[2], wrong
    status, out, err = command("bench", "--prompt", "16", "-n", "4", "--repeat", "1", "-ngl", "4", "--json",
                               "--against", "less=gpu_layers=1", *(f"--no-{one}" for one in (
                                   "probes", "bundle", "restore", "cache")))
    assert status == 0 and min(json.loads(out)["runs"][0]["decode_tps"]) > 0, err
    status, out, err = command("doctor", "--json")
    assert status == 0 and json.loads(out)["gpu"]["gpu 0"]["model bytes"] > 0, err
