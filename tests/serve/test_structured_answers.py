"""Constraints of requests are held to, or refused."""
import json

import pytest

openai = pytest.importorskip("openai", reason="needs OpenAI's client")
pytest.importorskip("uvicorn", reason="needs gomlx[serve]")
pytest.importorskip("llguidance", reason="needs gomlx[structured]")
from http_server import serving  # noqa: E402

import gomlx  # noqa: E402
import gomlx.serve  # noqa: E402
from gomlx._generation import constraints  # noqa: E402

CAT = [{"role": "user", "content": "Tell me about a cat."}]
SCHEMA = {"type": "object", "properties": {"name": {"enum": ["Tom", "Kitty"]}, "legs": {"enum": [3, 4]}},
          "required": ["name", "legs"], "additionalProperties": False}


@pytest.fixture(scope="module")
def client(model):
    with serving(gomlx.serve.app(model, any_model_name=True)) as address, \
            openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as made:
        yield made


def test_response_formats(model, client):
    want = model.chat(CAT, schema=SCHEMA, seed=2, max_tokens=100).read()
    asked = {"model": "m", "messages": CAT, "seed": 2, "max_tokens": 100, "response_format": {
        "type": "json_schema", "json_schema": {"name": "cat", "strict": True, "schema": SCHEMA}}}
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.message.content == want.answer and set(json.loads(want.answer)) == {"name", "legs"}
    streamed = client.chat.completions.create(**asked, stream=True)
    assert "".join(one.choices[0].delta.content or "" for one in streamed) == want.answer
    free = client.chat.completions.create(**asked | {"response_format": {"type": "json_object"}}).choices[0]
    assert free.message.content.startswith("{")
    cut = client.chat.completions.create(**asked | {"max_tokens": 3}).choices[0]
    assert cut.finish_reason == "length" and "ends" in cut.gomlx["incomplete"]
    made = client.responses.create(model="m", input=CAT, max_output_tokens=100, extra_body={"seed": 2}, text={
        "format": {"type": "json_schema", "name": "cat", "schema": SCHEMA}})
    assert made.output_text == want.answer


@pytest.mark.parametrize(("asked", "answers"), [
    ({"choice": ["yes", "no"]}, {"yes", "no"}), ({"regex": "a{3}"}, {"aaa"}),
    ({"grammar": 'root ::= "x" "y"'}, {"xy"})])
def test_names_of_vllm(client, asked, answers):
    for ask in (lambda **more: client.chat.completions.create(messages=CAT, **more).choices[0].message.content,
                lambda **more: client.completions.create(prompt="Is it? ", **more).choices[0].text):
        assert ask(model="m", extra_body={"structured_outputs": asked}) in answers


@pytest.mark.parametrize(("schema", "said"), [
    ({"type": "object", "unevaluatedProperties": {"not": {"multipleOf": 7}}}, "unevaluatedProperties|not"),
    ({"$ref": "http://127.0.0.1/schema"}, r"\$ref"), ({"type": "banana"}, "banana"), ("text", "json_schema: expected")])
def test_schemas_that_cannot_be_enforced_are_refused(client, schema, said):
    with pytest.raises(openai.BadRequestError, match=said):
        client.chat.completions.create(model="m", messages=CAT, response_format={
            "type": "json_schema", "json_schema": {"name": "s", "schema": schema}})


def test_no_request_waits_for_the_matchers_view(monkeypatch):
    """It was made with the server: none is made now."""
    with gomlx.load(progress=False) as model, serving(gomlx.serve.app(model, any_model_name=True)) as address, \
            openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as client:
        monkeypatch.setattr(constraints, "View", None)
        answer = client.chat.completions.create(model="m", messages=CAT, extra_body={
            "structured_outputs": {"choice": ["yes"]}})
        assert answer.choices[0].message.content == "yes"
