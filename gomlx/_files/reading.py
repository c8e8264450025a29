"""Reading files: streams, maps, JSON, and arrays of bytes."""
import io
import json
import math
import mmap
import os

from gomlx import _gomlx as mx


def is_path(file):
    return isinstance(file, (str, os.PathLike))


def is_regular(file):
    """Whether it is the path of a file that can be read in any order."""
    return is_path(file) and os.path.isfile(file)


def opened(function, file, error=RuntimeError):
    """A binary stream of the file at a path, or of the rest of a file object."""
    if not is_path(file):
        data = file.read()
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise ValueError(f"{function}: the file object gives {type(data).__name__}; open it for reading bytes")
        return io.BytesIO(data)
    try:
        return open(file, "rb")
    except OSError as cause:
        raise error(f"{function}: cannot open {os.fspath(file)}: {cause.strerror}") from cause


def read(function, file, error=RuntimeError):
    with opened(function, file, error) as stream:
        return stream.read()


def mapped(path):
    """The bytes of a file, mapped into memory."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def read_json(path):
    """The object in a JSON file; {} when there is no such file."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read().decode())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise mx.Error(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise mx.Error(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def array_of(data, dtype, shape):
    """An array of the shape and dtype with a copy of the bytes."""
    if math.prod(shape) == 0:
        return mx.zeros(list(shape), dtype=dtype)
    flat = mx.array(memoryview(data).cast("B"))
    if dtype == mx.bool_:
        return mx.reshape(flat != 0, list(shape))
    return mx.reshape(mx.view(flat, dtype), list(shape))
