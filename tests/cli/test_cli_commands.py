"""Commands that generate nothing: tokens, plan, discover, backends, completion; and what chat shows."""
import argparse
import dataclasses
import io
import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time

import pytest

import gomlx
from gomlx import cli
from gomlx._generation.model import Result
from gomlx._generation.tool_calls import ToolCall
from gomlx.cli import complete, generation, manual, options, output, tokens
from gomlx.parsing import Part


def run(capfd, *argv):
    """(status, standard output, standard error) of one command, in this process."""
    status = cli.main(list(argv))
    out, err = capfd.readouterr()
    return status, out, err


def subparsers():
    [found] = [one for one in cli.parser()._actions if isinstance(one, argparse._SubParsersAction)]
    return found.choices


# ------------------------------------------------------------------------------------------------------------- tokens

def test_tokens(capfd):
    text = "Once upon a wörld<|im_end|>"
    status, out, err = run(capfd, "tokens", text, "--json")
    found = json.loads(out)
    with gomlx.load() as model:
        ids = model.tokenizer.encode_prompt(text)
    assert status == 0 and [one["id"] for one in found["tokens"]] == ids and found["count"] == len(ids)
    assert "".join(one["text"] for one in found["tokens"]) == text
    assert [one["token"] for one in found["tokens"] if one["special"]] == ["<|im_end|>"]
    assert "" in [one["text"] for one in found["tokens"]]               # ö is two tokens: the second completes it
    status, out, err = run(capfd, "tokens", text)
    lines = out.splitlines()
    assert status == 0 and [int(line.split()[0]) for line in lines] == ids and "\033" not in out
    assert lines[-1].endswith("<|im_end|>") and f"{len(ids)} tokens, {len(text)} characters" in err


