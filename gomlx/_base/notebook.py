"""What notebooks show of gomlx's objects: their _repr_html_, as one piece of HTML without scripts or style sheets.

Texts are a model's, a file's or a user's, and hostile for all that is known: each goes through text(), and so into the
page as what it is. Colours are translucent, for light pages and dark ones. Sizes are bounded: a notebook keeps it all.
"""
from __future__ import annotations

import html
import math
import os

from gomlx import _gomlx

MOST_TOKENS = 1000
MOST_CHARACTERS = 20000
MOST_OF_TOKEN = 100             # characters of a token, a name or a cell
MOST_ROWS = 100                 # of a table, and tool calls
MOST_HTML = 1_000_000           # characters of what is shown: beyond them it is a line that says so
MOST_POSITIONS = 24             # columns of a lens
EDGE = 4                        # rows and columns of an array on either side of what is left out
CHIPS = ("66, 133, 244", "52, 168, 83", "251, 188, 5", "234, 67, 53", "161, 66, 244")
BLUE, GREEN, RED = "66, 133, 244", "52, 168, 83", "234, 67, 53"
CELL = "padding: 1px 8px; text-align: left; vertical-align: top; border: none; white-space: pre-wrap"
NUMBER = "padding: 1px 8px; text-align: right; border: none; font-family: monospace"
CHIP = "border-radius: 3px; padding: 1px 0; margin: 0 1px 0 0; white-space: pre-wrap; font-family: monospace"


# ---- pieces ----

def text(value, most=MOST_CHARACTERS) -> str:
    """Any text as HTML that says it, in text and in attributes."""
    value = said(value)
    rest = f" … and {len(value) - most} characters more" if len(value) > most else ""
    # Controls, and what turns the direction of a line, are shown by their code points.
    seen = "".join(one if one.isprintable() or one in "\n\t\xa0\u200d" else f"\\u{ord(one):04x}"
                   for one in value[:most])
    return html.escape(seen + rest, quote=True)


def said(value) -> str:
    """str() of anything: what is nested too deep, too large a number or an error that cannot be told has none."""
    try:
        return str(value)
    except Exception as error:
        return f"({type(value).__name__} without a text: {type(error).__name__})"


def box(head, *parts) -> str:
    """The outermost element. MathJax, versions 2 and 3, leaves it alone: a `$` in a text is a `$`."""
    shown = "".join(parts)
    if len(shown) > MOST_HTML:
        shown = prose(f"{len(shown)} characters of HTML are too many to show; expected at most {MOST_HTML}")
    return f"<div class='tex2jax_ignore mathjax_ignore'>{head}{shown}</div>"


def title(what, *notes) -> str:
    noted = " · ".join(text(one) for one in notes if one not in (None, ""))
    return f"<div><b>{text(what)}</b>" + (f" <span style='opacity: .7'>{noted}</span>" if noted else "") + "</div>"


def prose(value, opacity=1) -> str:
    return f"<div style='white-space: pre-wrap; max-width: 80ch; margin: 4px 0; opacity: {opacity}'>{text(value)}</div>"


def table(rows) -> str:
    """Rows of (name, HTML)."""
    cells = "".join(f"<tr style='background: none'><td style='{CELL}; opacity: .7'>{text(name, MOST_OF_TOKEN)}</td>"
                    f"<td style='{CELL}'>{value}</td></tr>" for name, value in rows)
    return f"<table style='margin: 4px 0'>{cells}</table>"


def first_rows(rows) -> tuple[list, str]:
    """(the rows to show, HTML that says how many more there are)."""
    rows = list(rows)
    return rows[:MOST_ROWS], f" … and {len(rows) - MOST_ROWS} more" if len(rows) > MOST_ROWS else ""


def chip(shown, note, colour, strength=0.2) -> str:
    """One token. Where a line ends within it, there is a sign for that."""
    return (f"<span title='{text(note)}' style='{CHIP}; background: rgba({colour}, {strength:.2f})'>"
            f"{text(shown.replace(chr(10), '↵' + chr(10)), MOST_OF_TOKEN)}</span>")


def chips(made, count) -> str:
    """made: HTML of the first tokens; count: of all."""
    rest = f" … and {count - MOST_TOKENS} more" if count > MOST_TOKENS else ""
    return f"<div style='line-height: 1.7; max-width: 100ch; margin: 4px 0'>{''.join(made)}{rest}</div>"


