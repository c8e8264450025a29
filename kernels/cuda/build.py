"""Builds the device code for GPUs with nvcc: one file, the parts of kernels.def after a head that module.h describes.
It is what the package gomlx-cuda13 carries; the functions at the end build that, as PEP 517 asks for them.

    python build.py digest                      what host and device code must share
    python build.py kernels OUT [ARCH ...]      90a, 80, compute_80, ...; default: what GOMLX_CUDA_ARCHS says
    python build.py limits OUT.log              whether no kernel needs more than limits.txt says, of sm_90a
    python build.py empty OUT                   the head alone, for tests without a card

GOMLX_CUDA_ARCHS: "native", the cards of this machine; "all", for packages that others use; or names with commas; unset:
the cards that are here, else 90a. Images are kept in the folder beside OUT by what they were made of, and by which
nvcc. OUT.log has what the compiler says of registers.
"""
import base64
import concurrent.futures
import contextlib
import fcntl
import fnmatch
import functools
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import tomllib
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
KERNELS = os.path.dirname(HERE)
ROOT = os.path.dirname(KERNELS)
OUT = os.path.join(ROOT, "build", "cuda", "kernels")     # of the package, and images that are kept
MAGIC = b"gomlx kernels 1"
FLAGS = ["-std=c++17", "-O3", "-fmad=false", "--fatbin", "--compress-mode=size", "-Xptxas", "-v"]
ALL = ("80", "86", "89", "90a", "100", "120", "compute_80", "compute_90")
# A working nvcc, but for a C++ compiler. Unpinned ones of a newer release do not fit one another.
NVCC = ("nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm==13.0.88", "nvidia-cuda-crt==13.0.88", "nvidia-cuda-runtime==13.0.96")


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def made_of(part):
    """The files that a part is made of: its own, and what they include of this project's."""
    found, ahead = [], [os.path.join(HERE, f"{part}.cu")]
    while ahead:
        path = ahead.pop()
        if path not in found:
            found.append(path)
            names = re.findall(rb'^\s*#\s*include\s+"([^"]+)"', read(path), re.M)
            places = [[os.path.join(folder, name.decode()) for folder in (os.path.dirname(path), HERE, KERNELS)]
                      for name in names]
            ahead += [os.path.normpath(one) for one in (next(filter(os.path.exists, these), None) for these in places)
                      if one]
    return sorted(found)


def parts():
    return re.findall(r"^CUDA_PART\((\w+)\)", read(HERE, "kernels.def").decode(), re.M)


def hash_of(texts):
    total = hashlib.sha256()
    for text in texts:
        total.update(len(text).to_bytes(8, "little") + text)
    return total.hexdigest()


def digest():
    """SHA-256 of what both sides see: the parameters of kernels, their names, and the kernels."""
    paths = {path for part in parts() for path in made_of(part)}
    return hash_of(read(path) for path in [os.path.join(HERE, "kernels.def"), *sorted(paths)])


def find_nvcc():
    """GOMLX_NVCC, one on PATH, or that of the packages NVCC; None: there is none."""
    named = os.environ.get("GOMLX_NVCC") or shutil.which("nvcc")
    found = [named] if named else [os.path.join(folder, "nvidia", "cu13", "bin", "nvcc") for folder in sys.path]
    return next((path for path in found if shutil.which(path)), None)


