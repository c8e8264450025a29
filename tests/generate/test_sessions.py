"""Going on from state: a session's ids, empty prompts, append and reset, steps of one's own, and the errors by name."""
import os
import pickle
import struct
import threading
import time

import numpy as np
import pytest
from architectures import VOCAB, Golden

import gomlx
import gomlx.core as mx
from gomlx import _gomlx

STORY = "Once upon a time"


@pytest.fixture(scope="module")
def model():
    with gomlx.load(prompt_cache=False) as made:
        yield made


@pytest.fixture
def session(model):
    made = model.session()
    yield made
    made.close()


def greedy(model, prompt, n=10, **options):
    return model.generate(prompt, max_tokens=n, temperature=0, ignore_eos=True, **options).read()


def bits(result):
    return result.tokens, np.float32(result.logprobs).tobytes()


# ---- ids ----

def test_a_session_knows_its_ids(model, session):
    assert session.ids == []
    prompt = model.tokenizer.encode_prompt(STORY)
    stream = model.generate(STORY, max_tokens=10, temperature=0, session=session)
    assert session.ids == prompt
    first = next(stream)
    assert session.ids == [*prompt, first.id]
    result = stream.read()
    ids = prompt + result.tokens
    assert session.ids == ids and session.length == len(ids) - 1        # the last one is computed when it goes on
    fork, restored = session.fork(), model.restore_session(session.save())
    assert fork.ids == restored.ids == ids and fork.length == restored.length == session.length
    assert session.truncate(6) == 6 and session.ids == ids[:6]
    assert fork.truncate(len(ids)) == len(ids) - 1 and fork.ids == ids
    for wrong in (-1, len(ids) + 1):
        with pytest.raises(ValueError, match=f"truncate to {wrong} tokens, expected 0 to {len(ids)}"):
            fork.truncate(wrong)
    assert greedy(model, "", session=fork).tokens == greedy(model, ids).tokens
    assert greedy(model, [], session=restored).tokens == greedy(model, ids).tokens


def test_a_stop_token_is_not_among_the_ids(model, session):
    result = model.chat([{"role": "user", "content": "Tell me a story about a dog."}], temperature=0, max_tokens=1000,
                        session=session).read()
    assert isinstance(result.stop, int)
    assert session.ids[-len(result.tokens):] == result.tokens
    again = model.generate("", session=session, max_tokens=5, temperature=0).read()
    assert (again.tokens, again.stop) == ([], result.stop)


def test_a_prompt_that_was_cut_short_is_still_the_sessions(model, session):
    ids = np.random.default_rng(0).integers(20, 400, 1500).tolist()
    stream = model.generate(ids, session=session, timeout=1e-6)
    assert stream.read().finish_reason == "timeout"
    assert session.ids == ids and session.length < len(ids)
    assert bits(greedy(model, "", session=session)) == bits(greedy(model, ids))


def test_ids_while_another_thread_computes(model, session):
    ids, seen, done = np.random.default_rng(0).integers(20, 400, 1900).tolist(), [], threading.Event()

    def read():
        model.generate(ids, max_tokens=100, session=session, temperature=0, ignore_eos=True).read()
        done.set()

    thread = threading.Thread(target=read)
    thread.start()
    while not done.is_set():
        try:
            seen.append(len(session.ids))
        except ValueError as error:
            assert "in use by another thread" in str(error)
        time.sleep(0.001)
    thread.join()
    assert session.ids[:1900] == ids and len(session.ids) == 2000 and seen == sorted(seen)


def test_saved_before_sessions_knew_more_than_their_cache(model, session):
    """Format 2 has all ids in the cache, and no word for their number there."""
    ids = model.tokenizer.encode_prompt(STORY)
    greedy(model, ids, 0, session=session)
    saved = session.save()
    magic, fingerprint, n, checksum, length = struct.unpack_from("<8sQQQQ", saved)
    assert magic == b"GMSSION3" and n == length == len(ids)
    old = struct.pack("<8sQQQ", b"GMSSION2", fingerprint, n, checksum) + saved[40:]
    restored = model.restore_session(old)
    assert restored.ids == ids and restored.length == len(ids) and restored.save() == saved
    for length in (len(ids) - 1, len(ids) + 1, 2**63):
        with pytest.raises(gomlx.Error):
            model.restore_session(saved[:32] + struct.pack("<Q", length) + saved[40:])


