"""What prompts will begin with, as ids that no continuation changes: for prompt caches.

A tokenizer looks ahead: a space at the end of a text belongs to the next word, and the last word may be the beginning
of a longer one, whose tokens are others. So ids are cut back to before the last word, and further as far as trying
continuations shows.
"""
from __future__ import annotations

import itertools
import unicodedata

from gomlx import _gomlx
from gomlx._generation import chat
from gomlx._generation.prompt_cache import common_length, packed

# Characters of each kind that tokenizers distinguish, alone and before others.
TAILS = ("a", "ing", "A", "z b", " a", "  a", " ", "1", "12", "\n", "\n\n", "\n a", "\t", ".", "...", ",", ". A",
         "'s", "'", "-", "_a", "/", "<", "<|", ")", "\"", "é", "\u0301", "中", "ا", "क", "\U0001f600")


def of_text(tokenizer, text) -> list[int]:
    """The ids that every prompt which begins with this text begins with."""
    ids = tokenizer.encode_prompt(text)
    known = packed(ids)
    count = min([len(ids), *(common_length(known, packed(tokenizer.encode_prompt(text + tail))) for tail in TAILS)])
    start = len(tokenizer.encode_prompt(""))
    if count == len(ids) > start and tokenizer.is_special(ids[-1]):
        return ids                              # a border whatever comes after it
    safe = before_last_word(text, tokenizer.special_tokens) - len(text) + len(tokenizer.decode(ids[start:], False))
    while count > start and len(tokenizer.decode(ids[start:count], False)) > safe:
        count -= 1
    return ids[:count]


def before_last_word(text, specials):
    """Where the last piece of a text begins that what comes next may change: a word with the sign or space before it,
    marks with the space before them, spaces, or the beginning of a special token."""
    at = len(text)
    kinds = [(kind, len(list(run))) for kind, run in itertools.groupby(text[-1000:], kind_of)]
    if kinds:
        kind, n = kinds.pop()
        at -= n
        if kind == "space" and "\n" in text[at:] and kinds and kinds[-1][0] == "mark":      # newlines go with marks
            kind, n = kinds.pop()
            at -= n
        if kind != "space" and at > 0 and kind_of(text[at - 1]) != "word":
            at -= 1
    for special in specials:
        for n in range(min(len(special) - 1, len(text)), 0, -1):
            if text.endswith(special[:n]):
                at = min(at, len(text) - n)
                break
    return at


def kind_of(character):
    if character.isspace():
        return "space"
    return "word" if unicodedata.category(character)[0] in "LMN" else "mark"


def of_messages(tokenizer, render, messages) -> list[int]:
    """The ids that every conversation which begins with these messages begins with. render: as chat() renders messages,
    with add_generation_prompt. ValueError where the template takes neither of what may come next."""
    messages = chat.check_messages(messages)
    asks = not messages or messages[-1]["role"] != "user"
    turns = [[{"role": "user" if asks else "assistant", "content": one}] for one in ("A", "b", "7", "(")]
    texts, refusal = [], None
    for more, prompted in [*((turn, True) for turn in turns), *([] if asks else [([], True)])]:
        try:
            texts.append(render(messages + more, add_generation_prompt=prompted))
        except (ValueError, _gomlx.Error) as error:
            refusal = error
    if not texts:
        raise refusal
    alike = texts[0][:common_text(texts)]
    count = min(common_length(packed(of_text(tokenizer, alike)), packed(tokenizer.encode_prompt(one))) for one in texts)
    return of_text(tokenizer, alike)[:count]


def common_text(texts):
    first, last = min(texts), max(texts)
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
