"""Bodies of requests, as JSON objects within bounds."""
from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from starlette.requests import ClientDisconnect, Request

from gomlx.serve.errors import Refused

MAX_DEPTH = 64                  # of nested values
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
BODY_SECONDS = 30               # for all of a body to come


async def read(request: Request, most: int) -> dict[str, Any]:
    """The body as a dict. Refused where it is larger than `most` bytes, slower than BODY_SECONDS, or no JSON object."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await _bytes(request, most)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {BODY_SECONDS} seconds") from None
    except ClientDisconnect:
        raise Refused(400, "the client went away before its body was complete") from None
    return parsed(data) if len(data) < 1 << 16 else await asyncio.to_thread(parsed, data)


async def _bytes(request, most):
    stated = request.headers.get("content-length", "")
    if stated.isdigit() and int(stated[:20]) > most:
        raise Refused(413, f"the body has {stated[:20]} bytes, expected {most} at most")
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > most:
            raise Refused(413, f"the body has more than {most} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def parsed(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise Refused(400, f"the body is not UTF-8: byte {error.start}") from None
    except RecursionError:
        raise Refused(400, f"the body is nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise Refused(400, f"the body is a JSON {type(value).__name__}, expected an object")
    _check_depth(value)
    if SURROGATE.search(data):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise Refused(400, "the body has one half of a surrogate pair without the other: no text") from None
    return value


def _no_number(text):
    raise ValueError(f"{text} is no JSON number")


def _check_depth(value):
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)
                 if isinstance(inner, (dict, list))]
        if not level:
            return
    raise Refused(400, f"the body is nested deeper than {MAX_DEPTH}")
