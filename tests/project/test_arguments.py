"""Arguments of the public functions: whatever comes, the error names the argument, and nothing else is raised."""
import numpy as np
import pytest

import gomlx
import gomlx.core as mx

WRONG = {"integer": ["3", b"3", 1.5, float("nan"), True, [], {}, object(), [1]],
         "flag": ["a", 2, 1.5, [], object()],
         "seconds": ["a", b"a", [], object(), True, float("nan"), -1, 0], "items": ["a", b"a", 5, 1.5, True, object()],
         "callable": ["a", 5, [], True], "progress": ["a", 5, [], object()], "path": [5, b"a", 1.5, True, [], object()],
         "name": [5, b"a", [], ["a"], object()],
         "text": [5, b"a", 1.5, True, object(), [1]],
         "text or integer": ["", b"3", 1.5, float("nan"), True, [], {}, object(), 0],
         "prompt": [5, b"a", None, {}, [1.5], ["a"], object()]}
ARGUMENTS = [
    ("load", "context_length threads parallel", "integer"), ("load", "kv_dtype backend dtype activations", "name"),
    ("load", "path_or_name", "path"), ("load", "progress", "progress"), ("load", "prompt_cache", "flag"),
    ("generate", "max_tokens min_tokens seed top_logprobs n top_k", "integer"), ("generate", "timeout", "seconds"),
    ("generate", "ignore_eos penalty_prompt", "flag"),
    ("generate", "stop_ids logits_processors steer suppress_tokens", "items"),
    ("generate", "probe", "callable"), ("generate", "prompt", "prompt"),
    ("generate", "sampling session parser prefill", "name"),
    ("generate", "prompt_cache logprobs", "integer"), ("generate", "stop", "text"),
    ("chat", "tools", "items"), ("chat", "add_generation_prompt enable_thinking", "flag"),
    ("chat", "chat_format", "name"), ("chat", "template_args", "items"), ("chat", "n max_tokens", "integer"),
    ("generate_batch", "prompts options", "items"), ("generate_batch", "batch_size", "integer"),
    ("generate_batch", "timeout", "seconds"),
    ("classify", "prompts labels", "items"), ("classify", "return_logits", "flag"), ("score", "text", "callable"),
    ("embed", "normalize", "flag"), ("embed", "pooling", "name"), ("inspect", "want", "text"),
    ("inspect", "prompt", "prompt"),
    ("convert", "source destination", "path"), ("convert", "overwrite", "flag"), ("convert", "progress", "progress"),
    ("convert", "quantize", "name"),
    ("plan_memory", "context batch budget", "integer"), ("plan_memory", "kv_dtype dtype", "name"),
    ("plan_memory", "path", "path"), ("discover", "path", "path"),
    ("bench", "generate repeat", "integer"), ("bench", "prompt", "text or integer"), ("bench", "sampling", "name"),
    ("bench", "profile prompt_cache probes", "flag"),
    ("bench", "progress", "progress"),
]


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as model:
        yield model


def call(model, function, arguments, folder):
    if function in ("load", "plan_memory", "discover"):
        made = getattr(gomlx, function)(**arguments)
        if function == "load":
            made.close()
    elif function == "convert":
        gomlx.convert(**{"source": "fable", "destination": str(folder / "x.gguf")} | arguments)
    elif function == "bench":
        gomlx.bench(model, **arguments)
    else:
        first = {"chat": ("messages", [{"role": "user", "content": "hi"}]), "generate_batch": ("prompts", ["a"]),
                 "classify": ("prompts", ["a"]), "score": ("text", "a"), "embed": ("texts", "a")}
        first = first.get(function, ("prompt", "a"))
        made = getattr(model, function)(**{first[0]: first[1]} | arguments)
        if hasattr(made, "read"):
            made.read()


@pytest.mark.parametrize("function, name, kind",
                         [(f, name, kind) for f, names, kind in ARGUMENTS for name in names.split()])
