"""A small random Llama, and random adapters for the layers of any model."""
import checkpoints
import numpy as np
from checkpoints import SMALL

import gomlx
import gomlx.core as mx
from gomlx import Adapter, Term, _gomlx

CONFIG = SMALL | {"tie_word_embeddings": False, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
IDS = [5, 17, 42, 99, 0, 63, 7, 21, 21, 80]



def save_base(path):
    """A Llama of two layers, four heads of queries and two of keys, as a folder of safetensors; its path."""
    checkpoints.save_safetensors(str(path), CONFIG, checkpoints.random_weights(CONFIG))
    return str(path)


def exact(path):
    return _gomlx.load_model(str(path), threads=2, activations="float32", kv_dtype="float32")


def logits(path, ids=IDS):
    return np.asarray(exact(path).logits([ids])[0])


def linear_layers(shapes):
    return {name.removesuffix(".weight"): shape for name, shape in shapes.items()
            if name.endswith("proj.weight") and len(shape) == 2}


def adapter_for(model, rank=4, scale=2.0, dtype=mx.float32, seed=1, chosen=lambda name: True, dora=False, **meta):
    """Random terms for the layers of a loaded model."""
    rng, terms = np.random.default_rng(seed), {}
    shapes = {name: model.weight(name).shape for name in model.weight_names()}
    for layer, (rows, columns) in linear_layers(shapes).items():
        if chosen(layer):
            a, b = (mx.array(rng.normal(0, size, shape).astype(np.float32)).astype(dtype)
                    for size, shape in ((columns ** -0.5, (rank, columns)), (0.2, (rows, rank))))
            m = mx.array(rng.uniform(0.5, 2, rows).astype(np.float32)) if dora else None
            terms[layer] = Term(a, b, scale, m)
    return Adapter(terms, None, meta)


def saved(adapter, tmp_path, form, model):
    path = tmp_path / ("adapter.gguf" if form == "gguf" else form)
    assert gomlx.save_adapter(adapter, path, form, model=model) == str(path)
    return path
