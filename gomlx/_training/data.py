"""The data of a fine-tuning: rows of a file become token ids, of which some count to the loss.

What is counted is told by token ids: a conversation is rendered whole and up to each answer, and the ids of the second
must be the beginning of those of the first. A template for which that is not so cannot be masked exactly, which is an
error; nothing is guessed.
"""
from __future__ import annotations

import hashlib
import json
import logging
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gomlx import _gomlx
from gomlx._base import arguments, notebook

if TYPE_CHECKING:
    from gomlx._generation.model import Model
    from gomlx._generation.tokenizer import Tokenizer

log = logging.getLogger("gomlx")
Mask = Literal["assistant", "last"] | None
MASKS = ("assistant", "last")
SPLITS = ("train", "valid", "test")
MAX_TOKENS = 2048
LISTED = 8                      # rows in a message
# Who speaks in ShareGPT's conversations, as chat templates call them.
SPEAKERS = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
            "model": "assistant", "tool": "tool", "observation": "tool"}


@dataclass(frozen=True)
class Tokens:
    """Token ids and, for each, whether it counts."""
    ids: array[int]
    counted: bytes              # 1 for a token that counts; the first token never does, there is nothing before it

    @property
    def targets(self) -> int:
        """How many tokens count."""
        return sum(self.counted)

    @property
    def start(self) -> int:
        """The first token that counts: what is before it is the prompt."""
        return self.counted.index(1)


@dataclass(frozen=True)
class Row:
    """One row of the data: a sequence, or of a preference the chosen one and the rejected one."""
    where: str                  # "train.jsonl:3"
    sequences: tuple[Tokens, ...]
    label: bool | None = None   # whether the answer is wanted, in rows that say so

    @property
    def tokens(self) -> int:
        return sum(len(one.ids) for one in self.sequences)

    @property
    def targets(self) -> int:
        return sum(one.targets for one in self.sequences)


@dataclass(frozen=True)
class Cut:
    """A row that was too long."""
    where: str
    tokens: int                 # that it had
    kept: int                   # 0: it was left out


@dataclass
class Dataset:
    """Rows as token ids; load_data() makes it.

    kind    "text", "completion", "chat", "preference" or "label"
    cut     rows that were longer than max_tokens: what was kept of them, or that they were left out
    """
    kind: str
    source: str
    rows: list[Row]
    cut: list[Cut] = field(default_factory=list)
    tokenizer: Tokenizer | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Row:
        return self.rows[i]

    @property
    def tokens(self) -> int:
        """All tokens."""
        return sum(row.tokens for row in self.rows)

    @property
    def targets(self) -> int:
        """The tokens that count."""
        return sum(row.targets for row in self.rows)

    @property
    def fingerprint(self) -> str:
        """Of ids and masks: two that are equal have the same rows in the same order."""
        made = hashlib.sha256()
        for row in self.rows:
            made.update(repr(row.label).encode())
            for one in row.sequences:
                made.update(len(one.ids).to_bytes(8, "little") + one.ids.tobytes() + one.counted)
        return made.hexdigest()

    def preview(self, rows: int = 3, *, colour: bool = True) -> str:
        """The text of the first rows as it is trained on: tokens that count in green, or without colour in [[ ]]."""
        parts = []
        for row in self.rows[:rows]:
            names = ("chosen", "rejected") if len(row.sequences) == 2 else ("",)
            for name, one in zip(names, row.sequences):
                label = "" if row.label is None else ", wanted" if row.label else ", unwanted"
                parts.append(f"{row.where}{' ' + name if name else ''}{label}: {len(one.ids)} tokens, {one.targets} "
                             f"count\n{self._text(one, colour)}")
        if len(self.rows) > rows:
            parts.append(f"... and {len(self.rows) - rows} more rows")
        return "\n\n".join(parts)

    def _text(self, sequence, colour):
        begin, end = ("\033[32m", "\033[0m") if colour else ("[[", "]]")
        parts, inside = [], False
        for one, counted in zip(self._pieces(sequence), sequence.counted):
            if bool(counted) != inside:
                parts.append(begin if counted else end)
                inside = bool(counted)
            parts.append(one["token"] if one["special"] else one["text"])
        return "".join(parts) + (end if inside else "")

    def _pieces(self, sequence):
        assert self.tokenizer is not None
        return self.tokenizer.pieces(list(sequence.ids))

    def _repr_html_(self) -> str:
        shown = [(row, one, self._pieces(one)) for row in self.rows[:3] for one in row.sequences]
        return notebook.training_data(self, shown)

    def __repr__(self) -> str:
        return (f"<Dataset {self.source}: {len(self.rows)} rows of kind {self.kind}, {self.tokens} tokens, "
                f"{self.targets} count, {len(self.cut)} too long>")


