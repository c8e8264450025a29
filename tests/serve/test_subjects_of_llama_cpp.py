"""Subjects that llama.cpp's server has tests of by name, and no other file of ours: what is cached, how much may be
thought, what a full context is, places for requests, ends that are ignored, and what a log is told."""
import json
import logging
import threading

import pytest

pytest.importorskip("uvicorn", reason="needs gomlx[serve]")
httpx = pytest.importorskip("httpx", reason="needs httpx")
from http_server import serving  # noqa: E402
from scripted import TEMPLATE  # noqa: E402

import gomlx  # noqa: E402
import gomlx.serve  # noqa: E402

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
STORY = "Once upon a time there was a big dog who lived in a house. "


@pytest.fixture(scope="module")
def model():
    with gomlx.load(context_length=512, prompt_cache=gomlx.PromptCache(min_tokens=64)) as made:
        yield made


@pytest.fixture(scope="module")
def client(model):
    with serving(gomlx.serve.app({"fable": model}, max_streams=2)) as url, \
            httpx.Client(base_url=url, timeout=60) as made:
        yield made


def completion(client, prompt, **more):
    answer = client.post(COMPLETIONS, json={"prompt": prompt, "max_tokens": 4, "seed": 1} | more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_cache_reuse(model, client):
    """What a later prompt begins with is not computed again, usage tells of it, and the answer is a lone run's."""
    model.prompt_cache.clear()
    prompts = STORY * 20, STORY * 20 + "The dog"
    first, longer = (completion(client, one) for one in prompts)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = longer["usage"]["prompt_tokens_details"]["cached_tokens"]
    shared = [a == b for a, b in zip(*map(model.encode, prompts), strict=False)].index(False)
    assert shared > 256 and cached in (shared - 1, shared) and longer["choices"][0]["gomlx"]["cached_tokens"] == cached
    model.prompt_cache.clear()
    assert completion(client, STORY * 20 + "The dog")["choices"][0]["text"] == longer["choices"][0]["text"]


def test_reasoning_budget():
    """After so many tokens of reasoning the answer begins; without a budget it goes on."""
    with gomlx.load() as model:
        model.tokenizer._templates = {"default": TEMPLATE.replace("SIGN", "<think>") + "<think>\n"}
        with serving(gomlx.serve.app({"m": model})) as url, httpx.Client(base_url=url, timeout=60) as client:
            asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40, "seed": 1, "ignore_eos": True}
            for budget, most in ((0, 0), (5, 5), (None, 40)):
                more = {} if budget is None else {"thinking_budget": budget}
                made = client.post(CHAT, json=asked | more).json()
                thought = made["usage"]["completion_tokens_details"]["reasoning_tokens"]
                assert thought <= most + 12 and (budget is None) == (thought > 20)      # and the tokens that end it
                assert bool(made["choices"][0]["message"]["content"]) == (budget is not None)


def test_ctx_shift(model, client):
    """Nothing is ever shifted out: a prompt that is too long is refused, an answer that fills the context ends."""
    answer = client.post(COMPLETIONS, json={"prompt": [5] * 512})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
    made = completion(client, [5] * 506, max_tokens=100, ignore_eos=True)
    choice = made["choices"][0]
    assert (choice["finish_reason"], choice["gomlx"]["finish_reason"]) == ("length", "context")
    assert choice["gomlx"]["truncated"] is False and made["usage"]["total_tokens"] == 512


def test_slots(client):
    """Two are computed at a time; others wait, /health and /metrics tell of both, and all have their own answers."""
    alone = [completion(client, f"{i} dogs", max_tokens=100, ignore_eos=True)["choices"][0]["text"] for i in range(6)]
    found, seen = [None] * 6, set()

    def ask(i):
        found[i] = completion(client, f"{i} dogs", max_tokens=100, ignore_eos=True)["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for one in threads:
        one.start()
    while any(one.is_alive() for one in threads):
        seen.add(client.get("/health").json()["running"])
    assert found == alone and max(seen) <= 2
    metrics = client.get("/metrics").text
    assert 'gomlx_requests_running{model="fable"}' in metrics and 'gomlx_requests_waiting{model="fable"}' in metrics


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_ignore_eos(model, client, path):
    asked = {"prompt": "Once"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "Hi"}]}
    ends = {str(one["id"]): 100 for one in model.info["stop_ids"]}         # it would end at once
    for ignored, count in ((False, 0), (True, 5)):
        made = client.post(path, json=asked | {"max_tokens": 5, "logit_bias": ends, "ignore_eos": ignored}).json()
        assert made["usage"]["completion_tokens"] in (count, count + (not ignored))
        assert made["choices"][0]["finish_reason"] == ("length" if ignored else "stop")


@pytest.mark.parametrize("bad", ["\n2026-01-01 id=\"forged\" status=200", "\r\x1b[31mred", "\u2028x"])
def test_log_injection(client, caplog, bad):
    """What a client writes makes no line of its own, nor moves a terminal: in paths, names of models and bodies."""
    with caplog.at_level(logging.INFO, "gomlx.serve"):
        client.post(COMPLETIONS, json={"prompt": bad, "model": bad})
        client.get("/x" + "".join(f"%{byte:02x}" for byte in bad.encode()))
    assert len(caplog.records) == 2
    for one in caplog.records:
        said = one.getMessage()
        assert said.isprintable() and len(said.splitlines()) == 1
        assert json.loads(json.dumps(one.entry)) == one.entry
