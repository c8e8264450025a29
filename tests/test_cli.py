"""The command gomlx: what goes to which output, what it returns, and how it is interrupted."""
import io
import json
import os
import signal
import subprocess
import sys

import pytest

import gomlx
from gomlx import cli

COMMAND = [sys.executable, "-m", "gomlx"]


def run(capfd, *argv):
    """(status, standard output, standard error) of one command, in this process."""
    status = cli.main(list(argv))
    out, err = capfd.readouterr()
    return status, out, err


def start(*argv, **kwargs):
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([*COMMAND, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment,
                            cwd=os.path.dirname(os.path.abspath(__file__)), **kwargs)


def test_generate_prints_the_text_and_names_the_model(capfd):
    status, out, err = run(capfd, "generate", "Once upon a time", "-n", "20", "--seed", "1")
    assert status == 0 and err == "gomlx: using fable, the model in the package\n"
    with gomlx.load() as model:
        stream = model.generate("Once upon a time", max_tokens=20, seed=1)
        list(stream)
    assert out == stream.result.text + "\n"


def test_generate_as_json(capfd):
    status, out, _ = run(capfd, "generate", "Once", "-n", "5", "-t", "0", "--json")
    result = json.loads(out)
    assert status == 0 and out.count("\n") == 1
    assert result["generated_tokens"] == len(result["tokens"]) == 5 and result["finish_reason"] == "length"


def test_a_prompt_from_standard_input(capfd, monkeypatch):
    _, want, _ = run(capfd, "generate", "Once upon", "-n", "5", "-t", "0")
    for text in ("Once upon", "Once upon\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        _, out, _ = run(capfd, "generate", "-", "-n", "5", "-t", "0")
        assert out == want


@pytest.mark.parametrize("closed, want", [("<&-", " upon a time\n"), (">&-", ""), ("2>&-", " upon a time\n")])
def test_closed_standard_streams(closed, want):
    done = subprocess.run(["/bin/sh", "-c", f'exec "$0" -m gomlx generate Once -n 3 -t 0 {closed}', sys.executable],
                          capture_output=True, text=True, cwd=os.path.dirname(os.path.abspath(__file__)))
    assert (done.returncode, done.stdout) == (0, want) and "Traceback" not in done.stderr


def test_stop_and_sampling_flags_arrive(capfd):
    _, whole, _ = run(capfd, "generate", "Once upon a time", "-n", "40", "-t", "0")
    word = whole.split()[4]
    _, out, _ = run(capfd, "generate", "Once upon a time", "-n", "40", "-t", "0", "--stop", word, "--top-p", "0.9",
                    "--top-k", "5", "--min-p", "0.1", "--repetition-penalty", "1", "--threads", "1", "--context", "256")
    assert out.rstrip("\n") == whole[:whole.index(word)].rstrip("\n")


def test_one_answer(capfd):
    status, out, _ = run(capfd, "chat", "Tell me a story about a bird.", "--seed", "1", "-n", "30", "--json")
    assert status == 0 and json.loads(out)["generated_tokens"] > 0


def test_a_conversation(capfd, monkeypatch):
    lines = "Tell me a story about a frog.\n/what\n\nAnd then?\n/reset\nTell me a story about a frog.\n/exit\nnever\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    status, out, err = run(capfd, "chat", "-t", "0", "-n", "20", "--json")
    first, second, again = map(json.loads, out.splitlines())
    assert status == 0 and "no command /what" in err
    assert first["cached_tokens"] == 0 and second["cached_tokens"] >= first["prompt_tokens"]
    assert again["tokens"] == first["tokens"]


def test_a_conversation_that_outgrows_the_context_goes_on(capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("word " * 100 + "\nHello\n"))
    status, out, err = run(capfd, "chat", "-t", "0", "-n", "4", "--context", "64", "--json")
    assert status == 0 and "/reset starts anew" in err and len(out.splitlines()) == 1


def test_info(capfd):
    status, out, _ = run(capfd, "info", "--json")
    known = json.loads(out)
    assert status == 0 and known["architecture"] == "llama" and known["sampling"] == {"temperature": 0.7, "top_p": 0.95}
    status, out, _ = run(capfd, "info")
    assert status == 0 and "llama" in out and "<|im_end|>" in out


def test_doctor(capfd):
    status, out, err = run(capfd, "doctor", "--json")
    found = json.loads(out)
    assert status == 0 and err == "" and found["gomlx"] == gomlx.__version__
    assert found["instruction set"]["chosen"] in ("generic", "avx2", "avx512",
                                                  "neon") and found["instruction set"]["why"]
    assert found["threads"]["chosen"] >= 1 and found["threads"]["why"] and found["memory"]["total bytes"] > 0
    status, out, _ = run(capfd, "doctor")
    assert status == 0 and found["threads"]["why"] in out


def test_models_without_a_cache(capfd, monkeypatch, tmp_path):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "none"))
    status, out, _ = run(capfd, "models")
    assert status == 0 and "fable (in the package)" in out
    status, out, err = run(capfd, "models", "rm", "org/name")
    assert status == 1 and out == "" and err == \
        "gomlx: error: the cache has no model 'org/name'; 'gomlx models' lists what it has\n"


@pytest.mark.parametrize("argv", [["generate"], ["nothing"], [], ["generate", "x", "--top-k", "many"],
                                  ["chat", "--wrong"]])
def test_wrong_usage_is_status_2(capfd, argv):
    with pytest.raises(SystemExit) as raised:
        cli.main(argv)
    assert raised.value.code == 2 and capfd.readouterr().out == ""


def test_an_error_is_one_line_and_status_1(capfd, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF and nothing else")
    for argv in (["generate", "x", "-m", str(bad)], ["info", "-m", str(tmp_path / "none")],
                 ["generate", "x", "--top-p", "7"], ["generate", "x " * 3000]):
        status, out, err = run(capfd, *argv)
        errors = [line for line in err.splitlines() if not line.startswith("gomlx: using fable")]
        assert status == 1 and out == "" and len(errors) == 1 and errors[0].startswith("gomlx: error: ")


def test_text_comes_out_as_it_is_made():
    with start("generate", "Once upon a time", "--seed", "1", "-n", "2000") as process:
        assert process.stdout.read(20)
        assert process.poll() is None or process.returncode == 0
        process.kill()


def test_a_reader_that_leaves_ends_it_quietly():
    with start("generate", "Once upon a time", "--seed", "1", "--stop", "never", "-n", "2000", "-t", "1.5") as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(60) in (128 + signal.SIGPIPE, 0)
        assert process.stderr.read() == "gomlx: using fable, the model in the package\n"


def test_ctrl_c_ends_it_quietly():
    ignoring_stops = ["generate", "Once upon a time", "-t", "5", "--seed", "1"]
    with start(*ignoring_stops) as process:
        process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        status = process.wait(60)
        assert status in (128 + signal.SIGINT, 0)            # 0: it was done before the signal came
        assert process.stderr.read() == "gomlx: using fable, the model in the package\n"
