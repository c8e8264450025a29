"""Measures `gomlx serve` and servers of others on the same model, and prints one table a load.

    pip install '.[serve]' numpy uvloop httptools
    python benchmarks/serve.py --model model.gguf                                 # 1, 4 and 16 clients
    python benchmarks/serve.py --model model.gguf --clients 16 --requests 16 --shared 1500 --prompts 16 64
    python benchmarks/serve.py --model model.gguf --rate 0.5 --gap-ms 200         # arrivals by Poisson

llama.cpp's `llama-server` is found in the folder of --peers, of the environment's GOMLX_PEERS, or ../shared/peers
beside the repository. Others are named with --engines, and need a Python that has them:

    --engines gomlx llama-cpp-python=/path/to/python            the server of llama-cpp-python, on the same file
    --engines gomlx mlx-lm=... transformers=... --folder DIR    these take Hugging Face's or MLX's folder of the model

In each round every engine is started, warmed up, and given the same requests: prompts whose lengths are spread evenly
in logarithms between the two of --prompts, and answers of --answer tokens, fewer where an engine ends earlier. Prompts
are random token ids, or texts of as many short words where an engine is among them that takes texts alone.

    --clients N...  a closed load: so many clients, each of which asks again when it has its answer
    --rate R        an open load: R requests a second on average, whenever earlier ones end
    --shared N      tokens with which all prompts begin alike (0 and as given)

"first" is the time from a request to its first event, "between" that between two events of a stream, in milliseconds,
at the 50th, 95th and 99th percentile of all of a round; tokens that complete no character come with the next event. CPU
is of the server's process, memory its peak. Cells are medians of the rounds with [least..greatest]."""
import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time

WORDS = "a the cat dog sun day big red and was to in had he she it saw ran".split()
HERE = os.path.dirname(os.path.abspath(__file__))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


# Started as python -m MODULE with what precedes the model, then the model, and what follows it: (module, what precedes
# it, what follows it, where it says that it is ready, the name by which it knows its model; None: its folder's). All
# take texts alone.
OF_PYTHON = {
    "llama-cpp-python": ("llama_cpp.server", ["--model"], [], "/v1/models", "m"),
    "mlx-lm": ("mlx_lm.server", ["--model"], [], "/health", "default_model"),
    "transformers": ("transformers.cli.transformers", ["serve"], [], "/health", None)}


def of_python(args, name, python, most):
    """The command of an engine of OF_PYTHON."""
    module, before, after, _, _ = OF_PYTHON[name]
    model = args.model if name == "llama-cpp-python" else args.folder
    if model is None:
        raise SystemExit(f"--engines {name}: it needs the model's --folder")
    if name == "llama-cpp-python":
        after = ["--n_ctx", str(args.prompts[1] + args.shared + args.answer + 64)]
        after += ["--n_threads", str(args.threads)] if args.threads else []
    return [python, "-m", module, *before, model, *after]


def commands(args, most):
    """{engine: command} for a model, of those that are there."""
    found = {"gomlx": [sys.executable, "-m", "gomlx", "serve", "-m", f"m={args.model}", "--max-streams", str(most),
                       *(["--threads", str(args.threads)] if args.threads else []),
                       *(["--gap-ms", str(args.gap_ms)] if args.gap_ms else []), *args.options]}
    program = os.path.join(args.peers, "llama-server")
    if os.path.exists(program):
        context = most * (args.prompts[1] + args.shared + args.answer + 64)
        found["llama.cpp"] = [program, "-m", args.model, "-np", str(most), "-c", str(context), "-fa", "on",
                              *(["-t", str(args.threads)] if args.threads else [])]
    named = dict(one.split("=", 1) for one in args.engines or () if "=" in one)
    if unknown := named.keys() - OF_PYTHON.keys():
        raise SystemExit(f"--engines {', '.join(unknown)}: expected {', '.join(OF_PYTHON)}")
    chosen = {name: one for name, one in found.items() if args.engines is None or name in args.engines}
    return chosen | {name: of_python(args, name, python, most) for name, python in named.items()}


class Server:
    """A server's process, from when it is ready, which it says at a path."""

    def __init__(self, command, ready="/health"):
        self.port, self._ready = free_port(), ready
        self._process = subprocess.Popen([*command, "--port", str(self.port)], stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL)
        end = time.monotonic() + 300
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{command[0]} did not start: {' '.join(command)}")
            time.sleep(0.05)

    def _is_ready(self):
        try:
            return asyncio.run(get(self.port, self._ready)).startswith(b"HTTP/1.1 200")
        except OSError:
            return False

    def cpu(self):
        with open(f"/proc/{self._process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak(self):
        with open(f"/proc/{self._process.pid}/status") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def get(port, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n".encode())
    data = await reader.read()
    writer.close()
    return data


async def ask(port, prompt, answer):
    """[seconds of each event since the request]."""
    return (await answered(port, prompt, {"model": "m", "max_tokens": answer, "ignore_eos": True}))[0]


async def answered(port, prompt, options):
    """([seconds of each event since the request], the tokens of the answer by the server's count, or by that of its
    events)."""
    started, tokens = time.perf_counter(), None
    body = json.dumps({"prompt": prompt, "stream": True, "temperature": 0, **options}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-type: application/json\r\n"
                 b"content-length: %d\r\n\r\n" % len(body) + body)
    times, status = [], await reader.readline()
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:]) if b'"completion_tokens"' in line else {"choices": True}
            tokens = chunk["usage"]["completion_tokens"] if "usage" in chunk else tokens
            if chunk["choices"]:                # else it tells of the usage alone
                times.append(time.perf_counter() - started)
    writer.close()
    if b" 200 " not in status or not times:
        raise RuntimeError(f"the server said {status!r}")
    return times, len(times) if tokens is None else tokens


