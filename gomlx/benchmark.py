"""bench(): how fast a loaded model reads and writes here, and what its caches, snapshots and probes cost.

Every repeat reads a prompt of so many tokens after `depth` tokens that are in the cache already, and then, from those
`depth` tokens again, writes so many: what llama-bench calls pp and tg at a depth, so that both can be compared. What
else is measured, and how, is in the report.
"""
from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from gomlx import arguments
from gomlx.peers import Peer
from gomlx.prompt_cache import PromptCache

VERSION = 2
TEXT = "Write one precise sentence about local inference, and then another one that is about something else. "


@dataclass(frozen=True)
class BenchConfig:
    prompt: int = 512           # tokens read
    generate: int = 64          # tokens written, whatever they are: no stop ends a run
    depth: int | Sequence[int] = 0      # tokens in the cache before; one or several, each is measured
    batch: int | Sequence[int] = 1      # sequences at once; one or several
    repeat: int = 5
    profile: bool = False       # what the engine does, and what counting it costs: gomlx.profiling
    prompt_cache: bool = True
    kv_restore: bool = True
    state_bundle: bool = True
    probes: bool = True

    def __post_init__(self):
        for name, least in (("prompt", 1), ("generate", 1), ("depth", 0), ("batch", 1), ("repeat", 1)):
            value = getattr(self, name)
            listed = name in ("depth", "batch") and not hasattr(value, "__index__")
            given = arguments.several(name, value, "an integer or several") if listed else [value]
            if not given:
                raise ValueError(f"{name} is {value!r}, expected one or several integers")
            for one in given:
                arguments.whole(name, one, least)
        for name in ("profile", "prompt_cache", "kv_restore", "state_bundle", "probes"):
            arguments.flag(name, getattr(self, name))


def bench(model, config: BenchConfig | None = None, *, peers: dict[str, str] | None = None, progress=None,
          **changes) -> dict:
    """Runs the model; returns a report that is JSON as it stands.

    config, or its fields by name, say what is run; progress is called with a number from 0 to 1. prefill_tps and
    decode_tps are tokens per second of all sequences of the batch, one entry a repeat. Of several depths or batches
    report["runs"] has each, and the report's own numbers are those of the first; the rest of it is measured at that
    depth. bytes_per_token are those of the weights that one more token of one sequence reads.

    peers       name -> program with its options, such as "llama-bench -fa 1": run in turns with ours on the model's
                .gguf file, for batches of one; it takes llama-bench's options and prints its JSON. Each run then has
                peers[name] with prefill_tps, decode_tps, and our medians over theirs, prefill_ratio and decode_ratio;
                None where the program cannot measure that

    ValueError when prompt, depth and generate do not fit the model's context."""
    info = model.info
    if "backend" in info:
        raise NotImplementedError(f"bench: it measures this engine, and the model's backend is {info['backend']}: load it "
                                  "with backend='native'")
    config = BenchConfig(**{**(asdict(config) if config else {}), **changes})
    peers = arguments.mapping("peers", peers) if peers is not None else {}
    if progress is not None:
        arguments.function("progress", progress)
    deepest = max(several(config.depth))
    if deepest + config.prompt + config.generate > model.context_length:
        raise ValueError(f"depth {deepest} + prompt {config.prompt} + generate {config.generate} tokens are more than "
                         f"the context of {model.context_length}")
    opponents = [Peer(name, command, info["path"], info["threads"]) for name, command in peers.items()]
    report = {
        "version": VERSION, "model": info["architecture"], "model_path": info["path"],
        "model_info": {key: info[key] for key in ("architecture", "n_layers", "hidden_size", "vocab_size", "parameters",
                                                  "weight_types", "context_length", "activations", "kv_dtype")},
        "config": asdict(config), "threads": info["threads"], "isa": info["isa"],
        "bytes_per_token": bytes_per_token(model), "kv_bytes_per_token": info["kv_bytes_per_token"]}
    runs = [(depth, batch) for depth in several(config.depth) for batch in several(config.batch)]
    chosen = [section for name, section in SECTIONS.items() if getattr(config, name)]
    done, steps = 0, len(runs) + len(chosen)

    def step():
        nonlocal done
        done += 1
        if progress is not None:
            progress(done / steps)

    report["runs"] = []
    for depth, batch in runs:
        report["runs"].append(generation(model, config, depth, batch, opponents if batch == 1 else []))
        step()
    report |= report["runs"][0]
    for section in chosen:
        report |= section(model, config, runs[0][0])
        step()
    return report


def several(value):
    return [value] if isinstance(value, int) else list(value)


# ---- reading and writing ----

def ids_of(model, count):
    ids = list(model.tokenizer.encode_prompt(TEXT))
    tail = model.tokenizer.bare(TEXT)
    while len(ids) < count:
        ids += tail
    return ids[:count]


def bytes_per_token(model):
    profile = model.generate(ids_of(model, 1), max_tokens=2, temperature=0, ignore_eos=True, profile=True,
                             session=model.session()).read().profile
    return sum(profile["decode"]["weight_bytes"].values())


def together(model, base, ids, batch, max_tokens, profile=False):
    """(seconds, results, profile) of so many sequences that go on from base at once."""
    sessions = [base.fork() for _ in range(batch)]
    start = time.perf_counter()
    stream = model.generate_batch([ids] * batch, options=[{"session": one} for one in sessions], batch_size=batch,
                                  max_tokens=max_tokens, temperature=0, ignore_eos=True, profile=profile)
    results = stream.read()
    seconds = time.perf_counter() - start
    for session in sessions:
        session.close()
    for one in results:
        if one.error is not None:
            raise one.error
    return seconds, results, stream.profile


