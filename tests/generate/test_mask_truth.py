"""Masks against their definition: a token is allowed exactly when some answer goes on with it. Distributions under
masks, and streams under constraints that are preempted."""
import collections
import math
import random
import re

import numpy as np
import pytest

import gomlx
from gomlx._generation.constraints import Constraint, View

pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
PROMPT = "Once upon a time"
DRAWN = random.Random(300)


class Vocabulary:
    """Bytes, an end, and 43 longer tokens of the letters that these tests write."""
    tokens = [*(bytes([i]) for i in range(256)), b"<eos>",
              *sorted({bytes(DRAWN.choices(b"abc01", k=DRAWN.randint(2, 4))) for _ in range(60)})[:33],
              b'": ', b", ", b'"a', b'["', b'"]', b"tru", b"ue", b"false", b'{"', b"}}"]
    vocab_size = len(tokens)

    def all_token_bytes(self):
        return self.tokens

    def special_ids(self):
        return [256]

    def token_to_id(self, text):
        return None

    def encode_after(self, text):
        return []               # the view takes the longest tokens that fit


VIEW = View(Vocabulary(), Vocabulary.vocab_size, [256])


def pattern(rng, depth=3):
    """(a random regex, all texts that it matches)"""
    kind = rng.choice(["letters", "letters", "class", "both", "either", "maybe", "times"] if depth else ["letters"])
    if kind == "letters":
        text = "".join(rng.choice("abc01") for _ in range(rng.randint(1, 3)))
        return text, {text}
    if kind == "class":
        letters = rng.sample("abc01", 2)
        return f"[{''.join(letters)}]", set(letters)
    one, texts = pattern(rng, depth - 1)
    if kind == "maybe":
        return f"({one})?", texts | {""}
    if kind == "times" and len(texts) < 9:
        return f"({one}){{1,2}}", texts | {a + b for a in texts for b in texts}
    other, others = pattern(rng, depth - 1)
    if kind == "either" or len(texts) * len(others) > 400:
        return f"({one}|{other})", texts | others
    return f"({one})({other})", {a + b for a in texts for b in others}


def schema(rng, depth=2):
    """(a random schema, all texts of its documents)"""
    kind = rng.choice(["boolean", "enum", "array", "object"] if depth else ["boolean", "enum"])
    if kind == "boolean":
        return {"type": "boolean"}, {"true", "false"}
    if kind == "enum":
        values = rng.sample(["a", "ab", "c0", "cb"], 2)
        return {"enum": values}, {f'"{one}"' for one in values}
    inner, texts = schema(rng, depth - 1)
    if kind == "array" and len(texts) < 20:
        lists = {"[]", *(f"[{one}]" for one in texts), *(f"[{a}, {b}]" for a in texts for b in texts)}
        return {"type": "array", "items": inner, "maxItems": 2}, lists
    made = {"type": "object", "properties": {"a": inner, "b": {"type": "boolean"}}, "required": ["a"],
            "additionalProperties": False}
    return made, {f'{{"a": {one}{rest}}}' for one in texts for rest in ("", ', "b": true', ', "b": false')}