# ---- from files ----

def load_data(data: str | os.PathLike[str] | Iterable[Mapping[str, Any]], model: Model | Tokenizer, *,
              split: str = "train", mask: Mask = "assistant", max_tokens: int = MAX_TOKENS,
              too_long: Literal["cut", "drop"] = "cut", template: bool = True,
              template_args: Mapping[str, Any] | None = None) -> Dataset:
    """Rows of a file, as a model's own chat template and tokenizer make them.

    data        a .jsonl file, a .json file with a list, a folder with train.jsonl, valid.jsonl and test.jsonl, or
                dicts. What a row is, its keys say:
                    messages (and tools)                a conversation
                    conversations (from, value)         ShareGPT's
                    instruction, input, output          Alpaca's
                    prompt, completion                  a question and its answer; with label (true or false) whether
                                                        the answer is wanted
                    prompt, chosen, rejected            a preference; texts, or lists of messages
                    system, tools (beside any of these) what the chat template is given besides
                    text                                nothing but text
    model       a Model, or a Tokenizer
    split       the file of a folder
    mask        which tokens count: "assistant" those of all answers, with the token that ends each; "last" those of
                the last one; None all. An answer is what comes after a prompt as generate() gets it
    max_tokens  of a sequence: what is longer is listed in .cut and, too_long says, cut at its end or dropped
    template    False takes prompts and completions as they are, without the chat template
    template_args   variables for the chat template, such as {"enable_thinking": False}

    ValueError names the file and the line of a row that is not in order, or that cannot be masked exactly.
    """
    tokenizer: Any = getattr(model, "tokenizer", model)
    if mask is not None:
        arguments.one_of("mask", mask, MASKS)
    arguments.integer("max_tokens", max_tokens, 2)
    arguments.one_of("too_long", too_long, ("cut", "drop"))
    source, found = rows_of(data, split)
    reader = Reader(tokenizer, mask, bool(template), dict(template_args or {}))
    made = Dataset("", source, [], tokenizer=tokenizer)
    for where, row in found:
        kind, ready = reader.read(where, row)
        if made.kind and kind != made.kind:
            raise ValueError(f"{where}: a row of kind {kind} ({', '.join(map(str, row))}), but those before it are of "
                             f"kind {made.kind}")
        made.kind = kind
        short = shortened(ready, max_tokens, too_long, made.cut)
        if short is not None:
            made.rows.append(short)
    if not made.rows:
        raise ValueError(f"{source}: no rows" + (f" of at most {max_tokens} tokens: {cut_text(made.cut)}" if made.cut
                                                 else ", expected one at least"))
    if made.cut:
        log.warning("%s: rows of more than %d tokens: %s", source, max_tokens, cut_text(made.cut))
    return made


def cut_text(cut):
    """Which rows were too long."""
    named = [f"{one.where} ({one.tokens}{', left out' if not one.kept else ''})" for one in cut[:LISTED]]
    return ", ".join(named) + (f" and {len(cut) - LISTED} more" if len(cut) > LISTED else "")


