"""Measures the draw of a token from given logits, ours beside llama.cpp's chain of samplers, and prints one table.

    pip install . numpy llama-cpp-python==0.3.36
    python benchmarks/sampling.py                               # two minutes
    python benchmarks/sampling.py --only all,greedy --vocab 32000 --threads 1 --repeat 25

Both run the same samplers with the same options in the same order on the same logits: those of a model have a few
likely tokens before a long tail, flat ones differ by hundredths. In each round each library makes --draws draws, one
after the other; cells are medians of the rounds in milliseconds a draw, with the least and the greatest. "ratio" is
theirs over ours in the same round, the median of the rounds: above 1 we are faster.

Ours is gomlx.sample(logits, n=draws): all that a generation does for a draw. Theirs is llama_sampler_apply over an
array of candidates alone: llama.cpp fills that array for every token, too, which is not in the time here. It uses one
thread. Where it is not installed its columns are empty. "greedy" is the floor: it reads the logits once."""
import argparse
import ctypes
import json
import statistics
import sys
import time

import numpy as np

import gomlx
import gomlx.core as mx
from gomlx import _gomlx
from gomlx._generation.sampling import ORDERS

CASES = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 40},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "all": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "typical_p": {"temperature": 0.8, "typical_p": 0.9},
    "top_n_sigma": {"temperature": 0.8, "top_n_sigma": 1.0},
    "xtc": {"temperature": 0.8, "xtc_probability": 1.0, "xtc_threshold": 0.05},
    "mirostat": {"temperature": 0.8, "mirostat_tau": 5.0, "mirostat_eta": 0.1},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.1, "presence_penalty": 0.2, "penalty_last_n": 64},
}
HISTORY = 64                 # ids before, for penalties


def logits_of(vocab):
    """{name: float32 [vocab]}"""
    random = np.random.default_rng(0)
    model = random.standard_normal(vocab) * 2.5
    model[random.integers(0, vocab, 12)] += np.linspace(6, 14, 12)
    return {"model": model.astype(np.float32), "flat": (random.standard_normal(vocab) * 0.01).astype(np.float32)}


class Ours:
    def __init__(self, logits, options, order, ids):
        self.logits, self.options = mx.array(logits), options | {"samplers": order}
        self.ids = ids if "repetition_penalty" in options else ()
        mx.eval(self.logits)

    def draw(self, n):
        start = time.perf_counter()
        gomlx.sample(self.logits, self.ids, n=n, seed=1, **self.options)
        return (time.perf_counter() - start) / n


class Peer:
    """llama.cpp's chain, through llama-cpp-python's low-level interface."""

    def __init__(self, library, logits, options, order, ids):
        self.library, self.vocab = library, len(logits)
        kind = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        assert kind.itemsize == ctypes.sizeof(library.llama_token_data)
        self.fresh = np.zeros(self.vocab, kind)
        self.fresh["id"], self.fresh["logit"] = np.arange(self.vocab), logits
        self.work = self.fresh.copy()
        self.chain = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
        for one in self.samplers(options, ORDERS[order]):
            library.llama_sampler_chain_add(self.chain, one)
        for token in ids:
            library.llama_sampler_accept(self.chain, token)

    def samplers(self, options, order):
        made, library = options, self.library
        if not options:
            yield library.llama_sampler_init_greedy()
            return
        for name in order:
            if name == "penalties" and "repetition_penalty" in made:
                yield library.llama_sampler_init_penalties(made["penalty_last_n"], made["repetition_penalty"], 0.0,
                                                           made["presence_penalty"])
            elif name == "temperature":
                yield library.llama_sampler_init_temp(made["temperature"])
            elif name == "top_k" and name in made:
                yield library.llama_sampler_init_top_k(made[name])
            elif name == "top_p" and name in made:
                yield library.llama_sampler_init_top_p(made[name], 1)
            elif name == "min_p" and name in made:
                yield library.llama_sampler_init_min_p(made[name], 1)
            elif name == "typical_p" and name in made:
                yield library.llama_sampler_init_typical(made[name], 1)
            elif name == "top_n_sigma" and name in made:
                yield library.llama_sampler_init_top_n_sigma(made[name])
            elif name == "xtc" and "xtc_probability" in made:
                yield library.llama_sampler_init_xtc(made["xtc_probability"], made["xtc_threshold"], 1, 1)
            elif name == "mirostat" and "mirostat_tau" in made:
                yield library.llama_sampler_init_mirostat_v2(1, made["mirostat_tau"], made["mirostat_eta"])
                return                   # it draws itself
        yield library.llama_sampler_init_dist(1)

    def draw(self, n):
        library, spent = self.library, 0.0
        data = ctypes.cast(self.work.ctypes.data, library.llama_token_data_p)
        for _ in range(n):
            self.work[:] = self.fresh
            array = library.llama_token_data_array(data, self.vocab, -1, False)
            start = time.perf_counter()
            library.llama_sampler_apply(self.chain, ctypes.byref(array))
            spent += time.perf_counter() - start
        return spent / n

    def close(self):
        self.library.llama_sampler_free(self.chain)


