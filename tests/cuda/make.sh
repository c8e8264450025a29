#!/bin/bash
# make.sh FOLDER [ARCH ...]: what card.sh needs on a machine with a card, of the objects of this tree's build
# (setup.py build_ext --inplace): the programs of tests/cuda, the file of kernels, torch_reference.py.
set -e
cd "$(dirname "$0")/../.."
out=$1; shift
mkdir -p "$out"
${PYTHON:-python3} kernels/cuda/build.py kernels "$out/kernels" "$@"
mapfile -t objects < <(find build/temp* -path '*/kernels/*' -name '*.o')
for source in tests/cuda/test_kernels.c tests/cuda/bench_*.c; do
    ${CC:-gcc} -std=c11 -O2 -ffp-contract=off -D_GNU_SOURCE -Ikernels -I. -Itests/cuda "$source" "${objects[@]}" \
        -o "$out/$(basename "$source" .c)" -lm -ldl -lpthread
done
cp tests/cuda/card.sh "$out/run.sh"
cp tests/cuda/torch_reference.py "$out"