def shortened(row: Row, most: int, too_long: str, cut: list[Cut]) -> Row | None:
    """The row with sequences of at most `most` tokens; None where nothing is left that counts."""
    longest = max(len(one.ids) for one in row.sequences)
    if longest <= most:
        return row
    parts = tuple(Tokens(one.ids[:most], one.counted[:most]) for one in row.sequences)
    keeps = too_long == "cut" and all(any(one.counted) for one in parts)
    cut.append(Cut(row.where, longest, most if keeps else 0))
    return Row(row.where, parts, row.label) if keeps else None


def rows_of(data, split) -> tuple[str, Iterable[tuple[str, Any]]]:
    """(what the data is called, (where, row) of each)."""
    if isinstance(data, Mapping):
        raise arguments.WrongType(f"data: expected a path or several dicts, got {arguments.shown(data)}")
    if not isinstance(data, (str, os.PathLike)):
        return "data", [(f"row {i}", row) for i, row in enumerate(arguments.sequence("data", data, "a path or dicts"))]
    path = arguments.path("data", data)
    if os.path.isdir(path):
        folder, path = path, os.path.join(path, f"{split}.jsonl")
        if not os.path.isfile(path):
            there = [f"{one}.jsonl" for one in SPLITS if os.path.isfile(os.path.join(folder, f"{one}.jsonl"))]
            raise FileNotFoundError(f"{folder} has no {split}.jsonl; it has " + (", ".join(there) or "none of "
                                    + ", ".join(f"{one}.jsonl" for one in SPLITS)))
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"{path!r} is a pipe or a device, expected a file or a folder")
    with open(path, encoding="utf-8-sig") as file:          # some editors begin a file with a byte order mark
        try:
            text = file.read()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8: {error.reason}, byte {error.object[error.start]:#04x}") from None
    return path, parsed(os.path.basename(path), text)


def parsed(name, text):
    if text.lstrip()[:1] == "[":
        try:
            rows = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}: not JSON: {error}") from None
        return [(f"{name}: item {i}", row) for i, row in enumerate(rows)]
    return ((f"{name}:{i}", parsed_line(f"{name}:{i}", line)) for i, line in enumerate(text.split("\n"), 1)
            if line.strip())


def parsed_line(where, line):
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}") from None


# ---- what a row is ----

EXPECTED = ("messages; conversations; instruction and output; prompt and completion; chosen and rejected; or text")


