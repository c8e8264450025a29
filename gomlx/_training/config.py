"""LoRAConfig: which layers of a model get low-rank terms, of what size, and what these begin with."""
from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gomlx import _gomlx as mx
from gomlx._base import arguments
from gomlx._base.places import on_the_processor
from gomlx._files import architectures
from gomlx._files.names import parts
from gomlx._training.adapter import Adapter, Term, engine_of, row_squares, shapes_of

if TYPE_CHECKING:
    from gomlx._generation.model import Model

Init = Literal["normal", "kaiming", "gaussian"]
INITS = ("normal", "kaiming", "gaussian")
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens"
TIED = ("modules_to_save: {module}: the model's head is its embedding, one matrix, which is not trained as a whole "
        "(PEFT would train a copy for one of them)")
IN_A_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)\.weight$")


@dataclass(frozen=True)
class LoRAConfig:
    """Low-rank terms: a layer gives y = W x + scale * B (A x), where A [rank, in] and B [out, rank] are trained and W,
    in whatever format it is, stays as it is. B begins with zeros, so that the model begins as it is.

    rank        of A and B
    alpha       the scale is alpha / rank, or with rslora alpha / sqrt(rank)
    dropout     the share of a term's inputs that are left out in training, 0 to less than 1: drawn anew for each
                step, row and layer
    targets     the layers by the last parts of their names, "q_proj" or "self_attn.q_proj"; "all" is every matrix of
                every layer of the decoder, but for experts
    layers      which of the decoder's layers: None is all, a number the last so many, several numbers those
    dtype       of A and B: "float32", or "bfloat16", which takes half the memory and rounds each step
    init        of A: "normal" is N(0, 1/in) (the variance), "kaiming" uniform within 1/sqrt(in) (as PEFT's and mlx-lm's
                default), "gaussian" N(0, 1/rank**2) (as PEFT's "gaussian")
    rslora      rank-stabilised: https://arxiv.org/abs/2312.03732
    dora        with a trained length of each row of W + scale * B A: https://arxiv.org/abs/2402.09353
    seed        of A: a layer's A depends on the seed and the layer's name alone
    modules_to_save     modules by the last parts of their names that are trained themselves, as a whole, beside the
                terms: "lm_head", "embed_tokens", "norm" (the last one), "input_layernorm", "q_norm", "o_proj", ...;
                from what the model has, in float32. What it has quantised is trained on unquantised
    """
    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: str | Sequence[str] = ("q_proj", "v_proj")
    layers: int | Sequence[int] | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    init: Init = "normal"
    rslora: bool = False
    dora: bool = False
    seed: int = 0
    modules_to_save: Sequence[str] = ()

    def __post_init__(self) -> None:
        arguments.integer("rank", self.rank, 1, 1 << 16)
        arguments.integer("seed", self.seed, 0, 2**64 - 1)
        number("alpha", self.alpha, lambda value: value > 0, "more than 0")
        check_dropout(self.dropout)
        arguments.one_of("dtype", self.dtype, DTYPES)
        arguments.one_of("init", self.init, INITS)
        arguments.flag("rslora", self.rslora)
        arguments.flag("dora", self.dora)
        if self.targets != "all":
            names = arguments.sequence("targets", self.targets, "'all' or several names")
            if not names or not all(isinstance(one, str) and one for one in names):
                raise ValueError(f"targets: expected 'all' or several names, got {arguments.shown(self.targets)}")
            object.__setattr__(self, "targets", tuple(names))
        modules = arguments.sequence("modules_to_save", self.modules_to_save, "names")
        if not all(isinstance(one, str) and one for one in modules):
            raise ValueError(f"modules_to_save: expected names, got {arguments.shown(self.modules_to_save)}")
        object.__setattr__(self, "modules_to_save", tuple(modules))
        if self.layers is not None and not isinstance(self.layers, int):
            numbers = arguments.sequence("layers", self.layers, "None, a number or several numbers")
            object.__setattr__(self, "layers", tuple(arguments.integer("layers", one, 0) for one in numbers))
            if not numbers:
                raise ValueError("layers: expected None, a number or several numbers, got none")
        elif self.layers is not None:
            arguments.integer("layers", self.layers, 1)

    @property
    def scale(self) -> float:
        """What the terms are multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; LoRAConfig(**values) is the way back."""
        return {name: list(value) if isinstance(value, tuple) else value
                for name, value in dataclasses.asdict(self).items()}


