"""Anthropic's client against the server."""
import pytest

anthropic = pytest.importorskip("anthropic", reason="needs Anthropic's client")
pytest.importorskip("uvicorn", reason="needs gomlx[serve]")
from http_server import serving  # noqa: E402

import gomlx  # noqa: E402
import gomlx.serve  # noqa: E402

CAT = [{"role": "user", "content": "Tell me a story about a cat."}]


@pytest.fixture(scope="module")
def client(model):
    with serving(gomlx.serve.app(model, any_model_name=True)) as address, \
            anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("options", "ours", "reason"), [
    ({"max_tokens": 20}, {"max_tokens": 20}, "max_tokens"),
    ({"max_tokens": 400, "stop_sequences": [" was"]}, {"stop": " was"}, "stop_sequence"),
    ({"max_tokens": 1000}, {}, "end_turn")])
def test_messages(model, client, stream, options, ours, reason):
    want = model.chat([{"role": "system", "content": "Be kind."}, *CAT], seed=4, **ours).read()
    asked = {"model": "claude", "messages": CAT, "system": [{"type": "text", "text": "Be kind."}],
             "extra_body": {"seed": 4}} | options
    if stream:
        with client.messages.stream(**asked) as events:
            assert "".join(events.text_stream) == want.answer
            message = events.get_final_message()
    else:
        message = client.messages.create(**asked)
    assert [one.text for one in message.content] == [want.answer] and message.stop_reason == reason
    assert message.stop_sequence == (want.stop if reason == "stop_sequence" else None)
    assert message.usage.output_tokens == want.generated_tokens
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == want.prompt_tokens


def test_count_tokens(model, client):
    counted = client.messages.count_tokens(model="any", messages=CAT).input_tokens
    assert counted == model.chat(CAT, max_tokens=1).read().prompt_tokens


@pytest.mark.parametrize(("changes", "said"), [
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://h/"}}]}]},
     "image"),
    ({"messages": [*CAT, {"role": "assistant", "content": "Once"}]}, "the last one is the assistant's"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools of the server"),
    ({"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"}}, "template takes none"),
    ({"tool_choice": {"type": "any"}}, "there are no tools"), ({"tool_choice": {"type": "tool"}}, "name is missing"),
    ({"tool_choice": {"type": "function"}}, "'auto' or 'any' or 'tool' or 'none'"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    ({"extra_body": {"top_q": 1}}, "top_q is no field"),
    ({"messages": [{"role": "user", "content": "a " * 4000}]}, "4012 tokens .* context of 2048")])
def test_what_cannot_be_honoured_is_refused(client, changes, said):
    with pytest.raises(anthropic.BadRequestError, match=said):
        client.messages.create(**{"model": "m", "max_tokens": 9, "messages": CAT} | changes)