class Reader:
    """Makes Rows of dicts."""

    def __init__(self, tokenizer: Tokenizer, mask: Mask, template: bool, variables: dict[str, Any]) -> None:
        self.tokenizer, self.mask, self.variables = tokenizer, mask, variables
        self.stops = set(tokenizer.eos_ids)
        self.template = template
        self.chats = template and (tokenizer.chat_template is not None or tokenizer.chat_format is not None)

    def read(self, where: str, row: Any) -> tuple[str, Row]:
        """(kind, Row)."""
        if not isinstance(row, Mapping):
            raise ValueError(f"{where}: expected an object, got {arguments.shown(row)}")
        try:
            kind, made = self._read(where, row)
        except (ValueError, TypeError, _gomlx.Error) as error:
            raise ValueError(f"{where}: {error}") from error
        return kind, made

    def _read(self, where, row):
        tools, system = tools_of(row), system_of(row)
        if "label" in row and ("messages" in row or "conversations" in row or "chosen" in row or "output" in row):
            raise ValueError("label: only beside prompt and completion")
        if "messages" in row:
            return "chat", Row(where, (self.conversation(after_system(row["messages"], system), tools),))
        if "conversations" in row:
            return "chat", Row(where, (self.conversation(after_system(sharegpt(row), system), tools),))
        if "chosen" in row and "rejected" in row:
            return "preference", Row(where, self.pair(row, system, tools))
        if "instruction" in row and "output" in row:
            said = text_of(row, "instruction") + ("\n\n" + text_of(row, "input") if row.get("input") else "")
            return "completion", Row(where, (self.answer(said, text_of(row, "output"), system, tools),))
        if "prompt" in row and "completion" in row:
            one = self.completion(row["prompt"], row["completion"], system, tools)
            if "label" not in row:
                return "completion", Row(where, (one,))
            if not isinstance(row["label"], bool):
                raise ValueError(f"label is {arguments.shown(row['label'])}, expected true or false")
            return "label", Row(where, (one,), row["label"])
        if "text" in row:
            return "text", Row(where, (self.text(text_of(row, "text")),))
        raise ValueError(f"keys {', '.join(map(str, row)) or '(none)'}, expected {EXPECTED}")

    def text(self, text):
        ids = self.ended(self.tokenizer.encode_prompt(text))
        if len(ids) < 2:
            raise ValueError(f"{len(ids)} tokens, expected 2 at least")
        return sequence(ids, [(1, len(ids))])

    def ended(self, ids):
        """The ids, with EOS where it is not there yet."""
        end = self.tokenizer.eos_token_id
        return ids if end is None or ids and ids[-1] in self.stops else [*ids, end]

    def answer(self, said, answer, system, tools):
        """A question and its answer as texts."""
        if not self.chats:
            return self.plain(said if not system else f"{system}\n\n{said}", answer, tools)
        return self.conversation(after_system([{"role": "user", "content": said},
                                               {"role": "assistant", "content": answer}], system), tools)

    def completion(self, prompt, completion, system, tools):
        """Texts, or messages, of which the second go on from the first."""
        if isinstance(prompt, list):
            more = completion if isinstance(completion, list) else [{"role": "assistant", "content": completion}]
            before = after_system(prompt, system)
            return self.conversation([*before, *more], tools, after=len(before))
        if not isinstance(prompt, str) or not isinstance(completion, str):
            raise ValueError(f"prompt is {type(prompt).__name__} and completion {type(completion).__name__}, expected "
                             "two texts or two lists of messages")
        return self.answer(prompt, completion, system, tools)

    def plain(self, prompt, completion, tools):
        """Texts without a chat template."""
        if tools:
            raise ValueError("tools: without a chat template nothing shows them")
        before = self.tokenizer.encode_prompt(prompt)
        ids = self.ended(before + self.tokenizer.encode_after(completion))
        start = 1 if self.mask is None else max(1, len(before))
        if start >= len(ids):
            raise ValueError("an empty completion")
        return sequence(ids, [(start, len(ids))])

    def pair(self, row, system, tools):
        """The two sequences of a preference."""
        chosen, rejected, prompt = row["chosen"], row["rejected"], row.get("prompt")
        if prompt is None and isinstance(chosen, list) and isinstance(rejected, list):
            same = 0
            while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
                same += 1
            prompt, chosen, rejected = chosen[:same], chosen[same:], rejected[same:]
        if not prompt:
            raise ValueError("a preference without a prompt: neither a key prompt, nor messages in which both begin")
        if self.mask is None:
            raise ValueError("mask=None: of a preference only the answers count")
        made = tuple(self.completion(prompt, one, system, tools) for one in (chosen, rejected))
        if made[0].ids == made[1].ids:
            raise ValueError("chosen and rejected are the same")
        return made

    # ---- conversations ----

    def conversation(self, messages, tools, after=0):
        """The ids of messages, of which the answers count; after: not those before this message."""
        if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
            raise ValueError(f"messages: expected a list of objects, got {arguments.shown(messages)}")
        if not self.template:
            raise ValueError("template=False is for prompts and completions that are texts; messages need the template")
        text = self.rendered(messages, tools, False)
        ids = self.tokenizer.encode_prompt(text)
        if self.mask is None:
            return sequence(ids, [(1, len(ids))])
        answers = [i for i, one in enumerate(messages) if one.get("role") == "assistant" and i >= after]
        if not answers:
            raise ValueError("no message of the role assistant, whose tokens would count")
        starts = {i: self.start_of(messages, i, tools, text, ids) for i in
                  (answers[-1:] if self.mask == "last" else answers)}
        bounds = sorted(starts.values())
        spans = []
        for i, start in starts.items():
            limit = next((one for one in bounds if one > start), None)
            spans.append((start, self.end_of(messages, i, tools, ids, start, limit)))
        return sequence(ids[:max(end for _, end in spans)], spans)

    def rendered(self, messages, tools, prompt):
        return self.tokenizer.apply_chat_template(messages, tools, prompt, **self.variables)

    def start_of(self, messages, i, tools, text, ids):
        """Where answer i begins: after the prompt that generate() would get."""
        before = self.rendered(messages[:i], tools, True)
        prompt = self.tokenizer.encode_prompt(before)
        if ids[:len(prompt)] == prompt and len(prompt) < len(ids):
            return len(prompt)
        same = len(os.path.commonprefix([before, text]))
        what = f"in the text {before[same:same + 40]!r} stands in the prompt, {text[same:same + 40]!r} in the whole" \
            if same < len(before) else "its last token and the answer's first are one token there"
        raise ValueError(f"this chat template cannot be masked exactly: the prompt before message {i} is not how the "
                         f"whole conversation begins: {what} (mask='last' and mask=None may be possible)")

    def end_of(self, messages, i, tools, ids, start, limit):
        """Where answer i ends: after the first token that ends a generation, or where the conversation up to it does.
        limit: where the next answer begins."""
        for at in range(start, len(ids) if limit is None else limit):
            if ids[at] in self.stops:
                return at + 1
        upto = self.tokenizer.encode_prompt(self.rendered(messages[:i + 1], tools, False))
        if ids[:len(upto)] == upto and len(upto) > start:
            return len(upto)
        raise ValueError(f"this chat template cannot be masked exactly: no token ends the answer of message {i}, and "
                         "the conversation up to it is not how the whole one begins (mask='last' and mask=None may be "
                         "possible)")


