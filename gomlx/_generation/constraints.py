"""What an answer has to be: a Constraint, compiled once, and how a stream follows one.
 (1) A Constraint never changes; any number of streams of any models may use it.
 (2) llguidance keeps where a text stands in the grammar. It is imported when the first constraint is made."""
from __future__ import annotations

import functools
import importlib.util
import json
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gomlx._base import arguments
from gomlx._generation import call_grammars, refusals, typed
from gomlx._generation.distinct_items import DistinctMatcher
from gomlx._generation.grammar_rules import Rules
from gomlx._generation.regular import folding
from gomlx.schema import LEAST_NUMBER, Place, Prepared, UnsupportedSchema, check_size, prepare

Whitespace = Literal["default", "compact", "any"]
INSTALL = "constraints need llguidance: pip install 'gomlx[structured]'"
# Between tokens of JSON: as json.dumps writes, nothing, or a few blanks of any kind.
WHITESPACE = {
    "default": {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False},
    "compact": {"item_separator": ",", "key_separator": ":", "whitespace_flexible": False},
    "any": {"item_separator": ",", "key_separator": ":", "whitespace_flexible": True,
            "whitespace_pattern": r"[ \t\n\r]{0,20}"},
}
UNDECIDED = "Unable to determine if regex is empty"      # llguidance: it has looked for a text long enough
MAX_TEXT = 1 << 20              # characters of a regex or a grammar
NEGATIVE = re.compile(r"-[0-9]+(?:\.[0-9]+)?(?:[eE]\+?[0-9]+)?")
FUEL = {"initial_lexer_fuel": 5_000_000, "step_lexer_fuel": 1_000_000, "max_lexer_states": 100_000}


def matcher_library():
    try:
        import llguidance
    except ImportError as error:
        raise ImportError(INSTALL) from error
    return llguidance


def is_installed() -> bool:
    return importlib.util.find_spec("llguidance") is not None


class Refused(ValueError):
    """A grammar that the matcher does not take. said: why."""

    def __init__(self, what: str, said: str) -> None:
        self.said = said
        super().__init__(f"{what}: {said}")


def _accepted(grammar, what):
    """What the matcher warns of in a grammar. Refused: it does not take it."""
    library = matcher_library()
    failed, said = library.LLMatcher.validate_grammar_with_warnings(grammar, limits=library.LLParserLimits(**FUEL))
    if failed:
        raise Refused(what, said[0].strip())
    return said


def _grammar_of(schema, spacing):
    return matcher_library().LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=spacing)


def why_refused(schema: Any, spacing: dict[str, Any]) -> str:
    """What the matcher says against a prepared schema; "": it takes it. spacing: one of WHITESPACE."""
    try:
        _accepted(_grammar_of(schema, spacing), "schema")
    except Refused as error:
        return error.said
    return ""


def unsupported(prepared: Prepared, said: str, spacing: dict[str, Any]) -> UnsupportedSchema:
    """What the matcher says against a prepared schema, with the place in the user's."""
    return UnsupportedSchema([refusals.place_of(prepared, said, lambda schema: why_refused(schema, spacing))])


