"""Tensors of checkpoints that are read when they are needed, in whatever form they are stored, and their change from
one form to another."""
from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable

from gomlx import _gomlx as mx
from gomlx._conversion import mxfp4
from gomlx._files import gguf, headers, reading, safetensors, writing

DENSE = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
BLOCKS = {gguf.TYPES[kind][0]: gguf.TYPES[kind][1:] for kind in (*gguf.BLOCKS, *gguf.WIDENED)}
CHUNK = 1 << 24        # how many values are converted to float32 at a time


@dataclasses.dataclass(frozen=True)
class Grouped:
    """MLX's form of a quantised matrix: weight uint32, scales and, of mode affine, biases."""
    mode: str
    bits: int
    group: int

    def __str__(self):
        return f"{self.mode} {self.bits}-bit, groups of {self.group}"

    def of(self):
        return {"mode": self.mode, "bits": self.bits, "group_size": self.group}


@dataclasses.dataclass
class Weight:
    """shape: of the values. form: a key of DENSE or BLOCKS, another word for what can only be copied ("NVFP4", "I32"),
    or Grouped. read(): the arrays of the form; blocks are uint8 [..., bytes of a row]. Rows are along axis -2 of
    matrices and of stacks of them, along axis -1 of vectors and of stacks of biases (is_bias). check(form, values):
    told what it is in another form."""
    shape: tuple
    form: str | Grouped
    read: Callable
    origin: str = ""
    is_bias: bool = False
    check: Callable | None = None

    @property
    def is_vector(self):
        return len(self.shape) == 1 or self.is_bias

    @property
    def size(self):
        return math.prod(self.shape)

    def derived(self, read, shape=None, form=None, is_bias=None):
        return Weight(tuple(self.shape if shape is None else shape), self.form if form is None else form, read,
                      self.origin, self.is_bias if is_bias is None else is_bias, self.check)

    def encoded(self, form, values):
        """The arrays of a form for values of it."""
        arrays = encode(form, values)
        if self.check is not None:
            self.check(form, decode(form, arrays))
        return arrays

    def rows(self, index):
        """The rows that index, a list of ints, names, in its order: bits do not change."""
        axis = -1 if self.is_vector else -2
        shape = list(self.shape)
        shape[axis] = len(index)
        taken = mx.array(index, mx.int32)
        return self.derived(lambda: [mx.take(a, taken, axis=a.ndim + axis) for a in self.read()], shape)

    def part(self, i):
        """Item i of a stack."""
        return self.derived(lambda: [a[i] for a in self.read()], self.shape[1:])

    def reshaped(self, shape):
        """The same elements, of a dense form, in another shape."""
        self.check_dense()
        return self.derived(lambda: [mx.reshape(a, list(shape)) for a in self.read()], shape)

    def moved(self, f, shape):
        """f(array), where f only moves elements of a dense array; other forms are converted to float32 first."""
        if self.form in DENSE:
            return self.derived(lambda: [f(self.read()[0])], shape)
        return self.derived(lambda: [f(decode(self.form, self.read()))], shape, "F32")

    def computed(self, f, form="F32"):
        """The weight f(values), with the values in float32."""
        return self.derived(lambda: [f(decode(self.form, self.read())).astype(DENSE[form])], form=form)

    def check_dense(self):
        if self.form not in DENSE:
            raise mx.Error(f"{self.origin}: {self.form}, expected one of {', '.join(DENSE)}")


def stack(weights):
    """One weight [n, ...] of n weights with the same shape and form."""
    first = weights[0]
    for w in weights:
        if w.shape != first.shape or w.form != first.form:
            raise mx.Error(f"{w.origin}: {list(w.shape)} in {w.form}, expected {list(first.shape)} in {first.form} as "
                           f"in {first.origin}")

    def read():
        columns = zip(*(w.read() for w in weights))
        return [mx.stack(list(column)) for column in columns]

    return first.derived(read, (len(weights), *first.shape), is_bias=len(first.shape) == 1)


# ---- forms ----

