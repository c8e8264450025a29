"""Arrays in files: npy, npz, safetensors and GGUF, with the functions of mlx.core.

Every length in a file is checked against what is there before it is used. Files are written under a temporary name
beside their own and renamed at the end: what read the old file goes on reading it.
"""
from __future__ import annotations

import ast
import io
import json
import math
import mmap
import os
import struct
import tempfile
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, Literal, overload

from . import _gomlx as mx

if TYPE_CHECKING:
    from ._gomlx import StreamOrDevice
    File = str | os.PathLike[str] | IO[bytes]

__all__ = ["load", "save", "save_gguf", "save_safetensors", "savez", "savez_compressed"]

SAFETENSORS = {"BOOL": mx.bool_, "U8": mx.uint8, "U16": mx.uint16, "U32": mx.uint32, "U64": mx.uint64, "I8": mx.int8,
               "I16": mx.int16, "I32": mx.int32, "I64": mx.int64, "F16": mx.float16, "BF16": mx.bfloat16,
               "F32": mx.float32, "F64": mx.float64, "C64": mx.complex64, "F8_E4M3": mx.uint8, "F8_E8M0": mx.uint8}
NPY = {"b1": mx.bool_, "u1": mx.uint8, "u2": mx.uint16, "u4": mx.uint32, "u8": mx.uint64, "i1": mx.int8, "i2": mx.int16,
       "i4": mx.int32, "i8": mx.int64, "f2": mx.float16, "V2": mx.bfloat16, "f4": mx.float32, "f8": mx.float64,
       "c8": mx.complex64}
MAX_HEADER = 100_000_000
FEW_BYTES = 1 << 16    # an npy file of fewer is read at once: thousands of them may be open else


# ---- bytes and arrays ----

def _array(data, dtype, shape):
    """The array whose elements are the bytes, copied."""
    if math.prod(shape) == 0:
        return mx.zeros(list(shape), dtype=dtype)
    flat = mx.array(memoryview(data).cast("B"))
    if dtype == mx.bool_:
        return mx.reshape(flat != 0, list(shape))
    return mx.reshape(mx.view(flat, dtype), list(shape))


def _bytes(array):
    """The elements in row-major order."""
    if array.size == 0:
        return b""
    flat = mx.contiguous(mx.reshape(array, [-1]))
    return memoryview(flat if array.dtype == mx.bool_ else mx.view(flat, mx.uint8)).cast("B")


def _checked(function, arrays):
    for name, array in arrays.items():
        if not isinstance(name, str) or not isinstance(array, mx.array):
            raise TypeError(f"{function}: expected a dict of str to array, got {name!r}: {type(array).__name__}")


# ---- files ----

def _is_path(file):
    return isinstance(file, (str, os.PathLike))


def _is_regular(file):
    """Whether it is the path of a file that can be read in any order."""
    return _is_path(file) and os.path.isfile(file)


def _path(file, extension):
    path = os.fspath(file)
    path = os.fsdecode(path) if isinstance(path, bytes) else path
    return path if path.endswith(extension) else path + extension