def test_errors_name_the_argument(model, tmp_path, function, name, kind):
    for value in WRONG[kind]:
        if (name, value) == ("text", "a") or (name, value) == ("text", []):
            continue                                        # these are texts, and none
        with pytest.raises((TypeError, ValueError), match=name):
            call(model, function, {name: value}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_folders_that_cannot_be_written(tmp_path, monkeypatch):
    import tempfile

    def refuse(**options):
        raise PermissionError(13, "Permission denied", options["dir"] + "/tmp123")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    for name in ("x.gguf", "x"):
        with pytest.raises(PermissionError, match="the folder cannot be written: Permission denied: '.*0'$"):
            gomlx.convert("fable", tmp_path / name)
    assert not list(tmp_path.iterdir())


TWO, ONE, ZERO = mx.array(2), mx.array(1, mx.int64), mx.array(0, mx.uint8)
INTEGERS = {
    "pad": lambda two, one, zero: mx.pad(mx.ones((2, 3)), two),
    "pad a pair": lambda two, one, zero: mx.pad(mx.ones((2, 3)), (two, one)),
    "roll": lambda two, one, zero: mx.roll(mx.arange(6).reshape(2, 3), two),
    "roll an axis": lambda two, one, zero: mx.roll(mx.arange(6).reshape(2, 3), one, one),
    "split": lambda two, one, zero: mx.split(mx.arange(4), two)[1],
    "tile": lambda two, one, zero: mx.tile(mx.arange(3), two),
    "tile both": lambda two, one, zero: mx.tile(mx.arange(3), (two, one)),
    "tensordot": lambda two, one, zero: mx.tensordot(mx.ones((2, 3)), mx.ones((3, 2)), one),
    "conv1d": lambda two, one, zero: mx.conv1d(mx.ones((1, 8, 1)), mx.ones((1, 2, 1)), two, one),
    "conv2d": lambda two, one, zero: mx.conv2d(mx.ones((1, 5, 5, 1)), mx.ones((1, 2, 2, 1)), (two, one), zero),
    "arange": lambda two, one, zero: mx.arange(zero, two, one),
    "median": lambda two, one, zero: mx.median(mx.arange(6).reshape(2, 3), one),
    "median of axes": lambda two, one, zero: mx.median(mx.arange(6).reshape(2, 3), [zero, one]),
    "key": lambda two, one, zero: mx.random.key(two),
    "zeros": lambda two, one, zero: mx.zeros(two)}


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_array_without_dimensions_is_an_int(name):
    got, expected = INTEGERS[name](TWO, ONE, ZERO), INTEGERS[name](2, 1, 0)
    assert got.shape == expected.shape and got.dtype == expected.dtype and mx.array_equal(got, expected)
    with pytest.raises((TypeError, ValueError)):
        INTEGERS[name](mx.array(2.0), mx.array(1.0), mx.array(0.0))


def test_a_seed_may_be_an_integer_array():
    mx.random.seed(mx.array(5))
    drawn = mx.random.normal((3,))
    mx.random.seed(np.int64(5))
    assert mx.array_equal(drawn, mx.random.normal((3,)))
    for wrong in (5.0, mx.array(5.0), mx.array([5]), "5", None, -1, 2**64):
        with pytest.raises(TypeError, match="seed: "):
            mx.random.seed(wrong)


def test_arange_of_arrays_that_are_no_integers_is_a_type_error():
    for wrong in (mx.array(0.5), mx.array([2]), mx.array(True), np.float32(0.5)):
        for ask in (lambda: mx.arange(wrong), lambda: mx.arange(wrong, 3), lambda: mx.arange(0, 2, wrong)):
            with pytest.raises(TypeError, match="arange: st"):
                ask()
    assert mx.arange(np.int64(3)).tolist() == [0, 1, 2] and mx.arange(0, 1, 0.5).dtype == mx.float32


def test_limits_are_integers_of_any_kind():
    before = mx.set_cache_limit(np.int64(1 << 20))
    assert mx.set_cache_limit(mx.array(1 << 21)) == 1 << 20 and mx.set_cache_limit(before) == 1 << 21
    for wrong in (1.5, mx.array(1.5), "1", None, -1, mx.array([1])):
        with pytest.raises(TypeError, match="limit must be a number of bytes"):
            mx.set_cache_limit(wrong)
