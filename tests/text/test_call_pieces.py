"""Arguments of calls while they are written: in whatever pieces the text comes, what is given is JSON of the call's."""
import json
import random

import pytest

from gomlx._generation import tool_calls
from gomlx._generation.call_pieces import CallReader
from gomlx.parsing import Parser

OFFERED = {"weather": {"properties": {"city": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": OFFERED["weather"]}}]
DEEPSEEK = "<｜tool▁call▁begin｜>%s<｜tool▁call▁end｜>"
BODIES = [
    ("qwen", '\n{"name": "weather", "arguments": {"city": "Os\\"l}o\\\\", "o": {"a": [1, "}"]}}}\n',
     tool_calls.read_tagged),
    ("qwen", '\n<function=weather>\n<parameter=city>\nOslo <b> </parameter>\n<parameter=n>\n3\n</parameter>\n'
             '<parameter=o>\n{"a": "</parameter>"}\n</parameter>\n</function>\n', tool_calls.read_tagged),
    ("qwen", "<function=weather>\n</function>", tool_calls.read_tagged),
    ("llama3", '{"name": "weather", "parameters": {"city": "Oslo"}}; {"name": "weather", "parameters": {}}',
     tool_calls.read_llama),
    ("mistral", '[{"name": "weather", "arguments": {"city": "Oslo"}}]', tool_calls.read_mistral),
    ("mistral", 'weather[ARGS]{"city": "Oslo"}', tool_calls.read_mistral),
    ("mistral", 'weather{"city": "Oslo"}', tool_calls.read_mistral),
    ("harmony", 'assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city":"Oslo"}',
     tool_calls.read_harmony),
    ("deepseek", DEEPSEEK % 'function<｜tool▁sep｜>weather\n```json\n{"city": "x"}\n```', tool_calls.read_deepseek),
    ("deepseek", DEEPSEEK % 'weather<｜tool▁sep｜>{"city": "x"}', tool_calls.read_deepseek),
    ("gemma4", 'call:weather{city:<|"|>Os,}lo<|"|>,n:12,o:{a:[1,true]}}', tool_calls.read_gemma),
    ("gemma4", "call:weather{}", tool_calls.read_gemma)]


@pytest.mark.parametrize(("notation", "body", "read"), BODIES)
def test_all_pieces_are_the_arguments(notation, body, read):
    call = read(body, body, OFFERED)[0]
    assert call.error is None
    for seed in range(30):
        rng, reader, found, at = random.Random(seed), CallReader(notation, OFFERED), [], 0
        while at < len(body):
            size = rng.randrange(1, 6)
            found.append(reader.feed(body[at:at + size]))
            assert reader.name is not None or not found[-1]
            at += size
        assert (reader.name, json.loads("".join(found))) == ("weather", call.arguments)
        assert call.arguments == {} or sum(bool(one) for one in found) > 1


@pytest.mark.parametrize("body", ['{"name": "other", "arguments": {"a": 1}}', "x" * 5000 + '{"name": "weather"',
                                  '{"arguments": {}, "name": "weather"}', '{"name": "weather", "arguments": "{}"}', ""])
def test_what_is_not_known_is_not_given(body):
    reader = CallReader("qwen", OFFERED)
    assert [reader.feed(one) for one in body] == [""] * len(body)


def test_a_parser_gives_pieces_with_their_call():
    text = ('I look.<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
            '<tool_call>{"name": "other", "arguments": {}}</tool_call>'
            '<tool_call>{"name": "weather", "arguments": {"n": 2}}</tool_call>')
    parser = Parser("qwen", TOOLS)
    parts = [part for one in text for part in parser.feed(one)] + parser.finish()
    found = {}
    for part in parts:
        if part.call is not None:
            found.setdefault(part.call.index, []).append(part.call.arguments)
    assert {index: json.loads("".join(pieces)) for index, pieces in found.items()} == {0: {"city": "Oslo"}, 2: {"n": 2}}
    assert len(found[0]) > 5 and [one.name for one in parser.parsed.tool_calls] == ["weather", "other", "weather"]


def test_json_that_is_an_answer_gives_nothing():
    parser = Parser("llama3", TOOLS)
    parts = [part for one in '{"name": "Ada", "age": 3}' for part in parser.feed(one)] + parser.finish()
    assert all(part.call is None for part in parts) and parser.parsed.answer == '{"name": "Ada", "age": 3}'
