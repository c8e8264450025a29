"""Models on a device that is not the processor: the fake one (fake_device.c), which has the processor's kernels, so
that every bit is the processor's. Each test is a process, for a device is chosen once."""
import functools
import glob
import json
import os
import shutil
import subprocess
import sys

import pytest
from architectures import CONFIGS
from checkpoints import SMALL, random_weights, save_safetensors
from device_models import GOLDEN, run_models
from places import ROOT

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler: gcc")

@pytest.fixture
def run(library):
    return functools.partial(run_models, library)


@pytest.mark.parametrize("kv_dtype", [None, "float32", "bfloat16", "q8_0"])
def test_a_model_says_what_the_processor_s_says(run, kv_dtype):
    """Prompts longer than a pass and than a block of keys, draws, and rows of many sequences at once."""
    run(f"""
        with both(kv_dtype={kv_dtype!r}) as (cpu, gpu):
            same_logits(cpu, gpu, [i * 7 % 900 for i in range(300)])
            long = "The fox and the crow. " * 40
            for prompt in ("Once upon a time", long):
                assert greedy(cpu, prompt) == greedy(gpu, prompt)
            draw = dict(max_tokens=20, temperature=0.9, top_p=0.9, seed=5, ignore_eos=True)
            assert told(cpu.generate("A cat", **draw)) == told(gpu.generate("A cat", **draw))
            prompts = ["A", "Once upon a time", long, "The king said to his son that he"]
            alone = [greedy(gpu, one) for one in prompts]
            batch = gpu.generate_batch(prompts, max_tokens=12, temperature=0, ignore_eos=True)
            for _ in batch:
                pass
            together = batch.results
            assert [one.tokens for one in together] == [[e[0] for e in one] for one in alone]
            assert [[np.float32(x).tobytes() for x in one.logprobs] for one in together] == \\
                   [[e[1] for e in one] for one in alone]
    """)


def test_prompts_are_large_passes(run, tmp_path):
    """Of 4,096 rows, which share what is made of the weights; while others decode, of rows that these wait for."""
    config = {**SMALL, "num_hidden_layers": 1, "max_position_embeddings": 8192}
    save_safetensors(tmp_path, config, random_weights(config))
    run(f"""
        model = gomlx._gomlx.load_model({str(tmp_path)!r}, device=1)
        def passes_of(n, beside=False):
            decoder, passes = model.new_decoder(), 0
            def begin(ids, tokens):
                decoder.add(stream := gomlx._gomlx.stream(model.new_session(), None, ids, max_tokens=tokens))
                return stream
            other = begin([5], 50) if beside else None
            while beside and not any(stream is other for stream, _ in decoder.events()):
                pass
            prompt = begin([7] * n, 1)
            while not any(stream is prompt for stream, _ in decoder.events()):
                passes += not decoder.running
                assert passes < 50
            return passes
        assert passes_of(4096) == passes_of(9) < passes_of(4097)
        assert passes_of(2048, beside=True) == passes_of(9, beside=True) < passes_of(2049, beside=True)
    """)


def test_prompts_are_scored_as_the_processor_s(run):
    """Alone and beside a stream that decodes: log probabilities of the prompt and the likeliest in its places."""
    run("""
        with both() as (cpu, gpu):
            ids = [i * 7 % 900 + 1 for i in range(300)]
            asked = dict(max_tokens=3, temperature=0, ignore_eos=True, prompt_logprobs=3)
            want, before = cpu.generate(ids, **asked).read(), launches()
            assert want.prompt_logprobs == list(cpu.score(ids).logprobs)
            with gpu.scheduler() as scheduler:
                beside = scheduler.generate("A cat", max_tokens=20, temperature=0, ignore_eos=True)
                for found in (gpu.generate(ids, **asked).read(), scheduler.generate(ids, **asked).read()):
                    assert found.prompt_logprobs == want.prompt_logprobs and found.tokens == want.tokens
                    assert found.prompt_top_logprobs == want.prompt_top_logprobs
                assert beside.read().tokens == cpu.generate("A cat", max_tokens=20, temperature=0,
                                                            ignore_eos=True).read().tokens
            assert launches() > before
    """)


