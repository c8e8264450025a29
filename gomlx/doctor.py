"""What gomlx finds on this machine and why it chose what it chose."""
import os
import platform
import sys
from importlib import metadata

from gomlx import _gomlx

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
        "memory": memory(),
        "hub": hub(),
    }


def package_version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing: pip install " + name


def processor():
    names = {line.split(":", 1)[1].strip() for line in lines_of("/proc/cpuinfo") if line.startswith("model name")}
    return {"model": ", ".join(sorted(names)) or platform.machine(), "online": os.cpu_count(),
            "affinity": len(os.sched_getaffinity(0)), "cgroup quota": cpu_quota()}


def memory():
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines_of("/proc/meminfo")}
    return {"total bytes": sizes.get("MemTotal"), "available bytes": sizes.get("MemAvailable"),
            "cgroup limit bytes": memory_limit()}


def cgroup_folders():
    """This process's cgroup v2 folder and its parents, innermost first."""
    for line in lines_of("/proc/self/cgroup"):
        if line.startswith("0::"):
            path = line[3:].strip().strip("/")
            while path:
                yield os.path.join("/sys/fs/cgroup", path)
                path = os.path.dirname(path)
    yield "/sys/fs/cgroup"


def cpu_quota():
    """The least number of processors that a cgroup allows; None without a limit."""
    quotas = []
    for folder in cgroup_folders():
        words = " ".join(lines_of(os.path.join(folder, "cpu.max"))).split()
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
    quota, period = (" ".join(lines_of(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us")) for name in ("quota", "period"))
    if quota and period and int(quota) > 0:
        quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit():
    limits = [" ".join(lines_of(os.path.join(folder, "memory.max"))) for folder in cgroup_folders()]
    limits.append(" ".join(lines_of("/sys/fs/cgroup/memory/memory.limit_in_bytes")))
    return min((int(limit) for limit in limits if limit.isdigit() and int(limit) < 1 << 60), default=None)


def hub():
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface")
    return {"cache": os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"),
            "endpoint": os.environ.get("HF_ENDPOINT") or "https://huggingface.co",
            "offline": os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE")}


def lines_of(path):
    """A small file's lines; none where there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []
