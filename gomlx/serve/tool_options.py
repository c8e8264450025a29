"""Which tools a request may, must or must not call, as options of Scheduler.chat."""
from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from gomlx._generation.model import Model
from gomlx.parsing import FORMATS, detect
from gomlx.serve import fields
from gomlx.serve.errors import Refused
from gomlx.serve.fields import Fields, mapping, one_of, text
from gomlx.serve.openai import needs

ALLOWED = Fields({"type": text, "mode": one_of("auto", "required"), "tools": fields.items})
ALLOWED_TOOL = Fields({"type": one_of("function"), "name": text, "function": mapping})


def tool_options(found: dict[str, Any]) -> dict[str, Any]:
    """Of the fields of a request of OpenAI's; `tools` are those of conversation.tools()."""
    tools, choice = found.get("tools") or None, found.get("tool_choice", "auto")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        tools, choice = _allowed(tools or [], choice)
    return {"tools": tools, "tool_choice": None if tools is None and choice in ("auto", "none") else choice,
            "parallel_tool_calls": found.get("parallel_tool_calls", True)}


def _allowed(tools, choice):
    """(the tools that may be called, the mode). Chat completions have an object within the object, responses not."""
    where = "tool_choice.allowed_tools." if "allowed_tools" in choice else "tool_choice."
    given = ALLOWED.read(mapping("tool_choice.allowed_tools", choice.get("allowed_tools", choice)), where)
    needs(given, "mode", "tools")
    names = set()
    for i, one in enumerate(given["tools"]):
        tool = ALLOWED_TOOL.read(mapping(f"{where}tools[{i}]", one), f"{where}tools[{i}].")
        names.add(tool["name"] if "name" in tool else
                  text(f"{where}tools[{i}].function.name", tool.get("function", {}).get("name")))
    offered = {one["function"]["name"]: one for one in tools}
    if not names or names - offered.keys():
        raise Refused(400, f"{where}tools: expected names of {', '.join(offered) or 'tools, which there are none of'}",
                      param="tool_choice")
    return [one for name, one in offered.items() if name in names], given["mode"]


def held(model: Model, tools: Sequence[dict[str, Any]], choice: Any) -> Any:
    """The choice for the engine: "auto" holds calls to a grammar where that can be; and where none are read, because
    the template has no notation of them, there is nothing to hold for "auto" and "none"."""
    if choice not in ("auto", "none"):
        return choice
    tokenizer = model.tokenizer
    name = detect(tokenizer.template_for(tools), lambda token: tokenizer.token_to_id(token) is not None)
    if name is None or FORMATS[name].write is None:
        return None
    return None if choice == "auto" and importlib.util.find_spec("llguidance") is None else choice