def test_weights_are_the_processor_s(run):
    run("""
        with both() as (cpu, gpu):
            names = cpu._engine.weight_names()
            assert names == gpu._engine.weight_names() and len(names) > 10
            for name in names:
                assert np.array_equal(np.array(cpu._engine.weight(name)), np.array(gpu._engine.weight(name))), name
            assert mx.get_active_memory(mx.gpu) > 0
    """)


def test_memory_comes_back(run):
    run("""
        with gomlx.load(device="cuda") as model:
            greedy(model)
            assert mx.get_active_memory(mx.gpu) >= model.info["weight_bytes"]
        import gc
        gc.collect()
        assert mx.get_active_memory(mx.gpu) == 0, mx.get_active_memory(mx.gpu)
    """)


def test_random_checkpoints_of_every_architecture(run, tmp_path):
    run(GOLDEN + f"""
        for i, case in enumerate(CONFIGS):
            path = golden.save({str(tmp_path)!r} + f"/{{i}}", case)
            out = []
            for device in (0, 1):
                for dtype in (None, "bfloat16"):
                    model = gomlx._gomlx.load_model(path, dtype=dtype, device=device)
                    out.append(np.array(model.logits([golden.ids(case)])[0]))
                    model.close()
            assert np.isfinite(out[0]).all()
            assert np.array_equal(out[0], out[2]) and np.array_equal(out[1], out[3]), case
    """)
    assert len(CONFIGS) > 12


def test_shared_models(run, shared):
    """All of them, and all formats of the packaged model: the processor's text and bits."""
    paths = sorted(glob.glob(os.path.join(shared, "data", "models", "*", "config.json")))
    paths = [os.path.dirname(path) for path in paths]
    files = sorted(glob.glob(os.path.join(shared, "data", "models", "fable-gguf", "*.gguf")))
    if not paths or not files:
        pytest.skip("no shared models")
    run(f"""
        for path in {paths + files!r}:
            with both(path) as (cpu, gpu):
                same_logits(cpu, gpu, list(range(1, 40)))
                assert greedy(cpu, n=64) == greedy(gpu, n=64), path
    """)


def test_sessions_go_from_one_device_to_the_other(run, tmp_path):
    """Saved where it began, restored on the other side; forks, cuts, and a recurrent model with its checkpoints."""
    run(GOLDEN + f"""
        recurrent = next(case for case in CONFIGS if LINEAR in str(CONFIGS[case]))

        with both() as (cpu, gpu):
            for first, second in ((gpu, cpu), (cpu, gpu)):
                session_moves(first, second, "The fox. " * 60)

        path, ids = golden.save({str(tmp_path)!r}, recurrent), golden.ids(recurrent)
        models = [gomlx._gomlx.load_model(path, device=device) for device in (0, 1)]

        sessions = [model.new_session() for model in models]
        assert go_on(sessions[0], ids, 9) == go_on(sessions[1], ids, 9)
        for k in (0, 1):
            saved = sessions[k].save()
            there = models[1 - k].restore_session(saved)
            assert there.save() == saved
            want = go_on(sessions[k].fork(), sessions[k].ids, 7)
            assert go_on(there, there.ids, 7) == want
    """)


def test_prompts_that_begin_alike_are_kept(run):
    run("""
        with both(prompt_cache=True) as (cpu, gpu):
            long = "The fox and the crow. " * 90
            for model in (cpu, gpu):
                model.generate(long, max_tokens=1).read()
            a, b = (model.generate(long + "Then", max_tokens=8, temperature=0).read() for model in (cpu, gpu))
            assert a.tokens == b.tokens and a.cached_tokens == b.cached_tokens > 100, (a, b)
    """)


