"""The command gomlx: what goes to which output, what it returns, and how it is interrupted."""
import dataclasses
import io
import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from places import TESTS

import gomlx
from gomlx import cli
from gomlx._conversion import convert as conversion

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
                            cwd=TESTS, **kwargs)


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
                          capture_output=True, text=True, cwd=TESTS)
    assert (done.returncode, done.stdout) == (0, want) and "Traceback" not in done.stderr


@pytest.mark.parametrize("argv", [["--help"], ["generate", "--help"], ["doctor", "--json"], ["inspect", "Once"]])
@pytest.mark.parametrize("nowhere, status, want", [
    ("pipe", 128 + signal.SIGPIPE, ""), ("/dev/full", 1, "gomlx: error: [Errno 28] No space left on device\n")])
def test_an_output_that_takes_nothing(argv, nowhere, status, want):
    if nowhere == "pipe":
        reader, output = os.pipe()
        os.close(reader)
    else:
        if not os.path.exists(nowhere):
            pytest.skip(f"{nowhere} is not there")
        output = os.open(nowhere, os.O_WRONLY)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([*COMMAND, *argv], stdout=output, stderr=subprocess.PIPE, text=True, env=environment,
                          cwd=TESTS)
    os.close(output)
    assert done.returncode == status and done.stderr.replace("gomlx: using fable, the model in the package\n",
                                                             "") == want


def test_no_work_fails_because_nobody_hears_of_it():
    reader, output = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "generate", "Once", "-n", "3", "-t", "0"], stdout=subprocess.PIPE, stderr=output,
                          text=True, cwd=TESTS)
    os.close(output)
    assert (done.returncode, done.stdout) == (0, " upon a time\n")


def test_stop_and_sampling_flags_arrive(capfd):
    _, whole, _ = run(capfd, "generate", "Once upon a time", "-n", "40", "-t", "0")
    word = whole.split()[4]
    _, out, _ = run(capfd, "generate", "Once upon a time", "-n", "40", "-t", "0", "--stop", word, "--top-p", "0.9",
                    "--top-k", "5", "--min-p", "0.1", "--repetition-penalty", "1", "--threads", "1", "--context", "256")
    assert out.rstrip("\n") == whole[:whole.index(word)].rstrip("\n")


def test_every_field_of_sampling_has_a_flag(capfd):
    flags = ("--temperature 0.9 --top-k 50 --top-p 0.95 --min-p 0.01 --typical-p 0.98 --top-n-sigma 3 "
             "--xtc-probability 0.3 "
             "--xtc-threshold 0.2 --dry-multiplier 0.5 --dry-base 1.5 --dry-allowed-length 1 --dry-last-n 50 "
             "--dry-sequence-breaker . --dry-sequence-breaker , --mirostat-tau 4 --mirostat-eta 0.2 "
             "--repetition-penalty 1.1 --frequency-penalty 0.1 --presence-penalty 0.2 --penalty-last-n 20 "
             "--no-penalty-prompt --logit-bias 300=2.5 --logit-bias 301=-1 --bad-word upon --suppress-token 302 "
             "--samplers penalties,dry,top_n_sigma,top_k,typical_p,top_p,min_p,xtc,temperature,mirostat").split()
    options = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.98, "top_n_sigma": 3.0,
               "xtc_probability": 0.3, "xtc_threshold": 0.2, "dry_multiplier": 0.5, "dry_base": 1.5,
               "dry_allowed_length": 1, "dry_last_n": 50, "dry_sequence_breakers": [".", ","], "mirostat_tau": 4.0,
               "mirostat_eta": 0.2, "repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.2,
               "penalty_last_n": 20, "penalty_prompt": False, "logit_bias": {300: 2.5, 301: -1.0},
               "bad_words": ["upon"],
               "suppress_tokens": [302], "samplers": "llama.cpp"}
    assert options.keys() == {one.name for one in dataclasses.fields(gomlx.Sampling)}
    _, out, _ = run(capfd, "generate", "Once", "-n", "20", "--seed", "7", "--min-tokens", "20", "--top-logprobs", "2",
                    "--json", *flags)
    with gomlx.load() as model:
        stream = model.generate("Once", max_tokens=20, seed=7, min_tokens=20, top_logprobs=2, **options)
        list(stream)
    result = json.loads(out)
    assert result["tokens"] == stream.result.tokens and result["logprobs"] == stream.result.logprobs
    assert [len(one) for one in result["top_logprobs"]] == [2] * 20
    _, out, _ = run(capfd, "generate", "Once", "-n", "9", "-t", "0", "--ignore-eos", "--stop-id",
                    str(result["tokens"][0]), "--logit-bias", f"{result['tokens'][0]}=99", "--json")
    assert json.loads(out)["stop"] == result["tokens"][0]
    status, _, err = run(capfd, "generate", "Once", "--samplers", "best")
    assert status == 1 and "expected one of transformers, llama.cpp" in err
    with pytest.raises(SystemExit):
        run(capfd, "generate", "Once", "--logit-bias", "5:1")
    assert "'5:1' is not ID=BIAS" in capfd.readouterr().err


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
    assert found["instruction set"]["chosen"] in ("generic", "avx2", "avxvnni", "avx512", "avx512vnni",
                                                  "avx512bf16", "avx512amx", "neon", "neon_i8mm")
    assert found["instruction set"]["why"]
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


