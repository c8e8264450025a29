"""Measures decoding with adapters against decoding without, and prints one table.

    python benchmarks/models.py llama1b llama1b-bf16.gguf             # and llama-quantize, to Q4_K_M
    python benchmarks/adapters.py llama1b-Q4_K_M.gguf --threads 2 --rank 16

Adapters have random terms on all seven projections of every layer. All cases of as many members decode pass by pass in
turn, so that what else the machine does hits them alike. "ms" is the median of a case's passes with [least..greatest
tenth], "x" the median of the ratios to the pass without adapters of the same turn."""
import argparse
import statistics
import time

import numpy as np

import gomlx.core as mx
from gomlx import _gomlx

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MEMBERS = {1: [0, 1], 16: [0, 1, 5]}    # members of a pass, and how many adapters they have in turn; 0: none


def random_terms(model, rank, dtype, seed):
    rng, made = np.random.default_rng(seed), []
    for name in model.weight_names():
        layer = name.removesuffix(".weight")
        if layer.endswith(PROJECTIONS):
            rows, columns = model.weight(name).shape
            a = rng.standard_normal((rank, columns), np.float32) * columns ** -0.5
            b = rng.standard_normal((rows, rank), np.float32) * 0.05
            made.append((layer, mx.array(a).astype(dtype), mx.array(b).astype(dtype), 1.0))
    return made


def start(model, members, adapters, tokens, depth):
    """A decoder whose members have read their prompts and drawn a token."""
    decoder = model.new_decoder()
    for i in range(members):
        prompt = [(7919 * j + 31 * i + 1) % 256 for j in range(depth)]
        shares = [(f"adapter {i % adapters}", 1.0)] if adapters else []
        decoder.add(_gomlx.stream(model.new_session(), None, prompt, seed=i, max_tokens=tokens, adapters=shares))
    for _ in range(2 * members):            # the first pass that decodes records a plan
        decoder.step()
    return decoder


def in_turn(model, members, kinds, options):
    """{adapters: the seconds of each pass}"""
    decoders = {kind: start(model, members, kind, options.passes + 8, options.depth) for kind in kinds}
    found = {kind: [] for kind in kinds}
    for _ in range(options.passes):
        for kind, decoder in decoders.items():
            began = time.perf_counter()
            for _ in range(members):
                decoder.step()
            found[kind].append(time.perf_counter() - began)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"), help="of the terms")
    parser.add_argument("--passes", type=int, default=60, help="of a case")
    parser.add_argument("--depth", type=int, default=16, help="tokens of each prompt")
    options = parser.parse_args()
    model = _gomlx.load_model(options.model, threads=options.threads)
    for i in range(max(max(kinds) for kinds in MEMBERS.values())):
        model.load_adapter(f"adapter {i}", random_terms(model, options.rank, getattr(mx, options.dtype), i))
    start(model, 1, 0, 8, options.depth)                # packs the matrices
    print(f"{options.model}, {_gomlx.isa()}, rank {options.rank} in {options.dtype}, "
          f"{model.adapters()[0]['bytes'] / 1e6:.1f} MB an adapter")
    print("| members | adapters | ms | x |\n|---|---|---|---|")
    for members, kinds in MEMBERS.items():
        found = in_turn(model, members, kinds, options)
        for kind, seconds in found.items():
            tenths = statistics.quantiles(seconds, n=10)
            ratio = statistics.median(bare / own for bare, own in zip(found[0], seconds, strict=True))
            print(f"| {members} | {kind} | {statistics.median(seconds) * 1e3:.2f} [{tenths[0] * 1e3:.2f}.."
                  f"{tenths[-1] * 1e3:.2f}] | {ratio:.3f} |")


if __name__ == "__main__":
    main()
