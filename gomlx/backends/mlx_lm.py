"""The backend mlx_lm: mlx-lm in a supervised process of its own. On a Mac that is the real MLX.

The process computes tokens; prompts, chat templates, text, stops, reasoning and calls of tools are gomlx's own, so
Token and Result are what the native backend gives. The process is asked for one token at a time, so a stream that is
closed or cancelled costs at most one more. It runs in a session of its own (Ctrl-C does not reach it), ends with its
standard input, and its death is an error that has the end of what it wrote to standard error.
"""
from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
import weakref

from gomlx import _gomlx, abilities
from gomlx._base import arguments
from gomlx._files import locating
from gomlx._files.reading import read_json
from gomlx._generation import chat_formats, defaults
from gomlx._generation.model import Model, draw_seed, options_of
from gomlx._generation.options import GENERATE
from gomlx._generation.sampling import FIELDS, Sampling
from gomlx._generation.streams import Generation, TokenStream
from gomlx._generation.tokenizer import Tokenizer
from gomlx.parsing import TokenReader

BRIDGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bridge.py")
HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VARIABLE = "GOMLX_MLX_PYTHON"                   # names the interpreter if none is given
OLDEST = (0, 21)                                # of mlx-lm: sample_utils and the progress callback as they are now
LOAD_SECONDS, TOKEN_SECONDS, PROBE_SECONDS, CLOSE_SECONDS = 1800, 600, 30, 2
PROBE = """
import importlib.metadata, importlib.util, json
def version(name):
    try:
        return importlib.metadata.version(name) if importlib.util.find_spec(name.replace("-", "_")) else None
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps({"mlx_lm": version("mlx-lm"), "mlx": version("mlx")}))
"""
# The fields of Sampling that mlx-lm has; "samplers" is not among them: the order is its own.
APPLIED = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "penalty_last_n", "logit_bias",
           "suppress_tokens"}
# The other options of generate() that it has.
TAKEN = {"max_tokens", "sampling", "seed", "stop", "stop_ids", "ignore_eos", "parser"}
KINDS = {kind.__name__: kind for kind in (ValueError, TypeError, FileNotFoundError, MemoryError, NotImplementedError)}


class MlxLm:
    """python: the interpreter that has mlx-lm; GOMLX_MLX_PYTHON or this one when None. mlx: "mlx", or "gomlx" to run
    mlx-lm on gomlx.core; None takes gomlx where that interpreter has no mlx."""
    name = "mlx_lm"

    def why_not(self, python=None, mlx=None):
        python = interpreter(python)
        try:
            found = probe(python)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return f"the interpreter {python!r} cannot be run: {brief(error)}; name one with python= or {VARIABLE}"
        if found["mlx_lm"] is None:
            return f"{python} has no mlx-lm: {python} -m pip install mlx-lm"
        if version_of(found["mlx_lm"]) < OLDEST:
            return f"{python} has mlx-lm {found['mlx_lm']}, expected {'.'.join(map(str, OLDEST))} or newer"
        if mlx == "mlx" and found["mlx"] is None:
            return f"{python} has mlx-lm but no mlx: {python} -m pip install mlx, or mlx='gomlx'"
        return None

    def load(self, path_or_name=None, *, python: str | None = None, mlx: str | None = None,
             load_timeout: float = LOAD_SECONDS, token_timeout: float = TOKEN_SECONDS, **others) -> BridgeModel:
        """Timeouts are in seconds; after one, the process is ended and the model closed."""
        if others:
            raise ValueError(f"the backend mlx_lm has no option {', '.join(others)}")
        if mlx not in (None, "mlx", "gomlx"):
            raise ValueError(f"mlx is {mlx!r}, expected 'mlx' or 'gomlx'")
        missing = self.why_not(python, mlx)
        if missing:
            raise RuntimeError(f"the backend mlx_lm is not available: {missing}")
        path = locating.locate(path_or_name)
        if not os.path.isdir(path):
            raise ValueError(f"mlx-lm reads folders with config.json and safetensors, not {path!r}; the native backend "
                             "reads GGUF files")
        python = interpreter(python)
        library = mlx or ("mlx" if probe(python)["mlx"] else "gomlx")
        return BridgeModel(path, python, library, load_timeout, token_timeout)


def interpreter(python):
    return os.fspath(python) if python else os.environ.get(VARIABLE) or sys.executable


_probed = {}