@pytest.mark.parametrize("argv", [["generate"], ["nothing"], ["--wrong"], ["generate", "x", "y"],
                                  ["generate", "x", "--top-k", "many"],
                                  ["chat", "--wrong"]])
def test_wrong_usage_is_status_2(capfd, argv):
    with pytest.raises(SystemExit) as raised:
        cli.main(argv)
    assert raised.value.code == 2 and capfd.readouterr().out == ""


@pytest.mark.parametrize("argv, told", [
    (["generate", "x", "--tempature", "1"],
     "gomlx generate: error: unknown option --tempature. Did you mean --temperature?"),
    (["generate", "--max-new-tokens=3", "x"], "unknown option --max-new-tokens. Did you mean --max-tokens?"),
    (["chat", "-p", "x"], "gomlx chat: error: unknown option -p. Did you mean the text by itself?"),
    (["models", "verify", "--jsn"], "gomlx models verify: error: unknown option --jsn. Did you mean --json?"),
    (["generate", "x", "--xyz"], "unknown option --xyz\n`gomlx help generate` lists what there is\n"),
    (["tokens", "x", "y"], "gomlx tokens: error: unexpected arguments: y\n")])
def test_an_option_that_is_not_there_is_told_with_what_may_have_been_meant(capfd, argv, told):
    with pytest.raises(SystemExit) as raised:
        cli.main(argv)
    out, err = capfd.readouterr()
    assert raised.value.code == 2 and out == "" and told in err and err.count("\n") == 2


def test_without_a_command_the_commands_are_listed(capfd):
    status, out, err = run(capfd)
    assert status == 0 and err == "" and out == run(capfd, "help")[1] and "  generate " in out


def test_an_error_is_one_line_and_status_1(capfd, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF and nothing else")
    for argv in (["generate", "x", "-m", str(bad)], ["info", "-m", str(tmp_path / "none")],
                 ["generate", "x", "--top-p", "7"], ["generate", "x " * 3000]):
        status, out, err = run(capfd, *argv)
        errors = [line for line in err.splitlines() if not line.startswith("gomlx: using fable")]
        assert status == 1 and out == "" and len(errors) == 1 and errors[0].startswith("gomlx: error: ")


def test_wrong_types_of_arguments_are_the_users_and_others_are_ours(capfd, monkeypatch):
    status, out, err = run(capfd, "generate", "x", "--python", "/none")
    assert status == 1 and out == "" and err.endswith("error: load: the native backend has no option python\n")

    def broken(args):
        raise TypeError("a mistake of the program")

    monkeypatch.setattr(cli.machine, "doctor", broken)
    with pytest.raises(TypeError, match="a mistake of the program"):
        cli.main(["doctor"])


def test_paths_that_are_neither_file_nor_folder(capfd, tmp_path):
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for argv in (["generate", "x", "-m", str(pipe)], ["tokens", "x", "-m", str(pipe)], ["plan", "-m", str(pipe)],
                 ["convert", str(pipe), str(tmp_path / "x.gguf")], ["bench", str(pipe)]):
        status, out, err = run(capfd, *argv)
        assert status == 1 and out == "" and "is a pipe or a device, expected a file or a folder" in err
    status, out, err = run(capfd, "convert", "fable", str(pipe), "--overwrite")
    assert status == 1 and "is a pipe or a device and is not overwritten" in err
    assert os.listdir(tmp_path) == ["pipe.gguf"]


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


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("destination", ["x.gguf", "folder"])
def test_signals_within_convert_leave_nothing(capfd, tmp_path, monkeypatch, name, destination):
    number = getattr(signal, name)
    given = signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)    # nohup ignores
    before = signal.getsignal(number)
    monkeypatch.setattr(conversion.Job, "note", lambda *noted: os.kill(os.getpid(), number))
    try:
        status = cli.main(["convert", "fable", str(tmp_path / destination)])
    except SystemExit as ended:
        status = ended.code
    after = signal.signal(number, given)
    assert status == 128 + number and after == before and not os.listdir(tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def heeding_ctrl_c():
    """A parent may have asked for it to be ignored."""
    given = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, given)


