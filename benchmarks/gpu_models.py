"""Measures decoders on a GPU: writes models of random blocks in true shapes, and prints one table.

    pip install . ./kernels/cuda torch gguf
    python benchmarks/gpu_models.py                              # everything
    python benchmarks/gpu_models.py --only llama1b-Q4_0,probes   # one model, and what the card can do at all

Probes come first, by torch: bytes a second that a copy reads and writes and that a sum reads, bfloat16 products, and a
node of a graph of 200 small kernels. Then a line for each model and setting: tokens a second of all sequences, the
median with the least and the greatest; of a decode of one sequence also the bytes of weights that were read a second,
as a share of the read probe; of every decode the processor's seconds for all rounds and their prompts. "first" is the
time from the file in the page cache to the first token. Weights are random bytes with small scales, so texts mean
nothing."""
import argparse
import os
import statistics
import sys
import time

import gguf
import models
import numpy as np

import gomlx

POOL = 16_777_259       # random bytes that blocks are cut from; a prime
# Of a block, where its scales are, and what they are: float16 numbers, or the exponent of a power of two.
SCALES = {"Q4_0": {0: 0.01}, "Q4_1": {0: 0.01, 2: -0.075}, "Q5_0": {0: 0.005}, "Q5_1": {0: 0.005, 2: -0.08},
          "Q8_0": {0: 0.0006}, "Q2_K": {80: 0.004, 82: 0.006}, "Q3_K": {108: 0.0006}, "Q4_K": {0: 0.0003, 2: 0.002},
          "Q5_K": {0: 0.00015, 2: 0.002}, "Q6_K": {208: 0.00003}, "IQ4_NL": {0: 0.0006}, "IQ4_XS": {0: 0.00003},
          "MXFP4": {0: None}}
CASES = ("llama8b-BF16", "llama8b-Q8_0", "llama8b-Q4_0", "llama8b-Q4_K_M", "llama1b-BF16", "llama1b-Q4_0",
         "qwen3-BF16")
SETTINGS = ((512, 1), (512, 8), (512, 32), (8192, 1), (32256, 1))       # (tokens in the cache, sequences)


def form_of(tensor, kind, shape):
    """The type of a matrix in a file of a kind: Q4_K_M keeps more bits where llama.cpp does."""
    if kind != "Q4_K_M":
        return kind
    n, parts = shape.layers, tensor.split(".")
    if tensor == ("token_embd.weight" if shape.tied else "output.weight"):
        return "Q6_K"
    if parts[0] != "blk" or parts[2] not in ("attn_v", "ffn_down"):
        return "Q4_K"
    i = int(parts[1])
    return "Q6_K" if i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2 else "Q4_K"