def size(count) -> str:
    if count >= 1e9:
        return f"{count / 1e9:.2f} GB"
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def number(value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return said(value)


# ---- generations ----

def result(made) -> str:
    """A Result: what was said, what was thought and called, and what it took."""
    speed = f"{made.decode_tps:.0f} tokens/s" if made.decode_tps else None
    cached = f", {made.cached_tokens} of them kept" if made.cached_tokens else ""
    ended = f"ended by {made.finish_reason}" + (f" {made.stop!r}" if made.stop is not None else "")
    parts = [title("Result", f"{made.generated_tokens} tokens after {made.prompt_tokens}{cached}", speed, ended,
                   f"seed {made.seed}")]
    if made.reasoning:
        parts.append(f"<details><summary>reasoning</summary>{prose(made.reasoning, .7)}</details>")
    parts.append(prose(made.answer if made.reasoning or made.tool_calls else made.text))
    calls, more = first_rows(made.tool_calls)
    parts += [prose(f"{one.name}({said(one.arguments)})" if one.error is None else f"{one.error}: {one.raw}")
              for one in calls] + [more]
    if made.error is not None:
        parts.append(prose(f"{type(made.error).__name__}: {said(made.error)}"))
    return box(*parts)


def token_stream(texts, logprobs, made) -> str:
    """A TokenStream: the tokens that came so far, the paler the surer the model was; and its result, where it ended.
    texts, logprobs: of the tokens; the last text may have none."""
    count = len(texts)
    shown = [surprise(one, logprobs[i] if i < len(logprobs) else None) for i, one in enumerate(texts[:MOST_TOKENS])]
    state = "has not begun" if not texts and made is None else f"{count} tokens so far" if made is None else None
    head = title("TokenStream", state or f"{made.generated_tokens} tokens", made and f"ended by {made.finish_reason}",
                 made and f"seed {made.seed}")
    return box(head, chips(shown, count))


def surprise(shown, logprob) -> str:
    """A token, coloured by how little the model expected it."""
    if logprob is None:
        return chip(shown, "the first token: nothing is before it", BLUE, 0)
    # A nat is a pale shade; a token of one in a thousand has the full one.
    return chip(shown, f"probability {math.exp(min(0.0, logprob)):.3g}, log probability {logprob:.3f}", RED,
                min(1.0, -logprob / 7) * 0.7)


# ---- tokenizers ----

def encoding(made) -> str:
    """An Encoding: its tokens by name, in turns of colours; special ones grey."""
    ids, count = made.ids, len(made.ids)
    rows = zip(ids[:MOST_TOKENS], made.tokens, made.offsets, made.special_mask, strict=False)
    shown = [chip(name, f"id {one}, characters {begin} to {end}" + (", special" if special else ""),
                  "128, 128, 128" if special else CHIPS[i % len(CHIPS)], 0.3)
             for i, (one, name, (begin, end), special) in enumerate(rows)]
    return box(title("Encoding", f"{count} tokens"), chips(shown, count))


SAMPLE = "Once upon a time, in 1984: naïve “quotes”, x += 1\nand 🦊."


def tokenizer(made) -> str:
    """A Tokenizer: what it has, and what it makes of a sample."""
    special = [chip(name, f"id {one}", "128, 128, 128", 0.3) for name, one in list(made.special_tokens.items())[:24]]
    roles = ", ".join(f"{role} {name}" for role, name in (("BOS", made.bos_token), ("EOS", made.eos_token),
                                                          ("padding", made.pad_token)) if name is not None)
    pieces = made.pieces(made.bare(SAMPLE))
    shown = [chip(one["text"], f"id {one['id']}, {one['token']}", CHIPS[i % len(CHIPS)], 0.3)
             for i, one in enumerate(pieces)]
    more = f" … and {len(made.special_tokens) - 24} more" if len(made.special_tokens) > 24 else ""
    return box(title("Tokenizer", f"{made.vocab_size} tokens"),
               table([("special", " ".join(special) + more), ("roles", text(roles or "none")),
                      ("chat template", "yes" if made.chat_template else "no"),
                      ("a sample", "".join(shown))]))


# ---- models ----

def model(made) -> str:
    """A Model: what one wants to know of it at a glance; its info has the rest."""
    info = made.info
    known = info.get
    try:
        sizes = [("vocabulary", made.vocab_size), ("context", made.context_length)]
    except ValueError as closed:
        sizes = [("state", closed)]
    rows = [("weights", ", ".join(f"{name} {count / sum(info['weight_types'].values()):.0%}"
                                  for name, count in info["weight_types"].items()) if known("weight_types") else None),
            ("size", f"{info['parameters']:,} parameters, {size(info['weight_bytes'])}"
             if known("parameters") and known("weight_bytes") else None),
            ("shape", f"{info['n_layers']} layers of {info['hidden_size']}, {info['n_heads']} heads, "
                      f"{info['n_kv_heads']} of "
             "keys and values" if all(known(one) for one in ("n_layers", "hidden_size", "n_heads", "n_kv_heads"))
             else None),
            ("experts", f"{info['n_experts']}, {known('n_experts_used')} used" if known("n_experts") else None),
            *sizes,
            ("computes with", ", ".join(f"{name}: {info[key]}" for name, key in (
                ("activations", "activations"), ("KV cache", "kv_dtype"), ("threads", "threads"), ("kernels", "isa"))
                if known(key) is not None)),
            ("sampling", ", ".join(f"{name} {number(value)}" for name, value in info["sampling"].items())),
            ("ends at", ", ".join(str(one["text"]) for one in info["stop_ids"]))]
    return box(title(f"Model {known('architecture', '')}", os.path.basename(str(info["path"]))),
               table([(name, text(value)) for name, value in rows if value not in (None, "")]))


def info(made) -> str:
    """A model's info: names and values, what is long folded away."""
    rows, more = first_rows(made.items())
    return box(title("info"), table([(name, value_of(value)) for name, value in rows]), more)


def value_of(value) -> str:
    if not isinstance(value, (dict, list)) or not value:
        return text(number(value), 400)
    count = f"{len(value)} entries"
    rows, more = first_rows(value.items() if isinstance(value, dict) else enumerate(value))
    inside = table([(name, text(number(one), 200)) for name, one in rows]) + more
    return f"<details><summary>{count}</summary>{inside}</details>" if len(rows) > 4 else inside


def logit_lens(made) -> str:
    """A LogitLens: a row for each layer, the last above, and a column for each token of the prompt, with the likeliest
    next token, the darker the likelier."""
    first = max(0, len(made.texts) - MOST_POSITIONS)
    cell = "border: 1px solid rgba(128, 128, 128, .3); padding: 2px 6px; text-align: left; font-family: monospace; " \
           "white-space: pre"
    head = "".join(f"<th style='{cell}'>{text(one, MOST_OF_TOKEN)}</th>" for one in made.texts[first:])
    rows = []
    for i, layer in reversed(list(enumerate(made.layers))):
        cells = []
        for likely in layer[first:]:
            note = "\n".join(f"{one.text[:MOST_OF_TOKEN]!r} {one.probability:.3f}" for one in likely)
            colour = f"rgba({BLUE}, {0.8 * likely[0].probability:.2f})"
            cells.append(f"<td title='{text(note)}' style='{cell}; background: {colour}'>"
                         f"{text(likely[0].text.replace(chr(10), '↵'), MOST_OF_TOKEN)}</td>")
        rows.append(f"<tr style='background: none'><th style='{cell}'>{i}</th>{''.join(cells)}</tr>")
    left_out = f"the last {MOST_POSITIONS} of {len(made.texts)} tokens" if first else None
    return box(title("LogitLens", "what each layer would say after each token", left_out),
               f"<div style='overflow-x: auto'><table style='border-collapse: collapse'><tr style='background: none'>"
               f"<th style='{cell}'>layer</th>{head}</tr>{''.join(rows)}</table></div>")


def score(made) -> str:
    """A Score: its tokens, the redder the less the model expected them."""
    shown = [surprise(one, logprob) for one, logprob in zip(made.texts[:MOST_TOKENS], made.logprobs, strict=False)]
    perplexity = f"perplexity {made.perplexity:.4g}" if made.perplexity is not None else None
    return box(title("Score", f"{len(made.tokens)} tokens", f"{made.total:.2f} nats", perplexity),
               chips(shown, len(made.tokens)))


def training_data(made, shown) -> str:
    """A Dataset. shown: (row, sequence, what its ids complete) of some sequences; tokens that count are green."""
    parts = [title("Dataset", f"{len(made)} rows", made.kind, f"{made.tokens} tokens", f"{made.targets} count",
                   f"{len(made.cut)} too long" if made.cut else None)]
    for row, one, pieces in shown:
        seen = [chip(piece["token"] if piece["special"] else piece["text"], f"{piece['id']}", GREEN if counts else BLUE,
                     0.35 if counts else 0.08)
                for piece, counts in list(zip(pieces, one.counted))[:MOST_TOKENS]]
        parts += [prose(row.where, .7), chips(seen, len(one.ids))]
    return box(*parts)


def training_run(made) -> str:
    """A TrainingRun: how far it is, its last step and its losses as a line."""
    rows = [("steps", f"{made.step} of {made.steps}"), ("parameters", f"{made.adapter.count:,}")]
    if made.history:
        last = made.history[-1]
        rows += [("loss", f"{made.history[0].loss:.4f} → {last.loss:.4f}"),
                 ("learning rate", number(last.learning_rate)), ("seconds of a step", number(last.seconds)),
                 ("peak memory", size(last.peak_memory_bytes))]
    return box(title("TrainingRun", made.folder), table(rows), sparkline(made.losses))


def sparkline(values) -> str:
    """Numbers as a line, without axes."""
    values = [one for one in values if math.isfinite(one)][-MOST_TOKENS:]
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    points = " ".join(f"{300 * i / (len(values) - 1):.1f},{58 - 56 * (one - low) / ((high - low) or 1):.1f}"
                      for i, one in enumerate(values))
    return (f"<svg width='300' height='60' viewBox='0 0 300 60'><polyline points='{points}' fill='none' "
            f"stroke='rgb({BLUE})' stroke-width='1.5'/></svg>")


def memory_plan(made) -> str:
    """A MemoryPlan: a bar of what it takes, as wide as what there is, or as what it takes where that is more."""
    parts = [("weights", made.weight_bytes, BLUE), ("KV cache", made.kv_bytes, GREEN),
             ("working memory", made.working_bytes, "251, 188, 5")]
    whole = max(made.budget_bytes, made.total_bytes, 1)
    pieces = "".join(f"<div title='{text(name)} {size(count)}' style='width: {100 * count / whole:.3f}%; background: "
                     f"rgba({colour}, .8)'>"
                     "</div>" for name, count, colour in parts)
    bar = (f"<div style='display: flex; width: 60ch; max-width: 100%; height: 12px; margin: 4px 0; background: "
           f"rgba(128, 128, 128, .25)'>{pieces}</div>")
    rows = [(name, f"<span style='color: rgb({colour})'>■</span> {size(count)}") for name, count, colour in parts]
    together = f"{size(made.total_bytes)} of {size(made.budget_bytes)}, {text(made.budget_from)}"
    if made.gpu_bytes and made.cpu_bytes:
        together = (f"{made.gpu_layers} of {len(made.layers)} layers on {text(made.device)}, {size(made.gpu_bytes)} "
                    f"of {size(made.budget_bytes)}; {size(made.cpu_bytes)} on the processor")
    rows += [("together", together),
             ("context", text(f"{made.batch} × {made.context} tokens, {made.kv_dtype}")),
             ("would fit", text(f"{made.max_batch} such sequences"))]
    verdict = "fits" if made.fits else "does not fit"
    return box(title(f"MemoryPlan: {verdict}", os.path.basename(made.path)), bar, table(rows),
               "" if made.fits else prose(made.why))


# ---- arrays ----

def array(made) -> str:
    """An array: shape, dtype and its values, of a large one those at the edges, of more than two axes the first
    matrix."""
    dtype = str(made.dtype).removeprefix("mlx.core.")
    shape = " × ".join(map(str, made.shape)) or "scalar"
    head = [dtype, shape]
    if made.ndim > 2 and made.size:
        head.append("shown is [" + "0, " * (made.ndim - 2) + ":, :]")
        made = made[(0,) * (made.ndim - 2)]
    if not made.size:
        return box(title("array", *head))
    if made.ndim == 0:
        return box(title("array", *head), prose(number(made.item())))
    flat = made.ndim == 1
    matrix = _gomlx.reshape(made, (1, -1)) if flat else made
    rows, columns = (edges(one) for one in matrix.shape)
    values = corner(corner(matrix, 0), 1).tolist()
    lines = []
    for i, line in zip(rows, with_gap(values, rows), strict=True):
        cells = with_gap(line, columns) if line is not None else [None] * len(columns)
        label = "" if flat else f"<th style='{NUMBER}; opacity: .5'>{'⋮' if i is None else i}</th>"
        lines.append("<tr style='background: none'>" + label + "".join(
            f"<td style='{NUMBER}'>{text(number(one)) if one is not None else '' if i is None else '…'}</td>"
            for one in cells) + "</tr>")
    top = "".join(f"<th style='{NUMBER}; opacity: .5'>{'' if i is None else i}</th>" for i in columns)
    corner_cell = "" if flat else f"<th style='{NUMBER}'></th>"
    return box(title("array", *head), f"<table style='margin: 4px 0'><tr style='background: "
                                      f"none'>{corner_cell}{top}</tr>"
               f"{''.join(lines)}</table>")


def edges(length) -> list:
    """The indices that are shown, with None for the ones that are left out."""
    if length <= 2 * EDGE + 1:
        return list(range(length))
    return [*range(EDGE), None, *range(length - EDGE, length)]


def corner(matrix, axis):
    """Only the rows, or columns, of edges()."""
    if matrix.shape[axis] <= 2 * EDGE + 1:
        return matrix
    pair = (matrix[:EDGE], matrix[-EDGE:]) if axis == 0 else (matrix[:, :EDGE], matrix[:, -EDGE:])
    return _gomlx.concatenate(pair, axis=axis)


def with_gap(values, indices):
    """The values, with None where the indices have their gap."""
    left = iter(values)
    return [None if one is None else next(left) for one in indices]


# The extension's own types have it from here.
_gomlx.array._repr_html_ = array
_gomlx.Encoding._repr_html_ = encoding