def test_ctrl_c_while_an_answer_is_written(capfd, monkeypatch, heeding_ctrl_c):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Tell me a story.\nAnd then?\n"))
    monkeypatch.setattr(gomlx.TokenStream, "parts", lambda stream: os.kill(os.getpid(), signal.SIGINT))
    assert run(capfd, "chat") == (128 + signal.SIGINT, "", "gomlx: using fable, the model in the package\n")
    terminal = io.StringIO("Tell me a story.\nAnd then?\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    status, out, _ = run(capfd, "chat", "--json")
    assert status == 0 and [json.loads(one)["finish_reason"] for one in out.splitlines()] == ["cancelled"] * 2


def test_ctrl_c_ends_it_quietly():
    ignoring_stops = ["generate", "Once upon a time", "-t", "5", "--seed", "1"]
    with start(*ignoring_stops) as process:
        process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        status = process.wait(60)
        assert status in (128 + signal.SIGINT, 0)            # 0: it was done before the signal came
        assert process.stderr.read() == "gomlx: using fable, the model in the package\n"


# ------------------------------------------------------------------------------------------------- a conversation's
# commands

def talk(capfd, monkeypatch, text, *options):
    """(texts of the answers, standard error) of a conversation that is read from a pipe."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    status, out, err = run(capfd, "chat", "-t", "0", "-n", "8", "--json", *options)
    assert status == 0
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")], out, err


def test_help_names_every_command(capfd, monkeypatch):
    from gomlx.cli import talk as talking
    answers, _, err = talk(capfd, monkeypatch, "/help\n")
    assert answers == [] and all(f"\n/{name} " in "\n" + err for name in talking.COMMANDS)


def test_a_conversation_is_saved_and_goes_on(capfd, monkeypatch, tmp_path):
    file = tmp_path / "talk.json"
    first, _, err = talk(capfd, monkeypatch, f"Tell me a story.\n/save {file}\nAnd then?\n/save {file}\n", "--system",
                         "Be kind.")
    messages = json.loads(file.read_text())
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[0]["content"] == "Be kind." and messages[2]["content"] == first[0]["answer"]
    assert "wrote 3 messages" in err
    file.write_text(json.dumps(messages[:3]))
    again, _, err = talk(capfd, monkeypatch, f"/load {file}\nAnd then?\n")
    assert again[0]["tokens"] == first[1]["tokens"] and "3 messages from" in err
    assert os.listdir(tmp_path) == ["talk.json"]


@pytest.mark.parametrize("command, words", [
    ("/save", "expected the name of a file"), ("/load", "expected the name of a file"),
    ("/load {}/none", "No such file"), ("/save {}/no/such/folder", "No such file"), ("/load {}/text", "not JSON"),
    ("/load {}/object", "no conversation"), ("/save {}/text", "not JSON"), ("/load {}/numbers", "no conversation"),
    ("/nothing", "no command /nothing: there are /help"),
    ("/save {}/object", "no conversation")])
def test_files_that_hold_no_conversation(capfd, monkeypatch, tmp_path, command, words):
    for name, content in (("text", "once upon"), ("object", '{"role": "user"}'), ("numbers", "[1, 2]")):
        (tmp_path / name).write_text(content)
    answers, _, err = talk(capfd, monkeypatch, command.format(tmp_path) + "\nHello\n")
    assert words in err and len(answers) == 1                   # it goes on
    assert (tmp_path / "text").read_text() == "once upon" and len(os.listdir(tmp_path)) == 3


def test_the_system_message(capfd, monkeypatch):
    plain, _, err = talk(capfd, monkeypatch, "/system\nHello\n")
    assert "no system message is set" in err
    given, _, err = talk(capfd, monkeypatch,
                         "Hello\n/system Speak of\n/system\n/reset\nHello\n/system -\n/reset\nHello\n")
    assert "gomlx: Speak of\n" in err
    assert given[1]["prompt_tokens"] > given[0]["prompt_tokens"] == given[2]["prompt_tokens"]
    assert given[0]["prompt_tokens"] == plain[0]["prompt_tokens"]
    want, _, _ = talk(capfd, monkeypatch, "Hello\n", "--system", "Speak of")
    assert given[1]["tokens"] == want[0]["tokens"] and given[2]["tokens"] == plain[0]["tokens"]


def test_tokens_of_a_conversation_and_of_a_text(capfd, monkeypatch):
    answers, out, err = talk(capfd, monkeypatch, "/tokens\n/tokens Once upon\nHello\n/tokens\n")
    assert "gomlx: 0 tokens of 2048\n" in err and "gomlx: 2 tokens\n" in err and "394  'Once'" in out
    held = answers[0]["prompt_tokens"] + answers[0]["generated_tokens"]
    counts = [int(line.split()[1]) for line in err.splitlines() if line.endswith(" of 2048")]
    assert counts[0] == 0 and held - 1 <= counts[1] <= held     # the last token's keys are made when it goes on


@pytest.mark.parametrize("typed", ['"""one\ntwo\nthree"""\n', '"""  one\ntwo\nthree """\n',
                                   "one\\\ntwo\\\nthree\n", '"""\none\ntwo\nthree\n"""\n', '"""\none\ntwo\nthree',
                                   "one\\\ntwo\\\nthree\\"])
