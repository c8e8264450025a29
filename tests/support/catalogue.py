"""The rows of the catalogue of operations, csrc/ops/ops.def and the files of kernels/ that it includes, and the names
of the instruction sets."""
import re
from pathlib import Path

import places

ROOT = Path(places.ROOT)


def rows():
    """(kind, name, namespace) of each: kind UNARY, BINARY or REDUCE, whose namespace is core, or OP."""
    for name in ("unary", "binary"):
        for row in re.findall(r"^\w+_(?:VALUE|TEST)\((\w+),", (ROOT / "kernels" / f"{name}.def").read_text(), re.M):
            yield name.upper(), row, "core"
    classes = r"^(UNARY|BINARY|REDUCE|OP|HAND|ENGINE)\((\w+),\s*(\w*)"
    for kind, row, space in re.findall(classes, (ROOT / "csrc/ops/ops.def").read_text(), re.M):
        yield "OP" if kind in ("HAND", "ENGINE") else kind, row, "engine" if kind == "ENGINE" else space or "core"


ROWS = list(rows())
UNARY, BINARY, REDUCE = ([name for kind, name, _ in ROWS if kind == wanted] for wanted in ("UNARY", "BINARY", "REDUCE"))
# Of every architecture, the best of each first; and those of them that build on no other one.
ISAS = re.findall(r"^ISA\((\w+),", (ROOT / "kernels/cpu/isa.def").read_text(), re.M)
FAMILIES = re.findall(r"^ISA\((\w+), \1,", (ROOT / "kernels/cpu/isa.def").read_text(), re.M)