def decode(form, arrays):
    """The values, float32."""
    if form in DENSE:
        return arrays[0].astype(mx.float32)
    if isinstance(form, Grouped):
        weight, scales, *biases = arrays
        if form.mode == "affine":
            scales, biases = scales.astype(mx.float32), [biases[0].astype(mx.float32)]
        return mx.dequantize(weight, scales, *biases, group_size=form.group, bits=form.bits,
                             mode=form.mode).astype(mx.float32)
    if form in BLOCKS:
        return mx.fast.dequantize_blocks(arrays[0], form)
    raise NotImplementedError(f"weights in {form} cannot be read; readable are {', '.join([*DENSE, *BLOCKS])} and "
                              "MLX's formats")


def is_readable(form):
    return form in DENSE or form in BLOCKS or isinstance(form, Grouped)


def encode(form, array):
    """The arrays of a form for dense values."""
    if form in DENSE:
        return [array.astype(DENSE[form])]
    if isinstance(form, Grouped):
        return list(mx.quantize(array, group_size=form.group, bits=form.bits, mode=form.mode))
    return [mx.fast.quantize_blocks(array, form)]


def fits(form, shape):
    """Whether rows of this shape are whole blocks or groups of the form."""
    if form in DENSE:
        return True
    if len(shape) < 2:
        return False
    return shape[-1] % (form.group if isinstance(form, Grouped) else BLOCKS[form][0]) == 0


def form_bytes(form, shape):
    """Bytes of a dense form or of blocks."""
    size = math.prod(shape)
    if form in DENSE:
        return size * DENSE[form].size
    values, block = BLOCKS[form] if form in BLOCKS else gguf.TYPES[gguf.IDS[form]][1:]
    return size // values * block


def is_copied(source, target):
    """Whether a form keeps its values, perhaps with its bits in another order."""
    return source == target or {source, target} == {"MXFP4", Grouped("mxfp4", 4, 32)}


def converted(weight, form):
    """The arrays of the weight in another form: bit for bit when it is the same one, through float32 otherwise; from a
    dense form to Grouped in its own type, as mlx-lm does."""
    arrays = weight.read()
    if weight.form == form:
        return arrays
    if form == "MXFP4" and weight.form == Grouped("mxfp4", 4, 32):
        return [mxfp4.blocks_of_mxfp4(*arrays)]
    if weight.form == "MXFP4" and form == Grouped("mxfp4", 4, 32):
        return mxfp4.mxfp4_of_blocks(arrays[0])
    if isinstance(form, Grouped):
        values = arrays[0] if weight.form in DENSE else decode(weight.form, arrays).astype(mx.bfloat16)
        return weight.encoded(form, values)
    raise ValueError(f"{weight.origin}: {weight.form} to {form} goes by chunks")


