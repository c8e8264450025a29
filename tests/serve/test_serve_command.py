"""The command gomlx serve: addresses, keys, settings, logs, and how it ends."""
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from places import TESTS

pytest.importorskip("uvicorn", reason="needs gomlx[serve]")
pytest.importorskip("starlette", reason="needs gomlx[serve]")

import gomlx.serve  # noqa: E402
from gomlx import cli  # noqa: E402
from gomlx.serve import running  # noqa: E402


class Running:
    """A server in a process of its own."""

    def __init__(self, *argv, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gomlx", "serve", "--port", "0", *argv], stderr=subprocess.PIPE, text=True,
            cwd=TESTS, env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment)
        self.lines = []
        self.url = self.wait_for("http://").split()[1].rstrip(",")
        self.wait_for("serving ")

    def wait_for(self, text):
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError("".join(self.lines))

    def ask(self, path, body=None, **headers):
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=60)

    def end(self):
        """(exit status, lines of the log)."""
        self.lines += self.process.stderr.readlines()
        return self.process.wait(60), self.lines

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()


LONG = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "stream": True, "seed": 1}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_end(number):
    with Running("--grace", "60") as server:
        answer, *others = [server.ask("/v1/completions", LONG) for _ in range(8)]       # together they take longer
        first = answer.readline()
        server.process.send_signal(number)
        server.wait_for("no new requests")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            server.ask("/health")
        with pytest.raises(urllib.error.HTTPError, match="503") as refusal:
            server.ask("/v1/completions", LONG)
        assert json.load(refusal.value)["error"]["code"] == "draining"
        assert first.startswith(b"data: ")
        assert all(one.read().endswith(b"data: [DONE]\n\n") for one in (answer, *others))
        assert server.end()[0] == 0


def test_what_outlasts_the_grace_is_told():
    with Running("--grace", "0.01", "--gap-ms", "50") as server:
        answer, *_ = [server.ask("/v1/completions", LONG) for _ in range(8)]
        answer.readline()
        server.process.terminate()
        last = answer.read().strip().splitlines()[-1]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "draining"
        assert server.end()[0] == 0


def test_what_is_left_of_the_grace_is_for_clients_who_read_slowly():
    """The model may have ended long before its answer is sent."""
    for grace, least in ((600, 500), (0, 5)):
        made = running._Run(gomlx.serve.app({}), dict, grace, print)
        asyncio.run(made._drain(grace))
        assert least <= made._server.config.timeout_graceful_shutdown <= max(grace, 5)


def test_a_second_signal_ends_it_at_once():
    with Running("--grace", "600") as server:
        answers = [server.ask("/v1/completions", LONG) for _ in range(8)]
        server.process.terminate()
        server.wait_for("no new requests")
        server.process.terminate()
        threading.Thread(target=lambda: [one.read() for one in answers], daemon=True).start()
        assert server.end()[0] == 128 + signal.SIGTERM


def test_settings_of_the_environment_and_several_models(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n\nother\n")
    with Running("-m", "a=fable", "-m", "b=fable", "--context-length", "64", GOMLX_SERVE_CONTEXT_LENGTH="128",
                 GOMLX_SERVE_API_KEY_FILE=str(keys), GOMLX_SERVE_MAX_BODY_BYTES="1K", GOMLX_SERVE_JSON_LOGS="1",
                 GOMLX_SERVE_CORS="http://one,http://two") as server:
        key = {"authorization": "Bearer other", "origin": "http://two"}
        answer = server.ask("/v1/models", **key)
        assert answer.headers["access-control-allow-origin"] == "http://two"
        assert [(one["id"], one["max_model_len"]) for one in json.load(answer)["data"]] == [("a", 64), ("b", 64)]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            server.ask("/v1/models")
        with pytest.raises(urllib.error.HTTPError, match="413"):
            server.ask("/v1/completions", {"prompt": "x" * 2000}, **key)
        server.process.terminate()
        status, lines = server.end()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        assert status == 0 and [one["status"] for one in entries if "status" in one] == [200, 401, 413]


def test_a_line_a_request_and_prompts_only_when_asked_for():
    """What clients write adds no lines to the log."""
    forged = "Once\n2026-01-01 forged"
    for argv in ([], ["--log-requests"]):
        with Running(*argv) as server:
            server.ask("/v1/completions", {"prompt": forged, "max_tokens": 3, "ignore_eos": True}).read()
            with pytest.raises(urllib.error.HTTPError):
                server.ask("/nothing%0Aforged")
            server.process.terminate()
            _, lines = server.end()
        told = [line for line in lines if "path=" in line]
        assert len(told) == 2 and not any(line.startswith(("2026-01-01 forged", "forged")) for line in lines)
        assert "generated_tokens=3" in told[0] and ('"prompt": "Once\\n2026' in told[0]) == bool(argv)


@pytest.mark.parametrize(("argv", "said"), [
    (["--host", "0.0.0.0"], "others reach this address"), (["-m", "a=fable", "-m", "a=fable"], "a name that no other"),
    (["--api-key-file", os.devnull], "there is no key"), (["--port", "0", "-m", "a=nowhere"], "nowhere"),
    (["--port", "0", "--max-streams", "0"], "max_streams is 0")])
def test_what_is_wrong_is_said_before_anything_is_served(capfd, argv, said):
    assert cli.main(["serve", *argv]) == 1
    assert said in capfd.readouterr().err


def test_a_value_of_the_environment_that_is_wrong(capfd, monkeypatch):
    monkeypatch.setenv("GOMLX_SERVE_PORT", "http")
    assert cli.main(["serve"]) == 1
    assert "GOMLX_SERVE_PORT is 'http', expected a number" in capfd.readouterr().err


def test_without_the_extra_it_says_what_to_install():
    hidden = "import sys; sys.modules['starlette'] = None; from gomlx import cli; sys.exit(cli.main(['serve']))"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, cwd=TESTS)
    assert done.returncode == 1 and "pip install 'gomlx[serve]'" in done.stderr


def test_the_library_does_not_import_the_server():
    check = "import sys, gomlx, gomlx.cli; assert not {'starlette', 'uvicorn', 'prometheus_client'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=TESTS)