def number(name, value, fits, expected):
    """A finite number that fits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise arguments.WrongType(f"{name}: expected a number, got {arguments.shown(value)}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found) or not fits(found):
        raise ValueError(f"{name} is {arguments.shown(value)}, expected {expected}")
    return found


def lora_config(lora: Any) -> LoRAConfig:
    """The argument lora where it is no Adapter."""
    if lora is None:
        return LoRAConfig()
    if not isinstance(lora, LoRAConfig):
        raise arguments.WrongType(f"lora: expected a LoRAConfig or an Adapter, got {arguments.shown(lora)}")
    return lora


def check_dropout(value: Any) -> None:
    number("dropout", value, lambda share: 0 <= share < 1, "0 or more and less than 1")


def linear_layers(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, str]]:
    """{layer: (number of the decoder's layer, its name within it)} of the matrices that may have terms."""
    found = {}
    for name, shape in shapes.items():
        at = IN_A_LAYER.search(name)
        if at and len(shape) == 2 and min(shape) > 1 and "conv1d" not in name:
            found[name.removesuffix(".weight")] = (int(at[1]), at[2])
    return found


def chosen_layers(config: LoRAConfig, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The layers of a model that a config means, sorted. ValueError for a name that no layer has, or a layer that is
    not there; it lists those that are."""
    there = linear_layers(shapes)
    kinds = sorted({kind for _, kind in there.values()})
    count = 1 + max((at for at, _ in there.values()), default=-1)
    wanted = set(kinds)
    if config.targets != "all":
        wanted = set()
        for target in config.targets:
            alike = {kind for kind in kinds if kind == target or kind.endswith("." + target)}
            if not alike:
                raise ValueError(f"targets: no layer is called {target!r}; this model has "
                                 + ", ".join(sorted({kind.rpartition(".")[2] for kind in kinds})))
            wanted |= alike
    numbers = set(range(count))
    if isinstance(config.layers, int):
        if config.layers > count:
            raise ValueError(f"layers: the last {config.layers} of a model that has {count}")
        numbers = set(range(count - config.layers, count))
    elif config.layers is not None:
        beyond = sorted(set(config.layers) - numbers)
        if beyond:
            raise ValueError(f"layers: there is no layer {beyond[0]}, expected numbers from 0 to {count - 1}")
        numbers = set(config.layers)
    found = sorted(layer for layer, (at, kind) in there.items() if at in numbers and kind in wanted)
    if not found:
        raise ValueError(f"targets {config.targets} are in none of the layers {sorted(numbers)}")
    return found


def saved_weights(config: LoRAConfig, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The weights of the modules that a config has trained as a whole, sorted. ValueError for a name that no module
    has, NotImplementedError for what cannot be trained so."""
    found: set[str] = set()
    for wanted in config.modules_to_save:
        alike = {name for name in shapes if f".{module_of(name)}".endswith(f".{wanted}")}
        if not alike and wanted.rpartition(".")[2] == "lm_head":
            raise NotImplementedError(TIED.format(module=wanted))
        if not alike:
            there = sorted({module_of(name).rpartition(".")[2] for name in shapes if not why_not_whole(name, shapes)})
            raise ValueError(f"modules_to_save: no module is called {wanted!r}; those of this model that can be "
                             f"trained are {', '.join(there)}")
        found |= alike
    check_whole(found, shapes)
    return sorted(found)


def check_whole(names: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """NotImplementedError for a weight of a model that cannot be trained as a whole."""
    for name in sorted(names):
        why = why_not_whole(name, shapes)
        if why:
            raise NotImplementedError(why)


def why_not_whole(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """What is in the way of training a weight as a whole; "" where nothing is."""
    module, shape = module_of(name), shapes[name]
    if module == "lm_head" and "lm_head.bias" not in shapes:
        return ""
    if module == EMBEDDING:
        return "" if HEAD in shapes else TIED.format(module=EMBEDDING)
    matrix = shapes.get(f"{module}.weight", ())
    if IN_A_LAYER.search(f"{module}.weight") and len(matrix) == 2 and "conv1d" not in module:
        return ""
    if len(shape) == 1 and "norm" in module.rpartition(".")[2] and ".linear_attn." not in module:
        return ""
    return f"modules_to_save: {name} is not trained as a whole; matrices of layers are, norms, embed_tokens and lm_head"


def module_of(name: str) -> str:
    return name.rpartition(".")[0]


def centred(model: Model | mx.Model, names: Iterable[str]) -> set[str]:
    """Those of a model's weights that it has with 1 added to what files of adapters have."""
    known = architectures.named(engine_of(model).info()["architecture"])
    return {name for name in names if known is not None and parts(name)[1] in known.centred}


def first_a(config: LoRAConfig, layer: str, columns: int) -> mx.array:
    """A [rank, columns] of a layer, as it begins."""
    seed = hashlib.sha256(f"{config.seed}:{layer}".encode()).digest()
    key, shape = mx.random.key(int.from_bytes(seed[:8], "little")), [config.rank, columns]
    if config.init == "kaiming":
        bound = 1 / math.sqrt(columns)
        made = mx.random.uniform(-bound, bound, shape, dtype=mx.float32, key=key)
    else:
        deviation = 1 / math.sqrt(columns) if config.init == "normal" else 1 / config.rank
        made = mx.random.normal(shape, dtype=mx.float32, scale=deviation, key=key)
    return made.astype(DTYPES[config.dtype])


@on_the_processor
def new_adapter(model: Model | mx.Model, config: LoRAConfig) -> Adapter:
    """The adapter that a config begins with for a model."""
    if not isinstance(config, LoRAConfig):
        raise arguments.WrongType(f"config: expected a LoRAConfig, got {arguments.shown(config)}")
    shapes, terms, dtype = shapes_of(model), {}, DTYPES[config.dtype]
    for layer in chosen_layers(config, shapes):
        rows, columns = shapes[layer + ".weight"]
        magnitude = mx.sqrt(row_squares(engine_of(model), layer)).astype(dtype) if config.dora else None
        terms[layer] = Term(first_a(config, layer, columns), mx.zeros([rows, config.rank], dtype), config.scale,
                            magnitude)
    full = saved_weights(config, shapes)
    both = next((name for name in full if module_of(name) in terms), None)
    if both is not None:
        raise ValueError(f"modules_to_save: {module_of(both)} is one of the targets too, expected one or the other")
    plus_one, engine = centred(model, full), engine_of(model)
    whole = {name: (engine.weight(name).astype(mx.float32) - (name in plus_one)).astype(dtype) for name in full}
    made = Adapter(terms, whole, meta={"rank": config.rank, "alpha": config.alpha, "dropout": config.dropout,
                                "rslora": config.rslora, "dora": config.dora,
                                "targets": sorted({layer.rpartition(".")[2] for layer in terms})})
    mx.eval(list(made.parameters().values()))
    return made


def with_parameters(adapter: Adapter, parameters: Mapping[str, mx.array]) -> Adapter:
    """The adapter with other arrays under the names of its parameters()."""
    terms = {layer: Term(parameters[f"{layer}.lora_a"], parameters[f"{layer}.lora_b"], term.scale,
                         parameters.get(f"{layer}.magnitude")) for layer, term in adapter.terms.items()}
    return Adapter(terms, {name: parameters[name] for name in adapter.full}, adapter.meta)