def probe(python):
    """{"mlx_lm": version or None, "mlx": ...} of an interpreter, without importing them."""
    if python not in _probed:
        done = subprocess.run([python, "-c", PROBE], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=PROBE_SECONDS)
        if done.returncode:
            raise OSError(done.stderr.strip()[-200:] or f"status {done.returncode}")
        _probed[python] = json.loads(done.stdout)
    return _probed[python]


def version_of(text):
    return tuple(int(one) for one in text.split(".")[:2] if one.isdigit())


def brief(error):
    return " ".join(str(error).split())[:300] or type(error).__name__


class Process:
    """The bridge as a process. One generation at a time holds `turn`; request() is called by its thread only."""

    def __init__(self, python, library, token_timeout):
        self.turn, self.owner = threading.Lock(), None
        self._writing = threading.Lock()
        self._timeout = token_timeout
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen([python, "-u", BRIDGE, library, HOME], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True)
        self._data, self._number = b"", 0
        self.close = weakref.finalize(self, end, self._process, self._errors)     # also at exit

    def send(self, **request):
        if not self.close.alive:
            raise ValueError("the model is closed")
        line = json.dumps(request).encode() + b"\n"
        try:
            with self._writing:
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except (BrokenPipeError, OSError):
            raise self.death() from None

    def request(self, timeout=None, **fields):
        """The answer to a request; what the other side raised is raised here."""
        self._number += 1
        self.send(**fields, number=self._number)
        until = time.monotonic() + (self._timeout if timeout is None else timeout)
        while (answer := self.receive(until, fields["do"])).get("number") != self._number:
            pass                                # the answer to a request whose caller was interrupted
        if "error" in answer:
            kind = KINDS.get(answer["kind"])
            raise kind(f"mlx_lm: {answer['error']}") if kind else \
                _gomlx.Error(f"mlx_lm: {answer['kind']}: {answer['error']}")
        return answer

    def receive(self, until, what):
        start = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._data:
                if not selector.select(max(0, until - time.monotonic())):
                    tail = self.tail()
                    self._process.kill()
                    self.close()
                    raise TimeoutError(f"mlx_lm: no answer to {what} within {until - start:.0f} s; the process was "
                                       f"ended{tail}")
                more = os.read(self._process.stdout.fileno(), 1 << 16)
                if not more:
                    raise self.death()
                self._data += more
        line, _, self._data = self._data.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            self.close()
            raise _gomlx.Error(f"mlx_lm: the process answered {line[:80]!r}, expected JSON; it was ended")
        return answer

    def death(self):
        """The error for a process that has ended."""
        try:
            status = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            status = "unknown"
        tail = self.tail()
        self.close()
        return _gomlx.Error(f"mlx_lm: the process ended with status {status}{tail}")

    def tail(self):
        try:
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
            text = self._errors.read().decode("utf-8", "replace").strip()
        except (OSError, ValueError):
            text = ""
        return f": ...{text[-1500:]}" if text else ""

    @property
    def pid(self):
        return self._process.pid


def end(process, errors):
    """Ends the process: its input is closed, then it is terminated, then killed; always waited for."""
    for stop in (process.stdin.close, process.terminate, process.kill):
        try:
            stop()
        except OSError:
            pass
        try:
            process.wait(CLOSE_SECONDS)
            break
        except subprocess.TimeoutExpired:
            pass
    process.stdout.close()
    errors.close()


