"""Samplers by their definitions, in NumPy and float64: a candidate that is dropped has the logit -inf."""
import numpy as np

from gomlx._generation.sampling import ORDERS, Sampling


def softmax(z):
    e = np.exp(z - z.max())
    return e / e.sum()


def descending(key):
    """Indices by greater key, ties to the lower index."""
    return np.argsort(-key, kind="stable")


def keep(z, ids):
    out = np.full_like(z, -np.inf)
    out[ids] = z[ids]
    return out


def smallest_prefix(p, order, mass):
    """The first of the order that have the mass together."""
    return order[:int(np.searchsorted(np.cumsum(p[order]), mass)) + 1]


def temperature(z, o, **_):
    return z / np.float32(o.temperature)


def top_k(z, o, **_):
    return keep(z, descending(z)[:o.top_k]) if o.top_k else z


def top_p(z, o, **_):
    return keep(z, smallest_prefix(softmax(z), descending(z), np.float32(o.top_p))) if o.top_p < 1 else z


def min_p(z, o, **_):
    p = softmax(z)
    return np.where(p >= np.float32(o.min_p) * p.max(), z, -np.inf)


def typical_p(z, o, **_):
    if o.typical_p == 1:
        return z
    p = softmax(z)
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -np.log(p)
        entropy = np.nansum(np.where(p > 0, p * surprise, 0))
        key = np.where(p > 0, -np.abs(surprise - entropy), -np.inf)
    return keep(z, smallest_prefix(p, descending(key), np.float32(o.typical_p)))


def top_n_sigma(z, o, **_):
    left = z[z > -np.inf]
    return np.where(z >= z.max() - np.float32(o.top_n_sigma) * left.std(), z, -np.inf) if o.top_n_sigma else z


def xtc(z, o, applies=True, **_):
    p = softmax(z)
    choices = [i for i in descending(z) if p[i] >= np.float32(o.xtc_threshold)]
    if o.xtc_probability and applies and len(choices) > 1:
        z = z.copy()
        z[choices[:-1]] = -np.inf
    return z


def mirostat(z, o, limit=None, **_):
    if not o.mirostat_tau:
        return z
    p = softmax(z)
    with np.errstate(divide="ignore"):
        stays = -np.log2(p) <= (2 * o.mirostat_tau if limit is None else limit)
    stays[descending(z)[0]] = True
    return np.where(stays, z, -np.inf)


def penalties(z, o, ids=(), n_prompt=0, **_):
    def window(of_prompt):
        seen = list(ids if of_prompt else ids[n_prompt:])
        return seen if o.penalty_last_n < 0 else seen[len(seen) - min(o.penalty_last_n, len(seen)):]

    z, r = z.copy(), np.float32(o.repetition_penalty)
    for i in set(window(o.penalty_prompt is not False)):
        z[i] = z[i] / r if z[i] > 0 else z[i] * r
    counted = window(o.penalty_prompt is True)
    for i in set(counted):
        z[i] -= counted.count(i) * np.float32(o.frequency_penalty) + np.float32(o.presence_penalty)
    return z


def dry(z, o, ids=(), breakers=(), **_):
    """Each place where the last ids stood before, one by one."""
    z, ids = z.copy(), list(ids)
    if not o.dry_multiplier or o.dry_last_n == 0:
        return z
    first = 0 if o.dry_last_n < 0 else max(0, len(ids) - o.dry_last_n)
    start = max([first, *(end for end in range(1, len(ids) + 1) for one in breakers
                          if len(one) <= end and ids[end - len(one):end] == list(one))])
    longest = {}
    for end in range(first, len(ids) - 1):              # the repetition's last id
        length = 0
        while end - length >= first and len(ids) - 1 - length >= start and ids[end - length] == ids[-1 - length]:
            length += 1
        longest[ids[end + 1]] = max(longest.get(ids[end + 1], 0), length)
    for i, length in longest.items():
        if length >= o.dry_allowed_length and [i] not in [list(one) for one in breakers]:
            z[i] -= np.float32(o.dry_multiplier) * np.float32(o.dry_base) ** (length - o.dry_allowed_length)
    return z


def probabilities(logits, sampling, ids=(), n_prompt=None, breakers=(), **more):
    """The distribution after the whole chain."""
    z = np.asarray(logits, np.float64).copy()
    n_prompt = len(ids) if n_prompt is None else n_prompt
    for i, bias in (sampling.logit_bias or {}).items():
        z[i] += bias
    z[list(sampling.suppress_tokens)] = -np.inf
    for word in sampling.bad_words:
        if list(ids)[len(ids) - len(word) + 1:] == list(word)[:-1]:
            z[word[-1]] = -np.inf
    order = ORDERS[sampling.samplers] if isinstance(sampling.samplers, str) else sampling.samplers
    if sampling.temperature == 0:
        order = [name for name in order if name in ("penalties", "dry")]
    for name in order:
        z = globals()[name](z, sampling, ids=ids, n_prompt=n_prompt, breakers=breakers, **more)
    return softmax(z) if sampling.temperature else np.eye(len(z))[z.argmax()]


def uniform(seed, step):
    """The engine's random numbers."""
    mask, x = 2**64 - 1, seed * 0x9E3779B97F4A7C15 + step
    for _ in range(2):
        x = x + 0x9E3779B97F4A7C15 & mask
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        x ^= x >> 31
    return (x >> 11) / 2**53


__all__ = ["Sampling", "mirostat", "probabilities", "softmax", "uniform"]
