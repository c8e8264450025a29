"""Calls of tools in each notation: what a grammar lets through is what the reader takes, and valid; which calls an
answer may have; what is refused. Random walks through the masks stand for models."""
import random
import re

import numpy as np
import pytest

import gomlx
from gomlx._base import response_format
from gomlx._generation import tool_choice
from gomlx._generation.constraints import Constraint, Follower, Lead, View
from gomlx.parsing import FORMATS, Parser
from gomlx.schema import UnsupportedSchema

pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="gomlx[structured] is not installed")

MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>",
           "<|eot_id|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
           "<｜tool▁call▁end｜>",
           "<｜tool▁sep｜>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel|>",
           "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>", "<|eom_id|>"]
# Formats, with what the template says about their notation.
NOTATIONS = {"qwen": ("qwen", ""), "qwen_xml": ("qwen", "<function="), "llama3": ("llama3", ""),
             "mistral": ("mistral", ""), "mistral_args": ("mistral", "[ARGS]"), "deepseek": ("deepseek", ""),
             "deepseek_v3": ("deepseek", "```json"), "gemma4": ("gemma4", ""), "harmony": ("harmony", "")}
WEATHER = {"type": "object", "properties": {
    "city": {"type": "string", "maxLength": 30}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
    "unit": {"enum": ["C", "F"], "type": "string"}, "exact": {"type": "boolean"},
    "at": {"type": "object", "properties": {"x": {"type": "number", "minimum": -9, "maximum": 9}, "y": {
        "type": ["number", "null"], "minimum": 0, "maximum": 1}}, "required": ["x"], "additionalProperties": False},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3}},
    "required": ["city", "days", "tags"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "stop_it"}}]
SCHEMAS = {"weather": WEATHER, "stop_it": {"type": "object", "maxProperties": 0}}


class Vocabulary:
    """A tokenizer of bytes and markers, which are special tokens or whole ones that are text."""
    vocab_size = 257 + len(MARKERS)

    def __init__(self, are_special):
        self._special = {256, *(range(257, self.vocab_size) if are_special else ())}

    def all_token_bytes(self):
        return [*(bytes([i]) for i in range(256)), b"<eos>", *(one.encode() for one in MARKERS)]

    def special_ids(self):
        return self._special

    def token_to_id(self, text):
        return 257 + MARKERS.index(text) if text in MARKERS else None

    def encode_after(self, text):
        return list(text.encode()) if len(self._special) > 1 else ids_of(text)


def ids_of(text):
    """With markers as tokens."""
    pieces = re.split("(" + "|".join(map(re.escape, MARKERS)) + ")", text)
    return [one for piece in pieces for one in ([257 + MARKERS.index(piece)] if piece in MARKERS else piece.encode())]


VIEWS = {are_special: View(Vocabulary(are_special), Vocabulary.vocab_size, [256])
         for are_special in (True, False)}


