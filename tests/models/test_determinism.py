"""The same bits, however the work is cut: sequences alone or in a batch, one thread or several, a prompt in one go, in
chunks, token by token or as decode steps. And every instruction set near every other."""
import os
import subprocess
import sys

import checkpoints
import llama_reference
import numpy as np
import pytest
from catalogue import ISAS
from checkpoints import SMALL
from places import TESTS

import gomlx
from gomlx import _gomlx, loading

pytestmark = [pytest.mark.isa, pytest.mark.models]

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(gomlx.__file__)))
FORCED = "GOMLX_ISA" in os.environ
# Sizes that tiles and panels do not divide, where the format lets.
RANDOM = SMALL | {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 301, "max_position_embeddings": 1024}
ODD = SMALL | {"hidden_size": 100, "intermediate_size": 150, "vocab_size": 301, "num_attention_heads": 6,
               "head_dim": 20}
CASES = {
    # name: (config or a model of the test data, format, options)
    "f32": (ODD, "F32", {}),
    "bf16": (ODD, "BF16", {}),
    "bf16, rounded": (ODD | {"hidden_size": 101, "intermediate_size": 1030}, "BF16", {"activations": "bfloat16"}),
    "bf16, exact": (ODD, "BF16", {"activations": "float32"}),
    "bf16, window": (ODD | {"model_type": "mistral", "sliding_window": 70}, "BF16", {}),
    "f16, bf16 KV": (ODD, "F16", {"kv_dtype": "bfloat16"}),
    "q8_0 KV, window": (RANDOM | {"model_type": "mistral", "sliding_window": 70}, "F32", {"kv_dtype": "q8_0"}),
    "Q8_0": (RANDOM, "Q8_0", {}),
    "Q8_0, q8_0 KV": (RANDOM, "Q8_0", {"kv_dtype": "q8_0"}),
    "Q4_0": (RANDOM, "Q4_0", {}),
    "Q4_K": (RANDOM, "Q4_K", {}),
    "Q6_K": (RANDOM, "Q6_K", {}),
    "IQ2_XS": (RANDOM, "IQ2_XS", {}),           # scales of halves; unpacked whole
    "IQ3_XXS": (RANDOM, "IQ3_XXS", {}),
    "TQ1_0": (RANDOM, "TQ1_0", {}),
    "Q8_0, float32 activations": (RANDOM, "Q8_0", {"activations": "float32"}),
    "Q6_K, float32 activations": (RANDOM, "Q6_K", {"activations": "float32", "kv_dtype": "float16"}),
    "packaged": (None, loading.PACKAGED_FILE, {}),
    "fable": (None, "fable", {}),
    "stories260k": (None, "stories260k", {}),
    "fable Q4_K_M": (None, "fable-gguf/fable-Q4_K_M.gguf", {}),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """(path, options) for load_model."""
    config, kind, options = CASES[request.param]
    if FORCED and config is None:
        pytest.skip("GOMLX_ISA is set: the random models are enough, other sets are slow")
    if config is None:
        path = kind if os.path.isabs(kind) else os.path.join(request.getfixturevalue("shared"), "data", "models", kind)
    else:
        folder = tmp_path_factory.mktemp("model")
        weights = checkpoints.random_weights(config)
        if kind in ("F32", "F16", "BF16"):
            path = folder
            checkpoints.save_safetensors(folder, config, weights, kind)
        else:
            path = folder / "model.gguf"
            checkpoints.save_gguf(path, config, weights, kind)
    return str(path), options


@pytest.fixture(scope="module")
def model(case):
    path, options = case
    model = _gomlx.load_model(path, threads=2, **options)
    yield model
    model.close()


def tokens(model, n, seed=0):
    return np.random.default_rng(seed).integers(0, model.vocab_size, n).tolist()


def logits(model, *sequences):
    return [np.asarray(one).copy() for one in model.logits(list(sequences))]


def same(got, want):
    """Equal bits; says how many differ and by how much."""
    assert got.shape == want.shape
    differ = got.view(np.uint32) != want.view(np.uint32)
    rows = np.unique(np.nonzero(differ)[0])[:20]
    assert not differ.any(), f"{differ.sum()} of {differ.size} differ, by {np.abs(got - want).max()}, rows {rows}"


def step(session, prompt, seed):
    """A token drawn after the prompt, and the bits of its log probability; hot, so that any token's logit may show."""
    stream = _gomlx.stream(session, None, prompt, temperature=3.0, seed=seed, max_tokens=1)
    token, = list(stream)
    return token.id, np.float32(token.logprob).tobytes()


def test_a_batch_gives_the_bits_of_single_sequences(model):
    """Ragged, more rows than one pass takes: a pass ends inside a sequence."""
    sequences = [tokens(model, n, seed=n) for n in (1, 300, 2, 17, 16, 257, 31, 1)]
    batch = logits(model, *sequences)
    for sequence, got in zip(sequences, batch):
        same(got, logits(model, sequence)[0])


def test_a_prefix_gives_the_bits_of_the_whole(model):
    """A row's logits do not depend on how many come with it, from one row, which takes other kernels, to two passes."""
    ids = tokens(model, 512 if model.context_length < 600 else 520)
    whole = logits(model, ids)[0]
    for n in (1, 2, 3, 5, 8, 15, 16, 17, 33, 100, 257, 511, 512):
        same(logits(model, ids[:n])[0], whole[:n])


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_any_number_of_threads_gives_the_same_bits(case, model, threads):
    path, options = case
    ids = tokens(model, 300)
    other = _gomlx.load_model(path, threads=threads, **options)
    try:
        for n in (1, 5, 300):
            same(logits(other, ids[:n])[0], logits(model, ids[:n])[0])
        assert [step(other.new_session(), ids[:n], n) for n in (1, 20, 300)] == \
            [step(model.new_session(), ids[:n], n) for n in (1, 20, 300)]
    finally:
        other.close()


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_give_the_bits_of_one_go(model, chunk):
    """A session that grows by chunks draws the same token with the same log probability as a fresh one."""
    ids = tokens(model, 275)
    session = model.new_session()
    for n in range(chunk, 276, chunk):
        drawn = step(session, ids[:n], seed=n)
        assert session.length == n
        if n // chunk % max(1, 30 // chunk) == 0 or 255 <= n <= 258:
            assert drawn == step(model.new_session(), ids[:n], seed=n), n
    session.close()


def test_decoding_gives_the_bits_of_prefill(model):
    """Each token of a stream, its log probability too, is what a fresh session chooses after the same tokens; and the
    log probability is that of logits()."""
    prompt = tokens(model, 240)
    chosen = list(_gomlx.stream(model.new_session(), None, prompt, max_tokens=40))
    assert len(chosen) == 40                    # past the first block of 256 keys
    ids = prompt + [token.id for token in chosen]
    rows = logits(model, ids)[0][239:279].astype(np.float64)
    assert ids[240:] == rows.argmax(-1).tolist()
    want = rows[range(40), ids[240:]] - np.logaddexp.reduce(rows, -1)
    np.testing.assert_allclose([token.logprob for token in chosen], want, atol=1e-5, rtol=1e-6)
    for i in (0, 1, 2, 16, 17, 39):             # 17: the first whose step read a second block of keys
        again, = list(_gomlx.stream(model.new_session(), None, ids[:240 + i], max_tokens=1))
        assert (again.id, again.logprob) == (chosen[i].id, chosen[i].logprob), i


def test_a_session_that_went_back_gives_the_same_bits(model):
    """What was in the cache beyond the shared beginning leaves no trace."""
    first, second = tokens(model, 280), tokens(model, 280, seed=1)
    session = model.new_session()
    step(session, first, 0)
    mixed = first[:100] + second[100:]
    assert step(session, mixed, 1) == step(model.new_session(), mixed, 1)
    session.truncate(30)
    assert step(session, first, 2) == step(model.new_session(), first, 2)
    session.close()


# ---- instruction sets ----

PROGRAM = """
import sys
import numpy as np
from gomlx import _gomlx
print(_gomlx.isa(), flush=True)
for line in sys.stdin:
    path, options, ids, out = eval(line)
    model = _gomlx.load_model(path, **options)
    np.save(out, np.asarray(model.logits([ids])[0]))
    model.close()
    print("done", flush=True)
"""


def begin_under(isa):
    """A process with an instruction set, for all models; it begins by saying which one that is."""
    return subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, cwd=TESTS,
                            env=os.environ | {"GOMLX_ISA": isa, "PYTHONPATH": PACKAGE})