def sequence(ids: Sequence[int], spans: Iterable[tuple[int, int]]) -> Tokens:
    counted = bytearray(len(ids))
    for start, end in spans:
        counted[max(1, start):end] = b"\1" * (end - max(1, start))
    if not any(counted):
        raise ValueError("no token that counts")
    return Tokens(array("i", ids), bytes(counted))


def text_of(row, key):
    if not isinstance(row[key], str):
        raise ValueError(f"{key} is {arguments.shown(row[key])}, expected a text")
    return row[key]


def tools_of(row):
    """The tools of a row; some files have them as a text of JSON."""
    tools = row.get("tools")
    if isinstance(tools, str):
        tools = json.loads(tools) if tools.strip() else None
    if tools is not None and not isinstance(tools, list):
        raise ValueError(f"tools: expected a list, got {arguments.shown(tools)}")
    return tools or None


def system_of(row):
    """The text that the system says, or None."""
    return text_of(row, "system") or None if row.get("system") is not None else None


def after_system(messages, system):
    """Messages, before which the system says something."""
    if system is None or not isinstance(messages, list):
        return messages
    if messages and isinstance(messages[0], Mapping) and messages[0].get("role") == "system":
        raise ValueError("system: the messages begin with one of the role system already")
    return [{"role": "system", "content": system}, *messages]


def sharegpt(row):
    """ShareGPT's conversation as messages."""
    turns = row["conversations"]
    if not isinstance(turns, list):
        raise ValueError(f"conversations: expected a list, got {arguments.shown(turns)}")
    made = []
    for i, one in enumerate(turns):
        if not isinstance(one, Mapping) or "from" not in one or "value" not in one:
            raise ValueError(f"conversations[{i}]: expected an object with from and value, got {arguments.shown(one)}")
        if one["from"] not in SPEAKERS:
            raise ValueError(f"conversations[{i}]: from is {arguments.shown(one['from'])}, expected one of "
                             + ", ".join(SPEAKERS))
        made.append({"role": SPEAKERS[one["from"]], "content": text_of(one, "value")})
    return made
