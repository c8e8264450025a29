"""Clients who send what they should not, go away, or ask for too much: each gets a 4xx, and the others are served."""
import contextlib
import importlib
import json
import logging
import socket
import time

import pytest

pytest.importorskip("uvicorn", reason="needs gomlx[serve]")
httpx = pytest.importorskip("httpx", reason="needs httpx")
from http_server import serving  # noqa: E402

import gomlx  # noqa: E402
import gomlx.serve  # noqa: E402
from gomlx.serve import completions, running  # noqa: E402

HI = [{"role": "user", "content": "Hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def app(model):
    return gomlx.serve.app({"fable": model}, max_body_bytes=1 << 20, max_streams=4, heartbeat=0.2)


@pytest.fixture(scope="module")
def url(app):
    with serving(app) as address:
        yield address


@pytest.fixture(scope="module")
def client(url):
    with httpx.Client(base_url=url, timeout=60) as made:
        yield made


@pytest.fixture(autouse=True)
def still_served(client):
    """After each test a decent client gets an answer, and nothing is left running."""
    yield
    assert client.post(COMPLETIONS, json={"prompt": "Once", "max_tokens": 2}).status_code == 200
    until(lambda: client.get("/health").json()["running"] == client.get("/health").json()["waiting"] == 0)


def until(holds):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def chat(**changes):
    return {"model": "fable", "messages": HI, "max_tokens": 2} | changes


@pytest.mark.parametrize(("data", "status", "said"), [
    (b"", 400, "not JSON"), (b"[1]", 400, "expected an object"), (b'{"a": \xff}', 400, "not UTF-8"),
    (b'{"max_tokens": NaN}', 400, "no JSON number"), (b'{"a":' + b"9" * 10000 + b"}", 400, "not JSON"),
    (b'{"a":' * 80 + b"1" + b"}" * 80, 400, "deeper than 64"), (b"[" * 500000, 400, "deeper than 64"),
    (b'{"a": "' + b"x" * (2 << 20) + b'"}', 413, "expected 1048576 at most")])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_bodies(client, path, data, status, said):
    answer = client.post(path, content=data)
    assert answer.status_code == status and said in answer.json()["error"]["message"]


def test_a_body_in_pieces_is_bounded_too(client):
    answer = client.post(CHAT, content=(b"x" * 65536 for _ in range(64)))
    assert answer.status_code == 413


@pytest.mark.parametrize(("changes", "param"), [
    ({"nonsense": 1}, "nonsense"), ({"a" * 500: 1}, "a" * 100), ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"), ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"),
    ({"n": 0}, "n"), ({"n": 10**9}, "n"), ({"seed": -1}, "seed"), ({"stop": [""]}, "stop"),
    ({"stop": ["x"] * 100_000}, "stop"), ({"stop": "x" * 5000}, "stop"), ({"stop": [1]}, "stop"),
    ({"logit_bias": {"a": 1}}, "logit_bias"), ({"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
    ({"messages": []}, "messages"), ({"messages": "Hi"}, "messages"), ({"messages": [1]}, "messages[0]"),
    ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
    ({"messages": [{"content": ""}]}, "messages[0].role"), ({"messages": HI * 5000}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://h/"}}]}]},
     "messages[0].content[0]"),
    ({"messages": [{"role": "tool", "tool_call_id": "c", "content": ""}]}, "messages[0].tool_call_id"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "any"}}, "tool_choice.mode"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": 5}}, "tool_choice.allowed_tools"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [5]}}, "tool_choice.tools[0]"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"function": {"name": []}}]}},
     "tool_choice.tools[0].function.name"),
    ({"response_format": {"type": "xml"}}, "response_format"), ({"top_logprobs": 2}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"), ({"store": True}, "store"),
    ({"parallel_tool_calls": 0}, "parallel_tool_calls"), ({"functions": []}, "functions"),
    ({"reasoning_effort": "high"}, "reasoning_effort"), ({"chat_template_kwargs": {"x": 1}}, "x"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag")])
def test_fields_that_cannot_be_honoured_are_named(client, changes, param):
    answer = client.post(CHAT, json=chat(**changes))
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and error["type"] == "invalid_request_error"


@pytest.mark.parametrize(("changes", "said"), [
    ({"top_p": 5}, "top_p is 5"), ({"logit_bias": {"999999": 1}}, "outside the vocabulary"),
    ({"chat_template_kwargs": {"enable_thinking": True}}, "no such switch"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "template takes none"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "surrogate pair")])
def test_what_the_model_refuses_is_said(client, changes, said):
    answer = client.post(CHAT, content=json.dumps(chat(**changes)))
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]


def test_fields_that_mean_nothing_here_are_accepted(client):
    assert client.post(CHAT, json=chat(user="u", metadata={"a": "b"}, service_tier="auto", store=False, audio=None,
                                       prediction={"type": "content", "content": "x"})).status_code == 200


@pytest.mark.parametrize(("path", "body"), [
    (COMPLETIONS, {"prompt": [1] * 3000}), (CHAT, {"messages": [{"role": "user", "content": "a " * 3000}]})])
def test_a_prompt_that_is_too_long_is_told_both_numbers(client, path, body):
    answer = client.post(path, json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["code"] == "context_length_exceeded"
    assert "2048" in error["message"] and "30" in error["message"]


def test_an_unknown_model_is_told_which_there_are(client):
    answer = client.post(CHAT, json=chat(model="gpt-4"))
    assert answer.status_code == 404 and "fable" in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/", 404), ("GET", CHAT, 405), ("PUT", "/health", 405),
                                                        ("POST", "/v1/chat", 404)])
def test_other_addresses(client, method, path, status):
    assert client.request(method, path).status_code == status


def raw(url):
    made = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
    made.settimeout(30)
    return made


def request(body, more=""):
    data = json.dumps(body).encode()
    return f"POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(data)}\r\n{more}\r\n".encode() + data


@pytest.mark.parametrize("data", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"A" * 200_000,
    b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
    b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    b"GET /health HTTP/1.1\r\nhost: h\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: -1\r\n\r\n"])
def test_what_is_no_http_is_refused(url, data):
    """Requests that are smuggled behind another get no answer of their own."""
    with raw(url) as one:
        with contextlib.suppress(OSError):
            one.sendall(data)
            one.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(OSError):
            while piece := one.recv(65536):
                answer += piece
    assert answer == b"" or answer.split()[1].startswith(b"4") and b" 200 " not in answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_place(url, client, stream):
    with raw(url) as one:
        one.sendall(request(chat(max_tokens=1900, ignore_eos=True, stream=stream, seed=1)))
        until(lambda: client.get("/health").json()["running"] == 1)
    until(lambda: client.get("/health").json()["running"] == 0)
    counted = [line for line in client.get("/metrics").text.splitlines() if line.startswith("gomlx_cancelled_total{")]
    assert float(counted[0].split()[1]) >= 1


def test_a_socket_that_is_half_closed_gets_its_answer_or_none(url):
    """uvicorn takes a client that sends no more for one that left: what matters is that nothing hangs."""
    with raw(url) as one:
        one.sendall(request(chat(), "connection: close\r\n"))
        one.shutdown(socket.SHUT_WR)
        while one.recv(65536):
            pass


def test_bodies_that_never_come_hold_up_nobody(url, client):
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            one = stack.enter_context(raw(url))
            one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 1000\r\n\r\n{")
        assert client.post(COMPLETIONS, json={"prompt": "Once", "max_tokens": 2}).status_code == 200


HTTP = {"h11": ("uvicorn.protocols.http.h11_impl", "H11Protocol"),
        "httptools": ("uvicorn.protocols.http.httptools_impl", "HttpToolsProtocol")}


@pytest.fixture(params=HTTP)
def impatient(request, model, monkeypatch):
    """The address of a server that waits for heads as little as it can, with each of uvicorn's protocols."""
    pytest.importorskip(request.param)
    module, name = HTTP[request.param]
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.05)
    protocol = type("Protocol", (running.Patience, getattr(importlib.import_module(module), name)), {})
    with serving(gomlx.serve.app({"fable": model}), http=protocol) as address:
        yield address


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nhost: h\r\n\r\n"])
def test_heads_that_come_slowly_end(impatient, before):
    """On a new connection, and on one that is kept after an answer."""
    with raw(impatient) as one:
        one.sendall(before)
        if before:
            assert b" 200 " in one.recv(65536)
        with pytest.raises(OSError):            # noqa: PT011 - what the system calls it is its own affair
            for _ in range(2000):
                one.sendall(b"G")
                time.sleep(0.005)


def test_heads_that_do_not_end(impatient, monkeypatch):
    monkeypatch.setattr(running, "HEAD_SECONDS", 600)
    with raw(impatient) as one:
        with contextlib.suppress(OSError):
            one.sendall(b"GET /health HTTP/1.1\r\nhost: h\r\nx: ")
            for _ in range(1000):
                one.sendall(b"x" * 1000)
        with contextlib.suppress(OSError):
            assert b" 200 " not in one.recv(65536)


def test_a_body_may_be_longer_than_a_head(impatient, monkeypatch):
    monkeypatch.setattr(running, "HEAD_SECONDS", 600)
    body = {"prompt": "Once", "max_tokens": 1, "user": "x" * 200_000}
    with httpx.Client(base_url=impatient, timeout=60) as client:
        assert [client.post(COMPLETIONS, json=body).status_code for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_of_ours_has_a_line_in_the_log_without_the_prompt(app, client, caplog, monkeypatch, stream):
    def fails(*given, **named):
        raise RuntimeError("a part\nof ours")
    served = app.state.models["fable"]
    monkeypatch.setattr(served.scheduler, "generate", fails)
    with caplog.at_level(logging.INFO, "gomlx.serve"):
        answer = client.post(COMPLETIONS, json={"prompt": "a secret", "stream": stream})
    monkeypatch.undo()
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal_error"
    line, = (one for one in caplog.records if one.levelno == logging.ERROR)
    said = line.getMessage()
    assert "\n" not in said and "secret" not in said
    assert line.entry["id"] == answer.headers["x-request-id"] and line.entry["error"] == "RuntimeError: a part of ours"
    assert line.entry["at"][-1].endswith(" fails")


def test_a_failure_within_a_stream_is_an_event_and_a_line(client, caplog, monkeypatch):
    monkeypatch.setattr(completions.Voice, "ended", lambda *given: 1 // 0)
    with caplog.at_level(logging.ERROR, "gomlx.serve"):
        answer = client.post(COMPLETIONS, json={"prompt": "Once", "max_tokens": 2, "stream": True})
    monkeypatch.undo()
    assert answer.status_code == 200 and '"code":"internal_error"' in answer.text
    assert [one.entry["id"] for one in caplog.records] == [answer.headers["x-request-id"]]


def test_a_failure_of_what_is_only_asked_for(app, client, caplog, monkeypatch):
    monkeypatch.setattr(app.state, "models", None)
    with caplog.at_level(logging.ERROR, "gomlx.serve"):
        answer = client.get("/v1/models")
    monkeypatch.undo()
    assert answer.status_code == 500 and caplog.records[0].entry["id"] == answer.headers["x-request-id"]


def test_keys(model):
    with serving(gomlx.serve.app({"fable": model}, keys=("first", "sécond"))) as url, \
            httpx.Client(timeout=60) as client:
        for headers in ({}, {"authorization": "Bearer fir"}, {"authorization": "Bearer"}, {"x-api-key": "firstt"},
                        {"authorization": "Basic first"}):
            answer = client.post(url + CHAT, json=chat(), headers=headers)
            assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
            assert client.get(url + "/metrics", headers=headers).status_code == 401
        assert client.post(url + "/v1/messages", json={}).json()["error"]["type"] == "authentication_error"
        for headers in ({"authorization": "Bearer first"}, {"x-api-key": "first"},
                        {"authorization": "Bearer sécond".encode()}):
            assert client.post(url + CHAT, json=chat(), headers=headers).status_code == 200
        assert client.get(url + "/health").status_code == 200


def test_a_full_queue(model):
    with serving(gomlx.serve.app(model, max_streams=1, queue=1, any_model_name=True)) as url, \
            httpx.Client(base_url=url, timeout=60) as client, \
            client.stream("POST", CHAT, json=chat(max_tokens=1900, ignore_eos=True, stream=True)), \
            client.stream("POST", CHAT, json=chat(max_tokens=2, stream=True)):
        until(lambda: client.get("/health").json()["waiting"] == 1)
        answer = client.post(CHAT, json=chat())
        assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["type"] == "rate_limit_error"
        many = client.post(CHAT, json=chat(n=100))              # none of them is left behind
        assert many.status_code == 429 and client.get("/health").json()["waiting"] == 1


def test_one_that_waits_long_hears_something(model):
    """Comments while it is in the queue, and its answer then."""
    with serving(gomlx.serve.app(model, max_streams=1, heartbeat=0.05, any_model_name=True)) as url, \
            httpx.Client(base_url=url, timeout=60) as client:
        with client.stream("POST", CHAT, json=chat(max_tokens=1000, ignore_eos=True, stream=True)), \
                client.stream("POST", COMPLETIONS, json={"prompt": "Once", "stream": True}) as second:
            lines = list(second.iter_lines())
        assert lines[0].startswith(": ") and lines[-2] == "data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_is_late(model, stream):
    with serving(gomlx.serve.app(model, request_timeout=0.05, any_model_name=True)) as url, \
            httpx.Client(timeout=60) as client:
        answer = client.post(url + CHAT, json=chat(max_tokens=1900, ignore_eos=True, stream=stream), timeout=60)
    last = answer.text.strip().splitlines()[-1].removeprefix("data: ")
    assert json.loads(last)["error"]["code"] == "timeout" and answer.status_code == (200 if stream else 503)
    assert answer.headers.get("retry-after") == (None if stream else "1")
