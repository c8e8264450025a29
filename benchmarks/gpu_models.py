"""Measures decoders on a GPU: writes models of random blocks in true shapes, and prints one table.

    pip install . ./kernels/cuda torch gguf
    python benchmarks/gpu_models.py --settings 512x1,512x8 --prompts 4096       # the rows that matter most
    python benchmarks/gpu_models.py --only llama8b-BF16 --settings 1024x32,8192x1,32256x1
    python benchmarks/gpu_models.py --only qwen3moe-Q4_0,gptoss-MXFP4

Probes come first, by torch: bytes a second that a copy reads and writes and that a sum reads, bfloat16 products, and a
node of a graph of 200 small kernels. Then lines for each model, the first with the time from its file in the page cache
to the first token: tokens a second of all sequences, the median with the least and the greatest and the number of
rounds. A decode is measured from where each sequence has written a few tokens, for its first steps make what later ones
use; of one sequence also the bytes of weights that were read a second, as a share of the read probe. "processor" is the
time of the processor a step, of all threads, waiting in a loop included. Prompts before a decode are computed once, and
sessions are forked from them. Beside BF16 models of Llama and Qwen 3 runs torch in turns, round by round: as a graph,
and without one ("eager"); its cache holds random numbers. "idle" is the share of a decode's time in which none of its
kernels ran, by torch's profiler, which slows down what it watches. Weights are random bytes with small scales, so texts
mean nothing. A model with a number of layers, as qwen3moe:12-Q4_0, is cut to them."""
import argparse
import dataclasses
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

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
CASES = ("llama8b-BF16", "llama8b-Q4_0", "llama8b-Q4_K_M", "llama8b-Q8_0", "llama1b-BF16", "llama1b-Q4_0",
         "qwen3-BF16")
SETTINGS = ((512, 1), (512, 8), (1024, 32), (8192, 1), (32256, 1))      # (tokens in the cache, sequences)
WARM = 4                # tokens of each sequence before a decode is measured


def form_of(tensor, kind, shape):
    """The type of a matrix in a file of a kind: Q4_K_M keeps more bits where llama.cpp does, MXFP4 is of experts."""
    n, parts = shape.layers, tensor.split(".")
    if "ffn_gate_inp" in tensor:
        return "F32"
    if kind == "MXFP4" and shape.experts and "_exps" not in tensor:
        return "Q8_0"
    if kind != "Q4_K_M":
        return kind
    if tensor == ("token_embd.weight" if shape.tied else "output.weight"):
        return "Q6_K"
    if parts[0] != "blk" or parts[2].removesuffix("_exps") not in ("attn_v", "ffn_down"):
        return "Q4_K"
    i = int(parts[1])
    return "Q6_K" if i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2 else "Q4_K"


