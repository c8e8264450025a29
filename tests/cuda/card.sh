#!/bin/bash
# card.sh [FOLDER]: on a machine with a card: checks every contract, then times them. FOLDER has what make.sh made:
# test_kernels, bench_kernels, torch_reference.py, and kernels or, to be compiled here, source: the folder kernels of
# the repository. Each part has a limit of its own; all end within 8 minutes.
# compute-sanitizer, where PATH has it, is that of nvidia-cuda-sanitizer-api of the driver's release (13.0.85 for 580),
# in one folder with all its libraries: without libsanitizer-public.so its injection library fails to initialize.
here=$(cd "${1:-$(dirname "$0")}" && pwd); out=${OUT:-/tmp}; log=$out/log
export GOMLX_CUDA_KERNELS=$here/kernels
unset GOMLX_CUDA_DRIVER
# torch's own; the programs in C have no Python packages beside them
export GOMLX_CUDA_BLASLT=${GOMLX_CUDA_BLASLT-$(python3 -c 'import glob, sys
print(*[path for folder in sys.path for path in glob.glob(folder + "/nvidia/*/lib/libcublasLt.so.1[23]")][:1])')}
part() { # name, seconds, command
    echo "== $1"; local name=$1 limit=$2; shift 2
    local start=$SECONDS
    timeout "$limit" "$@" 2>&1 | tail -60
    echo "-- $name: status ${PIPESTATUS[0]}, $((SECONDS - start)) s"
}
build() {
    export GOMLX_CUDA_KERNELS=$out/made/kernels
    mkdir -p "$out/made"
    part build 240 python3 "$here/source/cuda/build.py" kernels "$out/made/kernels" 90a
    grep -c "Compiling entry" "$out/made/kernels.log"
    grep -B3 -E "[1-9][0-9]* bytes spill" "$out/made/kernels.log" | grep "Compiling entry" # what spills
    rm -rf "$out/made/images"
}
{
    part card 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm --format=csv,noheader
    [ -e "$here/kernels" ] || build
    part checks 150 "$here/test_kernels" 60
    part bench 60 "$here/bench_kernels"
    part torch 80 python3 "$here/torch_reference.py"
    if command -v compute-sanitizer > /dev/null; then
        part memcheck 70 compute-sanitizer --tool memcheck "$here/test_kernels" 2
        part racecheck 50 compute-sanitizer --tool racecheck \
            "$here/test_kernels" 3 reduce softmax rms_norm product sort scan
    fi
    GOMLX_CUDA_BLASLT=/nothing part bench-own 40 "$here/bench_kernels"
    GOMLX_CUDA_PDL=0 part bench-late 40 "$here/bench_kernels"
} 2>&1 | tee "$log"
echo "== each beside torch"
awk '/^torch / { name = substr($0, 7, 32); sub(/ +$/, "", name); torch[name] = $(NF - 1) }
     / us .*predicted/ { name = substr($0, 1, 34); sub(/ +$/, "", name); line[name] = $0; order[++n] = name }
     END { for (i = 1; i <= n; i++) if (!done[order[i]]++)
               printf "%s   torch %s\n", line[order[i]], order[i] in torch ? torch[order[i]] " us" : "-" }' \
    "$log" | tee -a "$log"
