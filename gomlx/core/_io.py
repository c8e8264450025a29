"""Arrays in files: npy, npz, safetensors and GGUF, with the functions of mlx.core.

Every length in a file is checked against what is there before it is used. Files are written under a temporary name
beside their own and renamed at the end: what read the old file goes on reading it.
"""
from __future__ import annotations

import ast
import io
import math
import os
import struct
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, Literal, overload

from gomlx import _gomlx as mx
from gomlx._files import gguf, reading, safetensors, writing

if TYPE_CHECKING:
    from gomlx._gomlx import StreamOrDevice
    File = str | os.PathLike[str] | IO[bytes]

__all__ = ["load", "save", "save_gguf", "save_safetensors", "savez", "savez_compressed"]

NPY = {"b1": mx.bool_, "u1": mx.uint8, "u2": mx.uint16, "u4": mx.uint32, "u8": mx.uint64, "i1": mx.int8, "i2": mx.int16,
       "i4": mx.int32, "i8": mx.int64, "f2": mx.float16, "V2": mx.bfloat16, "f4": mx.float32, "f8": mx.float64,
       "c8": mx.complex64}
FEW_BYTES = 1 << 16    # npy files with fewer are read at once: thousands of them could be open otherwise


def _checked(function, arrays):
    for name, array in arrays.items():
        if not isinstance(name, str) or not isinstance(array, mx.array):
            raise TypeError(f"{function}: expected a dict of str to array, got {name!r}: {type(array).__name__}")


# ---- npy ----

def _npy_header(array):
    code = next(code for code, dtype in NPY.items() if dtype == array.dtype)
    order = "|" if code in ("b1", "u1", "i1") else "<"
    shape = "".join(f"{n}, " for n in array.shape)
    text = f"{{'descr': '{order}{code}', 'fortran_order': False, 'shape': ({shape}), }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def _write_npy(stream, array):
    stream.write(_npy_header(array))
    stream.write(writing.bytes_of(array))


def _npy_layout(read, size, name):
    """(dtype, whether the bytes of elements are in the other order, whether the first axis is the innermost, shape,
    first byte) of an npy file of that size, whose header read(n) gives from its start."""
    def bad(what):
        return RuntimeError(f"load: {name} is not an npy file: {what}")

    head = read(12)
    if len(head) < 10 or head[:6] != b"\x93NUMPY":
        raise bad("it does not begin with its magic")
    wide = head[6] >= 2
    if head[6] not in (1, 2, 3) or len(head) < 12:
        raise bad(f"version {head[6]}")
    length = struct.unpack("<I" if wide else "<H", head[8:12 if wide else 10])[0]
    start = (12 if wide else 10) + length
    if start > size:
        raise bad(f"a header of {length} bytes in a file of {size}")
    try:
        text = ((b"" if wide else head[10:]) + read(max(0, start - 12)))[:length].decode("utf-8" if head[6] == 3
                                                                                         else "latin1")
        header = ast.literal_eval(text.strip())
        kind, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
        dtype = NPY.get(kind[1:]) if isinstance(kind, str) and kind[0] in "<>|=" else None
    except (ValueError, SyntaxError, KeyError, TypeError, IndexError, MemoryError, RecursionError) as error:
        raise bad("its header is not a dict of descr, fortran_order and shape") from error
    if dtype is None:
        raise bad(f"dtype {kind!r} is none of ours")
    if not isinstance(shape, tuple) or any(not isinstance(n, int) or n < 0 or n >= 1 << 31 for n in shape):
        raise bad(f"shape {shape!r}")
    if math.prod(shape) * dtype.size > size - start:
        raise bad(f"shape {shape} needs {math.prod(shape) * dtype.size} bytes, {size - start} are there")
    return dtype, kind[0] == ">" and dtype.size > 1, bool(fortran) and len(shape) > 1, shape, start


