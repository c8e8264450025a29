"""The connections of processes that torchrun's environment describes, with the collectives over them."""
import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from gomlx.core import _collectives, _nccl, _torchrun, _watch
from gomlx.core._collectives import Link
from gomlx.core._flows import Flow

PROGRAM = r'''
import os, signal, sys
import numpy as np
from gomlx.core import _torchrun
case = sys.argv[1]
link = _torchrun.world("1", float(sys.argv[2]), *_torchrun.place())
def total(n, dtype="float32"):
    x = (np.random.default_rng(link.rank).standard_normal(n) * 100).astype(dtype)
    out = np.empty_like(x)
    link.run("all_sum", -1, dtype, x.shape, memoryview(x).cast("B") if n else b"",
             memoryview(out).cast("B") if n else bytearray())
    want = np.zeros(0, dtype)
    for rank in range(link.size):
        one = (np.random.default_rng(rank).standard_normal(n) * 100).astype(dtype)
        want = one if rank == 0 else want + one
    assert out.tobytes() == want.tobytes(), (n, dtype)
try:
    if case == "sums":
        for dtype in ("float32", "float16", "int32", "int8", "float64"):
            for n in (0, 1, 7, 100003):
                total(n, dtype)
    else:
        total(5)
        if case == "killed" and link.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        total(4 if case == "shape" and link.rank == 1 else 3)
    link.gather("the end", b"")
    print("done")
except RuntimeError as error:
    print("error", error)
'''


def launched(n, case, ranks=None, timeout=20):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = [subprocess.Popen([sys.executable, "-P", "-c", PROGRAM, case, str(timeout)], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {
                                    "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n),
                                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
               for rank in ranks or range(n)]
    return [(one.communicate(timeout=60)[0].strip(), one.returncode) for one in running]


@pytest.mark.parametrize("n", [2, 3])
def test_sums_are_in_the_order_of_ranks(n):
    assert launched(n, "sums") == [("done", 0)] * n


def test_another_shape_is_told_to_all():
    for said, _ in launched(3, "shape"):
        assert re.search(r"rank 1 is at all_sum of float32\[4\], rank 0 at all_sum of float32\[3\]", said), said


def test_a_dead_rank_is_named():
    found = launched(3, "killed")
    assert found[1][1] == -signal.SIGKILL
    for said, _ in (found[0], found[2]):
        assert "rank 1 is lost, its process has ended" in said, said


def test_a_rank_that_does_not_come_is_named():
    said = launched(2, "sums", ranks=[0], timeout=0.5)[0][0]
    assert "RuntimeError: distributed: rank 0: rank 1 has not come to rank 0" in said


def test_messages_keep_their_length():
    request = _torchrun._Request(memoryview(np.zeros(3, "u1")))
    with pytest.raises(RuntimeError, match="4 bytes came, expected 3"):
        _torchrun._fits(4, request)


def test_a_long_message_waits_until_it_is_asked_for(monkeypatch):
    """More than is kept comes before it is asked for, after one that is kept: memory is bounded, and nothing fails."""
    monkeypatch.setattr(_torchrun, "UNASKED", 1 << 16)
    sender, receiver = (_torchrun.Messages({0: one}) for one in connected_pair())
    sent = [np.random.default_rng(i).integers(0, 256, n, "u1") for i, n in enumerate((1 << 16, 1 << 23, 5))]
    requests = [one for i, data in enumerate(sent) for one in sender.send(data.data, 0, 1 + i % 2)]
    for _ in range(50):
        sender.finished([])
        receiver.finished([])
    peer = receiver._peers[0]
    assert peer._kept == 1 << 16 and not requests[1].done
    places = [np.zeros_like(data) for data in sent]
    wanted = [one for i, place in enumerate(places) for one in receiver.receive(place.data, 0, 1 + i % 2)]
    until = time.monotonic() + 30
    while not (sender.finished(requests) & receiver.finished(wanted)):
        assert time.monotonic() < until
    assert all((a == b).all() for a, b in zip(sent, places, strict=True)) and peer._kept == 0


def test_ranks_beside_rank_0_are_reached_from_other_hosts(monkeypatch):
    """Two hosts with two ranks each: rank 1 has come to rank 0 over the loopback of their host."""
    table = [{"port": 1}, {"port": 2, "host": "127.0.0.1"}, {"port": 3, "host": "10.0.0.2"}]
    reached = []

    def connect(host, port, *_):
        reached.append((host, port))
        return connected_pair()[0]
    monkeypatch.setattr(_torchrun, "_connect", connect)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        _torchrun._mesh({0: None}, [*_torchrun._reached(table, "first"), {}], 3, listening, 0)
    assert reached == [("first", 2), ("10.0.0.2", 3)]


def test_where_ranks_listen_is_said():
    with pytest.raises(TimeoutError, match=r"rank 0 does not answer at 127.0.0.1:1 \(ranks listen on IPv4 alone\): .+"):
        _torchrun._connect("127.0.0.1", 1, 0, time.monotonic() - 1)


@pytest.mark.parametrize("met", ["rank 0", "another rank"])
def test_silent_strangers_hold_up_nobody(met):
    """Neither those that say nothing, nor those that go, or say something else."""
    with socket.create_server(("127.0.0.1", 0)) as listening, concurrent.futures.ThreadPoolExecutor() as pool:
        address = listening.getsockname()
        until = time.monotonic() + 20
        if met == "rank 0":
            listening.close()
            made = pool.submit(_torchrun._host, {"version": "1"}, 3, address[1], until)
            texts = {rank: json.dumps({"rank": rank, "version": "1"}) for rank in (1, 2)}
            said = {rank: text.encode().ljust(_torchrun.RECORD) for rank, text in texts.items()}
        else:
            made = pool.submit(_torchrun._mesh, peers := {0: None}, [{}] * 4, 1, listening, until)
            said = {rank: _torchrun.FRAME.pack(rank, 0) for rank in (2, 3)}
        began = time.monotonic()
        strangers = [_torchrun._connect(*address, 0, until) for _ in range(8)]
        strangers.pop().close()
        strangers[0].sendall(b"?" * _torchrun.RECORD)
        ranks = {rank: _torchrun._connect(*address, 0, until) for rank in said}
        for part in (slice(0, 3), slice(3, None)):
            for rank, one in ranks.items():
                one.sendall(said[rank][part])
            time.sleep(0.02)
        found = made.result()
        assert sorted(found[0] if met == "rank 0" else peers.keys() - {0}) == list(said)
        assert time.monotonic() - began < 15


def test_torchrun_has_the_port_itself(monkeypatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "host"),
                        ("MASTER_PORT", "29500"), ("TORCHELASTIC_USE_AGENT_STORE", "True")):
        monkeypatch.setenv(name, value)
    assert _torchrun.place() == (1, 2, "host", 29501)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    assert _torchrun.place() == (1, 2, "host", 29500)
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match="RANK 2 of WORLD_SIZE 2"):
        _torchrun.place()