def test_tokens_of_a_chat(capfd):
    _, out, _ = run(capfd, "tokens", "Hi", "--chat", "--json")
    shown = [one["text"] for one in json.loads(out)["tokens"]]
    assert "".join(shown) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_tokens_in_colour(capfd, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    _, out, _ = run(capfd, "tokens", "Hi<|im_end|>")
    assert "\033[7;36m<|im_end|>\033[0m" in out
    monkeypatch.setenv("NO_COLOR", "1")
    _, out, _ = run(capfd, "tokens", "Hi<|im_end|>")
    assert "\033" not in out


def test_the_tokenizer_of_a_folder(shared):
    path = os.path.join(shared, "data", "models", "fable")
    assert tokens.tokenizer_of(path).pieces([41, 784]) == [
        {"id": 41, "token": "G", "text": "G", "special": False},
        {"id": 784, "token": "ood", "text": "ood", "special": False}]


# ------------------------------------------------------------------------------------------- plan, discover, backends

def test_plan(capfd):
    status, out, _ = run(capfd, "plan", "--json", "--context", "512")
    found = json.loads(out)
    assert status == 0 and found["fits"] and found["context"] == 512 and len(found["layers"]) == 6
    status, out, _ = run(capfd, "plan", "--budget", "5MB")
    assert status == 1 and re.search(r"fits: +False", out) and "more than 5.0 MB (given)" in out


@pytest.mark.parametrize("text, want", [("512", 512), ("8GB", 8 * 10**9), ("1.5 GiB", 3 << 29), ("2k", 2000),
                                        ("1Ti", 1 << 40)])
def test_byte_counts(text, want):
    assert options.byte_count(text) == want


@pytest.mark.parametrize("text", ["", "GB", "-1", "8 apples", "1ib"])
def test_what_is_no_byte_count(text):
    with pytest.raises(argparse.ArgumentTypeError, match="not a number of bytes"):
        options.byte_count(text)


def test_discover(capfd, tmp_path):
    shutil.copy(gomlx.loading.PACKAGED_FILE, tmp_path / "good.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF and no more")
    status, out, err = run(capfd, "discover", str(tmp_path))
    lines = out.splitlines()
    assert status == 0 and len(lines) == 2 and lines[1].split()[2:5] == ["llama", "gguf", "Q8_0"]
    assert len(err.splitlines()) == 1 and err.startswith("gomlx: broken: ") and "bad.gguf" in err
    status, out, _ = run(capfd, "discover", str(tmp_path), "--json")
    assert [os.path.basename(one["path"]) for one in json.loads(out)["models"]] == ["bad.gguf", "good.gguf"]
    status, out, err = run(capfd, "discover", str(tmp_path / "none"))
    assert status == 1 and out == "" and "no such file or folder" in err


def test_backends(capfd, monkeypatch):
    monkeypatch.delenv("GOMLX_BACKEND", raising=False)
    monkeypatch.setenv("GOMLX_MLX_PYTHON", "/no/python")
    status, out, _ = run(capfd, "backends", "--json")
    found = json.loads(out)
    rows = {one["name"]: one for one in found["backends"]}
    assert status == 0 and found["default"] == "native" and rows["native"]["available"]
    assert not rows["mlx_lm"]["available"] and "'/no/python' cannot be run" in rows["mlx_lm"]["why"]
    status, out, _ = run(capfd, "backends")
    assert status == 0 and len(out.splitlines()) == 1 + len(rows)


def test_a_backend_that_is_not_there(capfd):
    status, out, err = run(capfd, "generate", "x", "--backend", "metal")
    assert status == 1 and out == "" and "unknown backend 'metal'; expected one of native, mlx_lm" in err


# ---------------------------------------------------------------------------------------------------- what chat shows

class FakeStream:
    def __init__(self, *parts, **result):
        self._parts = parts
        plain = {one.name: None for one in dataclasses.fields(Result) if one.default is dataclasses.MISSING
                 and one.default_factory is dataclasses.MISSING}
        plain |= {"finish_reason": "stop", "generated_tokens": 1, "seed": 1}
        self.result = Result(**plain | result)

    def parts(self):
        return iter(self._parts)


@pytest.mark.parametrize("show_reasoning, want", [(False, "Yes.\n"), (True, "Hm.\nYes.\n")])
def test_reasoning_is_shown_where_it_is_wanted(capfd, show_reasoning, want):
    stream = FakeStream(Part("reasoning", "Hm."), Part("answer", "Yes."), reasoning="Hm.", answer="Yes.")
    generation.show(stream, argparse.Namespace(json=False, show_reasoning=show_reasoning))
    assert capfd.readouterr().out == want


def test_an_answer_that_ends_within_its_reasoning(capfd):
    stream = FakeStream(Part("reasoning", "Hm."), reasoning="Hm.", finish_reason="length")
    generation.show(stream, argparse.Namespace(json=False))
    out, err = capfd.readouterr()
    assert out == "" and err == "gomlx: ended by length within the reasoning; --show-reasoning prints it\n"


def test_calls_of_tools_are_lines_of_json(capfd):
    calls = [ToolCall("f", {"é": 1}, "raw"), ToolCall(None, None, "broken raw", "the call is not JSON")]
    stream = FakeStream(Part("answer", "Well."), Part("tool", "..."), answer="Well.", tool_calls=calls)
    generation.show(stream, argparse.Namespace(json=False))
    out, err = capfd.readouterr()
    assert out == 'Well.\n{"name": "f", "arguments": {"é": 1}}\nbroken raw\n' and "the call is not JSON" in err
    generation.show(stream, argparse.Namespace(json=True))
    assert json.loads(capfd.readouterr().out)["tool_calls"][0] == {"name": "f", "arguments": {"é": 1}, "raw": "raw",
                                                                   "error": None}


def test_switches_that_the_model_does_not_have(capfd, tmp_path):
    status, out, err = run(capfd, "chat", "Hi", "--no-think")
    assert status == 1 and out == "" and "enable_thinking is False" in err
    (tmp_path / "tools.json").write_text('[{"name": "f"}]')
    status, out, err = run(capfd, "chat", "Hi", "--tools", str(tmp_path / "tools.json"))
    assert status == 1 and "chat template takes none" in err
    (tmp_path / "tools.json").write_text("{")
    status, out, err = run(capfd, "chat", "Hi", "--tools", str(tmp_path / "tools.json"))
    assert status == 1 and "tools.json: not JSON" in err


def test_the_form_of_an_answer(capfd, tmp_path):
    pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
    (tmp_path / "schema.json").write_text('{"type": "array", "items": {"type": "boolean"}, "maxItems": 2}')
    (tmp_path / "grammar.gbnf").write_text('root ::= "a" [0-9] "z"')
    for flags, pattern in ((["--schema", str(tmp_path / "schema.json")], r"\[((true|false)(, (true|false))?)?\]"),
                           (["--grammar", str(tmp_path / "grammar.gbnf")], "a[0-9]z"), (["--regex", "b{3}"], "bbb"),
                           (["--choice", "one", "--choice", "two"], "one|two")):
        for command in ("generate", "chat"):
            status, out, _ = run(capfd, command, "Hi", "--seed", "1", *flags)
            assert status == 0 and re.fullmatch(pattern, out.strip())
    status, out, err = run(capfd, "generate", "Hi", "--regex", "(")
    assert status == 1 and "invalid regex" in err
    status, out, err = run(capfd, "chat", "Hi", "--tool-choice", "auto")
    assert status == 1 and "--tool-choice: --tools FILE says which" in err


def test_a_built_in_format(capfd):
    status, out, _ = run(capfd, "chat", "Hi", "--chat-format", "llama2", "-n", "3", "-t", "0", "--json")
    with gomlx.load() as model:
        assert json.loads(out)["prompt_tokens"] == len(model.tokenizer.encode_prompt("<|im_end|>[INST] Hi [/INST]")) - 1


def test_json_is_json(capfd, monkeypatch):
    output.print_json({"a": [1.5, float("-inf"), (float("nan"), "é☃")], "b": {"c": float("inf")}})
    assert json.loads(capfd.readouterr().out, parse_constant=pytest.fail) == {"a": [1.5, None, [None, "é☃"]],
                                                                              "b": {"c": None}}
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    output.print_json("é☃")
    assert sys.stdout.buffer.getvalue() == b'"\\u00e9\\u2603"\n'


# ------------------------------------------------------------------------------------------- consistency, completion

def test_options_mean_the_same_everywhere():
    """A flag has one meaning: the same destination, kind of value and choices in every command that has it."""
    meanings = {}
    for name, one in subparsers().items():
        for action in one._actions:
            for flag in action.option_strings:
                meanings.setdefault(flag, {}).setdefault((action.dest, action.nargs, action.type), []).append(name)
    # batch goes on with the file of -o, train with the run that it names; -n of launch is mpirun's.
    assert {flag: found for flag, found in meanings.items() if len(found) > 1}.keys() <= {"--resume", "-n"}
    flags = {}                                  # and what is meant has the same flags everywhere
    for name, one in subparsers().items():
        for action in one._actions:
            for flag in action.option_strings:
                flags.setdefault(action.dest, {}).setdefault(name, set()).add(flag)
    assert not {dest: found for dest, found in flags.items() if len(set(map(frozenset, found.values()))) > 1}
    assert flags["max_tokens"] == dict.fromkeys(("generate", "chat", "batch", "bench"), {"-n", "--max-tokens"})
    for name, one in subparsers().items():
        assert one.description.endswith("."), name
        assert name in ("completion", "help", "launch", "serve") or "--json" in one._option_string_actions, name
        for action in one._actions:
            assert action.help or not action.option_strings, (name, action)


def test_the_tree_has_all_commands():
    commands = {one.path: one for one in complete.tree(cli.parser())}
    assert {("generate",), ("models", "rm"), ("completion",), ()} <= commands.keys()
    assert {path[0] for path in commands if path} == set(subparsers())
    [option] = [one for one in commands["generate",].options if "--dtype" in one.flags]
    assert option.takes_value and option.choices == ["float32", "float16", "bfloat16"]
    [option] = [one for one in commands["generate",].options if "--json" in one.flags]
    assert not option.takes_value
    assert [word for word, _ in commands["completion",].words] == ["bash", "zsh", "fish"]


def bash_offers(capfd, tmp_path, *words):
    _, script, _ = run(capfd, "completion", "bash")
    line = "COMP_WORDS=(" + " ".join(complete.quoted(one) for one in words) + f"); COMP_CWORD={len(words) - 1}\n"
    done = subprocess.run(["bash", "--norc", "-c", script + line + '_gomlx; printf "%s\\n" "${COMPREPLY[@]}"'],
                          capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("words, want", [
    (["gomlx", "ge"], ["generate"]), (["gomlx", "models", ""], ["rm", "verify"]),
    (["gomlx", "completion", ""], ["bash", "zsh", "fish"]),
    (["gomlx", "generate", "--dty"], ["--dtype"]), (["gomlx", "chat", "--no-t"], ["--no-think"]),
    (["gomlx", "generate", "--dtype", "b"], ["bfloat16"]), (["gomlx", "generate", "-m", "mod"], ["model.gguf"]),
    (["gomlx", "--ver"], ["--version"]), (["gomlx", "discover", "fol"], ["folder"]), (["gomlx", "nothing", "--x"], []),
])
def test_bash_completes(capfd, tmp_path, words, want):
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    (tmp_path / "model.gguf").touch()
    (tmp_path / "folder").mkdir()
    assert bash_offers(capfd, tmp_path, *words) == want


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_good_shell(capfd, shell, tmp_path):
    _, script, _ = run(capfd, "completion", shell)
    assert "generate" in script and "--top-k" in script if shell != "fish" else "-l top-k" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script)
    done = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def test_fish_offers_each_option_with_its_command(capfd):
    _, script, _ = run(capfd, "completion", "fish")
    lines = script.splitlines()
    assert "complete -c gomlx -n '__fish_seen_subcommand_from generate' -l dtype -x -a 'float32 float16 bfloat16' " \
        "-d 'of weights that are not quantised'" in lines
    assert [line for line in lines if "-a 'rm'" in line] == [
        "complete -c gomlx -n '__fish_seen_subcommand_from models; and not __fish_seen_subcommand_from rm verify' -f "
        "-a 'rm' "
        "-d 'Remove models from the cache.'"]
    assert complete.quoted("it's") == "'it'\\''s'"


OFFERS = [("gomlx ge", ["generate"]), ("gomlx models ve", ["verify"]), ("gomlx completion b", ["bash"]),
          ("gomlx generate --dty", ["--dtype"]), ("gomlx chat --no-t", ["--no-think"]),
          ("gomlx generate --dtype b", ["bfloat16"]), ("gomlx --ver", ["--version"])]


@pytest.mark.parametrize("line, want", OFFERS)
def test_fish_completes(capfd, tmp_path, line, want):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    _, script, _ = run(capfd, "completion", "fish")
    (tmp_path / "gomlx.fish").write_text(script)
    done = subprocess.run(["fish", "--no-config", "-c", f"source gomlx.fish; complete -C {complete.quoted(line)}"],
                          capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert [one.split("\t")[0] for one in done.stdout.splitlines()] == want


@pytest.mark.parametrize("line, want", OFFERS)
def test_zsh_completes(capfd, tmp_path, line, want):
    """In a shell that somebody types into: what stands on the line after a tab."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    _, script, _ = run(capfd, "completion", "zsh")
    (tmp_path / "script").write_text(script)
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path,
                             start_new_session=True, env=os.environ | {"HOME": str(tmp_path), "TERM": "dumb",
                                                                       "PS1": "> "})
    os.close(theirs)
    try:
        os.write(ours, b"autoload -U compinit; compinit -u -D; source ./script; gomlx() { print -r -- \"<$*>\"; }; "
                       b"print re''ady\n")
        until(ours, "ready")
        os.write(ours, line.encode() + b"\t\n")
        shown = until(ours, ">\r")
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
    typed = line.removeprefix("gomlx ").split()
    assert f"<{' '.join([*typed[:-1], *want])}>" in shown.replace(" >", ">"), shown


def until(terminal, end, seconds=20):
    """What comes out of a terminal, until it says so."""
    shown, limit = "", time.monotonic() + seconds
    while end not in shown and time.monotonic() < limit:
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    assert end in shown, shown
    return shown


# --------------------------------------------------------------------------------------------------------- help, verify

def pages():
    """(words, parser) of each command and action."""
    for name, one in subparsers().items():
        yield [name], one
        yield from (([name, below], parser) for below, parser in manual.actions_of(one).items())


@pytest.mark.parametrize("words", [words for words, _ in pages()], ids=" ".join)
def test_each_command_has_a_page_with_examples_that_parse(capfd, words):
    status, out, err = run(capfd, "help", *words)
    command = {tuple(words): one for words, one in pages()}[tuple(words)]
    assert status == 0 and err == "" and out.startswith("NAME\n    gomlx " + " ".join(words) + " - ")
    for title in ("SYNOPSIS", "OPTIONS", "EXAMPLES", "EXIT STATUS"):
        assert f"\n{title}\n" in out
    for action in command._actions:
        assert all(flag in out for flag in action.option_strings)
    assert command.examples and max(map(len, out.splitlines())) <= 100 + 60
    for example in command.examples:
        assert f"    {example}\n" in out
        line = example.split("$(")[-1].split(")")[0].split(" > ")[0].split(" | ")[-1]
        argv = shlex.split(line)
        assert argv[0] == "gomlx"
        assert cli.parser().parse_args(argv[1:]).run


def test_help_without_a_command_lists_them_all(capfd):
    status, out, _ = run(capfd, "help")
    assert status == 0 and all(f"  {name} " in out for name in subparsers())
    status, out, err = run(capfd, "help", "models", "rmm")
    assert status == 1 and out == "" and "unknown command 'models rmm'; expected one of rm, verify" in err
    status, _, err = run(capfd, "help", "nothing")
    assert status == 1 and "expected one of generate, chat" in err
    for words, above in ((["generate", "x"], "generate"), (["models", "rm", "x", "y"], "models rm")):
        status, out, err = run(capfd, "help", *words)
        assert status == 1 and out == "" and err.endswith(f"'{above} x': '{above}' has no actions\n")


def test_verifying_what_is_in_no_cache(capfd, tmp_path):
    from gomlx import loading
    with open(loading.PACKAGED_FILE, "rb") as file:
        data = file.read()
    for name, content in (("good.gguf", data), ("cut.gguf", data[:-1000]), ("none.gguf", b"no model")):
        (tmp_path / name).write_bytes(content)
    paths = [str(tmp_path / name) for name in ("good.gguf", "cut.gguf", "none.gguf")]
    status, out, err = run(capfd, "models", "verify", *paths)
    assert status == 1 and [line.split()[0] for line in out.splitlines()] == ["good", "damaged", "damaged"]
    assert err.count(str(tmp_path)) >= 2
    status, out, _ = run(capfd, "models", "verify", paths[0], "--json")
    assert status == 0 and json.loads(out) == {"models": [
        {"name": paths[0], "state": "good", "checked": "headers", "problems": {}, "unchecked": []}]}