def test_inspection_and_steering(run):
    run("""
        with both() as (cpu, gpu):
            found = [model.inspect("The fox said to the crow", ["*"]) for model in (cpu, gpu)]
            names = list(found[0])
            assert names == list(found[1]) and len(names) > 20
            for name in names:
                assert np.array_equal(np.array(found[0][name]), np.array(found[1][name])), name
            width = cpu.info["hidden_size"]
            steer = gomlx.Steer("layers.1.residual", np.linspace(-1, 1, width, dtype=np.float32))
            assert greedy(cpu, steer=steer) == greedy(gpu, steer=steer) != greedy(cpu)
            texts = ["A fox.", "Once upon a time there was a king."]
            for a, b in zip(cpu.score(texts), gpu.score(texts)):
                assert a.logprobs == b.logprobs
            assert np.array_equal(np.array(cpu.embed(texts)), np.array(gpu.embed(texts)))
    """)


def test_what_is_the_processor_s_alone_is_refused_by_name(run, tmp_path):
    run("""
        rows = [{"text": f"{i} met a cat."} for i in range(4)]
        with gomlx.load(device="cuda") as model:
            said = fails(lambda: gomlx.train(model, rows, steps=1, progress=False).finish(), NotImplementedError)
            assert 'device="cpu"' in said and "gpu 0" in said, said
            term = ("model.layers.0.mlp.up_proj", mx.zeros((2, model.info["hidden_size"])),
                    mx.zeros((model.info["mlp_size"], 2)), 1.0)
            said = fails(lambda: model._engine.load_adapter("one", [term]), NotImplementedError)
            assert 'device="cpu"' in said, said
        for wrong, kind in (("cuda:9", ValueError), ("tpu", ValueError), ("cuda:", ValueError), (3, TypeError)):
            said = fails(lambda: gomlx.load(device=wrong), kind)
            assert "device" in said, said
        with gomlx.load(device="cuda:1") as model:
            assert model.info["placement"]["device"] == "cuda:1" and greedy(model)
    """)


def test_the_choice_is_told(run):
    run("""
        with gomlx.load() as model:
            assert model.info["placement"] == {"device": "cpu", "why": "the default"}
            before = launches()
            greedy(model)
            assert launches() == before
        with gomlx.load(device="auto") as model:                    # too small to be worth it
            assert model.info["placement"]["device"] == "cpu" and "less than" in model.info["placement"]["why"]
        from gomlx._files import placement
        placement.LEAST_BYTES = 0
        with gomlx.load(device="auto") as model:
            assert model.info["placement"]["device"] == "cuda:0", model.info["placement"]
            assert model.info["placement"]["device_name"] == "Fake device"
            assert "within 90% of the GPU's" in model.info["placement"]["why"], model.info["placement"]
        placement.SHARE = 1e-9
        with gomlx.load(device="auto") as model:
            assert model.info["placement"]["device"] == "cpu" and ", more than " in model.info["placement"]["why"]
    """)


def test_the_gpu_with_the_most_free_memory_is_taken(run):
    run("""
        from gomlx._files import placement
        placement.LEAST_BYTES = 0
        known, opened = gomlx._gomlx._describe_device, gomlx._gomlx._open_device
        free = known(1)["free"]
        gomlx._gomlx._describe_device = lambda i: {**known(i), "free": free // (2 if i == 1 else 1)} if i else known(i)
        with gomlx.load(device="auto") as model:
            said = model.info["placement"]
            assert said["device"] == "cuda:1" and "cuda:1 of 2 GPUs, by free memory" in said["why"], said
        def broken(i):
            if i == 2:
                raise gomlx.Error("it fell off")
            opened(i)
        gomlx._gomlx._open_device = broken
        with gomlx.load(device="auto") as model:
            assert model.info["placement"]["device"] == "cuda:0", model.info["placement"]
    """)


def test_a_plan_is_of_a_device(run):
    run("""
        plan, free = gomlx.plan_memory(device="cuda:1"), gomlx._gomlx._describe_device(2)["free"]
        assert plan.device == "cuda:1" and plan.budget_bytes == free and "free on cuda:1, Fake device" in plan.why
        assert gomlx.plan_memory().device == gomlx.plan_memory(device="cpu").device == "cpu"
        library = 32 << 20
        assert plan.working_bytes - library > 7 * gomlx.plan_memory(device="cpu").working_bytes     # 4,096 rows of 512
        small = gomlx.plan_memory(device="cuda", budget=1000)
        assert not small.fits and small.device == "cuda:0" and small.budget_from == "given"
        for wrong in ("auto", "cuda:9", "tpu"):
            assert "device" in fails(lambda: gomlx.plan_memory(device=wrong), ValueError)
    """)


