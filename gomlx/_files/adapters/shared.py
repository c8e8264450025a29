"""What the forms of adapters have in common: the base that they belong to, checked numbers, tensors, files."""
from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from gomlx import _gomlx as mx
from gomlx._files import architectures, names, reading, safetensors, writing
from gomlx._training.adapter import Adapter, Term, engine_of, listed, shapes_of

DENSE = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
MOST_RANK = 1 << 16
EMBEDDINGS = ("embed_tokens", "embed_tokens_per_layer")


@dataclass(frozen=True)
class Base:
    """What a form may need to know of the model that an adapter belongs to."""
    shapes: dict[str, tuple[int, ...]]          # of its weights, by name
    arch: architectures.Architecture | None = None
    head_dim: int | None = None

    @property
    def n_layers(self) -> int:
        return 1 + max((int(found[0]) for name in self.shapes if (found := names.parts(name))[0]), default=-1)

    def shape(self, layer: str) -> tuple[int, ...] | None:
        return self.shapes.get(layer + ".weight")


def base_of(model) -> Base | None:
    """Of a loaded model, of {weight: shape}, or of what is already one; None stays None."""
    if model is None or isinstance(model, Base):
        return model
    if isinstance(model, Mapping):
        return Base(dict(model))
    info = engine_of(model).info()
    return Base(shapes_of(model), architectures.named(info["architecture"]), info["head_dim"])


