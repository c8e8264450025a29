"""What `gomlx serve` costs beyond the engine: HTTP, events, prompts that begin alike, clients that vanish.

    pip install '.[serve]' uvloop httptools
    python benchmarks/serve_costs.py --model model.gguf                         # all rows
    python benchmarks/serve_costs.py --only events,vanishing                    # those of fable

    http        16 streams over HTTP and model.generate_batch of the same prompts: how many tokens a second are lost
    events      CPU microseconds a streamed token of fable: the server's process, less those of generate_batch
    shared      prompts with a beginning in common: the first one's time to its first token, and the median of the
                others', asked one after another and at once; llama.cpp's server beside it where it is found
    vanishing   tokens a second of four streams and of a fifth in whose place clients vanish after 12 events, one after
                another, beside those of five that stay: what is lost is what coming and going costs, beyond the tokens
                that those were given who went

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
    load = SimpleNamespace(**vars(args) | {"prompts": [16, 16], "answer": 64, "gap_ms": None, "options": []})
    engines = {"gomlx": engine(args, args.model)} | {
        name: one for name, one in commands(load, STREAMS).items() if name != "gomlx"}
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
    """A client that closes its stream after some events."""
    body = json.dumps({"prompt": some_ids(number, 3), "max_tokens": 1500, "stream": True, "temperature": 0,
                       "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    while events and (line := await reader.readline()):
        events -= line.startswith(b"data: {")
    writer.transport.abort()


async def tokens_made(port):
    """Of all requests since the server began, when none runs any more; and the seconds that this took."""
    started = time.perf_counter()
    while json.loads((await get(port, "/health")).rpartition(b"\r\n\r\n")[2])["running"]:
        await asyncio.sleep(0.002)
    seconds = time.perf_counter() - started
    lines = (await get(port, "/metrics")).decode().splitlines()
    made = sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("gomlx_generated_tokens_total"))
    return made, seconds


async def beside(port, clients, fifth):
    """(tokens a second of all, of the clients, seconds until what was left was freed): clients who ask again and again
    until the fifth's work is done."""
    answer, done, asked = 100, False, 0

    async def client(i):
        nonlocal asked
        while not done:
            await ask(port, some_ids(i, 3), answer)
            asked += 1

    (before, _), started = await tokens_made(port), time.perf_counter()
    tasks = [asyncio.create_task(client(i)) for i in range(clients)]
    await fifth
    done = True
    await asyncio.gather(*tasks)
    seconds = time.perf_counter() - started
    after, freed = await tokens_made(port)
    return (after - before) / seconds, asked * answer / seconds, freed


async def in_turn(port, count, events):
    for number in range(count):
        await vanish(port, number, events)


def vanishing(args):
    stays, goes = [], []
    for _ in range(args.rounds):
        with Server(engine(args, None)) as server:
            port = server.port
            asyncio.run(beside(port, 4, in_turn(port, 10, 12)))
            started = time.perf_counter()
            goes.append(asyncio.run(beside(port, 4, in_turn(port, args.vanishing, 12))))
            stays.append(asyncio.run(beside(port, 5, asyncio.sleep(time.perf_counter() - started))))
    lost = [100 * (1 - a[0] / b[0]) for a, b in zip(goes, stays)]
    print(f"vanishing: four streams and a fifth that stays: {cell([one[0] for one in stays])} tokens/s; and "
          f"{args.vanishing} that vanish in turn: {cell([one[0] for one in goes])}, of these the four's "
          f"{cell([one[1] for one in goes])}: {cell(lost, 3)} % lost (5 asked); nothing runs "
          f"{cell([1e3 * one[2] for one in goes], 3)} ms after the last")


def main():
    rows = {"http": http, "events": events, "shared": shared, "vanishing": vanishing}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a GGUF file, for http and shared (default: fable)")
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
