"""Backends: the registry, and the bridge to mlx-lm: its process, text, stops, cancellation and death. A small stand-in
for mlx-lm plays what a file beside the model tells it to; where the real one is installed, it runs too."""
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import gomlx
from gomlx import backends
from gomlx.backends import mlx_lm

HI = [{"role": "user", "content": "hi"}]

# The stand-in: a token's id is its byte; 256 ends. fake.json says what is written and what goes wrong after how much.
FAKE = {
    "mlx/__init__.py": "",
    "mlx/core.py": """
import types
__version__ = "9.9"
random = types.SimpleNamespace(seed=lambda seed: None)
array = list
def default_device(): return "Device(fake, 0)"
def get_peak_memory(): return 77
def get_active_memory(): return 7
""",
    "mlx_lm/__init__.py": """
import json, os, sys, time
def load(path):
    print("a library that prints")
    told = json.load(open(os.path.join(path, "fake.json")))
    print("told", told, file=sys.stderr)
    time.sleep(told.get("load_seconds", 0))
    if "load_error" in told: raise ValueError(told["load_error"])
    return told, None
""",
    "mlx_lm/sample_utils.py": """
def make_sampler(**options): return options
def make_logits_processors(**options): return [options]
""",
    "mlx_lm/generate.py": """
import os, sys, time
class Logprob(float):
    def item(self): return float(self)
def generate_step(prompt, model, *, max_tokens, sampler, logits_processors, prefill_step_size,
                  prompt_progress_callback):
    for i in range(model.get("chunks", 0)):
        time.sleep(0.02)
        prompt_progress_callback(i, model["chunks"])
    said = model["text"].format(prompt=bytes(prompt).decode(), sampler=sampler, processors=logits_processors).encode()
    for i, token in enumerate([*said, 256]):
        if i == max_tokens: return
        if i == model.get("die_after"):
            sys.stderr.write("Traceback: the GPU fell out"); sys.stderr.flush(); os._exit(3)
        if i == model.get("hang_after"): time.sleep(60)
        if i == model.get("raise_after"): raise ValueError("bad weather")
        time.sleep(model.get("seconds", 0))
        yield token, [Logprob(-0.5)] * 257
""",
    "mlx_lm-0.32.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: mlx-lm\nVersion: 0.32.2\n",
    "mlx-9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: mlx\nVersion: 9.9\n",
}


def bytes_to_letters():
    """GPT-2's letters for bytes, in the order of the bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(one) if one in shown else chr(next(others)) for one in range(256)]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter that has the stand-in for mlx-lm."""
    folder = tmp_path_factory.mktemp("fake")
    for name, text in FAKE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def folder(tmp_path):
    """A function that writes the model: a tokenizer of bytes, and what the stand-in is told."""
    def write(text="hello world", context=1000, **told):
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        end = {"id": 256, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": True}
        vocab = {letter: i for i, letter in enumerate(bytes_to_letters())}
        (tmp_path / "tokenizer.json").write_text(json.dumps({
            "version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": level, "post_processor": None,
            "decoder": level, "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({
            "eos_token": "<end>", "chat_template": "{% for m in messages %}[{{ m.content }}]{% endfor %}<think>"}))
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": context,
                                                          "num_hidden_layers": 2, "hidden_size": 8}))
        (tmp_path / "fake.json").write_text(json.dumps({"text": text, **told}))
        return str(tmp_path)
    return write


@pytest.fixture
def load(python, folder):
    opened = []

    def made(*args, load_timeout=30, token_timeout=30, **told):
        model = gomlx.load(folder(*args, **told), backend="mlx_lm", python=python, load_timeout=load_timeout,
                           token_timeout=token_timeout)
        opened.append(model)
        return model
    yield made
    for model in opened:
        model.close()


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# -------------------------------------------------------------------------------------------------------- the registry

class Mine:
    name = "mine"

    def why_not(self):
        return "it rains"

    def load(self, path_or_name=None, **options):
        return "loaded", path_or_name, options


def test_the_registry(monkeypatch):
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    assert backends.names()[:2] == ["native", "mlx_lm"]
    assert backends.default().name == "native" and backends.get("mlx_lm").name == "mlx_lm"
    with pytest.raises(ValueError, match="unknown backend 'metal'; expected one of native, mlx_lm"):
        backends.get("metal")
    with pytest.raises(ValueError, match="unknown backend 'metal'"):
        gomlx.load(backend="metal")
    backends.register(Mine())
    try:
        [status] = [one for one in backends.available() if one.name == "mine"]
        assert (status.available, status.why, status.source) == (False, "it rains", "registered")
        assert gomlx.load("x", backend="mine", threads=2, wind=1) == ("loaded", "x", {"threads": 2, "wind": 1})
        monkeypatch.setenv(backends.VARIABLE, "mine")
        assert backends.default().name == "mine" and gomlx.load("x")[0] == "loaded"
        with backends.get("native").load() as model:
            assert model.info["architecture"] == "llama"
    finally:
        backends.unregister("mine")
    assert "mine" not in backends.names()
    with pytest.raises(TypeError, match="has no why_not"):
        backends.register(type("X", (), {"name": "x"})())


