"""Adapter: what a fine-tuning adds to a model's weights, whatever file it comes from."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gomlx import _gomlx as mx
from gomlx._base import arguments
from gomlx._base.places import on_the_processor

if TYPE_CHECKING:
    from gomlx._generation.model import Model

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
MOST_SCALE = 1e30               # as in files: what is multiplied by it stays within float32
LISTED = 8                      # names in an error


# A term as the engine takes it: layer, a, b, scale; with magnitudes these and the squared lengths of its matrix's rows.
EngineTerm = tuple[str, mx.array, mx.array, float] | tuple[str, mx.array, mx.array, float, mx.array, mx.array]


@dataclass(frozen=True)
class Term:
    """scale * (x @ a.T) @ b.T, added to what a linear layer of `in` inputs and `out` outputs gives."""
    a: mx.array                 # [rank, in], of a floating-point dtype, as is b
    b: mx.array                 # [out, rank]
    scale: float
    # [out], of DoRA: the length that each row of the sum of weight and term is brought to. None: they stay as they are.
    magnitude: mx.array | None = None

    def __post_init__(self) -> None:
        a, b, m = self.a, self.b, self.magnitude
        for name, array in (("a", a), ("b", b), ("magnitude", m)):
            if not isinstance(array, mx.array) and (array is not None or name != "magnitude"):
                raise arguments.WrongType(f"{name}: expected an mx.array, got {arguments.shown(array)}")
        if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1] or a.shape[0] < 1:
            raise ValueError(f"a is {list(a.shape)} and b {list(b.shape)}, expected [rank, in] and [out, rank]")
        if m is not None and m.shape != (b.shape[0],):
            raise ValueError(f"magnitude is {list(m.shape)}, expected [{b.shape[0]}], a number for each row of b "
                             f"{list(b.shape)}")
        for name, array in (("a", a), ("b", b), ("magnitude", m)):
            if array is not None and array.dtype not in FLOATS:
                raise ValueError(f"{name} is {array.dtype}, expected float32, float16 or bfloat16")
        if isinstance(self.scale, bool) or not isinstance(self.scale, (int, float)) or \
                not abs(self.scale) < MOST_SCALE:
            raise ValueError(f"scale is {arguments.shown(self.scale)}, expected a finite number below {MOST_SCALE:g}")

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of the layer that it belongs to."""
        return self.b.shape[0], self.a.shape[1]


