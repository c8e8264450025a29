"""Samplers against their definitions (sampling_reference.py), draws against distributions, and what follows from them
in a generation: processors, log probabilities, seeds."""
import math
import threading

import numpy as np
import pytest
import sampling_reference as reference

import gomlx
import gomlx.core
from gomlx import _gomlx
from gomlx._generation.sampling import ORDERS, Sampling

DRAWS = 100_000


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        yield loaded


def logits_of(vocab, seed=0, scale=2.5):
    return (np.random.default_rng([seed, vocab]).standard_normal(vocab) * scale).astype(np.float32)


def probabilities(logits, ids=(), breakers=(), **options):
    return np.asarray(gomlx.sample_probabilities(logits, ids, dry_sequence_breakers=breakers, **options))


def check(logits, ids=(), n_prompt=None, breakers=(), **options):
    """The engine's distribution is the definition's."""
    got = probabilities(logits, ids, breakers, n_prompt=n_prompt, **options)
    want = reference.probabilities(logits, Sampling(**options), ids, n_prompt, breakers)
    assert ((got > 1e-17) == (want > 1e-17)).all()          # what is less likely is never drawn
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-12)
    return got


# ---- each sampler ----

ONE_BY_ONE = [
    {}, {"temperature": 0.5}, {"temperature": 3.0}, {"temperature": 0.0},
    {"top_k": 1}, {"top_k": 3}, {"top_k": 40}, {"top_k": 10**6},
    {"top_p": 0.01}, {"top_p": 0.5}, {"top_p": 0.9}, {"top_p": 0.999},
    {"min_p": 0.02}, {"min_p": 0.5}, {"min_p": 1.0},
    {"typical_p": 0.05}, {"typical_p": 0.5}, {"typical_p": 0.95},
    {"top_n_sigma": 0.5}, {"top_n_sigma": 1.0}, {"top_n_sigma": 3.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05}, {"xtc_probability": 1.0, "xtc_threshold": 0.001},
    {"mirostat_tau": 0.5}, {"mirostat_tau": 2.0}, {"mirostat_tau": 5.0},
]


@pytest.mark.parametrize("vocab", [1, 2, 3, 8, 17, 100, 257, 1000, 5003])
@pytest.mark.parametrize("options", ONE_BY_ONE, ids=str)
def test_a_sampler_keeps_what_its_definition_keeps(options, vocab):
    for seed in range(3):
        check(logits_of(vocab, seed), **({"temperature": 1.0} | options))


@pytest.mark.parametrize("options", ONE_BY_ONE, ids=str)
def test_flat_and_steep_distributions(options):
    options = {"temperature": 1.0} | options
    for logits in (logits_of(700, scale=0.01), logits_of(700, scale=60), -np.arange(500, dtype=np.float32) / 9,
                   np.arange(500, dtype=np.float32) / 9):
        check(logits, **options)


