"""Progress bars: where they are seen, where they are silent, and what they tell a callable."""
import io
import os
import pty
import subprocess
import sys
import termios
import types

import pytest
from places import TESTS

import gomlx
from gomlx import loading
from gomlx._base import bars
from gomlx._files import hub


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(bars, "DELAY", 0)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def on_terminal(monkeypatch, at_once):
    """A function that makes standard error a terminal; pytest's own capturing begins after fixtures."""
    def made(kind=Terminal):
        terminal = kind()
        monkeypatch.setattr(sys, "stderr", terminal)
        return terminal
    return made


def long_work(folder, **options):
    """(label, call) of everything that has a bar."""
    def load():
        gomlx.load(**options).close()

    def convert():
        gomlx.convert("fable", folder / "x.gguf", overwrite=True, **options)

    def bench():
        with gomlx.load(progress=False) as model:
            gomlx.bench(model, prompt=4, generate=2, repeat=1, prompt_cache=False, kv_restore=False, state_bundle=False,
                        probes=False, **options)

    def batch():
        with gomlx.load(progress=False) as model:
            model.generate_batch(["Once", "The"], max_tokens=3).read(**options)

    return [("loading fable-Q8_0.gguf", load), ("writing x.gguf", convert), ("measuring", bench), ("generating", batch)]


def test_bars_are_for_terminals(capfd, on_terminal, tmp_path):
    terminal = on_terminal()
    for label, call in long_work(tmp_path):
        call()
        assert label + ":" in terminal.getvalue(), label
        terminal.truncate(0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("progress", [False, None])
def test_who_wants_none_has_none(capfd, on_terminal, tmp_path, progress):
    terminal = on_terminal()
    for _, call in long_work(tmp_path, progress=progress):
        call()
    assert terminal.getvalue() == "" and capfd.readouterr() == ("", "")


def test_a_pipe_has_none(capfd, at_once, tmp_path):
    for _, call in long_work(tmp_path, progress=True):
        call()
    assert capfd.readouterr() == ("", "")


def test_a_closed_standard_error_has_none(monkeypatch, tmp_path):
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert not bars.is_seen()
        gomlx.load().close()


def test_a_callable_is_told_instead(on_terminal, tmp_path):
    terminal = on_terminal()
    for label, _ in long_work(tmp_path):
        seen = []
        [call] = [call for name, call in long_work(tmp_path, progress=seen.append) if name == label]
        call()
        assert seen == sorted(seen) and seen[-1] == 1.0 and seen[0] >= 0, label
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("seen", [True, False])
def test_the_hubs_bars_are_shown_where_ours_are(monkeypatch, tmp_path, seen):
    shown = []

    def fetch(name, show_bars):
        shown.append(show_bars)
        return loading.PACKAGED_FILE

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.setattr(bars, "is_seen", lambda: seen)
    for progress in (True, False, None, shown.append):
        gomlx.load("org/name", progress=progress).close()
    assert [one for one in shown if isinstance(one, bool)] == [seen, False, False, True]
    del shown[:]
    gomlx.convert("org/name", tmp_path / "x.gguf", progress=False)
    gomlx.convert("org/name", tmp_path / "y.gguf")
    assert shown == [False, seen]


def test_a_bar_counts_and_ends(on_terminal):
    terminal = on_terminal()
    with bars.reporting(True, "generating", 4) as report:
        for fraction in (0.25, 0.5, 7):
            report(fraction)
    text = terminal.getvalue()
    assert "generating: " in text and "of 4" in text and text.endswith("\r")        # erased


def test_short_work_has_no_bar(on_terminal, monkeypatch):
    terminal = on_terminal()
    monkeypatch.setattr(bars, "DELAY", 100)
    with bars.reporting(True, "loading") as report:
        report(0.5)
        report(1)
    assert terminal.getvalue() == ""


def test_no_work_fails_because_nobody_sees_it(on_terminal):
    class Broken(Terminal):
        def write(self, text):
            raise BrokenPipeError

    on_terminal(Broken)
    gomlx.load().close()


def test_an_error_ends_the_bar(on_terminal):
    terminal = on_terminal()
    with pytest.raises(ZeroDivisionError), bars.reporting(True, "loading") as report:
        report(0.5)
        raise ZeroDivisionError
    assert terminal.getvalue().endswith("\r")


def test_a_notebook_is_seen(monkeypatch):
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert bars.is_seen()
    shell.config = {}                           # IPython on a terminal
    assert not bars.in_notebook()


@pytest.mark.parametrize("progress", ["a", 5, []])
def test_what_is_no_progress(tmp_path, progress):
    for _, call in long_work(tmp_path, progress=progress):
        with pytest.raises(TypeError, match="progress: expected True, False or a callable, got"):
            call()


def test_the_command_line_shows_them_on_a_terminal(tmp_path):
    """On a terminal of its own: the bar on standard error, nothing of it on standard output."""
    program = ("from gomlx import cli; from gomlx._base import bars; bars.DELAY = 0; "
               "raise SystemExit(cli.main(['generate', 'Once', '-n', '2']))")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=theirs, cwd=TESTS, text=True)
    os.close(theirs)
    shown = os.read(ours, 100000).decode()
    os.close(ours)
    assert done.returncode == 0 and "loading fable-Q8_0.gguf:" in shown and "loading" not in done.stdout