def blocks_of(form, rng):
    """Random blocks, [number, bytes of a block], with scales that keep values near those of trained weights."""
    if form == "BF16":
        return models.bfloat16(rng.standard_normal(POOL // 2, dtype=np.float32) * np.float32(0.02)
                               ).view(np.uint8).reshape(-1, 2)
    if form == "F32":
        return (rng.standard_normal(POOL // 4, dtype=np.float32) * np.float32(0.02)).view(np.uint8).reshape(-1, 4)
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
    if kind not in (*SCALES, "BF16", "Q4_K_M"):
        raise ValueError(f"{kind!r} is none of {', '.join(SCALES)}, BF16, Q4_K_M")
    shape, rng, pools, parts = models.SHAPES[name], np.random.default_rng(0), {}, []
    said = next(one for one in (kind, f"{kind}_S", f"{kind}_MOE") if hasattr(gguf.LlamaFileType, f"MOSTLY_{one}"))
    writer, end = models.begun(name, path, gguf.LlamaFileType[f"MOSTLY_{said}"]), 0
    for tensor, rows, columns in models.tensors(shape):
        if rows is None:
            size = 4 * int(np.prod(columns))
            sizes = columns if isinstance(columns, tuple) else (columns,)
            writer.add_tensor_info(tensor, sizes, np.dtype(np.float32), size)
            block, start = np.ones(size // 4, np.float32).view(np.uint8), 0
        else:
            form = gguf.GGMLQuantizationType[form_of(tensor, kind, shape)]
            values, bytes_of = gguf.GGML_QUANT_SIZES[form]
            sizes = (*(rows if isinstance(rows, tuple) else (rows,)), columns // values * bytes_of)
            size = int(np.prod(sizes))
            writer.add_tensor_info(tensor, sizes, np.dtype(np.uint8), size, raw_dtype=form)
            if form not in pools:
                pools[form] = blocks_of(form.name, rng)
            block = pools[form].reshape(-1)
            start = int(rng.integers(len(pools[form]))) * bytes_of
        parts.append((block, start, end, size))
        end += -(-size // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    fill(path, parts, end)


def fill(path, parts, size):
    """Writes tensors after the header, each (bytes that repeat, where it begins in them, its place, its size)."""
    with open(path, "r+b") as file, ThreadPoolExecutor(8) as pool:
        begin = -(-os.path.getsize(path) // 32) * 32
        file.truncate(begin + size)

        def one(part):
            repeated, start, at, left = part
            while left:
                piece = repeated[start:start + left]
                wrote = os.pwrite(file.fileno(), memoryview(piece), begin + at)
                start, at, left = (start + wrote) % len(repeated), at + wrote, left - wrote

        list(pool.map(one, parts))


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
    return (f"{statistics.median(values):9.1f} [{min(values):.1f}..{max(values):.1f}] tok/s, "
            f"{len(values)} round{'s' * (len(values) > 1)}")


def row(label, what, values, more=""):
    """Prints a line of the table at once."""
    print(f"{label:18} {what:34} {spread(values)}{more}", flush=True)


def in_turns(calls, options):
    """What each call gives in each round, {name: [...]}; no round begins after --seconds, but the first."""
    found, started = {name: [] for name in calls}, time.perf_counter()
    for number in range(options.rounds):
        if number and time.perf_counter() - started > options.seconds:
            break
        for name, call in calls.items():
            found[name].append(call())
    return found


def ids_of(count):
    return [i * 7919 % 250 for i in range(count)]


def decoded(model, base, depth, batch, tokens):
    """(seconds, the processor's seconds, tokens) of a decode, once each sequence has written WARM tokens."""
    sessions, said = [base.fork() for _ in range(batch)], [0] * batch
    stream = model.generate_batch([ids_of(depth + 1)] * batch, options=[{"session": one} for one in sessions],
                                  batch_size=batch, max_tokens=tokens + WARM, temperature=0, ignore_eos=True)
    began = None
    for i, _ in stream:
        said[i] += 1
        if began is None and min(said) == WARM:
            began, used, before = time.perf_counter(), time.process_time(), sum(said)
    took, used = time.perf_counter() - began, time.process_time() - used
    for session in sessions:
        session.close()
    return took, used, sum(said) - before


def read_seconds(model, count):
    session, started = model.session(), time.perf_counter()
    model.generate(ids_of(count), max_tokens=1, temperature=0, ignore_eos=True, session=session).read()
    took = time.perf_counter() - started
    session.close()
    return took


def idle(call):
    """The share of the time between its first kernel and its last in which none ran; None without a profiler."""
    import torch
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
    spans = sorted((one.time_range.start, one.time_range.end) for one in profile.events()
                   if one.device_type == torch.autograd.DeviceType.CUDA)
    busy, end = 0, spans[0][0] if spans else 0
    for start, stop in spans:
        busy, end = busy + max(0, stop - max(start, end)), max(end, stop)
    return 1 - busy / (end - spans[0][0]) if spans else None


def decodes(model, case, torch_decoder, options, read):
    """Prints the lines of all settings: deeper ones go on from the tokens of those before."""
    base, weights = model.session(), None
    for depth, batch in sorted(options.settings):
        model.generate(ids_of(depth), max_tokens=0, session=base).read()
        calls = {"gomlx": lambda: decoded(model, base, depth, batch, options.tokens)}
        if torch_decoder:
            for name, graphed in (("torch", True), ("torch eager", False)):
                theirs = torch_decoder.steps(depth, batch, options.tokens, graphed)
                calls[name] = lambda theirs=theirs: (theirs(options.tokens), 0, batch * options.tokens)
        decoded(model, base, depth, batch, 4)                   # makes what this number of members needs
        found, what, more = in_turns(calls, options), f"decode depth {depth:6} batch {batch:3}", ""
        rates = {name: [count / took for took, _, count in rounds] for name, rounds in found.items()}
        used = statistics.median(used * batch / count for _, used, count in found["gomlx"])
        if read and batch == 1:
            weights = weights or weight_bytes(model)
            more = f", weights at {weights * statistics.median(rates['gomlx']) / read:.0%} of read"
        row(case, what, rates["gomlx"], f"{more}, processor {1e6 * used:.0f} us a step")
        for name in list(calls)[1:]:
            ratio = statistics.median(ours / theirs for ours, theirs in zip(rates["gomlx"], rates[name], strict=True))
            row(case, f"{what} {name}", rates[name], f", we are {ratio:.2f} of it")
        if options.idle and batch == 1:
            print(f"{case:18} {what} idle {share(lambda: decoded(model, base, depth, 1, 16))}", flush=True)
    base.close()


def share(call):
    try:
        found = idle(call)
    except (ImportError, RuntimeError) as error:
        return f"unknown: {error}"
    return "unknown: the profiler saw no kernel" if found is None else f"{found:.1%}"


def weight_bytes(model):
    """Those that one more token of one sequence reads."""
    profile = model.generate(ids_of(1), max_tokens=2, temperature=0, ignore_eos=True, profile=True,
                             session=model.session()).read().profile
    return sum(profile["decode"]["weight_bytes"].values())


def prefills(model, case, torch_decoder, options):
    for count in options.prompts:
        calls = {"gomlx": lambda: read_seconds(model, count)}
        if torch_decoder:
            calls["torch"] = lambda: torch_decoder.prefill_seconds(count)
        for call in calls.values():
            call()
        found = {name: [count / took for took in rounds] for name, rounds in in_turns(calls, options).items()}
        for name, rates in found.items():
            row(case, f"prefill {count:6}{'' if name == 'gomlx' else ' ' + name}", rates)


def named(case):
    """The name of the shape, cut to as many layers as it says, and the kind."""
    name, kind = case.split("-", 1)
    whole, _, layers = name.partition(":")
    if layers:
        models.SHAPES[name] = dataclasses.replace(models.SHAPES[whole], layers=int(layers))
    return name, kind


def measure(case, options, read):
    name, kind = named(case)
    path, theirs = os.path.join(options.folder, case + ".gguf"), None
    started = time.perf_counter()
    try:
        write(name, kind, path)
        took, size = time.perf_counter() - started, os.path.getsize(path) / 1e9
        started = time.perf_counter()
        with gomlx.load(path, device=options.device, gpu_layers=options.gpu_layers, fits="ignore") as model:
            model.generate([1, 2, 3], max_tokens=1, temperature=0).read()
            print(f"{case:18} written {size:.2f} GB in {took:.1f} s, first token after "
                  f"{time.perf_counter() - started:.2f} s", flush=True)
            if kind == "BF16" and options.torch and models.SHAPES[name].architecture in ("llama", "qwen3"):
                from torch_decoder import Decoder
                theirs = Decoder(models.SHAPES[name])
            prefills(model, case, theirs, options)
            decodes(model, case, theirs, options, read)
    finally:
        if os.path.exists(path):
            os.unlink(path)


def pairs(text):
    return [tuple(map(int, one.split("x"))) for one in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="models, such as llama8b-Q4_K_M or qwen3moe:12-Q4_0, "
                        "and probes, with commas")
    parser.add_argument("--folder", default="/dev/shm", help="where models are written, one at a time")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpu-layers", type=int, help="so many of the last layers on the GPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="after which a line's last round begins")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="do not run torch in turns")
    parser.add_argument("--no-idle", dest="idle", action="store_false", help="do not look how long the GPU was idle")
    parser.add_argument("--settings", type=pairs, default=SETTINGS, help="of decodes: DEPTHxBATCH,...")
    parser.add_argument("--prompts", type=lambda text: list(map(int, text.split(","))), default=(4096,))
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
        if "torch" in sys.modules:                  # its model is gone, and ours wants the memory
            sys.modules["torch"].cuda.empty_cache()
    return failed


if __name__ == "__main__":
    sys.exit(main())
