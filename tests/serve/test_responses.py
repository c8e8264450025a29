"""OpenAI's protocol of responses, with its client."""
import pytest

openai = pytest.importorskip("openai", reason="needs OpenAI's client")
pytest.importorskip("uvicorn", reason="needs gomlx[serve]")
from http_server import serving  # noqa: E402

import gomlx  # noqa: E402
import gomlx.serve  # noqa: E402

CAT = "Tell me a story about a cat."


@pytest.fixture(scope="module")
def client(model):
    with serving(gomlx.serve.app(model, any_model_name=True, keep_responses=2)) as address, \
            openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as made:
        yield made


def asked(**changes):
    return {"model": "m", "input": CAT, "extra_body": {"seed": 1}} | changes


@pytest.mark.parametrize("stream", [False, True])
def test_responses(model, client, stream):
    want = model.chat(CAT, seed=1).read()
    if stream:
        with client.responses.stream(**asked()) as events:
            kinds = [(one.type, one.sequence_number) for one in events]
            made = events.get_final_response()
        assert [number for _, number in kinds] == list(range(len(kinds)))
        assert (kinds[0][0], kinds[-1][0]) == ("response.created", "response.completed")
    else:
        made = client.responses.create(**asked())
    assert made.output_text == want.answer and made.status == "completed"
    assert (made.usage.input_tokens, made.usage.output_tokens) == (want.prompt_tokens, want.generated_tokens)


def test_an_answer_that_is_cut_is_incomplete(model, client):
    made = client.responses.create(**asked(max_output_tokens=5, top_logprobs=1))
    assert made.status == "incomplete" and made.incomplete_details.reason == "max_output_tokens"
    want = model.chat(CAT, seed=1, max_tokens=5).read()
    assert [one.logprob for one in made.output[0].content[0].logprobs] == want.logprobs
    kinds = [one.type for one in client.responses.create(**asked(max_output_tokens=5), stream=True)]
    assert kinds[-1] == "response.incomplete"


def test_a_conversation_goes_on_from_a_response(model, client):
    first = client.responses.create(**asked(max_output_tokens=10))
    second = client.responses.create(**asked(input="And a dog?", max_output_tokens=10, previous_response_id=first.id))
    want = model.chat([{"role": "user", "content": CAT}, {"role": "assistant", "content": first.output_text},
                       {"role": "user", "content": "And a dog?"}], seed=1, max_tokens=10).read()
    assert second.output_text == want.answer and client.responses.retrieve(second.id).output_text == want.answer
    client.responses.delete(second.id)
    third = client.responses.create(**asked(max_output_tokens=1, store=False))
    for name in (second.id, third.id, "resp_1"):
        with pytest.raises(openai.NotFoundError, match="no response"):
            client.responses.create(**asked(previous_response_id=name))
    for _ in range(2):
        client.responses.create(**asked(max_output_tokens=1))
    with pytest.raises(openai.NotFoundError):           # two are kept
        client.responses.retrieve(first.id)


def test_what_is_kept_is_bounded_in_bytes(model):
    """The oldest go; one that is larger than the whole room is not kept, and is answered all the same."""
    with serving(gomlx.serve.app(model, any_model_name=True, keep_responses_bytes=6000)) as address, \
            openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as client:
        first, second = (client.responses.create(**asked(input="x" * 1000)).id for _ in range(2))
        client.responses.create(**asked(input="x" * 1900))
        kept = [client.responses.retrieve(second).id]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first)
        large = client.responses.create(**asked(input="y " * 900, metadata={"a": "z" * 6000})).id
        assert kept == [second]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(large)


@pytest.mark.parametrize(("changes", "said"), [
    ({"tools": [{"type": "web_search"}]}, "tools of the server"),
    ({"background": True}, "background"), ({"truncation": "auto"}, "truncation"),
    ({"conversation": "c"}, "conversation is not supported"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "item_reference"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://h/"}]}]}, "input_image"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]}, "no earlier message"),
    ({"prompt": {"id": "p"}}, "prompt is not supported")])
def test_what_cannot_be_honoured_is_refused(client, changes, said):
    with pytest.raises(openai.BadRequestError, match=said):
        client.responses.create(**asked(**changes))
