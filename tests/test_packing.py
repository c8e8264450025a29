"""Matrices stay in the mapped file for the model's first pass and are packed before the second: the bits are the same, and
so is the memory in the end."""
import gc
import os
import threading

import checkpoints
import numpy as np
import pytest
from checkpoints import SMALL

import gomlx
import gomlx.core as mx

# Some matrices are several of the pieces that the first pass packs, none is a whole number of them.
WIDE = SMALL | {"hidden_size": 256, "intermediate_size": 3 * 1024 + 32, "num_hidden_layers": 1, "vocab_size": 3001}
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


def is_mapped(path):
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return str(path) in maps.read()


@pytest.mark.parametrize("n", [1, 5, 150])
def test_the_first_pass_gives_the_bits_of_later_ones(wide, n):
    path, options = wide
    with gomlx.load(path, **options) as model:
        first = np.asarray(model.logits(ids(n))).copy()
        assert np.isfinite(first).all() and first.std() > 0
        for _ in range(2):
            np.testing.assert_array_equal(first, np.asarray(model.logits(ids(n))))


def test_the_second_pass_takes_the_memory_and_closes_the_file(wide):
    path, options = wide
    gc.collect()
    before, size = mx.get_active_memory(), os.path.getsize(path)
    with gomlx.load(path, **options) as model:
        model.logits(ids(3))
        assert mx.get_active_memory() - before < size / 2 and is_mapped(path)
        model.logits(ids(3))
        assert 0.98 * size < mx.get_active_memory() - before < 1.1 * size + (1 << 21) and not is_mapped(path)


def test_weights_are_the_same_before_and_after(wide):
    path, options = wide
    names = ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight", "model.embed_tokens.weight"]
    with gomlx.load(path, **options) as model:
        before = [np.asarray(model.weight(name)).copy() for name in names]
        for _ in range(2):
            model.logits(ids(3))
        for name, value in zip(names, before):
            np.testing.assert_array_equal(value, np.asarray(model.weight(name)))


def test_a_stream_that_began_before_goes_on_after(wide):
    path, options = wide
    with gomlx.load(path, **options) as model:
        stream = iter(model.generate(ids(7), max_tokens=8, temperature=0))
        tokens = [next(stream).id]
        model.logits(ids(4, 1))                         # packs
        tokens += [token.id for token in stream]
        assert tokens == [token.id for token in model.generate(ids(7), max_tokens=8, temperature=0)]


def test_threads_that_begin_together_get_the_same(wide):
    path, options = wide
    with gomlx.load(path, **options) as model:
        found = [None] * 4

        def read(i):
            found[i] = np.asarray(model.logits(ids(6))).copy()

        threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)


def test_a_weight_outlives_a_model_that_was_not_read(wide):
    path, options = wide
    with gomlx.load(path, **options) as model:
        model.logits(ids(3))
        model.logits(ids(3))
        want = np.asarray(model.weight("model.layers.0.mlp.up_proj.weight")).copy()
    with gomlx.load(path, **options) as model:
        lazy = model.weight("model.layers.0.mlp.up_proj.weight")
    np.testing.assert_array_equal(np.asarray(lazy), want)
    del lazy
    gc.collect()
    assert not is_mapped(path)


def test_a_model_that_is_never_read_leaves_nothing(wide):
    path, options = wide
    gc.collect()
    before = mx.get_active_memory()
    gomlx.load(path, **options).close()
    gc.collect()
    assert not is_mapped(path) and mx.get_active_memory() - before < 1 << 20