def chunks(weight, form):
    """The bytes of the weight in a dense or a block form, some rows at a time."""
    arrays = weight.read()
    if is_copied(weight.form, form) and weight.form != form:
        arrays, form = converted(weight, form), weight.form
    width = weight.shape[-1] if weight.shape else 1
    rows = weight.size // width if width else 0
    flat = [mx.reshape(a, [rows, -1]) for a in arrays] if rows else []
    step = max(1, CHUNK // max(width, 1))
    for first in range(0, rows, step):
        some = [a[first:first + step] for a in flat]
        out = some if weight.form == form else weight.encoded(form, decode(weight.form, some))
        mx.eval(out)
        yield writing.bytes_of(out[0])


# ---- sources ----

def gguf_weights(path):
    """({key: (type, type of items, value)}, {name: Weight}) of a GGUF file; of the first of split ones, all."""
    metadata, weights, parts = {}, {}, headers.split_files(path)
    for i, part in enumerate(parts):
        data = reading.mapped(part)
        header, tensors = gguf.read_header(data, part)
        metadata = metadata or header
        count = header.get("split.count", (0, None, 1))[2]
        if i == 0 and isinstance(count, int) and count > 1 and len(parts) != count:
            raise mx.Error(f"{path}: one of {count} parts, which are not all beside it")
        for t in tensors:
            if t.name in weights:
                raise mx.Error(f"{part}: tensor {t.name} comes twice")
            weights[t.name] = gguf_weight(data, t, part)
    return metadata, weights


def gguf_weight(data, t, path):
    if t.kind not in gguf.TYPES:
        raise NotImplementedError(f"{path}: tensor {t.name} is of type {t.kind}, which is not known")
    form, values, size = gguf.TYPES[t.kind]

    def read():
        part = memoryview(data)[t.begin:t.end]
        if t.kind in gguf.PLAIN:
            return [reading.array_of(part, gguf.PLAIN[t.kind], t.shape)]
        return [reading.array_of(part, mx.uint8, [*t.shape[:-1], t.shape[-1] // values * size])]

    return Weight(tuple(t.shape), form, read, f"{path}: {t.name}", t.name.endswith(".bias") or "_exps.bias" in t.name)


def folder_weights(folder, config):
    """{name: Weight} of the safetensors in a folder, as the files name them; a quantised matrix of MLX is one."""
    return joined(folder_tensors(folder), config, folder)


def folder_tensors(folder):
    """The same, where the weight, scales and biases of a quantised matrix are three."""
    tensors = {}
    for file in headers.weight_files(folder):
        path = os.path.join(folder, file)
        with open(path, "rb") as stream:
            header, _ = safetensors.read_header(stream, path)
        data = reading.mapped(path) if header else b""
        for name, entry in header.items():
            if name in tensors:
                raise mx.Error(f"{path}: tensor {name} is in another file too")
            tensors[name] = tensor_weight(data, name, entry, path)
    return tensors


def tensor_weight(data, name, entry, path):
    word, shape, begin, end = entry
    return Weight(tuple(shape), word, lambda: [reading.array_of(memoryview(data)[begin:end], safetensors.DTYPES[word],
                                                                shape)],
                  f"{path}: {name}", name.endswith("bias"))


def joined(tensors, config, folder):
    """Weights, scales and biases that belong together as one Weight."""
    scheme = config.get("quantization") or config.get("quantization_config") or {}
    method = scheme.get("quant_method")
    if method not in (None, "mxfp4"):
        raise NotImplementedError(f"{os.path.join(folder, 'config.json')}: quant_method {method!r}; readable are MLX's "
                                  "formats and 'mxfp4'")
    weights = {}
    for name, w in tensors.items():
        stem = name.removesuffix(".weight")
        if name.endswith(".scales") and name.removesuffix("scales") + "weight" in tensors \
                or name.endswith(".biases") and name.removesuffix("biases") + "scales" in tensors:
            continue
        if name.endswith("_scales") and name.removesuffix("scales") + "blocks" in tensors:
            continue
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            weights[stem] = mxfp4_weight(w, tensors.get(stem + "_scales"), name)
        elif name.endswith(".weight") and stem + ".scales" in tensors:
            weights[name] = grouped_weight(stem, tensors, scheme)
        else:
            weights[name] = w
    return weights


def mxfp4_weight(blocks, scales, name):
    if scales is None or blocks.form != "U8" or scales.form != "U8" or blocks.shape[-1] != 16 \
            or blocks.shape[:-1] != scales.shape:
        raise mx.Error(f"{blocks.origin}: {list(blocks.shape)}, expected bytes [..., groups, 16] and scales "
                       "[..., groups]")

    def read():
        bytes_of = mx.reshape(blocks.read()[0], [*blocks.shape[:-2], blocks.shape[-2] * 16])
        return [mx.view(bytes_of, mx.uint32), scales.read()[0]]

    return blocks.derived(read, (*blocks.shape[:-2], blocks.shape[-2] * 32), Grouped("mxfp4", 4, 32))


def grouped_weight(stem, tensors, scheme):
    weight, scales, biases = (tensors.get(f"{stem}.{part}") for part in ("weight", "scales", "biases"))
    own = scheme.get(stem, scheme.get(stem.removeprefix("language_model."), scheme))
    own = own if isinstance(own, dict) else scheme
    mode = own.get("mode", "affine")
    bits, group = own.get("bits", 4), own.get("group_size", 64)
    form = Grouped(mode, bits, group)
    whole = all(isinstance(n, int) for n in (bits, group)) and bits > 0 and len(weight.shape) > 1
    if not whole or weight.form != "U32" or weight.shape[:-1] != scales.shape[:-1] \
            or scales.shape[-1] * group * bits != weight.shape[-1] * 32 or (mode == "affine") != (biases is not None):
        raise mx.Error(f"{weight.origin}: {weight.form} {list(weight.shape)} with scales {list(scales.shape)} is not "
                       f"{form}, as config.json says")
    parts = [weight, scales] + ([biases] if biases is not None else [])
    return weight.derived(lambda: [p.read()[0] for p in parts], (*weight.shape[:-1], scales.shape[-1] * group), form)