def _parse_npy(data, name):
    """The array of the bytes of an npy file."""
    stream = io.BytesIO(data)
    dtype, swapped, fortran, shape, start = _npy_layout(stream.read, len(data), name)
    body = memoryview(data)[start:start + math.prod(shape) * dtype.size]
    unit = 4 if dtype == mx.complex64 else dtype.size
    if swapped:
        body = b"".join(bytes(body[i:i + unit])[::-1] for i in range(0, len(body), unit))
    return mx.transpose(reading.array_of(body, dtype, shape[::-1])) if fortran else reading.array_of(body, dtype, shape)


def _load_npy(file, name):
    with reading.opened("load", file) as stream:
        size = os.fstat(stream.fileno()).st_size
        dtype, swapped, fortran, shape, start = _npy_layout(stream.read, size, name)
        array, = mx._file_arrays(stream.fileno(), str(name), [(dtype, shape[::-1] if fortran else shape, start)],
                                 swapped)
    if array.nbytes < FEW_BYTES:
        mx.eval(array)
    return mx.transpose(array) if fortran else array


def save(file: File, arr: mx.array) -> None:
    """Saves the array in .npy format, to a path or a file object."""
    if not isinstance(arr, mx.array):
        raise TypeError(f"save: expected an array, got {type(arr).__name__}")
    writing.replace("save", file, ".npy", lambda stream: _write_npy(stream, arr))


# ---- npz ----

def _savez(function, file, args, kwargs, compression):
    arrays = dict(kwargs)
    for i, array in enumerate(args):
        if f"arr_{i}" in arrays:
            raise ValueError(f"{function}: arr_{i} comes by position and by name")
        arrays[f"arr_{i}"] = array
    _checked(function, arrays)

    def write(stream):
        with zipfile.ZipFile(stream, "w", compression, allowZip64=True) as archive:
            for name, array in arrays.items():
                with archive.open(name + ".npy", "w", force_zip64=True) as member:
                    _write_npy(member, array)

    writing.replace(function, file, ".npz", write)


def savez(file: File, *args: mx.array, **kwargs: mx.array) -> None:
    """Saves arrays in uncompressed .npz format: arr_0, arr_1, ... and those given by name."""
    _savez("savez", file, args, kwargs, zipfile.ZIP_STORED)


def savez_compressed(file: File, *args: mx.array, **kwargs: mx.array) -> None:
    """Saves arrays in compressed .npz format: arr_0, arr_1, ... and those given by name."""
    _savez("savez_compressed", file, args, kwargs, zipfile.ZIP_DEFLATED)


def _load_npz(file):
    try:
        with zipfile.ZipFile(file) as archive:
            return {name.removesuffix(".npy"): _parse_npy(archive.read(name), name) for name in archive.namelist()}
    except (OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"load: {file} is not a zip file that can be read: {error}") from error


# ---- safetensors ----

def save_safetensors(file: File, arrays: dict[str, mx.array], metadata: dict[str, str] | None = None) -> None:
    """Saves a dict of arrays, and one of strings, in .safetensors format."""
    if not isinstance(arrays, dict):
        raise TypeError(f"save_safetensors: expected a dict of arrays, got {type(arrays).__name__}")
    _checked("save_safetensors", arrays)
    if metadata is not None and (not isinstance(metadata, dict) or
                                 any(not isinstance(v, str) for pair in metadata.items() for v in pair)):
        raise ValueError("save_safetensors: metadata must be a dict of str to str")
    # Widest first, so that every tensor begins at a multiple of its element's size.
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    words = {repr(dtype): word for word, dtype in reversed(safetensors.DTYPES.items()) if not word.startswith("F8")}
    head = safetensors.head([(name, words[repr(arrays[name].dtype)], arrays[name].shape, arrays[name].nbytes)
                             for name in names], metadata)

    def write(stream):
        stream.write(head)
        for name in names:
            stream.write(writing.bytes_of(arrays[name]))

    writing.replace("save_safetensors", file, ".safetensors", write)


