"""Devices and streams with MLX's names.

One engine evaluates everything in order, on the CPU and on GPUs. A stream is a name for a device: any thread may use
any stream, and operations on two streams never run out of order. The engine knows devices by number: 0 is the CPU,
1 + i GPU i. It looks for GPUs when one is asked for, or when the first operation needs a default device.
"""
from __future__ import annotations

import enum
import itertools
import os
import platform
import threading
from typing import Any

from gomlx import _gomlx


class DeviceType(enum.Enum):
    """cpu or gpu."""

    cpu = 0
    gpu = 1

    def __repr__(self) -> str:
        return f"DeviceType.{self.name}"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return self is (other.type if isinstance(other, Device) else other)

    __hash__ = enum.Enum.__hash__


class Device:
    """A device: its type and its number."""

    __slots__ = ("_index", "type")

    def __init__(self, type: DeviceType, index: int = 0) -> None:
        if not isinstance(type, DeviceType) or not isinstance(index, int):
            raise TypeError(f"Device: a DeviceType and an int are needed, not {type!r} and {index!r}")
        self.type: DeviceType = type
        self._index: int = index

    def __repr__(self) -> str:
        return f"Device({self.type.name}, {self._index})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DeviceType):
            other = Device(other)
        return isinstance(other, Device) and (self.type, self._index) == (other.type, other._index)

    def __hash__(self) -> int:
        return hash((self.type, self._index))


class Stream:
    """A sequence of operations on a device; made by new_stream."""

    __slots__ = ("_index", "device")
    device: Device

    def __init__(self, *_: object) -> None:
        raise TypeError("Stream: made by new_stream, not by calling")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.device}, {self._index})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (self._index, self.device) == (other._index, other.device)

    def __hash__(self) -> int:
        return hash((self._index, self.device))


class ThreadLocalStream(Stream):
    """A stream of its own in each thread that uses it; made by new_thread_local_stream."""

    __slots__ = ("_own",)


cpu, gpu = DeviceType.cpu, DeviceType.gpu
_numbers, _local_numbers = itertools.count(1), itertools.count()


class _Defaults(threading.local):
    """A thread's default stream of each device that has another one than its first. Its default device is the
    engine's."""

    def __init__(self):
        self.streams = {}


def _make_stream(kind, device, number):
    stream = object.__new__(kind)
    stream.device, stream._index = device, number
    return stream


_defaults = _Defaults()


def _device(function, device, usable=True):
    """The Device that is meant; ValueError or IndexError where it cannot be used, unless unusable ones are allowed."""
    if isinstance(device, DeviceType):
        device = Device(device)
    if not isinstance(device, Device):
        raise TypeError(f"{function}: a Device or a DeviceType is needed, not {type(device)!r}")
    if usable and device.type is cpu and device._index:
        raise IndexError(f"{function}: there is one cpu, number 0, not {device._index}")
    if usable and device.type is gpu:
        count, why = _gomlx._device_count()
        if count == 0:
            raise ValueError(f"{function}: there is no gpu backend: {why}")
        if not 0 <= device._index < count:
            raise IndexError(f"{function}: there are {count} gpus, counted from 0; there is none of number "
                             f"{device._index}")
        _gomlx._open_device(_number(device))
    return device


def _number(device):
    """The engine's number of a device."""
    return 1 + device._index if device.type is gpu else 0


def _stream(stream):
    """The stream that `stream=` of an operation means."""
    if isinstance(stream, ThreadLocalStream):
        if not hasattr(stream._own, "stream"):
            stream._own.stream = _make_stream(Stream, stream.device, next(_numbers))
        stream = stream._own.stream
    if isinstance(stream, Stream):
        _device("stream", stream.device)
        return stream
    if not isinstance(stream, (Device, DeviceType)):
        raise TypeError(f"stream must be None, a Stream, a Device or a DeviceType, not {type(stream)!r}")
    return default_stream(stream)


def _number_of_stream(stream):
    """Of its device. The extension asks for every `stream=` but None."""
    if stream is cpu:
        return 0
    return _number(_stream(stream).device)


def _number_of_device(device):
    """The extension asks for every `device=` but None."""
    return _number(_device("device", device))


def default_device() -> Device:
    """The device that operations run on unless told otherwise: a GPU where there is one; GOMLX_DEVICE=cpu, cuda or
    cuda:1 decides otherwise."""
    number = _gomlx._current_device()
    return Device(gpu, number - 1) if number else Device(cpu)