@functools.cache
def version_of(nvcc):
    """What it says of itself: images of another one are not its own."""
    try:
        return subprocess.run([nvcc, "--version"], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{nvcc} --version: {error}") from None


def cards():
    """The architectures of this machine's cards."""
    program = shutil.which("nvidia-smi")
    if not program:
        return []
    said = subprocess.run([program, "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True,
                          check=False).stdout
    found = {major + minor for major, minor in re.findall(r"^(\d+)\.(\d)$", said, re.M)}
    return sorted("90a" if one == "90" else one for one in found)


def architectures():
    """What GOMLX_CUDA_ARCHS asks for."""
    asked = os.environ.get("GOMLX_CUDA_ARCHS", "").strip()
    if asked == "all":
        return list(ALL)
    if asked not in ("", "native"):
        names = [name.strip().removeprefix("sm_") for name in asked.split(",")]
        if wrong := [name for name in names if not re.fullmatch(r"(compute_)?\d{2,3}[af]?", name)]:
            raise SystemExit(f"GOMLX_CUDA_ARCHS={asked}: {', '.join(wrong)} unknown; expected native, all, or names as "
                             f"{','.join(ALL)}")
        return names
    here = cards()
    if asked == "native" and not here:
        raise SystemExit("GOMLX_CUDA_ARCHS=native: nvidia-smi finds no card here; name the architectures: 90a,80")
    return here or ["90a"]


def word(name):
    """An architecture as nvcc and the head of the file have it: sm_90a, or compute_80 for code that drivers compile."""
    return name if name.startswith("compute_") else f"sm_{name}"


def keep(path, data):
    """Writes a file that others may be writing or reading: it is there whole, or not at all."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(path))) as own:
        new = os.path.join(own, "new")
        with open(new, "wb") as file:
            file.write(data)
        os.replace(new, path)


@contextlib.contextmanager
def alone(path):
    """One at a time; others wait, and find what it made."""
    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_part(part, names, folder):
    """The image of a part and what the compiler said."""
    nvcc = find_nvcc()
    if not nvcc:
        raise SystemExit(f"nvcc was not found: pip install {' '.join(NVCC)}, or name one by GOMLX_NVCC")
    targets = [f"-gencode=arch=compute_{name.removeprefix('compute_')},code={word(name)}" for name in names]
    command = [*FLAGS, *targets, f"-I{KERNELS}", f"-I{HERE}", os.path.join(HERE, f"{part}.cu")]
    key = hash_of([*(read(path) for path in made_of(part)), " ".join([*FLAGS, *targets]).encode(), version_of(nvcc)])
    image = os.path.join(folder, f"{part}-{key[:16]}")
    with alone(os.path.join(folder, f"{part}.lock")):
        if not os.path.exists(image + ".log"):
            with tempfile.TemporaryDirectory(dir=folder) as own:
                made = os.path.join(own, part)
                done = subprocess.run([nvcc, *command, "-o", made], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      check=False)
                if done.returncode:
                    raise SystemExit(done.stdout.decode(errors="replace"))
                os.replace(made, image)
            keep(image + ".log", done.stdout)           # last: where it is, the image is
    return read(image), read(image + ".log")


def write(out, words, images):
    """Head and images, each at a multiple of 64 bytes."""
    at, places, body = 16 + 64 + 64 + 16 * len(images), [], b""
    for image in images:
        body += bytes(-(at + len(body)) % 64)
        places.append((at + len(body), len(image)))
        body += image
    if len(" ".join(words)) > 64:
        raise SystemExit(f"too many architectures: {' '.join(words)}")
    head = struct.pack("16s64s64s", MAGIC, digest().encode(), " ".join(words).encode())
    keep(out, head + b"".join(struct.pack("<QQ", *place) for place in places) + body)


def kernels(out, names):
    folder = os.path.join(os.path.dirname(os.path.abspath(out)), "images")
    os.makedirs(folder, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("GOMLX_JOBS", os.cpu_count() or 1))) as pool:
        made = list(pool.map(lambda part: compile_part(part, names, folder), parts()))
    write(out, [word(name) for name in names], [image for image, _ in made])
    keep(out + ".log", b"".join(log for _, log in made))


# ---- what kernels may need ----
def read_limits():
    """[(pattern, registers, bytes spilled)] of limits.txt: the first that fits counts."""
    lines = read(HERE, "limits.txt").decode().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return [(pattern, int(registers), int(spilled)) for pattern, registers, spilled in rows]


def needs(log):
    """{kernel: (registers, bytes spilled)} of what the compiler said, for sm_90a."""
    found = {}
    for text in log.split("Compiling entry function ")[1:]:
        name, architecture = re.match(r"'gm_(\w+)' for '(\w+)'", text).groups()
        if architecture == "sm_90a":
            found[name] = (int(re.search(r"Used (\d+) registers", text)[1]),
                           int(re.search(r"(\d+) bytes spill stores", text)[1]))
    return found


def beyond_limits(log):
    """A line for each kernel that needs more than it may."""
    limits, said = read_limits(), []
    for name, (registers, spilled) in needs(log).items():
        _, most, most_spilled = next(row for row in limits if fnmatch.fnmatchcase(name, row[0]))
        if registers > most or spilled > most_spilled:
            said.append(f"{name}: {registers} registers and {spilled} bytes spilled, not {most} and {most_spilled}")
    return said


# ---- the package, as pip asks for it ----
def get_requires_for_build_wheel(config_settings=None):
    return [] if find_nvcc() else list(NVCC)


def metadata():
    with open(os.path.join(HERE, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)["project"]
    version = re.search(r'^#define GM_VERSION "([^"]+)"', read(ROOT, "csrc", "gomlx.h").decode(), re.M)[1]
    text = (f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {version}\nSummary: {project['description']}\n"
            f"License-Expression: {project['license']}\nLicense-File: LICENSE\n"
            f"Requires-Python: {project['requires-python']}\n")
    return f"{project['name'].replace('-', '_')}-{version}", text


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """A wheel of any Python and platform: its one file is code for GPUs."""
    names, (name, text) = architectures(), metadata()
    os.makedirs(os.path.dirname(OUT), exist_ok=True)
    print(f"gomlx-cuda13: compiling for {', '.join(names)} (minutes)", flush=True)
    kernels(OUT, names)
    tag = "py3-none-any"
    files = {"gomlx_cuda13/kernels": read(OUT), f"{name}.dist-info/METADATA": text.encode(),
             f"{name}.dist-info/licenses/LICENSE": read(ROOT, "LICENSE"),
             f"{name}.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: gomlx\nRoot-Is-Purelib: true\n"
                                        b"Tag: %s\n" % tag.encode()}
    record = "".join(f"{path},sha256={checksum(data)},{len(data)}\n" for path, data in files.items())
    files[f"{name}.dist-info/RECORD"] = f"{record}{name}.dist-info/RECORD,,\n".encode()
    with zipfile.ZipFile(os.path.join(wheel_directory, f"{name}-{tag}.whl"), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return f"{name}-{tag}.whl"


def checksum(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


if __name__ == "__main__":
    if sys.argv[1:] == ["digest"]:
        print(digest())
    elif sys.argv[1:2] == ["kernels"] and len(sys.argv) > 2:
        kernels(sys.argv[2], sys.argv[3:] or architectures())
    elif sys.argv[1:2] == ["limits"] and len(sys.argv) == 3:
        if said := beyond_limits(read(sys.argv[2]).decode()):
            raise SystemExit("\n".join(said))
    elif sys.argv[1:2] == ["empty"] and len(sys.argv) == 3:
        write(sys.argv[2], ["sm_90"], [b""] * len(parts()))
    else:
        raise SystemExit(__doc__)
