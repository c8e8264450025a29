"""Programs written for MLX on gomlx: what `gomlx.mlx` makes of imports, and mlx-lm, unmodified, on the small models.

mlx-lm's results on gomlx (mlx_lm_runs.py says what is run) are compared with gomlx's own engine, and, where MLX is
installed, with the same run on MLX. In float32 both sum in float32 but in another order: logits of a few layers agree
within 1e-3 of their size, greedy tokens exactly. In bfloat16 MLX rounds after every operation, with 8 bits: within 5 %.
"""
import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from places import TESTS

import gomlx

MODELS = ("fable", "llama3", "mistral", "qwen2", "qwen3", "gemma2", "stories260k")
PROMPT = "Once upon a time there was a little girl named Lily. One day"
RUNS = os.path.join(TESTS, "support", "mlx_lm_runs.py")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(gomlx.__file__)))


def python(*arguments, path=(), variables=None, **options):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join([ROOT, *path]),
                   **(variables or {})}
    return subprocess.run([sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True,
                          **{"cwd": TESTS, **options})     # not the checkout: it would be imported


def output(*arguments, **options):
    done = python(*arguments, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# ------------------------------------------------------------------------------------------------------- the imports

def test_names_of_mlx_are_those_of_gomlx():
    assert output("-c", """
import gomlx.mlx
gomlx.mlx.install()
gomlx.mlx.install()
import importlib.metadata, importlib.util
import mlx.core as mx, mlx.nn as nn, mlx.optimizers, mlx.utils, mlx.nn.layers.distributed
import mlx.core.random, mlx.core.fast, mlx.core.linalg, mlx.core.fft, mlx.optimizers.schedulers
from mlx import core, nn as again
from mlx.nn.layers.base import Module
from mlx.nn.utils import average_gradients
import gomlx.core
assert mx is gomlx.core is core and nn is again and issubclass(nn.Linear, Module)
assert mx.array([1, 2]).sum().item() == 3
assert importlib.util.find_spec("mlx") and importlib.util.find_spec("mlx.core")
assert importlib.metadata.version("mlx") == mx.__version__
assert importlib.metadata.version("numpy") != mx.__version__
try:
    import mlx.nothing
except ModuleNotFoundError:
    print("none")
""") == "none\n"


@pytest.mark.parametrize("real", [False, True])
def test_packages_beside_mlx_stay_importable(tmp_path, real):
    """mlx is a namespace: other distributions put packages into it, found with and without a real mlx beside them."""
    beside = tmp_path / "beside" / "mlx" / "data"
    beside.mkdir(parents=True)
    (beside / "__init__.py").write_text("import mlx.core as mx\nfrom . import more\nones = mx.ones(more.size)\n")
    (beside / "more.py").write_text("size = 3\n")
    later = tmp_path / "later" / "mlx"
    later.mkdir(parents=True)
    (later / "late.py").write_text("from mlx.nn import Linear\n")
    path = [str(tmp_path / "beside")]
    if real:
        other = tmp_path / "real" / "mlx"
        for name in ("core", "nn", "optimizers"):
            (other / name).mkdir(parents=True)
            (other / name / "__init__.py").write_text("raise SystemExit('the real mlx')\n")
        (other / "utils.py").write_text("raise SystemExit('the real mlx')\n")
        path.insert(0, str(tmp_path / "real"))
    assert output("-c", f"""
import gomlx.mlx
gomlx.mlx.install()
import importlib.util, pkgutil, sys
import mlx, mlx.data, mlx.core, mlx.nn.layers.base, mlx.optimizers, mlx.utils
import gomlx.core, gomlx.nn
from mlx.data import more
assert mlx.core is gomlx.core and mlx.nn is gomlx.nn and mlx.data.ones.tolist() == [1] * more.size
assert importlib.util.find_spec("mlx.data") and "data" in [module.name for module in pkgutil.iter_modules(mlx.__path__)]
assert importlib.util.find_spec("mlx.late") is None
sys.path.append({str(tmp_path / "later")!r})
import mlx.late
assert mlx.late.Linear is gomlx.nn.Linear
print("imported")
""", path=path) == "imported\n"


def test_a_real_mlx_that_is_imported_already_is_refused():
    code = """
import sys, types
sys.modules["mlx.core"] = types.ModuleType("mlx.core")
sys.modules["mlx.core"].__file__ = "elsewhere"
import gomlx.mlx
gomlx.mlx.install()
"""
    done = python("-c", code)
    assert done.returncode != 0 and "RuntimeError" in done.stderr and "imported already, from elsewhere" in done.stderr


def test_scripts_and_modules_run_with_their_arguments(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys, mlx.core as mx, beside\n"
                      "if __name__ == '__main__':\n"
                      "    print(mx.array(2).item(), beside.value, sys.argv)\n")
    (tmp_path / "beside.py").write_text("value = 7\n")
    assert output("-m", "gomlx.mlx", script, "a", "-b") == f"2 7 {[str(script), 'a', '-b']}\n"
    assert output("-m", "gomlx.mlx", "-m", "script", "c", path=[str(tmp_path)]) == f"2 7 {[str(script), 'c']}\n"
    done = python("-m", "gomlx.mlx")
    assert done.returncode != 0 and "usage" in done.stderr
    failing = tmp_path / "failing.py"
    failing.write_text("raise SystemExit(3)\n")
    assert python("-m", "gomlx.mlx", failing).returncode == 3


# ------------------------------------------------------------------------------------------------------------- mlx-lm

needs_mlx_lm = pytest.mark.skipif(importlib.util.find_spec("mlx_lm") is None, reason="mlx-lm is not installed")


def run(folder, shared, *command, **options):
    done = python(*command, RUNS, os.path.join(shared, "data", "models"),
                  os.path.join(shared, "data", "text", "stories.txt"), folder, PROMPT, *MODELS, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(os.path.join(folder, "results.npz")))


@pytest.fixture(scope="module")
def ours(tmp_path_factory, shared):
    return run(tmp_path_factory.mktemp("gomlx"), shared, "-m", "gomlx.mlx")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, shared):
    if importlib.util.find_spec("mlx.core") is None:
        pytest.skip("MLX is not installed")
    # minutes of a compiler; an MPI that is not Open MPI's ends its process
    return run(tmp_path_factory.mktemp("mlx"), shared,
               variables={"MLX_DISABLE_COMPILE": "1", "MLX_MPI_LIBNAME": "no-such-library"})


def apart(got, want):
    """The root mean square of the difference, relative to that of what is wanted."""
    return np.sqrt(((got.astype(np.float64) - want) ** 2).mean() / (want.astype(np.float64) ** 2).mean())


@needs_mlx_lm
@pytest.mark.parametrize("name", ["fable", "stories260k"])     # of llama3 and mistral mlx-lm misreads RoPE and window
def test_models_give_what_the_engine_gives(ours, shared, name):
    path = os.path.join(shared, "data", "models", name)
    with open(os.path.join(shared, "data", "text", "stories.txt"), encoding="utf-8") as file:
        text = file.read().split("<|endoftext|>")[0].strip()
    with gomlx.load(path, dtype="float32", activations="float32", kv_dtype="float32") as model:
        n = ours[f"{name} float32 logits"].shape[1]
        logits = np.array(model.logits(model.tokenizer.encode(text)[:n]))
        assert apart(ours[f"{name} float32 logits"][0], logits) < 1e-3
        assert apart(ours[f"{name} logits"][0], logits) < 5e-2
        tokens = [token.id for token in model.generate(PROMPT, max_tokens=16, temperature=0) if token.id >= 0]
    assert list(ours[f"{name} tokens"][:len(tokens)]) == tokens


@needs_mlx_lm
def test_sampling_follows_the_seed(ours):
    assert len(ours["sampled"]) == 16 and np.array_equal(ours["sampled"], ours["sampled again"])
    assert not np.array_equal(ours["sampled"], ours["fable tokens"])


@needs_mlx_lm
def test_inference_agrees_with_mlx(ours, theirs):
    for name in MODELS:
        assert apart(ours[f"{name} float32 logits"], theirs[f"{name} float32 logits"]) < 1e-3, name
        assert apart(ours[f"{name} logits"], theirs[f"{name} logits"]) < 5e-2, name
        for run_name in ("tokens", "tokens by chunks"):
            assert np.array_equal(ours[f"{name} {run_name}"], theirs[f"{name} {run_name}"]), (name, run_name)
    for name in ("quantised cache", "rotating cache", "penalty"):
        assert np.array_equal(ours[name], theirs[name]), name
    np.testing.assert_allclose(ours["perplexity"], theirs["perplexity"], rtol=1e-3)


@needs_mlx_lm
def test_converted_weights_and_models_agree_with_mlx(ours, theirs):
    weights = [name for name in theirs if " weights " in name]
    assert weights and set(weights) == {name for name in ours if " weights " in name}
    for name in weights:
        assert np.array_equal(ours[name], theirs[name]), name
    for label in ("fable 4", "fable 8", "qwen3 4", "stories260k 8", "llama3 mxfp4"):
        assert apart(ours[f"{label} float32 logits"], theirs[f"{label} float32 logits"]) < 1e-3, label
        assert apart(ours[f"{label} logits"], theirs[f"{label} logits"]) < 0.1, label
        assert apart(ours[f"{label} step logits"], theirs[f"{label} step logits"]) < 0.1, label
        assert np.array_equal(ours[f"{label} tokens"], theirs[f"{label} tokens"]), label


@needs_mlx_lm
def test_fine_tuning_agrees_with_mlx(ours, theirs):
    for label in ("lora", "dora", "checkpointed", "quantised"):
        assert ours[f"{label} trainable"] == theirs[f"{label} trainable"]
        for kind in ("train", "valid"):
            np.testing.assert_allclose(ours[f"{label} {kind} losses"], theirs[f"{label} {kind} losses"], rtol=5e-3,
                                       err_msg=label)


@needs_mlx_lm
def test_fine_tuning_learns(ours):
    for label in ("lora", "dora", "checkpointed", "quantised"):
        before, after = ours[f"{label} valid losses"]
        assert after < before, label
    np.testing.assert_allclose(ours["checkpointed train losses"], ours["lora train losses"], rtol=1e-4)


# Stands for the hub's package of the same name, which would read the same file.
DATASETS = """
import json, os

def load_dataset(path, split=None, **options):
    with open(os.path.join(path, "train.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]
"""


# Commands of mlx-lm one after another, in a process that has imported what they share.
COMMANDS = """
import json, runpy, sys

for arguments in json.loads(sys.argv[1]):
    print("\\n== command", flush=True)
    sys.argv = ["mlx_lm", *arguments]
    runpy.run_module("mlx_lm", run_name="__main__", alter_sys=True)
"""


@needs_mlx_lm
def test_the_command_line(tmp_path, shared):
    model, small, adapters = os.path.join(shared, "data", "models",
                                          "fable"), tmp_path / "fable-4bit", tmp_path / "adapters"
    with gomlx.load(model, dtype="float32", activations="float32", kv_dtype="float32") as own:
        start = own.generate(PROMPT, max_tokens=4, temperature=0)
        text = "".join(token.text for token in start)
    said = output("-m", "gomlx.mlx", "-m", "mlx_lm", "generate", "--model", model, "--prompt", PROMPT,
                  "--ignore-chat-template", "--max-tokens", 12)
    assert text.strip() in said and "Generation: 12 tokens" in said

    with open(os.path.join(shared, "data", "text", "stories.txt"), encoding="utf-8") as file:
        stories = [story.strip() for story in file.read().split("<|endoftext|>")[:24]]
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": story[:200]}) + "\n" for story in stories))
    (tmp_path / "datasets.py").write_text(DATASETS)
    (tmp_path / "commands.py").write_text(COMMANDS)
    commands = (("convert", "--hf-path", model, "--mlx-path", small, "-q", "--q-bits", 4),
                ("generate", "--model", small, "--prompt", PROMPT, "--ignore-chat-template", "--max-tokens", 12),
                ("lora", "--model", small, "--train", "--data", tmp_path, "--iters", 4, "--batch-size", 2,
                 "--num-layers", 2, "--adapter-path", adapters, "--steps-per-report", 2, "--val-batches", 1),
                ("generate", "--model", small, "--adapter-path", adapters, "--prompt", "Once", "--max-tokens", 4),
                ("perplexity", "--model", model, "--data-path", tmp_path, "--sequence-length", 64, "--num-samples", 4))
    said = output("-m", "gomlx.mlx", tmp_path / "commands.py", json.dumps([list(map(str, c)) for c in commands]),
                  path=[str(tmp_path)]).split("== command")[1:]
    with open(small / "config.json", encoding="utf-8") as file:
        assert json.load(file)["quantization"]["bits"] == 4
    assert "Generation: 12 tokens" in said[1] and (adapters / "adapters.safetensors").exists()
    assert "Generation: " in said[3] and 1 < float(said[4].split("Perplexity: ")[1].split()[0]) < 30
