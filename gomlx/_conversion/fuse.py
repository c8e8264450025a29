"""fuse(): an adapter added to the weights of the model that it belongs to, tensor by tensor, as a new model."""
from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

from gomlx import _gomlx as mx
from gomlx._base import arguments, bars
from gomlx._base.bars import Progress
from gomlx._conversion import convert, difference, layouts, weights
from gomlx._conversion.weights import Grouped, Weight
from gomlx._files import architectures, names
from gomlx._files.adapters import read_adapter
from gomlx._files.adapters.shared import Base, weight_name
from gomlx._files.reading import read_json
from gomlx._training.adapter import Adapter, Term

# What the engine writes in place of forms that it only reads.
WRITTEN = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")


def fuse(source: str | os.PathLike[str], adapter: str | os.PathLike[str] | Adapter,
         destination: str | os.PathLike[str], quantize: str | None = None, *, overwrite: bool = False,
         progress: Progress = True, text: str | None = difference.TEXT) -> dict[str, Any]:
    """Writes a model with an adapter in its weights: each becomes W + scale * B @ A, of DoRA with rows brought to their
    magnitudes, and weights that were trained whole take the place of the model's.

    source       the model that the adapter belongs to: a folder, a .gguf file, or a name of the hub, as in load()
    adapter      a gomlx.Adapter, or the path of one in any form (read_adapter)
    destination  "x.gguf" for a GGUF file, else a folder. Nothing is left there when it fails or is interrupted.
    quantize     as in convert(). None: each weight in the form that it has in the source, quantised ones quantised
                 again (where that form is only read, in Q6_K or Q8_0); into another container, as convert() does.
    overwrite    whether what is at destination may be replaced, as in convert()
    progress     True shows a bar on a terminal or in a notebook, False none; a callable is called with numbers from 0
                 to 1
    text         what the new model and the source with its adapter are compared on, both with float32 activations; None
                 does not compare. Both are loaded, one after the other.

    Weights go through float32 one at a time. Returns a dict: destination, format ("gguf", "mlx" or "huggingface"),
    bytes, fused (names of weights that changed), requantised (those of them that were quantised, and are in the same
    form again), rounding (how far these are from what they should be, relative to how far the adapter moved them, root
    mean square; None: there are none), kl (mean divergence of the next token's distributions on the text, in nats;
    None: not measured, and why_no_kl says why).

    Raises what convert() and read_adapter() raise; ValueError for an adapter of another model names the tensor and both
    shapes, and where a weight would not be finite with the adapter, that weight."""
    source, destination, kind = convert.prepared(source, destination, quantize, overwrite, progress)
    if text is not None:
        arguments.text("text", text)
    is_gguf, from_gguf = destination.endswith(".gguf"), os.path.isfile(source)
    keep = kind is None and is_gguf == from_gguf
    with bars.reporting(progress, f"writing {os.path.basename(os.path.abspath(destination))}") as report:
        job = Fusing(report, adapter, kind, keep)
        if keep and not is_gguf:
            form = write_kept_folder(job, source, destination)
        else:
            read, change = (convert.read_gguf, job.in_gguf) if from_gguf else (convert.read_folder, job.in_folder)
            made = read(source, is_gguf, kind, lambda tensors, said: change(tensors, said, source))
            (convert.write_gguf if is_gguf else convert.write_folder)(job, destination, *made, kind)
            form = "gguf" if is_gguf else "mlx" if isinstance(kind, Grouped) else "huggingface"
    found = {"kl": None, "why_no_kl": "not asked for"} if text is None else \
        difference.between(source, job.adapter, destination, text)
    return {"destination": destination, "format": form, "bytes": job.bytes, "fused": job.fused,
            "requantised": job.requantised, "rounding": job.rounding()} | found