def test_no_device_at_all(run):
    run("""
        said = fails(lambda: gomlx.load(device="cuda"), ValueError)
        assert "no GPU that can be used" in said and "switch it on" in said, said
        assert "switch it on" in fails(lambda: gomlx.plan_memory(device="cuda"), ValueError)
        with gomlx.load(device="auto") as model:
            assert model.info["placement"] == {"device": "cpu", "why": "the fake device is switched off; switch it on"}
    """, GOMLX_FAKE_DEVICE="none")


@pytest.mark.parametrize("what", ["alloc", "copy", "launch", "wait", "pinned"])
def test_each_call_fails_in_turn(run, what):
    """While loading, in prompts and in decoding: an error that says so, and then the same tokens as ever."""
    run(f"""
        import gc
        with gomlx.load(device="cuda") as model:
            want = greedy(model, n=6)
        failed = 0
        for nth in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987):
            mx.clear_cache()
            fake.fake_fail(b"{what}", nth)
            try:
                with gomlx.load(device="cuda") as model:
                    assert greedy(model, n=6) == want
            except (gomlx.Error, MemoryError, RuntimeError) as error:
                failed += 1
                assert "fake" in str(error) or "pinned" in str(error), error
            fake.fake_fail(b"{what}", 0)
        assert failed > 0
        with gomlx.load(device="cuda") as model:
            for nth in (1, 2, 3, 4, 6, 9):
                fake.fake_fail(b"{what}", nth)
                try:
                    assert greedy(model, n=6) == want
                except (gomlx.Error, MemoryError, RuntimeError) as error:
                    assert "fake" in str(error) or "pinned" in str(error), error
                fake.fake_fail(b"{what}", 0)
                assert greedy(model, n=6) == want, nth
        gc.collect()
        assert mx.get_active_memory(mx.gpu) == 0, mx.get_active_memory(mx.gpu)
    """)


def test_a_device_that_is_lost(run):
    run("""
        with gomlx.load(device="cuda") as model, gomlx.load(device="cpu") as here:
            want = greedy(here)
            assert greedy(model) == want
            fake.fake_fail(b"lose", 5)
            for _ in range(2):
                assert "lost" in fails(lambda: greedy(model), gomlx.Error)
            assert greedy(here) == want
    """)


def test_what_a_device_lacks_is_said(run):
    run("""
        with gomlx.load(device="cuda") as model:
            said = fails(lambda: greedy(model), NotImplementedError)
            assert "rope_cache" in said and "gpu 0" in said, said
    """, GOMLX_FAKE_LACKS="rope_cache")


def test_a_stream_is_cancelled(run):
    run("""
        with both() as (cpu, gpu):
            stream = gpu.generate("Once upon a time", max_tokens=400, ignore_eos=True)
            for _ in range(3):
                next(stream)
            stream.close()
            timed = gpu.generate("The fox. " * 60, max_tokens=400, ignore_eos=True, timeout=0.02).read()
            assert timed.finish_reason in ("timeout", "context", "length"), timed.finish_reason
            assert greedy(gpu) == greedy(cpu)
    """)


