"""What a sequence keeps: windows that give their keys back, forks, sessions as bytes, int8 entries, a full context."""
import os
import shutil
import subprocess
import sys
import threading

import checkpoints
import llama_reference
import numpy as np
import pytest
from architectures import VOCAB, Golden
from checkpoints import SMALL
from llama_reference import difference

import gomlx
import gomlx.core as mx
from gomlx import _gomlx

pytestmark = [pytest.mark.isa, pytest.mark.models]

CONFIG = SMALL | {"hidden_size": 128, "max_position_embeddings": 2048}      # heads of 32
WINDOW = CONFIG | {"model_type": "mistral", "sliding_window": 100}
KV_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "q8_0": 34 / 32}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """name -> (folder, config, weights)"""
    made = {}
    for name, config in {"full": CONFIG, "window": WINDOW}.items():
        folder = tmp_path_factory.mktemp(name)
        made[name] = str(folder), config, checkpoints.save_safetensors(folder, config,
                                                                       checkpoints.random_weights(config))
    return made


def load(folders, name, **options):
    return _gomlx.load_model(folders[name][0], threads=2, **options)


def tokens(n, seed=0):
    return np.random.default_rng(seed).integers(0, CONFIG["vocab_size"], n).tolist()


def go_on(session, ids, n, seed=5, **options):
    """n tokens drawn after ids: (id, bits of the log probability) of each."""
    stream = _gomlx.stream(session, None, ids, max_tokens=n, temperature=1.0, seed=seed, **options)
    return [(token.id, np.float32(token.logprob).tobytes()) for token in stream if token.id >= 0]


# ---- windows ----

def test_a_windowed_model_is_right_past_several_windows_and_gives_old_keys_back(folders):
    folder, config, weights = folders["window"]
    ids = tokens(1500)
    model = load(folders, "window")
    got = np.asarray(model.logits([ids])[0])
    want = llama_reference.logits(config, weights, ids)
    assert difference(got, want) <= 3e-5
    session = model.new_session()
    bound = 0
    for at in (700, 900, 901, 1100, 1499):
        (_, bits), = go_on(session, ids[:at], 1, seed=at)
        token, = _gomlx.stream(model.new_session(), None, ids[:at], max_tokens=1, temperature=1.0, seed=at)
        assert np.float32(token.logprob).tobytes() == bits
        bound = max(bound, session.nbytes)
    per_block = 256 * model.info()["kv_bytes_per_token"]
    assert session.length == 1499
    assert bound <= per_block * -(-(100 + 512 + 256 + 2 * 255) // 256)       # the window, a pass, what is kept behind
    model.close()


# ---- forks and cuts ----

@pytest.mark.parametrize("name, kv_dtype", [("full", "float32"), ("window", "q8_0")])
def test_forks_that_diverge_are_independent_runs(folders, name, kv_dtype):
    model = load(folders, name, kv_dtype=kv_dtype)
    start, one, other = tokens(300), tokens(40, 1), tokens(300, 2)
    session = model.new_session()
    go_on(session, start, 1)
    assert session.length == 300
    active = mx.get_active_memory()
    fork = session.fork()
    assert mx.get_active_memory() == active and fork.length == 300 and fork.nbytes == session.nbytes
    first, second = go_on(session, start + one, 20), go_on(fork, start + other, 20)
    assert first == go_on(model.new_session(), start + one, 20)
    assert second == go_on(model.new_session(), start + other, 20)
    session.close()
    assert go_on(fork, start + other, 20) == second
    fork.close()
    with pytest.raises(ValueError, match="closed"):
        fork.fork()
    model.close()


def test_a_stream_holds_its_session(folders):
    model = load(folders, "full")
    session = model.new_session()
    stream = _gomlx.stream(session, None, tokens(5), max_tokens=5)
    next(stream)
    for call in (session.fork, session.save, lambda: session.nbytes, lambda: session.truncate(0)):
        with pytest.raises(RuntimeError, match="stream"):
            call()
    stream.close()
    assert session.fork().length == session.length
    model.close()


@pytest.mark.parametrize("name", ["full", "window"])
def test_truncating_tells_what_is_left_and_the_rest_is_computed_again(folders, name):
    model = load(folders, name)
    ids = tokens(1500)
    session = model.new_session()
    go_on(session, ids, 1)
    assert session.truncate(1480) == 1480
    left = session.truncate(400)
    assert left == (400 if name == "full" else 0) == session.length
    stream = _gomlx.stream(session, None, ids, max_tokens=10)
    got = [token.id for token in stream]
    assert stream.stats()["cached_tokens"] == left
    assert got == [token.id for token in _gomlx.stream(model.new_session(), None, ids, max_tokens=10)]
    model.close()


# ---- bytes ----

CONTINUE = """
import sys
import threading
import numpy as np
from gomlx import _gomlx
folder, kv_dtype, saved, ids = sys.argv[1:]
model = _gomlx.load_model(folder, kv_dtype=kv_dtype, threads=1)
session = model.restore_session(open(saved, "rb").read())
stream = _gomlx.stream(session, None, [int(i) for i in ids.split(",")], max_tokens=30, temperature=1.0, seed=5)
print([(token.id, np.float32(token.logprob).tobytes().hex()) for token in stream if token.id >= 0])
print(stream.stats()["cached_tokens"])
"""


@pytest.mark.parametrize("name, kv_dtype", [("full", "float32"), ("window", "bfloat16"), ("full", "q8_0")])
def test_a_saved_session_goes_on_in_another_process_with_the_same_bits(folders, tmp_path, name, kv_dtype):
    model = load(folders, name, kv_dtype=kv_dtype)
    ids = tokens(501)
    session = model.new_session()
    go_on(session, ids[:500], 1)
    saved = session.save()
    assert saved == session.save() and session.length == 500
    per_token = model.info()["kv_bytes_per_token"]
    assert len(saved) < 512 * (per_token + 4) + 1024 and (name == "window" or len(saved) > 500 * per_token)
    again = model.restore_session(saved)
    assert again.length == 500 and again.save() == saved
    want = [(i, bits.hex()) for i, bits in go_on(session, ids, 30)]
    path = tmp_path / "saved"
    path.write_bytes(saved)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-P", "-c", CONTINUE, folders[name][0], kv_dtype, str(path),
                           ",".join(map(str, ids))], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == [repr(want), "500"]
    model.close()


