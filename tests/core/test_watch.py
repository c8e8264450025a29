"""Who of a group is there: what rank 0 tells the others, whatever these do meanwhile."""
import socket
import subprocess
import sys
import threading
import time

import pytest
from places import ROOT

from gomlx.core import _watch


def hosted(size):
    """(the watch of rank 0, the port, the thread that takes connections, what that raised)."""
    watch, listening, raised = _watch.Watch(), _watch.listen(True), []

    def take():
        try:
            _watch.host(watch, listening, size, "secret", 20)
        except TimeoutError as error:
            raised.append(error)
    thread = threading.Thread(target=take)
    thread.start()
    return watch, listening.getsockname()[1], thread, raised


def joined(port, rank):
    watch = _watch.Watch()
    _watch.join(watch, ["127.0.0.1"], port, rank, "secret", 20)
    return watch


def until(true):
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_rank_that_comes_late_hears_what_was_told_before():
    watch, port, thread, _ = hosted(3)
    first = joined(port, 1)
    until(lambda: watch.peers() == 1)
    first.report(1, "distributed: it failed")
    until(lambda: 1 in watch.failures)
    second = joined(port, 2)
    thread.join()
    until(lambda: 1 in second.failures)
    assert second.failures[1][0] == "distributed: it failed"


def test_a_greeting_may_come_in_pieces_and_from_strangers():
    watch, port, thread, raised = hosted(2)
    for said in (b"other 1 ".ljust(256), b"no greeting"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(said)
    peer = socket.create_connection(("127.0.0.1", port))
    whole = b"secret 1 ".ljust(256)
    for at in range(0, 256, 64):
        peer.sendall(whole[at:at + 64])
        time.sleep(0.02)
    thread.join()
    assert not raised and watch.peers() == 1
    peer.close()
    until(lambda: watch.failures.get(1, ("",))[0] == _watch.ENDED)


def test_a_rank_that_reads_no_more_keeps_no_news_from_the_others(monkeypatch):
    """Here its connection is full; the others hear of everything all the same."""
    monkeypatch.setattr(_watch, "PATIENCE", 1)
    watch, port, thread, _ = hosted(3)
    stopped = socket.socket()
    stopped.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stopped.connect(("127.0.0.1", port))
    stopped.sendall(b"secret 1 ".ljust(256))
    until(lambda: watch.peers() == 1)
    other = joined(port, 2)
    thread.join()
    watch._peers[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for rank in range(3, 100):
        watch.report(rank, "x" * 2000)
    until(lambda: len(other.failures) >= 97)
    until(lambda: watch.failures.get(1, ("",))[0] == _watch.ENDED)
    stopped.close()


FORKS = """
import os, signal, sys
from gomlx.core import _mpi, _watch
watch = _watch.Watch()
_watch.join(watch, ["127.0.0.1"], int(sys.argv[1]), 1, "secret", 20)
if os.fork() == 0:
    _mpi.finish(None, watch, 1, 2, os.getppid())        # is not its end
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_forked_off_keeps_no_connection():
    """Rank 1 is killed while its child lives on."""
    watch, port, thread, _ = hosted(2)
    with subprocess.Popen([sys.executable, "-P", "-c", FORKS, str(port)], cwd=ROOT, stdin=subprocess.PIPE) as process:
        thread.join()
        until(lambda: 1 in watch.failures)
        assert watch.failures[1][0] == _watch.ENDED
        process.stdin.close()


def test_who_has_not_come_is_named():
    with pytest.raises(TimeoutError, match="rank 1 has not connected to rank 0 in 0.05 s"):
        _watch.host(_watch.Watch(), _watch.listen(True), 2, "secret", 0.05)