class Fusing(convert.Job):
    """A conversion that adds an adapter. kind: the form that was asked for; keep: weights keep theirs."""

    def __init__(self, progress, adapter, kind, keep):
        super().__init__(progress)
        self.given, self.kind, self.keep = adapter, kind, keep
        self.adapter: Adapter
        self.fused: list[str] = []
        self.requantised: list[str] = []
        self.moved = self.missed = 0.0          # squares, summed up

    def read(self, shapes, arch, config):
        """The adapter, checked against the weights' shapes."""
        base = Base(shapes, arch, config.get("head_dim"))
        if isinstance(self.given, Adapter):
            self.given.check(base.shapes)
            self.adapter = self.given
        else:
            self.adapter = read_adapter(self.given, base)
        if self.adapter.full and arch is not None and arch.recurrent:
            raise NotImplementedError(f"whole weights of {arch.model_type}, which containers hold in different layouts,"
                                      " are not fused; low-rank terms are")

    def rounding(self):
        return math.sqrt(self.missed / self.moved) if self.requantised and self.moved else None

    def in_gguf(self, tensors, header, path):
        """The tensors of a GGUF file, in its names and layouts."""
        arch, config = architectures.of_metadata(header, path)
        ours = {names.hf_name(arch, theirs): theirs for theirs in tensors}
        plain = {name: layouts.from_layout(tensors[theirs], name, arch, config) for name, theirs in ours.items()
                 if name is not None}
        self.read({name: w.shape for name, w in plain.items()}, arch, config)
        changed = {ours[name]: layouts.to_layout(w, name, arch, config) for name, w in self.changed(plain).items()}
        return tensors | {theirs: self.encoded(w, tensors[theirs].form) for theirs, w in changed.items()}

    def in_folder(self, tensors, config, path):
        """The tensors of a folder, in its names; quantised matrices are one."""
        arch, c = architectures.of_config(config, os.path.join(path, "config.json"))
        ours = {weight_name(theirs): theirs for theirs in tensors}
        plain = {name: tensors[theirs] for name, theirs in ours.items()}
        self.read({name: w.shape for name, w in plain.items()}, arch, c)
        return tensors | {ours[name]: self.encoded(w, plain[name].form) for name, w in self.changed(plain).items()}

    def changed(self, tensors) -> dict[str, Weight]:
        """What the adapter changes, in float32, under our names."""
        out = {}
        for layer, term in self.adapter.terms.items():
            name = layer + ".weight"
            out[name] = self.replaced(tensors[name], lambda old, term=term: with_term(old, term))
        for name, array in self.adapter.full.items():
            out[name] = self.replaced(tensors[name], lambda old, array=array: array.astype(mx.float32))
        self.fused = sorted(out)
        return out

    def replaced(self, w, change):
        """change(values) of a weight; counts how far it is from them where it will be quantised again."""
        if not weights.is_readable(w.form):
            raise NotImplementedError(f"{w.origin}: {w.form}, which cannot be read")

        def read():
            old = weights.decode(w.form, w.read())
            [new] = checked([change(old)], w.origin)
            if w.form not in weights.DENSE:
                self.moved += mx.sum(mx.square(new - old)).item()
            return [new]

        return dataclasses.replace(w.derived(read, form="F32"),
                                   check=lambda form, values: checked([values], w.origin, form))

    def encoded(self, w, form):
        """A changed weight in the form in which the conversion takes it. form: the source's."""
        if form in weights.DENSE:
            form = "F32" if isinstance(self.kind, str) else form
        elif not self.keep:                     # convert() gives it the destination's form
            form = "F32" if isinstance(self.kind, str) else "BF16"
        elif form in weights.BLOCKS and form not in WRITTEN:
            form = "Q6_K" if weights.fits("Q6_K", w.shape) else "Q8_0"
        if form in weights.DENSE:
            return w.derived(lambda: self.dense(w, form), form=form)
        self.requantised.append(w.origin.rpartition(": ")[2])
        return w.derived(lambda: self.quantised(w, form, None), form=form)

    def dense(self, w, form):
        """The array of a dense form."""
        return checked(weights.encode(form, w.read()[0]), w.origin, form)

    def quantised(self, w, form, scales):
        """The arrays of a quantised form; scales: the dtype of MLX's scales and biases."""
        values = w.read()[0]
        arrays = weights.encode(form, values)
        if scales is not None and isinstance(form, Grouped) and form.mode == "affine":
            arrays = [arrays[0], *(one.astype(scales) for one in arrays[1:])]
        missed = weights.decode(form, arrays) - values
        checked([missed], w.origin, form)
        self.missed += mx.sum(mx.square(missed)).item()
        return arrays


def checked(arrays, origin, form="float32"):
    """The arrays; ValueError where they are not finite, as values beyond float16's largest in it, or in its scales."""
    if not all(mx.all(mx.isfinite(one)).item() for one in arrays):
        raise ValueError(f"{origin}: with the adapter it is not finite in {form}")
    return arrays


def with_term(weight: mx.array, term: Term) -> mx.array:
    """[out, in] float32 with a term."""
    a, b = term.a.astype(mx.float32), term.b.astype(mx.float32)
    weight = weight + mx.matmul(b, a) * term.scale
    if term.magnitude is None:
        return weight
    lengths = mx.sqrt(mx.sum(mx.square(weight), axis=1, keepdims=True))
    return weight * (mx.reshape(term.magnitude.astype(mx.float32), [-1, 1]) / lengths)


# ---- folders whose weights keep their forms ----

def write_kept_folder(job, source, destination):
    """Every file and every tensor as it is, but those that the adapter changes. Returns the folder's format."""
    path = os.path.join(source, "config.json")
    config = read_json(path)
    if not config:
        raise FileNotFoundError(f"no config.json in {source!r}")
    stored = weights.folder_tensors(source)
    whole = weights.joined(stored, config, source)
    try:
        arch, c = architectures.of_config(config, path)
    except NotImplementedError:                 # its names are read all the same
        arch, c = None, {}
    ours = {weight_name(theirs): theirs for theirs in whole}
    plain = {name: whole[theirs] for name, theirs in ours.items()}
    job.read({name: w.shape for name, w in plain.items()}, arch, c)
    for name, w in job.changed(plain).items():
        old = whole[ours[name]]
        if not isinstance(old.form, Grouped):
            stored[ours[name]] = job.encoded(w, old.form)
            continue
        job.requantised.append(name)
        stem = ours[name].removesuffix(".weight")
        stored |= triple(job, w, old.form, {part: stored[f"{stem}.{part}"] for part in ("weight", "scales", "biases")
                                            if f"{stem}.{part}" in stored}, stem)
    convert.place_folder(job, destination, stored, {name: w.form for name, w in stored.items()}, config,
                         convert.companions(source))
    is_mlx = any(isinstance(w.form, Grouped) for w in whole.values())
    return "mlx" if is_mlx else "huggingface"


def triple(job, w, form, old, stem):
    """The tensors of a quantised matrix, which are computed together when the first of them is written."""
    made: dict[str, mx.array] = {}

    def read(part):
        if part not in made:
            scales = weights.DENSE.get(old["scales"].form)
            arrays = job.quantised(w, form, scales)
            mx.eval(arrays)
            made.update(zip(old, arrays, strict=True))
        return [made.pop(part)]

    return {f"{stem}.{part}": one.derived(lambda part=part: read(part)) for part, one in old.items()}