@pytest.fixture(scope="module")
def sets():
    """{name: process} of the instruction sets that this build has and this machine runs."""
    if FORCED:
        pytest.skip("GOMLX_ISA is set: this test sets it itself")
    found, begun = {}, {isa: begin_under(isa) for isa in ISAS}
    try:
        for isa, process in begun.items():
            first = process.stdout.readline().strip()
            if first == isa:
                found[isa] = process
            else:
                said = first + process.stdout.read()
                assert "GOMLX_ISA" in said and isa in said, said
        assert {_gomlx.isa(), "generic"} <= found.keys()
        yield found
    finally:
        for process in begun.values():
            process.kill()
            process.communicate()


def under(process, path, options, ids, out):
    """Logits of a process's instruction set."""
    process.stdin.write(repr((path, options, ids, str(out))) + "\n")
    process.stdin.flush()
    said = process.stdout.readline()
    assert said == "done\n", said + process.stdout.read()
    return np.load(out)


def test_instruction_sets_agree(case, model, sets, tmp_path):
    """Sums in another order: float32's rounding where all is float32. Where keys, values or activations are rounded to
    less, what stands at the edge between two steps may fall to either side: a difference of that rounding."""
    path, options = case
    ids = tokens(model, 60)
    found = {isa: under(process, path, options, ids, tmp_path / f"{isa}.npy") for isa, process in sets.items()}
    same(found[_gomlx.isa()], logits(model, ids)[0])
    info = model.info()
    bound = 0.03 if info["activations"] in ("int8", "bfloat16") else 1e-5 if info["kv_dtype"] == "float32" else 1e-3
    for isa, values in found.items():
        assert llama_reference.difference(values, found["generic"]) <= bound, isa