def test_a_question_of_several_lines(capfd, monkeypatch, tmp_path, typed):
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    from gomlx.cli import talk as talking
    asked = []
    monkeypatch.setattr(talking.Conversation, "ask", lambda self, text: asked.append(text))
    assert run(capfd, "chat")[0] == 0 and asked == ["one\ntwo\nthree"]


def test_a_question_that_begins_with_a_slash(capfd, monkeypatch):
    from gomlx.cli import talk as talking
    asked = []
    monkeypatch.setattr(talking.Conversation, "ask", lambda self, text: asked.append(text))
    monkeypatch.setattr(sys, "stdin", io.StringIO("//help me\n / is a slash\n"))
    _, _, err = run(capfd, "chat")
    assert asked == ["/help me"] and "no command /" in err


def test_what_was_typed_is_there_the_next_time(tmp_path):
    """On a terminal: the history of one conversation in the next one, in a file of the user's own."""
    pytest.importorskip("readline", reason="this Python has no readline")
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "dumb", "HOME": str(tmp_path)}
    for typed, want in ((b"/sys\t Be kind to frogs\n/exit\n", "/help lists"),
                        (b"\x1b[A\x1b[A\n/system\n/exit\n", "gomlx: Be kind to frogs")):
        ours, theirs = pty.openpty()
        process = subprocess.Popen([*COMMAND, "chat"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
                                   cwd=TESTS, start_new_session=True)
        os.close(theirs)
        shown = b""
        try:
            while b"> " not in shown:
                shown += os.read(ours, 4096)
            os.write(ours, typed)
            while True:
                shown += os.read(ours, 4096)
        except OSError:                         # the other side is closed
            pass
        finally:
            os.close(ours)
            status = process.wait(30)
        assert status == 0 and want in shown.decode(), shown
    file = tmp_path / "gomlx" / "chat_history"
    assert "/system Be kind to frogs" in file.read_text() and file.stat().st_mode & 0o077 == 0


def test_a_conversation_that_nobody_reads_ends(tmp_path):
    for typed in (b"Hello\n", b"/tokens Once upon\n"):
        reader, output = os.pipe()
        os.close(reader)
        done = subprocess.run([*COMMAND, "chat"], input=typed * 3, stdout=output, stderr=subprocess.PIPE,
                              cwd=TESTS)
        os.close(output)
        assert done.returncode == 128 + signal.SIGPIPE and b"error" not in done.stderr


def test_what_tab_offers(tmp_path, monkeypatch):
    from gomlx.cli import talk as talking
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk[1].json").touch()
    (tmp_path / "talks").mkdir()
    assert talking.offers("/s", "/s") == ["/system", "/save"]
    assert talking.offers("/", "/") == [f"/{one}" for one in talking.COMMANDS]
    assert talking.offers("/load ta", "ta") == ["talk[1].json", "talks/"]
    assert talking.offers("/save talk[", "talk[") == ["talk[1].json"]
    assert talking.offers("Tell me", "me") == talking.offers("/system /s", "/s") == talking.offers("", "") == []