def test_the_native_backend_refuses_options_of_others():
    with pytest.raises(TypeError, match="the native backend has no option python"):
        gomlx.load(python="/usr/bin/python3")


def test_backends_of_other_packages(monkeypatch, tmp_path):
    info = tmp_path / "rain-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rain\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gomlx.backends]\nwet = rainy_backend:Wet\n"
                                           "broken = rainy_backend:Missing\n")
    (tmp_path / "rainy_backend.py").write_text(
        "class Wet:\n    name = 'wet'\n    def why_not(self): return None\n"
        "    def load(self, path=None, **options): return path\n")
    monkeypatch.syspath_prepend(tmp_path)
    statuses = {one.name: one for one in backends.available()}
    assert statuses["wet"].available and statuses["wet"].source == "rain"
    assert not statuses["broken"].available and "cannot be imported: AttributeError" in statuses["broken"].why
    assert gomlx.load("y", backend="wet") == "y"
    with pytest.raises(RuntimeError, match="backend 'broken' of rain cannot be imported"):
        gomlx.load(backend="broken")


def test_no_backend_at_all(monkeypatch):
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    monkeypatch.setattr(backends, "BUILT_IN", {"a": Mine})
    monkeypatch.setattr(backends, "entry_points", dict)
    with pytest.raises(RuntimeError, match="no backend is available: a: it rains"):
        backends.default()


# ---------------------------------------------------------------------------------------------------------- the bridge

def test_tokens_text_and_result(load):
    model = load("héllo")
    assert model.info["backend"] == "mlx_lm" and model.info["mlx"] == "9.9" and model.info["mlx_lm"] == "0.32.2"
    assert model.info["device"] == "Device(fake, 0)" and model.info["context_length"] == 1000 == model.context_length
    with model.generate("abc", seed=5) as stream:
        tokens = list(stream)
    assert isinstance(stream, gomlx.TokenStream) and all(isinstance(one, gomlx.Token) for one in tokens)
    assert "".join(one.text for one in tokens) == "héllo" and tokens[-1].finish_reason == "stop"
    result = stream.result
    assert (result.text, result.tokens) == ("héllo", list("héllo".encode())) and tokens[0].logprob == -0.5
    assert (result.finish_reason, result.stop, result.seed) == ("stop", 256, 5)
    assert (result.prompt_tokens, result.generated_tokens) == (3, 6) and result.prefill_tps > 0 < result.decode_tps
    assert model.metrics() == {"peak_memory_bytes": 77, "active_memory_bytes": 7}


def test_chat_and_options_arrive(load):
    model = load("Hm</think>{prompt}|{sampler}|{processors}")
    stream = model.chat(HI, temperature=0.5, top_k=3, repetition_penalty=1.5)
    parts = list(stream.parts())
    assert stream.result.reasoning == "Hm" and {part.channel for part in parts} == {"reasoning", "answer"}
    prompt, sampler, processors = stream.result.answer.split("|")
    assert prompt == "[hi]<think>" and sampler == "{'temp': 0.5, 'top_p': 1.0, 'min_p': 0.0, 'top_k': 3}"
    assert "'repetition_penalty': 1.5" in processors and "'logit_bias': None" in processors
    model.generate("x").close()
    stream = model.chat(HI, logit_bias={5: 2.0}, suppress_tokens=[7], penalty_last_n=9)
    list(stream)
    assert "'logit_bias': {5: 2.0, 7: -1000000000.0}" in stream.result.answer
    assert "'repetition_context_size': 9" in stream.result.answer
    with pytest.raises(NotImplementedError, match="the backend mlx_lm has no mirostat_tau, typical_p: use the native"):
        model.generate("x", typical_p=0.5, mirostat_tau=3.0)


@pytest.mark.parametrize("options, text, finish, stop", [
    ({"max_tokens": 4}, "hell", "length", None), ({"max_tokens": 0}, "", "length", None),
    ({"stop": "o w"}, "hell", "stop", "o w"), ({"stop": ["xyz", "world!"]}, "hello world", "stop", 256),
    ({"stop_ids": [111]}, "hell", "stop", 111), ({"ignore_eos": True, "max_tokens": 12}, "hello world", "length", None),
    ({"stop": "<end>", "ignore_eos": True}, "hello world", "stop", 256),
    ({"stop": "ld", "max_tokens": 10}, "hello worl", "length", None), ({"stop": ["lo", "hello"]}, "", "stop", "hello"),
])
def test_ends(load, options, text, finish, stop):
    with load().generate("x", **options) as stream:
        assert "".join(one.text for one in stream) == text
    assert (stream.result.text, stream.result.finish_reason, stream.result.stop) == (text, finish, stop)


