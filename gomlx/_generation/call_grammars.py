"""What a model writes when it reasons and when it calls tools, as grammars: for each notation the counterpart of its
reader in tool_calls.py. A marker that is a special token is that token's id."""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gomlx._generation.grammar_rules import Offer, Rules, literal, one_of, separated
from gomlx._generation.notation_values import gemma_call, xml_function

BLANK = r"/\n{0,2}/"            # what templates have between markup and an answer or a call


@dataclass(frozen=True)
class Notation:
    """opening: the marker before calls, "" where there is none; calls: (rules, offers, several) -> what follows it, to
    the end of the calls; repeats: whether a further call has a marker of its own."""
    opening: str
    calls: Callable[[Rules, Sequence[Offer], bool], str]
    repeats: bool = False


# ---- reasoning ----

def reasoning(rules: Rules, marks: dict[str, dict[str, str]], leading: Sequence[str], state: str, has_thought: bool,
              has_blank: bool) -> str:
    """What may come before the answer. marks, leading: of a Format of parsing; state: after the prompt; has_thought:
    the prompt has reasoning that has ended; has_blank: blank lines may follow."""
    inside = marks.get("reasoning", {})
    closing = next((mark for mark, to in inside.items() if to == "answer"), None)
    if closing is None:
        return ""
    blank = rules.add(BLANK) if has_blank else ""
    text = f"{rules.until(closing, [mark for mark in inside if mark != closing])} {blank}"
    if state != "answer":
        return text if state == "reasoning" else f'"thought\\n" {text}'
    openings = [] if has_thought else [rules.mark(one) for one in leading if rules.is_known(one)] + [
        f'{rules.mark(mark)} "thought\\n"' for mark, to in marks["answer"].items()
        if to == "header" and rules.is_known(mark)]
    return f"({one_of(openings)} {text})?" if openings else ""


def channels(rules: Rules, state: str, header: str) -> str:
    """gpt-oss: messages of reasoning, up to the header of the last one. state, header: where the prompt ends."""
    text = rules.until("<|end|>", ("<|start|>", "<|return|>", "<|call|>"))
    again = f'{text} {rules.mark("<|start|>")} "assistant"'
    thought = rules.add(f'{rules.mark("<|channel|>")} ("analysis" | "commentary") {rules.mark("<|message|>")} {again}')
    if state == "reasoning":
        return f"{again} {thought}*"
    return f"{thought}*" if header.strip() else f'"assistant"? {thought}*'


def final_channel(rules: Rules) -> str:
    return f'{rules.mark("<|channel|>")} "final" {rules.mark("<|message|>")}'


# ---- calls ----

def tagged(template: str) -> Notation:
    """Qwen, Hermes: JSON between <tool_call> and </tool_call>, or <function=...> where the template has it."""
    if "<function=" in template:
        return Notation("<tool_call>", lambda rules, offers, several: _tagged(rules, [
            xml_function(rules, one) for one in offers]), repeats=True)
    return Notation("<tool_call>", lambda rules, offers, several: _tagged(rules, [
        json_call(one, "arguments") for one in offers]), repeats=True)


def _tagged(rules, calls):
    blank = rules.add(r"/\n?/")
    return f"{blank} {one_of(calls)} {blank} {rules.closing('</tool_call>')}"


def json_call(offer: Offer, key: str) -> str:
    comma, colon = (literal(offer.spacing[name]) for name in ("item_separator", "key_separator"))
    return f'"{{" "\\"name\\"" {colon} {literal(json.dumps(offer.name))} {comma} "\\"{key}\\"" {colon} ' \
           f'{offer.arguments} "}}"'


def llama(template: str) -> Notation:
    """A bare object, several with ';' between."""
    return Notation("", lambda rules, offers, several: separated(one_of(
        [json_call(one, "parameters") for one in offers]), '"; "', several))


def mistral(template: str) -> Notation:
    """[TOOL_CALLS] before a list, or before NAME[ARGS] and the arguments where the template has it."""
    if "[ARGS]" in template:
        return Notation("[TOOL_CALLS]", lambda rules, offers, several: one_of(
            [f"{literal(one.name)} {rules.mark('[ARGS]')} {one.arguments}" for one in offers]), repeats=True)
    return Notation("[TOOL_CALLS]", lambda rules, offers, several: '"[" ' + separated(one_of(
        [json_call(one, "arguments") for one in offers]), '", "', several) + ' "]"')


def deepseek(template: str) -> Notation:
    """NAME, a separator and JSON, which is fenced in V3's template."""
    def call(rules, one):
        begin, sep, end = (rules.mark(f"<｜tool▁{part}｜>") for part in ("call▁begin", "sep", "call▁end"))
        if "```json" in template:
            return f'{begin} "function" {sep} {literal(one.name + chr(10) + "```json" + chr(10))} {one.arguments} ' \
                   f'"\\n```" {end}'
        return f"{begin} {literal(one.name)} {sep} {one.arguments} {end}"

    return Notation("<｜tool▁calls▁begin｜>", lambda rules, offers, several: separated(one_of(
        [call(rules, one) for one in offers]), rules.add(r"/\n?/"), several) + " "
        + rules.closing("<｜tool▁calls▁end｜>"))


def gemma(template: str) -> Notation:
    """call:NAME{key:value} in a notation of its own."""
    return Notation("<|tool_call>", lambda rules, offers, several: one_of(
        [gemma_call(rules, one) for one in offers]) + " " + rules.closing("<tool_call|>"), repeats=True)


def harmony(template: str) -> Notation:
    """A message whose header names the tool, in either order."""
    def calls(rules, offers, several):
        channel, constrain = rules.mark("<|channel|>"), rules.mark("<|constrain|>")
        kind = rules.add(f'" "? {constrain} "json" | " json" | ""')
        return one_of([
            f'({channel} "commentary" {literal(f" to=functions.{one.name}")} | {literal(f" to=functions.{one.name}")} '
            f'{channel} "commentary") {kind} {rules.mark("<|message|>")} {one.arguments} {rules.closing("<|call|>")}'
            for one in offers])
    return Notation("", calls)