class Constraint:
    """What an answer has to be, made by schema(), regex(), grammar() or choice(); `model.generate(prompt,
    constraint=made)`.

    kind        "schema", "regex", "grammar" or "choice"
    report      warnings: of a schema, say, formats that are not enforced
    unenforced  enforce="relaxed": a gomlx.schema.Place for each part of the schema that the text is not held to
    """

    _distinct: Any = None           # the prepared schema, where it has arrays whose items differ
    _uncompared: Callable[[], Constraint] | None = None     # makes the same where nothing compares items

    def __init__(self, kind: str, grammar: str, what: str, *, type: Any = None, schema: Any = None,
                 report: Sequence[str] = (), unenforced: Sequence[Place] = ()) -> None:
        self.kind = kind
        self.report = list(report)
        self.unenforced = list(unenforced)
        self._type, self._schema, self._grammar = type, schema, grammar
        self._start_empty()
        self.report += _accepted(grammar, what)

    def _start_empty(self):
        self._matchers = weakref.WeakKeyDictionary()        # View -> {Lead or None: a matcher at the beginning}

    @classmethod
    def schema(cls, schema: Any, *, whitespace: Whitespace = "default",
               enforce: Literal["strict", "relaxed"] = "strict", strict_formats: bool = False) -> Constraint:
        """JSON that is valid under a JSON schema (a dict or a boolean) or has a Python type: a pydantic model, a
        dataclass, a TypedDict, an Enum, Literal, list[...] and others of typing. result.parsed is then of that type.

        whitespace      "default": as json.dumps writes; "compact": none; "any": up to 20 blanks wherever JSON allows
        enforce         "strict": gomlx.UnsupportedSchema for what cannot be enforced; "relaxed": it is left out, the
                        finished text is checked by the package jsonschema, ValueError as result.error if not valid
        strict_formats  unknown formats are unsupported, too, instead of annotations; known ones are enforced even where
                        $schema is 2019-09 or 2020-12, in which a format is an annotation
        """
        arguments.one_of("whitespace", whitespace, tuple(WHITESPACE))
        arguments.one_of("enforce", enforce, ("strict", "relaxed"))
        made = None if isinstance(schema, bool | Mapping) else schema
        document = typed.schema_of(schema) if made is not None else schema
        return cls._of_document(document, made, whitespace, enforce, strict_formats, True)

    @classmethod
    def _of_document(cls, document, type, whitespace, enforce, strict_formats, compares_items, shows_words=False):
        prepared = prepare(document, enforce, strict_formats, compares_items, shows_words)
        if prepared.unenforced:
            _jsonschema()                               # that it is missing is told now
        spacing = WHITESPACE[whitespace]
        try:
            made = cls("schema", _grammar_of(prepared.schema, spacing), "schema", type=type, schema=document,
                       report=prepared.warnings, unenforced=prepared.unenforced)
        except Refused as error:
            if UNDECIDED in error.said and not shows_words:
                return cls._of_document(document, type, whitespace, enforce, strict_formats, compares_items, True)
            raise unsupported(prepared, error.said, spacing) from None
        if prepared.has_distinct:
            made._distinct = prepared.schema
            made._uncompared = functools.cache(functools.partial(
                cls._of_document, document, type, whitespace, enforce, strict_formats, False))
        return made

    def uncompared(self) -> Constraint:
        """The same where nothing compares items, beside tools that may be called and in gpt-oss's channels:
        enforce="relaxed" leaves uniqueItems out; UnsupportedSchema where it may not be."""
        return self if self._uncompared is None else self._uncompared()

    @classmethod
    def regex(cls, pattern: str) -> Constraint:
        """A text that the whole pattern matches, in the syntax of Rust's crate regex: without look-around and
        back-references. (?i) takes the same letters for equal as Python's re."""
        folding.check("regex", _text("regex", pattern))
        pattern = folding.folded(pattern)
        return cls("regex", matcher_library().LLMatcher.grammar_from_regex(pattern), "regex")

    @classmethod
    def grammar(cls, text: str) -> Constraint:
        """A text of a grammar: Lark's notation, whose first rule is `start:`, or llama.cpp's GBNF, with `root ::=`."""
        folding.check("grammar", _text("grammar", text))
        if "::=" in text:
            from llguidance.gbnf_to_lark import any_to_lark  # GBNF alone needs it
            try:
                text = any_to_lark(text)
            except Exception as error:
                raise ValueError(f"grammar: not GBNF: {error}") from None
        for number in NEGATIVE.findall(text) if "%json" in text else ():
            if float(number) < LEAST_NUMBER:
                raise ValueError(f"grammar: {number:.40} is below {LEAST_NUMBER}")
        return cls("grammar", matcher_library().LLMatcher.grammar_from_lark(text), "grammar")

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Constraint:
        """One of these texts."""
        texts = list(texts) if not isinstance(texts, str) else [texts]
        if not texts or not all(isinstance(one, str) and one for one in texts):
            raise ValueError(f"choice: expected texts, none of them empty, got {texts!r:.80}")
        length = sum(map(len, texts))
        if len(texts) + length > MAX_TEXT:
            raise ValueError(f"choice: {length} characters in {len(texts)} texts, expected at most {MAX_TEXT}")
        pattern = "|".join(map(re.escape, texts))       # a rule with as many alternatives takes longer by their square
        return cls("choice", matcher_library().LLMatcher.grammar_from_regex(pattern), "choice")

    def matcher(self, view: Any, lead: Lead | None = None) -> Any:
        """A matcher at the beginning, for the tokens of a View; lead: what may come before."""
        known = self._matchers.setdefault(view, {})
        if lead not in known:
            library = matcher_library()
            known[lead] = library.LLMatcher(view.matching, self._after(lead, view),
                                            limits=library.LLParserLimits(**FUEL), log_level=0)
            if self._distinct is not None:
                known[lead] = DistinctMatcher(known[lead], view, self._distinct,
                                              lead.answer_of if lead is not None else None)
        made = known[lead].deep_copy()
        if made.is_error():
            raise ValueError(f"{self.kind}: {made.get_error()}")
        return made

    def _after(self, lead, view):
        """The grammar of the answer with what may come before it."""
        if lead is None:
            return self._grammar
        rules = view.rules()
        before = lead.rule(rules, has_blank=self.kind == "schema")
        return json.dumps({"grammars": [{"name": "main", "lark_grammar": rules.grammar(f"{before} @answer")},
                                        self.as_part("answer")]})

    def as_part(self, name: str) -> dict[str, Any]:
        """This as one of several grammars."""
        is_lark = not self._grammar.startswith('{"grammars"')       # llguidance keeps Lark as it is
        return {"lark_grammar": self._grammar} | {"name": name} if is_lark else \
            {**json.loads(self._grammar)["grammars"][0], "name": name}

    def parse(self, text: str) -> Any:
        """What a whole text stands for: the object of a schema's text, in its type; else the text itself. ValueError
        where a schema has more than was enforced, and it does not hold."""
        if self.kind != "schema":
            return text
        value = json.loads(text)
        if self.unenforced:
            self._check(value)
        return typed.build(self._type, value) if self._type is not None else value

    def _check(self, value):
        from jsonschema_specifications import REGISTRY  # of jsonschema; with its own one it would fetch what it lacks
        kind = _jsonschema().validators.validator_for(self._schema)
        try:
            error = next(kind(self._schema, registry=REGISTRY).iter_errors(value), None)
        except Exception as raised:             # of a part that nobody has looked at before
            raise ValueError("what was not enforced of the schema cannot be checked: "
                             f"{type(raised).__name__}: {raised}") from None
        if error is not None:
            raise ValueError(f"the answer is not valid under what was not enforced: {error.json_path}: "
                             f"{error.message}")

    def __repr__(self) -> str:
        return f"<gomlx.Constraint {self.kind}>"

    def outcome(self, text: str, is_complete: bool, has_calls: bool = False) -> dict[str, Any]:
        """What a text that has ended is, as fields of Result. has_calls: it has calls of tools."""
        if not is_complete:
            where = standing(text) if self.kind == "schema" else f"after {len(text)} characters"
            return {"incomplete": f"the answer ends {where}"}
        try:
            return {"parsed": self.parse(text)}
        except ValueError as error:
            return {"violation": str(error)}
        except Exception as error:              # of the type's own making
            return {"violation": f"{type(error).__name__}: {error}"}


