"""Which tools an answer may call, has to call or must not: a constraint in the notation of a model's calls."""
from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gomlx._generation.call_grammars import BLANK, Notation, final_channel
from gomlx._generation.constraints import WHITESPACE, Constraint, Whitespace, unsupported, why_refused
from gomlx._generation.grammar_rules import TEXT, Offer
from gomlx.parsing import ANSWER, HEADER, Format
from gomlx.schema import Place, UnsupportedSchema, prepare

CHOICES = ("none", "auto", "required")
NAME = re.compile(r"[\w.-]{1,64}", re.A)        # of a tool: what notations without quotation marks can hold
OPEN = {"type": "object"}                       # arguments of which nothing is enforced
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


class ToolConstraint(Constraint):
    """What an answer is that may call tools. choice: "none", "auto" or "required"; several: more calls than one;
    answer: the Constraint of an answer that calls none."""
    kind = "tools"

    def __init__(self, offers: Sequence[Offer], format: Format, template: str, choice: str, several: bool,
                 answer: Constraint | None, report: Sequence[str]) -> None:
        answer = answer.uncompared() if answer is not None else None        # the text may be no JSON
        self.report, self.unenforced = list(report), list(answer.unenforced) if answer is not None else []
        self._offers, self._format, self._several = offers, format, several
        self._notation: Notation = format.write(template)
        self._choice, self._answer = choice, answer
        self._start_empty()

    def _after(self, lead, view):
        rules = view.rules()
        before = lead.thought(rules, has_blank=False) if lead is not None else ""
        blank = rules.add(BLANK)
        calls = self._calls(rules, blank)
        rest = "@answer" if self._answer is not None else self._rest(rules)
        if self._format.start == HEADER:
            rest = f"{final_channel(rules)} {rest}"
        grammars = [{"name": "main", "lark_grammar": rules.grammar(
            f"{before} ({' | '.join({'none': [rest], 'auto': [rest, calls], 'required': [calls]}[self._choice])})")}]
        if self._answer is not None:
            grammars.append(self._answer.as_part("answer"))
        return json.dumps({"grammars": grammars})

    def _calls(self, rules, blank):
        """The calls, with what may be before them."""
        opening, repeats = self._notation.opening, self._notation.repeats
        body = self._notation.calls(rules, self._offers, self._several and not repeats)
        if not opening:
            return body if self._format.start == HEADER else f"{blank} {body}"
        call = f"{blank} {rules.mark(opening)} {body}"
        first = f"{rules.until(opening)} {body}" if self._choice == "auto" and self._answer is None else call
        return f"{first} {f'({call})*' if repeats and self._several else ''} {blank}"

    def _rest(self, rules):
        """An answer in which nothing is a marker of the format."""
        marks = [mark for mark, to in self._format.marks[ANSWER].items() if mark not in self._format.leading
                 or to != "reasoning"]
        pattern = r"(\s*[^{\s](?s:.*))?" if self._format.bare else TEXT
        return rules.text(marks, pattern)

    def outcome(self, text: str, is_complete: bool, has_calls: bool = False) -> dict[str, Any]:
        if self._answer is not None and not has_calls:
            return self._answer.outcome(text, is_complete)
        return {} if is_complete else {"incomplete": "the answer ends before its call is whole"}


def constraint_of(tools: Sequence[Mapping[str, Any]], choice: Any, parallel: bool, whitespace: Whitespace,
                  answer: Constraint | None, format: Format | None, template: str) -> Constraint | None:
    """What holds an answer to its tools, as the arguments of chat() say it: `answer` itself where that is all, None
    where nothing is."""
    if choice is None and parallel and answer is None and not any(_is_strict(one) for one in tools):
        return None
    choice, named = checked_choice("auto" if choice is None else choice, tools)
    if not tools:
        return answer
    if format is None or format.write is None:
        raise ValueError("tool_choice: this model's template has no notation of calls that a call can be held to")
    if choice == "required" and answer is not None:
        raise ValueError(f"{answer.kind}: an answer that has to be a call of a tool has no other form")
    spacing = WHITESPACE["compact" if format.start == HEADER and whitespace == "default" else whitespace]
    report: list[str] = []
    offers = [_offer(i, one, spacing, report) for i, one in enumerate(tools)]
    if named is not None:
        offers = [one for one in offers if one.name == named]
    return ToolConstraint(offers, format, template, choice, parallel and named is None, answer, report)


def checked_choice(choice: Any, tools: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """("none", "auto" or "required", the name of the only tool that may be called, or None)."""
    names = [_name(i, one) for i, one in enumerate(tools)]
    if isinstance(choice, Mapping):
        inner = choice.get("function", choice)
        choice = inner.get("name") if isinstance(inner, Mapping) else None
        if not isinstance(choice, str):
            raise ValueError("tool_choice: expected {'type': 'function', 'function': {'name': ...}}")
    elif choice in CHOICES:
        if choice == "required" and not tools:
            raise ValueError("tool_choice is 'required', but there are no tools")
        return choice, None
    if not isinstance(choice, str):
        raise TypeError(f"tool_choice: expected a text or a dict, got {type(choice).__name__}")
    if choice not in names:
        raise ValueError(f"tool_choice: {choice!r:.80}, expected one of {', '.join((*CHOICES, *names))}")
    return "required", choice


def _is_strict(tool):
    function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    return isinstance(function, Mapping) and (function.get("strict") is True or tool.get("strict") is True)


def _name(i, tool):
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"tools[{i}]: expected a name of 1 to 64 letters, digits, '_', '-' and '.', got {name!r:.80}")
    return name


def _offer(i, tool, spacing, report):
    """A tool with a schema that the matcher takes. What is not enforced is an error where the tool is strict, else a
    line of the report."""
    function = tool.get("function", tool)
    place = f"/tools/{i}{'/function' if 'function' in tool else ''}/parameters"
    parameters, is_strict = function.get("parameters"), _is_strict(tool)
    if parameters is None:
        return Offer(function["name"], NO_ARGUMENTS, spacing, is_strict, place)
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise ValueError(f"{place}: expected the schema of an object, got {parameters!r:.80}")
    try:
        made = prepare(parameters, "strict" if is_strict else "relaxed")
        schema = OPEN | made.schema
        said = why_refused(schema, spacing)
        if said:
            raise unsupported(made, said, spacing)
        report += [f"{place}{one}" for one in (*made.unenforced, *made.warnings)]
    except UnsupportedSchema as error:
        if is_strict:
            raise UnsupportedSchema([Place(place + one.pointer, one.keyword, one.reason)
                                     for one in error.places]) from None
        report.append(f"{place}: nothing of it is enforced: {error}")
        schema = OPEN
    return Offer(function["name"], schema, spacing, is_strict, place)

