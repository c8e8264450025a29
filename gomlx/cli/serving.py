"""serve: models for clients of OpenAI and Anthropic."""
import argparse
import contextlib
import ipaddress
import json
import logging
import os
import sys
import time

import gomlx
from gomlx._files import locating
from gomlx.cli import options
from gomlx.cli.output import say

PREFIX = "GOMLX_SERVE_"
CACHED_PROMPTS = 64             # --prompt-cache-bytes bounds them first, but those of the smallest models


def add(commands):
    made = commands.add("serve", serve, "Serve models to clients of OpenAI and Anthropic.", load_options,
                        examples=["gomlx serve -m org/name:Q4_K_M",
                                  "gomlx serve -m small=path/to/small -m large=path/to/large.gguf --port 8000",
                                  "gomlx serve -m path/to/model --host 0.0.0.0 --api-key-file keys.txt"])
    made.add_argument("-m", "--model", action="append", metavar="[NAME=]MODEL", help="a folder, a .gguf file, or a name"
                      " of the Hugging Face hub; may be given several times (default: fable, the model in the package)")
    for flag, kind, default, metavar, text in FLAGS:
        asked = {"action": "store_true"} if kind is bool else {
            "action": "append", "metavar": metavar} if kind is list else {"type": kind, "metavar": metavar}
        made.add_argument("--" + flag, default=None, help=text + (f" (default: {default})" if default not in (
            None, False) else ""), **asked)


def load_options():
    """Those of options.model(), without the one that says which model."""
    made = options.group()
    for action in options.model()._actions:
        if action.dest not in ("help", "model", "context"):
            made._add_action(action)
    return made


def size(text):
    """Bytes: a number, or one with K, M, G for powers of 1024."""
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper(), 0)
    try:
        return int(float(text[:-1] if unit else text) * 2 ** unit)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, such as 500M or 2G") from None


# (flag, type, default, what stands for its value, what it is); also as GOMLX_SERVE_..., where the flag is not given
FLAGS = [
    ("host", str, "127.0.0.1", "ADDRESS", "the address to listen at; one that others reach needs a key, or --no-key"),
    ("port", int, 8000, "N", "0: one that is free"),
    ("api-key-file", str, None, "FILE", "keys, one a line, of which clients must show one"),
    ("no-key", bool, False, None, "let everybody in who reaches the address"),
    ("max-streams", int, 16, "N", "requests that are computed at a time"),
    ("kv-bytes", size, None, "BYTES", "of keys and values of all of them, for each model"),
    ("queue", int, 256, "N", "requests that may wait; others get status 429"),
    ("gap-ms", float, None, "MS", "milliseconds that prompts may keep a stream's next token waiting"),
    ("context-length", int, None, "N", "tokens of context to hold, instead of the model's own"),
    ("prompt-cache-bytes", size, 1 << 30, "BYTES", "of prompts that are kept for others that begin alike; 0: none"),
    ("request-timeout", float, None, "SECONDS", "of a request at most"),
    ("max-body-bytes", size, 4 << 20, "BYTES", "of a request"),
    ("keep-responses", int, 256, "N", "of /v1/responses, kept for previous_response_id; 0 refuses it"),
    ("keep-responses-bytes", size, 64 << 20, "BYTES", "of these, their conversations and all"),
    ("grace", float, 30.0, "SECONDS", "for running requests to end after a signal"),
    ("cors", list, (), "ORIGIN", "a page's origin that may call; may be given several times"),
    ("any-model-name", bool, False, None, "a name that no model has means the first one"),
    ("log-requests", bool, False, None, "log the bodies of requests, prompts and all"),
    ("json-logs", bool, False, None, "log lines of JSON"),
]


def settings(args, environment):
    """The value of each flag: as given, else of the environment, else the default."""
    found = {}
    for flag, kind, default, _, _ in FLAGS:
        name = flag.replace("-", "_")
        value, given = getattr(args, name), environment.get(PREFIX + name.upper())
        if value is None and given is not None:
            value = read(PREFIX + name.upper(), kind, given)
        found[name] = default if value is None else value
    return found


def read(name, kind, text):
    if kind is bool:
        if text.lower() not in ("", "0", "1", "false", "true"):
            raise ValueError(f"{name} is {text!r}, expected 1 or 0")
        return text.lower() in ("1", "true")
    try:
        return text.split(",") if kind is list else kind(text)
    except (ValueError, argparse.ArgumentTypeError):
        raise ValueError(f"{name} is {text!r}, expected {'a number' if kind in (int, float) else 'bytes'}") from None


def serve(args):
    given = settings(args, os.environ)
    models = named(args.model or os.environ.get(PREFIX + "MODEL", "fable").split(","))
    keys = keys_of(given)
    app = gomlx.serve.app({}, keys=keys, log_prompts=given["log_requests"], cors=tuple(given["cors"]), **{
        name: given[name] for name in ("max_streams", "kv_bytes", "queue", "gap_ms", "request_timeout",
                                       "max_body_bytes", "keep_responses", "keep_responses_bytes", "any_model_name")})
    with logged(given["json_logs"]):
        return gomlx.serve.run(app, lambda: {name: load(args, given, path) for name, path in models.items()},
                               given["host"], given["port"], given["grace"],
                               lambda address: say(f"{address}, loading {', '.join(models)}"))


def named(given):
    """{name: path} of texts NAME=PATH or PATH."""
    models = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals:
            path, name = one, one.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
        if not name or not path or name in models:
            raise ValueError(f"--model {one}: expected NAME=MODEL, with a name that no other has")
        models[name] = path
    return models


def load(args, given, path):
    args.model, args.context = None if path == locating.PACKAGED else path, given["context_length"]
    room = given["prompt_cache_bytes"]
    cache = gomlx.PromptCache(entries=CACHED_PROMPTS, max_bytes=room) if room else False
    return options.load(args, prompt_cache=cache)


def keys_of(given):
    """The keys of --api-key-file; ValueError where an address that others reach would have none."""
    if given["api_key_file"] is not None:
        with open(given["api_key_file"], encoding="utf-8") as file:
            keys = tuple(line.strip() for line in file if line.strip())
        if not keys:
            raise ValueError(f"{given['api_key_file']}: there is no key")
        return keys
    if not given["no_key"] and not is_loopback(given["host"]):
        raise ValueError(f"--host {given['host']}: others reach this address, so it needs --api-key-file, or --no-key "
                         "if everybody may come in")
    return ()


def is_loopback(host):
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


class JsonLines(logging.Formatter):
    def format(self, record):
        entry = {"time": record.created, "level": record.levelname.lower()}
        return json.dumps(entry | (getattr(record, "entry", None) or {"message": record.getMessage()}))


@contextlib.contextmanager
def logged(as_json):
    """The log of the server, and uvicorn's warnings, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(message)s")
    plain.converter = time.gmtime
    handler.setFormatter(JsonLines() if as_json else plain)
    loggers = [(logging.getLogger("gomlx.serve"), logging.INFO), (logging.getLogger("uvicorn"), logging.WARNING)]
    for one, level in loggers:
        one.addHandler(handler)
        one.setLevel(level)
        one.propagate = False
    try:
        yield
    finally:
        for one, _ in loggers:
            one.removeHandler(handler)
            one.propagate = True