def of(options: Any) -> Constraint | None:
    """The constraint that GenerationOptions have; None: there is none."""
    if options.constraint is not None:
        return options.constraint
    if options.regex is not None:
        return _seen(Constraint.regex, options.regex)
    if options.grammar is not None:
        return _seen(Constraint.grammar, options.grammar)
    if options.choice is not None:
        return _seen(_choice, tuple(options.choice))
    if options.schema is None:
        return None
    if isinstance(options.schema, bool | Mapping):
        check_size(options.schema)
        try:
            text = json.dumps(options.schema)
        except (RecursionError, TypeError, ValueError):         # prepare() says what is wrong with it
            text = None
        if text is not None:
            return _seen(_schema, text, options.whitespace, options.enforce)
    return Constraint.schema(options.schema, whitespace=options.whitespace, enforce=options.enforce)


@functools.lru_cache(64)
def _seen(make, *arguments):
    return make(*arguments)


def _choice(texts):
    return Constraint.choice(texts)


def _schema(text, whitespace, enforce):
    return Constraint.schema(json.loads(text), whitespace=whitespace, enforce=enforce)


def _jsonschema():
    try:
        import jsonschema
    except ImportError as error:
        raise ImportError("enforce='relaxed' needs jsonschema: pip install 'gomlx[structured]'") from error
    return jsonschema