def peer_library():
    try:
        import llama_cpp
    except ImportError:
        return None
    return llama_cpp


def measured(one, draws, repeat):
    """{library: [seconds a draw]} of the rounds."""
    for library in one.values():
        library.draw(draws)
    times = {name: [] for name in one}
    for _ in range(repeat):
        for name, library in one.items():
            times[name].append(library.draw(draws))
    return times


def cell(values):
    return f"{1e3 * statistics.median(values):.3f} [{1e3 * min(values):.3f}..{1e3 * max(values):.3f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=151_936, help="logits (default: Qwen3's 151936)")
    parser.add_argument("--order", choices=list(ORDERS), default="transformers",
                        help="of the samplers, in both libraries")
    parser.add_argument("--only", default=",".join(CASES), help="cases, comma-separated")
    parser.add_argument("--draws", type=int, default=40, help="in a round")
    parser.add_argument("--repeat", type=int, default=9, help="rounds")
    parser.add_argument("--threads", type=int, help="of ours")
    parser.add_argument("--json", action="store_true", help="one object for machines")
    args = parser.parse_args()
    wanted = args.only.split(",")
    if unknown := [name for name in wanted if name not in CASES]:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    if args.threads:
        _gomlx.set_threads(args.threads)
    llama, rows = peer_library(), []
    ids = np.random.default_rng(1).integers(0, args.vocab, HISTORY).tolist()
    for kind, logits in logits_of(args.vocab).items():
        for name in wanted:
            one = {"gomlx": Ours(logits, CASES[name], args.order, ids)}
            if llama:
                one["llama.cpp"] = Peer(llama, logits, CASES[name], args.order, ids)
            times = measured(one, args.draws, args.repeat)
            if llama:
                one["llama.cpp"].close()
            rows.append({"logits": kind, "case": name, "seconds": times})
    versions = {"gomlx": gomlx.__version__, "llama-cpp-python": getattr(llama, "__version__", None)}
    if args.json:
        print(json.dumps({"vocab": args.vocab, "order": args.order, "threads": _gomlx.default_threads()
                          if not args.threads else args.threads, "versions": versions, "rows": rows}))
        return
    print(f"{args.vocab} logits, order {args.order}, ms a draw; "
          + ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items()))
    print(f"{'logits':8}{'case':13}{'gomlx':>24}{'llama.cpp':>26}{'ratio':>9}")
    for row in rows:
        ours, theirs = row["seconds"]["gomlx"], row["seconds"].get("llama.cpp")
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True)) if theirs else None
        print(f"{row['logits']:8}{row['case']:13}{cell(ours):>24}{cell(theirs) if theirs else '':>26}"
              f"{f'{ratio:.1f}' if ratio else '':>9}")


if __name__ == "__main__":
    sys.exit(main())