def prompts(args, shared, count, seed):
    """Token ids below 256, which every vocabulary has, or texts; lengths without the shared beginning."""
    chooser = random.Random(seed)
    least, most = args.prompts

    def some(length):
        ids = [chooser.randrange(3, 256) for _ in range(length)]
        return "".join(WORDS[one % len(WORDS)] + " " for one in ids) if args.texts else ids

    beginning = some(shared)
    return [beginning + some(round(least * (most / least) ** chooser.random())) for _ in range(count)]


async def closed(port, asked, options, clients):
    waiting, found = list(reversed(asked)), []

    async def client():
        while waiting:
            found.append(await answered(port, waiting.pop(), options))

    await asyncio.gather(*(client() for _ in range(clients)))
    return found


async def opened(port, asked, options, rate):
    chooser, tasks = random.Random(1), []
    for prompt in asked:
        tasks.append(asyncio.create_task(answered(port, prompt, options)))
        await asyncio.sleep(chooser.expovariate(rate))
    return await asyncio.gather(*tasks)


def percentiles(values):
    ordered = sorted(values)
    return [1e3 * ordered[min(int(len(ordered) * share), len(ordered) - 1)] for share in (0.5, 0.95, 0.99)]


def measured(server, args, load, round_number, options):
    """{column: number} of one load; options of each request beside its prompt."""
    clients, shared = load
    asked = prompts(args, shared, args.requests or 4 * (clients or 16), 1000 * round_number + (clients or 0) + shared)
    before, started = server.cpu(), time.perf_counter()
    found = asyncio.run(closed(server.port, asked, options, clients) if clients else
                        opened(server.port, asked, options, args.rate))
    seconds = time.perf_counter() - started
    times, tokens = [one[0] for one in found], sum(one[1] for one in found)
    gaps = [b - a for one in times for a, b in zip(one, one[1:-1])] or [0.0]     # the last event is the end alone
    first, between = percentiles([one[0] for one in times]), percentiles(gaps)
    return {"tokens/s": tokens / seconds, "first 50": first[0], "95": first[1], "99": first[2],
            "between 50": between[0], "95 ": between[1], "99 ": between[2], "CPU s": server.cpu() - before,
            "MB": server.peak()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rate", type=float, help="requests a second, instead of clients")
    parser.add_argument("--requests", type=int, help="of each load (default: 4 for each client)")
    parser.add_argument("--prompts", type=int, nargs=2, default=[64, 2000], metavar=("LEAST", "MOST"))
    parser.add_argument("--shared", type=int, default=0)
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--gap-ms", type=float)
    parser.add_argument("--engines", nargs="+", metavar="NAME[=PYTHON]",
                        help="of gomlx, llama.cpp (default: those that are there) and others")
    parser.add_argument("--folder", help="the model for engines that read no GGUF file")
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="further ones of gomlx serve, last")
    parser.add_argument("--peers", default=os.environ.get("GOMLX_PEERS") or os.path.join(
        os.path.dirname(os.path.dirname(HERE)), "shared", "peers"))
    args = parser.parse_args()
    loads = [(clients, shared) for clients in ([None] if args.rate else args.clients)
             for shared in dict.fromkeys((0, args.shared))]
    engines = commands(args, 16 if args.rate else max(args.clients))
    args.texts = not OF_PYTHON.keys().isdisjoint(engines)
    found = {load: {name: [] for name in engines} for load in loads}
    for round_number in range(args.rounds):
        for name, command in engines.items():
            *_, ready, model = OF_PYTHON.get(name, ("/health", "m"))
            options = {"model": model or args.folder, "max_tokens": args.answer,
                       "stream_options": {"include_usage": True}}
            options |= {} if name in OF_PYTHON else {"ignore_eos": True}
            with Server(command, ready) as server:
                asyncio.run(answered(server.port, prompts(args, 0, 1, 0)[0], options))
                for load in loads:
                    found[load][name].append(measured(server, args, load, round_number, options))
                    print(f"round {round_number + 1} of {args.rounds}: {name} {load}", file=sys.stderr, flush=True)
    for (clients, shared), of_engines in found.items():
        print(f"\n{f'{clients} clients' if clients else f'{args.rate} requests a second'}, {shared} tokens shared")
        show(of_engines)


def show(of_engines):
    columns = list(next(iter(of_engines.values()))[0])
    print("| | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for name, rounds in of_engines.items():
        cells = []
        for column in columns:
            values = [one[column] for one in rounds]
            cells.append(f"{statistics.median(values):.4g} [{min(values):.4g}..{max(values):.4g}]")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
