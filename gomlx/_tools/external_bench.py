"""Other engines' programs beside ours in bench(): llama.cpp's llama-bench, and what takes its options."""
from __future__ import annotations

import json
import os
import shlex
import subprocess


class Peer:
    """One program, with options of its own, on one .gguf file. ValueError when the model is not such a file;
    FileNotFoundError when there is no such program."""

    def __init__(self, name, command, path, threads):
        if not os.fspath(path).endswith(".gguf"):
            raise ValueError(f"peer {name}: the model is {os.fspath(path)!r}, and peers read .gguf files")
        self.name = name
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"peer {name}: {command!r} is not a command: {error}") from None
        if not self._command:
            raise ValueError(f"peer {name}: there is no program in {command!r}")
        self._fixed = ["-m", os.fspath(path), "-t", str(threads), "-r", "1", "-o", "json"]
        self._knows_depth = None

    def run(self, prompt, generate, depth):
        """(tokens/s of reading, tokens/s of writing) after `depth` tokens, in one run of a process of its own; None for
        what it cannot measure."""
        reads, writes = ["-p", str(prompt), "-n", "0"], ["-p", "0", "-n", str(generate)]
        if depth == 0:
            rows = self._ask("-p", str(prompt), "-n", str(generate))
        elif self._has_depth():
            rows = self._ask(*reads, "-d", str(depth)) + self._ask(*writes, "-d", str(depth))
        else:                           # ik_llama.cpp measures decode after a prompt, but not prefill after one
            rows = self._ask("-p", "0", "-n", "0", "-gp", f"{depth},{generate}")
        found = {"decode" if row["n_gen"] else "prefill": float(row["avg_ts"]) for row in rows}
        return found.get("prefill"), found.get("decode")

    def _has_depth(self):
        if self._knows_depth is None:
            self._knows_depth = "--n-depth" in self._output("--help")
        return self._knows_depth

    def _ask(self, *options):
        text = self._output(*self._fixed, *options)
        try:
            rows = json.loads(text[text.index("["):])
            if not all(row["n_gen"] >= 0 and row["avg_ts"] > 0 for row in rows):
                raise ValueError("numbers out of range")
            return rows
        except (ValueError, KeyError, TypeError) as error:
            raise RuntimeError(f"peer {self.name}: what {self._command[0]} printed is not llama-bench's JSON: "
                               f"{error}") from None

    def _output(self, *options):
        done = subprocess.run([*self._command, *options], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace")
        if done.returncode != 0:
            raise RuntimeError(f"peer {self.name}: {self._command[0]} ended with {done.returncode}: "
                               f"{done.stderr.strip()[-500:]}")
        return done.stdout
