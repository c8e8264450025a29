"""Rules of a grammar under way, in llguidance's Lark: texts, markers, JSON."""
from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

TEXT = "(?s:.*)"


@dataclass(frozen=True)
class Offer:
    """A tool that may be called. schema: of its arguments, as the matcher gets it; spacing: how JSON is written;
    is_strict: what a notation cannot hold arguments to is UnsupportedSchema, with place before its pointer."""
    name: str
    schema: dict[str, Any]
    spacing: dict[str, Any]
    is_strict: bool = False
    place: str = ""

    @property
    def arguments(self) -> str:
        return as_json(self.schema, self.spacing)


@dataclass
class Rules:
    """special: the id of a text that is a special token, else None; ends: ids that end a generation: no rule writes
    them; is_known: whether a text is a token."""
    special: Callable[[str], int | None]
    ends: Sequence[int]
    is_known: Callable[[str], bool]
    _lines: dict[str, str] = field(default_factory=dict)        # {name: rule}
    _names: dict[str, str] = field(default_factory=dict)        # {what it stands for: name}

    def add(self, body: str, attribute: str = "") -> str:
        """The name of a rule with this body."""
        name, is_new = self.begin(attribute + body)
        if is_new:
            self.end(name, body, attribute)
        return name

    def begin(self, key: str) -> tuple[str, bool]:
        """The name of what a key stands for, and whether it is new: then its body comes with end()."""
        is_new = key not in self._names
        return self._names.setdefault(key, f"r{len(self._names)}"), is_new

    def end(self, name: str, body: str, attribute: str = "") -> None:
        self._lines[name] = f"{name}{attribute}: {body}"

    def mark(self, text: str) -> str:
        """A marker."""
        found = self.special(text)
        return literal(text) if found is None else f"<[{found}]>"

    def closing(self, text: str) -> str:
        """A marker after which a call is over; nothing where it ends the generation itself."""
        return '""' if self.special(text) in self.ends else self.mark(text)

    def terminal(self, pattern: str, without: Sequence[str] = ()) -> str:
        """A text that matches a pattern, and none of these patterns anywhere."""
        key = f"{pattern} {without}"
        if key not in self._names:
            name = self._names[key] = f"T{len(self._names)}"
            beside = f" & ~/(?s:.*)({'|'.join(without)})(?s:.*)/" if without else ""
            self._lines[name] = f"{name}: /{pattern}/{beside}"
        return self._names[key]

    def text(self, without: Sequence[str] = (), pattern: str = TEXT) -> str:
        """A text that has none of these texts."""
        return self.terminal(pattern, [escaped(one) for one in without])

    def until(self, marker: str, without: Sequence[str] = (), pattern: str = TEXT) -> str:
        """A text up to the first marker, and this; it has none of the others."""
        if self.special(marker) is not None:
            return f"{self.text([marker, *without], pattern)} {self.mark(marker)}"
        end = escaped(marker)
        return self.add(self.terminal(pattern + end, [end + "(?s:.)", *map(escaped, without)]), "[lazy]")

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._lines.values()])


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """A text as a pattern between slashes."""
    return re.sub(r"[\\.+*?()|\[\]{}^$/]", lambda found: "\\" + found[0], text).replace("\n", r"\n")


def as_json(schema: dict[str, Any], spacing: dict[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": spacing})


def one_of(alternatives: Sequence[str]) -> str:
    return f"({' | '.join(alternatives)})"


def separated(item: str, separator: str, several: bool) -> str:
    return f"{item} ({separator} {item})*" if several else item