def test_damaged_or_strange_bytes_are_refused(folders):
    model, other = load(folders, "full"), load(folders, "window")
    halves = load(folders, "full", kv_dtype="float16")
    session = model.new_session()
    go_on(session, tokens(40), 1)
    saved = session.save()
    for at in range(0, len(saved), len(saved) // 37):
        damaged = bytearray(saved)
        damaged[at] ^= 4
        with pytest.raises(gomlx.Error):
            model.restore_session(damaged)
    for n in (0, 7, 8, 24, 100, len(saved) // 2, len(saved) - 1):
        with pytest.raises(gomlx.Error):
            model.restore_session(saved[:n])
    with pytest.raises(gomlx.Error):
        model.restore_session(saved + b"\0" * 8)
    for stranger, why in ((other, "another model's weights"), (halves, "shape, type")):
        with pytest.raises(gomlx.Error, match=why):
            stranger.restore_session(saved)
    with pytest.raises(gomlx.Error, match="format 1 of an earlier version"):
        model.restore_session(b"GMSSION1" + saved[8:])
    with pytest.raises(TypeError):
        model.restore_session("text")
    assert model.restore_session(model.new_session().save()).length == 0
    for one in (model, other, halves):
        one.close()
    with pytest.raises(ValueError, match="closed"):
        model.restore_session(saved)


@pytest.mark.parametrize("change", ["model.layers.1.mlp.down_proj.weight", "model.norm.weight", "rope_theta", "eps"])
def test_a_saved_session_is_one_models(tmp_path, folders, change):
    """Of the same shapes, but other weights, or other keys from the same ones."""
    _, config, weights = folders["full"]
    changed = {name: value * (0.5 if name == change else 1) for name, value in weights.items()}
    config = config | ({"rope_theta": 5e5} if change == "rope_theta" else {"rms_norm_eps": 1e-3} if change == "eps"
                       else {})
    checkpoints.save_safetensors(tmp_path / "other", config, changed)
    shutil.copytree(folders["full"][0], tmp_path / "same")
    model, other = load(folders, "full"), _gomlx.load_model(str(tmp_path / "other"))
    same = _gomlx.load_model(str(tmp_path / "same"), threads=1)
    session = model.new_session()
    go_on(session, tokens(40), 1)
    saved = session.save()
    assert go_on(same.restore_session(saved), tokens(41), 5) == go_on(session, tokens(41), 5)
    with pytest.raises(gomlx.Error, match="another model's weights"):
        other.restore_session(saved)
    for one in (model, other, same):
        one.close()


@pytest.mark.parametrize("case", ["qwen3_next", "qwen3_5"])
def test_a_saved_recurrent_session_can_be_cut_like_the_original(tmp_path, case):
    model = _gomlx.load_model(str(Golden().save(tmp_path, case)), threads=1)
    ids, more = (np.random.default_rng(seed).integers(0, VOCAB, n).tolist() for seed, n in ((3, 400), (4, 20)))
    session = model.new_session()
    go_on(session, ids[:300], 1)
    go_on(session, ids, 3)
    saved = session.save()
    restored = model.restore_session(saved)
    assert restored.save() == saved
    for at in (401, 399, 350, 299, 100):
        one, other = session.fork(), restored.fork()
        left = one.truncate(at)
        assert other.truncate(at) == left
        assert left > 0 or at < 299
        again = ids[:at] + more
        assert go_on(other, again, 8) == go_on(one, again, 8) == go_on(model.new_session(), again, 8)
    model.close()


# ---- int8 entries ----

@pytest.mark.parametrize("kv_dtype, bound", [("float16", 2e-3), ("bfloat16", 1.5e-2), ("q8_0", 2e-2)])
def test_narrow_entries_cost_their_rounding(folders, kv_dtype, bound):
    folder, config, weights = folders["full"]
    ids = tokens(600)
    want = llama_reference.logits(config, weights, ids)
    model = load(folders, "full", kv_dtype=kv_dtype)
    error = difference(np.asarray(model.logits([ids])[0]), want)
    assert 1e-6 < error < bound
    assert model.info()["kv_dtype"] == kv_dtype
    assert model.info()["kv_bytes_per_token"] == 2 * 2 * 64 * KV_BYTES[kv_dtype]
    model.close()


def test_int8_entries_need_heads_of_whole_blocks(tmp_path):
    checkpoints.save_safetensors(tmp_path, SMALL, checkpoints.random_weights(SMALL))      # heads of 16
    with pytest.raises(ValueError, match="q8_0.*32.*16"):
        _gomlx.load_model(str(tmp_path), kv_dtype="q8_0")
    with pytest.raises(ValueError, match="q4_0"):
        _gomlx.load_model(str(tmp_path), kv_dtype="q4_0")


# ---- a full context ----

def test_the_end_of_the_context_ends_the_stream_or_raises(folders):
    ids = tokens(90)
    model = load(folders, "full", context_length=100)
    stopped = list(_gomlx.stream(model.new_session(), None, ids, max_tokens=50))
    assert len(stopped) == 10 and stopped[-1].finish_reason == "context"
    model.close()
    model = load(folders, "full", context_length=100, context_policy="error")
    stream, got = _gomlx.stream(model.new_session(), None, ids, max_tokens=50), []
    with pytest.raises(ValueError, match="context of 100"):
        for token in stream:
            got.append(token)
    assert [token.id for token in got] == [token.id for token in stopped] and got[-1].finish_reason is None
    ten = list(_gomlx.stream(model.new_session(), None, ids, max_tokens=10))
    assert len(ten) == 10 and ten[-1].finish_reason == "length"
    with pytest.raises(ValueError, match="context of 100"):
        _gomlx.stream(model.new_session(), None, tokens(100), max_tokens=1)
    model.close()
    for wrong in ("cut", 3):
        with pytest.raises(ValueError, match="context_policy"):
            load(folders, "full", context_policy=wrong)


def test_a_rotating_context_goes_on_with_a_window(folders):
    """The same as a sliding window of that many: before the context is full, and long after."""
    folder, config, weights = folders["full"]
    ids = tokens(1000)
    model = load(folders, "full", context_length=100, context_policy="rotate")
    want = llama_reference.logits(config | {"sliding_window": 100}, weights, ids)
    assert difference(np.asarray(model.logits([ids])[0]), want) <= 3e-5
    session = model.new_session()
    stream = _gomlx.stream(session, None, ids[:10], max_tokens=700)
    got = list(stream)
    assert len(got) == 700 and got[-1].finish_reason == "length"
    assert session.nbytes <= 4 * 256 * model.info()["kv_bytes_per_token"]
    assert len(list(_gomlx.stream(model.new_session(), None, ids, max_tokens=3))) == 3
    model.close()


# ---- every architecture of the test data: shared keys, two head sizes, windows, recurrent layers ----

@pytest.fixture(params=["gemma2", "gemma3", "gemma4", "gpt_oss", "qwen3_5", "qwen3_moe"])
def known(request):
    path = os.path.join(request.getfixturevalue("shared"), "data", "models", request.param)
    model = _gomlx.load_model(path, threads=2)
    yield model
    model.close()


def test_forks_saved_sessions_and_prefixes_go_on_as_if_from_the_start(known):
    ids, other = tokens(501), tokens(30, 1)
    session = known.new_session()
    go_on(session, ids[:500], 1)
    fork, saved = session.fork(), session.save()
    restored = known.restore_session(saved)
    want = go_on(known.new_session(), ids, 20)
    assert go_on(session, ids, 20) == want == go_on(restored, ids, 20)
    assert go_on(fork, ids[:500] + other, 20) == go_on(known.new_session(), ids[:500] + other, 20)
    stream = _gomlx.stream(session, None, ids, max_tokens=20, temperature=1.0, seed=5)       # the same prompt again
    assert [token.id for token in stream] == [i for i, _ in want] and stream.stats()["cached_tokens"] >= 499
    left = session.truncate(300)
    assert left <= 300
    assert go_on(session, ids, 20) == want


def test_a_pass_that_is_cut_short_leaves_no_trace(known):
    ids = tokens(900)
    session = known.new_session()
    go_on(session, ids[:300], 2)
    for delay in (0.0, 0.002, 0.01, 0.03):
        stream = _gomlx.stream(session, None, ids, max_tokens=1)
        timer = threading.Timer(delay, stream.cancel)
        timer.start()
        list(stream)
        timer.join()
    assert go_on(session, ids, 10) == go_on(known.new_session(), ids, 10)
