"""Chat templates: where a model's files keep them, and rendering them in Jinja's sandbox."""
from __future__ import annotations

import functools
import json
import os
import traceback

from gomlx import _gomlx


def templates_in_folder(folder, tokenizer_config):
    """{name: template}: chat_template.jinja, then chat_template.json, then tokenizer_config.json."""
    templates = named(tokenizer_config.get("chat_template"))
    from gomlx.loading import read_json
    templates |= named(read_json(os.path.join(folder, "chat_template.json")).get("chat_template"))
    try:
        with open(os.path.join(folder, "chat_template.jinja"), encoding="utf-8") as file:
            templates["default"] = file.read()
    except FileNotFoundError:
        pass
    return templates


def templates_in_gguf(metadata):
    """{name: template}: tokenizer.chat_template and tokenizer.chat_template.<name>."""
    key = "tokenizer.chat_template"
    return {"default" if name == key else name[len(key) + 1:]: text for name, text in metadata.items()
            if (name == key or name.startswith(key + ".")) and isinstance(text, str)}


def named(value):
    """A template is a string, or a list of {"name": ..., "template": ...}."""
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        return {one["name"]: one["template"] for one in value
                if isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("template"), str)}
    return {}


def render(template, messages, **variables):
    """The template's text for messages. ValueError when the template refuses them, gomlx.Error when it is broken."""
    import jinja2
    messages = check_messages(messages)
    try:
        return compiled(template).render(messages=messages, **variables)
    except jinja2.TemplateSyntaxError as error:
        raise _gomlx.Error(f"chat template, line {error.lineno}: {error.message}") from None
    except Refused as error:
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise ValueError(f"the chat template refuses these messages ({roles}): {error}") from None
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError,
            RecursionError) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
        where = f", line {lines[-1]}" if lines else ""
        raise _gomlx.Error(f"chat template{where}: {type(error).__name__}: {error}") from error


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
    """The names that a template takes from outside; none when it cannot be read, which rendering will say."""
    import jinja2
    from jinja2 import meta
    try:
        return meta.find_undeclared_variables(environment().parse(template))
    except jinja2.TemplateSyntaxError:
        return frozenset()


def check_messages(messages):
    """messages as a list, also when an iterator brings them."""
    if isinstance(messages, (str, bytes, dict)):
        raise TypeError(f"messages: expected a list of {{'role': ..., 'content': ...}}, got {type(messages).__name__}")
    messages = list(messages)
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TypeError(f"messages[{i}]: expected a dict with a 'role', got {message!r:.80}")
    return messages


MAX_REPEATED = 1 << 20          # characters or items that a template makes with *
MAX_POWER = 1024                # of base and exponent


class Refused(Exception):
    """raise_exception(text) in a template."""


@functools.lru_cache(maxsize=16)
def compiled(template):
    return environment().from_string(template)


@functools.cache
def environment():
    """Jinja as Hugging Face's templates expect it: block trimming, loop controls, five names of their own."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks the assistant's text for training; rendering passes it through."""
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(text):
        raise Refused(text)

    def strftime_now(form):
        import datetime
        return datetime.datetime.now().strftime(form)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Sandbox(ImmutableSandboxedEnvironment):
        """A template cannot fill the memory with one product or power."""
        intercepted_binops = frozenset(("*", "**"))

        def call_binop(self, context, operator, left, right):
            if operator == "**":
                small = all(isinstance(one, (int, float)) and abs(one) <= MAX_POWER for one in (left, right))
            else:
                sizes = [len(one) if hasattr(one, "__len__") else one for one in (left, right)]
                small = not any(hasattr(one, "__len__") for one in (left, right)) or sizes[0] * sizes[1] <= MAX_REPEATED
            if not small:
                raise OverflowError(f"the result of {operator} is too long")
            return super().call_binop(context, operator, left, right)

    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return made