@pytest.mark.parametrize("n", [1, 5, 100, 3000])
def test_equal_logits_are_cut_by_their_ids(n):
    z = np.zeros(n, np.float32)
    for k in (1, n // 3 or 1, n):
        assert np.flatnonzero(probabilities(z, temperature=1.0, top_k=k)).tolist() == list(range(k))
        share = (k - 0.5) / n
        assert np.flatnonzero(probabilities(z, temperature=1.0, top_p=share)).tolist() == list(range(k))
        assert np.flatnonzero(probabilities(z, temperature=1.0, typical_p=share)).tolist() == list(range(k))
    assert gomlx.sample(z, n=3) == [0] * 3
    assert gomlx.sample(np.repeat(np.float32([1, 2, 2]), 5), temperature=0) == [5]


def test_large_vocabularies():
    """Selection by sampled pivots, at the sizes that are in use."""
    z = logits_of(262_144)
    for options in ({"top_k": 40}, {"top_k": 100_000}, {"top_p": 0.9}, {"top_p": 0.9, "temperature": 4.0},
                    {"typical_p": 0.9}, {"top_k": 64, "top_p": 0.95, "min_p": 0.05}):
        check(z, **({"temperature": 1.0} | options))
    for sorted_z in (np.sort(z), np.sort(z)[::-1].copy()):
        check(sorted_z, temperature=1.0, top_k=1000, top_p=0.9)


@pytest.mark.parametrize("vocab", [4095, 4096, 4097, 65_537, 151_936])
def test_blocks_of_candidates(vocab):
    """Vocabularies of one block and of several: few, most and nearly all stay, whatever the next sampler finds."""
    for z in (logits_of(vocab), logits_of(vocab, scale=0.01), logits_of(vocab, scale=30)):
        for options in ({"top_k": 300}, {"top_k": vocab - 1}, {"top_p": 0.3}, {"top_p": 0.99},
                        {"typical_p": 0.5}, {"top_n_sigma": 1.0, "top_p": 0.7}, {"min_p": 0.3, "top_k": 5000},
                        {"xtc_probability": 1.0, "xtc_threshold": 0.001, "top_k": 50},
                        {"xtc_probability": 1.0, "xtc_threshold": 1e-5}, {"mirostat_tau": 4.0},
                        {"temperature": 2.0, "top_p": 0.5, "samplers": "llama.cpp"}):
            check(z, **({"temperature": 1.0} | options))


def test_many_equal_logits():
    """The cut falls among ties, or beside them: of a few distinct values, and of one that most have."""
    random = np.random.default_rng(3)
    few = random.choice(np.float32([0, 1, 2]), 20_000, p=[0.6, 0.3, 0.1])
    most = np.where(random.random(20_000) < 0.99, 0, random.standard_normal(20_000)).astype(np.float32)
    for z in (few, most, -most, np.round(logits_of(30_000) * 4) / 4):
        order = reference.descending(z)
        for k in (1, 255, 256, 257, 2000, 10_001, len(z) - 1):
            kept = np.flatnonzero(probabilities(z, temperature=1.0, top_k=k))
            assert kept.tolist() == sorted(order[:k].tolist())
        for p in (0.1, 0.5, 0.9):
            kept = np.flatnonzero(probabilities(z, temperature=1.0, top_p=p))
            assert kept.tolist() == sorted(order[:len(kept)].tolist())
            mass = np.cumsum(reference.softmax(z.astype(float))[order])
            assert abs(mass[len(kept) - 1] - p) <= 2e-7 + mass[0] and (len(kept) == 1 or mass[len(kept) - 2] < p + 1e-7)


def test_penalties_after_others_dropped_some():
    """Ids that were dropped stay so; those that are left have been moved."""
    random = np.random.default_rng(8)
    ids = random.integers(0, 9000, 400).tolist()
    options = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "dry_multiplier": 0.3, "dry_allowed_length": 1}
    for first in ({"top_k": 7000}, {"top_k": 300}, {"top_p": 0.8}, {"min_p": 0.01}):
        order = [*first, "temperature", "penalties", "dry"]
        check(logits_of(9000), ids, 100, temperature=0.8, samplers=order, **first, **options)


ALL = {"temperature": 0.7, "top_k": 60, "top_p": 0.93, "min_p": 0.002, "typical_p": 0.97, "top_n_sigma": 2.6,
       "xtc_probability": 1.0, "xtc_threshold": 0.2, "mirostat_tau": 4.0, "repetition_penalty": 1.3,
       "frequency_penalty": 0.2, "presence_penalty": -0.3, "dry_multiplier": 0.8, "dry_allowed_length": 1}


@pytest.mark.parametrize("order", ORDERS)
def test_the_named_orders(order):
    ids = np.random.default_rng(1).integers(0, 20, 60).tolist()
    for seed in range(20):
        check(logits_of(400, seed), ids, 30, **ALL, samplers=order)


@pytest.mark.parametrize("seed", range(30))
def test_any_order(seed):
    """With temperature in between, the order makes a difference; and it is the one that was asked for."""
    random = np.random.default_rng(seed)
    names = [name for name in ORDERS["legacy"] if name != "mirostat"]
    order = random.permutation(names).tolist() + ["mirostat"]
    ids = random.integers(0, 12, 40).tolist()
    check(logits_of(150, seed), ids, 10, **ALL, samplers=order)


def test_orders_differ_where_the_references_do():
    """Contradiction X1: temperature first or last decides what top_p keeps."""
    z = logits_of(50)
    kept = {name: (probabilities(z, temperature=2.0, top_p=0.8, samplers=name) > 0).sum() for name in ORDERS}
    assert kept["transformers"] == kept["go-mlx"] > kept["legacy"] == kept["llama.cpp"] == kept["mlx_lm"]


def test_greedy_is_greedy_whatever_else_is_set():
    """Contradiction X2."""
    z = logits_of(300)
    for options in ({"top_k": 5}, {"top_p": 0.1}, {"xtc_probability": 1.0}, {"typical_p": 0.1}, {"mirostat_tau": 3.0}):
        for samplers in ORDERS:
            assert gomlx.sample(z, temperature=0, n=2, samplers=samplers, **options) == [z.argmax()] * 2
    z[17] = z.max()
    assert gomlx.sample(z) == [min(17, z.argmax())]


