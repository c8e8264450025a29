"""Measures answers that are JSON of a schema against free ones, and prints one table.

    python benchmarks/structured.py qwen3-0.6b-Q4_0.gguf --threads 2
    python benchmarks/structured.py qwen3-0.6b-Q4_0.gguf --threads 2 --server llama-server

Both kinds generate as many tokens, in turn, with 1 and 16 members. The schema has 5 kB, and a text that does not end
before the tokens do. "tokens/s" is the median of the rounds with [least..greatest], "x" the median of the ratios of
rounds. "first token" is the time to it: free, with a schema that was not seen before, with one that was.
The file has to name an id that ends texts, and a vocabulary of a true size makes the cost true.
--server: the same file, schema and numbers of tokens in llama.cpp's server, one request at a time."""
import argparse
import contextlib
import json
import statistics
import subprocess
import time
import urllib.request

import gomlx

PROMPT = [(7919 * j + 1) % 256 for j in range(64)]


def schema_of(number):
    """5 kB; number: it differs from others by it."""
    fields = {f"field_{i}_{number}": {"type": ["integer", "null"], "description": f"The number of {'things ' * 6}{i}"}
              for i in range(30)}
    return {"type": "object", "required": ["story"], "additionalProperties": False, "properties": {
        "story": {"type": "string", "minLength": 1500}, **fields}}


def seconds(model, members, tokens, **options):
    began = time.perf_counter()
    stream = model.generate_batch([PROMPT] * members, max_tokens=tokens, ignore_eos=not options, seed=1, **options)
    for _ in stream:
        pass
    taken = time.perf_counter() - began
    assert all(one.generated_tokens == tokens for one in stream.results), stream.results
    return taken


def first_token(model, **options):
    began = time.perf_counter()
    model.generate(PROMPT, max_tokens=1, **options)
    return (time.perf_counter() - began) * 1e3


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}..{max(values):.{digits}f}]"


def ours(options):
    with gomlx.load(options.model, threads=options.threads, progress=False) as model:
        seconds(model, 1, 4, schema=schema_of(0))               # the tokenizer's view is made
        for members in (1, 16):
            rounds = [(seconds(model, members, options.tokens),
                       seconds(model, members, options.tokens, schema=schema_of(0)))
                      for _ in range(options.rounds + 1)][1:]
            for name, k in (("free", 0), ("schema", 1)):
                speeds = [members * options.tokens / one[k] for one in rounds]
                print(f"{members:2} members, {name:6} {spread(speeds, 1)} tokens/s, "
                      f"x {statistics.median(one[0] / one[k] for one in rounds):.3f}")
        kinds = [(first_token(model), first_token(model, schema=schema_of(i + 1)),
                  first_token(model, schema=schema_of(i + 1))) for i in range(options.rounds + 1)][1:]
        for k, name in enumerate(("free", "new schema", "seen schema")):
            print(f"first token, {name:11} {spread([one[k] for one in kinds], 1)} ms")


def theirs(options):
    command = [options.server, "-m", options.model, "-t", str(options.threads), "-np", "1", "-c", "2048", "--port",
               str(options.port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(f"http://127.0.0.1:{options.port}/health")
            rounds = [(asked(options, {}), asked(options, {"json_schema": schema_of(0)}))
                      for _ in range(options.rounds + 1)][1:]
            for name, k in (("free", 0), ("schema", 1)):
                print(f"llama-server, {name:6} {spread([options.tokens / one[k] for one in rounds], 1)} tokens/s, "
                      f"x {statistics.median(one[0] / one[k] for one in rounds):.3f}")
        finally:
            server.terminate()


def wait_for(url):
    for _ in range(120):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.5)
    raise TimeoutError(f"{url} does not answer")


def asked(options, more):
    body = {"prompt": PROMPT, "n_predict": options.tokens, "ignore_eos": not more, "cache_prompt": False, "seed": 1}
    request = urllib.request.Request(f"http://127.0.0.1:{options.port}/completion", json.dumps(body | more).encode(),
                                     {"content-type": "application/json"})
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as answer:
        found = json.load(answer)
    taken = time.perf_counter() - began
    assert found["tokens_predicted"] == options.tokens, found["tokens_predicted"]
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7, help="after one that does not count")
    parser.add_argument("--server", help="llama.cpp's llama-server")
    parser.add_argument("--port", type=int, default=18080)
    options = parser.parse_args()
    ours(options)
    if options.server:
        theirs(options)


if __name__ == "__main__":
    main()
