"""Arguments of a tool's call while they are written: JSON as text that only grows, for clients who read streams.

A CallReader is fed what the model writes between the markers of a call and gives (name, piece) as soon as both are
certain. JSON goes through as it is; what other notations write is translated, each argument once it is whole. What it
gives of a call that can be read is JSON of the arguments of its ToolCall. A call whose beginning it does not know, or
that follows another one without a marker between them, is not given: it comes with the result."""
from __future__ import annotations

import json
import re
from typing import Any

from gomlx._generation import tool_calls

# What stands before a call's arguments in JSON, in each notation that has them. Group 1 is the name.
NAMED = re.compile(r'\s*\[?\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
HARMONY = re.compile(r"[^{]*?\bto=functions\.([^\s<]+)[^{]*?<\|message\|>\s*(?=\{)")
MISTRAL = re.compile(r"\s*([^\[{\s]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")
DEEPSEEK = re.compile(r"\s*<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>([^\n<]+)\n```(?:json)?\n|([^<\n]+?)\s*"
                      r"<｜tool▁sep｜>)\s*(?=\{)")
XML = re.compile(r"\s*<function=([^>\n]+)>")
GEMMA = re.compile(r"\s*call:([^{\s]+)\s*\{")
HEAD = 1024                     # characters within which the arguments begin
STRUCTURE = re.compile(r'["{}\[\]]')
TEXT_END = re.compile(r'(?:[^"\\]|\\.)*"', re.S)


class CallReader:
    """One call. notation: the name of a gomlx.parsing.Format; offered: schemas of tools, as of tool_calls.schemas()."""

    def __init__(self, notation: str, offered: dict[str, dict[str, Any]]) -> None:
        self._notation, self._offered = notation, offered
        self._body, self._at = "", 0            # what was read of it
        self._depth, self._quoted = 0, False    # of JSON at _at
        self._over = False
        self._count = 0                         # of translated arguments
        self.name: str | None = None

    def feed(self, text: str) -> str:
        """The next piece of the arguments; "" while none is certain. name is set before the first one."""
        if self._over:
            return ""
        self._body += text
        if self.name is None and not self._begin():
            self._over = self._over or len(self._body) > HEAD
            return ""
        if self._notation == "xml":
            return self._translated(self._xml)
        return self._translated(self._gemma) if self._notation == "gemma4" else self._json()

    def _begin(self):
        notation = self._notation
        if notation == "qwen" and self._body.lstrip().startswith("<function="):
            notation = "xml"
        heads = {"qwen": (NAMED,), "llama3": (NAMED,), "mistral": (NAMED, MISTRAL), "harmony": (HARMONY,),
                 "deepseek": (DEEPSEEK,), "xml": (XML,), "gemma4": (GEMMA,)}.get(notation, ())
        for head in heads:
            found = head.match(self._body)
            if found is not None:
                name = next(one for one in found.groups() if one is not None)
                name = json.loads(name) if head is NAMED else name.strip()
                if name not in self._offered:   # it may be none: what it is the end tells
                    self._over = True
                    return False
                self._notation, self.name, self._at = notation, name, found.end()
                return True
        return False

    def _json(self):
        """What follows, to the end of the object."""
        body, start, at = self._body, self._at, self._at
        while at < len(body):
            if self._quoted:
                end = TEXT_END.match(body, at)
                if end is None:                 # it ends within the text; a backslash alone waits for what it escapes
                    tail = len(body) - len(body.rstrip("\\"))
                    at = len(body) - tail % 2
                    break
                at, self._quoted = end.end(), False
                continue
            found = STRUCTURE.search(body, at)
            if found is None:
                at = len(body)
                break
            at = found.end()
            self._quoted = found[0] == '"'
            self._depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
            if self._depth == 0 and not self._quoted:
                self._over = True
                break
        self._body, self._at = body[at:], 0     # what was given is not read again
        return body[start:at]

    def _translated(self, following):
        """The arguments that are whole, as members of an object."""
        pieces = []
        while not self._over and (found := following()) is not None:
            key, value = found
            if key is None:
                self._over = True
                pieces.append("}" if self._count else "{}")
                break
            pieces.append(("," if self._count else "{") + json.dumps(key, ensure_ascii=False) + ":"
                          + json.dumps(value, ensure_ascii=False, separators=(",", ":")))
            self._count += 1
        return "".join(pieces)

    def _xml(self):
        """(key, value) of the next argument; (None, None) at the end; None: it is not whole."""
        rest = self._body[self._at:]
        if rest.lstrip().startswith("</function>"):
            return None, None
        types = tool_calls.properties(self._offered[self.name])
        end = rest.rfind("</parameter>")
        start = tool_calls.PARAMETER.match(rest, tool_calls.blank(rest, 0))
        if start is None or end < 0:
            return None
        key, text = next(tool_calls.parameters(rest, types))
        end = rest.find(text + "</parameter>", start.end())
        if end < 0:
            return None
        try:
            value = tool_calls.typed(text.removeprefix("\n").removesuffix("\n"), types.get(key))
        except tool_calls.Unreadable:           # its JSON has a text that looks like the end
            return None
        self._at += end + len(text) + len("</parameter>")
        return key, value

    def _gemma(self):
        at = tool_calls.blank(self._body, self._at)
        if self._body[at:at + 1] == "," and self._count:
            at = tool_calls.blank(self._body, at + 1)
        if self._body[at:at + 1] == "}":
            return None, None
        key = tool_calls.GEMMA_KEY.match(self._body, at)
        if key is None:
            return None
        try:
            value, end = tool_calls.gemma_value(self._body, key.end(), 1)
        except tool_calls.Unreadable:           # not yet whole
            return None
        if not isinstance(value, (str, dict, list)) and not self._body[tool_calls.blank(self._body, end):]:
            return None                         # a number may go on
        self._at = end
        return key[1] if key[1] is not None else key[2].strip(), value