def blocks_of(form, rng):
    """Random blocks, [number, bytes of a block], with scales that keep values near those of trained weights."""
    if form == "BF16":
        return models.bfloat16(rng.standard_normal(POOL // 2, dtype=np.float32) * np.float32(0.02)
                               ).view(np.uint8).reshape(-1, 2)
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form]]
    made = rng.integers(0, 256, (POOL // size, size), dtype=np.uint8)
    for place, scale in SCALES[form].items():
        if scale is None:
            made[:, place] = 120
        else:
            made[:, place:place + 2] = np.array([scale], np.float16).view(np.uint8)
    return made


def write(name, kind, path):
    """A GGUF file of the shape in a kind: a type of SCALES, BF16 or Q4_K_M."""
    shape, rng, pools = models.SHAPES[name], np.random.default_rng(0), {}
    said = next(one for one in (kind, f"{kind}_S", f"{kind}_MOE") if hasattr(gguf.LlamaFileType, f"MOSTLY_{one}"))
    writer = models.begun(name, path, gguf.LlamaFileType[f"MOSTLY_{said}"])
    made = [(tensor, rows, columns, gguf.GGMLQuantizationType[form_of(tensor, kind, shape)])
            for tensor, rows, columns in models.tensors(shape)]
    for tensor, rows, columns, form in made:
        if rows is None:
            writer.add_tensor_info(tensor, (columns,), np.dtype(np.float32), 4 * columns)
            continue
        values, size = gguf.GGML_QUANT_SIZES[form]
        width = columns // values * size
        writer.add_tensor_info(tensor, (rows, width), np.dtype(np.uint8), rows * width, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, rows, columns, form in made:
        if rows is None:
            writer.write_tensor_data(np.ones(columns, np.float32))
            continue
        if form not in pools:
            pools[form] = blocks_of(form.name, rng)
        pool, count = pools[form], rows * columns // gguf.GGML_QUANT_SIZES[form][0]
        start = int(rng.integers(len(pool)))
        writer.write_tensor_data(np.resize(np.concatenate((pool[start:], pool[:start])), (count, pool.shape[1])))
    writer.close()


def probes(rounds):
    """Prints what the card can do; returns the bytes a second that a sum reads."""
    import torch

    def seconds(call, times=10):
        call()
        taken = []
        for _ in range(rounds):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(times):
                call()
            torch.cuda.synchronize()
            taken.append((time.perf_counter() - started) / times)
        return statistics.median(taken)

    source = torch.zeros(1 << 28, device="cuda")
    target, square = torch.empty_like(source), torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)
    read = 4 * source.numel() / seconds(source.sum)
    print(f"copy   {8 * source.numel() / seconds(lambda: target.copy_(source)) / 1e12:.2f} TB/s")
    print(f"read   {read / 1e12:.2f} TB/s")
    print(f"bf16   {2 * 8192**3 / seconds(lambda: square @ square) / 1e12:.0f} TFLOP/s")
    one, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    one.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(200):
            one.add_(1)
    print(f"node   {seconds(graph.replay) / 200 * 1e6:.2f} us, of a graph of 200", flush=True)
    return read


def spread(values):
    return f"{statistics.median(values):9.1f} [{min(values):.1f}..{max(values):.1f}]"


def first_token(path, device):
    started = time.perf_counter()
    with gomlx.load(path, device=device) as model:
        model.generate([1, 2, 3], max_tokens=1, temperature=0).read()
        return time.perf_counter() - started


def decode(model, label, depth, batch, options, read):
    """Prints a line of a decode at a depth."""
    used = time.process_time()
    report = gomlx.bench(model, prompt=min(512, depth), generate=options.tokens, depth=depth - min(512, depth),
                         batch=batch, repeat=options.rounds, prompt_cache=False, kv_restore=False, state_bundle=False,
                         probes=False, progress=False)
    used = time.process_time() - used
    rates = report["decode_tps"]
    share = ""
    if read and batch == 1:
        share = f"  weights at {report['bytes_per_token'] * statistics.median(rates) / read:.0%} of read"
    print(f"{label:18} decode  depth {depth:6} batch {batch:3} {spread(rates)} tok/s{share}  "
          f"processor {used:.1f} s in all", flush=True)


def measure(case, options, read):
    name, kind = case.split("-", 1)
    path = os.path.join(options.folder, case + ".gguf")
    started = time.perf_counter()
    try:
        write(name, kind, path)
        print(f"{case:18} written {os.path.getsize(path) / 1e9:.2f} GB in {time.perf_counter() - started:.1f} s")
        print(f"{case:18} first   {first_token(path, options.device):.2f} s", flush=True)
        with gomlx.load(path, device=options.device, fits="ignore") as model:
            for depth, batch in options.settings:
                decode(model, case, depth, batch, options, read)
            for prompt in options.prompts:
                report = gomlx.bench(model, prompt=prompt, generate=1, repeat=options.rounds, prompt_cache=False,
                                     kv_restore=False, state_bundle=False, probes=False, progress=False)
                print(f"{case:18} prefill {prompt:6}                 {spread(report['prefill_tps'])} tok/s", flush=True)
    finally:
        if os.path.exists(path):
            os.unlink(path)


def pairs(text):
    return [tuple(map(int, one.split("x"))) for one in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="models, such as llama8b-Q4_K_M, and probes, with commas")
    parser.add_argument("--folder", default="/dev/shm", help="where models are written, one at a time")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--settings", type=pairs, default=SETTINGS, help="of decodes: DEPTHxBATCH,...")
    parser.add_argument("--prompts", type=lambda text: list(map(int, text.split(","))), default=(512, 4096))
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name] or ["probes", *CASES]
    read = probes(options.rounds) if "probes" in wanted else None
    failed = 0
    for case in wanted:
        if case == "probes":
            continue
        try:
            measure(case, options, read)
        except Exception as error:                  # the other lines of the table are worth having
            failed = 1
            print(f"{case:18} FAILED: {type(error).__name__}: {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
