"""Matrices stay in the mapped file for the model's first pass and are packed before the second: the bits are the same,
and so is the memory in the end."""
import contextlib
import gc
import os
import shutil
import threading

import checkpoints
import numpy as np
import pytest
from checkpoints import SMALL

import gomlx
import gomlx.core as mx
from gomlx import _gomlx

# Some matrices are several of the pieces that the first pass packs, none is a whole number of them.
WIDE = SMALL | {"hidden_size": 256, "intermediate_size": 13 * 256, "num_hidden_layers": 1, "vocab_size": 3001}
LOAD = {
    "F32": {}, "F16": {}, "BF16": {}, "BF16, exact": {"activations": "float32"}, "Q8_0": {}, "Q4_0": {}, "Q5_1": {},
    "Q8_0, float32": {"activations": "float32"}, "Q4_K": {}, "Q6_K": {}, "Q3_K": {}, "IQ4_XS": {}, "IQ2_XS": {},
}


@pytest.fixture(scope="module", params=LOAD)
def wide(request, tmp_path_factory):
    """(path of a GGUF file, options)"""
    path = tmp_path_factory.mktemp("wide") / "model.gguf"
    checkpoints.save_gguf(path, WIDE, checkpoints.random_weights(WIDE), request.param.split(",")[0])
    return path, LOAD[request.param]


def ids(n, seed=0):
    return np.random.default_rng(seed).integers(0, WIDE["vocab_size"], n).tolist()


@contextlib.contextmanager
def loaded(wide):
    path, options = wide
    model = _gomlx.load_model(str(path), threads=2, **options)
    try:
        yield model
    finally:
        model.close()


def logits(model, tokens):
    return np.asarray(model.logits([tokens])[0]).copy()


def is_mapped(path):
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return str(path) in maps.read()


@pytest.mark.parametrize("n", [1, 5, 150])
def test_the_first_pass_gives_the_bits_of_later_ones(wide, n):
    with loaded(wide) as model:
        first = logits(model, ids(n))
        assert np.isfinite(first).all() and first.std() > 0
        for _ in range(2):
            np.testing.assert_array_equal(first, logits(model, ids(n)))


def test_the_second_pass_takes_the_memory_and_closes_the_file(wide):
    path, _ = wide
    gc.collect()
    before, size = mx.get_active_memory(), os.path.getsize(path)
    with loaded(wide) as model:
        logits(model, ids(3))
        assert mx.get_active_memory() - before < size / 2 and is_mapped(path)
        logits(model, ids(3))
        assert 0.98 * size < mx.get_active_memory() - before < 1.1 * size + (1 << 21) and not is_mapped(path)


def test_weights_are_the_same_before_and_after(wide):
    names = ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight",
             "model.embed_tokens.weight"]
    with loaded(wide) as model:
        before = [np.asarray(model.weight(name)).copy() for name in names]
        for _ in range(2):
            logits(model, ids(3))
        for name, value in zip(names, before):
            np.testing.assert_array_equal(value, np.asarray(model.weight(name)))


def test_a_stream_that_began_before_goes_on_after(wide):
    def stream(model):
        return iter(_gomlx.stream(model.new_session(), None, ids(7), temperature=0, max_tokens=8))

    with loaded(wide) as model:
        first = stream(model)
        tokens = [next(first).id]
        logits(model, ids(4, 1))                        # packs
        tokens += [token.id for token in first]
        assert tokens == [token.id for token in stream(model)]


def test_threads_that_begin_together_get_the_same(wide):
    with loaded(wide) as model:
        found = [None] * 4

        def read(i):
            found[i] = logits(model, ids(6))

        threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)


def test_a_weight_outlives_a_model_that_was_not_read(wide):
    with loaded(wide) as model:
        logits(model, ids(3))
        logits(model, ids(3))
        want = np.asarray(model.weight("model.layers.0.mlp.up_proj.weight")).copy()
    with loaded(wide) as model:
        lazy = model.weight("model.layers.0.mlp.up_proj.weight")
    np.testing.assert_array_equal(np.asarray(lazy), want)
    del lazy
    gc.collect()
    assert not is_mapped(wide[0])


def test_a_model_that_is_never_read_leaves_nothing(wide):
    gc.collect()
    before = mx.get_active_memory()
    with loaded(wide):
        assert is_mapped(wide[0])
    assert not is_mapped(wide[0]) and mx.get_active_memory() == before


@pytest.mark.parametrize("when", ["before the first pass", "before the second"])
def test_a_file_that_was_changed_is_an_error(tmp_path, when):
    """Of the same length, so that nothing but its time tells. One that took the name of the file is another."""
    source = os.path.join(os.path.dirname(gomlx.__file__), "models", "fable-Q8_0.gguf")
    path = shutil.copy(source, tmp_path / "model.gguf")
    os.utime(path, (1, 1))
    with gomlx.load(path) as model:
        if when == "before the second":
            model.logits([1, 2])
        with open(path, "r+b") as file:
            file.seek(100000)
            file.write(b"\xff")
        with pytest.raises(RuntimeError, match="model.gguf was changed since it was opened: load the model again"):
            model.logits([1, 2])
    shutil.copy(source, path)
    with gomlx.load(path) as model:
        os.replace(shutil.copy(source, tmp_path / "other.gguf"), path)
        assert np.array_equal(np.asarray(model.logits([1, 2])), np.asarray(model.logits([1, 2])))
