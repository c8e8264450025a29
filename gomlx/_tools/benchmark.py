"""bench(): how fast a loaded model reads and writes here, and what its caches, snapshots and probes cost.

Every repeat reads a prompt of `prompt` tokens after `depth` tokens that are in the cache already, and then, from those
`depth` tokens again, writes `generate` tokens: what llama-bench calls pp and tg at a depth, so that both can be
compared. What else is measured, and how, is in the report. compare_reports() sets two of them side by side.

The model's prompt cache is left alone: for the time of a bench() the model has another one.
"""
from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import gomlx
from gomlx._base import arguments, bars
from gomlx._base.bars import Progress
from gomlx._generation.prompt_cache import PromptCache
from gomlx._generation.sampling import Sampling
from gomlx._tools.external_bench import Peer

if TYPE_CHECKING:
    from gomlx._generation.model import Model

VERSION = 2
CONVERSATIONS, TURNS = 4, 3      # of the comparison of prompt caches' settings
TEXT = "Write one precise sentence about local inference, and then another one that is about something else. "


@dataclass(frozen=True)
class BenchConfig:
    prompt: int | str = 512     # tokens of a built-in text that are prefilled; or a text
    generate: int = 64          # tokens decoded; no stop ends a run early
    sampling: str | Mapping[str, Any] = "greedy"      # or "model": its own; or fields of Sampling over those
    depth: int | Sequence[int] = 0      # tokens in the cache before; one or several, measured one by one
    batch: int | Sequence[int] = 1      # sequences at once; one or several
    repeat: int = 5
    profile: bool = False       # what the engine does, and the cost of counting it: gomlx.profiling
    prompt_cache: bool = True
    kv_restore: bool = True
    state_bundle: bool = True
    probes: bool = True
    # name -> PromptCache's arguments, compared with each other
    cache_settings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.prompt, str):
            if not self.prompt:
                raise ValueError("prompt is an empty text")
        else:
            arguments.integer("prompt", self.prompt, 1)
        if not hasattr(self.sampling, "keys"):
            arguments.one_of("sampling", self.sampling, ("greedy", "model"))
        for name, least in (("generate", 1), ("depth", 0), ("batch", 1), ("repeat", 1)):
            value = getattr(self, name)
            listed = name in ("depth", "batch") and not hasattr(value, "__index__")
            given = arguments.sequence(name, value, "an integer or several") if listed else [value]
            if not given:
                raise ValueError(f"{name} is {value!r}, expected one or several integers")
            for one in given:
                arguments.integer(name, one, least)
        for name in ("profile", "prompt_cache", "kv_restore", "state_bundle", "probes"):
            arguments.flag(name, getattr(self, name))
        for name, settings in arguments.mapping("cache_settings", self.cache_settings).items():
            PromptCache(**arguments.mapping(f"cache_settings: {name}", settings))


def bench(model: Model, config: BenchConfig | None = None, *, peers: Mapping[str, Any] | None = None,
          progress: Progress = True, **changes: Any) -> dict[str, Any]:
    """Runs the model; returns a report that is ready for JSON.

    config, or its fields by name, say what is run. prefill_tps and decode_tps are tokens per second of all sequences of
    the batch, one entry a repeat. Of several depths or batches report["runs"] has each, and the report's own numbers
    are those of the first; the rest of it is measured at that depth. bytes_per_token are those of the weights that one
    more token of one sequence reads.

    progress    True shows a bar on a terminal or in a notebook, False none; a callable is called with numbers from 0 to
    1

    cache_settings of the config, {"few": {"entries": 1}, "short": {"min_tokens": 64}, ...}, gives
    report["cache_settings"]: the prompts of four conversations that begin alike and take turns, with a prompt cache of
    each of the settings: the seconds until the first tokens of all of them, one entry a repeat, the tokens that were
    not computed again (hit_tokens) and those that were, and what the cache holds at the end. The longest prompt is as
    long as that of a run, and a cache takes none shorter than its min_tokens, 64 unless it is told

    peers       name -> a loaded model, of other weights or with other settings (kv_dtype, threads, ...); or a program
                with its options, such as "llama-bench -fa 1", for batches of one, on the model's .gguf file: it takes
                llama-bench's options and prints its JSON, and is always greedy. They run in turns with ours. Each run
                then has peers[name] with prefill_tps, decode_tps, and our medians over theirs, prefill_ratio and
                decode_ratio; None where the program cannot measure that

    ValueError when prompt, depth and generate do not fit a model's context."""
    info = model.info
    if "backend" in info:
        raise NotImplementedError(f"bench: it measures this engine, and the model's backend is {info['backend']}: load "
                                  f"it "
                                  "with backend='native'")
    config = BenchConfig(**{**(asdict(config) if config else {}), **changes})
    peers = arguments.mapping("peers", peers) if peers is not None else {}
    bars.check(progress)
    opponents = [opponent(name, peer, info) for name, peer in peers.items()]
    with contextlib.ExitStack() as stack:
        for one in [model, *(other.model for other in opponents if isinstance(other, Other))]:
            stack.enter_context(own_prompt_cache(one))
            check_room(one, config)
        report = stack.enter_context(bars.reporting(progress, "measuring"))
        return measured(model, config, opponents, report)