def test_a_bundle_has_the_ids(model, session, tmp_path):
    greedy(model, STORY, session=session)
    model.bundle(session).save(tmp_path / "b.json")
    again = gomlx.StateBundle.load(tmp_path / "b.json").restore(model)
    assert again.ids == session.ids
    assert gomlx.StateBundle.load(tmp_path / "b.json").prompt["token_count"] == len(session.ids)
    assert bits(greedy(model, "", session=again)) == bits(greedy(model, "", session=session))


# ---- empty prompts ----

KINDS = ["llama", "mistral", "gemma3", "gemma4", "gpt_oss", "qwen3_next", "qwen3_5"]


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("case", KINDS)
def test_going_on_is_the_same_as_never_having_stopped(tmp_path, case, n):
    """Recurrent, windowed and shared caches: in pieces of n tokens, by steps, from a fork and from bytes, bit for
    bit."""
    model = _gomlx.load_model(str(Golden().save(tmp_path, case)), threads=1)
    ids = np.random.default_rng(1).integers(0, VOCAB, 40).tolist()

    def run(session, prompt, count):
        return [(one.id, np.float32(one.logprob).tobytes()) for one in
                _gomlx.stream(session, None, prompt, max_tokens=count) if one.id >= 0]

    want = run(model.new_session(), ids, 21)
    session = model.new_session()
    got = run(session, ids, n)
    while len(got) < 21:
        session = {0: session, 1: session.fork(), 2: model.restore_session(session.save())}[len(got) // n % 3]
        got += run(session, session.ids, min(n, 21 - len(got)))
    assert got == want
    stepped = model.new_session()
    logits = np.asarray(stepped.step(ids))
    for token, _ in want:
        assert logits.argmax() == token
        logits = np.asarray(stepped.step(token))
    np.testing.assert_array_equal(logits, np.asarray(model.logits([stepped.ids])[0])[-1])
    np.testing.assert_array_equal(logits, np.asarray(stepped.step([])))
    assert run(stepped, stepped.ids, 5) == run(model.new_session(), ids + [token for token, _ in want], 5)
    model.close()


@pytest.mark.parametrize("options", [{"kv_dtype": "q8_0"}, {"context_length": 64, "context_policy": "rotate"}])
def test_going_on_with_small_caches_and_rotating_contexts(options):
    with gomlx.load(prompt_cache=False, **options) as model:
        want = greedy(model, STORY, 100)
        session = model.session()
        got = greedy(model, STORY, 50, session=session)
        for _ in range(5):
            more = greedy(model, "", 10, session=session)
            got.tokens.extend(more.tokens)
            got.logprobs.extend(more.logprobs)
        assert bits(got) == bits(want)
        assert session.ids == model.tokenizer.encode_prompt(STORY) + want.tokens


def test_text_goes_on_too(model, session):
    whole, text = greedy(model, STORY, 40).text, ""
    for i in range(20):
        text += greedy(model, "" if i else STORY, 2, session=session).text
    assert text == whole


def test_an_empty_prompt_without_state(model, session):
    for prompt, options in (([], {}), ("", {"append": True}), ([], {"reset": True})):
        with pytest.raises(gomlx.KvStateNotAvailable, match="prompt is empty, and so is the session"):
            greedy(model, prompt, session=session, **options)
    with pytest.raises(ValueError, match="the prompt is empty; a model needs"):
        greedy(model, "")
    assert session.ids == []


# ---- prompts beside what the session has ----

def test_a_prompt_that_is_not_the_sessions_is_an_error(model, session):
    greedy(model, STORY, session=session)
    ids, length = session.ids, session.length
    for wrong in ("The dog", [*ids[:7], 5], STORY + " two cats"):
        with pytest.raises(gomlx.KvStateNotAvailable, match="append=True.*reset=True"):
            greedy(model, wrong, session=session)
        assert (session.ids, session.length) == (ids, length)
    assert isinstance(model.error, gomlx.KvStateNotAvailable)
    result = greedy(model, "The dog", session=session, reset=True)
    assert bits(result) == bits(greedy(model, "The dog")) and session.ids[-10:] == result.tokens
    batch = model.generate_batch(["Tom", "Tom"], options=[{"session": session}, {}], max_tokens=3, temperature=0).read()
    assert isinstance(batch[0].error, gomlx.KvStateNotAvailable) and batch[1].error is None


def test_beginnings_of_what_the_session_has_go_back(model, session):
    first = greedy(model, STORY, session=session)
    again = greedy(model, STORY, session=session)
    assert bits(again) == bits(first) and again.cached_tokens == again.prompt_tokens - 1
    ids = session.ids
    longer = greedy(model, [*ids, 5], session=session)
    assert longer.cached_tokens == len(ids) - 1 and bits(longer) == bits(greedy(model, [*ids, 5]))


def test_texts_are_alike_whatever_tokens_they_are_cut_into(model, session):
    pieces = [model.tokenizer.token_to_id(one) for one in "Once"]
    assert None not in pieces and pieces != model.tokenizer.encode("Once")
    greedy(model, pieces, 0, session=session)
    result = greedy(model, STORY, session=session)
    assert result.cached_tokens == 0 and bits(result) == bits(greedy(model, STORY))
    session.truncate(0)
    text = STORY + greedy(model, STORY, session=session).text
    assert bits(greedy(model, text + " and", session=session)) == bits(greedy(model, text + " and"))


def test_append_adds_to_what_the_session_has(model, session):
    first = greedy(model, STORY, session=session, append=True)          # of an empty session: as without
    ids = session.ids
    assert first.tokens == greedy(model, STORY).tokens
    result = greedy(model, " and a cat", session=session, append=True)
    added = model.tokenizer.bare(" and a cat")
    assert session.ids == ids + added + result.tokens and result.cached_tokens == len(ids) - 1
    assert bits(result) == bits(greedy(model, ids + added))
    one, two = model.generate([7, 8], session=session.fork(), append=True, n=2, max_tokens=3, temperature=0).read()
    assert bits(one) == bits(two) == bits(greedy(model, [*session.ids, 7, 8], 3))
    samples = session.fork()
    ids = session.ids
    model.generate(" one", session=samples, append=True, n=2, max_tokens=3).read()
    assert samples.ids == ids + model.tokenizer.bare(" one")
    for wrong in ({"append": True}, {"reset": True}):
        with pytest.raises(ValueError, match="there is no session"):
            greedy(model, STORY, **wrong)
    with pytest.raises(ValueError, match="at most one of the two"):
        greedy(model, STORY, session=session, append=True, reset=True)
    with pytest.raises(TypeError, match="session: expected"):
        greedy(model, STORY, session=5)


def test_a_session_takes_texts_and_ids(model, session):
    tokenizer = model.tokenizer
    assert session.append(STORY) == 4 and session.length == 4
    assert session.append("") == 0 and session.append([]) == 0
    assert session.append(" there") == len(tokenizer.bare(" there"))
    assert session.append([5, 6]) == 2
    end = tokenizer.token_to_id("<|im_end|>")
    assert session.append("<|im_end|>") == 1
    ids = tokenizer.encode_prompt(STORY) + tokenizer.bare(" there") + [5, 6, end]
    assert session.ids == ids and session.length == len(ids)
    assert bits(greedy(model, "", session=session)) == bits(greedy(model, ids))
    for wrong in (5, None, [10**6], ["a"]):
        with pytest.raises((TypeError, ValueError)):
            session.append(wrong)
    assert session.ids[:len(ids)] == ids and len(session.ids) == len(ids) + 10
    with pytest.raises(ValueError, match="no tokenizer"):
        bare = _gomlx.load_model(model.info["path"], threads=1)
        bare.new_session().append("Once")


@pytest.mark.parametrize("name", ["fable", "llama3", "mistral", "gemma3", "qwen3", "gpt_oss"])
def test_appended_texts_come_without_bos_and_without_spaces(shared, name):
    tok = gomlx.Tokenizer.from_file(os.path.join(shared, "data", "models", name))
    for before, after in (("Hello", "World"), ("Hello", " World"), ("a ", "b"), ("x", "\ny"), ("x", "."), ("x", "  y"),
                          ("un", "believable")):
        ids = tok.encode_prompt(before) + tok.encode_after(after)
        start = tok.encode_prompt("")
        assert tok.decode(ids[len(start):]) == before + after
    assert tok.encode_after("") == []


# ---- conversations ----

def test_new_turns_alone_go_on_with_a_conversation(model, session):
    turns = [{"role": "user", "content": "Tell me a story about a cat."}]
    first = model.chat(turns, session=session, seed=3, max_tokens=1000).read()
    ids, new = session.ids, [{"role": "user", "content": "And then?"}]
    second = model.chat(new, session=session, append=True, max_tokens=10, temperature=0).read()
    assert second.cached_tokens >= len(ids) - 1 and session.ids[:len(ids)] == ids
    whole = model.tokenizer.decode(session.ids[:-10], False)
    assert whole == model.tokenizer.apply_chat_template([*turns, {"role": "assistant", "content": first.text}, *new])
    assert second.tokens == greedy(model, session.ids[:-10]).tokens


def test_all_messages_may_differ_from_what_was_said(model, session):
    """An answer that is told otherwise is computed from there; another conversation is an error."""
    turns = [{"role": "user", "content": "Tell me a story about a cat."}, {"role": "assistant", "content": "No."},
             {"role": "user", "content": "Why?"}]
    model.chat(turns[:1], session=session, max_tokens=20, temperature=0).read()
    result = model.chat(turns, session=session, max_tokens=5, temperature=0).read()
    assert 10 < result.cached_tokens < result.prompt_tokens - 5
    assert bits(result) == bits(model.chat(turns, max_tokens=5, temperature=0).read())
    ids = session.ids
    for other in ("And then?", "user", "s"):            # also texts that the template's own words hold
        with pytest.raises(gomlx.KvStateNotAvailable, match="another conversation"):
            model.chat([{"role": "user", "content": other}], session=session)
    for options in ({"n": 2}, {}):
        batch = model.chat([{"role": "user", "content": "Hi"}], session=session, reset=True, max_tokens=2,
                           **options).read()
        assert all(one.error is None for one in (batch if options else [batch]))
    assert session.ids != ids
    batch = model.generate_batch([turns], options=[{"session": session, "append": True}], max_tokens=2).read()
    assert batch[0].error is None and batch[0].cached_tokens > 5


def test_templates_that_leave_answers_out():
    from gomlx._generation import chat
    with pytest.raises(ValueError, match="leaves out answers"):
        chat.turns_after_an_answer(lambda messages: messages[-1]["content"], [{"role": "user", "content": "x"}])


# ---- steps ----

def test_steps_are_a_decode_loop_of_ones_own(model, session):
    ids = model.tokenizer.encode_prompt(STORY)
    want, got = greedy(model, STORY, 20), []
    logits = session.step(ids)
    assert logits.shape == (model.vocab_size,) and logits.dtype == mx.float32
    while len(got) < 20:
        got.append(int(np.asarray(logits).argmax()))
        logits = session.step(got[-1])
    assert got == want.tokens and session.ids == ids + got and session.length == len(ids) + 20
    np.testing.assert_array_equal(np.asarray(session.step(np.int32([5, 6]))),
                                  np.asarray(model.logits([*ids, *got, 5, 6]))[-1])


def test_steps_that_cannot_be(model, session):
    with pytest.raises(gomlx.KvStateNotAvailable):
        session.step([])
    session.step([5, 6, 7])
    for wrong, kind in (([5, 10**6], ValueError), (-1, ValueError), ("text", TypeError), (None, TypeError),
                        (2.5, TypeError)):
        with pytest.raises(kind):
            session.step(wrong)
        assert session.ids == [5, 6, 7]
    with model.generate([5, 6, 7, 8], session=session, max_tokens=5) as stream:
        next(stream)
        with pytest.raises(RuntimeError, match="another stream"):
            session.step(5)
    session.close()
    for call in (lambda: session.step(5), lambda: session.append([5]), lambda: session.ids):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_a_session_that_is_closed_while_it_computes():
    with gomlx.load(prompt_cache=False) as model:
        ids = np.random.default_rng(0).integers(20, 400, 1500).tolist()
        for delay in (0.0, 0.002, 0.01, 0.03):
            session, raised = model.session(), []

            def work(session=session, raised=raised):
                try:
                    session.step(ids)
                    session.step(ids[:100])
                except ValueError as error:
                    raised.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            time.sleep(delay)
            session.close()
            thread.join()
            with pytest.raises(ValueError, match="closed"):
                session.step(5)


# ---- memory ----

def test_the_peak_of_a_generation_is_its_own(model, session):
    """Whatever the process used before, at the same time, or counts for itself."""
    ids = np.random.default_rng(0).integers(20, 400, 1500).tolist()
    short, long = greedy(model, STORY, 2), greedy(model, ids, 2)
    kept = mx.zeros((4 << 20,))
    mx.eval(kept)
    mx.reset_peak_memory()
    before = mx.get_peak_memory()
    large = mx.zeros((16 << 20,)) + 1
    mx.eval(large)
    del large
    peak = mx.get_peak_memory()
    again = greedy(model, STORY, 2)
    assert mx.get_peak_memory() == peak > before + (64 << 20)
    del kept
    last = greedy(model, STORY, 2)
    assert last.peak_memory_bytes < again.peak_memory_bytes < peak
    assert 0 <= again.peak_memory_bytes - last.peak_memory_bytes - (16 << 20) < 1 << 20
    assert long.peak_memory_bytes > short.peak_memory_bytes + 1500 * model.info["kv_bytes_per_token"]
    assert short.peak_memory_bytes >= mx.get_active_memory()
    one, two = model.generate_batch([STORY, ids], max_tokens=2, temperature=0).read()
    assert two.peak_memory_bytes >= long.peak_memory_bytes and one.peak_memory_bytes >= short.peak_memory_bytes


# ---- errors ----

def test_a_context_that_is_too_short_says_its_numbers(tmp_path):
    with gomlx.load(context_length=32, prompt_cache=False) as model:
        with pytest.raises(gomlx.ContextLengthExceeded, match="40 tokens.*context of 32") as caught:
            model.generate(list(range(10, 50)))
        error = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(error, ValueError) and (error.prompt_tokens, error.context_length) == (40, 32)
        session = model.session()
        assert session.append(list(range(10, 42))) == 32                # as many as there are
        for call in (lambda: greedy(model, "", session=session), lambda: session.step(5), lambda: session.append([5])):
            with pytest.raises(gomlx.ContextLengthExceeded, match="context of 32"):
                call()
        assert len(session.ids) == session.length == 32
        np.testing.assert_array_equal(np.asarray(session.step([])), np.asarray(model.logits(session.ids))[-1])
        for call in (lambda: model.logits(list(range(10, 50))), lambda: model.score([5] * 33),
                     lambda: model.classify([[5] * 32], labels=[" one of the dogs"]), lambda: model.inspect([5] * 33)):
            with pytest.raises(gomlx.ContextLengthExceeded) as caught:
                call()
            assert caught.value.prompt_tokens > caught.value.context_length == 32
    with gomlx.load(context_length=32, context_policy="error", prompt_cache=False) as model:
        stream = model.generate(STORY, ignore_eos=True)
        with pytest.raises(gomlx.ContextLengthExceeded, match="is full"):
            stream.read()


def test_a_model_that_is_not_supported_names_the_way_out(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "hidden_size": 8}')
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    with pytest.raises(gomlx.ModelNotSupported, match='"mamba" is not supported.*llama.*backend="mlx_lm"') as caught:
        gomlx.load(tmp_path)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, NotImplementedError)


def test_the_models_error_after_a_timeout_and_cancel(model):
    def ended(stream, cancel=False):
        if cancel:
            next(stream)
            stream.cancel()
        stream.read()
        return model.error

    assert isinstance(ended(model.generate(STORY, timeout=1e-6)), TimeoutError)
    assert isinstance(ended(model.generate(STORY), True), gomlx.Cancelled)
    assert ended(model.generate(STORY, max_tokens=2)) is None
    assert isinstance(ended(model.generate_batch([STORY] * 2, timeout=1e-6)), TimeoutError)
    assert isinstance(ended(model.generate_batch([STORY] * 2), True), gomlx.Cancelled)
    assert ended(model.generate_batch([STORY] * 2, max_tokens=2)) is None
    old = model.generate(STORY)
    next(old)
    old.cancel()
    list(old)
    new = model.generate(STORY, max_tokens=1)
    new.read()
    old.close()                                          # what ended before is not told again
    assert model.error is None
    for stream in (model.generate(STORY), model.generate_batch([STORY] * 2)):
        next(stream)
        stream.close()                                   # by the caller's own wish
        assert model.error is None