def walk(constraint, view, lead, rng, most=3000):
    """Ids of a random answer; None where it has no end after so many. What ends things comes more often."""
    matcher, ids = constraint.matcher(view, lead), []
    liked = [256, *b'"{},]1</\n', *range(257, view.vocab)]
    for _ in range(most):
        bits = matcher.compute_bitmask()
        allowed = [i for i in range(view.vocab) if bits[i // 8] >> i % 8 & 1]
        assert allowed and not matcher.is_error(), matcher.get_error()
        best = [i for i in liked if bits[i // 8] >> i % 8 & 1]
        printable = [i for i in allowed if 32 <= i < 127] or allowed
        token = rng.choice(best) if best and rng.random() < 0.5 else rng.choice(printable)
        if token == 256:
            return ids
        ids.append(token)
        assert matcher.consume_token(token)
    return None


def parsed(notation, view, ids, prompt=""):
    parser = Parser(notation, TOOLS, prompt)
    parser.holds_calls = True
    text = bytearray()
    for one in ids:
        if one in view.special_token_ids:
            parser.feed(text.decode())
            text.clear()
            parser.special(view.tokens[one].decode())
        else:
            text += view.tokens[one]
    parser.feed(text.decode())
    parser.finish()
    return parser.parsed


def made(notation, choice="auto", parallel=True, answer=None, tools=TOOLS):
    name, template = NOTATIONS[notation]
    return tool_choice.constraint_of(tools, choice, parallel, "default", answer, FORMATS[name], template)


def lead(notation, prompt=""):
    return Lead.of(Parser(NOTATIONS[notation][0], TOOLS, prompt))


PROMPTS = {"harmony": "<|start|>user<|message|>hi<|end|><|start|>assistant"}


@pytest.mark.parametrize("are_special", [True, False])
@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("notation", NOTATIONS)
def test_calls_are_read_and_valid(notation, choice, are_special):
    view, rng, prompt, n_calls, n_answers = VIEWS[are_special], random.Random(notation), PROMPTS.get(notation, ""), 0, 0
    constraint, before = made(notation, choice), lead(notation, prompt)
    for _ in range(60):
        if n_calls >= 12 and (choice == "required" or n_answers):
            break
        ids = walk(constraint, view, before, rng)
        if ids is None:
            continue
        found = parsed(NOTATIONS[notation][0], view, ids, prompt)
        shown = b"".join(view.tokens[one] for one in ids)
        for call in found.tool_calls:
            assert call.error is None, (call, shown)
            jsonschema.validate(call.arguments, SCHEMAS[call.name])
        n_calls += len(found.tool_calls)
        n_answers += not found.tool_calls
        assert choice == "auto" or (found.tool_calls and not found.answer.strip()), shown
    assert n_calls and (choice == "required" or n_answers)


# ---- which calls ----

def texts_of(constraint, before=None, view=VIEWS[True], n=20):
    rng = random.Random(4)
    return [ids for _ in range(n) if (ids := walk(constraint, view, before, rng)) is not None]


@pytest.mark.parametrize("notation", NOTATIONS)
def test_none_named_and_single_calls(notation):
    name, prompt, view = NOTATIONS[notation][0], PROMPTS.get(notation, ""), VIEWS[True]
    before = lead(notation, prompt)
    assert not any(parsed(name, view, ids, prompt).tool_calls for ids in texts_of(made(notation, "none"), before))
    for choice in ("stop_it", {"type": "function", "function": {"name": "stop_it"}},
                   {"type": "function", "name": "stop_it"}):
        for ids in texts_of(made(notation, choice), before, n=4):
            assert [one.name for one in parsed(name, view, ids, prompt).tool_calls] == ["stop_it"]
    for ids in texts_of(made(notation, "required", parallel=False), before, n=6):
        assert len(parsed(name, view, ids, prompt).tool_calls) == 1
    many = [len(parsed(name, view, ids, prompt).tool_calls) for ids in texts_of(made(notation, "required"), before)]
    assert max(many) > 1 or name == "harmony"           # whose calls end the turn


@pytest.mark.parametrize("notation", ["qwen", "gemma4", "harmony", "mistral"])
def test_an_answer_that_is_no_call_has_its_own_form(notation):
    name, prompt, view, seen = NOTATIONS[notation][0], PROMPTS.get(notation, ""), VIEWS[True], set()
    constraint, before = made(notation, "auto", answer=Constraint.choice(["yes", "no"])), lead(notation, prompt)
    for ids in texts_of(constraint, before, n=60):
        found = parsed(name, view, ids, prompt)
        shown = before.answer_of(b"".join(view.tokens[one] for one in ids).decode())
        outcome = constraint.outcome(shown, True, bool(found.tool_calls))
        assert found.tool_calls or (found.answer in ("yes", "no") and outcome == {"parsed": found.answer})
        seen.add(bool(found.tool_calls))
    assert seen == {True, False}


# ---- reasoning ----

@pytest.mark.parametrize("are_special", [True, False])
@pytest.mark.parametrize("format, prompt, opens, closes", [
    ("think", "", "<think>", "</think>"), ("qwen", "<|im_start|>assistant\n<think>\n", "", "</think>"),
    ("gemma4", "", "<|channel>thought\n", "<channel|>"),
    ("harmony", PROMPTS["harmony"], "<|channel|>analysis<|message|>",
     "<|end|><|start|>assistant<|channel|>final<|message|>")])
def test_the_form_begins_with_the_answer(format, prompt, opens, closes, are_special):
    """Reasoning may have any text, a text of the form and its own end but not the end of the answer; then the form."""
    view, before = VIEWS[are_special], Lead.of(Parser(format, None, prompt))

    for constraint, answers in ((Constraint.choice(["yes", "no"]), ["yes", "no"]),
                                (Constraint.schema({"enum": ["yes", 1]}),
                                 ['"yes"', "1", *(['\n\n"yes"'] if format != "harmony" else [])])):
        for answer in answers:
            matcher, whole = constraint.matcher(view, before), ids_of(opens + "hm\nyes no 1 {" + closes + answer)
            for i, one in enumerate(whole):
                bits = matcher.compute_bitmask()
                assert bits[one // 8] >> one % 8 & 1, (i, view.tokens[one])
                assert not bits[256 // 8] & 1               # the end
                assert matcher.consume_token(one)
            assert matcher.is_accepting() and not matcher.is_error()
            shown = b"".join(view.tokens[one] for one in whole).decode()
            assert before.answer_of(shown) == answer
        matcher = constraint.matcher(view, before)
        wrong = ids_of(opens + "hm" + closes + "maybe")
        assert matcher.validate_tokens(wrong) == len(wrong) - len("maybe")


def test_reasoning_that_the_prompt_has_ended_does_not_begin_again():
    before = Lead.of(Parser("qwen", None, "<|im_start|>assistant\n<think>\n\n</think>\n\n"))
    matcher = Constraint.choice(["yes"]).matcher(VIEWS[True], before)
    assert matcher.validate_tokens([257]) == 0 and matcher.validate_tokens(list(b"yes")) == 3


# ---- what is refused ----

UNSUPPORTED = {"type": "object", "properties": {"a": {"type": "integer", "not": {"multipleOf": 7}}}, "required": ["a"]}


def function(**more):
    return {"type": "function", "function": {"name": "f", **more}}


def test_strict_tools_hold_whole_or_are_refused():
    with pytest.raises(UnsupportedSchema) as raised:
        made("qwen", None, tools=[function(), function(parameters=UNSUPPORTED, strict=True)])
    assert [(one.pointer, one.keyword) for one in raised.value.places] == [
        ("/tools/1/function/parameters/properties/a", "not")]
    relaxed = made("qwen", "required", tools=[function(parameters=UNSUPPORTED)])
    assert any("/tools/0/function/parameters/properties/a: not" in one for one in relaxed.report)
    wild = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"}}}
    assert made("qwen", None, tools=[function(parameters=wild, strict=True)]) is not None
    for notation in ("qwen_xml", "gemma4"):             # bare texts: no pattern can be held
        with pytest.raises(UnsupportedSchema, match="/tools/0/function/parameters/properties/a: pattern"):
            texts_of(made(notation, None, tools=[function(parameters=wild, strict=True)]))
        assert texts_of(made(notation, "required", tools=[function(parameters=wild)]), n=2)


def shown(several):
    return [b"".join(VIEWS[True].tokens[one] for one in ids).decode() for ids in several]


def test_parameters_that_refer_to_definitions_are_held_to_them():
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/an a"}},
              "$defs": {"an a": {"enum": ["x", "y"]}}}
    found = shown(texts_of(made("gemma4", "required", tools=[function(parameters=schema, strict=True)])))
    assert found and all(re.search(r'call:f{a:<\|"\|>[xy]<\|"\|>}', one) for one in found)


def test_many_parameters_that_may_be_left_out():
    schema = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(60)}}
    made("gemma4", "required", tools=[function(parameters=schema)]).matcher(VIEWS[True])      # not of 2^60 parts


def test_names_that_would_end_their_own_tag():
    schema = {"type": "object", "properties": {"a>b": {"type": "integer"}, "c": {"type": "integer"}}, "required": ["c"]}
    with pytest.raises(UnsupportedSchema, match="/tools/0/function/parameters/properties/a>b: properties"):
        texts_of(made("qwen_xml", None, tools=[function(parameters=schema, strict=True)]))
    found = shown(texts_of(made("qwen_xml", "required", tools=[function(parameters=schema)]), n=4))
    assert found and all("<parameter=c>" in one and "a>b" not in one for one in found)


DISTINCT = {"type": "array", "items": {"type": "string", "pattern": "^[xy]$"}, "uniqueItems": True, "maxItems": 5}


def test_items_are_not_compared_beside_tools():
    with pytest.raises(UnsupportedSchema, match="/: uniqueItems"):
        made("qwen", answer=Constraint.schema(DISTINCT))
    answer = Constraint.schema(DISTINCT, enforce="relaxed")
    constraint = made("qwen", answer=answer)
    assert [one.keyword for one in constraint.unenforced] == ["uniqueItems"] and answer.unenforced == []
    assert "non-unique" in constraint.outcome('["x", "x"]', True)["violation"]
    assert constraint.outcome('["x", "y"]', True) == {"parsed": ["x", "y"]}
    assert not constraint.matcher(VIEWS[True], lead("qwen")).is_error()


def test_items_are_not_compared_in_channels(model):
    channels = {"parser": "harmony", "chat_format": "chatml_think"}
    relaxed, before = Constraint.schema(DISTINCT, enforce="relaxed"), lead("harmony", PROMPTS["harmony"])
    with pytest.raises(UnsupportedSchema, match="/: uniqueItems"):
        Follower(Constraint.schema(DISTINCT), VIEWS[True], 0, before)
    assert [one.keyword for one in Follower(relaxed, VIEWS[True], 0, before).constraint.unenforced] == ["uniqueItems"]
    with pytest.raises(UnsupportedSchema, match="/: uniqueItems"):
        model._rendered("hello", schema=DISTINCT, **channels)             # before a stream opens
    found = model._rendered("hello", constraint=relaxed, **channels)[1].constraint
    assert [one.keyword for one in found.unenforced] == ["uniqueItems"]


@pytest.mark.parametrize("are_special", [True, False])
@pytest.mark.parametrize("prompt", ["<think>\n", "<think>\n\n</think>\n\n", ""])
def test_items_are_compared_behind_reasoning(prompt, are_special):
    view, before = VIEWS[are_special], lead("qwen", f"<|im_start|>assistant\n{prompt}")
    thought = {"<think>\n": '["x", "x"]</think>\n\n', "": '<think>\n["y", "y"]\n</think>\n\n'}.get(prompt, "")
    matcher = Constraint.schema(DISTINCT).matcher(view, before)
    for ids, wanted in ((ids_of(thought + '["x", "'), {ord("y")}), (ids_of('y"'), {ord("]")})):
        assert matcher.consume_tokens(ids)
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        assert set(np.flatnonzero(bits)) == wanted


@pytest.mark.parametrize("choice, tools, error, text", [
    ("always", TOOLS, ValueError, "tool_choice: 'always', expected one of none, auto, required, weather, stop_it"),
    ({"type": "function"}, TOOLS, ValueError, "expected {'type': 'function'"),
    (3, TOOLS, TypeError, "expected a text or a dict, got int"),
    ("auto", [{"type": "function", "function": {}}], ValueError, r"tools\[0\]: expected a name of 1 to 64"),
    ("auto", [function(), {"name": "a b"}], ValueError, r"tools\[1\]: expected a name .* got 'a b'"),
    ("auto", [function(parameters={"type": "string"})], ValueError, "parameters: expected the schema of an object"),
    ("required", [], ValueError, "there are no tools"),
])
def test_bad_choices_are_named(choice, tools, error, text):
    with pytest.raises(error, match=text):
        made("qwen", choice, tools=tools)


def test_where_calls_have_no_notation():
    with pytest.raises(ValueError, match="no notation of calls"):
        tool_choice.constraint_of(TOOLS, "auto", True, "default", None, FORMATS["think"], "")
    with pytest.raises(ValueError, match="choice: an answer that has to be a call"):
        made("qwen", "required", answer=Constraint.choice(["a"]))


# ---- models ----

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" \
           "{% for t in tools %}{{ t | tojson }}<tool_call>{% endfor %}<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        loaded.tokenizer._templates = {"default": TEMPLATE}
        yield loaded


ASKED = {"tools": TOOLS, "tool_choice": "required", "temperature": 1.5, "max_tokens": 300}


def test_models_call_alone_together_and_scheduled(model):
    messages = [[{"role": "user", "content": one}] for one in ("hello", "what now", "go")]
    alone = [model.chat(one, seed=i, **ASKED).read() for i, one in enumerate(messages)]
    together = model.generate_batch(messages, options=[{"seed": i} for i in range(3)], **ASKED).read()
    with model.scheduler() as scheduler:
        scheduled = [one.read() for one in [scheduler.chat(one, seed=i, **ASKED) for i, one in enumerate(messages)]]
    assert [one.tokens for one in together] == [one.tokens for one in scheduled] == [one.tokens for one in alone]
    for one in alone:
        assert one.tool_calls
        for call in one.tool_calls[:-1] if one.finish_reason != "stop" else one.tool_calls:
            assert call.error is None
            jsonschema.validate(call.arguments, SCHEMAS[call.name])


def test_a_choice_of_none_and_of_a_tool(model):
    free = model.chat("hello", tools=TOOLS, tool_choice="none", max_tokens=40, seed=1).read()
    assert free.tool_calls == [] and free.answer
    named = model.chat("hello", tools=TOOLS, tool_choice="stop_it", seed=1).read()
    assert [(one.name, one.arguments, one.error) for one in named.tool_calls] == [("stop_it", {}, None)]
    assert model.chat("hello", tools=TOOLS, max_tokens=4, seed=1).read().incomplete is None      # nothing is held
    with pytest.raises(TypeError, match="parallel_tool_calls: expected True or False"):
        model.chat("hello", tools=TOOLS, parallel_tool_calls="no")


@pytest.mark.parametrize("asked, options", [
    ({"type": "text"}, {}), ({"type": "json_object"}, {"schema": {"type": "object"}}),
    ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}}, {"schema": {"type": "null"}}),
    ({"type": "json_schema", "name": "x", "schema": {"type": "null"}}, {"schema": {"type": "null"}}),
    ({"type": "json_schema", "json_schema": {"name": "x"}}, "json_schema: expected"), ({"type": "xml"}, "got 'xml'"),
    ("json", "got None")], ids=str)
def test_response_format(asked, options):
    if isinstance(options, dict):
        assert response_format.options_of(asked) == options
    else:
        with pytest.raises(ValueError, match=f"response_format: .*{options}"):
            response_format.options_of(asked)
