"""What many clients cost `gomlx serve`: connections that say nothing, requests without end, clients that vanish.

    pip install '.[serve]' uvloop httptools
    python benchmarks/serve_clients.py                              # all three, at a tenth
    python benchmarks/serve_clients.py --connections 10000 --requests 10000 --vanishing 1000

Each has a server of its own with fable, the model in the package. Connections: how many are held open (as many as the
limit of open files lets), how long a request takes beside them, and how long one does after they have gone. Requests:
the server's memory after a tenth of them and after all. Vanishing: how fast four streams are alone, and beside clients
who begin a stream and close it after some events; and how long the server takes until it has freed the last one."""
import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import sys
import time

from serve import Server, ask, get

COMMAND = [sys.executable, "-m", "gomlx", "serve", "--max-streams", "16", "--queue", "4096", "--any-model-name"]


def resident(server):
    with open(f"/proc/{server._process.pid}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


async def milliseconds(server):
    """Of a request of one token; the median of five."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        await ask(server.port, [5, 6, 7], 1)
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times)


async def connections(server, count):
    before, writers = await milliseconds(server), []
    for _ in range(count):
        with contextlib.suppress(OSError):
            writers.append((await asyncio.open_connection("127.0.0.1", server.port))[1])
    started = time.perf_counter()
    beside = "503"
    with contextlib.suppress(RuntimeError, OSError):
        beside = f"{await milliseconds(server):.1f} ms"
    print(f"{len(writers)} of {count} connections open, {resident(server):.0f} MB: a request {beside}, {before:.1f} ms "
          "before them")
    while True:
        with contextlib.suppress(RuntimeError, OSError):
            found = await milliseconds(server)
            break
        await asyncio.sleep(0.2)
    print(f"served {time.perf_counter() - started:.1f} s after the last of them: {found:.1f} ms")
    for one in writers:
        one.close()


async def requests(server, count):
    left, seen = count, []

    async def client():
        nonlocal left
        while left > 0:
            left -= 1
            await ask(server.port, [5, 6, left % 200 + 3], 2)
            if left in (count * 9 // 10, count // 2):
                seen.append(resident(server))

    await asyncio.gather(*(client() for _ in range(16)))
    print(f"{count} requests: {', '.join(f'{one:.1f}' for one in seen)}, {resident(server):.1f} MB after a tenth, half "
          "and all")


async def vanish(server):
    body = json.dumps({"prompt": [5, 6], "max_tokens": 1500, "stream": True, "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    for _ in range(12):
        await reader.readline()
    writer.transport.abort()


async def four(server):
    started = time.perf_counter()
    await asyncio.gather(*(ask(server.port, [5, 6, 7 + i], 1500) for i in range(4)))
    return time.perf_counter() - started


async def vanishing(server, count):
    alone = await four(server)
    decent = asyncio.create_task(four(server))
    for _ in range(count):
        await vanish(server)
    last = time.perf_counter()
    while json.loads((await get(server.port, "/health")).rpartition(b"\r\n\r\n")[2])["running"] > 4:
        await asyncio.sleep(0.005)
    freed = time.perf_counter() - last
    beside = await decent
    print(f"four streams of 1500 tokens: {alone:.2f} s alone, {beside:.2f} s while {count} clients vanished "
          f"({1e3 * (beside - alone) / count:.2f} ms a client); the last one was gone after {1e3 * freed:.0f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--vanishing", type=int, default=100)
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for act, count in ((connections, args.connections), (requests, args.requests), (vanishing, args.vanishing)):
        if count:
            with Server(COMMAND) as server:
                asyncio.run(act(server, count))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