class Adapter:
    """Low-rank terms by layer, and weights that replace the model's.

    terms   {layer: Term}, sorted; layers as the engine calls their weights, without ".weight":
            "model.layers.0.self_attn.q_proj"
    full    {weight: array}, sorted: trained whole ("model.norm.weight", "lm_head.weight")
    meta    what files say besides: "form" it was read from, "base_model", "rank", "alpha", "dropout", "rslora", "dora",
            "targets"; what is not known is not there
    """

    def __init__(self, terms: Mapping[str, Term], full: Mapping[str, mx.array] | None = None,
                 meta: Mapping[str, Any] | None = None) -> None:
        terms, full = arguments.mapping("terms", terms), arguments.mapping("full", full or {})
        if not terms and not full:
            raise ValueError("an adapter without terms and without weights")
        for what, items, kind in (("terms", terms, Term), ("full", full, mx.array)):
            for name, value in items.items():
                if not isinstance(name, str) or not isinstance(value, kind):
                    raise arguments.WrongType(f"{what}: expected {{name: {kind.__name__}}}, got {arguments.shown(name)}"
                                              f" with {arguments.shown(value)}")
        self.terms: dict[str, Term] = {layer: terms[layer] for layer in sorted(terms)}
        self.full: dict[str, mx.array] = {name: full[name] for name in sorted(full)}
        self.meta: dict[str, Any] = dict(meta or {})

    def parameters(self) -> dict[str, mx.array]:
        """All arrays by name, in the order of layers' names: of each layer "<layer>.lora_a" [rank, in],
        "<layer>.lora_b" [out, rank] and, of DoRA, "<layer>.magnitude" [out]; then weights that were trained whole."""
        found = {}
        for layer, term in self.terms.items():
            found |= {f"{layer}.lora_a": term.a, f"{layer}.lora_b": term.b}
            if term.magnitude is not None:
                found[f"{layer}.magnitude"] = term.magnitude
        return found | self.full

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return sum(array.size for array in self.parameters().values())

    @property
    def ranks(self) -> list[int]:
        """The ranks of its terms, each once."""
        return sorted({term.rank for term in self.terms.values()})

    def engine_terms(self, model: Model | mx.Model | None = None) -> list[EngineTerm]:
        """The terms as the engine takes them. model: the one that they are for, which magnitudes need.
        NotImplementedError for what it does not serve."""
        self.check_served()
        if any(term.magnitude is not None for term in self.terms.values()):
            if model is None:
                raise TypeError("engine_terms() needs the model for an adapter with magnitudes (DoRA)")
            self.check(model)
        return [(layer, term.a, term.b, term.scale) if term.magnitude is None else
                (layer, term.a, term.b, term.scale, term.magnitude, row_squares(engine_of(model), layer))
                for layer, term in self.terms.items()]

    def check_served(self) -> None:
        """NotImplementedError where the adapter has more than terms."""
        if self.full:
            raise NotImplementedError(f"the adapter replaces {len(self.full)} weights ({listed(list(self.full))}): "
                                      "fuse it into the model (gomlx.fuse) to run it")

    def check(self, model: Model | mx.Model | Mapping[str, tuple[int, ...]]) -> None:
        """Raises ValueError unless each term and each weight is finite and fits a layer of the model; the error names
        the tensor and both shapes, or an unknown layer and those that there are. model: a loaded one, or
        {weight: shape} of one."""
        shapes = shapes_of(model)
        layers = {name.removesuffix(".weight"): shape for name, shape in shapes.items() if len(shape) > 1}
        for layer, term in self.terms.items():
            if layer not in layers:
                raise ValueError(unknown("layer", layer, layers))
            if term.shape != tuple(layers[layer]):
                raise ValueError(f"{layer}: a is {list(term.a.shape)} and b {list(term.b.shape)}, expected [rank, in] "
                                 f"and [out, rank] for a weight [out, in] of {list(layers[layer])}")
        for name, array in self.full.items():
            if name not in shapes:
                raise ValueError(unknown("weight", name, shapes))
            if array.shape != tuple(shapes[name]):
                raise ValueError(f"{name} is {list(array.shape)}, expected {list(shapes[name])} as in the model")
        self.check_finite()

    @on_the_processor
    def check_finite(self) -> None:
        """Raises ValueError where an array has NaN or an infinity; the error names it."""
        named = self.parameters()
        finite = {name: mx.all(mx.isfinite(array)) for name, array in named.items()}
        mx.eval(list(finite.values()))
        wrong = [name for name, found in finite.items() if not found.item()]
        if wrong:
            raise ValueError(f"{listed(wrong)}: NaN or infinite numbers, expected finite ones")

    def __repr__(self) -> str:
        parts = []
        if self.terms:
            ranks = self.ranks
            rank = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
            dora = ", with magnitudes" if any(term.magnitude is not None for term in self.terms.values()) else ""
            parts.append(f"{len(self.terms)} layers of {rank}{dora}")
        if self.full:
            parts.append(f"{len(self.full)} whole weights")
        return f"<Adapter: {', '.join(parts)}, {self.count:,} parameters>"


def shapes_of(model) -> dict[str, tuple[int, ...]]:
    """{weight: shape} of a model, or of what is already that. Without names that several matrices share, which files of
    Qwen 3-Next hold as one tensor."""
    if isinstance(model, Mapping):
        return dict(model)
    engine = engine_of(model)
    names = Counter(engine.weight_names())
    return {name: engine.weight(name).shape for name, n in names.items() if n == 1}     # lazy: no weight is unpacked


def engine_of(model) -> mx.Model:
    """The engine of a loaded model, or what is already that."""
    engine = getattr(model, "_engine", model)
    if not isinstance(engine, mx.Model):
        raise arguments.WrongType(f"model: expected a loaded model or {{weight: shape}}, got {arguments.shown(model)}")
    return engine


def row_squares(engine: mx.Model, layer: str) -> mx.array:
    """float32 [out]: the squared length of each row of a layer's matrix, which is unpacked for that."""
    found = mx.sum(mx.square(engine.weight(layer + ".weight")), 1)
    mx.eval(found)
    return found


def unknown(what, name, names):
    """What to say of a name that the model has not: those that it has."""
    kind = kinds([name])[0]
    if kind in kinds(names):
        alike = [one for one in names if kinds([one])[0] == kind]
        return f"the model has no {what} {name!r}; it has {len(alike)} of this kind, {alike[0]!r} to {alike[-1]!r}"
    tied = " (its head is its embedding, which is not trained apart)" if kind.startswith("lm_head") else ""
    return f"the model has no {what} {name!r}{tied}; it has {listed(kinds(names))}"


def kinds(names):
    """Names with numbers of layers as *, each once."""
    return list(dict.fromkeys(".".join("*" if part.isdigit() else part for part in name.split(".")) for name in names))


def listed(names):
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