def _text(name, value):
    arguments.text(name, value, "a text")
    if not value or len(value) > MAX_TEXT:
        raise ValueError(f"{name}: {len(value)} characters, expected 1 to {MAX_TEXT}")
    return value


def standing(text: str) -> str:
    """Where JSON that is cut off stands: "within a string at /items/3/name"."""
    pointer: list[Any] = []                             # for each open value, the key or index that is under way
    string = escaped = is_key = False
    began = 0
    for i, c in enumerate(text):
        if string:
            if escaped or c == "\\":
                escaped = not escaped
            elif c == '"':
                string = False
                if is_key:
                    pointer[-1] = json.loads(text[began:i + 1])
        elif c == '"':
            string, began = True, i
            is_key = bool(pointer) and pointer[-1] is None
        elif c in "{[":
            pointer.append(None if c == "{" else 0)
        elif c in "}]":
            pointer.pop()
        elif c == ",":
            pointer[-1] = pointer[-1] + 1 if isinstance(pointer[-1], int) else None
    place = "/".join("" if one is None else str(one) for one in ["", *pointer]) or "/"
    return f"{'within a string' if string else 'before its end'} at {place}"


@dataclass(frozen=True)
class Lead:
    """What may come before the answer: the reasoning of a format of gomlx.parsing. state, header: where the prompt
    ends; has_thought: the prompt has reasoning that has ended; has_channels: gpt-oss's."""
    marks: str                                          # of the format, as JSON
    leading: tuple[str, ...]
    state: str
    header: str
    has_thought: bool
    has_channels: bool

    @classmethod
    def of(cls, parser: Any) -> Lead:
        made = parser.format
        return cls(json.dumps(made.marks), tuple(sorted(made.leading)), parser.state, parser.header, parser.has_thought,
                   made.start == "header")

    def thought(self, rules: Rules, has_blank: bool) -> str:
        """The reasoning. has_blank: blank lines may follow it."""
        if self.has_channels:
            return call_grammars.channels(rules, self.state, self.header) if self.state != "answer" else ""
        return call_grammars.reasoning(rules, json.loads(self.marks), self.leading, self.state, self.has_thought,
                                       has_blank)

    def rule(self, rules: Rules, has_blank: bool) -> str:
        """All that is before the answer."""
        if self.has_channels and self.state != "answer":
            return f"{self.thought(rules, has_blank)} {call_grammars.final_channel(rules)}"
        return self.thought(rules, has_blank)

    def answer_of(self, text: str) -> str:
        """The answer in a text that begins after the prompt, special tokens written out."""
        if self.has_channels:
            return text.rpartition("<|message|>")[2]
        closing = next((mark for mark, to in json.loads(self.marks).get("reasoning", {}).items() if to == "answer"), "")
        began = self.state != "answer" or any(text.startswith(one) for one in (*self.leading, "<|channel>"))
        return text.partition(closing)[2] if began and closing else text


class View:
    """A tokenizer as the matcher sees it: the bytes of each of a model's ids. ends: ids that end a generation."""

    def __init__(self, tokenizer: Any, vocab: int, ends: Sequence[int]) -> None:
        library = matcher_library()
        known = min(vocab, tokenizer.vocab_size)
        self.vocab = vocab
        self.tokens = tokenizer.all_token_bytes()[:known] + [b""] * (vocab - known)
        self.eos_token_id, self.bos_token_id = ends[0], None
        self.special_token_ids = sorted({i for i in (*tokenizer.special_ids(), *ends) if i < vocab})
        self._tokenizer = tokenizer
        self.matching = library.LLTokenizer(library.TokenizerWrapper(self), n_vocab=vocab, eos_token=list(ends),
                                            slices=library.LLTokenizer.json_slices())

    def rules(self) -> Rules:
        """An empty grammar for these tokens."""
        return Rules(self._special, self.matching.eos_tokens, lambda text: self._id(text) is not None)

    def _id(self, text):
        found = self._tokenizer.token_to_id(text)
        return found if found is not None and found < self.vocab else None

    def _special(self, text):
        found = self._id(text)
        return found if found in self.special_token_ids else None

    def __call__(self, text: str | bytes) -> list[int]:
        """Ids whose bytes are the text's, nothing before them: the tokenizer's own where it has such."""
        data = text.encode() if isinstance(text, str) else text
        ids = self._tokenizer.encode_after(data.decode())
        return ids if b"".join(self.tokens[one] for one in ids) == data else self._longest(data)

    def _longest(self, data):
        """The longest token that fits, and so on."""
        ids, at = [], 0
        while at < len(data):
            end = next((end for end in range(min(len(data), at + 64), at, -1) if data[at:end] in self._by_bytes), None)
            if end is None:
                raise ValueError(f"the vocabulary has no token for {data[at:at + 1]!r}")
            ids.append(self._by_bytes[data[at:end]])
            at = end
        return ids

    @functools.cached_property
    def _by_bytes(self):
        special = set(self.special_token_ids)
        return {one: i for i, one in enumerate(self.tokens) if one and i not in special}


