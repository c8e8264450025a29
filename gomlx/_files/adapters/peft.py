"""PEFT's form: adapter_config.json and adapter_model.safetensors.

base_model.model.<module>.lora_A.weight is a [rank, in], lora_B.weight b [out, rank], lora_magnitude_vector the
magnitudes of DoRA; the scale is alpha / rank, or alpha / sqrt(rank) with use_rslora.
"""
from __future__ import annotations

import math
import re
from typing import Any

from gomlx import _gomlx as mx
from gomlx._files.adapters import shared
from gomlx._files.names import parts
from gomlx._training.adapter import Adapter, listed

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
PART = re.compile(r"(?P<module>.+)\.(?:lora_(?P<part>[AB])(?:\.\w+)?\.weight"
                  r"|lora_magnitude_vector(?:\.\w+)?(?:\.weight)?)$")
NAMES = {"a": "lora_A", "b": "lora_B", "m": "lora_magnitude_vector"}
# Ways to begin that leave the base's weights as they are; the others subtract what they put into the adapter.
BEGINNINGS = (None, True, False, "true", "gaussian", "eva", "orthogonal")
# What makes a forward pass with an adapter another one than that of low-rank terms.
UNREAD = ("alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "lora_bias",
          "megatron_config", "monteclora_config", "target_parameters", "trainable_token_indices", "use_bdlora",
          "use_qalora", "fan_in_fan_out")
PATTERN_LENGTH, REPETITIONS = 300, 3            # of a regular expression from a file: no more, lest matching takes long


def check(config):
    """NotImplementedError for a config with anything that is not read."""
    values = config.values
    kind = values.get("peft_type")
    if kind != "LORA":
        raise NotImplementedError(f"{config.path}: peft_type is {kind!r}; readable is 'LORA'")
    if values.get("bias", "none") != "none":
        raise NotImplementedError(f"{config.path}: bias is {values['bias']!r}; readable is 'none'")
    unread = [key for key in UNREAD if values.get(key)]
    unread += [key for key, value in values.items() if key.startswith("use_") and value and key not in UNREAD
               and key not in ("use_rslora", "use_dora")]
    if unread:
        raise NotImplementedError(f"{config.path}: {unread[0]} is {values[unread[0]]!r:.80}, which is not read")
    begun = values.get("init_lora_weights", True)
    if not isinstance(begun, (str, bool, type(None))) or \
            (begun.lower() if isinstance(begun, str) else begun) not in BEGINNINGS:
        raise NotImplementedError(
            f"{config.path}: init_lora_weights is {begun!r:.80}, which changes the base's weights: save it with PEFT's "
            "path_initial_model_for_weight_conversion, as plain LoRA")


def read(config: shared.Config, tensors: dict[str, shared.Stored], path: str) -> Adapter:
    check(config)
    rank, alpha = config.rank("r", 8), config.number("lora_alpha", 8)
    rslora, dora = config.flag("use_rslora"), config.flag("use_dora")
    ranks, alphas = Patterns(config, "rank_pattern"), Patterns(config, "alpha_pattern")
    saved = config.texts("modules_to_save")
    pairs, full, modules = shared.Pairs(path), {}, {}
    for name, tensor in tensors.items():
        ours = name.removeprefix(PREFIX)
        found = PART.match(ours)
        if found:
            layer = shared.layer_name(found["module"], path)
            modules[layer] = found["module"]
            pairs.add(layer, {"A": "a", "B": "b", None: "m"}[found["part"]], tensor)
        elif ".lora_embedding_" in name:
            raise NotImplementedError(f"{path}: {name}: low-rank terms of embeddings are not read; those of linear "
                                      "layers are")
        else:
            full[whole_name(ours, saved, name, path)] = tensor.read()
    terms = {}
    for layer, a, b, m in pairs.items(dora, NAMES):
        r = ranks.of(modules[layer], rank, "rank")
        if a.shape[0] != r or b.shape[1] != r:
            raise mx.Error(f"{path}: {layer}: lora_A is {list(a.shape)} and lora_B {list(b.shape)}, expected "
                           f"[{r}, in] and [out, {r}]: adapter_config.json says rank {r}")
        scale = alphas.of(modules[layer], alpha, "number") / (math.sqrt(r) if rslora else r)
        terms[layer] = shared.term(path, layer, a.read(), b.read(), scale, m.read().reshape(-1) if m else None)
    return Adapter(terms, full, {
        "form": "peft", "base_model": config.text("base_model_name_or_path"), "rank": rank, "alpha": alpha,
        "dropout": config.number("lora_dropout", 0), "rslora": rslora, "dora": dora,
        "targets": sorted({parts(layer)[1].rpartition(".")[2] for layer in terms})})