def set_default_device(device: Device | DeviceType) -> None:
    """Makes a device the default of this thread."""
    _gomlx._use_device(_number(_device("set_default_device", device)))


def is_available(device: Device | DeviceType) -> bool:
    """Whether operations can run on the device."""
    device = _device("is_available", device, usable=False)
    return 0 <= device._index < device_count(device.type)


def device_count(device_type: DeviceType) -> int:
    """How many devices of the type there are."""
    if not isinstance(device_type, DeviceType):
        raise TypeError(f"device_count: a DeviceType is needed, not {type(device_type)!r}")
    return _gomlx._device_count()[0] if device_type is gpu else 1


def device_info(d: Device | DeviceType | None = None) -> dict[str, Any]:
    """What is known about a device: names and sizes. Of a GPU also `fallbacks`: operations that it does not have and
    that ran on the CPU in its place, and how often."""
    device = default_device() if d is None else _device("device_info", d, usable=False)
    if device.type is gpu:
        if not is_available(device):
            return {}
        return {**_gomlx._describe_device(_number(device)), "fallbacks": _gomlx._fallbacks()}
    info = {"architecture": platform.machine(), "device_name": platform.processor() or platform.machine()}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        info["device_name"] = names[0] if names else info["device_name"]
        info["memory_size"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        pass
    return info


def default_stream(device: Device | DeviceType) -> Stream:
    """The stream of a device that operations use unless told otherwise."""
    device = _device("default_stream", device)
    return _defaults.streams.get(device) or _make_stream(Stream, device, 0)


def set_default_stream(stream: Stream) -> None:
    """Makes a stream its device's default in this thread."""
    if type(stream) is not Stream:
        raise TypeError(f"set_default_stream: a Stream is needed, not {type(stream)!r}")
    _defaults.streams[stream.device] = stream


def new_stream(device: Device | DeviceType) -> Stream:
    """A stream of its own."""
    return _make_stream(Stream, _device("new_stream", device), next(_numbers))


def new_thread_unsafe_stream(device: Device | DeviceType) -> Stream:
    """As new_stream: any thread may use any stream."""
    return new_stream(device)


def new_thread_local_stream(device: Device | DeviceType) -> ThreadLocalStream:
    """A stream that is a different one in each thread."""
    stream = _make_stream(ThreadLocalStream, _device("new_thread_local_stream", device, usable=False),
                          next(_local_numbers))
    stream._own = threading.local()
    return stream


def clear_streams() -> None:
    """Forgets the streams of this thread: each device's default stream is its first one again."""
    _defaults.streams.clear()


class StreamContext:
    """In a with statement: the stream, or the device's, is the default."""

    __slots__ = ("_kept", "_meant")

    def __init__(self, s: Stream | Device | DeviceType) -> None:
        if not isinstance(s, (Stream, Device, DeviceType)):
            raise TypeError(f"stream: a Stream, a Device or a DeviceType is needed, not {type(s)!r}")
        self._meant, self._kept = s, []

    def __enter__(self) -> None:
        stream = _stream(self._meant)
        self._kept.append((_gomlx._current_device(), stream.device, _defaults.streams.get(stream.device)))
        _gomlx._use_device(_number(stream.device))
        _defaults.streams[stream.device] = stream

    def __exit__(self, *_: object) -> None:
        number, device, stream = self._kept.pop()
        _gomlx._use_device(number)
        if stream is None:
            _defaults.streams.pop(device, None)
        else:
            _defaults.streams[device] = stream


def stream(s: Stream | Device | DeviceType) -> StreamContext:
    """A context in which operations use a stream, or a device's default stream."""
    return StreamContext(s)


def synchronize(stream: Stream | Device | DeviceType | None = None) -> None:
    """Waits until what async_eval has begun is done, and raises the first error since the last call."""
    if stream is not None:
        _stream(stream)
    _gomlx._synchronize()


__all__ = ["Device", "DeviceType", "Stream", "StreamContext", "ThreadLocalStream", "clear_streams", "cpu",
           "default_device", "default_stream", "device_count", "device_info", "gpu", "is_available", "new_stream",
           "new_thread_local_stream", "new_thread_unsafe_stream", "set_default_device", "set_default_stream", "stream",
           "synchronize"]
