"""Separates what a model writes, while it is generated: reasoning, the answer, calls of tools.

    parser = Parser("qwen", tools=tools, prompt=rendered)
    for text in stream: for part in parser.feed(text): print(part.channel, part.text)
    parser.finish(); parser.parsed.answer, parser.parsed.reasoning, parser.parsed.tool_calls

A Format is a table: in each state, the markers that end it and the state that follows. Text that may be the beginning
of a marker is held back until it is clear. Nothing is lost: what is not markup is part of a channel, and a call that
cannot be read keeps its raw text and says why. Source of the formats: the chat templates of the models.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gomlx._generation import call_grammars, tool_calls
from gomlx._generation.call_pieces import CallReader
from gomlx._generation.tool_calls import ToolCall

ANSWER, REASONING, TOOL, HEADER = "answer", "reasoning", "tool", "header"


@dataclass(frozen=True)
class CallPiece:
    """A piece of a call's arguments, which are JSON when all pieces are put together."""
    index: int                                  # of the call in Parsed.tool_calls
    name: str
    arguments: str


@dataclass(frozen=True)
class Part:
    channel: str                                # "reasoning", "answer" or "tool"
    text: str
    call: CallPiece | None = field(default=None, compare=False)     # what has become certain of a call's arguments


@dataclass(frozen=True)
class Parsed:
    reasoning: str | None                       # None: there was no such markup
    answer: str                                 # without reasoning, calls and markup
    tool_calls: list[ToolCall]


@dataclass(frozen=True)
class Format:
    """name          what detect() and the option parser= call it
    marks         {state: {marker: state that follows}}
    read          (body, raw, schemas) -> [ToolCall], of what is between a tool's markers
    write         the template's text -> a Notation: the grammar of what read() reads
    leading       markers that count only while the answer is still blank: models write about <think>, too
    start         the state before anything came, for a prompt that says nothing
    bare          a tool's call may come without markers, as the whole answer, if tools were offered
    """
    name: str
    marks: dict[str, dict[str, str]]
    read: Callable[[str, str, dict], list[ToolCall]] | None = None
    leading: frozenset[str] = frozenset()
    start: str = ANSWER
    bare: bool = False
    write: Callable[[str], call_grammars.Notation] | None = None


def think(opening, closing, answer=(), read=None, tool_end=(), **options):
    """A Format of tags: reasoning between two, a tool's call after one of `answer` up to one of `tool_end`."""
    marks = {ANSWER: {opening: REASONING} | dict.fromkeys(answer, TOOL), REASONING: {closing: ANSWER}}
    if answer:
        marks[TOOL] = dict.fromkeys(tool_end, ANSWER)
    return lambda name: Format(name, marks, read, frozenset((opening,)), **options)


FORMATS = {name: make(name) for name, make in {
    "think": think("<think>", "</think>"),
    "qwen": think("<think>", "</think>", ("<tool_call>",), tool_calls.read_tagged, ("</tool_call>",),
                  write=call_grammars.tagged),
    "deepseek": think("<think>", "</think>", ("<｜tool▁calls▁begin｜>",), tool_calls.read_deepseek,
                      ("<｜tool▁calls▁end｜>",), write=call_grammars.deepseek),
    "llama3": think("<think>", "</think>", ("<|python_tag|>",), tool_calls.read_llama, ("<|eom_id|>", "<|eot_id|>"),
                    bare=True, write=call_grammars.llama),
    "mistral": think("[THINK]", "[/THINK]", ("[TOOL_CALLS]",), tool_calls.read_mistral, ("</s>",),
                     write=call_grammars.mistral),
    "gemma4": lambda name: Format(name, {
        ANSWER: {"<|channel>": HEADER, "<|tool_call>": TOOL, "<channel|>": ANSWER},
        HEADER: {"\n": ANSWER, "<channel|>": ANSWER},          # a header's end: header_leads_to() says where it leads
        REASONING: {"<channel|>": ANSWER, "<|tool_call>": TOOL},
        TOOL: {"<tool_call|>": ANSWER}}, tool_calls.read_gemma, write=call_grammars.gemma),
    "harmony": lambda name: Format(name, {
        HEADER: {"<|message|>": ANSWER, "<|start|>": HEADER},
        **dict.fromkeys((ANSWER, REASONING, TOOL), {"<|end|>": HEADER, "<|return|>": HEADER, "<|call|>": HEADER,
                                                    "<|start|>": HEADER})}, tool_calls.read_harmony, start=HEADER,
        write=call_grammars.harmony),
}.items()}
FORMATS["mistral"].marks[TOOL]["[TOOL_CALLS]"] = TOOL          # the next call ends this one

