"""Tools through two turns, in each protocol, by what each family of models writes."""
import json
import os

import pytest

openai = pytest.importorskip("openai", reason="needs OpenAI's client")
anthropic = pytest.importorskip("anthropic", reason="needs Anthropic's client")
httpx = pytest.importorskip("httpx", reason="needs httpx")
pytest.importorskip("uvicorn", reason="needs gomlx[serve]")
from http_server import serving  # noqa: E402
from scripted import FAMILIES, scripted  # noqa: E402

import gomlx  # noqa: E402
import gomlx.serve  # noqa: E402

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}}]
ASKED = [{"role": "user", "content": "How is the weather in Oslo?"}]


@pytest.fixture(scope="module", params=["fable", *FAMILIES])
def served(request):
    """(address, prompts that the template made, whether the family reasons)."""
    path = None
    if request.param != "fable":
        path = os.path.join(request.getfixturevalue("shared"), "data", "models", request.param)
        if not os.path.isdir(path):
            pytest.skip(f"no model {request.param}")
    sign, call = FAMILIES["qwen3" if path is None else request.param]
    said = "<|channel|>final<|message|>It is cold." if "<|channel|>" in call else "It is cold."
    with gomlx.load(path) as model:
        prompts = scripted(model, sign, lambda text: said if "[tool]" in text else call)
        with serving(gomlx.serve.app({"m": model})) as address:
            yield address, prompts, "I look." in call


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions(served, stream):
    address, prompts, reasons = served
    client = openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0)

    def ask(messages):
        """(content, reasoning, [(id, name, arguments)], finish_reason)."""
        asked = {"model": "m", "messages": messages, "tools": TOOLS}
        if not stream:
            choice = client.chat.completions.create(**asked).choices[0]
            made = choice.message
            return made.content or "", getattr(made, "reasoning_content", None) or "", [
                (one.id, one.function.name, one.function.arguments) for one in made.tool_calls or []], \
                choice.finish_reason
        content, reasoning, calls, reason = "", "", {}, None
        for chunk in client.chat.completions.create(**asked, stream=True):
            delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason
            content += delta.content or ""
            reasoning += getattr(delta, "reasoning_content", None) or ""
            for one in delta.tool_calls or []:
                if one.id is not None:
                    calls[one.index] = [one.id, one.function.name, ""]
                calls[one.index][2] += one.function.arguments or ""
        return content, reasoning, [tuple(one) for one in calls.values()], reason

    content, reasoning, calls, reason = ask(ASKED)
    assert (content.strip(), reasoning.strip(), reason) == ("", "I look." if reasons else "", "tool_calls")
    (number, name, arguments), = calls
    assert name == "weather" and json.loads(arguments) == {"city": "Oslo"} and '"The weather."' in prompts[-1]
    turn = {"role": "assistant", "content": None, "tool_calls": [
        {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}]}
    content, _, calls, reason = ask([*ASKED, turn, {"role": "tool", "tool_call_id": number, "content": "-3"}])
    assert (content, calls, reason) == ("It is cold.", [], "stop")
    assert '"arguments": {"city": "Oslo"}' in prompts[-1] and "[tool]-3weather" in prompts[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_messages(served, stream):
    address, prompts, reasons = served
    client = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)

    def ask(messages):
        asked = {"model": "m", "messages": messages, "max_tokens": 200, "tools": [
            {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}]}
        if not stream:
            return client.messages.create(**asked)
        with client.messages.stream(**asked) as events:
            return events.get_final_message()

    made = ask(ASKED)
    assert [one.type for one in made.content] == (["thinking"] if reasons else []) + ["tool_use"]
    call = made.content[-1]
    assert made.stop_reason == "tool_use" and (call.name, call.input) == ("weather", {"city": "Oslo"})
    made = ask([*ASKED, {"role": "assistant", "content": [one.model_dump(exclude_none=True) for one in made.content]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "-3"}]}])
    assert [one.text for one in made.content] == ["It is cold."] and made.stop_reason == "end_turn"
    assert '"arguments": {"city": "Oslo"}' in prompts[-1] and "[tool]-3weather" in prompts[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_responses(served, stream):
    address, prompts, reasons = served
    client = openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0)

    def ask(given, **more):
        asked = {"model": "m", "input": given, "tools": [
            {"type": "function", "name": "weather", "description": "The weather.", "parameters": SCHEMA,
             "strict": False}]} | more
        if not stream:
            return client.responses.create(**asked)
        with client.responses.stream(**asked) as events:
            return events.get_final_response()

    made = ask(ASKED)
    assert [one.type for one in made.output] == (["reasoning"] if reasons else []) + ["function_call"]
    call = made.output[-1]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "-3"}
    assert ask([result], previous_response_id=made.id).output_text == "It is cold."
    items = [one.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for one in made.output]
    assert ask([*ASKED, *items, result]).output_text == "It is cold."
    assert '"arguments": {"city": "Oslo"}' in prompts[-1] and "[tool]-3weather" in prompts[-1]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_arguments_come_in_pieces(served, path):
    """More than one where a notation's arguments are JSON; all of them are the call's arguments, which come once."""
    address, _, _ = served
    asked = {"model": "m", "stream": True} | {
        "/v1/chat/completions": {"messages": ASKED, "tools": TOOLS},
        "/v1/messages": {"messages": ASKED, "max_tokens": 200, "tools": [{"name": "weather", "input_schema": SCHEMA}]},
        "/v1/responses": {"input": ASKED, "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}]},
    }[path]
    events = [json.loads(line[6:]) for line in httpx.post(address + path, json=asked, timeout=60).text.splitlines()
              if line.startswith("data: {")]
    pieces = [piece for one in events for piece in pieces_of(path, one)]
    assert json.loads("".join(pieces)) == {"city": "Oslo"} and len([one for one in pieces if one]) > 1


def pieces_of(path, event):
    if path == "/v1/chat/completions":
        return [call["function"]["arguments"] for choice in event["choices"]
                for call in choice["delta"].get("tool_calls", [])]
    if path == "/v1/messages":
        return [event["delta"]["partial_json"]] if "partial_json" in event.get("delta", {}) else []
    return [event["delta"]] if event["type"] == "response.function_call_arguments.delta" else []
