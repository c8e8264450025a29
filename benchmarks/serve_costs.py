"""What `gomlx serve` costs beyond the engine: HTTP, events, prompts that begin alike, clients that vanish.

    pip install '.[serve]' uvloop httptools
    python benchmarks/serve_costs.py --model model.gguf                         # all rows
    python benchmarks/serve_costs.py --only events,vanishing                    # those of fable

    http        16 streams over HTTP and model.generate_batch of the same prompts: how many tokens a second are lost
    events      CPU microseconds a streamed token of fable: the server's process, less those of generate_batch
    shared      prompts with a beginning in common: the first one's time to its first token, and the median of the
                others', asked one after another and at once; llama.cpp's server beside it where it is found
    vanishing   tokens a second of four streams beside clients who vanish, one after another, after 12 events, and
                beside clients who ask in turn for as many tokens as those were given, and stay: what is lost is what
                vanishing costs, beyond the work that a server has to do for any client; and the CPU time of the
                server's process for each token of the four

Rows whose engines are compared alternate between them --rounds times; each number is the median with [least..greatest].
generate_batch runs in a process of its own."""
import argparse
import asyncio
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from types import SimpleNamespace

from serve import HERE, Server, ask, commands, get

STREAMS = 16


def cell(values, digits=4):
    return f"{statistics.median(values):.{digits}g} [{min(values):.{digits}g}..{max(values):.{digits}g}]"


def engine(args, path, streams=STREAMS):
    """gomlx's command for the model of a path; None: fable."""
    model = ["-m", f"m={path}"] if path else ["--any-model-name"]
    threads = ["--threads", str(args.threads)] if args.threads else []
    return [sys.executable, "-m", "gomlx", "serve", *model, "--max-streams", str(streams), "--queue", "4096", *threads]


def some_ids(seed, count):
    chooser = random.Random(seed)
    return [chooser.randrange(3, 256) for _ in range(count)]


def batch(path, threads, prompts, answer):
    """(seconds, CPU seconds) of generate_batch, in a process that has warmed up."""
    import gomlx

    with gomlx.load(path, **({"threads": threads} if threads else {})) as model:
        for asked, tokens in ([some_ids(0, 16)] * len(prompts), 4), (prompts, answer):
            cpu, started = time.process_time(), time.perf_counter()
            for _ in model.generate_batch(asked, max_tokens=tokens, temperature=0, ignore_eos=True):
                pass
        return time.perf_counter() - started, time.process_time() - cpu


def apart(function, *values):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, values)


async def all_at_once(port, prompts, answer):
    return await asyncio.gather(*(ask(port, one, answer) for one in prompts))


def served(command, prompts, answer):
    """(seconds, CPU seconds) of the same over HTTP."""
    with Server(command) as server:
        asyncio.run(all_at_once(server.port, [some_ids(0, 16)] * len(prompts), 4))
        cpu, started = server.cpu(), time.perf_counter()
        asyncio.run(all_at_once(server.port, prompts, answer))
        return time.perf_counter() - started, server.cpu() - cpu


def both(args, path, length, answer):
    """([generate_batch's], [the server's]) seconds and CPU seconds of each round."""
    found = [], []
    for number in range(args.rounds):
        prompts = [some_ids(100 * number + i, length) for i in range(STREAMS)]
        found[0].append(apart(batch, path, args.threads, prompts, answer))
        found[1].append(served(engine(args, path), prompts, answer))
    return found


def http(args):
    alone, over = both(args, args.model, 32, args.answer)
    tokens = STREAMS * args.answer
    lost = [100 * (1 - a[0] / b[0]) for a, b in zip(alone, over)]
    print(f"http: {STREAMS} streams of {args.answer} tokens: generate_batch {cell([tokens / a[0] for a in alone])} "
          f"tokens/s, over HTTP {cell([tokens / b[0] for b in over])}: {cell(lost, 3)} % lost (7 asked)")


def events(args):
    alone, over = both(args, None, 3, args.events)
    each = 1e6 / (STREAMS * args.events)
    print(f"events: CPU µs a token: generate_batch {cell([a[1] * each for a in alone])}, the server "
          f"{cell([b[1] * each for b in over])}: {cell([(b[1] - a[1]) * each for a, b in zip(alone, over)], 3)} "
          "more (60 asked)")


async def first_tokens(port, prompts):
    """Seconds of the cold one, and of the others one after another."""
    return [(await ask(port, one, 2))[0] for one in prompts]


def of_shared(command, args, number):
    """(cold, median of the others one by one, median of the 2nd to the last of as many at once), in seconds."""
    ends = [some_ids(1000 * number + i, 16) for i in range(2 * STREAMS)]
    beginnings = [some_ids(7000 + 2 * number + i, args.shared) for i in range(2)]
    with Server(command) as server:
        asyncio.run(ask(server.port, some_ids(0, 64), 4))
        cold, *later = asyncio.run(first_tokens(server.port, [beginnings[0] + one for one in ends[:STREAMS]]))
        at_once = asyncio.run(all_at_once(server.port, [beginnings[1] + one for one in ends[STREAMS:]], 2))
    return cold, statistics.median(later), statistics.median(sorted(one[0] for one in at_once)[1:])