def test_the_program_for_cards(library):
    """What it prints of the packaged model: nothing is away from the processor, every bit is equal."""
    done = subprocess.run([sys.executable, os.path.join(ROOT, "tests", "cuda", "card_models.py")], cwd=ROOT, text=True,
                          env={**os.environ, "GOMLX_DEVICE_LIBRARY": library, "GOMLX_DEVICE": ""},
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(packaged)" in done.stdout and " 0.0e+00 " in done.stdout and "1 models, 0 wrong" in done.stdout


def test_the_program_for_cards_by_layers(library):
    done = subprocess.run([sys.executable, os.path.join(ROOT, "tests", "cuda", "card_models.py"), "--layers"], cwd=ROOT,
                          text=True, env={**os.environ, "GOMLX_DEVICE_LIBRARY": library, "GOMLX_DEVICE": ""},
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  2 of   6  0.0e+00" in done.stdout and "1 models, 0 wrong" in done.stdout, done.stdout


def command(library, *arguments):
    """(status, standard output, standard error) of the command on the fake device."""
    done = subprocess.run([sys.executable, "-P", "-m", "gomlx", *arguments], cwd=ROOT, text=True, capture_output=True,
                          timeout=120, env={**os.environ, "GOMLX_DEVICE_LIBRARY": library, "GOMLX_DEVICE": ""})
    return done.returncode, done.stdout, done.stderr


def test_the_command_line(library):
    said = functools.partial(command, library, "generate", "Once upon a time", "-n", "8", "-t", "0", "--json")
    here, there = said(), said("--device", "cuda")
    assert here[0] == there[0] == 0, there
    assert [json.loads(line)["text"] for line in here[1].splitlines()[:-1]] == \
           [json.loads(line)["text"] for line in there[1].splitlines()[:-1]]
    wrong = said("--device", "cuda:7")
    assert wrong[0] != 0 and "there is no cuda:7: there are 2, counted from 0" in wrong[2], wrong


def test_bench_on_the_device(library):
    """All that is measured is measured there: the device's launches are counted, the processor's threads do nothing."""
    said = functools.partial(command, library, "bench", "--prompt", "16", "-n", "4", "--repeat", "1")
    status, out, err = said("--device", "cuda:1", "--batch", "1", "--batch", "2", "--depth", "8", "--profile", "--json")
    assert status == 0, err
    found = json.loads(out)
    assert [(one["depth"], one["batch"]) for one in found["runs"]] == [(8, 1), (8, 2)]
    for one in found["runs"]:
        assert all(check["pass"] for check in one["quality"]) and min(one["prefill_tps"] + one["decode_tps"]) > 0
        work = one["profile"]["decode"]["work"].values()
        assert sum(part["launches"] for part in work) > 0 and sum(part["pieces"] for part in work) == 0
    for section in ("prompt_cache", "kv_restore", "state_bundle", "probes"):
        assert found[section]["attempted"] and "error" not in found[section], found[section]
    status, out, err = said("--device", "cuda", "--against", "here=device=cpu", "--no-probes")
    assert status == 0 and "here writes" in out, err
    wrong = said("--device", "cuda:7")
    assert wrong[0] != 0 and "there is no cuda:7: there are 2, counted from 0" in wrong[2], wrong


def test_a_plan_of_the_device(library):
    status, out, err = command(library, "plan", "--device", "cuda:1", "--json")
    found = json.loads(out)
    assert status == 0 and found["device"] == "cuda:1" and "free on cuda:1, Fake device" in found["why"], err
    assert 0 < found["budget_bytes"] <= 4 << 30
    assert json.loads(command(library, "plan", "--json")[1])["device"] == "cpu"
    status, out, _ = command(library, "plan", "--device", "cuda", "--budget", "1MB")
    assert status == 1 and "cuda:0" in out
    wrong = command(library, "plan", "--device", "cuda:7")
    assert wrong[0] != 0 and "there is no cuda:7: there are 2, counted from 0" in wrong[2], wrong


def test_what_does_not_fit_on_the_device_is_told(run):
    run("""
        free = gomlx._gomlx._describe_device(1)["free"]
        gomlx._gomlx._describe_device, known = (lambda i: {**known(i), "free": 1 << 20} if i else known(i)), \
            gomlx._gomlx._describe_device
        assert free > 1 << 20
        with gomlx.load(device="cuda", fits="ignore"), gomlx.load(device="cpu", fits="error"):
            pass
        assert "1.0 MB" in fails(lambda: gomlx.load(device="cuda", fits="error"), MemoryError)
    """)
