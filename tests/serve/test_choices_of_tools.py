"""Which tools are called: what clients choose is held to while random text is written, or refused before it."""
import json
import sys

import pytest

openai = pytest.importorskip("openai", reason="needs OpenAI's client")
anthropic = pytest.importorskip("anthropic", reason="needs Anthropic's client")
pydantic = pytest.importorskip("pydantic", reason="needs pydantic")
pytest.importorskip("uvicorn", reason="needs gomlx[serve]")
pytest.importorskip("llguidance", reason="needs gomlx[structured]")
jsonschema = pytest.importorskip("jsonschema", reason="needs gomlx[structured]")
from http_server import serving  # noqa: E402
from scripted import FAMILIES, TEMPLATE  # noqa: E402

import gomlx  # noqa: E402
import gomlx.serve  # noqa: E402

ASKED = [{"role": "user", "content": "How is the weather in Oslo?"}]
SCHEMAS = {"weather": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8},
                                                        "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                       "required": ["city", "days"], "additionalProperties": False},
           "alarm": {"type": "object", "properties": {"loud": {"type": "boolean"}}, "required": ["loud"],
                     "additionalProperties": False}}
NO_GRAMMAR = {"type": "object", "properties": {"age": {"not": {"multipleOf": 7}}}}
# tool_choice, parallel_tool_calls, and which tools may be called.
CHOICES = [("required", True, set(SCHEMAS)), ("required", False, set(SCHEMAS)), ("named", True, {"weather"}),
           ("allowed", False, {"alarm"})]


def function(name, schema=None, **more):
    return {"name": name, "description": "", "parameters": SCHEMAS[name] if schema is None else schema} | more


def tools(**more):
    return [{"type": "function", "function": function(name, **more)} for name in SCHEMAS]


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as made:
        made.tokenizer._templates = {"default": TEMPLATE.replace("SIGN", FAMILIES["qwen3"][0])}
        yield made


@pytest.fixture(scope="module")
def address(model):
    with serving(gomlx.serve.app(model, any_model_name=True)) as made:
        yield made


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def other(address):
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as made:
        yield made


def check(calls, allowed, parallel):
    """calls: [(name, arguments)]."""
    assert calls and (parallel or len(calls) == 1)
    for name, arguments in calls:
        assert name in allowed
        jsonschema.validate(arguments, SCHEMAS[name])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("choice", "parallel", "allowed"), CHOICES)
def test_chat_completions(client, choice, parallel, allowed, strict, stream, seed):
    choice = {"named": {"type": "function", "function": {"name": "weather"}}, "allowed": {
        "type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
            {"type": "function", "function": {"name": "alarm"}}]}}}.get(choice, choice)
    asked = {"model": "m", "messages": ASKED, "tools": tools(strict=strict), "tool_choice": choice, "seed": seed,
             "parallel_tool_calls": parallel}
    if stream:
        with client.chat.completions.stream(**asked) as events:
            made = events.get_final_completion().choices[0]
    else:
        made = client.chat.completions.create(**asked).choices[0]
    assert made.finish_reason == "tool_calls" and not (made.message.content or "").strip()
    check([(one.function.name, json.loads(one.function.arguments)) for one in made.message.tool_calls], allowed,
          parallel)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("choice", "parallel", "allowed"), CHOICES)
def test_responses(client, choice, parallel, allowed, stream):
    choice = {"named": {"type": "function", "name": "weather"}, "allowed": {
        "type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "alarm"}]}
        }.get(choice, choice)
    asked = {"model": "m", "input": ASKED, "tool_choice": choice, "parallel_tool_calls": parallel, "tools": [
        {"type": "function", "strict": True} | function(name) for name in SCHEMAS], "extra_body": {"seed": 3}}
    if stream:
        with client.responses.stream(**asked) as events:
            made = events.get_final_response()
    else:
        made = client.responses.create(**asked)
    assert made.parallel_tool_calls is parallel and not made.output_text.strip()
    check([(one.name, json.loads(one.arguments)) for one in made.output if one.type == "function_call"], allowed,
          parallel)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("choice", "allowed"), [
    ({"type": "any"}, set(SCHEMAS)), ({"type": "tool", "name": "alarm"}, {"alarm"}),
    ({"type": "any", "disable_parallel_tool_use": True}, set(SCHEMAS))])
