"""Arrays in files: npy, npz, safetensors and GGUF, with the functions of mlx.core.

Every length in a file is checked against what is there before it is used. Files are written under a temporary name
beside their own and renamed at the end: what read the old file goes on reading it.
"""
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

from . import _gomlx as mx

__all__ = ["load", "save", "save_gguf", "save_safetensors", "savez", "savez_compressed"]

SAFETENSORS = {"BOOL": mx.bool_, "U8": mx.uint8, "U16": mx.uint16, "U32": mx.uint32, "U64": mx.uint64, "I8": mx.int8,
               "I16": mx.int16, "I32": mx.int32, "I64": mx.int64, "F16": mx.float16, "BF16": mx.bfloat16,
               "F32": mx.float32, "F64": mx.float64, "C64": mx.complex64, "F8_E4M3": mx.uint8, "F8_E8M0": mx.uint8}
NPY = {"b1": mx.bool_, "u1": mx.uint8, "u2": mx.uint16, "u4": mx.uint32, "u8": mx.uint64, "i1": mx.int8, "i2": mx.int16,
       "i4": mx.int32, "i8": mx.int64, "f2": mx.float16, "V2": mx.bfloat16, "f4": mx.float32, "f8": mx.float64,
       "c8": mx.complex64}
MAX_HEADER = 100_000_000


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


def _parse_npy(data, name):
    def bad(what):
        return RuntimeError(f"load: {name} is no npy file: {what}")

    data = memoryview(data)
    if len(data) < 10 or bytes(data[:6]) != b"\x93NUMPY":
        raise bad("it does not begin with its magic")
    wide = data[6] >= 2
    if data[6] not in (1, 2, 3) or len(data) < 12:
        raise bad(f"version {data[6]}")
    length = struct.unpack("<I" if wide else "<H", data[8:12 if wide else 10])[0]
    start = (12 if wide else 10) + length
    if start > len(data):
        raise bad(f"a header of {length} bytes in a file of {len(data)}")
    try:
        text = bytes(data[12 if wide else 10:start]).decode("utf-8" if data[6] == 3 else "latin1")
        header = ast.literal_eval(text.strip())
        kind, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
        dtype = NPY.get(kind[1:]) if isinstance(kind, str) and kind[0] in "<>|=" else None
    except (ValueError, SyntaxError, KeyError, TypeError, IndexError, MemoryError, RecursionError) as error:
        raise bad("its header is not a dict of descr, fortran_order and shape") from error
    if dtype is None:
        raise bad(f"dtype {kind!r} is none of ours")
    if not isinstance(shape, tuple) or any(not isinstance(n, int) or n < 0 or n >= 1 << 31 for n in shape):
        raise bad(f"shape {shape!r}")
    size = math.prod(shape) * dtype.size
    if size > len(data) - start:
        raise bad(f"shape {shape} needs {size} bytes, {len(data) - start} are there")
    body = data[start:start + size]
    unit = 4 if dtype == mx.complex64 else dtype.size
    if kind[0] == ">" and unit > 1:
        body = b"".join(bytes(body[i:i + unit])[::-1] for i in range(0, size, unit))
    if not fortran or len(shape) < 2:
        return _array(body, dtype, shape)
    return mx.transpose(_array(body, dtype, shape[::-1]))


def save(file, arr):
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


def savez(file, *args, **kwargs):
    """Saves arrays in uncompressed .npz format: arr_0, arr_1, ... and those given by name."""
    _savez("savez", file, args, kwargs, zipfile.ZIP_STORED)


def savez_compressed(file, *args, **kwargs):
    """Saves arrays in compressed .npz format: arr_0, arr_1, ... and those given by name."""
    _savez("savez_compressed", file, args, kwargs, zipfile.ZIP_DEFLATED)


def _load_npz(file):
    try:
        with zipfile.ZipFile(file) as archive:
            return {name.removesuffix(".npy"): _parse_npy(archive.read(name), name) for name in archive.namelist()}
    except (OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"load: {file} is no zip file that can be read: {error}") from error


# ---- safetensors ----

def save_safetensors(file, arrays, metadata=None):
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
        return error(f"{name} is no safetensors file: {what}")

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
        raise bad("its header is no JSON object") from cause
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


def _parse_safetensors(stream, name):
    """(arrays, metadata); beside the arrays no more of the file than one tensor is in memory."""
    tensors, metadata = safetensors_header(stream, name, error=RuntimeError)
    arrays = {}
    for key, (word, shape, begin, end) in tensors.items():
        stream.seek(begin)
        data = stream.read(end - begin)
        if len(data) != end - begin:
            raise RuntimeError(f"load: {name} is no safetensors file: it became shorter while it was read")
        arrays[key] = _array(data, SAFETENSORS[word], shape)
    return arrays, metadata


# ---- load ----

def load(file, /, format=None, return_metadata=False, *, stream=None):
    """Loads an array, or a dict of arrays, from an npy, npz, safetensors or GGUF file (a path or a file object)."""
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
        return _parse_npy(_read("load", file), name)
    if format == "npz":
        return _load_npz(file)
    if format == "safetensors":
        with _opened("load", file) as opened:
            arrays, metadata = _parse_safetensors(opened, name)
    elif format == "gguf":
        if not _is_path(file):
            raise ValueError("load: GGUF is read from a path")
        from . import gguf_file
        arrays, metadata = gguf_file.parse(_read("load", file, ValueError), name)
    else:
        raise ValueError(f"load: got format {format!r}, expected npy, npz, safetensors or gguf")
    return (arrays, metadata) if return_metadata else arrays


def save_gguf(file, arrays, metadata=None):
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
