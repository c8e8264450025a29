"""What a model can do: model.supports("attention"). Not every backend, and not every model, can do all of it."""
from __future__ import annotations

import difflib

from gomlx import _gomlx, parsing
from gomlx._base import arguments
from gomlx._generation import chat

ABILITIES = {
    "generate": "generate(): continue a text",
    "chat": "chat(): answer messages, with the model's template or its family's format",
    "tools": "chat(tools=): the template takes tools",
    "thinking": "chat(thinking_budget=), result.reasoning: the template marks reasoning",
    "thinking_switch": "chat(enable_thinking=): the template has a switch for it",
    "sampling": "every field of Sampling",
    "samples": "generate(n=): several continuations of one prompt",
    "batch": "generate_batch()",
    "sessions": "session(), generate(session=): going on from state, forks, steps",
    "bundles": "bundle(), restore_session(): sessions as bytes",
    "prompt_cache": "warm_prompt_cache(), cached_tokens",
    "classify": "classify()",
    "score": "score()",
    "embed": "embed()",
    "logits": "logits()",
    "logits_processors": "generate(logits_processors=)",
    "top_logprobs": "generate(top_logprobs=)",
    "activations": "inspect(), logit_lens(), generate(steer=)",
    "attention": "inspect_attention(): some layer has keys and queries",
    "validate": "validate(), generate(prefill='validate'): against the exact path",
    "probe": "generate(probe=)",
    "profile": "generate(profile=)",
    "adapters": "load_adapter(), generate(adapter=)",
    "metrics": "metrics(): memory of the backend's process",
}
ENGINE = ABILITIES.keys() - {"chat", "tools", "thinking", "thinking_switch", "attention", "metrics"}


def of_chat(tokenizer) -> set[str]:
    """Those that depend on the model's template."""
    try:
        template = tokenizer.template_for()
    except _gomlx.Error:
        return set()
    has = {"chat": True, "tools": "tools" in chat.variables(tokenizer.template_for([{}])),
           "thinking": reasons(tokenizer, template),
           "thinking_switch": bool(chat.variables(template) & set(chat.THINKING))}
    return {name for name in has if has[name]}


def reasons(tokenizer, template):
    """Whether the template, or the vocabulary, has the marks of reasoning."""
    def has_token(text):
        return tokenizer.token_to_id(text) is not None

    kind = parsing.detect(template, has_token)
    marks = parsing.FORMATS[kind].marks if kind is not None else {}
    openings = [mark for state in marks.values() for mark, to in state.items()
                if to in (parsing.REASONING, parsing.HEADER)]
    return any(mark in template or has_token(mark) for mark in openings)


def check(name):
    arguments.text("ability", name, "a name")
    if name not in ABILITIES:
        near = difflib.get_close_matches(name, ABILITIES, 3, 0.5)
        raise ValueError(f"unknown ability {name!r}" + (f"; near it: {', '.join(near)}" if near else "")
                         + "; expected one of " + ", ".join(ABILITIES))
    return name