def test_messages(other, choice, allowed, strict, stream):
    asked = {"model": "m", "max_tokens": 1000, "messages": ASKED, "tool_choice": choice, "tools": [
        {"name": name, "input_schema": schema, "strict": strict} for name, schema in SCHEMAS.items()],
        "extra_body": {"seed": 3}}
    if stream:
        with other.messages.stream(**asked) as events:
            made = events.get_final_message()
    else:
        made = other.messages.create(**asked)
    assert made.stop_reason == "tool_use" and not "".join(
        one.text for one in made.content if one.type == "text").strip()
    check([(one.name, one.input) for one in made.content if one.type == "tool_use"], allowed,
          "disable_parallel_tool_use" not in choice)


@pytest.mark.parametrize("choice", ["none", "auto", None])
def test_what_the_engine_is_asked(model, client, other, choice):
    """The tools stay in the prompt; without a word of the client's, calls are held where there are any."""
    want = model.chat(ASKED, tools=tools(), tool_choice=choice or "auto", seed=5, max_tokens=30).read()
    more = {} if choice is None else {"tool_choice": choice}
    made = client.chat.completions.create(model="m", messages=ASKED, tools=tools(), seed=5, max_tokens=30, **more)
    assert (made.choices[0].message.content or "") == want.answer and made.usage.prompt_tokens == want.prompt_tokens
    more = {} if choice is None else {"tool_choice": {"type": choice}}
    said = other.messages.create(model="m", messages=ASKED, max_tokens=30, extra_body={"seed": 5}, tools=[
        {"name": name, "description": "", "input_schema": schema} for name, schema in SCHEMAS.items()], **more)
    assert "".join(one.text for one in said.content) == want.answer


def test_a_pydantic_model_is_parsed(client):
    class Cat(pydantic.BaseModel):
        legs: int = pydantic.Field(ge=3, le=4)
        wild: bool

    made = client.chat.completions.parse(model="m", messages=ASKED, response_format=Cat, seed=1)
    assert isinstance(made.choices[0].message.parsed, Cat) and made.choices[0].message.parsed.legs in (3, 4)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("changes", "param", "said"), [
    ({"tools": [{"type": "function", "function": function("weather", NO_GRAMMAR, strict=True)}]},
     "/tools/0/function/parameters/properties/age", "not"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": NO_GRAMMAR}}},
     "/properties/age", "not"),
    ({"tool_choice": {"type": "function", "function": {"name": "sing"}}}, None, "'sing', expected one of"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
        {"type": "function", "function": {"name": "sing"}}]}}}, "tool_choice", "expected names of weather, alarm"),
    ({"tool_choice": "sometimes"}, None, "expected one of"), ({"tool_choice": 5}, None, "a text or a dict"),
    ({"tools": [], "tool_choice": "required"}, None, "there are no tools"),
    ({"tool_choice": "required", "response_format": {"type": "json_object"}}, None, "no other form"),
    ({"extra_body": {"enforce": "relaxed"}}, "enforce", "no field"),
    ({"extra_body": {"structured_outputs": {"json": {}, "enforce": "relaxed"}}}, "structured_outputs.enforce",
     "no field")])
def test_refused_before_the_first_byte(client, changes, param, said, stream):
    asked = {"model": "m", "messages": ASKED, "tools": tools(), "stream": stream} | changes
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.param == param


def test_places_are_those_of_the_protocol(client, other):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="m", input=ASKED, tools=[
            {"type": "function", "strict": True} | function("weather", NO_GRAMMAR)])
    assert caught.value.param == "/tools/0/parameters/properties/age"
    with pytest.raises(anthropic.BadRequestError, match=": /tools/0/input_schema/properties/age: not"):
        other.messages.create(model="m", max_tokens=5, messages=ASKED, tools=[
            {"name": "weather", "strict": True, "input_schema": NO_GRAMMAR}])


def test_without_llguidance(client, other, monkeypatch):
    """What needs it says how to get it; tools that are offered are offered as ever."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    asked = {"model": "m", "messages": ASKED, "tools": tools(), "max_tokens": 5}
    for more in ({}, {"tool_choice": "auto"}):
        assert client.chat.completions.create(**asked, **more).choices[0].finish_reason in ("length", "stop")
    for more in ({"tool_choice": "required"}, {"tool_choice": "none"}, {"parallel_tool_calls": False},
                 {"tools": tools(strict=True)}, {"response_format": {"type": "json_object"}}):
        with pytest.raises(openai.BadRequestError, match=r"pip install 'gomlx\[structured\]'"):
            client.chat.completions.create(**asked | more)
    with pytest.raises(anthropic.BadRequestError, match=r"pip install 'gomlx\[structured\]'"):
        other.messages.create(model="m", max_tokens=5, messages=ASKED, tool_choice={"type": "any"}, tools=[
            {"name": "alarm", "input_schema": SCHEMAS["alarm"]}])
