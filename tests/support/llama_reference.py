"""Llama in NumPy float64, written as the papers say it and as slowly as they do: no cache, no tiles, whole matrices.
Takes config.json's own keys, in the old and the new spelling. Shares nothing with the engine but the mathematics."""
import numpy as np


def logits(config, weights, ids):
    """float64 [n, vocab] of token ids; weights by their Hugging Face names."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    n, hidden, heads = len(ids), config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    dim = config.get("head_dim") or hidden // heads
    eps = config.get("rms_norm_eps", 1e-6)
    turn = rotation(config, dim, n)
    age = np.arange(n)[:, None] - np.arange(n)[None, :]
    seen = age >= 0
    if config.get("sliding_window"):
        seen &= age < config["sliding_window"]

    def linear(name, x):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    def rotated(x):                             # [n, heads, dim]: the two halves are a complex number's two parts
        z = (x[..., :dim // 2] + 1j * x[..., dim // 2:]) * turn[:, None, :]
        return np.concatenate([z.real, z.imag], -1)

    x = w["model.embed_tokens.weight"][list(ids)]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        a = rms_norm(x, w[layer + "input_layernorm.weight"], eps)
        q = rotated(linear(layer + "self_attn.q_proj", a).reshape(n, heads, dim))
        k = rotated(linear(layer + "self_attn.k_proj", a).reshape(n, kv_heads, dim)).repeat(heads // kv_heads, 1)
        v = linear(layer + "self_attn.v_proj", a).reshape(n, kv_heads, dim).repeat(heads // kv_heads, 1)
        scores = np.where(seen, np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim), -np.inf)
        mixed = np.einsum("hij,jhd->ihd", softmax(scores), v)
        x = x + linear(layer + "self_attn.o_proj", mixed.reshape(n, heads * dim))
        a = rms_norm(x, w[layer + "post_attention_layernorm.weight"], eps)
        gate = linear(layer + "mlp.gate_proj", a)
        x = x + linear(layer + "mlp.down_proj", gate / (1 + np.exp(-gate)) * linear(layer + "mlp.up_proj", a))
    x = rms_norm(x, w["model.norm.weight"], eps)
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rotation(config, dim, n):
    """complex [n, dim / 2]: by what each position turns each pair."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    original = rope.get("original_max_position_embeddings", config.get("max_position_embeddings", 2048))
    factor = rope.get("factor", 1.0)
    frequency = theta ** -(np.arange(0, dim, 2) / dim)
    size = 1.0
    if kind == "linear":
        frequency = frequency / factor
    elif kind == "llama3":
        turns = original * frequency / (2 * np.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        keep = np.clip((turns - low) / (high - low), 0, 1)
        frequency = frequency * (keep + (1 - keep) / factor)
    elif kind == "yarn":
        def pair(turns):                        # the pair, as a fraction, that turns so often over the original context
            return dim * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(theta))
        first, last = pair(rope.get("beta_fast") or 32), pair(rope.get("beta_slow") or 1)
        if rope.get("truncate", True):
            first, last = np.floor(first), np.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        keep = 1 - np.clip((np.arange(dim // 2) - first) / max(last - first, 1e-3), 0, 1)
        frequency = frequency * (keep + (1 - keep) / factor)
        size = rope.get("attention_factor")
        if size is None and rope.get("mscale") and rope.get("mscale_all_dim"):
            size = (1 + 0.1 * rope["mscale"] * np.log(factor)) / (1 + 0.1 * rope["mscale_all_dim"] * np.log(factor))
        if size is None:
            size = 1 + 0.1 * np.log(factor)
    return size * np.exp(1j * np.arange(n)[:, None] * frequency[None, :])


def difference(got, want):
    """Relative RMS: the norm of the difference over the norm of what was wanted."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    return np.linalg.norm(got - want) / np.linalg.norm(want)