def whole_name(ours, saved, name, path):
    """Our name of a weight that was trained whole: one of modules_to_save, or an embedding, which is saved where it
    was resized."""
    ours = re.sub(r"\.(modules_to_save\.\w+|base_layer)\.", ".", ours)
    module = ours.rpartition(".")[0]
    last = module.rpartition(".")[2]
    if not any(one and module.endswith(one) for one in saved) and \
            last not in (*shared.EMBEDDINGS, "lm_head"):
        raise NotImplementedError(f"{path}: {name} is no tensor of LoRA, and modules_to_save does not name it "
                                  f"({listed(saved) or 'it is empty'})")
    return shared.weight_name(ours)


class Patterns:
    """rank_pattern, alpha_pattern: values by a regular expression that the end of a module's name matches."""

    def __init__(self, config, key):
        values = config.values.get(key) or {}
        if not isinstance(values, dict):
            raise config.bad(key, "an object")
        self.config = shared.Config(config.path, values, f"{key}.")
        self.found = [(pattern, self.compiled(pattern)) for pattern in values]

    def compiled(self, pattern):
        within = self.config.within.rstrip(".")
        if len(pattern) > PATTERN_LENGTH or len(re.findall(r"[*+{]", pattern)) > REPETITIONS or \
                re.search(r"\)[*+{]|\\[1-9]|\(\?P", pattern):
            raise NotImplementedError(f"{self.config.path}: {within} has {pattern!r:.80}; expected names of modules, "
                                      f"or expressions with at most {REPETITIONS} repetitions and none of a group")
        try:
            return re.compile(rf"(.*\.)?({pattern})$")
        except (re.error, OverflowError, RecursionError) as error:
            raise mx.Error(f"{self.config.path}: {within} has {pattern!r:.80}: {error}") from None

    def of(self, module, usual, kind):
        """The value for a module, a "rank" or a "number"."""
        for pattern, expression in self.found:
            if expression.match(module):
                return self.config.rank(pattern) if kind == "rank" else self.config.number(pattern)
        return usual


# ---- writing ----

def contents(adapter: Adapter, base: shared.Base | None) -> dict[str, Any]:
    if not adapter.terms:
        raise ValueError("PEFT's form needs low-rank terms; mlx-lm's holds whole weights alone")
    tensors = {}
    for layer, term in adapter.terms.items():
        at = PREFIX + layer
        tensors |= {f"{at}.lora_A.weight": term.a, f"{at}.lora_B.weight": term.b}
        if term.magnitude is not None:
            tensors[f"{at}.lora_magnitude_vector"] = term.magnitude
    tensors |= {PREFIX + name: array for name, array in adapter.full.items()}
    return {WEIGHTS: shared.safetensors_of(tensors), CONFIG: shared.json_of(config_of(adapter, base))}


def config_of(adapter, base):
    rslora = bool(adapter.meta.get("rslora"))
    alphas = {layer: exact_alpha(one.scale, one.rank, rslora) for layer, one in adapter.terms.items()}
    ranks = {layer: one.rank for layer, one in adapter.terms.items()}
    rank, alpha = (shared.most_common(list(values.values())) if values else 8 for values in (ranks, alphas))
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": adapter.meta.get("base_model"),
        "r": rank, "lora_alpha": alpha, "lora_dropout": adapter.meta.get("dropout") or 0.0, "use_rslora": rslora,
        "use_dora": shared.is_dora(adapter, "PEFT"), "bias": "none", "fan_in_fan_out": False, "inference_mode": True,
        "init_lora_weights": True, "target_modules": targets(list(adapter.terms), base),
        "modules_to_save": sorted({name.rpartition(".")[0] for name in adapter.full}) or None,
        "rank_pattern": {layer: value for layer, value in ranks.items() if value != rank},
        "alpha_pattern": {layer: value for layer, value in alphas.items() if value != alpha}}


def exact_alpha(scale, rank, rslora):
    return shared.whole(float(f"{scale * (math.sqrt(rank) if rslora else rank):.12g}"))


def targets(layers, base):
    """Names that select these layers and, where the model is known, no others: last parts of names where they do."""
    short = sorted({layer.rpartition(".")[2] for layer in layers})
    if base is None:
        return layers
    meant = [name.removesuffix(".weight") for name in base.shapes
             if name.endswith(".weight") and name.split(".")[-2] in short and len(base.shapes[name]) == 2]
    return short if sorted(meant) == sorted(layers) else layers
