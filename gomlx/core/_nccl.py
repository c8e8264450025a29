"""NCCL: bytes between GPUs, in the line of work of each. The library is looked for when a group asks for it.

Only messages between two ranks are its own: what is summed, and in which order, is ours (distributed.py). Its
communicators do not block, so that a rank that is gone is noticed by who waits (_collectives.Link.wait), who then ends
what the GPU is at. Multicast through switches (NVLS) is off in a process that uses the library.
"""
from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from collections.abc import Mapping
from typing import Any

from gomlx import _gomlx

IDENTITY = 128                  # bytes that rank 0 gives to all
IN_PROGRESS = 7                 # a status: success, but not yet
LEAST = 21400                   # the first version whose communicators need not block
PATIENCE = 5.0                  # seconds in which the watch may say who is gone, before NCCL's own words are told
UINT8 = 1

Line = tuple[int, int]          # the number of a device, and the address of its line of work
Bytes = tuple[int, int]         # an address, and how many from there


class _Identity(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_uint8 * IDENTITY),)


class _Config(ctypes.Structure):
    """As version 2.14 has it; later ones take it for what it says of itself."""
    _fields_ = (("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int))


_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
FUNCTIONS = {"ncclGetVersion": [_POINTER], "ncclGetUniqueId": [_POINTER],
             "ncclCommInitRankConfig": [_POINTER, _INT, _Identity, _INT, _POINTER],
             "ncclCommGetAsyncError": [_POINTER, _POINTER], "ncclCommAbort": [_POINTER], "ncclGroupStart": [],
             "ncclGroupEnd": [], "ncclSend": [_POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER],
             "ncclRecv": [_POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER], "ncclGetErrorString": [_INT],
             "ncclGetLastError": [_POINTER]}


def open_library() -> Any:
    """The one that GOMLX_CUDA_NCCL names; else one that the process has loaded, that of the package nvidia-nccl, one on
    the loader's path. RuntimeError says why there is none."""
    named, name = os.environ.get("GOMLX_CUDA_NCCL"), "libnccl.so.2"
    why = ""
    for path, flags in [(named, 0)] if named else [(name, os.RTLD_NOLOAD), (_packaged(name), 0), (name, 0)]:
        try:
            return _declared(ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_LOCAL | flags))
        except OSError as error:
            why = str(error)
    raise RuntimeError(f'no NCCL: pip install "nvidia-nccl-cu13" ({why})')


def is_found() -> bool:
    """Whether there is one that can be used."""
    try:
        open_library()
    except RuntimeError:
        return False
    return True


def _packaged(name):
    """Where the package has it, or a path that is none."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        found = None
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return os.path.join(places[0], "lib", name) if places else name


def _declared(library):
    for name, arguments in FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise RuntimeError(f"no NCCL: {library._name} has no {name}") from None
        function.argtypes = arguments
        function.restype = ctypes.c_char_p if name in ("ncclGetErrorString", "ncclGetLastError") else _INT
    version = ctypes.c_int()
    if library.ncclGetVersion(ctypes.byref(version)) or version.value < LEAST:
        raise RuntimeError(f"no NCCL: {library._name} is version {version.value}, expected {LEAST} or newer")
    return library


class Moves:
    """A communicator of one GPU for each rank. One group of messages is on the way at a time."""

    def __init__(self, library: Any, device: int) -> None:
        os.environ["NCCL_NVLS_ENABLE"] = "0"            # for the process, so not before somebody asks for NCCL
        self._library, self.device = library, device
        self._comm = ctypes.c_void_p()
        self._failed_at = 0.0

    def identity(self) -> bytes:
        """What rank 0 tells the others."""
        made = _Identity()
        self._check(self._library.ncclGetUniqueId(ctypes.byref(made)))
        return bytes(made.bytes)

    def join(self, identity: bytes, rank: int, size: int) -> list[Any]:
        """Begins to meet the others; what wait() waits for."""
        config = _Config(ctypes.sizeof(_Config), 0xcafebeef, LEAST, 0)
        told = _Identity.from_buffer_copy(identity)
        self._check(self._library.ncclCommInitRankConfig(ctypes.byref(self._comm), size, told, rank,
                                                         ctypes.byref(config)))
        return ["joined"]

    def move(self, line: Line, to: Mapping[int, Bytes], of: Mapping[int, Bytes]) -> list[Any]:
        """Begins to send to ranks, and to receive of ranks, of as many bytes; this one may be among both."""
        if line[0] != self.device:
            raise RuntimeError(f"the array is on gpu {line[0] - 1}, the group on gpu {self.device - 1}")
        library = self._library
        self._check(library.ncclGroupStart())
        try:
            for call, messages in ((library.ncclSend, to), (library.ncclRecv, of)):
                for rank, (address, length) in messages.items():
                    if length:
                        self._check(call(address, length, UINT8, rank, self._comm, line[1]))
        finally:
            ended = library.ncclGroupEnd()
        self._check(ended)
        return ["moved"]

    def finished(self, requests: list[Any]) -> bool:
        status = ctypes.c_int()
        self._check(self._library.ncclCommGetAsyncError(self._comm, ctypes.byref(status)))
        if status.value in (0, IN_PROGRESS):
            return status.value == 0 and (requests == ["joined"] or _gomlx._device_is_idle(self.device))
        self._failed_at = self._failed_at or time.monotonic()
        if time.monotonic() - self._failed_at > PATIENCE:
            self._check(status.value)
        return False

    def give_up(self, requests: list[Any]) -> None:
        """What the GPU is at for this communicator ends."""
        if self._comm:
            self._library.ncclCommAbort(self._comm)
            self._comm = ctypes.c_void_p()

    def _check(self, status):
        if status not in (0, IN_PROGRESS):
            said = self._library.ncclGetErrorString(status) or b"?"
            more = self._library.ncclGetLastError(self._comm) or b""
            raise RuntimeError(f"NCCL: {said.decode(errors='replace')} ({status}); "
                               f"{more.decode(errors='replace').strip() or 'it says no more'}")