@pytest.mark.parametrize("vocab", [1, 4095, 4096, 4097, 3 * 4096 + 5, 151_936])
def test_greedy_is_the_first_of_the_best(vocab):
    """Of several blocks of candidates; what is not a number is never drawn."""
    z = np.zeros(vocab, np.float32)
    assert gomlx.sample(z) == [0]
    z[::7] = np.nan
    for best in sorted({0, 1, 4095, 4096, 2 * 4096, vocab // 2, vocab - 1}):
        if best < vocab:
            tied = z.copy()
            tied[best::4096] = 3
            assert gomlx.sample(tied, n=2) == [best] * 2
            assert np.flatnonzero(np.asarray(gomlx.sample_probabilities(tied, temperature=0))).tolist() == [best]
    assert vocab == 1 or gomlx.sample(z, logit_bias={vocab - 1: 1.0}) == [vocab - 1 if (vocab - 1) % 7 else 1]
    for nothing in (np.full(vocab, -np.inf, np.float32), np.full(vocab, np.nan, np.float32)):
        with pytest.raises(ValueError, match="no token is left to draw"):
            gomlx.sample(nothing)


def test_temperatures_that_overflow():
    z = logits_of(100)
    for t in (1e-30, 1e-38, 1e-42):
        assert probabilities(z, temperature=t)[z.argmax()] == 1
    np.testing.assert_allclose(probabilities(z, temperature=3e38), 0.01, rtol=1e-6)


@pytest.mark.parametrize("options", [
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95}, {"top_k": 7}, {"top_p": 0.4}, {"min_p": 0.1}, {"typical_p": 0.6},
    {"temperature": 1.7, "top_k": 50, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.9, "repetition_penalty": 1.2},
], ids=str)
def test_as_transformers_has_it(options):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    warpers = pytest.importorskip("transformers.generation.logits_process", reason="transformers is not installed")
    z, ids = logits_of(500, 4), [3, 3, 499, 17]
    made = [("repetition_penalty", warpers.RepetitionPenaltyLogitsProcessor),
            ("temperature", warpers.TemperatureLogitsWarper), ("top_k", warpers.TopKLogitsWarper),
            ("top_p", warpers.TopPLogitsWarper), ("min_p", warpers.MinPLogitsWarper),
            ("typical_p", warpers.TypicalLogitsWarper)]
    scores = torch.from_numpy(z)[None].double()
    for name, kind in made:
        if name in options:
            scores = kind(options[name])(torch.tensor([ids]), scores)
    want = torch.softmax(scores, -1)[0].numpy()
    np.testing.assert_allclose(probabilities(z, ids, **({"temperature": 1.0} | options)), want, rtol=2e-5, atol=1e-12)


# ---- penalties, biases, bans ----

@pytest.mark.parametrize("options", [
    {"repetition_penalty": 1.5}, {"repetition_penalty": 0.5}, {"frequency_penalty": 0.7}, {"presence_penalty": 1.1},
    {"repetition_penalty": 1.2, "frequency_penalty": -0.4, "presence_penalty": 0.3}], ids=str)
@pytest.mark.parametrize("window", [-1, 0, 1, 3, 7, 1000])
@pytest.mark.parametrize("prompt", [None, True, False])
def test_penalties_and_their_windows(options, window, prompt):
    random = np.random.default_rng(5)
    for n, n_prompt in ((0, 0), (1, 0), (1, 1), (12, 5), (40, 0), (40, 40), (40, 33)):
        ids = random.integers(0, 15, n).tolist()
        check(logits_of(15, n), ids, n_prompt, temperature=1.0, penalty_last_n=window, penalty_prompt=prompt, **options)


@pytest.mark.parametrize("seed", range(40))
def test_dry_is_the_search_for_repetitions(seed):
    random = np.random.default_rng(seed)
    letters = int(random.integers(1, 6))
    ids = random.integers(0, letters, random.integers(0, 60)).tolist()
    breakers = [random.integers(0, letters + 1, random.integers(1, 4)).tolist() for _ in range(random.integers(0, 3))]
    check(logits_of(8, seed), ids, breakers=breakers, temperature=1.0, dry_multiplier=0.1, dry_base=1.2,
          dry_allowed_length=int(random.integers(1, 5)), dry_last_n=int(random.choice([-1, 0, 1, 5, 20, 1000])))


def test_dry_of_long_repetitions_stays_finite():
    p = probabilities(np.zeros(5, np.float32), [1, 2, 3] * 500, temperature=1.0, dry_multiplier=5.0, dry_base=4.0)
    np.testing.assert_allclose(p, [0.25, 0, 0.25, 0.25, 0.25])


def test_breakers_of_texts(model):
    tokenizer = model.tokenizer
    single = tokenizer.sequences_with(("\n",))
    assert all("\n" in tokenizer.decode(one) for one in single) and [tokenizer.encode("\n")[-1]] in single
    pair = tokenizer.sequences_with((". T",))
    ending = [one for one in pair if len(one) > 1]
    assert ending and all(". T" in tokenizer.decode(one) for one in pair)
    stream = model.generate("The cat. The cat", max_tokens=8, temperature=0.5, seed=1, dry_multiplier=0.8)
    assert len(list(stream)) == 8


def test_biases_and_what_is_forbidden():
    z = logits_of(30)
    options = {"temperature": 1.0, "logit_bias": {3: 2.5, 4: -1.0, 9: -math.inf, 10: 50.0},
               "suppress_tokens": [10, 11], "bad_words": [[12], [1, 2, 13], [2, 14], [1, 15], [5, 1, 2, 16]]}
    p = check(z, [5, 5, 1, 2], **options)
    assert (p[[9, 10, 11, 12, 13, 14, 16]] == 0).all() and p[15] > 0
    check(z, [2], **options)
    check(z, [], **options)
    check(z, [5, 1, 2], **(options | {"temperature": 0.0}))


def test_bad_words_of_texts_do_not_come(model):
    prompt = "Once upon a time"
    plain = finish(model.generate(prompt, max_tokens=80, temperature=0))
    words = sorted(set(plain.text.replace(",", " ").replace(".", " ").split()), key=len)[-6:]
    assert all(word in plain.text for word in words)
    without = finish(model.generate(prompt, max_tokens=80, temperature=0, bad_words=words))
    assert len(without.tokens) and not any(" " + word in without.text for word in words)
    with pytest.raises(TypeError, match="bad_words"):
        model.generate(prompt, bad_words="word")
    with pytest.raises(ValueError, match="needs a tokenizer"):
        gomlx.sample([1.0], bad_words=["word"])


@pytest.mark.parametrize("logits", [[-np.inf] * 3, [np.nan] * 3, [np.nan, -np.inf, np.nan]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_to_draw(logits, temperature):
    with pytest.raises(ValueError, match="no token is left to draw: all 3 logits"):
        gomlx.sample(np.float32(logits), temperature=temperature)


def test_everything_forbidden():
    for options in ({"suppress_tokens": range(5)}, {"bad_words": [[i] for i in range(5)]},
                    {"logit_bias": dict.fromkeys(range(5), -math.inf)}):
        for temperature in (0.0, 1.0):
            with pytest.raises(ValueError, match="no token is left"):
                gomlx.sample(np.zeros(5, np.float32), temperature=temperature, **options)


def test_logits_that_are_no_numbers_are_never_drawn():
    z = np.float32([np.nan, 1, -np.inf, 2, np.nan])
    for options in ONE_BY_ONE:
        drawn = set(gomlx.sample(z, n=50, **({"temperature": 1.0} | options)))
        assert drawn <= {1, 3}
    assert gomlx.sample(z) == [3]
    assert set(gomlx.sample(np.float32([np.inf, 0, np.inf]), temperature=1.0, n=50)) == {0, 2}


# ---- draws ----

def chi_square_limit(freedom):
    """Above it lies less than one in a million (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 4.75 * math.sqrt(2 / (9 * freedom))) ** 3


def check_draws(drawn, p):
    """Drawn ids are as the distribution says; what is rare is counted together."""
    counts, expected = np.bincount(drawn, minlength=len(p)).astype(float), p * len(drawn)
    assert (counts[p == 0] == 0).all()
    common = expected >= 8
    cells = np.append(counts[common], counts[~common].sum()), np.append(expected[common], expected[~common].sum())
    counts, expected = (cell[cells[1] > 0] for cell in cells)
    if len(counts) > 1:
        assert ((counts - expected) ** 2 / expected).sum() < chi_square_limit(len(counts) - 1)


@pytest.mark.parametrize("options", [
    {}, {"temperature": 0.6}, {"temperature": 2.0}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"typical_p": 0.7},
    {"top_n_sigma": 1.5}, {"mirostat_tau": 2.0, "mirostat_eta": 0.0}, {"repetition_penalty": 1.4},
    {"frequency_penalty": 0.6, "presence_penalty": 0.2, "penalty_prompt": True}, {"dry_multiplier": 1.5},
    {"logit_bias": {2: 1.5, 7: -2.0}}, {"bad_words": [[4], [1, 2, 9]], "suppress_tokens": [0]},
    {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.01, "samplers": "llama.cpp"},
], ids=str)
def test_a_hundred_thousand_draws(options):
    options = {"temperature": 1.0, "dry_sequence_breakers": ()} | options
    z, ids = logits_of(40, 7, scale=1.5), [1, 2, 3, 1, 2]
    drawn = gomlx.sample(z, ids, n=DRAWS, seed=11, **options)
    options.pop("dry_sequence_breakers")
    check_draws(drawn, reference.probabilities(z, Sampling(**options), ids))


def test_a_hundred_thousand_draws_of_xtc():
    """Its chance is drawn each time, and has nothing to do with the draw."""
    z, options = logits_of(12, 3, scale=1.0), {"temperature": 1.0, "xtc_probability": 0.3, "xtc_threshold": 0.1}
    sampling = Sampling(**options)
    with_it, without = (reference.probabilities(z, sampling, applies=applies) for applies in (True, False))
    assert (with_it == 0).sum() >= 2
    check_draws(gomlx.sample(z, n=DRAWS, seed=5, **options), 0.3 * with_it + 0.7 * without)
    applied = [probabilities(z, step=step, seed=5, **options)[z.argmax()] == 0 for step in range(2000)]
    assert abs(np.mean(applied) - 0.3) < 0.05


def test_a_hundred_thousand_draws_of_one_step():
    """Seeds make independent draws as steps do."""
    z = logits_of(16, scale=1.0)
    drawn = [gomlx.sample(z, temperature=1.0, seed=seed)[0] for seed in range(20_000)]
    check_draws(drawn, reference.softmax(z.astype(float)))


def test_draws_are_those_of_the_seed():
    z = logits_of(64)
    at = np.searchsorted(np.cumsum(reference.softmax(z.astype(float))), [reference.uniform(9, i) for i in range(500)])
    assert gomlx.sample(z, temperature=1.0, seed=9, n=500) == at.tolist()
    assert gomlx.sample(z, temperature=1.0, seed=9, n=100, step=400) == at[400:].tolist()
    assert gomlx.sample(z, temperature=1.0, seed=2**64 - 1, n=8) != gomlx.sample(z, temperature=1.0, seed=0, n=8)


@pytest.mark.parametrize("options", [{"top_k": 40}, {"top_p": 0.9}, {"typical_p": 0.6}, {"min_p": 0.01},
                                     {"top_k": 3000, "top_p": 0.95}], ids=str)
def test_a_draw_goes_by_the_order_of_ids(options):
    """Whatever was dropped: the first id with which the sum of probabilities exceeds the uniform number."""
    z, options = logits_of(20_000), {"temperature": 1.0} | options
    p = reference.probabilities(z, Sampling(**options))
    sums = np.cumsum(p)
    for i, token in enumerate(gomlx.sample(z, seed=9, n=300, **options)):
        assert p[token] > 0 and sums[token] - p[token] - 1e-6 <= reference.uniform(9, i) <= sums[token] + 1e-6


def test_mirostat_follows_its_controller():
    z, tau, eta = logits_of(200), 3.0, 0.2
    drawn = gomlx.sample(z, temperature=1.0, mirostat_tau=tau, mirostat_eta=eta, seed=3, n=3000)
    limit, surprises = np.float32(2 * tau), []
    for i, token in enumerate(drawn):
        p = reference.softmax(reference.mirostat(z.astype(float), Sampling(mirostat_tau=tau), limit=limit))
        assert token == np.searchsorted(np.cumsum(p), reference.uniform(3, i))
        surprises.append(-np.log2(p[token]))
        limit -= np.float32(eta * (surprises[-1] - tau))
    assert abs(np.mean(surprises[500:]) - tau) < 0.05


def test_several_threads_draw_as_one():
    z = logits_of(5000)
    want = [gomlx.sample(z, temperature=1.0, top_p=0.9, seed=seed, n=50) for seed in range(6)]
    got = [None] * 6

    def draw(seed):
        got[seed] = gomlx.sample(z, temperature=1.0, top_p=0.9, seed=seed, n=50)

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == want


# ---- options ----

@pytest.mark.parametrize("options, words", [
    ({"temperature": -1}, "temperature is -1, expected 0 or more"), ({"temperature": math.nan}, "temperature"),
    ({"temperature": math.inf}, "temperature"), ({"top_p": 0}, "top_p is 0, expected more than 0"),
    ({"top_p": 1.1}, "top_p"), ({"min_p": -0.1}, "min_p"), ({"min_p": 1.1}, "min_p"), ({"typical_p": 0}, "typical_p"),
    ({"top_k": -1}, "top_k"), ({"top_n_sigma": -1}, "top_n_sigma"), ({"xtc_probability": 2}, "xtc_probability"),
    ({"xtc_threshold": 0.6}, "xtc_threshold"), ({"dry_multiplier": -1}, "dry_multiplier"),
    ({"dry_base": 0.5}, "dry_base"), ({"dry_allowed_length": 0}, "dry_allowed_length"),
    ({"dry_last_n": -2}, "dry_last_n"), ({"penalty_last_n": -2}, "penalty_last_n"),
    ({"mirostat_tau": -1}, "mirostat_tau"), ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"frequency_penalty": math.nan}, "frequency_penalty"),
    ({"samplers": "best"}, "samplers is 'best', expected one of transformers"),
    ({"samplers": ["top_k", "sorcery"]}, "no sampler 'sorcery'; there are penalties"),
    ({"samplers": [3]}, "no sampler 3"),
    ({"samplers": ["temperature", "temperature"]}, "twice"),
    ({"samplers": ["temperature"], "top_k": 5}, "top_k is set, but it is not in the given order"),
    ({"samplers": ["top_k"], "temperature": 0.5}, "temperature is set"),
    ({"samplers": ["temperature"], "presence_penalty": 1}, "penalties is set"),
    ({"samplers": ["mirostat", "temperature"], "mirostat_tau": 3}, "mirostat must be the last"),
    ({"logit_bias": {40: 1.0}}, "logit_bias: token id 40 is outside the vocabulary of 4"),
    ({"logit_bias": {1: math.nan}}, "bias of token 1 is not a number"), ({"suppress_tokens": [-1]}, "suppress_tokens"),
    ({"bad_words": [[1, 4]]}, "bad_words: token id 4"), ({"bad_words": [[]]}, "without a token"),
    ({"seed": -1}, r"seed is -1, expected 0 to 2\*\*64 - 1"), ({"seed": 2**64}, "seed is 18446744073709551616"),
    ({"ids": [4]}, "token id 4"), ({"ids": [1], "n_prompt": 2}, "n_prompt is 2, expected at most the number of ids, 1"),
    ({"step": -1}, "step is -1"),
])
def test_what_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        gomlx.sample(np.zeros(4, np.float32), **({"temperature": 1.0} | options))


@pytest.mark.parametrize("options", [
    {"temperature": "hot"}, {"top_k": 2.5}, {"seed": 1.5}, {"samplers": 5}, {"logit_bias": [1, 2]}, {"logit_bias": "x"},
    {"bad_words": 5}, {"suppress_tokens": "abc"}, {"tempreature": 1.0}])
def test_what_has_the_wrong_type(options):
    with pytest.raises(TypeError, match=next(iter(options)) if "suppress_tokens" not in options else "token ids"):
        gomlx.sample(np.zeros(4, np.float32), **options)


def test_logits_may_be_anything_like_an_array():
    z = logits_of(20)
    for same in (z.tolist(), gomlx.core.array(z), z.astype(np.float64), np.stack([z, z], 1)[:, 0], memoryview(z)):
        assert gomlx.sample(same, temperature=1.0, n=5) == gomlx.sample(z, temperature=1.0, n=5)
    for wrong in (np.zeros((2, 2), np.float32), np.float32(1), []):
        with pytest.raises(ValueError, match="expected one dimension"):
            gomlx.sample(wrong)


def test_a_sampling_is_a_value():
    base = Sampling(temperature=0.5, top_k=4)
    assert base.replace(top_k=None, top_p=0.9) == Sampling(temperature=0.5, top_k=4, top_p=0.9)
    assert base == Sampling(temperature=0.5, top_k=4) and base != Sampling()
    z = logits_of(50)
    assert gomlx.sample(z, sampling=base, n=20, seed=1) == gomlx.sample(z, temperature=0.5, top_k=4, n=20, seed=1)
    with pytest.raises(AttributeError):
        base.top_k = 5


# ---- in a generation ----

def finish(stream):
    for _ in stream:
        pass
    return stream.result


def test_a_generation_draws_as_sample_does(model):
    prompt = model.tokenizer.encode("Once upon a time")
    options = {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.3}
    made = finish(model.generate(prompt, max_tokens=12, seed=4, **options))
    ids = prompt + made.tokens
    logits = np.asarray(model.logits(ids))
    for step, token in enumerate(made.tokens):
        at = len(prompt) + step
        assert [token] == gomlx.sample(logits[at - 1], ids[:at], n_prompt=len(prompt), seed=4, step=step, **options)


def test_the_model_s_own_sampling_and_changes_to_it(model):
    assert model.sampling == Sampling(temperature=0.7, top_p=0.95)
    same = [finish(model.generate("Once", max_tokens=12, seed=3, **options)).tokens
            for options in ({}, {"top_k": None}, {"sampling": model.sampling}, {"temperature": 0.7},
                            {"sampling": Sampling(temperature=0.2), "temperature": 0.7, "top_p": 0.95})]
    assert all(tokens == same[0] for tokens in same)
    greedy = finish(model.generate("Once", max_tokens=12, sampling=Sampling())).tokens
    assert greedy == finish(model.generate("Once", max_tokens=12, temperature=0)).tokens


def test_a_seed_gives_the_same_tokens_on_any_number_of_threads(model):
    options = {"seed": 2**63 + 5, "max_tokens": 24, "temperature": 1.3, "top_k": 200, "xtc_probability": 0.5}
    want = finish(model.generate("Once upon a time", **options)).tokens
    with gomlx.load(threads=1) as other:
        assert finish(other.generate("Once upon a time", **options)).tokens == want
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match="seed"):
            model.generate("Once", seed=seed)


def log_softmax(z):
    z = z.astype(np.float64)
    return z - z.max() - np.log(np.exp(z - z.max()).sum())


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.5, "top_k": 30, "logit_bias": {5: 9.0}}],
                         ids=str)
def test_log_probabilities_are_the_model_s(model, options):
    prompt = model.tokenizer.encode("The little dog")
    tokens = list(model.generate(prompt, max_tokens=10, seed=2, top_logprobs=7, **options))
    ids = [token.id for token in tokens]
    logits = np.asarray(model.logits(prompt + ids))[len(prompt) - 1:]
    for i, token in enumerate(tokens):
        logp = log_softmax(logits[i])
        assert abs(token.logprob - logp[token.id]) < 1e-5
        best = np.argsort(-logp, kind="stable")[:7]
        assert [one for one, _ in token.top_logprobs] == best.tolist()
        np.testing.assert_allclose([value for _, value in token.top_logprobs], logp[best], atol=1e-5)
    for wrong in (-1, 257):
        with pytest.raises(ValueError, match="top_logprobs"):
            model.generate(prompt, top_logprobs=wrong)


def test_results_have_the_log_probabilities(model):
    result = finish(model.generate("Once", max_tokens=5, temperature=0, top_logprobs=2))
    assert len(result.logprobs) == len(result.top_logprobs) == 5
    assert [(top[0][0], top[0][1]) for top in result.top_logprobs] == list(zip(result.tokens, result.logprobs))
    assert finish(model.generate("Once", max_tokens=5, temperature=0)).top_logprobs == []


# ---- logits processors ----

def force(wanted):
    """A processor that makes the ids come one after another."""
    left = list(wanted)

    def processor(ids, logits):
        z = np.asarray(logits)
        z[:] = -np.inf
        z[left.pop(0)] = 0
    return processor


def test_a_processor_sees_the_ids_and_changes_the_logits(model):
    prompt, seen = model.tokenizer.encode("Once upon a time"), []

    def processor(ids, logits):
        assert ids.format == "i" and logits.format == "f" and not logits.readonly and ids.readonly
        assert logits.shape == (model.vocab_size,)
        seen.append((ids.tolist(), np.array(logits)))

    plain = finish(model.generate(prompt, max_tokens=6, temperature=0))
    watched = finish(model.generate(prompt, max_tokens=6, temperature=0, logits_processors=[processor]))
    assert watched.tokens == plain.tokens
    assert [ids for ids, _ in seen] == [prompt + plain.tokens[:i] for i in range(6)]
    logits = np.asarray(model.logits(prompt + plain.tokens))
    np.testing.assert_allclose(np.stack([z for _, z in seen]), logits[len(prompt) - 1:-1], rtol=1e-4, atol=1e-4)
    both = [processor, force([5, 6, 7, 8, 9, 10])]
    forced = finish(model.generate(prompt, max_tokens=6, seed=1, logits_processors=both))
    assert forced.tokens == [5, 6, 7, 8, 9, 10] and min(forced.logprobs) < -5     # the model's own, not the forced ones


def test_what_a_processor_returns_takes_the_place(model):
    for returned in (lambda z: np.where(np.arange(len(z)) == 77, 1, -np.inf).astype(np.float32),
                     lambda z: gomlx.core.where(gomlx.core.arange(len(z)) == 77, 1.0, -math.inf), None):
        def processor(ids, logits):
            if returned is None:
                logits[77] = 1e6
                return logits
            return returned(logits)
        result = finish(model.generate("Once", max_tokens=3, temperature=1.0, logits_processors=[processor]))
        assert result.tokens == [77] * 3
    for wrong, kind in ((5, TypeError), (np.zeros(3, np.float32), ValueError),
                        (np.zeros(model.vocab_size, np.float64), ValueError),
                        (np.zeros(model.vocab_size, "i4"), ValueError)):
        with pytest.raises(kind, match="a logits processor returned"):
            finish(model.generate("Once", max_tokens=3, logits_processors=[lambda ids, logits: wrong]))
    with pytest.raises(TypeError, match="callable"):
        model.generate("Once", logits_processors=[3])


def test_penalties_and_bans_come_after_processors(model):
    def processor(ids, logits):
        logits[5] = logits[6] = 1e6
    result = finish(model.generate("Once", max_tokens=3, temperature=0, suppress_tokens=[5],
                                   logits_processors=[processor]))
    assert result.tokens == [6] * 3


def test_a_view_ends_with_the_call_and_an_array_keeps_what_it_saw(model):
    views, arrays = [], []

    def processor(ids, logits):
        if len(views) % 2:
            arrays.append(np.asarray(logits))
        views.append(logits)

    result = finish(model.generate("Once", max_tokens=6, temperature=0, logits_processors=[processor]))
    with pytest.raises(ValueError, match="released"):
        views[0][0]
    prompt = model.tokenizer.encode_prompt("Once")
    logits = np.asarray(model.logits(prompt + result.tokens))[len(prompt) - 1:]
    for i, array in enumerate(arrays):
        np.testing.assert_allclose(array, logits[2 * i + 1], rtol=1e-4, atol=1e-4)
    parts = []
    finish(model.generate("Once", max_tokens=4, temperature=0, logits_processors=[lambda i, z: parts.append(z[3:6])]))
    assert [len(part) for part in parts] == [3] * 4 and len({part.tolist()[0] for part in parts}) > 1


def test_a_processor_s_exception_ends_the_stream_and_not_the_session(model):
    calls = []

    def processor(ids, logits):
        calls.append(len(ids))
        if len(calls) == 3:
            raise KeyError("enough")

    session = model.session()
    stream = model.generate("Once upon a time", temperature=0, session=session, logits_processors=[processor])
    tokens = [next(stream), next(stream)]
    with pytest.raises(KeyError, match="enough"):
        next(stream)
    assert list(stream) == [] and stream.result.finish_reason == "error" and isinstance(stream.result.error, KeyError)
    assert stream.result.tokens == [token.id for token in tokens]
    again = finish(model.generate("Once upon a time", max_tokens=8, temperature=0, session=session))
    assert again.tokens == finish(model.generate("Once upon a time", max_tokens=8, temperature=0)).tokens
    assert again.cached_tokens > 0


def test_processors_that_meddle_with_the_stream(model):
    def use(ids, logits):
        with pytest.raises(ValueError, match="in use"):
            next(stream)
        stream.cancel()
    stream = model.generate("Once", temperature=0, logits_processors=[use])
    assert len(list(stream)) == 2 and stream.result.finish_reason == "cancelled"

    def close(ids, logits):
        raw.close()
    session = model.session()
    raw = _gomlx.stream(session, model.tokenizer, [5, 6], processors=[close])
    assert len(list(raw)) == 1
    assert len(list(_gomlx.stream(session, model.tokenizer, [5, 6, 7], max_tokens=2))) == 2

    def grow(ids, logits):
        with pytest.raises(BufferError):
            logits.obj.extend(b"1234")
        kept.append(logits.obj)
    kept = []
    assert len(finish(model.generate("Once", max_tokens=3, temperature=0, logits_processors=[grow])).tokens) == 3
    assert len({id(one) for one in kept}) == 3


def test_a_stream_in_a_cycle_with_its_processor_is_collected(model):
    import gc
    import weakref

    class Processor:
        def __call__(self, ids, logits):
            pass
    processor = Processor()
    processor.stream = _gomlx.stream(model.session(), model.tokenizer, [5, 6], processors=[processor])
    next(processor.stream)
    gone = weakref.ref(processor)
    del processor
    gc.collect()
    assert gone() is None


def test_a_model_whose_logits_are_no_numbers_is_told(model):
    def spoil(ids, logits):
        np.asarray(logits)[:] = np.nan
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="no token is left"):
            finish(model.generate("Once", temperature=temperature, logits_processors=[spoil]))