class BridgeStream:
    """What gomlx.TokenStream drives: next tokens with their text, cancel, close, stats, no profile."""

    def __init__(self, process, tokenizer, prompt, context, max_tokens, stop_ids, stop_texts, sampling):
        self._closed = True                     # until the stream is open
        self._guard = threading.Lock()          # a stop that is sent late must not end the next stream
        self._process, self._context = process, context
        self._stop_ids, self._stop_texts = frozenset(stop_ids), stop_texts
        self._text = tokenizer.stream(skip_special_tokens=True)
        for token_id in prompt[-4:]:            # the answer's text follows the prompt's
            self._text.push(token_id)
        self._held = ""
        self._max_tokens = max_tokens
        self._cancelled = self._ended = False
        self._stats = {"prompt_tokens": len(prompt), "cached_tokens": 0, "generated_tokens": 0, "prefill_seconds": 0.0,
                       "decode_seconds": 0.0, "decode_steps": 0, "stop_id": -1, "stop_text": -1}
        if process.owner == threading.get_ident() and process.turn.locked():
            raise RuntimeError("mlx_lm: another stream of this model is open in this thread: end or close it first")
        process.turn.acquire()                  # another thread's generation ends first
        process.owner = threading.get_ident()
        try:
            process.send(do="generate", prompt=prompt, max_tokens=max_tokens, **sampling)
        except BaseException:
            process.owner = None
            process.turn.release()
            raise
        self._closed = False

    def __next__(self):
        if self._ended:
            raise StopIteration
        if self._max_tokens == 0 or self._cancelled:
            return self._end("cancelled" if self._cancelled else "length")
        start = time.perf_counter()
        try:
            answer = self._process.request(do="next")
        except BaseException:
            self.close()
            raise
        seconds = time.perf_counter() - start
        stats = self._stats
        if stats["prefill_seconds"] == 0:
            stats["prefill_seconds"] = seconds
        else:
            stats["decode_seconds"] += seconds
            stats["decode_steps"] += 1
        if "end" in answer or self._cancelled:
            return self._end("cancelled" if self._cancelled or answer["end"] == "stopped" else "length")
        token = answer["token"]
        if token in self._stop_ids:
            stats["stop_id"] = token
            return self._end("stop")
        stats["generated_tokens"] += 1
        full = stats["prompt_tokens"] + stats["generated_tokens"] >= self._context
        finish = "length" if stats["generated_tokens"] == self._max_tokens else "context" if full else None
        text, stopped = self._release(self._text.push(token) + (self._text.finish() if finish else ""), finish)
        finish = "stop" if stopped else finish
        self._ended = finish is not None
        if self._ended:
            self.close()
        return _gomlx.Token((token, text, answer["logprob"], finish, ()))

    def _end(self, finish):
        text, stopped = self._release(self._text.finish(), finish)
        self._ended = True
        self.close()
        return _gomlx.Token((-1, text, float("nan"), "stop" if stopped else finish, ()))

    def _release(self, text, finish):
        """(the text that is clear, whether a stop text came): text that may become one is held back until the end."""
        self._held += text
        found = [(self._held.find(stop), i) for i, stop in enumerate(self._stop_texts) if stop in self._held]
        if found:
            at, self._stats["stop_text"] = min(found)
            return self._held[:at], True
        keep = 0 if finish else max((n for stop in self._stop_texts for n in range(1, len(stop))
                                     if self._held.endswith(stop[:n])), default=0)
        clear, self._held = self._held[:len(self._held) - keep], self._held[len(self._held) - keep:]
        return clear, False

    def cancel(self):
        """From any thread; a prompt that is being computed stops after its chunk."""
        with self._guard:
            if not self._cancelled and not self._closed:
                self._cancelled = True
                self._stop()

    def close(self):
        with self._guard:
            if self._closed:
                return
            self._closed = self._ended = True
            if not self._cancelled:
                self._stop()
            self._process.owner = None
            self._process.turn.release()

    __del__ = close

    def _stop(self):
        try:
            self._process.send(do="stop")
        except (ValueError, _gomlx.Error):
            pass                                # the process has ended already; the next request says so

    def stats(self):
        return self._stats

    def prompt_logprobs(self):
        return None                             # generate refuses to be asked for them

    def profile(self):
        return None


