"""What gomlx finds on this machine and why it chose what it chose."""
import os
import platform
import sys

from gomlx import _gomlx
from gomlx._base import machine
from gomlx._files import placement

PACKAGES = ("numpy", "jinja2", "huggingface_hub")


def report():
    """A dict of plain values; the command line prints it, as text or as JSON."""
    return {
        "gomlx": _gomlx.version,
        "python": platform.python_version() + f" ({sys.executable})",
        "packages": {name: package_version(name) for name in PACKAGES},
        "instruction set": {"chosen": _gomlx.isa(), "why": _gomlx.isa_reason(),
                            "GOMLX_ISA": os.environ.get("GOMLX_ISA")},
        "threads": {"chosen": _gomlx.default_threads(), "why": _gomlx.default_threads_reason()},
        "processor": processor(),
        "memory": machine.memory(),
        "gpu": gpu(),
        "hub": hub(),
    }


def gpu():
    """What GPUs there are, or why there are none; of each what it is, or why it cannot be used. model bytes: what
    load(device="auto") would put there; of a larger model as many layers as fit."""
    count, why = _gomlx._device_count()
    return {"found": count, **({} if count else {"why": why}), "GOMLX_DEVICE": os.environ.get("GOMLX_DEVICE"),
            **{f"gpu {i}": described(1 + i) for i in range(count)}}


def described(number):
    try:
        known = _gomlx._describe_device(number)
    except (_gomlx.Error, ValueError, RuntimeError, MemoryError) as error:
        return {"why not": str(error)}
    return {"name": known["device_name"], "architecture": known["architecture"], "memory bytes": known["memory_size"],
            "free bytes": known["free"], "model bytes": int(placement.SHARE * known["free"]),
            "driver": known["driver"], "kernels": known["kernels"], "libraries": known["libraries"]}


def package_version(name):
    from importlib import metadata  # which takes longer than what most commands need
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing: pip install " + name


def processor():
    names = {line.split(":", 1)[1].strip() for line in machine.lines_of("/proc/cpuinfo")
             if line.startswith("model name")}
    return {"model": ", ".join(sorted(names)) or platform.machine(), "online": os.cpu_count(),
            "affinity": len(os.sched_getaffinity(0)), "cgroup quota": machine.cpu_quota()}


def hub():
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface")
    return {"cache": os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"),
            "endpoint": os.environ.get("HF_ENDPOINT") or "https://huggingface.co",
            "offline": os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE")}