# What ends reasoning, if it is more than the first marker that leads to the answer.
CLOSINGS = {"think": "</think>\n\n", "qwen": "</think>\n\n", "deepseek": "</think>\n\n",
            "harmony": "<|end|><|start|>assistant<|channel|>final<|message|>"}

# A turn of the assistant begins after the last of these; what a user wrote about markup is before it.
TURNS = ("<|im_start|>", "<|end_header_id|>", "<｜Assistant｜>", "<|turn>", "[/INST]", "<start_of_turn>")
# What a chat template's text says about the format: the first that occurs decides.
SIGNS = (("<|channel|>", "harmony"), ("<|channel>", "gemma4"), ("<|tool_call>", "gemma4"), ("<｜tool▁", "deepseek"),
         ("<｜Assistant｜>", "deepseek"), ("[TOOL_CALLS]", "mistral"), ("[THINK]", "mistral"), ("<tool_call>", "qwen"),
         ("<|python_tag|>", "llama3"), ("<|start_header_id|>", "llama3"), ("<think>", "think"))


def detect(template: str, has_token: Callable[[str], bool] = lambda text: False) -> str | None:
    """The name of the format that a chat template, or else the vocabulary, mentions; None for plain text."""
    for sign, name in SIGNS:
        if sign in template:
            return name
    for sign, name in (("<tool_call>", "qwen"), ("<think>", "think")):
        if has_token(sign):
            return name
    return None


class Parser:
    """Takes text as it comes; feed(), special() and finish() return what has become certain, as Parts.

    tools   as the template got them: bare parameters are typed by their schemas, and calls checked against them
    prompt  the rendered prompt: it may end inside a block, as Qwen3.5's and DeepSeek's do
    """

    def __init__(self, format: str | Format, tools: Sequence[dict[str, Any]] | None = None, prompt: str = "") -> None:
        if isinstance(format, str):
            if format not in FORMATS:
                raise ValueError(f"parser: unknown format {format!r}; expected one of " + ", ".join(FORMATS))
            format = FORMATS[format]
        self.format = format
        self._tools = tool_calls.schemas(tools)
        self._bare = format.bare and bool(self._tools)
        self._held = ""                         # may be the beginning of a marker
        self._body = ""                         # of the header or the call under way
        self._opening = ""                      # the marker and header before a call, for its raw text
        self._header = ""                       # of the call under way, where a header names the tool
        self._prompted = 0                      # of the body, what the prompt gave
        self._spoken = False                    # a header was read: the model speaks the format
        self._blank = True                      # nothing but blanks in the answer so far
        self._trim = False                      # blanks right after a marker are its own
        self._marked = False                    # any marker was seen, or the prompt ended inside a block
        self._segments = {REASONING: [], ANSWER: [[]]}     # each the pieces of its text
        self._calls = []
        self._reader = CallReader(format.name, self._tools)    # of the call under way
        self._finished = False
        self.has_thought = False                # the prompt has reasoning that has ended
        self.holds_calls = False                # calls are what a grammar allows: a marker in a text of theirs is text
        self.state = format.start
        self._enter_prompt(prompt)

    def _enter_prompt(self, prompt):
        if self.format.start == HEADER:        # harmony: what follows the last <|start|> is our header so far
            head, start, tail = prompt.rpartition("<|start|>")
            if start:
                self.feed(tail)
                self._segments = {REASONING: [[]] if self.state == REASONING else [], ANSWER: [[]]}
                self._prompted, self._blank = len(self._body), True
            return
        tail = prompt[max(prompt.rfind(turn) for turn in TURNS) + 1:]
        for opening, state in self.format.marks[ANSWER].items():
            inside = opening in self.format.leading or state == HEADER
            if inside and opening in tail:
                after = tail[tail.rfind(opening) + len(opening):]
                closing = [mark for mark, to in self.format.marks[REASONING].items() if to == ANSWER]
                self.has_thought = any(mark in after for mark in closing)
                if not self.has_thought:
                    self._enter(REASONING)

    @property
    def header(self) -> str:
        """What there is of the header that is under way."""
        return self._body if self.state == HEADER else ""

    # -------------------------------------------------------------------------------------------------- what comes in

    def feed(self, text: str) -> list[Part]:
        """The Parts that are certain after this piece of text."""
        parts, held = [], self._held + text
        while True:
            if self._bare and self._blank and self.state == ANSWER and held.lstrip().startswith("{"):
                self.state, self._body, self._opening = TOOL, "", ""
                self._reader = CallReader(self.format.name, self._tools)   # or an answer that is JSON: the end tells
            marks = self._marks()
            found = min(((at, -len(mark), mark) for mark in marks if (at := held.find(mark)) >= 0), default=None)
            if found is None:
                break
            at, _, mark = found
            self._add(held[:at], parts)
            held = held[at + len(mark):]
            if self._counts(mark):
                self._leave(mark, parts)
            else:
                self._add(mark, parts)
        keep = max((n for mark in marks for n in range(1, len(mark)) if held.endswith(mark[:n])), default=0)
        self._add(held[:len(held) - keep], parts)
        self._held = held[len(held) - keep:]
        return parts

    def special(self, text: str) -> list[Part]:
        """A special token came, which the text does not show. One that is not a marker is kept inside a call only."""
        parts = self._release()
        if text in self._marks() and self._counts(text):
            self._leave(text, parts)
        elif self.state in (TOOL, HEADER):
            self._add(text, parts)
        return parts

    def finish(self) -> list[Part]:
        """Ends the text: returns what was held back, and reads a call that was not closed."""
        parts = self._release()
        self._finished = True
        if self.state == TOOL:
            self._read_call("", parts)
        elif self.state == HEADER and not self._spoken and "<|channel|>" not in self._body:
            self._put(ANSWER, self._body[self._prompted:], parts)      # no header: the model speaks another format
        return parts

    @property
    def channel(self) -> str:
        """Where text would go now; a header belongs to what it announces, and is answer until then."""
        return ANSWER if self.state == HEADER else self.state

    @property
    def parsed(self) -> Parsed:
        answers, reasoning = (["".join(pieces) for pieces in self._segments[one]] for one in (ANSWER, REASONING))
        if self._marked:
            answers = [one for part in answers if (one := part.strip())]
        return Parsed("\n".join(one.strip() for one in reasoning) if reasoning else None, "\n".join(answers),
                      list(self._calls))

    # --------------------------------------------------------------------------------------------------- the machine

    def _marks(self):
        return self.format.marks.get(self.state, {})

    def _counts(self, mark):
        if self.state == TOOL and self.holds_calls and tool_calls.is_within_text(self._body):
            return False
        return self.state != ANSWER or mark not in self.format.leading or self._blank

    def _release(self):
        parts, held = [], self._held
        self._held = ""
        self._add(held, parts)
        return parts

    def _add(self, text, parts):
        """Text without markers, to where the state wants it."""
        if not text:
            return
        if self.state in (TOOL, HEADER):
            self._body += text
            if self.state == TOOL:
                piece = self._reader.feed(text)
                call = CallPiece(len(self._calls), self._reader.name or "", piece) if piece else None
                if self._opening or call:       # the text of a call without markers comes when it is known to be one
                    parts.append(Part(TOOL, text if self._opening else "", call))
        else:
            self._put(self.state, text, parts)

    def _put(self, channel, text, parts):
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        if not text:
            return
        if not self._segments[channel]:
            self._segments[channel].append([])
        self._segments[channel][-1].append(text)
        self._blank = self._blank and (channel != ANSWER or not text.strip())
        parts.append(Part(channel, text))

    def _enter(self, state, opening=""):
        self.state, self._body, self._opening = state, "", opening
        self._marked = self._marked or state != ANSWER or bool(opening)
        self._trim = state in (ANSWER, REASONING)
        if state == TOOL:
            self._reader = CallReader(self.format.name, self._tools)
            self._reader.feed(self._header)
        if self._trim:
            self._segments[state].append([])

    def _leave(self, mark, parts):
        """A marker ends the state."""
        state, following = self.state, self.format.marks[self.state][mark]
        if state == TOOL:
            self._read_call(mark if following != TOOL else "", parts)
        self._header = ""
        if state == HEADER and following != HEADER:
            self._spoken, following = True, header_leads_to(self._body)
            if following == TOOL:
                self._header, mark = self._body + mark, "<|start|>" + self._body + mark
        self._enter(following, mark)

    def _read_call(self, closing, parts):
        raw, body = self._opening + self._body + closing, self._body
        calls = self.format.read(self._header + body, raw, self._tools)
        if not self._opening:
            parts.append(Part(TOOL if self._is_call(calls) else ANSWER, body))
            if not self._is_call(calls):
                self.state = ANSWER
                self._put(ANSWER, body, [])
                return
            self._marked = True
        if self._finished and not closing:
            calls = [replace(one, error=f"the text ends within the call: {one.error}")
                     if one.error and one.arguments is None else one for one in calls]
        self._calls += calls

    def _is_call(self, calls):
        """Whether JSON without markers is a call: it names a tool, or has a call's members."""
        found = CALL.match(self._body)
        return any(one.name in self._tools for one in calls) or \
            found is not None and (found[1] in self._tools or found[2] is not None)


CALL = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"]*)"(\s*,\s*"(?:parameters|arguments)"\s*:)?')


def header_leads_to(header):
    """The state after a header: Gemma 4's `thought`, gpt-oss' `assistant<|channel|>commentary to=functions.f json`."""
    if re.search(r"\bto=[^\s<]", header):
        return TOOL
    name = header.rpartition("<|channel|>")[2].strip()
    return REASONING if name.startswith(("thought", "analysis", "commentary")) else ANSWER


def parse(text: str, format: str | Format, tools: Sequence[dict[str, Any]] | None = None, prompt: str = "") -> Parsed:
    """The same for a whole text, special tokens written out."""
    parser = Parser(format, tools, prompt)
    parser.feed(text)
    parser.finish()
    return parser.parsed


def closing_of(format: Format) -> str:
    """What a model writes to end its reasoning and begin its answer."""
    return CLOSINGS.get(format.name) or next(mark for mark, to in format.marks[REASONING].items() if to == ANSWER)


class ThinkingBudget:
    """A logits processor: after `budget` tokens of reasoning, those that end it are the only ones possible."""

    def __init__(self, parser: Parser, budget: int, closing: Sequence[int]) -> None:
        self._parser, self._left, self._closing = parser, budget, list(closing)
        self._ending = False

    def __call__(self, ids, logits):
        if not self._ending and self._parser.state == REASONING:
            self._ending = self._left == 0
            self._left -= 1
        if not self._ending or not self._closing:
            return
        import numpy as np
        forced = self._closing.pop(0)
        logits = np.asarray(logits)
        logits[:] = -np.inf
        logits[forced] = 0


@dataclass
class TokenReader:
    """Feeds a Parser from a stream of tokens. Special tokens are not in the stream's text, which may also come late
    (stop texts hold it back); where they belong is counted in a text of our own that is never late."""
    parser: Parser
    tokenizer: Any
    prompt: Sequence[int] = ()
    _made: int = 0                              # characters of our own text
    _given: int = 0                             # characters of the stream's
    _specials: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self):
        self._text = self.tokenizer.stream(skip_special_tokens=True)
        for token_id in self.prompt[-4:]:       # enough for a character that the prompt left unfinished
            self._text.push(token_id)

    def feed(self, token_id: int, text: str) -> list[Part]:
        if token_id >= 0:
            self._made += len(self._text.push(token_id))
            if self.tokenizer.is_special(token_id):
                self._specials.append((self._made, self.tokenizer.id_to_token(token_id)))
        parts, start = [], self._given
        self._given += len(text)
        while self._specials and self._specials[0][0] <= self._given:
            at, mark = self._specials.pop(0)
            parts += self.parser.feed(text[:at - start]) + self.parser.special(mark)
            text, start = text[at - start:], at
        return parts + self.parser.feed(text)