def _load_safetensors(file, name):
    """(arrays, metadata). Of a path the arrays are read when they are evaluated; of a file object now, one after the
    other."""
    with reading.opened("load", file) as stream:
        tensors, metadata = safetensors.read_header(stream, name, error=RuntimeError)
        if reading.is_regular(file):
            extents = [(safetensors.DTYPES[word], shape, begin) for word, shape, begin, _ in tensors.values()]
            return dict(zip(tensors, mx._file_arrays(stream.fileno(), str(name), extents, False))), metadata
        arrays = {}
        for key, (word, shape, begin, end) in tensors.items():
            stream.seek(begin)
            arrays[key] = reading.array_of(stream.read(end - begin), safetensors.DTYPES[word], shape)
    return arrays, metadata


# ---- load ----

@overload
def load(file: File, /, format: str | None = None, *, return_metadata: Literal[True],
         stream: StreamOrDevice = None) -> tuple[dict[str, mx.array], dict[str, Any]]: ...
@overload
def load(file: File, /, format: Literal["npy"], return_metadata: Literal[False] = False, *,
         stream: StreamOrDevice = None) -> mx.array: ...
@overload
def load(file: File, /, format: Literal["npz", "safetensors", "gguf"], return_metadata: Literal[False] = False, *,
         stream: StreamOrDevice = None) -> dict[str, mx.array]: ...
@overload
def load(file: File, /, format: str | None = None, return_metadata: bool = False, *,
         stream: StreamOrDevice = None) -> Any: ...
def load(file: File, /, format: str | None = None, return_metadata: bool = False, *,
         stream: StreamOrDevice = None) -> Any:
    """Loads an array, or a dict of arrays, from an npy, npz, safetensors or GGUF file (a path or a file object).

    Arrays of safetensors and npy files that are given by path are lazy: the header is read and checked now, the values
    when they are evaluated; until then they take no memory and the file stays open. A file that is deleted, or replaced
    by another under its name, still gives its own values. One that is written to in place gives what is there when it
    is read; where it was cut short, evaluating is a RuntimeError that names it. What was evaluated depends on no file.
    """
    if not reading.is_path(file) and not hasattr(file, "read"):
        raise ValueError(f"load: expected a path or a file object opened for reading, got {type(file).__name__}")
    name = os.fspath(file) if reading.is_path(file) else getattr(file, "name", "a file object")
    if format is None:
        known = os.fspath(file) if reading.is_path(file) else file.name
        format = os.path.splitext(str(known))[1].removeprefix(".")
        if not format:
            raise ValueError(f"load: the format of {name} does not follow from its name; give format=")
    if return_metadata and format in ("npy", "npz"):
        raise ValueError(f"load: format {format} has no metadata")
    if format == "npy":
        return _load_npy(file, name) if reading.is_regular(file) else _parse_npy(reading.read("load", file), name)
    if format == "npz":
        return _load_npz(file)
    if format == "safetensors":
        arrays, metadata = _load_safetensors(file, name)
    elif format == "gguf":
        if not reading.is_path(file):
            raise ValueError("load: GGUF is read from a path")
        arrays, metadata = gguf.parse(reading.read("load", file, ValueError), name)
    else:
        raise ValueError(f"load: got format {format!r}, expected npy, npz, safetensors or gguf")
    return (arrays, metadata) if return_metadata else arrays


def save_gguf(file: File, arrays: dict[str, mx.array], metadata: dict[str, Any] | None = None) -> None:
    """Saves a dict of arrays, and one of strings, lists of strings and arrays of at most one dimension, as GGUF."""
    if not isinstance(arrays, dict):
        raise TypeError(f"save_gguf: expected a dict of arrays, got {type(arrays).__name__}")
    _checked("save_gguf", arrays)
    head, bodies = gguf.layout(arrays, metadata or {})

    def write(stream):
        stream.write(head)
        for array in bodies:
            data = writing.bytes_of(array)
            stream.write(data)
            stream.write(gguf.padding(len(data)))

    writing.replace("save_gguf", file, ".gguf", write)
