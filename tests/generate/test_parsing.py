"""Reasoning and calls of tools as data: each family's notation, any cut of the text into pieces, and what is broken."""

import random

import pytest

import gomlx
from gomlx import parsing
from gomlx._generation import tool_calls
from gomlx.parsing import Parser, Part, TokenReader, detect, parse

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "required": ["city"],
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "limit": {"type": ["number", "null"]},
                    "where": {"type": "object"},
                    "code": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                },
            },
        },
    }
]
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Rome\"}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
ROME = ("weather", {"city": "Rome"})

# format, prompt, text -> reasoning, answer, calls
CASES = {
    "reasoning": ("think", "", "<think>\nHm, <b\n</think>\n\nYes < no", "Hm, <b", "Yes < no", []),
    "empty reasoning": ("qwen", "", "<think>\n\n</think>\n\nYes", "", "Yes", []),
    "plain text stays as it is": ("qwen", "", " \n Yes. \n", None, " \n Yes. \n", []),
    "reasoning is only at the head": ("think", "", "The tag <think> opens.", None, "The tag <think> opens.", []),
    "a prompt within": ("qwen", "<|im_start|>assistant\n<think>\n", "Hm\n</think>\n\nYes", "Hm", "Yes", []),
    "a prompt that closed it": ("qwen", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "Yes", None, "Yes", []),
    "a user who writes of it": (
        "qwen",
        "<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n",
        "Yes",
        None,
        "Yes",
        [],
    ),
    "reasoning without end": ("deepseek", "<｜Assistant｜><think>\n", "Hm", "Hm", "", []),
    "JSON": (
        "qwen",
        "",
        'See.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
        None,
        "See.",
        [ROME],
    ),
    "two calls": (
        "qwen",
        "",
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>\n'
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>',
        None,
        "",
        [ROME, ROME],
    ),
    "the end closes a call": (
        "qwen",
        "",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}',
        None,
        "",
        [ROME],
    ),
    "XML": (
        "qwen",
        "",
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\nnorth\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n<parameter=where>\n{\"a\": [1]}\n</parameter>\n<parameter=other>\n7\n</parameter>\n</function>\n"
        "</tool_call>",
        None,
        "",
        [("weather", {"city": "Rome\nnorth", "days": 2, "where": {"a": [1]}, "other": "7"})],
    ),
    "Gemma 4": (
        "gemma4",
        "<|turn>model\n",
        '<|channel>thought\nHm\n<channel|>Yes<|tool_call>call:weather{city:<|"|>R{o}, '
        'me<|"|>,days:2,exact:true,where:{a:[1,-2.5,null],<|"|>b c<|"|>:{}}}<tool_call|>',
        "Hm",
        "Yes",
        [("weather", {"city": "R{o}, me", "days": 2, "exact": True, "where": {"a": [1, -2.5, None], "b c": {}}})],
    ),
    "Gemma 4, empty thought": ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", "Yes", None, "Yes", []),
    "harmony": (
        "harmony",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final" "<|message|>Yes<|return|>",
        "Hm",
        "Yes",
        [],
    ),
    "harmony, call": (
        "harmony",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>"
        "commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Rome\"}<|call|>",
        "Hm",
        "",
        [ROME],
    ),
    "harmony, recipient first": (
        "harmony",
        "",
        "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>" "{\"city\": \"Rome\"}",
        None,
        "",
        [ROME],
    ),
    "harmony, python": (
        "harmony",
        "<|start|>assistant",
        "<|channel|>analysis to=python code<|message|>1 + 1<|call|>",
        None,
        "",
        [("python", {"code": "1 + 1"})],
    ),
    "harmony, prompt with channel": (
        "harmony",
        "<|start|>assistant<|channel|>final<|message|>",
        "Yes",
        None,
        "Yes",
        [],
    ),
    "no harmony at all": ("harmony", "<|start|>assistant", "Yes.", None, "Yes.", []),
    "Llama 3": ("llama3", "", '{"name": "weather", "parameters": {"city": "Rome"}}', None, "", [ROME]),
    "Llama 3, several": (
        "llama3",
        "",
        '{"name": "weather", "parameters": {"city": "Rome"}}; ' '{"name": "weather", "parameters": {"city": "Rome"}}',
        None,
        "",
        [ROME, ROME],
    ),
    "Llama 3, JSON that is the answer": ("llama3", "", '{"city": "Rome"}', None, '{"city": "Rome"}', []),
    "Llama 3, built-in": (
        "llama3",
        "",
        '<|python_tag|>brave_search.call(query="a, b")<|eom_id|>',
        None,
        "",
        [("brave_search", {"query": "a, b"})],
    ),
    "Llama 3, code": ("llama3", "", "<|python_tag|>print(1)", None, "", [("python", {"code": "print(1)"})]),
    "Mistral": (
        "mistral",
        "",
        'Well. [TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome"}, "id": "abcdefghi"}]',
        None,
        "Well.",
        [ROME],
    ),
    "Mistral, newer": (
        "mistral",
        "",
        '[THINK]Hm[/THINK][TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]weather'
        '[CALL_ID]abcdefghi[ARGS]{"city": "Rome"}</s>',
        "Hm",
        "",
        [ROME, ROME],
    ),
    "DeepSeek": ("deepseek", "<｜Assistant｜><think>\n", "Hm</think>Yes" + DEEPSEEK, "Hm", "Yes", [ROME]),
    "DeepSeek, newer": (
        "deepseek",
        "",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Rome\"}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        None,
        "",
        [ROME],
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_families(case, step):
    name, prompt, text, reasoning, answer, calls = CASES[case]
    parser, parts = Parser(name, TOOLS, prompt), []
    for at in range(0, len(text), step):
        parts += parser.feed(text[at : at + step])
    parts += parser.finish()
    parsed = parser.parsed
    assert (parsed.reasoning, parsed.answer) == (reasoning, answer)
    assert [(call.name, call.arguments, call.error) for call in parsed.tool_calls] == [
        (*call, None) for call in calls
    ]
    given = {
        channel: "".join(part.text for part in parts if part.channel == channel)
        for channel in ("reasoning", "answer")
    }
    assert (given["reasoning"].strip(), given["answer"].strip()) == ((reasoning or "").strip(), answer.strip())
    assert all(call.raw in prompt + text for call in parsed.tool_calls)


MARKUP = [mark for made in parsing.FORMATS.values() for marks in made.marks.values() for mark in marks] + [
    '{"name": "weather", ', '"arguments": {"city": "Rome"}}', "<function=weather>", "<parameter=city>", "</parameter>",
    "</function>", "thought\n", "call:weather{", "city:", '<|"|>', "}", "[1,", "{", "analysis", "final",
    "commentary to=functions.weather", "<|channel|>", "assistant", "x.call(a=1)", "[ARGS]", "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>", "hello", " ", "é", "<", "|"]


@pytest.mark.parametrize("name", parsing.FORMATS)
def test_any_text_in_any_pieces(name):
    """Markup in any order raises nothing, and how the text is cut into pieces changes nothing."""
    rng = random.Random(name)
    for _ in range(400):
        text = "".join(rng.choice(MARKUP) for _ in range(rng.randint(1, 14)))
        prompt = rng.choice(["", "<|start|>assistant",
                             "<|im_start|>assistant\n<think>\n", "<|turn>model\n<|channel>thought\n"])
        tools = rng.choice([TOOLS, None])
        parser, at = Parser(name, tools, prompt), 0
        while at < len(text):
            step = rng.randint(1, 9)
            parser.feed(text[at:at + step])
            at += step
        parser.finish()
        assert parser.parsed == parse(text, name, tools, prompt), text


# format, text -> name, arguments, a part of the error
BROKEN = {
    "cut JSON": (
        "qwen",
        '<tool_call>\n{"name": "weather", "argu',
        None,
        None,
        "the text ends within the call: the call is not",
    ),
    "no JSON": ("qwen", "<tool_call>weather(Rome)</tool_call>", None, None, "the call is not JSON"),
    "no name": ("qwen", '<tool_call>{"arguments": {}}</tool_call>', None, None, "the call has no name"),
    "no object": ("qwen", "<tool_call>3</tool_call>", None, None, "a call is an object"),
    "arguments": (
        "qwen",
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        "weather",
        None,
        "arguments are list",
    ),
    "no such tool": (
        "qwen",
        '<tool_call>{"name": "time", "arguments": {}}</tool_call>',
        "time",
        {},
        "unknown tool 'time'; expected one of weather",
    ),
    "missing": (
        "qwen",
        '<tool_call>{"name": "weather", "arguments": {"days": 1}}</tool_call>',
        "weather",
        {"days": 1},
        "weather: missing city",
    ),
    "deep": ("qwen", "<tool_call>" + "[" * 100000 + "</tool_call>", None, None, "the call is not JSON"),
    "wrong type": (
        "qwen",
        "<tool_call><function=weather><parameter=city>Rome</parameter><parameter=days>two</parameter>"
        "</function></tool_call>",
        "weather",
        {"city": "Rome", "days": "two"},
        "weather: days: 'two' is not integer",
    ),
    "cut XML": (
        "qwen",
        "<tool_call>\n<function=weather>\n<parameter=city>\nRo",
        "weather",
        {"city": "Ro"},
        "weather: </function> is missing",
    ),
    "cut Gemma": ("gemma4", '<|tool_call>call:weather{city:<|"|>Ro', "weather", None, "a quotation is not closed"),
    "Gemma": (
        "gemma4",
        "<|tool_call>call:weather{city:Rome}<tool_call|>",
        "weather",
        None,
        "'Rome' at 18 is not a value",
    ),
    "deep Gemma": ("gemma4", "<|tool_call>call:weather{a:" + "[" * 100000, "weather", None, "nested more than 64"),
    "no call of Gemma": ("gemma4", "<|tool_call>weather<tool_call|>", None, None, "expected call:NAME"),
    "harmony": (
        "harmony",
        "<|start|>assistant to=functions.weather<|message|>{\"city\"<|call|>",
        "weather",
        None,
        "arguments is not JSON",
    ),
    "Llama": ("llama3", '{"name": "weather", "parameters": {"ci', None, None, "the call is not JSON"),
    "Mistral": ("mistral", "[TOOL_CALLS]weather[ARGS]{", "weather", None, "arguments is not JSON"),
    "DeepSeek": (
        "deepseek",
        "<｜tool▁calls▁begin｜>weather<｜tool▁calls▁end｜>",
        None,
        None,
        "expected <｜tool▁call▁begin｜>",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_call_is_kept_with_its_error(case):
    name, text, called, arguments, error = BROKEN[case]
    parsed = parse(text, name, TOOLS)
    [call] = parsed.tool_calls
    assert (call.name, call.arguments) == (called, arguments) and error in call.error
    assert call.raw == text and parsed.answer == ""


@pytest.mark.parametrize(
    "text, kind, want",
    [
        ("2", "integer", 2),
        ("2.0", "integer", 2),
        ("2.5", "number", 2.5),
        ("True", "boolean", True),
        ("[1]", "array", [1]),
        ("2", "string", "2"),
        ("2", ["string", "integer"], 2),
        ("x", ["string", "integer"], "x"),
        ("null", ["number", "null"], None),
        ("null", "string", "null"),
        ("true", None, "true"),
    ],
)
def test_bare_values_have_the_type_of_their_schema(text, kind, want):
    value = tool_calls.typed(text, {"type": kind} if kind else {})
    assert value == want and type(value) is type(want)


@pytest.mark.parametrize(
    "text, kind", [("2.5", "integer"), ("x", "number"), ("yes", "boolean"), ("1", "array"), ("[1]", "object")]
)
def test_bare_values_that_do_not_fit(text, kind):
    with pytest.raises(ValueError, match="is not " + kind):
        tool_calls.typed(text, {"type": kind})


@pytest.mark.parametrize(
    "template, tokens, want",
    [
        ("{{ '<|channel|>' }}", (), "harmony"),
        ("'<|turn>' <|channel>", (), "gemma4"),
        ("<tool_call> <think>", (), "qwen"),
        ("<｜Assistant｜><think>", (), "deepseek"),
        ("[INST] [TOOL_CALLS]", (), "mistral"),
        ("<|start_header_id|>", (), "llama3"),
        ("<|im_start|>", ("<tool_call>", "<think>"), "qwen"),
        ("<|im_start|>", ("<think>",), "think"),
        ("<|im_start|>", (), None),
    ],
)
def test_the_format_is_told_by_template_and_vocabulary(template, tokens, want):
    assert detect(template, lambda token: token in tokens) == want


def test_a_format_that_does_not_exist():
    with pytest.raises(ValueError, match="unknown format 'xml'; expected one of think, qwen"):
        Parser("xml")


class FakeTokenizer:
    """Ids are characters; those from 1000 on are special tokens, which a text does not show."""

    specials = {1000: "<|tool_call>", 1001: '<|"|>', 1002: "<tool_call|>", 1003: "<|other|>"}

    def is_special(self, token_id):
        return token_id in self.specials

    def id_to_token(self, token_id):
        return self.specials[token_id]

    def stream(self, skip_special_tokens):
        assert skip_special_tokens
        return self

    def push(self, token_id):
        return "" if token_id in self.specials else chr(token_id)


@pytest.mark.parametrize("late", [0, 1, 5, 100])
def test_special_tokens_stand_where_they_belong_also_in_late_text(late):
    """A stream holds text back that may become a stop text: here each token's text comes `late` tokens later."""
    ids = [
        *map(ord, "So "),
        1003,
        1000,
        *map(ord, "call:weather{city:"),
        1001,
        *map(ord, "Rome"),
        1001,
        ord("}"),
        1002,
        *map(ord, "Yes"),
    ]
    tokenizer = FakeTokenizer()
    reader, parts = TokenReader(Parser("gemma4", TOOLS), tokenizer), []
    texts = [tokenizer.push(one) for one in ids]
    texts = [""] * late + texts
    for i, text in enumerate(texts):
        parts += reader.feed(ids[i] if i < len(ids) else -1, text)
    parts += reader.parser.finish()
    parsed = reader.parser.parsed
    assert parsed.answer == "So\nYes" and [(one.name, one.arguments, one.error) for one in parsed.tool_calls] == [
        (*ROME, None)
    ]
    assert "".join(part.text for part in parts if part.channel == "answer") == "So Yes"


def test_a_stream_takes_its_text_apart():
    """The packaged model writes no markup, so its prompt ends within some: all that it writes is reasoning."""
    with gomlx.load() as model:
        stream = model.generate("<think>\nOnce upon a time", max_tokens=12, temperature=0, parser="think")
        parts = list(stream.parts())
        result = stream.result
        assert {part.channel for part in parts} == {stream.channel} == {"reasoning"}
        assert result.answer == "" and result.reasoning == result.text.strip() != ""
        assert result.message["reasoning_content"] == result.reasoning and result.message["content"] == ""
        stream = model.generate("Once upon a time", max_tokens=12, temperature=0)
        assert [part.text for part in stream.parts()] == [
            token.text for token in model.generate("Once upon a time", max_tokens=12, temperature=0)
        ]
        assert stream.result.answer == stream.result.text and stream.result.reasoning is None
        with pytest.raises(ValueError, match="unknown format"):
            model.generate("x", parser="xml")


@pytest.mark.parametrize("budget", [0, 5])
def test_a_thinking_budget(budget, monkeypatch):
    """The packaged model's template made to end within reasoning: it would go on, and has to answer."""
    with gomlx.load() as model:
        own = model.tokenizer.chat_template
        monkeypatch.setattr(type(model.tokenizer), "chat_template", own + "<think>\n")
        messages = [{"role": "user", "content": "Tell me a story about a frog."}]
        stream = model.chat(messages, max_tokens=60, temperature=0, thinking_budget=budget)
        parts = list(stream.parts())
        result = stream.result
        closing = model.tokenizer.encode("</think>\n\n", add_special_tokens=False)
        assert result.tokens[budget:budget + len(closing)] == closing
        assert result.reasoning == model.tokenizer.decode(result.tokens[:budget]).strip()
        assert result.answer and "</think>" not in result.answer and parts[-1].channel == "answer"
        without = model.chat(messages, max_tokens=60, temperature=0)
        list(without)
        assert without.result.tokens[:budget] == result.tokens[:budget] and without.result.answer == ""
        with pytest.raises(ValueError, match="expected 0 or more"):
            model.chat(messages, thinking_budget=-1)
        monkeypatch.undo()
        with pytest.raises(ValueError, match="knows no reasoning"):
            model.chat(messages, thinking_budget=5)


def test_how_reasoning_is_ended():
    ends = {name: parsing.closing_of(made) for name, made in parsing.FORMATS.items()}
    assert ends["mistral"] == "[/THINK]" and ends["gemma4"] == "<channel|>" and ends["qwen"] == "</think>\n\n"
    for name, closing in ends.items():
        parser = Parser(name, prompt="<|start|>assistant" if name == "harmony" else "")
        opening = {"mistral": "[THINK]", "gemma4": "<|channel>thought\n",
                   "harmony": "<|channel|>analysis<|message|>"}.get(name, "<think>")
        parser.feed(opening + "Hm")
        assert parser.state == "reasoning"
        parser.feed(closing + "Yes")
        assert parser.state == "answer" and parser.parsed.answer == "Yes"


def test_the_message_of_a_result():
    """Calls have an id of nine characters (Mistral's template wants that); what could not be read stays text."""
    result = gomlx.Result(**dict.fromkeys(gomlx.Result.__dataclass_fields__) | {
        "answer": "Well.", "reasoning": None,
        "tool_calls": [tool_calls.ToolCall("f", {"a": 1}, "raw"), tool_calls.ToolCall(None, None, "<cut", "cut")]})
    assert result.message == {"role": "assistant", "content": "Well.\n<cut", "tool_calls": [
        {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}


def test_closing_early_leaves_what_was_read():
    with (
        gomlx.load() as model,
        model.generate("<think>\nOnce", max_tokens=50, temperature=0, parser="qwen") as stream,
    ):
        next(stream)
        stream.close()
        assert stream.result.finish_reason == "cancelled" and stream.result.reasoning is not None


def test_formats_are_whole():
    """Every marker leads to a state that the format has, and every state but the answer can be left."""
    for name, made in parsing.FORMATS.items():
        assert made.name == name and made.start in made.marks
        for state, marks in made.marks.items():
            assert marks and set(marks.values()) <= {*made.marks, "answer"}, (name, state)
    assert Part("answer", "x") == Part("answer", "x")
