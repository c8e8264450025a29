#!/bin/bash
# make.sh FOLDER: the programs of tests/cuda. FOLDER/emulated: under ASan, over the fake driver; FOLDER/card: for a card.
set -e
cd "$(dirname "$0")/../.."
out=$1; mkdir -p "$out/objects"
python=${PYTHON:-python3}; cc=${CC:-gcc}; cxx=${CXX:-g++}
digest=$($python kernels/cuda/build.py digest)
common="-std=c11 -g0 -O2 -fno-math-errno -ffp-contract=off -Ikernels -I. -D_GNU_SOURCE"
# The processor's kernels, as setup.py builds them, for two instruction sets.
$python - > "$out/parts" <<'P'
import setup
chosen = ("avx2", "generic")
for path, isa, flags in setup.parts(tuple(one for one in setup.ISAS if one[0] in chosen), chosen):
    if path.startswith("kernels/"):
        print(path, isa, *flags)
P
objects=
while read -r path isa flags; do
    object=$out/objects/$(basename "$path" .c)_$isa.o
    [ "$object" -nt "$path" ] || $cc $common $flags -c "$path" -o "$object"
    objects="$objects $object"
done < "$out/parts"
tables="-DKERNELS_HAS_avx2 -DKERNELS_HAS_generic"
for path in kernels/*.c kernels/cpu/*.c; do
    case $path in *part_*) continue;; esac
    object=$out/objects/$(basename "$path" .c).o
    [ "$object" -nt "$path" ] || $cc $common $tables -c "$path" -o "$object"
    objects="$objects $object"
done
# The host's side and the test, with and without sanitizers.
for kind in emulated card; do
    mkdir -p "$out/$kind"
    flags="$common -Wall -Wextra -DCUDA_DIGEST=\"$digest\""
    [ $kind = card ] || flags="$flags -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined"
    for name in test_kernels $(cd tests/cuda && ls bench_*.c 2>/dev/null | sed 's/\.c$//'); do
        $cc $flags kernels/cuda/*.c "tests/cuda/$name.c" $objects -o "$out/$kind/$name" -lm -ldl -lpthread
    done
done
$python kernels/cuda/build.py empty "$out/emulated/kernels"
asan="-fsanitize=address -O1 -g0 -fPIC -shared -ffp-contract=off -fvisibility=hidden"
$cc $asan -c tests/cuda/fake_driver.c -o "$out/emulated/fake_driver.o"
$cxx -std=gnu++17 $asan -w -DGOMLX_EMULATED -Itests/cuda -Ikernels/cuda -Ikernels \
    -o "$out/emulated/fake_driver.so" "$out/emulated/fake_driver.o" tests/cuda/fibers.cpp -x c++ kernels/cuda/kernels.cu -ldl