class BridgeModel(Model):
    """A model in an mlx-lm process: generate, chat, info, metrics. What only the engine can do raises
    NotImplementedError."""

    def __init__(self, path, python, library, load_timeout, token_timeout):
        self.tokenizer = Tokenizer.from_file(path)
        config, generation = (read_json(os.path.join(path, name)) for name in ("config.json", "generation_config.json"))
        chat_formats.configure(self.tokenizer, config)
        found = defaults.sampling_from_config(generation, os.path.join(path, "generation_config.json"))
        own = {name: value for name, value in found.items() if name in APPLIED}
        self.sampling = Sampling(**own)
        stops = defaults.stop_ids(self.tokenizer, generation=generation, config=config, where=path)
        self._stop_ids = sorted(stops)
        text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
        self._context = text.get("max_position_embeddings") or 1 << 30
        self._process = Process(python, library, token_timeout)
        try:
            loaded = self._process.request(load_timeout, do="load", path=path)["loaded"]
        except BaseException:
            self._process.close()
            raise
        self.info = {
            "path": path, "backend": "mlx_lm", "architecture": config.get("model_type"), "python": python,
            "mlx": "gomlx" if library == "gomlx" else loaded["mlx"], "mlx_lm": probe(python)["mlx_lm"],
            "device": loaded["device"], "n_layers": text.get("num_hidden_layers"),
            "hidden_size": text.get("hidden_size"), "vocab_size": self.tokenizer.vocab_size,
            "context_length": self._context, "sampling": own or {"temperature": 0.0},
            "sampling_ignored": defaults.sampling_ignored_in_config(generation, own),
            "stop_ids": [{"id": i, "text": self.tokenizer.id_to_token(i), "sources": stops[i]} for i in self._stop_ids],
            "chat_template": self.tokenizer.chat_template is not None,
        }

    def generate(self, prompt, *, n=1, options=None, **changes) -> TokenStream:
        """As Model.generate. Of Sampling, the fields of APPLIED; the samplers' order is mlx-lm's own."""
        arguments.known("generate", changes, GENERATE)
        made = options_of(options, changes)
        chosen = made.sampling_of(self.sampling)
        others = [name for name in made.given() if name not in TAKEN and name not in FIELDS] + (["n"] if n != 1 else [])
        others += [name for name in FIELDS if name not in APPLIED
                   and getattr(chosen, name) != getattr(Sampling(), name)]
        if others:
            raise NotImplementedError(f"the backend mlx_lm has no {', '.join(sorted(others))}: use the native backend")
        ids = self.tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else [int(one) for one in prompt]
        if not ids:
            raise ValueError("generate: the prompt has 0 tokens, expected 1 or more")
        if len(ids) >= self._context:
            error = _gomlx.ContextLengthExceeded(f"generate: the prompt has {len(ids)} tokens, expected fewer than the "
                                                 f"context of {self._context}")
            error.prompt_tokens, error.context_length = len(ids), self._context
            raise error
        if not all(0 <= one < self.tokenizer.vocab_size for one in ids):
            raise ValueError(f"generate: a token id is outside the vocabulary of {self.tokenizer.vocab_size}")
        if not all(made.stop):
            raise ValueError("stop: a text is empty")
        parser = self._parser_of(prompt, ids, made)
        reader = TokenReader(parser, self.tokenizer, ids) if parser is not None else None
        seed = draw_seed() if made.seed is None else made.seed
        stream = BridgeStream(self._process, self.tokenizer, ids, self._context,
                              -1 if made.max_tokens is None else made.max_tokens, self._ends_of(made), made.stop,
                              request_of(chosen, seed))
        self.error = None
        return TokenStream(Generation(stream, seed, None, made.stop, reader), on_error=self._set_error)

    @property
    def abilities(self) -> set[str]:
        return {"generate", "metrics"} | abilities.of_chat(self.tokenizer)

    def metrics(self) -> dict:
        """Peak and active memory of the process, in bytes. Waits for a generation that runs in another thread."""
        if self._process.owner == threading.get_ident():
            return self._process.request(do="metrics")["metrics"]
        with self._process.turn:
            return self._process.request(do="metrics")["metrics"]

    @property
    def _engine(self):
        raise NotImplementedError("the backend mlx_lm does not run this engine: load the model with backend='native'")

    @property
    def vocab_size(self):
        return self.tokenizer.vocab_size

    @property
    def context_length(self):
        return self._context

    def close(self):
        self._process.close()


def request_of(sampling, seed):
    """What the bridge takes of a Sampling."""
    made = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
    bias = dict(sampling.logit_bias or {}) | dict.fromkeys(sampling.suppress_tokens, -1e9)
    return made | {"logit_bias": bias, "seed": seed,
                   "penalty_last_n": 1 << 20 if sampling.penalty_last_n < 0 else sampling.penalty_last_n}


def refused(name):
    def method(self, *args, **kwargs):
        raise NotImplementedError(f"the backend mlx_lm has no {name}(): load the model with backend='native'")
    method.__name__ = name
    return method


# Model's methods that need the engine, now and later; these need only what a BridgeModel has.
SHARED = {"chat", "supports", "encode", "decode", "num_layers", "error"}
for _name in [*vars(Model), "classify", "generate_batch", "score", "embed", "inspect", "logits"]:
    if not _name.startswith("_") and _name not in SHARED and _name not in vars(BridgeModel):
        setattr(BridgeModel, _name, refused(_name))
