"""How the files look: what ruff says of the Python, clang-format of the C, and how long lines are."""
import os
import re
import shutil
import subprocess
import sys

import pytest
from places import ROOT

LIMIT = 120
CLANG_FORMAT = 23               # the major version whose layout the C has; pyproject.toml installs it with the tests


def tool(name):
    """A program beside this Python, or on the path."""
    found = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: pip install {name}")
    return found


def tracked():
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for path in listed.split("\0") if path and os.path.isfile(os.path.join(ROOT, path))]


def test_ruff_finds_nothing():
    said = subprocess.run([tool("ruff"), "check", "--no-cache", "--output-format=concise", "."], cwd=ROOT,
                          capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr


def test_clang_format_finds_nothing():
    program = tool("clang-format")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    if not re.search(rf"version {CLANG_FORMAT}\.", version):
        pytest.skip(f"clang-format {CLANG_FORMAT} lays C out as .clang-format means; this is {version.strip()}")
    paths = [path for path in tracked() if path.endswith((".c", ".h", ".inc"))]
    said = subprocess.run([program, "--dry-run", "-Werror", *paths], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr[:3000]


def test_lines_of_c_are_short():
    long = []
    for path in tracked():
        if path.endswith((".c", ".h", ".inc", ".def", ".cu", ".cuh")):
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                long += [f"{path}:{number}" for number, line in enumerate(file, 1) if len(line.rstrip("\n")) > LIMIT]
    assert not long, long


def code_of_page(text):
    """(number, line) of the lines of code in Markdown, without the README's two commands, which are one line each."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = not inside
        elif inside and not line.startswith("S="):
            yield number, line


def test_lines_of_pages_and_scripts_are_short():
    """In Python that is ruff's matter."""
    long = []
    for path in tracked():
        with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
            text = file.read()
        if path.endswith(".md"):
            lines = code_of_page(text)
        elif path.endswith((".sh", ".toml", ".yml")) or re.match(r"#!.*\b(ba|z)?sh\b", text):
            lines = enumerate(text.splitlines(), 1)
        else:
            continue
        long += [f"{path}:{number}" for number, line in lines if len(line) > LIMIT]
    assert not long, long
