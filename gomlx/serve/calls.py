"""Calls of tools as they are written: their arguments as text that only grows, in the words of each protocol."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gomlx._generation.streams import Result
from gomlx.serve.openai import identifier
from gomlx.serve.sse import dumps


@dataclass
class Call:
    """One that a stream has begun. at: its place among these."""
    at: int
    name: str
    id: str = field(default_factory=lambda: identifier("call"))
    pieces: list[str] = field(default_factory=list)

    def as_openai(self, arguments: str | None = None) -> dict[str, Any]:
        """arguments: all that came, unless others are given."""
        return {"id": self.id, "type": "function", "function": {
            "name": self.name, "arguments": "".join(self.pieces) if arguments is None else arguments}}


class Calls:
    """Those of one choice."""

    def __init__(self) -> None:
        self._begun: dict[int, Call] = {}       # by their index in Result.tool_calls

    def __bool__(self) -> bool:
        return bool(self._begun)

    def piece(self, found: Any) -> tuple[Call, bool]:
        """(the call, whether it is new) of a gomlx.parsing.CallPiece, which is added."""
        is_new = found.index not in self._begun
        call = self._begun.setdefault(found.index, Call(len(self._begun), found.name))
        call.pieces.append(found.arguments)
        return call, is_new

    def rest(self, result: Result) -> tuple[list[Call], str]:
        """(the calls that could be read and were not begun, the text of those that could not)."""
        made, lost = [], []
        for i, one in enumerate(result.tool_calls):
            if i in self._begun:
                continue
            if one.name is None or one.arguments is None:
                lost.append(one.raw)
                continue
            self._begun[i] = Call(len(self._begun), one.name, pieces=[dumps(one.arguments)])
            made.append(self._begun[i])
        return made, "\n".join(lost)