def once(model, config, base, depth, batch, profile=False):
    """Seconds of reading and of writing, the results of the second, and a profile of both."""
    read, _, reading = together(model, base, ids_of(model, depth + config.prompt), batch, 0, profile)
    write, results, writing = together(model, base, ids_of(model, depth + 1), batch, config.generate, profile)
    both = {"prefill": reading["prefill"], "decode": writing["decode"]} if profile else None
    return read, write, results, both


def generation(model, config, depth, batch, opponents):
    times, watched, against = [], [], []
    base = model.session()
    if depth:
        model.generate(ids_of(model, depth), max_tokens=0, session=base).read()
    for number in range(config.repeat + 1):              # the first one warms up
        kept = slice(None if number else 0)
        plain = once(model, config, base, depth, batch)
        counted = once(model, config, base, depth, batch, profile=True) if config.profile else None
        theirs = [one.run(config.prompt, config.generate, depth) for one in opponents]
        if number:
            times.append(plain)
            watched.append(counted)
            against.append(theirs)
    base.close()
    results = times[-1][2]
    first = results[0]
    checks = [{"name": "non_empty_output", "pass": bool(first.text)},
              {"name": "generated_tokens", "pass": all(one.generated_tokens == config.generate for one in results)}]
    prefill = [batch * config.prompt / read for read, *_ in times]
    decode = [batch * config.generate / write for _, write, *_ in times]
    made = {"depth": depth, "batch": batch, "prefill_tps": prefill, "decode_tps": decode,
            "prefill_tps_median": statistics.median(prefill), "decode_tps_median": statistics.median(decode),
            "peak_memory_bytes": first.peak_memory_bytes, "active_memory_bytes": first.active_memory_bytes,
            "quality": checks}
    if opponents:
        made["peers"] = {one.name: compared(made, rows)
                         for one, rows in zip(opponents, zip(*against, strict=True), strict=True)}
    if config.profile:
        plain, counted = (statistics.median(read + write for read, write, *_ in rows) for rows in (times, watched))
        made["profile"] = watched[-1][3] | {"overhead_ratio": counted / plain - 1}
    return made


def compared(ours, rows):
    made = {}
    for name, values in zip(("prefill", "decode"), zip(*rows, strict=True), strict=True):
        known = None not in values
        made |= {f"{name}_tps": list(values) if known else None,
                 f"{name}_ratio": ours[f"{name}_tps_median"] / statistics.median(values) if known else None}
    return made


def run(model, config, depth, session=None):
    """The result of one run over the prompt, at its depth."""
    ids = ids_of(model, depth + config.prompt)
    stream = model.generate(ids, max_tokens=config.generate, temperature=0, ignore_eos=True, session=session)
    return stream.read()


# ---- caches, snapshots, probes ----

def timed(call):
    start = time.perf_counter()
    value = call()
    return value, time.perf_counter() - start


def attempt(section):
    """{name: {...}} of a section; one that fails carries its error, and the others still run."""
    def measured(model, config, depth):
        name = section.__name__
        try:
            return {name: {"attempted": True, **section(model, config, depth)}}
        except Exception as error:          # whatever it is, it belongs into the report
            return {name: {"attempted": True, "error": f"{type(error).__name__}: {error}"}}
    return measured


@attempt
def prompt_cache(model, config, depth):
    ids = ids_of(model, depth + config.prompt)
    own, model.prompt_cache = model.prompt_cache, PromptCache()     # what the caller warmed stays as it is
    try:
        cold, cold_seconds = timed(lambda: model.warm_prompt_cache(ids))
        stream = model.generate([*ids, ids[0]], max_tokens=1, temperature=0)
        _, warm_seconds = timed(lambda: list(stream))
    finally:
        model.prompt_cache.clear()
        model.prompt_cache = own
    hit = stream.result.cached_tokens
    return {"warm_seconds": cold_seconds, "hit_seconds": warm_seconds, "hits": int(hit > 0), "misses": int(hit == 0),
            "hit_rate": float(hit > 0), "hit_tokens": hit, "miss_tokens": cold + 1 - hit}


@attempt
def kv_restore(model, config, depth):
    session = model.session()
    run(model, config, depth, session)
    saved, save_seconds = timed(session.save)
    again, restore_seconds = timed(lambda: model.restore_session(saved))
    same = again.length == session.length
    session.close()
    again.close()
    return {"save_seconds": save_seconds, "restore_seconds": restore_seconds, "bytes": len(saved), "same_length": same}


@attempt
def state_bundle(model, config, depth):
    import os
    import tempfile

    from gomlx.state_bundle import StateBundle
    session = model.session()
    run(model, config, depth, session)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bundle.json")
        _, save_seconds = timed(lambda: model.bundle(session).save(path))
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
        again, load_seconds = timed(lambda: StateBundle.load(path).restore(model))
    session.close()
    again.close()
    return {"save_seconds": save_seconds, "load_seconds": load_seconds, "bytes": size}


@attempt
def probes(model, config, depth):
    counts = {}

    def sink(event):
        counts[event.kind] = counts.get(event.kind, 0) + 1

    ids = ids_of(model, config.prompt)
    plain = model.generate(ids, max_tokens=config.generate, temperature=0, ignore_eos=True)
    _, base = timed(lambda: list(plain))
    watched = model.generate(ids, max_tokens=config.generate, temperature=0, ignore_eos=True, probe=sink)
    _, seconds = timed(lambda: list(watched))
    return {"event_count": sum(counts.values()), "kind_counts": counts, "seconds": seconds,
            "overhead_ratio": (seconds - base) / base}


SECTIONS = {"prompt_cache": prompt_cache, "kv_restore": kv_restore, "state_bundle": state_bundle, "probes": probes}
