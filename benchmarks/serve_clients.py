"""What many clients cost `gomlx serve`: connections that say nothing, and requests without end.

    pip install '.[serve]' uvloop httptools
    python benchmarks/serve_clients.py                              # both, at a tenth
    python benchmarks/serve_clients.py --connections 10000 --requests 10000

Each has a server of its own with fable, the model in the package. Connections: how many are held open (as many as the
limit of open files lets), how long a request takes beside them, and how long one does after they have gone. Requests:
the server's memory after a tenth of them and after all."""
import argparse
import asyncio
import contextlib
import os
import resource
import statistics
import sys
import time

from serve import Server, ask

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=1000)
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for act, count in ((connections, args.connections), (requests, args.requests)):
        if count:
            with Server(COMMAND) as server:
                asyncio.run(act(server, count))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
