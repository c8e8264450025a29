"""Profiles: what the engine did for a generation, counted and timed.

    result = model.generate("Once upon a time", max_tokens=64, profile=True).read()
    result.profile["decode"]["work"]["attention"]["ns"]
    print(gomlx.profiling.summary(result.profile, "story", result.prompt_tokens, result.generated_tokens))

A profile is a dict, ready for JSON, of two phases, "prefill" and "decode" (passes of one row after the first token):

    passes          forward passes
    tokens          their rows of this prompt's; of a batch's own profile, all rows
    pass_ns         nanoseconds of the passes, from the choice of their rows to their logits
    setup_ns        of these, before the first kernel: building the graph and recording its plan, where there is none
    yet;
                    at a model's second pass, packing its matrices
    wait_ns         of these, spent waiting for other threads and other evaluations
    thread_wait_ns  what all threads together waited for one another; not within pass_ns
    sample_calls, sample_ns     draws of tokens from logits; not within pass_ns
    work            by class of work: launches of kernels, the pieces that they were cut into, the launches among
                    them that all threads came to only when all before was done (barriers; a little work that one
                    thread does at such a place is none of its own), ns on the calling thread, thread_ns on all threads
                    together, and the bytes of weights read (a model's vectors count with its norms)
    weight_bytes    the same bytes of weights by type; of experts as many as the tokens of a pass may choose at most

The classes are embedding, norm, attention_projection, attention, recurrent, router, experts, mlp, head, sampling (what
all samplers need of the logits) and other. An operation without a class of its own counts with what made its input:
what quantises a norm's output with the norm, adding to the residual stream with what is added. The classes' ns, setup
and waiting add up to pass_ns, all of the calling thread, which may leave a whole launch to others: how work is shared
between the classes shows in thread_ns. A weight that is both embedding and head counts as each where it is read.
Passes that several prompts share count whole for each of them. Counting changes no bit of a result, and costs a reading
of the clock for each launch and each wait.
"""
from __future__ import annotations

from typing import Any

from gomlx._base.arguments import name_public


def totals(phase: dict[str, Any]) -> dict[str, Any]:
    """launches, pieces, barriers, ns, thread_ns and bytes of all classes of a phase together."""
    return {name: sum(one[name] for one in phase["work"].values())
            for name in ("launches", "pieces", "barriers", "ns", "thread_ns", "bytes")}


def summary(profile: dict[str, Any] | None, label: str = "", prompt_tokens: int | None = None,
            completion_tokens: int | None = None) -> str:
    """The profile as lines of text, the greatest classes first; "" for None, a generation without."""
    if profile is None:
        return ""
    counts = [f"{count} {name} tokens" for name, count in (("prompt", prompt_tokens), ("completion", completion_tokens))
              if count is not None]
    lines = [": ".join(filter(None, ["profile" + f" of {label}" * bool(label), ", ".join(counts)]))]
    for name, phase in profile.items():
        if phase["passes"]:
            lines += phase_lines(name, phase)
    return "\n".join(lines)


def phase_lines(name, phase):
    passes, whole = phase["passes"], phase["pass_ns"]
    total, read = totals(phase), sum(phase["weight_bytes"].values())
    yield (f"{name}: {phase['tokens']} tokens in {passes} passes, {whole / passes / 1e3:.1f} us a pass; a pass has "
           f"{total['launches'] / passes:.0f} launches, {total['barriers'] / passes:.0f} barriers, and reads "
           f"{read / passes / 1e6:.2f} MB of weights ({read / max(whole, 1):.2f} GB/s)")
    busy = total["thread_ns"] + phase["thread_wait_ns"] + phase["setup_ns"]
    rows = [(work, one["thread_ns"], one) for work, one in phase["work"].items()]
    rows += [("setup", phase["setup_ns"], None), ("waiting", phase["thread_wait_ns"], None)]
    yield f"  time of all threads together, {busy / passes / 1e3:.1f} us a pass:"
    for work, ns, one in sorted(rows, key=lambda row: -row[1]):
        counted = (f"  {one['launches'] / passes:8.1f} launches {one['barriers'] / passes:7.1f} barriers "
                   f"{one['bytes'] / passes / 1e6:9.2f} MB") if one else ""
        yield f"  {work:20} {ns / passes / 1e3:10.1f} us {100 * ns / max(busy, 1):5.1f} %{counted}"
    if phase["sample_calls"]:
        yield f"  {'drawing':20} {phase['sample_ns'] / phase['sample_calls'] / 1e3:10.1f} us a token, after the pass"


name_public(globals())