def measured(model, config, opponents, progress):
    info = model.info
    report = {
        "version": VERSION, "model": info["architecture"], "model_path": info["path"],
        "model_info": {key: info[key] for key in ("architecture", "n_layers", "hidden_size", "vocab_size", "parameters",
                                                  "weight_types", "context_length", "activations", "kv_dtype")},
        "config": asdict(config), "sampling": described(model, config), "threads": info["threads"], "isa": info["isa"],
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
        these = [one for one in opponents if batch == 1 or isinstance(one, Other)]
        report["runs"].append(generation(model, config, depth, batch, these))
        step()
    report |= report["runs"][0]
    for section in chosen:
        report |= section(model, config, runs[0][0])
        step()
    return report


def several(value):
    return [value] if isinstance(value, int) else list(value)


@contextlib.contextmanager
def own_prompt_cache(model):
    """Gives the model another prompt cache for the time of a bench(): its own is neither read nor changed."""
    kept, model.prompt_cache = model.prompt_cache, PromptCache()
    try:
        yield
    finally:
        model.prompt_cache.clear()
        model.prompt_cache = kept


def check_room(model, config):
    deepest = max(several(config.depth))
    prompt = len(prompt_ids(model, config, deepest)) - deepest
    if deepest + prompt + config.generate > model.context_length:
        raise ValueError(f"depth {deepest} + prompt {prompt} + generate {config.generate} tokens are more than the "
                         f"context of {model.context_length}")


def drawing(config):
    """The options of generate() for it."""
    if config.sampling == "greedy":
        return {"temperature": 0}
    return {"seed": 0} | ({} if config.sampling == "model" else dict(config.sampling))


def described(model, config):
    """The fields of Sampling that are not at their defaults, as values for JSON."""
    if config.sampling == "greedy":
        return {}
    made = model.sampling if config.sampling == "model" else model.sampling.replace(**config.sampling)
    values = {one.name: getattr(made, one.name) for one in fields(Sampling)}
    values = {name: value for name, value in values.items() if value != getattr(Sampling(), name)}
    return {name: {str(key): one for key, one in value.items()} if isinstance(value, Mapping) else
            list(value) if isinstance(value, tuple) else value for name, value in values.items()}


# ---- prefill and decode ----

def ids_of(model, count):
    ids = list(model.tokenizer.encode_prompt(TEXT))
    tail = model.tokenizer.bare(TEXT)
    while len(ids) < count:
        ids += tail
    return ids[:count]


def prompt_ids(model, config, depth):
    """The `depth` tokens of the cache, and those of the prompt after them."""
    if not isinstance(config.prompt, str):
        return ids_of(model, depth + config.prompt)
    encode = model.tokenizer.bare if depth else model.tokenizer.encode_prompt
    return [*ids_of(model, depth), *encode(config.prompt)]


def bytes_per_token(model):
    profile = model.generate(ids_of(model, 1), max_tokens=2, temperature=0, ignore_eos=True, profile=True,
                             session=model.session()).read().profile
    return sum(profile["decode"]["weight_bytes"].values())


def together(model, base, ids, batch, max_tokens, options, profile=False):
    """(seconds, results, profile) of `count` sequences that continue from base at once."""
    sessions = [base.fork() for _ in range(batch)]
    start = time.perf_counter()
    stream = model.generate_batch([ids] * batch, options=[{"session": one} for one in sessions], batch_size=batch,
                                  max_tokens=max_tokens, ignore_eos=True, profile=profile, **options)
    results = stream.read(progress=False)
    seconds = time.perf_counter() - start
    for session in sessions:
        session.close()
    for one in results:
        if one.error is not None:
            raise one.error
    return seconds, results, stream.profile


def once(model, config, base, depth, batch, profile=False):
    """Seconds of prefill and of decode, the results of decode, and a profile of both."""
    options = drawing(config)
    read, _, reading = together(model, base, prompt_ids(model, config, depth), batch, 0, options, profile)
    write, results, writing = together(model, base, ids_of(model, depth + 1), batch, config.generate, options, profile)
    both = {"prefill": reading["prefill"], "decode": writing["decode"]} if profile else None
    return read, write, results, both


def begun(model, depth):
    """A session with n tokens."""
    base = model.session()
    if depth:
        model.generate(ids_of(model, depth), max_tokens=0, session=base).read()
    return base


class Other:
    """Another model that runs in turns with ours."""

    def __init__(self, name, model):
        self.name, self.model = name, model

    def run(self, config, depth, batch):
        """Tokens/s of reading and of writing, as Peer.run gives them."""
        base = begun(self.model, depth)
        read, write, *_ = once(self.model, config, base, depth, batch)
        base.close()
        prompt = len(prompt_ids(self.model, config, depth)) - depth
        return batch * prompt / read, batch * config.generate / write


def opponent(name, peer, info):
    if isinstance(peer, str):
        return Peer(name, peer, info["path"], info["threads"])
    if not hasattr(peer, "generate_batch") or "backend" in peer.info:
        raise arguments.WrongType(f"peers: {name} is {arguments.shown(peer)}, expected a program or a model of this "
                                  f"engine")
    return Other(name, peer)


def turn(one, config, prompt, depth, batch):
    return one.run(config, depth, batch) if isinstance(one, Other) else one.run(prompt, config.generate, depth)


def generation(model, config, depth, batch, opponents):
    times, watched, against = [], [], []
    base, prompt = begun(model, depth), len(prompt_ids(model, config, depth)) - depth
    for number in range(config.repeat + 1):              # the first one warms up
        slice(None if number else 0)
        plain = once(model, config, base, depth, batch)
        counted = once(model, config, base, depth, batch, profile=True) if config.profile else None
        theirs = [turn(one, config, prompt, depth, batch) for one in opponents]
        if number:
            times.append(plain)
            watched.append(counted)
            against.append(theirs)
    base.close()
    results = times[-1][2]
    first = results[0]
    checks = [{"name": "non_empty_output", "pass": bool(first.text)},
              {"name": "generated_tokens", "pass": all(one.generated_tokens == config.generate for one in results)}]
    prefill = [batch * prompt / read for read, *_ in times]
    decode = [batch * config.generate / write for _, write, *_ in times]
    made = {"depth": depth, "batch": batch, "prompt_tokens": prompt, "prefill_tps": prefill, "decode_tps": decode,
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
    ids = prompt_ids(model, config, depth)
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
        except Exception as error:          # any error is part of the report
            return {name: {"attempted": True, "error": f"{type(error).__name__}: {error}"}}
    return measured


@attempt
def prompt_cache(model, config, depth):
    ids = prompt_ids(model, config, depth)
    cold, cold_seconds = timed(lambda: model.warm_prompt_cache(ids))
    stream = model.generate([*ids, ids[0]], max_tokens=1, temperature=0)
    _, warm_seconds = timed(lambda: list(stream))
    hit = stream.result.cached_tokens
    model.prompt_cache.clear()           # the cache that bench() has set
    return {"warm_seconds": cold_seconds, "hit_seconds": warm_seconds, "hits": int(hit > 0), "misses": int(hit == 0),
            "hit_rate": float(hit > 0), "hit_tokens": hit, "miss_tokens": cold + 1 - hit}


def conversations(model, config, depth):
    """Prompts as a server sees them: conversations that begin alike take turns, and each of their prompts is the one
    before it with more after it. The longest are as long as the prompt of a run."""
    ids = prompt_ids(model, config, depth)
    piece = max(1, len(ids) // (TURNS + 1))
    apart = list(dict.fromkeys(ids))
    tails = [[apart[i % len(apart)], *ids[1:]] for i in range(CONVERSATIONS)]
    return [[*ids[:piece], *tail[:turn * piece]] for turn in range(1, TURNS + 1) for tail in tails]


@attempt
def cache_settings(model, config, depth):
    prompts, kept, found = conversations(model, config, depth), model.prompt_cache, {}
    try:
        for _ in range(config.repeat):
            for name, settings in config.cache_settings.items():
                model.prompt_cache = cache = PromptCache(**settings)
                results = [model.generate(ids, max_tokens=1, temperature=0).read() for ids in prompts]
                stats, cached = cache.stats, sum(one.cached_tokens for one in results)
                cache.clear()
                one = found.setdefault(name, {"seconds": []})
                one["seconds"].append(sum(result.prefill_seconds for result in results))
                one |= {"hit_tokens": cached, "miss_tokens": sum(map(len, prompts)) - cached, "entries": stats.entries,
                        "bytes": stats.bytes}
    finally:
        model.prompt_cache = kept
    for one in found.values():
        one["seconds_median"] = statistics.median(one["seconds"])
    return {"prompts": len(prompts), "settings": found}


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

    session = model.session()
    run(model, config, depth, session)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bundle.json")
        _, save_seconds = timed(lambda: model.bundle(session).save(path))
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
        again, load_seconds = timed(lambda: gomlx.StateBundle.load(path).restore(model))
    session.close()
    again.close()
    return {"save_seconds": save_seconds, "load_seconds": load_seconds, "bytes": size}


@attempt
def probes(model, config, depth):
    counts = {}

    def sink(event):
        counts[event.kind] = counts.get(event.kind, 0) + 1

    ids, sessions = prompt_ids(model, config, 0), (model.session(), model.session())
    plain, watched = (model.generate(ids, max_tokens=config.generate, temperature=0, ignore_eos=True, session=session,
                                     **more)
                      for session, more in zip(sessions, ({}, {"probe": sink}), strict=True))
    _, base = timed(lambda: list(plain))
    _, seconds = timed(lambda: list(watched))
    for session in sessions:
        session.close()
    return {"event_count": sum(counts.values()), "kind_counts": counts, "seconds": seconds,
            "overhead_ratio": (seconds - base) / base}


SECTIONS = {"prompt_cache": prompt_cache, "kv_restore": kv_restore, "state_bundle": state_bundle, "probes": probes,
            "cache_settings": cache_settings}


# ---- two reports ----

def compare_reports(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two reports of bench(), side by side: ready for JSON.

    differences  what they are not alike in, {name: [first, second]}: model, settings, machine, what was run
    runs         those of the same depth and batch: prefill_tps and decode_tps, [median of first, of second], and
                 prefill_ratio and decode_ratio, second over first: above 1 the second is faster
    sections     the numbers of prompt_cache, kv_restore, state_bundle and probes that both have, [first, second]

    ValueError when one is not such a report, or they have no run of the same depth and batch."""
    for which, report in (("first", first), ("second", second)):
        if not isinstance(report, Mapping) or report.get("version") != VERSION or not report.get("runs"):
            raise ValueError(f"the {which} is not a report of bench() of version {VERSION}")
    left, right = ({(one["depth"], one["batch"]): one for one in report["runs"]} for report in (first, second))
    runs = []
    for key in left.keys() & right.keys():
        pair, made = (left[key], right[key]), {"depth": key[0], "batch": key[1]}
        for name in ("prefill", "decode"):
            medians = [one[f"{name}_tps_median"] for one in pair]
            made |= {f"{name}_tps": medians, f"{name}_ratio": medians[1] / medians[0]}
        runs.append(made)
    if not runs:
        raise ValueError(f"no run of both has the same depth and batch: {sorted(left)} and {sorted(right)}")
    said = [{**one["config"], **one["model_info"], "sampling": one.get("sampling"),
             **{name: one[name] for name in ("model_path", "threads", "isa")}} for one in (first, second)]
    sections = {}
    for name in SECTIONS:
        a, b = first.get(name, {}), second.get(name, {})
        shared = {key: [a[key], b[key]] for key in a if key in b and isinstance(a[key], (int, float))
                  and not isinstance(a[key], bool)}
        if shared:
            sections[name] = shared
    return {"differences": {name: [said[0].get(name), said[1].get(name)] for name in sorted(said[0] | said[1])
                            if said[0].get(name) != said[1].get(name)},
            "runs": sorted(runs, key=lambda one: (one["depth"], one["batch"])), "sections": sections}
