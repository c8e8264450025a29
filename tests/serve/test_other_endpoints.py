"""Embeddings, tokens, metrics, and what watches over a server."""
import asyncio
import base64
import threading

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs gomlx[serve]")
httpx = pytest.importorskip("httpx", reason="needs httpx")
from http_server import serving  # noqa: E402

import gomlx  # noqa: E402
import gomlx.serve  # noqa: E402
from gomlx.serve.errors import Refused  # noqa: E402

TEXTS = ["Once upon a time", "a cat", "x"]
CAT = [{"role": "user", "content": "Tell me a story about a cat."}]


@pytest.fixture(scope="module")
def client(model):
    with serving(gomlx.serve.app(model)) as address, httpx.Client(base_url=address, timeout=60) as made:
        yield made


def test_embeddings(model, client):
    want = np.asarray(model.embed(TEXTS))
    for given in (TEXTS, [model.encode(one) for one in TEXTS]):
        made = client.post("/v1/embeddings", json={"input": given}).json()
        assert [one["index"] for one in made["data"]] == [0, 1, 2]
        np.testing.assert_array_equal(np.array([one["embedding"] for one in made["data"]], "f4"), want)
        assert made["usage"]["prompt_tokens"] == sum(len(model.encode(one)) for one in TEXTS)
    asked = {"input": "a cat", "encoding_format": "base64", "dimensions": 256}
    coded = client.post("/v1/embeddings", json=asked).json()
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4"), want[1])
    for changes, param in (({"dimensions": 64}, "dimensions"), ({"input": []}, "input"), ({"input": [""]}, None),
                           ({"input": [[10**9]]}, None), ({"encoding_format": "hex"}, "encoding_format")):
        answer = client.post("/v1/embeddings", json={"input": "a"} | changes)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_tokens_there_and_back(model, client):
    ids = model.encode("Once upon a time")
    made = client.post("/tokenize", json={"prompt": "Once upon a time", "return_token_strs": True}).json()
    assert (made["tokens"], made["count"], made["max_model_len"]) == (ids, len(ids), 2048)
    assert "".join(made["token_strs"]) == "Once upon a time"
    pieces = client.post("/tokenize", json={"content": "Once upon", "with_pieces": True}).json()["tokens"]
    assert [one["id"] for one in pieces] == model.tokenizer.bare("Once upon")
    chat = client.post("/tokenize", json={"messages": CAT}).json()
    assert chat["count"] == model.chat(CAT, max_tokens=1).read().prompt_tokens
    assert client.post("/detokenize", json={"tokens": ids}).json() == dict.fromkeys(("prompt", "content"),
                                                                                   "Once upon a time")
    for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": "a", "content": "b"}), ("/detokenize", {}),
                       ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": ["a"]})):
        assert client.post(path, json=body).status_code == 400


@pytest.mark.parametrize("token", [True, -1, 10**9, "1", None, 1.0])
def test_ids_that_are_none(client, token):
    answer = client.post("/detokenize", json={"tokens": [1, token]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tokens"


def test_metrics_count_what_was_served(model):
    with serving(gomlx.serve.app({"m": model})) as address, httpx.Client(base_url=address, timeout=60) as client:
        for _ in range(3):
            client.post("/v1/completions", json={"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True})
        client.post("/v1/completions", json={"prompt": "Once", "nothing": 1})
        client.get("/somewhere/else")
        lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
    want = {'gomlx_http_requests_total{endpoint="/v1/completions",status="200"}': 3,
            'gomlx_http_requests_total{endpoint="/v1/completions",status="400"}': 1,
            'gomlx_http_requests_total{endpoint="other",status="404"}': 1,
            'gomlx_generated_tokens_total{model="m"}': 15, 'gomlx_requests_running{model="m"}': 0,
            'gomlx_request_generated_tokens_count{model="m"}': 3, 'gomlx_request_generated_tokens_sum{model="m"}': 15,
            'gomlx_time_to_first_token_seconds_count{model="m"}': 3, 'gomlx_queue_seconds_count{model="m"}': 3}
    assert {name: float(lines[name]) for name in want} == want
    assert float(lines['gomlx_time_between_tokens_seconds_count{model="m"}']) <= 12


def test_health_and_version(model, client):
    assert client.get("/version").json() == {"version": gomlx.__version__}
    assert client.get("/health").json()["status"] == "ok"
    empty = gomlx.serve.app({})
    with serving(empty) as address:
        answer = httpx.get(address + "/health", timeout=60)
        assert answer.status_code == 503 and answer.json()["status"] == "loading"
        assert httpx.post(address + "/v1/completions", json={"prompt": "a"}, timeout=60).status_code == 503
        empty.state.add({"m": model})
        assert httpx.get(address + "/health", timeout=60).status_code == 200
        empty.close()
        assert httpx.get(address + "/health", timeout=60).json()["status"] == "draining"


def test_two_models(model):
    with gomlx.load(context_length=64) as small, serving(gomlx.serve.app({"a": model, "b": small})) as address:
        for name, length in (("a", 2048), ("b", 64)):
            assert httpx.get(f"{address}/v1/models/{name}", timeout=60).json()["max_model_len"] == length
            made = httpx.post(address + "/v1/completions", json={"prompt": "Once", "model": name, "max_tokens": 1},
                              timeout=60)
            assert made.json()["model"] == name
        assert httpx.get(f"{address}/v1/models/c", timeout=60).status_code == 404


def test_scores_take_turns_and_too_many_are_refused():
    state, goes_on = gomlx.serve.app({}, queue=1).state, threading.Event()

    async def several():
        first, second = (asyncio.create_task(state.in_turn(lambda: goes_on.wait(30))) for _ in range(2))
        await asyncio.sleep(0)
        with pytest.raises(Refused) as refusal:
            await state.in_turn(lambda: 1)
        goes_on.set()
        return refusal.value.status, await first, await second, await state.in_turn(lambda: 1)

    assert asyncio.run(several()) == (429, True, True, 1)


def test_the_end_waits_for_what_computes_and_drops_what_waits():
    """A model may be closed when close() has returned: nothing computes with it."""
    state = gomlx.serve.app({}).state
    begun, held, done = threading.Event(), threading.Event(), []

    def computes():
        begun.set()
        held.wait(60)
        done.append(True)

    async def program():
        first, second = (asyncio.create_task(state.in_turn(one)) for one in (computes, lambda: done.append(False)))
        await asyncio.to_thread(begun.wait, 60)
        end = asyncio.create_task(asyncio.to_thread(state.close, 0))
        with pytest.raises(Refused, match="shutting down"):
            await second
        assert not end.done() and not done
        held.set()
        await end
        assert done == [True]
        await first
    asyncio.run(program())


def test_settings_that_there_are_not(model):
    with pytest.raises(TypeError, match="max_stream"):
        gomlx.serve.app(model, max_stream=3)
