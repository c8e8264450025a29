"""What Linux says of this machine: its memory, and what control groups (cgroups) leave a process of memory and
processors."""
import os


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


def lines_of(path):
    """The lines of a small file; an empty list if there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []
