"""The tests in C: each tests/c/test_*.c is a program over the whole engine, compiled under ASan and UBSan, that prints
'N passed, N failed'. Those of kernels and of packed products run once for each instruction set of this machine, those
of other loops once for each family of sets, which has them of its own."""
import contextlib
import glob
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from catalogue import FAMILIES, ISAS
from engine import KERNELS_LESS
from fake_device import build_fake_device
from places import ROOT

pytestmark = pytest.mark.slow

PROGRAMS = sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, "tests", "c", "test_*.c")))
TEXTS = {path: open(os.path.join(ROOT, path), encoding="utf-8").read() for path in PROGRAMS}
PACKED = ["tests/c/test_moe.c", "tests/c/test_quantized.c"]
OTHER_LOOPS = ["tests/c/test_index.c", "tests/c/test_recurrent.c", "tests/c/test_tokenizer.c"]
KERNELS = [path for path in PROGRAMS if re.search("(kernel|packed)_check.h", TEXTS[path])]
UNDER_SETS = [(path, isa) for isa in ISAS for path in KERNELS + PACKED + (OTHER_LOOPS if isa in FAMILIES else [])]
QUICK = [path for path in PROGRAMS if "packed_check.h" in TEXTS[path] or path.endswith(("test_faults.c", "test_moe.c"))]
# What takes long begins first, so that no processor waits for it in the end.
LONG = ["tests/c/test_faults.c", "tests/c/test_packed_products.c", "tests/c/test_dense_kernels.c"]
AVXVNNI = ("tests/c/test_packed_products.c", "avxvnni in avx512")


def run(program, *arguments, isa=None, device=None):
    given = {"GOMLX_ISA": isa, "GOMLX_DEVICE_LIBRARY": device}
    environment = os.environ | {name: value for name, value in given.items() if value}
    return subprocess.run([program, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="session")
def runs(request, engine, usable_isas):
    """{(source, instruction set or None): the future of its run} for the tests that were asked for; as many at a time
    as there are processors."""
    asked = [(item.callspec.params["source"], item.callspec.params.get("isa")) for item in request.session.items
             if "runs" in item.fixturenames]
    asked = [one for one in asked if one[1] in usable_isas or one[1] is None or
             one == AVXVNNI and "avxvnni" not in usable_isas]
    asked.sort(key=lambda one: LONG.index(one[0]) if one[0] in LONG else len(LONG))
    best = next(isa for isa in ISAS if isa in usable_isas)
    pool = ThreadPoolExecutor(os.cpu_count())
    # Once for all its sets: a program that runs cannot be written.
    built = {source: pool.submit(engine.link, source) for source in dict.fromkeys(source for source, _ in asked)}

    def start(source, isa):
        if (source, isa) == AVXVNNI:
            return run(avxvnni_in_the_encoding_of_avx512(engine), "quick", "avx2")
        # What the other sets share with the best one is the same source: fewer sizes of every packed format, fewer
        # allocations that fail.
        quick = ["quick"] if source in QUICK and isa != best else []
        if source in KERNELS:
            return run(built[source].result(), *quick, isa)
        return run(built[source].result(), *quick, isa=isa,
                   device=build_fake_device() if "GOMLX_DEVICE_LIBRARY" in TEXTS[source] else None)

    yield {one: pool.submit(start, *one) for one in asked}
    pool.shutdown(cancel_futures=True)


def avxvnni_in_the_encoding_of_avx512(engine):
    """A program in which the products of AVX-VNNI, in the encoding that AVX-512 has for the same registers, take the
    place of avx2's, which nothing else of the table notices."""
    source = "kernels/cpu/part_matrices.c"
    with contextlib.chdir(ROOT):
        (flags,) = (flags for path, isa, flags in engine.build.parts() if (path, isa) == (source, "avx2"))
    own = engine.object(source, [*flags, "-mavx512f", "-mavx512vl", "-mavx512vnni"])
    return engine.link(AVXVNNI[0], objects={**engine.objects, f"{source}@avx2": own}, name="avxvnni_in_avx512")


def check(done, least=1):
    summary = re.search(r"(\d+) passed, (\d+) failed", done.stdout)
    assert done.returncode == 0 and summary, done.stdout[-4000:] + done.stderr[-4000:]
    assert int(summary[1]) >= least and summary[2] == "0", done.stdout[-4000:]


@pytest.mark.parametrize("source", [path for path in PROGRAMS if path not in KERNELS + PACKED + OTHER_LOOPS])
def test_program(runs, source):
    check(runs[source, None].result())


@pytest.mark.parametrize("source, isa", UNDER_SETS)
def test_program_with_each_instruction_set(runs, engine, usable_isas, source, isa):
    if isa not in usable_isas:
        pytest.skip(f"this machine or build cannot run {isa}")
    # The kernels that a set takes from the one that it builds on are tested with that one: it may have no other.
    (base,) = (base for name, base, *_ in engine.build.ISAS if name == isa)
    check(runs[source, isa].result(), least=0 if source in KERNELS and base else 1)


@pytest.mark.parametrize("source, isa", [AVXVNNI])
def test_avxvnni_in_the_encoding_of_avx512(runs, engine, usable_isas, source, isa):
    """They run on more machines than have AVX-VNNI; where there is that, its own encoding has been tested."""
    if not {"avx512vnni", "avx2"} <= usable_isas:
        pytest.skip("this machine has no AVX-512 VNNI, or GOMLX_ISAS leaves out avx2")
    if "avxvnni" in usable_isas:
        pytest.skip("this machine has AVX-VNNI")
    check(runs[source, isa].result())


# Copies so many bytes from and to places in blocks of twice as many.
COPY = """
#include <stdlib.h>
#include <string.h>
typedef struct { char bytes[SIZE]; } block;
int main(int n, char **places) {
    char *from = memset(malloc(2 * SIZE), 1, 2 * SIZE), *to = memset(malloc(2 * SIZE), 0, 2 * SIZE);
    char *at = to + atoi(places[2]);
    *(block *)at = *(block *)(from + atoi(places[1]));
    const int wrong = n != 3 || at[SIZE - 1] != 1;
    free(from), free(to);
    return wrong;
}
"""


@pytest.mark.parametrize("size", [37, 64, 100])
def test_accesses_of_vectors_are_checked(engine, size, tmp_path):
    """By vector_accesses.c, as by the sanitizer's own checks: to the byte."""
    if not engine.has_calls:
        pytest.skip("the compiler has no AddressSanitizer whose checks are calls")
    source = tmp_path / f"copy_{size}.c"
    source.write_text(COPY)
    program = engine.link(str(source), f"-DSIZE={size}", *KERNELS_LESS, *engine.addresses)
    for places, said in (((0, 0), ""), ((size, size), ""), ((size + 1, 0), f"READ of size {size} "),
                         ((-1, 0), f"READ of size {size} "), ((0, size + 1), f"WRITE of size {size} "),
                         ((1, -8), f"WRITE of size {size} ")):
        done = run(program, *map(str, places))
        assert (done.returncode == 0) == (not said) and said in done.stderr, (places, done.stderr[:2000])
        assert not said or "ERROR: AddressSanitizer" in done.stderr


@pytest.fixture(scope="session")
def usable_isas(engine, tmp_path_factory):
    """Those of ISAS with which gm_init succeeds here."""
    source = tmp_path_factory.mktemp("isa") / "probe_isa.c"
    source.write_text('#include "gomlx.h"\nint main(void) { return gm_init() == GM_OK ? 0 : 1; }\n')
    program = engine.link(str(source))
    return {isa for isa in ISAS if run(program, isa=isa).returncode == 0}