def shared(args):
    load = SimpleNamespace(**vars(args) | {"prompts": [16, 16], "answer": 64, "gap_ms": None, "options": [],
                                           "engines": None})
    engines = {"gomlx": engine(args, args.model)} | {
        name: one for name, one in commands(load, STREAMS).items() if args.model and name != "gomlx"}
    found = {name: [] for name in engines}
    for number in range(args.rounds):
        for name, command in engines.items():
            found[name].append(of_shared(command, args, number))
    for name, rounds in found.items():
        cold = [one[0] for one in rounds]
        print(f"shared: {name}: {args.shared} tokens, first token after {cell(cold)} s cold; 2nd to {STREAMS}th "
              f"{cell([one[1] for one in rounds])} s = {cell([100 * one[1] / one[0] for one in rounds], 3)} % "
              f"(25 asked), all at once {cell([one[2] for one in rounds])} s = "
              f"{cell([100 * one[2] / one[0] for one in rounds], 3)} %")


async def vanish(port, number, events):
    """A client that closes its stream after some events: how many it was given by then, which may be more."""
    body = json.dumps({"prompt": some_ids(number, 3), "max_tokens": 1500, "stream": True, "temperature": 0,
                       "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    given = 0
    while given < events and (data := await reader.read(1 << 16)):
        given += data.count(b"data: {")
    writer.transport.abort()
    return given


async def milliseconds_until_idle(port):
    started = time.perf_counter()
    while json.loads((await get(port, "/health")).rpartition(b"\r\n\r\n")[2])["running"]:
        await asyncio.sleep(0.002)
    return 1e3 * (time.perf_counter() - started)


async def beside(server, others):
    """{what: number} of four clients who ask again and again until the others, of a coroutine, are done."""
    answer, done, asked = 100, False, 0

    async def client(i):
        nonlocal asked
        while not done:
            await ask(server.port, some_ids(i, 3), answer)
            asked += 1

    cpu, started = server.cpu(), time.perf_counter()
    tasks = [asyncio.create_task(client(i)) for i in range(4)]
    of_others = await others
    done = True
    await asyncio.gather(*tasks)
    seconds, tokens = time.perf_counter() - started, asked * answer
    return {"rate": tokens / seconds, "idle": await milliseconds_until_idle(server.port),
            "cpu": 1e6 * (server.cpu() - cpu) / tokens, "given": of_others}


async def who_vanish(port, count, events):
    return [await vanish(port, number, events) for number in range(count)]


async def who_stay(port, given):
    for number, tokens in enumerate(given):
        await ask(port, some_ids(number, 3), tokens)
    return given


def vanishing(args):
    found, events = {"goes": [], "stays": []}, 12
    for number in range(args.rounds):
        with Server(engine(args, None)) as server:
            given = asyncio.run(beside(server, who_vanish(server.port, args.vanishing // 5, events)))["given"] * 5
            for kind in ("goes", "stays") if number % 2 else ("stays", "goes"):
                others = who_vanish(server.port, args.vanishing, events) if kind == "goes" else \
                    who_stay(server.port, given)
                found[kind].append(asyncio.run(beside(server, others)))
                given = found[kind][-1]["given"]
    goes, stays = found["goes"], found["stays"]
    lost = [100 * (1 - a["rate"] / b["rate"]) for a, b in zip(goes, stays)]
    more = [100 * (a["cpu"] / b["cpu"] - 1) for a, b in zip(goes, stays)]
    print(f"vanishing: {args.vanishing} clients, each given {statistics.mean(goes[-1]['given']):.3g} tokens; four "
          f"streams beside as many who stay: {cell([one['rate'] for one in stays])} tokens/s, beside these "
          f"{cell([one['rate'] for one in goes])}: {cell(lost, 3)} % lost (5 asked); CPU µs a token "
          f"{cell([one['cpu'] for one in stays])} and {cell([one['cpu'] for one in goes])}: {cell(more, 3)} % more; "
          f"nothing runs {cell([one['idle'] for one in goes], 3)} ms after the last")


def main():
    rows = {"http": http, "events": events, "shared": shared, "vanishing": vanishing}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a GGUF file, for http and shared (default: fable, without peers)")
    parser.add_argument("--only", default=",".join(rows), help="rows, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--answer", type=int, default=64, help="tokens of each stream of http")
    parser.add_argument("--events", type=int, default=1500, help="tokens of each stream of events")
    parser.add_argument("--shared", type=int, default=1500, help="tokens in common")
    parser.add_argument("--vanishing", type=int, default=1000, help="clients who vanish")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--peers", default=os.environ.get("GOMLX_PEERS") or os.path.join(
        os.path.dirname(os.path.dirname(HERE)), "shared", "peers"))
    args = parser.parse_args()
    for name in args.only.split(","):
        rows[name](args)


if __name__ == "__main__":
    main()