def check_walk(constraint, texts, rng):
    """One random walk, with the mask compared at each step; returns how many masks."""
    matcher, prefix, n = constraint.matcher(VIEW), b"", 0
    while True:
        left = [one[len(prefix):] for one in texts if one.startswith(prefix)]
        bits = matcher.compute_bitmask()
        allowed = {i for i in range(VIEW.vocab) if bits[i // 8] >> i % 8 & 1}
        truth = {i for i, one in enumerate(VIEW.tokens) if i != 256 and any(rest.startswith(one) for rest in left)}
        truth |= {256} if b"" in left else set()
        if allowed != truth:            # where one text is the only way on, its longest tokens are
            assert allowed and allowed < truth and b"" not in left and len({rest[0] for rest in left}) == 1
        n += 1
        token = rng.choice(sorted(allowed))
        if token == 256:
            assert prefix in texts
            return n
        prefix += VIEW.tokens[token]
        assert matcher.consume_token(token)


@pytest.mark.parametrize("n_walks", [60, pytest.param(2_000, marks=pytest.mark.slow)])
def test_a_token_is_allowed_exactly_when_an_answer_goes_on_with_it(n_walks):
    rng, n = random.Random(1), 0
    assert VIEW.vocab == 300
    for i in range(n_walks):
        if i % 5 == 0:                  # a form is walked through five times
            if i % 2:
                text, texts = pattern(rng)
                constraint = Constraint.regex(text)
                assert all(re.fullmatch(text, one) for one in texts)
            else:
                document, texts = schema(rng)
                constraint = Constraint.schema(document)
            texts = {one.encode() for one in texts}
        n += check_walk(constraint, texts, rng)
    assert n > 2 * n_walks


def test_strings_that_are_no_answer_are_refused_where_they_leave():
    """Random strings: as many bytes are taken as some answer begins with."""
    rng = random.Random(2)
    for _ in range(50):
        text, texts = pattern(rng)
        matcher = Constraint.regex(text).matcher(VIEW)
        for _ in range(8):
            tried = "".join(rng.choice("abc01") for _ in range(6)).encode()
            taken = max(n for n in range(7) if any(one.encode().startswith(tried[:n]) for one in texts))
            assert matcher.deep_copy().validate_tokens(list(tried)) == taken


# ---- distributions ----

@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        yield loaded


PLAIN, FILTERED = {"temperature": 1.0}, {"temperature": 1.7, "top_k": 4}


@pytest.mark.parametrize("sampling, n_draws", [
    (PLAIN, 1500), (FILTERED, 1500), pytest.param(PLAIN, 8000, marks=pytest.mark.slow)], ids=str)
def test_draws_have_the_models_distribution_over_what_is_allowed(model, sampling, n_draws):
    """Pearson's chi-square of the first tokens: the softmax of the allowed logits, after the samplers. Allowed is what
    begins one of the texts."""
    texts = [" the", " a", " there", " her", " cat", " very", " it"]
    ids = [i for i in range(model.vocab_size) if i not in model.tokenizer.special_ids()
           and (token := model.tokenizer.token_bytes(i)) and any(one.encode().startswith(token) for one in texts)]
    assert len(ids) > len(texts)
    logits = np.asarray(model.logits(PROMPT))[-1].astype(np.float64)[ids] / sampling["temperature"]
    keep = np.sort(logits)[-sampling.get("top_k", len(ids)):][0]
    share = np.where(logits >= keep, np.exp(logits - logits.max()), 0)
    share /= share.sum()
    drawn = model.generate(PROMPT, n=n_draws, choice=texts, max_tokens=1, seed=11,
                           sampling=gomlx.Sampling(**sampling)).read(progress=False)
    found = collections.Counter(tuple(one.tokens) for one in drawn)
    counts = np.array([found[i,] for i in ids])
    assert counts.sum() == n_draws and not counts[share == 0].any()
    wanted = n_draws * share
    many = wanted >= 5                                      # the others are one cell
    wanted, counts = (np.array([*one[many], one[~many].sum()]) for one in (wanted, counts))
    chi = float((((counts - wanted) ** 2)[wanted > 0] / wanted[wanted > 0]).sum())
    freedom = int((wanted > 0).sum()) - 1
    assert freedom >= 3
    assert chi < freedom + 5 * math.sqrt(2 * freedom), (chi, freedom)       # beyond the 0.9999 quantile


# ---- schedulers ----

def test_sixteen_forms_preempted_and_cached_have_their_bits(model):
    schemas = [{"type": "object", "properties": {f"k{i}": {"type": "string", "minLength": 160 + i, "maxLength": 190},
                                                 "n": {"type": "integer", "maximum": i}},
                "required": [f"k{i}"], "additionalProperties": False} for i in range(16)]
    common = PROMPT + ", there was a little girl named Lily. " * 18
    options = [{"schema": one, "max_tokens": 70, "temperature": 1.3, "seed": i} for i, one in enumerate(schemas)]
    alone = [model.generate(common, **one).read() for one in options]
    blocks = 6 * 256 * int(model.info["kv_bytes_per_token"])
    with model.scheduler(max_streams=16, kv_bytes=blocks) as scheduler:
        made = [one.read() for one in [scheduler.generate(common, **one) for one in options]]
        stats = scheduler.stats
    assert stats["preempted"] > 0 and stats["cached_tokens"] > 0
    assert [one.tokens for one in made] == [one.tokens for one in alone]
    assert [one.parsed for one in made] == [one.parsed for one in alone]
    assert [one.logprobs for one in made] == [one.logprobs for one in alone]
