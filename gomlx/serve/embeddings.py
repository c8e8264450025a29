"""POST /v1/embeddings."""
from __future__ import annotations

import base64
import struct
from functools import partial
from typing import Any

from starlette.requests import Request

from gomlx.serve.completions import prompts
from gomlx.serve.errors import Refused, refused
from gomlx.serve.fields import Fields, integer, one_of, text
from gomlx.serve.openai import needs
from gomlx.serve.state import Served, State

FIELDS = Fields({"model": text, "input": prompts, "encoding_format": one_of("float", "base64"),
                 "dimensions": integer(1)}, ignored={"user"})


async def answer(state: State, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    found = FIELDS.read(body)
    served = state.served(found.get("model"))
    needs(found, "input")
    width = served.model.info["hidden_size"]
    if found.get("dimensions", width) != width:
        raise Refused(400, f"dimensions is {found['dimensions']}, expected {width}: this model has no other",
                      param="dimensions")
    try:
        rows, count = await state.in_turn(partial(embedded, served, found["input"]))
    except Exception as error:
        raise refused(error) from error
    if found.get("encoding_format") == "base64":
        rows = [base64.b64encode(struct.pack(f"<{len(row)}f", *row)).decode() for row in rows]
    return {"object": "list", "model": served.name, "usage": {"prompt_tokens": count, "total_tokens": count},
            "data": [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]}


def embedded(served: Served, texts: list[Any]) -> tuple[list[list[float]], int]:
    ids = [served.model.encode(one) if isinstance(one, str) else one for one in texts]
    return served.scheduler.embed(ids).tolist(), sum(map(len, ids))
