"""Chat templates: where a model's files keep them, and rendering them in Jinja's sandbox (template_sandbox)."""
from __future__ import annotations

import functools
import os
import traceback

from gomlx import _gomlx
from gomlx._files.reading import read_json


class Template(str):
    """A template's text, and which file it is from."""
    source = "chat template"

    def __new__(cls, text, source):
        made = super().__new__(cls, text)
        made.source = source
        return made


def templates_in_folder(folder, tokenizer_config):
    """{name: template}: chat_template.jinja, then chat_template.json, then tokenizer_config.json."""
    templates = named(tokenizer_config.get("chat_template"), os.path.join(folder, "tokenizer_config.json"))
    path = os.path.join(folder, "chat_template.json")
    templates |= named(read_json(path).get("chat_template"), path)
    path = os.path.join(folder, "chat_template.jinja")
    try:
        with open(path, encoding="utf-8") as file:
            templates["default"] = Template(file.read(), path)
    except FileNotFoundError:
        pass
    return templates


def templates_in_gguf(metadata, path="GGUF metadata"):
    """{name: template}: tokenizer.chat_template and tokenizer.chat_template.<name>."""
    key = "tokenizer.chat_template"
    return {"default" if name == key else name[len(key) + 1:]: Template(text, f"{path}: {name}")
            for name, text in metadata.items()
            if (name == key or name.startswith(key + ".")) and isinstance(text, str)}


def named(value, path):
    """A template is a string, or a list of {"name": ..., "template": ...}."""
    if isinstance(value, str):
        return {"default": Template(value, f"{path}: chat_template")}
    if isinstance(value, list):
        return {one["name"]: Template(one["template"], f"{path}: chat_template {one['name']!r:.80}") for one in value
                if isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("template"), str)}
    return {}


def render(template, messages, **variables):
    """The template's text for messages. ValueError when the template refuses them, gomlx.Error when it is broken or
    makes too much."""
    box, messages = sandbox(), check_messages(messages)
    source = getattr(template, "source", Template.source)
    if len(template) > box.MAX_SOURCE:
        raise _gomlx.Error(f"{source}: {len(template)} characters, expected {box.MAX_SOURCE} at most")
    try:
        ready = compiled(str(template))
        with box.within(box.Budget([messages, variables])):
            return ready.render(messages=messages, **variables)
    except box.TemplateSyntaxError as error:
        raise _gomlx.Error(f"{source}, line {error.lineno}: {error.message}") from None
    except box.Refused as error:
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise ValueError(f"the chat template refuses these messages ({roles}): {error}") from None
    except (box.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, SyntaxError,
            RecursionError, MemoryError) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
        where = f", line {lines[-1]}" if lines else ""
        raise _gomlx.Error(f"{source}{where}: {type(error).__name__}: {error}") from error


ANSWER = "gomlxanswer"          # letters that no template changes


def turns_after_an_answer(render, messages):
    """What render makes of messages after an answer, from the end of its text on: the end of its turn comes first.
    ValueError when the template leaves earlier answers out."""
    text = render([{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}, *messages])
    _, found, after = text.rpartition(ANSWER)
    if not found:
        raise ValueError("append: the chat template leaves out answers before new messages: give all messages")
    return after


# What templates call the switch for reasoning.
THINKING = ("enable_thinking", "thinking")


def thinking_variable(template, enable):
    """{name: enable} for the switch that the template has; ValueError when it has none."""
    for name in THINKING:
        if name in variables(template):
            return {name: bool(enable)}
    raise ValueError(f"enable_thinking is {enable}, but this model's chat template has no such switch")


@functools.lru_cache(maxsize=16)
def variables(template):
    """The variables that a template reads; an empty set if it cannot be parsed: rendering it raises the error."""
    box = sandbox()
    try:
        return box.meta.find_undeclared_variables(box.environment().parse(str(template))) \
            if len(template) <= box.MAX_SOURCE else frozenset()
    except (box.TemplateSyntaxError, RecursionError):
        return frozenset()


def check_messages(messages):
    """Returns messages as a list, whatever sequence or iterator they are in; TypeError if one is not a message."""
    if isinstance(messages, (str, bytes, dict)):
        raise TypeError(f"messages: expected a list of {{'role': ..., 'content': ...}}, got {type(messages).__name__}")
    messages = list(messages)
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TypeError(f"messages[{i}]: expected a dict with a 'role', got {message!r:.80}")
    return messages


@functools.lru_cache(maxsize=16)
def compiled(template):
    return sandbox().environment().from_string(template)


def sandbox():
    """The module with the sandbox. It is imported with the first template: Jinja2 takes longer than all of gomlx."""
    from gomlx._generation import template_sandbox
    return template_sandbox