class Views:
    """The View of a model for each choice of ids that end a generation, made when it is first needed."""

    def __init__(self) -> None:
        self._made, self._lock = {}, threading.Lock()

    def of(self, tokenizer: Any, vocab: int, ends: Sequence[int]) -> View:
        key = tuple(sorted({one for one in ends if one < vocab}))
        if not key:
            raise ValueError("a constraint needs an id that ends the answer: this generation has no stop ids")
        with self._lock:
            if key not in self._made:
                self._made[key] = View(tokenizer, vocab, key)
            return self._made[key]


_ahead = None                   # the thread that makes masks beside forward passes


def _in_background(function):
    global _ahead
    if _ahead is None:
        from concurrent.futures import ThreadPoolExecutor  # programs with constraints alone need it
        _ahead = ThreadPoolExecutor(1, "gomlx-masks")
    return _ahead.submit(function)


class Follower:
    """Where one stream stands in its constraint; called with its ids before each token, it gives the mask.
    lead: what may come before the answer, as rules."""

    def __init__(self, constraint: Constraint, view: View, n_prompt: int, lead: Lead | None = None) -> None:
        constraint = constraint.uncompared() if lead is not None and lead.has_channels else constraint
        self.constraint = constraint
        self._view = view
        self._lead = lead
        self._matcher = constraint.matcher(view, lead)
        self._bytes = (view.vocab + 31) // 32 * 4       # of a mask
        self._n_prompt = n_prompt
        self._read = n_prompt           # ids that are done with
        self._taken = []                # ids that the stream has drawn
        self._coming = None             # the mask that is being made

    def __call__(self, ids: memoryview) -> bytes:
        for token in ids[self._read:]:
            self._take(token)
        self._read = len(ids)
        bits = self._coming.result() if self._coming is not None else self._bits()
        self._coming = None
        if self._matcher.is_error():
            raise ValueError(f"{self.constraint.kind}: {self._matcher.get_error()}")
        return bits

    def took(self, token: int) -> None:
        """The stream drew a token: its mask for the next one may be made beside the pass."""
        self._read += 1
        self._take(token)
        if not self._matcher.is_stopped():
            self._coming = _in_background(self._bits)

    def _take(self, token):
        if self._coming is not None:
            self._coming.result()
            self._coming = None
        self._taken.append(token)
        self._matcher.consume_token(token)

    def _bits(self):
        return self._matcher.compute_bitmask()[:self._bytes]    # it has room for one id more

    def outcome(self, output: Sequence[int], stopped: bool, has_calls: bool) -> dict[str, Any]:
        """What the answer is when the stream has ended, as fields of Result. output: its ids; has_calls: of tools."""
        for token in output[self._read - self._n_prompt:]:
            self._read += 1
            self._take(token)
        text = b"".join(self._view.tokens[one] for one in self._taken).decode("utf-8", "ignore")
        text = self._lead.answer_of(text) if self._lead is not None else text
        fields = self.constraint.outcome(text, stopped and self.is_complete, has_calls)
        return fields | {"unenforced": self.constraint.unenforced}

    @property
    def is_complete(self) -> bool:
        """Whether the answer so far is a whole one."""
        if self._coming is not None:
            self._coming.result()
        return self._matcher.is_accepting() and not self._matcher.is_error()
