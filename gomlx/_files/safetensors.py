"""safetensors: the header of a file, read and made. Every length is checked against the file before it is used."""
import json
import math
import os
import struct

from gomlx import _gomlx as mx

DTYPES = {"BOOL": mx.bool_, "U8": mx.uint8, "U16": mx.uint16, "U32": mx.uint32, "U64": mx.uint64, "I8": mx.int8,
          "I16": mx.int16, "I32": mx.int32, "I64": mx.int64, "F16": mx.float16, "BF16": mx.bfloat16,
          "F32": mx.float32, "F64": mx.float64, "C64": mx.complex64, "F8_E4M3": mx.uint8, "F8_E8M0": mx.uint8}
MAX_HEADER = 100_000_000


def head(tensors, metadata=None):
    """The file up to the bytes of its tensors, (name, dtype word, shape, bytes) one after another."""
    header, at = {} if metadata is None else {"__metadata__": metadata}, 0
    for name, word, shape, size in tensors:
        header[name] = {"dtype": word, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def read_header(stream, name, any_dtype=False, error=mx.Error):
    """({name: (dtype word, shape, first byte, end)}, metadata) of a stream; every extent is within it. any_dtype:
    with words that have no dtype here. Raises `error` for a damaged file."""
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
            dtype = DTYPES.get(word)
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
