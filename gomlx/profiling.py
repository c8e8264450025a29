"""Profiles: what the engine did for a generation, counted and timed.

    result = model.generate("Once upon a time", max_tokens=64, profile=True).read()
    result.profile["decode"]["work"]["attention"]["ns"]
    print(gomlx.profiling.summary(result.profile, "story", result.prompt_tokens, result.generated_tokens))

A profile is a dict, JSON as it stands, of two phases, "prefill" and "decode" (passes of one row after the first token):

    passes          forward passes
    tokens          their rows of this prompt's; of a batch's own profile, all rows
    pass_ns         nanoseconds of the passes, from the choice of their rows to their logits
    setup_ns        of these, before the first kernel: building the graph and recording its plan, where there is none yet
    wait_ns         of these, spent waiting for other threads and other evaluations
    sample_calls, sample_ns     draws of tokens from logits; not within pass_ns
    work            by class of work: launches of kernels, the pieces that they were cut into, the launches among
                    them that all threads came to only when all before was done (barriers; a little work that one
                    thread does at such a place is none of its own), and ns on the calling thread
    weight_bytes    bytes of weights read, by type; of experts as many as the tokens of a pass may choose at most

The classes are embedding, norm, attention_projection, attention, recurrent, router, experts, mlp, head, sampling (what
all samplers need of the logits) and other. An operation without a class of its own counts with what made its input:
what quantises a norm's output with the norm, adding to the residual stream with what is added. The classes, setup and
waiting add up to pass_ns, all of the calling thread. Passes that several prompts share count whole for each of them.
Counting changes no bit of a result, and costs a reading of the clock for each launch and each wait.
"""
from __future__ import annotations


def totals(phase: dict) -> dict:
    """launches, pieces, barriers and ns of all classes of a phase together."""
    return {name: sum(one[name] for one in phase["work"].values()) for name in ("launches", "pieces", "barriers", "ns")}


def summary(profile: dict | None, label: str = "", prompt_tokens: int | None = None,
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
    rows = [(work, one["ns"], one["launches"], one["barriers"]) for work, one in phase["work"].items()]
    rows += [("setup", phase["setup_ns"], None, None), ("waiting", phase["wait_ns"], None, None)]
    for work, ns, launches, barriers in sorted(rows, key=lambda row: -row[1]):
        counted = f"  {launches / passes:8.1f} launches {barriers / passes:7.1f} barriers" if launches else ""
        yield f"  {work:20} {ns / passes / 1e3:10.1f} us {100 * ns / max(whole, 1):5.1f} %{counted}"
    if phase["sample_calls"]:
        yield f"  {'drawing':20} {phase['sample_ns'] / phase['sample_calls'] / 1e3:10.1f} us a token, after the pass"