def test_the_context_ends_it(load):
    with load(context=8).generate("abcde") as stream:
        assert "".join(one.text for one in stream) == "hel" and stream.result.finish_reason == "context"


def test_several_generations_one_after_another(load):
    model = load("one two three")
    for _ in range(3):
        with model.generate("x") as stream:             # closed early: what was under way is not the next one's
            assert next(stream).text == "o"
        assert stream.result.finish_reason == "cancelled"
        assert "".join(one.text for one in model.generate("x")) == "one two three"


def test_two_streams_of_one_thread(load):
    model = load()
    with model.generate("x") as stream:
        next(stream)
        assert model.metrics()["peak_memory_bytes"] == 77
        with pytest.raises(RuntimeError, match="another stream of this model is open in this thread"):
            model.generate("y")
    assert "".join(one.text for one in model.generate("y")) == "hello world"


def test_a_stream_that_is_forgotten_gives_its_turn_back(load):
    model = load()
    next(model.generate("x"))
    assert "".join(one.text for one in model.generate("y")) == "hello world"


def test_threads_take_turns(load):
    model, texts = load(seconds=0.002), []

    def run():
        texts.append("".join(one.text for one in model.generate("x")))
    threads = [threading.Thread(target=run) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert texts == ["hello world"] * 4


def test_cancel_from_another_thread(load):
    model = load("x" * 900, seconds=0.005)
    stream = model.generate("x")
    next(stream)
    timer = threading.Timer(0.1, stream.cancel)
    timer.start()
    tokens = list(stream)
    assert stream.result.finish_reason == "cancelled" and 0 < len(tokens) < 800
    assert isinstance(model.error, gomlx.Cancelled)
    model2_text = [one.text for one in model.generate("x", max_tokens=3)]
    assert model2_text == ["x", "x", "x"] and model.error is None


def test_cancel_within_a_long_prompt(load):
    model = load(chunks=500)                            # ten seconds
    stream, start = model.generate("x"), time.monotonic()
    threading.Timer(0.2, stream.cancel).start()
    list(stream)
    assert stream.result.finish_reason == "cancelled" and time.monotonic() - start < 8


def test_an_interrupted_wait_leaves_no_answer_behind(load, monkeypatch):
    """Ctrl-C while a token is awaited: its answer comes later, and is not taken for the next stream's."""
    model = load()
    stream = model.generate("x")
    next(stream)

    def interrupted(*args):
        monkeypatch.undo()
        raise KeyboardInterrupt
    monkeypatch.setattr(model._process, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert list(stream) == [] and stream.result.finish_reason == "cancelled"
    assert "".join(one.text for one in model.generate("x")) == "hello world"


def test_death_is_reported_with_what_it_said(load):
    model = load(die_after=3)
    pid = model._process.pid
    with pytest.raises(gomlx.Error, match="(?s)the process ended with status 3: .*the GPU fell out"):
        list(model.generate("x"))
    assert is_gone(pid)
    with pytest.raises(ValueError, match="the model is closed"):
        model.generate("x")


def test_killed_from_outside(load):
    model = load(seconds=0.01)
    stream = model.generate("x")
    next(stream)
    os.kill(model._process.pid, signal.SIGKILL)
    with pytest.raises(gomlx.Error, match="the process ended with status -9"):
        list(stream)


def test_timeouts(load):
    model = load(hang_after=2, token_timeout=0.5)
    pid = model._process.pid
    with pytest.raises(TimeoutError, match="no answer to next within .* s; the process was ended"):
        list(model.generate("x"))
    assert is_gone(pid)
    with pytest.raises(TimeoutError, match="no answer to load"):
        load(load_seconds=30, load_timeout=0.5)


def test_errors_of_the_other_side(load, folder, python):
    model = load(raise_after=2)
    stream = model.generate("x")
    assert [next(stream).text, next(stream).text] == ["h", "e"]
    with pytest.raises(ValueError, match="mlx_lm: bad weather"):
        next(stream)
    with pytest.raises(ValueError, match="mlx_lm: no such architecture"):
        load(load_error="no such architecture")


def test_close_leaves_no_process(load):
    model = load()
    pid = model._process.pid
    assert not is_gone(pid)
    model.close()
    model.close()
    assert is_gone(pid)
    with pytest.raises(ValueError, match="the model is closed"):
        model.generate("x")


@pytest.mark.parametrize("way", ["exit", "kill"])
def test_it_does_not_outlive_its_parent(folder, python, way):
    code = ("import gomlx, os, sys, time\n"
            f"model = gomlx.load({folder()!r}, backend='mlx_lm', python={python!r})\n"
            "next(model.generate('x'))\nprint(model._process.pid, flush=True)\n"
            + ("" if way == "exit" else "os.kill(os.getpid(), 9)\n"))
    root = os.path.dirname(os.path.dirname(os.path.abspath(gomlx.__file__)))
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60,
                          env=os.environ | {"PYTHONPATH": root})
    pid = int(done.stdout)
    until = time.monotonic() + 10
    while not is_gone(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert is_gone(pid), done.stderr


def test_what_a_bridged_model_can_do(load):
    model = load()
    assert model.supports("generate") and model.supports("metrics")
    for no in ("attention", "sessions", "batch", "classify", "prompt_cache", "logits_processors", "probe"):
        assert not model.supports(no)
    with pytest.raises(ValueError, match="unknown ability 'x'"):
        model.supports("x")
    assert model.encode("ab") == model.tokenizer.encode_prompt("ab") and model.decode(model.encode("ab")) == "ab"
    assert model.num_layers == model.info["n_layers"]


def test_what_only_the_engine_can_do(load):
    model = load()
    for call in (lambda: model.logits([1]), model.session, lambda: model.classify(["x"]),
                 lambda: model.generate_batch(["x"])):
        with pytest.raises(NotImplementedError, match="the backend mlx_lm has no .* backend='native'"):
            call()
    with pytest.raises(NotImplementedError, match="has no profile: use the native backend"):
        model.generate("x", profile=True)


@pytest.mark.parametrize("options, error", [
    ({"max_tokens": -1}, ValueError), ({"stop": [1]}, TypeError), ({"parser": "xml"}, ValueError)])
def test_wrong_options(load, options, error):
    with pytest.raises(error):
        load().generate("x", **options)


def test_wrong_prompts(load):
    model = load(context=8)
    for prompt in ("", [], "x" * 8, [300], [-1]):
        with pytest.raises(ValueError, match="generate: "):
            model.generate(prompt)


def test_what_is_missing_is_said(monkeypatch, tmp_path, folder, python):
    path = folder()
    backend = mlx_lm.MlxLm()
    assert backend.why_not(python) is None
    with pytest.raises(RuntimeError, match="not available: the interpreter '/no/python' cannot be run"):
        gomlx.load(path, backend="mlx_lm", python="/no/python")
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho no python today >&2\nexit 4\n")
    silent.chmod(0o755)
    assert "cannot be run: no python today" in backend.why_not(silent)
    monkeypatch.setitem(mlx_lm._probed, "bare", {"mlx_lm": None, "mlx": None})
    assert backend.why_not("bare") == "bare has no mlx-lm: bare -m pip install mlx-lm"
    monkeypatch.setitem(mlx_lm._probed, "old", {"mlx_lm": "0.3.1", "mlx": "1"})
    assert "has mlx-lm 0.3.1, expected 0.21 or newer" in backend.why_not("old")
    monkeypatch.setitem(mlx_lm._probed, "alone", {"mlx_lm": "0.32.2", "mlx": None})
    assert "mlx='gomlx'" in backend.why_not("alone", "mlx") and backend.why_not("alone") is None
    monkeypatch.setenv(mlx_lm.VARIABLE, "bare")
    assert "bare has no mlx-lm" in backend.why_not()
    with pytest.raises(ValueError, match="reads folders"):
        gomlx.load(gomlx.loading.PACKAGED_FILE, backend="mlx_lm", python=python)
    with pytest.raises(ValueError, match="expected 'mlx' or 'gomlx'"):
        gomlx.load(path, backend="mlx_lm", python=python, mlx="cuda")
    with pytest.raises(ValueError, match="has no option threads"):
        gomlx.load(path, backend="mlx_lm", python=python, threads=3)


def test_mlx_lm_itself(shared):
    """mlx-lm on gomlx.core: greedy text as the engine's own, as far as bfloat16 activations go."""
    if importlib.util.find_spec("mlx_lm") is None:
        pytest.skip("mlx-lm is not installed")
    path = os.path.join(shared, "data", "models", "fable")
    with gomlx.load(path) as model:
        stream = model.generate("Once upon a time", max_tokens=16, temperature=0)
        list(stream)
    with gomlx.load(path, backend="mlx_lm", mlx="gomlx") as model:
        bridged = model.generate("Once upon a time", max_tokens=16, temperature=0)
        list(bridged)
    assert bridged.result.tokens == stream.result.tokens and bridged.result.text == stream.result.text
