"""Requests to the server, mutated at random: each must get an answer of its protocol, never a 500, and leave nothing
behind.

    python tests/fuzz/mutated_requests.py --seconds 3600 --seed 1

A request is a valid one of a random endpoint whose values are replaced, removed, repeated or nested, whose fields come
from other endpoints, or whose bytes are changed. It goes to the application without a socket, so that what is tested is
the reading of requests, and the engine with what they ask for: a model of 128 positions. What is found is printed with
the number that `--only` takes."""
from __future__ import annotations

import argparse
import asyncio
import collections
import copy
import json
import logging
import random
import resource
import sys
import time

import gomlx
import gomlx.serve

FUNCTION = {"name": "weather", "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
HI = {"role": "user", "content": "Hi"}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "stop": ["x", "yy"], "min_tokens": 1,
            "logit_bias": {"5": 1.5}, "presence_penalty": 0.5, "frequency_penalty": 0.1, "repetition_penalty": 1.1,
            "ignore_eos": True, "stop_token_ids": [7], "bad_words": ["the"], "samplers": ["top_k", "temperature"]}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", 1, None]}, "b": {"type": "array", "items": {}}},
          "required": ["a"], "additionalProperties": False}
SEEDS = [
    ("/v1/chat/completions", {"messages": [{"role": "system", "content": "s"}, HI,
                                           {"role": "assistant", "content": "x"}, HI], "max_tokens": 3, **SAMPLING}),
    ("/v1/chat/completions", {"messages": [HI], "max_completion_tokens": 3, "stream": True, "logprobs": True,
                              "top_logprobs": 2, "n": 2, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": [HI, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                                           {"role": "tool", "tool_call_id": "c1", "content": "cold"}], "max_tokens": 2,
                              "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "auto",
                              "parallel_tool_calls": False}),
    ("/v1/chat/completions", {"messages": [HI], "max_tokens": 3, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
                              "max_tokens": 3, "structured_outputs": {"regex": "[ab]+c?"}, "priority": 1}),
    ("/v1/completions", {"prompt": ["Once", [5, 6, 7]], "max_tokens": 2, "logprobs": 2, "echo": True, "n": 1}),
    ("/v1/completions", {"prompt": "Once", "max_tokens": 2, "stream": True, **SAMPLING}),
    ("/v1/completions", {"prompt": [5, 6], "max_tokens": 2, "structured_outputs": {"choice": ["a", "b"]}}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 2, "instructions": "i", "store": False}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                                 {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
                                 {"type": "function_call_output", "call_id": "c", "output": "cold"}],
                       "max_output_tokens": 2, "stream": True, "tools": [{"type": "function", **FUNCTION}],
                       "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}}),
    ("/v1/messages", {"messages": [HI], "max_tokens": 2, "system": [{"type": "text", "text": "s"}], "stream": True,
                      "stop_sequences": ["x"], "temperature": 0.5}),
    ("/v1/messages", {"messages": [HI, {"role": "assistant", "content": [
        {"type": "text", "text": "x"}, {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Oslo"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "cold"}]}], "max_tokens": 2,
        "tools": [{"name": "weather", "input_schema": FUNCTION["parameters"]}], "tool_choice": {"type": "auto"}}),
    ("/v1/messages/count_tokens", {"messages": [HI], "system": "s"}),
    ("/v1/embeddings", {"input": ["Hi", "there"], "encoding_format": "base64"}),
    ("/tokenize", {"prompt": "Hi there", "with_pieces": True}),
    ("/tokenize", {"messages": [HI], "add_generation_prompt": True}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
]
NAMES = sorted({name for _, body in SEEDS for name in body} | {"model", "user", "metadata", "functions", "nonsense"})
VALUES = [
    None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, 10**30, -2**63, 2**31, "", "a", "Hi", "\x00", "é😀", "<think>",
    "<|im_start|>", "x" * 3000, "{", "{}", "[]", '{"a":1}', [], {}, [[]], [None], [1, 2], ["a"], [{}], {"a": 1},
    {"type": "text", "text": "t"}, {"type": "object"}, {"type": "function"}, {"$ref": "#"}, {"anyOf": [{"$ref": "#"}]},
    "(a*)*b", "[", "auto", "none", "required", "any", "text", "user", "tool", "function", "weather"]
SLOWEST = 60                    # seconds after which a request counts as one that never ends


def mutated(rng, value):
    """A copy with a few changes."""
    root = {"": copy.deepcopy(value)}
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        places = list(places_of(root))
        where, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0 and where is not root:
            del where[key]
        elif kind == 1:
            where[key] = rng.choice((lambda one: [one], lambda one: {"a": one}, lambda one: [one] * 40))(where[key])
        elif kind == 2 and isinstance(where[key], dict):
            where[key][rng.choice(NAMES)] = copy.deepcopy(rng.choice(VALUES))
        elif kind == 3:
            other, name = rng.choice(places)
            where[key] = copy.deepcopy(other[name])
        elif kind == 4 and isinstance(where[key], str):
            at = rng.randrange(len(where[key]) + 1)
            where[key] = where[key][:at] + str(rng.choice(VALUES)) + where[key][at:]
        else:
            where[key] = copy.deepcopy(rng.choice(VALUES))
        if len(json.dumps(root)) > 1 << 18:
            return value
    return root[""]


def places_of(value):
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places_of(value[key])


def bytes_of(rng, value):
    """Its JSON, one in eight with some bytes changed."""
    data = bytearray(json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace"))
    if rng.randrange(8) == 0 and data:
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(data))
            data[at:at + rng.randrange(3)] = bytes(rng.choices(b'{}[]",:\\u\xff\x00 e1', k=rng.randrange(3)))
            data = data or bytearray(b" ")
    return bytes(data)


async def post(app, path, data, leaves=None):
    """(status, body) of a POST; leaves: pieces of the answer after which the client goes away."""
    inbox, sent, status = [{"type": "http.request", "body": data, "more_body": False}], [], 0
    left = asyncio.Event()

    async def receive():
        if inbox:
            return inbox.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            sent.append(message.get("body", b""))
        if leaves is not None and len(sent) > leaves:
            left.set()

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
             "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http",
             "asgi": {"version": "3.0"}, "client": ("c", 1), "server": ("s", 2), "root_path": ""}
    await app(scope, receive, send)
    return status, b"".join(sent)


def wrong_with(path, status, body, left):
    """What is wrong with an answer, or None."""
    if status == 200 and left:
        return None
    if body.startswith((b"data: ", b"event: ", b": ")):
        events = [json.loads(line[6:]) for line in body.decode().split("\n")
                  if line.startswith("data: ") and line != "data: [DONE]"]
        bad = [one for one in events if "internal_error" in str(one.get("error", one))]
        return f"event {bad[0]}" if bad else None
    found = json.loads(body)
    if status == 200:
        return None
    if status not in (400, 404, 413, 429, 503) or not found["error"]["message"]:
        return f"status {status}: {body[:300]!r}"
    return None


async def one(app, seed, number):
    """(path, body, what is wrong or None, status) of the request of that number."""
    rng = random.Random(f"{seed} {number}")
    path, body = rng.choice(SEEDS)
    data = bytes_of(rng, mutated(rng, body))
    leaves = rng.randrange(4) if rng.randrange(10) == 0 else None
    status = 0
    try:
        async with asyncio.timeout(SLOWEST):
            status, answer = await post(app, path, data, leaves)
        wrong = wrong_with(path, status, answer, leaves is not None)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    return path, data, wrong, status


def application(model):
    return gomlx.serve.app({"fable": model}, max_streams=8, request_timeout=20)


async def campaign(seed, over, beside=8):
    """(requests by status, [(number, path, body, what is wrong)]) of requests until over(number), several at a
    time."""
    statuses, found = collections.Counter(), []
    with gomlx.load(context_length=128) as model:
        app = application(model)

        async def worker(first):
            number = first
            while not over(number):
                path, data, wrong, status = await one(app, seed, number)
                statuses[status] += 1
                if wrong:
                    found.append((number, path, data, wrong))
                number += beside

        try:
            await asyncio.gather(*[worker(i) for i in range(beside)])
            scheduler = app.state.models["fable"].scheduler
            for _ in range(500):
                if not scheduler.stats["running"] + scheduler.stats["waiting"]:
                    break
                await asyncio.sleep(0.01)
            else:
                found.append((-1, "", b"", f"requests are left: {scheduler.stats}"))
        finally:
            await asyncio.to_thread(app.close)
    return statuses, found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--seed", type=int, default=1, help="which requests (1)")
    parser.add_argument("--only", type=int, help="one request, with its answer")
    options = parser.parse_args()
    logging.getLogger("gomlx.serve").addHandler(logging.NullHandler())
    start = time.monotonic()
    if options.only is not None:
        statuses, found = collections.Counter(), asyncio.run(only(options.seed, options.only))
    else:
        statuses, found = asyncio.run(campaign(options.seed, lambda _: time.monotonic() - start > options.seconds))
    seconds = time.monotonic() - start
    print(f"{sum(statuses.values())} requests in {seconds:.0f} s: "
          + ", ".join(f"{n} of status {status}" for status, n in statuses.most_common())
          + f"; {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB at most; {len(found)} wrong")
    for number, path, data, wrong in found[:50]:
        print(f"\n{number} {path} {data[:600]!r}\n    {wrong}")
    sys.exit(bool(found))


async def only(seed, number):
    with gomlx.load(context_length=128) as model:
        app = application(model)
        try:
            path, data, wrong, status = await one(app, seed, number)
            print(status, path, data)
            return [(number, path, data, wrong)] if wrong else []
        finally:
            await asyncio.to_thread(app.close)


if __name__ == "__main__":
    main()