def _write(function, file, extension, writer):
    """writer(stream), to a file object or to a path."""
    if not _is_path(file):
        if not hasattr(file, "write"):
            raise ValueError(f"{function}: expected a path or a file object opened for writing, got "
                             f"{type(file).__name__}")
        writer(file)
        return
    path = _path(file, extension)
    folder, name = os.path.split(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=name + ".", dir=folder or ".")
    except OSError as error:
        raise RuntimeError(f"{function}: cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            writer(stream)
        try:
            mode = os.stat(path).st_mode & 0o777
        except OSError:
            mode = 0o666 & ~_umask()
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _opened(function, file, error=RuntimeError):
    """A stream over a path, or over what is left of a file object."""
    if not _is_path(file):
        data = file.read()
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise ValueError(f"{function}: the file object gives {type(data).__name__}; open it for reading bytes")
        return io.BytesIO(data)
    try:
        return open(file, "rb")
    except OSError as cause:
        raise error(f"{function}: cannot open {os.fspath(file)}: {cause.strerror}") from cause


def mapped(path):
    """The bytes of a file, read as they are used."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _read(function, file, error=RuntimeError):
    with _opened(function, file, error) as stream:
        return stream.read()


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
    stream.write(_bytes(array))


def _npy_layout(read, size, name):
    """(dtype, whether the bytes of elements are in the other order, whether the first axis is the innermost, shape, first
    byte) of an npy file of that size, whose header read(n) gives from its start."""
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
        text = ((b"" if wide else head[10:]) + read(max(0, start - 12)))[:length].decode("utf-8" if head[6] == 3 else "latin1")
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
    return mx.transpose(_array(body, dtype, shape[::-1])) if fortran else _array(body, dtype, shape)


def _load_npy(file, name):
    with _opened("load", file) as stream:
        size = os.fstat(stream.fileno()).st_size
        dtype, swapped, fortran, shape, start = _npy_layout(stream.read, size, name)
        array, = mx._file_arrays(stream.fileno(), str(name), [(dtype, shape[::-1] if fortran else shape, start)], swapped)
    if array.nbytes < FEW_BYTES:
        mx.eval(array)
    return mx.transpose(array) if fortran else array


def save(file: File, arr: mx.array) -> None:
    """Saves the array in .npy format, to a path or a file object."""
    if not isinstance(arr, mx.array):
        raise TypeError(f"save: expected an array, got {type(arr).__name__}")
    _write("save", file, ".npy", lambda stream: _write_npy(stream, arr))


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

    _write(function, file, ".npz", write)


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
    # Widest first, so that every tensor lies at a multiple of its element's size.
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    words = {repr(dtype): word for word, dtype in reversed(SAFETENSORS.items()) if not word.startswith("F8")}
    head = safetensors_head([(name, words[repr(arrays[name].dtype)], arrays[name].shape, arrays[name].nbytes)
                             for name in names], metadata)

    def write(stream):
        stream.write(head)
        for name in names:
            stream.write(_bytes(arrays[name]))

    _write("save_safetensors", file, ".safetensors", write)


def safetensors_head(tensors, metadata=None):
    """What comes before the bytes of tensors, (name, dtype word, shape, bytes) one after another."""
    header, at = {} if metadata is None else {"__metadata__": metadata}, 0
    for name, word, shape, size in tensors:
        header[name] = {"dtype": word, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def safetensors_header(stream, name, any_dtype=False, error=mx.Error):
    """({name: (dtype word, shape, first byte, end)}, metadata) of a stream; every extent lies within it. any_dtype:
    with words that have no dtype here. What is wrong raises `error`."""
    def bad(what):
        return error(f"{name} is not a safetensors file: {what}")

    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    first = stream.read(8)
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
    if not 2 <= length <= min(MAX_HEADER, size - 8):
        raise bad(f"a header of {length} bytes in a file of {size}")
    try:
        header = json.loads(stream.read(length))
        metadata = header.pop("__metadata__", None) or {}
    except (ValueError, RecursionError, AttributeError, TypeError) as cause:
        raise bad("its header is not a JSON object") from cause
    start, tensors = 8 + length, {}
    for key, entry in header.items():
        try:
            word, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            dtype = SAFETENSORS.get(word)
        except (TypeError, KeyError, ValueError) as cause:
            raise bad(f"tensor {key!r} lacks dtype, shape or data_offsets") from cause
        if not isinstance(word, str) or (dtype is None and not any_dtype):
            raise bad(f"tensor {key!r} has dtype {word!r}")
        numbers = [begin, end, *shape] if isinstance(shape, list) else [-1]
        if any(type(n) is not int or n < 0 for n in numbers) or not begin <= end <= size - start \
                or any(n >= 1 << 31 for n in shape) \
                or (dtype is not None and math.prod(shape) * dtype.size != end - begin):
            raise bad(f"tensor {key!r} of shape {shape} cannot be bytes {begin} to {end} of {size - start}")
        tensors[key] = (word, shape, start + begin, start + end)
    return tensors, metadata


def _load_safetensors(file, name):
    """(arrays, metadata). Of a path the arrays are read when they are evaluated; of a file object now, one after the
    other."""
    with _opened("load", file) as stream:
        tensors, metadata = safetensors_header(stream, name, error=RuntimeError)
        if _is_regular(file):
            places = [(SAFETENSORS[word], shape, begin) for word, shape, begin, _ in tensors.values()]
            return dict(zip(tensors, mx._file_arrays(stream.fileno(), str(name), places, False))), metadata
        arrays = {}
        for key, (word, shape, begin, end) in tensors.items():
            stream.seek(begin)
            arrays[key] = _array(stream.read(end - begin), SAFETENSORS[word], shape)
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
    by another under its name, still gives its own values. One that is written to in place gives what is there when it is
    read; where it was cut short, evaluating is a RuntimeError that names it. What was evaluated depends on no file.
    """
    if not _is_path(file) and not hasattr(file, "read"):
        raise ValueError(f"load: expected a path or a file object opened for reading, got {type(file).__name__}")
    name = os.fspath(file) if _is_path(file) else getattr(file, "name", "a file object")
    if format is None:
        known = os.fspath(file) if _is_path(file) else file.name
        format = os.path.splitext(str(known))[1].removeprefix(".")
        if not format:
            raise ValueError(f"load: the format of {name} does not follow from its name; give format=")
    if return_metadata and format in ("npy", "npz"):
        raise ValueError(f"load: format {format} has no metadata")
    if format == "npy":
        return _load_npy(file, name) if _is_regular(file) else _parse_npy(_read("load", file), name)
    if format == "npz":
        return _load_npz(file)
    if format == "safetensors":
        arrays, metadata = _load_safetensors(file, name)
    elif format == "gguf":
        if not _is_path(file):
            raise ValueError("load: GGUF is read from a path")
        from . import gguf_file
        arrays, metadata = gguf_file.parse(_read("load", file, ValueError), name)
    else:
        raise ValueError(f"load: got format {format!r}, expected npy, npz, safetensors or gguf")
    return (arrays, metadata) if return_metadata else arrays


def save_gguf(file: File, arrays: dict[str, mx.array], metadata: dict[str, Any] | None = None) -> None:
    """Saves a dict of arrays, and one of strings, lists of strings and arrays of at most one dimension, as GGUF."""
    from . import gguf_file
    if not isinstance(arrays, dict):
        raise TypeError(f"save_gguf: expected a dict of arrays, got {type(arrays).__name__}")
    _checked("save_gguf", arrays)
    head, bodies = gguf_file.layout(arrays, metadata or {})

    def write(stream):
        stream.write(head)
        for array in bodies:
            data = _bytes(array)
            stream.write(data)
            stream.write(gguf_file.padding(len(data)))

    _write("save_gguf", file, ".gguf", write)
