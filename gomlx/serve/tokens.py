"""POST /tokenize and /detokenize, with the fields of vLLM's and llama.cpp's servers."""
from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request

from gomlx.serve import conversation, fields
from gomlx.serve.errors import Refused, refused
from gomlx.serve.fields import Fields, flag, text
from gomlx.serve.openai import needs, piece_of
from gomlx.serve.state import Served, State

FIELDS = Fields({"model": text, "prompt": text, "content": text, "messages": conversation.messages,
                 "tools": conversation.tools, "add_generation_prompt": flag, "add_special_tokens": flag,
                 "add_special": flag, "with_pieces": flag, "return_token_strs": flag})
BACK = Fields({"model": text, "tokens": lambda name, value: fields.items(name, value, 1 << 22)})


async def tokenize(state: State, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    found = FIELDS.read(body)
    served = state.served(found.get("model"))
    if len(found.keys() & {"prompt", "content", "messages"}) != 1:
        raise Refused(400, "expected one of prompt, content and messages", param="prompt")
    try:
        ids = await state.in_thread(partial(ids_of, served, found))
    except Exception as error:
        raise refused(error) from error
    made: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": served.model.context_length}
    tokenizer = served.model.tokenizer
    if found.get("return_token_strs"):
        made["token_strs"] = [piece_of(tokenizer, one) for one in ids]
    if found.get("with_pieces"):
        made["tokens"] = [{"id": one, "piece": piece_of(tokenizer, one)} for one in ids]
    return made


def ids_of(served: Served, found: dict[str, Any]) -> list[int]:
    """vLLM adds special tokens unless it is told not to, llama.cpp (content) where it is told to."""
    model = served.model
    if "messages" in found:
        return model.encode(model.tokenizer.apply_chat_template(
            found["messages"], tools=found.get("tools"),
            add_generation_prompt=found.get("add_generation_prompt", True)))
    special = found.get("add_special_tokens", found.get("add_special", "prompt" in found))
    return model.encode(found["prompt" if "prompt" in found else "content"]) if special else \
        model.tokenizer.bare(found.get("prompt", found.get("content")))


async def detokenize(state: State, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    found = BACK.read(body)
    served = state.served(found.get("model"))
    needs(found, "tokens")
    size = served.model.vocab_size
    for one in found["tokens"]:
        if not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < size:
            raise fields.wrong("tokens", one, f"token ids from 0 to {size - 1}")
    try:
        said = await state.in_thread(partial(served.model.decode, found["tokens"]))
    except Exception as error:
        raise refused(error) from error
    return {"prompt": said, "content": said}
