"""How far a model with an adapter in its weights is from the model and the adapter apart: on a text, both exact."""
from __future__ import annotations

import math
import os

from gomlx import _gomlx as mx
from gomlx._generation.tokenizer import Tokenizer

TEXT = ("The old lighthouse keeper wrote three letters before the storm: one to his sister, one to the harbour, and "
        "one that nobody ever found. In 1987 a carpenter opened the wall behind the stairs. \"It is addressed to me,\" "
        "she said, and read it twice. What is the sum of 17 and 26? It is 43, because 17 + 20 = 37 and 37 + 6 = 43.")
TOKENS = 128


def between(source, adapter, fused, text):
    """{"kl": nats for a token, or None, "why_no_kl": None or the reason}."""
    try:
        adapter.check_served()
        tokenizer = Tokenizer.from_gguf(source) if os.path.isfile(source) else Tokenizer.from_file(source)
        ids = tokenizer.encode(text)[:TOKENS]
        if len(ids) < 2:
            raise ValueError("the text has fewer than two tokens")
        p, q = log_probabilities(source, ids, adapter), log_probabilities(fused, ids, None)
    except (mx.Error, MemoryError, NotImplementedError, OSError, RuntimeError, ValueError) as error:
        return {"kl": None, "why_no_kl": str(error)}            # the result is there, and is as it should be
    kl = mx.mean(mx.sum(mx.exp(p) * (p - q), axis=-1)).item()
    if not math.isfinite(kl):
        return {"kl": None, "why_no_kl": "the distributions of the new model, or of its parts, are not finite numbers"}
    return {"kl": max(0.0, kl), "why_no_kl": None}              # rounding may leave it below 0


def log_probabilities(path, ids, adapter):
    """float32 [ids, vocab] of a model with an adapter, or None, beside its weights."""
    engine = mx.load_model(path, activations="float32", kv_dtype="float32")
    try:
        if adapter is not None:
            engine.load_adapter("adapter", adapter.engine_terms(engine))
        logits = engine.logits([ids], adapters=[] if adapter is None else [("adapter", 1.0)])[0]
    finally:
        engine.close()
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)