def test_a_flow_moves_while_nobody_waits():
    """Two ranks in one process: what is given arrives in the expected places, in their order, before the end."""
    pair = connected_pair()
    watch = _watch.Watch()
    links = [Link(_torchrun.Messages({1 - rank: pair[rank]}), rank, range(2), watch, 30.0) for rank in range(2)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        flows = list(pool.map(lambda link: Flow(link, "rows"), links))
        places = [[np.zeros(n, "u1") for n in (3, 0, 1 << 20)] for _ in range(2)]
        for rank, flow in enumerate(flows):
            for place in places[rank]:
                flow.expect(1 - rank, place.data if place.size else bytearray())
            for place in places[rank]:
                data = np.full(place.size, rank + 1, "u1")
                flow.give(1 - rank, data.data if data.size else b"")
        until = time.monotonic() + 30
        while not all((place == 2 - rank).all() for rank in range(2) for place in places[rank]):
            assert time.monotonic() < until
            time.sleep(0.001)
        list(pool.map(Flow.finish, flows))
        assert [one.result() for one in [pool.submit(link.gather, "end", b"x") for link in links]] == [[b"x"] * 2] * 2


def test_what_operations_on_gpus_are_called_may_be_forgotten(monkeypatch):
    """Memory of them is bounded; ranks that remember others of them agree all the same, or say what differs."""
    monkeypatch.setattr(_collectives, "REMEMBERED", 4)
    pair, watch = connected_pair(), _watch.Watch()
    links = [Link(_torchrun.Messages({1 - rank: pair[rank]}), rank, range(2), watch, 10.0) for rank in range(2)]
    numbers = [link.number_of("all_sum", (2, 3)) for link in links]
    others = [links[1].number_of("all_sum", (n,)) for n in range(100)]
    assert numbers[0] == numbers[1] not in others and list(links[1]._told_of) == others[-4:]
    for link in links:
        link.devices = SimpleNamespace(move=lambda *_: [], finished=lambda _: True, give_up=lambda _: None)

    def run(link, number):
        link.run("shares", number, "float32", (2, 3), (0, 24), (0, 24), (1, 0))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(run, links, numbers))
        for one in [pool.submit(run, *asked) for asked in zip(links, (numbers[0], others[0]), strict=True)]:
            with pytest.raises(RuntimeError, match=rf"rank 1 is at a reduction of float32 number {others[0]}, rank 0 "
                                                   r"at all_sum of float32\[2, 3\]"):
                one.result()


def test_to_look_for_nccl_changes_nothing(monkeypatch):
    monkeypatch.setenv("GOMLX_CUDA_NCCL", "/nothing.so")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    assert not _nccl.is_found() and os.environ["NCCL_NVLS_ENABLE"] == "1"
    _nccl.Moves(None, 1)
    assert os.environ["NCCL_NVLS_ENABLE"] == "0"


def connected_pair():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        first = socket.create_connection(listening.getsockname())
        return first, listening.accept()[0]
