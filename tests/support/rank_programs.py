"""Programs in several processes in torchrun's environment; what each said."""
import os
import re
import socket
import subprocess
import sys

from places import ROOT


def environment(rank, size, port, **more):
    return os.environ | {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
                         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} | more


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(n, *program, own=(), **more):
    """The processes. own: {rank: more of its environment}."""
    port, own = free_port(), dict(own)
    return [subprocess.Popen([sys.executable, "-P", *program], cwd=ROOT, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True,
                             env=environment(rank, n, port, **more | own.get(rank, {}))) for rank in range(n)]


def ranked(n, *program, own=(), **more):
    """What each rank said, {rank: text}."""
    processes = start(n, *program, own=own, **more)
    try:
        said = "".join(one.communicate(timeout=120)[0] for one in processes)
    finally:
        for one in processes:
            one.kill()
    found = {int(rank): text for rank, text in re.findall(r"^(\d+): (.*)$", said, re.M)}
    assert found, said
    return found