def check_is_file(path):
    """gomlx.Error for what is there and no file: reading a pipe would wait for ever."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise mx.Error(f"{path} is not a file")


# ---- config files ----

class Config:
    """An object of a JSON file, of which each value is checked as it is read; errors name file and key."""

    def __init__(self, path, values, within=""):
        self.path, self.values, self.within = path, values, within

    @classmethod
    def read(cls, path):
        check_is_file(path)
        return cls(path, reading.read_json(path))

    def bad(self, key, expected):
        value = self.values.get(key)
        return mx.Error(f"{self.path}: {self.within}{key} is {value!r:.80}, expected {expected}")

    def inner(self, key):
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.bad(key, "an object")
        return Config(self.path, value, f"{self.within}{key}.")

    def rank(self, key, default=None):
        value = self.values.get(key, default)
        if type(value) is not int or not 0 < value <= MOST_RANK:
            raise self.bad(key, f"a rank from 1 to {MOST_RANK}")
        return value

    def number(self, key, default=None):
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e30:    # NaN, too
            raise self.bad(key, "a finite number")
        return float(value)

    def flag(self, key):
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return bool(value)

    def text(self, key):
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def texts(self, key):
        """A list of texts; one alone is a list of it."""
        value = self.values.get(key)
        value = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.bad(key, "a text or a list of texts")
        return value


# ---- tensors ----

@dataclass(frozen=True)
class Stored:
    """A tensor of a file that has not been read yet."""
    shape: tuple[int, ...]
    word: str                                   # its type as the file names it
    read: Callable[[], mx.array]


def read_safetensors(path) -> dict[str, Stored]:
    with open(path, "rb") as stream:
        header, _ = safetensors.read_header(stream, path, any_dtype=True)
    data = reading.mapped(path) if header else b""
    return {name: stored(data, name, entry, path) for name, entry in header.items()}


def stored(data, name, entry, path):
    word, shape, begin, end = entry

    def read():
        if word not in DENSE:
            raise NotImplementedError(f"{path}: {name} is {word}; readable are {', '.join(DENSE)}")
        return reading.array_of(memoryview(data)[begin:end], DENSE[word], shape)

    return Stored(tuple(shape), word, read)


def layer_name(module, path):
    """Our name of a module of Hugging Face's or MLX's, one that can have low-rank terms."""
    name = names.without_prefix(module + ".weight").removesuffix(".weight")
    if name.startswith("layers."):              # of a model without its head
        name = "model." + name
    if re.search(r"(^|\.)(experts|switch_mlp|switch_glu)\.", name):
        raise NotImplementedError(f"{path}: {module}: low-rank terms of experts are not read; attention and dense "
                                  "layers are")
    if name.rpartition(".")[2] in EMBEDDINGS:
        raise NotImplementedError(f"{path}: {module}: low-rank terms of embeddings are not read; those of linear "
                                  "layers are")
    return name


def weight_name(name):
    """Our name of a weight of Hugging Face's or MLX's."""
    name = names.without_prefix(name)
    return "model." + name if name.startswith(("layers.", "embed_tokens.", "norm.")) else name


class Pairs:
    """The parts of terms by layer, in whatever order a file has them."""

    def __init__(self, path):
        self.path = path
        self.layers: dict[str, dict[str, Stored]] = {}

    def add(self, layer, part, tensor):
        parts = self.layers.setdefault(layer, {})
        if part in parts:
            raise mx.Error(f"{self.path}: {layer} has two tensors for {part}")
        parts[part] = tensor

    def items(self, dora, names_of) -> Iterator[tuple[str, Stored, Stored, Stored | None]]:
        """(layer, a, b, magnitude) of each; names_of: how the file calls a, b and magnitude."""
        for layer, parts in sorted(self.layers.items()):
            wanted = ("a", "b", "m") if dora else ("a", "b")
            missing = [names_of[part] for part in wanted if part not in parts]
            if missing:
                raise mx.Error(f"{self.path}: {layer} has no {' and no '.join(missing)}")
            if "m" in parts and not dora:
                raise mx.Error(f"{self.path}: {layer} has {names_of['m']}, and the config does not say that it is DoRA")
            for part in ("a", "b"):
                if len(parts[part].shape) != 2:
                    raise mx.Error(f"{self.path}: {names_of[part]} of {layer} is {list(parts[part].shape)}, expected "
                                   "two dimensions")
            yield layer, parts["a"], parts["b"], parts.get("m")


def term(path, layer, a, b, scale, magnitude=None) -> Term:
    """A Term whose error names the file."""
    try:
        return Term(a, b, scale, magnitude)
    except ValueError as error:
        raise mx.Error(f"{path}: {layer}: {error}") from None


# ---- one scale and one rank for all, where a form has no others ----

def most_common(values):
    return max(sorted(set(values)), key=values.count)


def of_one_scale(adapter: Adapter, ratio: Callable[[Term], float]) -> tuple[
        float, dict[str, tuple[mx.array, mx.array]]]:
    """(the ratio that most terms have, {layer: (a, b)}) with b multiplied where a term's is another. ratio(term): its
    scale as the form counts it."""
    found = {layer: ratio(one) for layer, one in adapter.terms.items()}
    common = most_common([one for one in found.values() if one] or [1.0])
    return common, {layer: (one.a, one.b if found[layer] == common else scaled(one.b, found[layer] / common))
                    for layer, one in adapter.terms.items()}


def scaled(b, factor):
    return (b.astype(mx.float32) * factor).astype(b.dtype)


def padded(a, b, rank):
    """a [rank, in] and b [out, rank] with zeros for the ranks that they have not."""
    more = rank - a.shape[0]
    return (a, b) if not more else (mx.concatenate([a, mx.zeros([more, a.shape[1]], dtype=a.dtype)], axis=0),
                                    mx.concatenate([b, mx.zeros([b.shape[0], more], dtype=b.dtype)], axis=1))


def check_no_more_than_terms(adapter, form, magnitudes=False):
    """NotImplementedError for what the form cannot hold."""
    if adapter.full:
        raise NotImplementedError(f"{form} holds low-rank terms only; this adapter has whole weights, "
                                  f"{listed(list(adapter.full))}")
    count = sum(one.magnitude is not None for one in adapter.terms.values())
    if count and not magnitudes:
        raise NotImplementedError(f"{form} holds no magnitudes; {count} layers of this adapter have them (DoRA)")


def is_dora(adapter, form):
    """Whether it is DoRA; ValueError where some layers are and others not."""
    count = sum(one.magnitude is not None for one in adapter.terms.values())
    if 0 < count < len(adapter.terms):
        raise ValueError(f"{count} of {len(adapter.terms)} layers have magnitudes (DoRA); {form} has them for all or "
                         "for none")
    return count > 0


# ---- writing ----

def safetensors_of(tensors: Mapping[str, mx.array]) -> Iterator[bytes]:
    """The bytes of a safetensors file, one tensor after another."""
    words = {repr(dtype): word for word, dtype in DENSE.items()}
    entries = []
    for name, array in tensors.items():
        if repr(array.dtype) not in words:
            raise ValueError(f"{name} is {array.dtype}, expected float32, float16 or bfloat16")
        entries.append((name, words[repr(array.dtype)], array.shape, array.nbytes))
    entries.sort(key=lambda one: -DENSE[one[1]].size)           # wide elements first: all are aligned
    yield safetensors.head(entries, {"format": "pt"})
    for name, *_ in entries:
        yield writing.bytes_of(tensors[name])


def json_of(values) -> Iterator[bytes]:
    yield json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def save_folder(folder, contents: Mapping[str, Iterator[bytes]]) -> None:
    """The files of a folder, all of them written under other names before the first of them is there. A folder that
    exists keeps what else is in it."""
    folder = os.path.abspath(folder)
    exists = os.path.isdir(folder)
    if not exists and os.path.lexists(folder):
        raise NotADirectoryError(f"{folder!r} is not a folder")
    with temporary_folder(folder, folder if exists else os.path.dirname(folder)) as temporary:
        for name, parts in contents.items():
            write(os.path.join(temporary, name), parts)
        if exists:
            for name in contents:
                os.replace(os.path.join(temporary, name), os.path.join(folder, name))
        else:
            os.chmod(temporary, 0o777 & ~writing.umask())
            os.rename(temporary, folder)


@contextmanager
def temporary_folder(destination, parent):
    """A folder in parent, which is gone after the block; what cannot be written there is told of the destination."""
    if not os.path.isdir(parent):
        raise FileNotFoundError(f"no folder {parent!r} to write to")
    made = ""
    try:
        made = tempfile.mkdtemp(prefix=f".{os.path.basename(destination)}.", dir=parent)
        yield made
    except OSError as error:
        if error.errno is None or error.filename not in (None, made) and os.path.dirname(error.filename) != made:
            raise
        raise type(error)(error.errno, f"cannot write {destination}: {error.strerror}; what was there is unchanged") \
            from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def write(path, parts):
    with open(path, "wb") as stream:
        stream.writelines(parts)
        stream.flush()
        os.fsync(stream.fileno())


def whole(value):
    """A number as an integer where it is one."""
    return int(value) if math.isfinite(value) and value == int(value) else value
