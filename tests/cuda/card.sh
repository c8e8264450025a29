#!/bin/bash
# card.sh [FOLDER]: on a machine with a card: checks every contract, then times them. FOLDER has what make.sh and build.py
# made: test_kernels, bench_kernels, kernels, torch_reference.py. Each part has a limit of its own; all end within 8 minutes.
here=$(cd "${1:-$(dirname "$0")}" && pwd); out=${OUT:-/tmp}; log=$out/log
export GOMLX_CUDA_KERNELS=$here/kernels
unset GOMLX_CUDA_DRIVER
part() { # name, seconds, command
    echo "== $1"; local name=$1 limit=$2; shift 2
    local start=$SECONDS
    timeout "$limit" "$@" 2>&1 | tail -60
    echo "-- $name: status ${PIPESTATUS[0]}, $((SECONDS - start)) s"
}
{
    part card 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm --format=csv,noheader
    part checks 150 "$here/test_kernels" 60
    part bench 60 "$here/bench_kernels"
    part torch 80 python3 "$here/torch_reference.py"
    if command -v compute-sanitizer > /dev/null; then
        part memcheck 70 compute-sanitizer --tool memcheck "$here/test_kernels" 2
        part racecheck 50 compute-sanitizer --tool racecheck "$here/test_kernels" 3 reduce softmax rms_norm product sort scan
    fi
    part bench-again 40 "$here/bench_kernels"
} 2>&1 | tee "$log"
