"""Masks: the bits of what a stream may draw next, given by its owner before each token."""
import math

import numpy as np
import pytest

import gomlx
from gomlx import _gomlx

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        yield loaded


def bits_of(ids, vocab):
    flags = np.zeros((vocab + 31) // 32 * 32, bool)
    flags[ids] = True
    return np.packbits(flags, bitorder="little").tobytes()


def random_mask(vocab, share, seen=None):
    """A mask that depends on how many ids there are; `seen` gets the ids that were allowed each time."""
    def mask(ids):
        rng = np.random.default_rng([len(ids), vocab])
        allowed = np.flatnonzero(rng.random(vocab) < share)
        if seen is not None:
            seen.append(set(allowed.tolist()))
        return bits_of(allowed, vocab)
    return mask


def processor_of(mask, vocab):
    def process(ids, logits):
        flags = np.unpackbits(np.frombuffer(mask(ids), np.uint8), bitorder="little")[:vocab].astype(bool)
        np.asarray(logits)[~flags] = -np.inf
    return process


def stream(model, ids, **options):
    return _gomlx.stream(model.session(), model.tokenizer, ids, **{"max_tokens": 24} | options)


@pytest.mark.parametrize("share", [0.002, 0.05, 0.9])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 0.8, "top_k": 7, "seed": 4},
                                      {"temperature": 1.5, "top_p": 0.7, "repetition_penalty": 1.3, "seed": 5}],
                         ids=str)
def test_a_mask_is_logits_of_minus_infinity(model, sampling, share):
    ids, vocab, seen = model.encode(PROMPT), model.vocab_size, []
    masked = list(stream(model, ids, mask=random_mask(vocab, share, seen), **sampling))
    processed = list(stream(model, ids, processors=[processor_of(random_mask(vocab, share), vocab)], **sampling))
    assert [one.id for one in masked] == [one.id for one in processed]
    assert [one.logprob for one in masked] == [one.logprob for one in processed]
    assert len(masked) == 24 and all(one.id in allowed for one, allowed in zip(masked, seen, strict=True))


def test_log_probabilities_are_the_models_own(model):
    ids, vocab = model.encode(PROMPT), model.vocab_size
    tokens = list(stream(model, ids, mask=random_mask(vocab, 0.01), top_logprobs=2, temperature=1.0, seed=1))
    made = ids + [one.id for one in tokens]
    rows = np.asarray(model.logits(made[:-1]))[len(ids) - 1:].astype(np.float64)
    want = rows - np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True)) - rows.max(1, keepdims=True)
    np.testing.assert_allclose([one.logprob for one in tokens], [row[one.id] for row, one in zip(want, tokens,
                               strict=True)], atol=1e-4)
    assert all(one.top_logprobs[0][1] >= one.logprob for one in tokens)


def test_none_allows_all_and_processors_come_with_masks(model):
    ids, vocab = model.encode(PROMPT), model.vocab_size
    assert [one.id for one in stream(model, ids, mask=lambda ids: None)] == [one.id for one in stream(model, ids)]
    only = [*range(40, 60)]

    def likes(ids, logits):
        np.asarray(logits)[[10, 47]] = 1e4
    tokens = list(stream(model, ids, mask=lambda ids: bits_of(only, vocab), processors=[likes]))
    assert {one.id for one in tokens} == {47}


def test_the_mask_sees_the_ids_so_far(model):
    ids, lengths = model.encode(PROMPT), []

    def mask(seen):
        lengths.append(list(seen))
    tokens = [one.id for one in stream(model, ids, mask=mask, max_tokens=4)]
    assert lengths == [ids + tokens[:i] for i in range(4)]


def test_stop_ids_end_a_masked_stream(model):
    ids, vocab = model.encode(PROMPT), model.vocab_size
    tokens = list(stream(model, ids, mask=lambda ids: bits_of([77], vocab), stop_ids=[77]))
    assert [(one.id, one.finish_reason) for one in tokens] == [(-1, "stop")]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}], ids=str)
def test_an_empty_mask_ends_the_stream_with_an_error(model, sampling):
    ids, vocab = model.encode(PROMPT), model.vocab_size
    made = stream(model, ids, mask=lambda seen: bits_of([5] if len(seen) < len(ids) + 2 else [], vocab), **sampling)
    assert [next(made).id, next(made).id] == [5, 5]
    with pytest.raises(ValueError, match=f"the mask allows none of {vocab}"):
        next(made)
    assert next(made, None) is None


def test_a_batch_gives_the_tokens_of_single_streams(model):
    vocab, prompts = model.vocab_size, [model.encode(PROMPT + " there" * i) for i in range(5)]
    options = [{"mask": random_mask(vocab, 0.01 * (i + 1)), "temperature": 0.5 * i, "seed": i} for i in range(5)]
    alone = [[one.id for one in stream(model, ids, **each)] for ids, each in zip(prompts, options, strict=True)]
    decoder, streams = model._engine.new_decoder(), []
    for ids, each in zip(prompts, options, strict=True):
        streams.append(stream(model, ids, **each))
        decoder.add(streams[-1])
    together = [[] for _ in prompts]
    while (event := decoder.step()) is not None:
        together[streams.index(event[0])].append(event[1].id)
    assert together == alone


def failing(ids):
    raise StopIteration


@pytest.mark.parametrize("mask, error, text", [
    (5, TypeError, "mask: expected a callable or None, not <class 'int'>"),
    (lambda ids: b"1234", ValueError, "a mask has 4 bytes, expected"),
    (lambda ids: memoryview(bytes(10**4))[1:], ValueError, "a mask has 9999 bytes"),
    (lambda ids: "all", TypeError, "a bytes-like object is required"),
    (lambda ids: math.sqrt(-1), ValueError, "math domain error|expected a nonnegative input"),
    (failing, RuntimeError, "a mask raised StopIteration"),
])
def test_bad_masks(model, mask, error, text):
    with pytest.raises(error, match=text):
        list(stream(model, model.encode(PROMPT), mask=mask))
