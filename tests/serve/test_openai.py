"""OpenAI's client against the server: what it is told is what the model says, alone and among others."""
import asyncio
import os
import random

import pytest

openai = pytest.importorskip("openai", reason="needs OpenAI's client")
pytest.importorskip("uvicorn", reason="needs gomlx[serve]")
from http_server import serving  # noqa: E402

import gomlx  # noqa: E402
import gomlx.serve  # noqa: E402

ARCHITECTURES = ["llama3", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "gemma2", "gemma3", "gemma4", "gpt_oss"]
CAT = [{"role": "user", "content": "Tell me a story about a cat."}]


@pytest.fixture(scope="module")
def url(model):
    with serving(gomlx.serve.app({"fable": model}, max_streams=4)) as address:
        yield address + "/v1"


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as made:
        yield made


def test_models(client):
    assert [one.id for one in client.models.list()] == ["fable"]
    assert client.models.retrieve("fable").max_model_len == 2048


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions(model, client, stream):
    want = model.chat(CAT, max_tokens=30, seed=0, top_logprobs=2).read()
    asked = {"model": "fable", "messages": CAT, "max_tokens": 30, "seed": 0, "logprobs": True, "top_logprobs": 2}
    if stream:
        chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices == []
        choices = [one.choices[0] for one in chunks[:-1]]
        said = "".join(one.delta.content or "" for one in choices)
        logprobs = [token for one in choices if one.logprobs for token in one.logprobs.content]
        last, usage = choices[-1], chunks[-1].usage
        assert all(one.finish_reason is None for one in choices[:-1])
    else:
        whole = client.chat.completions.create(**asked)
        last, usage = whole.choices[0], whole.usage
        said, logprobs = last.message.content, last.logprobs.content
    assert said == want.answer and last.finish_reason == "length" and last.gomlx["seed"] == 0
    assert (usage.prompt_tokens, usage.completion_tokens) == (want.prompt_tokens, 30)
    assert [one.logprob for one in logprobs] == want.logprobs
    assert "".join(one.token for one in logprobs) == said and b"".join(
        bytes(one.bytes) for one in logprobs) == said.encode()
    assert [[top.logprob for top in one.top_logprobs] for one in logprobs] == [
        [value for _, value in tops] for tops in want.top_logprobs]


def test_samples_have_seeds_of_their_own(model, client):
    alone = [model.chat(CAT, max_tokens=12, seed=5 + i).read().answer for i in range(3)]
    whole = client.chat.completions.create(model="fable", messages=CAT, max_tokens=12, seed=5, n=3)
    assert [one.message.content for one in whole.choices] == alone and whole.usage.completion_tokens == 36
    said = ["", "", ""]
    for chunk in client.chat.completions.create(model="fable", messages=CAT, max_tokens=12, seed=5, n=3, stream=True):
        said[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert said == alone


def test_completions(model, client):
    prompts = ["Once upon a time", "The dog", "Tom"]
    want = [model.generate(one, max_tokens=9, temperature=0).read().text for one in prompts]
    whole = client.completions.create(model="fable", prompt=prompts, max_tokens=9, temperature=0)
    assert [one.text for one in whole.choices] == want
    as_ids = client.completions.create(model="fable", prompt=[model.encode(one) for one in prompts], max_tokens=9,
                                       temperature=0)
    assert [one.text for one in as_ids.choices] == want
    streamed = client.completions.create(model="fable", prompt=prompts[0], max_tokens=9, temperature=0, stream=True)
    assert "".join(one.choices[0].text for one in streamed) == want[0]
    assert len(model.encode(client.completions.create(model="fable", prompt="Once").choices[0].text)) <= 16


@pytest.mark.parametrize("prompt", ["Once upon a time there was a dog who", "cat"])
def test_echo_gives_the_numbers_of_score(model, client, prompt):
    """As lm_eval asks for a loglikelihood."""
    ids, score = model.encode(prompt), model.score(prompt)
    told = client.completions.create(model="fable", prompt=[ids], max_tokens=1, logprobs=1, echo=True, temperature=0,
                                     seed=1234).choices[0]
    assert told.text.startswith(prompt) and told.logprobs.token_logprobs[:len(ids)] == score.logprobs
    assert len(told.logprobs.tokens) == len(ids) + 1 == len(told.logprobs.text_offset)
    best = [one.token for one in (model.classify([ids[:i] for i in range(1, len(ids))]))] if len(ids) > 1 else []
    assert [next(iter(top)) for top in told.logprobs.top_logprobs[1:len(ids)]] == [
        model.decode([one]) for one in best]
    scored = client.completions.create(model="fable", prompt=prompt, max_tokens=0, logprobs=0, echo=True).choices[0]
    assert scored.text == prompt and scored.logprobs.token_logprobs == score.logprobs
    streamed = list(client.completions.create(model="fable", prompt=prompt, max_tokens=0, logprobs=0, echo=True,
                                              stream=True))
    assert streamed[0].choices[0].logprobs.token_logprobs == score.logprobs


@pytest.mark.parametrize("name", [None, *ARCHITECTURES])
def test_requests_together_get_what_they_get_alone(request, name):
    """64 at once, of both endpoints, in memory for few, some of whose clients leave: seeds decide, and nothing else. Of
    other architectures, whose caches are another, three times as many as the model runs together."""
    path = name and os.path.join(request.getfixturevalue("shared"), "data", "models", name)
    if path and not os.path.isdir(path):
        pytest.skip(f"no model {name}")
    with gomlx.load(path) as model:
        app = gomlx.serve.app({"m": model}, max_streams=8, kv_bytes=model.info["kv_bytes_per_token"] * 256 * 5)
        with serving(app) as address:
            requests = 24 if name else 64
            together(model, address + "/v1", requests)
            counted = app.state.models["m"].scheduler.stats
            assert counted["requests"] == requests
            assert name or (counted["preempted"] > 0 and counted["cached_tokens"] > 0), counted


def together(model, url, requests):
    chooser = random.Random(7)

    def asked(i):
        text = "Once upon a time there was a big dog who lived in a house. " * (i % 3 * 8) + f"Tom has {i} cats."
        return text, {"max_tokens": 10 + i % 23 * 2, "seed": i, "temperature": 1.0}

    async def one(client, i):
        text, options = asked(i)
        leaves = chooser.random() < 0.25
        if i % 2:
            stream = await client.completions.create(model="m", prompt=text, stream=True, **options)
            said = ""
            async for chunk in stream:
                said += chunk.choices[0].text
                if leaves and said:
                    await stream.close()
                    return None
            return said
        made = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], **options)
        return made.choices[0].message.content

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, i) for i in range(requests)))

    for i, said in enumerate(asyncio.run(all_of_them())):
        text, options = asked(i)
        alone = (model.generate(text, **options) if i % 2 else model.chat(text, **options)).read()
        assert said in (None, alone.text if i % 2 else alone.answer), i
