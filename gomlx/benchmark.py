"""bench(): how fast a loaded model reads and writes here, and what its caches, snapshots and probes cost.

Rates are medians over repeats; every repeat reads the same prompt and writes as many tokens. What is measured and how is
in the report, so that two reports can be compared.
"""
from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass

VERSION = 1
TEXT = "Write one precise sentence about local inference, and then another one that is about something else. "


@dataclass(frozen=True)
class BenchConfig:
    prompt: int = 512           # tokens read
    generate: int = 64          # tokens written, whatever they are: no stop ends a run
    depth: int = 0              # tokens in the cache before the prompt
    batch: int = 1              # sequences at once
    repeat: int = 5
    prompt_cache: bool = True
    kv_restore: bool = True
    state_bundle: bool = True
    probes: bool = True

    def __post_init__(self):
        for name, least in (("prompt", 1), ("generate", 1), ("depth", 0), ("batch", 1), ("repeat", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"bench: {name} is {getattr(self, name)}, expected {least} or more")


def bench(model, config: BenchConfig | None = None, *, progress=None, **changes) -> dict:
    """Runs the model; returns a report that is JSON as it stands.

    config, or its fields by name, say what is run; progress is called with a number from 0 to 1. prefill_tps and
    decode_tps have one entry a repeat; with batch > 1 they count the tokens of all sequences. ValueError when prompt,
    depth and generate do not fit the model's context."""
    config = BenchConfig(**{**(asdict(config) if config else {}), **changes})
    needed = config.depth + config.prompt + config.generate
    if needed > model.context_length:
        raise ValueError(f"bench: {config.depth} + {config.prompt} + {config.generate} tokens are more than the context "
                         f"of {model.context_length}")
    info = model.info
    report = {
        "version": VERSION, "model": info["architecture"], "model_path": info["path"],
        "model_info": {key: info[key] for key in ("architecture", "n_layers", "hidden_size", "vocab_size", "parameters",
                                                  "weight_types", "context_length", "activations", "kv_dtype")},
        "config": asdict(config), "threads": info["threads"], "isa": info["isa"],
        "bytes_per_token": info["weight_bytes"], "kv_bytes_per_token": info["kv_bytes_per_token"]}
    steps = [generation, *(section for name, section in SECTIONS.items() if getattr(config, name))]
    for i, step in enumerate(steps):
        report |= step(model, config)
        if progress:
            progress((i + 1) / len(steps))
    return report


# ---- reading and writing ----

def ids_of(model, count):
    ids = list(model.tokenizer.encode_prompt(TEXT))
    tail = model.tokenizer.encode(TEXT, add_special_tokens=False)
    while len(ids) < count:
        ids += tail
    return ids[:count]


def run(model, config, session=None):
    """The result of one run over the prompt, at its depth."""
    ids = ids_of(model, config.depth + config.prompt)
    stream = model.generate(ids, max_tokens=config.generate, temperature=0, ignore_eos=True, session=session)
    for _ in stream:
        pass
    return stream.result


def generation(model, config):
    prefill, decode, results = [], [], []
    base = model.session()
    if config.depth:
        list(model.generate(ids_of(model, config.depth), max_tokens=0, session=base))
    for number in range(config.repeat + 1):              # the first one warms up
        if config.batch > 1:
            stream = model.generate_batch([ids_of(model, config.prompt)] * config.batch, max_tokens=config.generate,
                                          temperature=0, ignore_eos=True)
            for _ in stream:
                pass
            done = stream.results
        else:
            session = base.fork()
            done = [run(model, config, session)]
            session.close()
        failed = [one.error for one in done if one.error is not None]
        if failed:
            raise failed[0]
        if number:
            prefill.append(sum(one.prompt_tokens - one.cached_tokens for one in done)
                           / max(one.prefill_seconds for one in done))
            if config.generate > 1:
                decode.append(sum(one.generated_tokens - 1 for one in done) / max(one.decode_seconds for one in done))
            results = done
    base.close()
    first = results[0]
    checks = [{"name": "non_empty_output", "pass": bool(first.text)},
              {"name": "generated_tokens", "pass": all(one.generated_tokens == config.generate for one in results)}]
    return {"prefill_tps": prefill, "decode_tps": decode, "prefill_tps_median": statistics.median(prefill),
            "decode_tps_median": statistics.median(decode) if decode else None,
            "peak_memory_bytes": first.peak_memory_bytes, "active_memory_bytes": first.active_memory_bytes,
            "quality": checks}


# ---- caches, snapshots, probes ----

def timed(call):
    start = time.perf_counter()
    value = call()
    return value, time.perf_counter() - start


def attempt(section):
    """{name: {...}} of a section; one that fails carries its error, and the others still run."""
    def measured(model, config):
        name = section.__name__
        try:
            return {name: {"attempted": True, **section(model, config)}}
        except Exception as error:          # whatever it is, it belongs into the report
            return {name: {"attempted": True, "error": f"{type(error).__name__}: {error}"}}
    return measured


@attempt
def prompt_cache(model, config):
    ids = ids_of(model, config.depth + config.prompt)
    cold, cold_seconds = timed(lambda: model.warm_prompt_cache(ids))
    stream = model.generate([*ids, ids[0]], max_tokens=1, temperature=0)
    _, warm_seconds = timed(lambda: list(stream))
    hit = stream.result.cached_tokens
    model.prompt_cache.clear()
    return {"warm_seconds": cold_seconds, "hit_seconds": warm_seconds, "hits": int(hit > 0), "misses": int(hit == 0),
            "hit_rate": float(hit > 0), "hit_tokens": hit, "miss_tokens": cold + 1 - hit}


@attempt
def kv_restore(model, config):
    session = model.session()
    run(model, config, session)
    saved, save_seconds = timed(session.save)
    again, restore_seconds = timed(lambda: model.restore_session(saved))
    same = again.length == session.length
    session.close()
    again.close()
    return {"save_seconds": save_seconds, "restore_seconds": restore_seconds, "bytes": len(saved), "same_length": same}


@attempt
def state_bundle(model, config):
    import os
    import tempfile

    from gomlx.state_bundle import StateBundle
    session = model.session()
    run(model, config, session)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bundle.json")
        _, save_seconds = timed(lambda: model.bundle(session).save(path))
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
        again, load_seconds = timed(lambda: StateBundle.load(path).restore(model))
    session.close()
    again.close()
    return {"save_seconds": save_seconds, "load_seconds": load_seconds, "bytes": size}


@attempt
def probes(model, config):
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
