"""What models write when they call tools, read as data: one reader per notation.

A reader takes the text between the markers and the tools that were offered, and returns ToolCalls. It never raises for
what a model wrote: a call that cannot be read, or that does not fit its tool, is a ToolCall with an error, and its raw
text is kept. Values that a notation writes as bare text get the type that the tool's JSON schema gives them.
"""
from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DEPTH = 64                                      # of nested values; deeper ones are an error of the call
QUOTE = '<|"|>'                                 # Gemma 4's quotation mark, a token of its own


@dataclass(frozen=True)
class ToolCall:
    """One call. error is None if it could be read and fits the tool; otherwise the other fields have what was read."""
    name: str | None
    arguments: dict[str, Any] | None
    raw: str                                    # what the model wrote, markers included
    error: str | None = None


class Unreadable(ValueError):
    """The text is not a call in the notation at hand."""


def schemas(tools: Sequence[dict[str, Any]] | None) -> dict[str, dict]:
    """{name: JSON schema of the parameters} of tools, bare or as {"type": "function", "function": {...}}."""
    found = {}
    for tool in tools or ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            found[function["name"]] = parameters if isinstance(parameters, dict) else {}
    return found


def made(name, arguments, raw, offered, error=None):
    """A ToolCall, checked against the tools if there are any."""
    if error is None and offered:
        if name not in offered:
            error = f"unknown tool {name!r}; expected one of " + ", ".join(offered)
        elif missing := [one for one in required(offered[name]) if one not in arguments]:
            error = f"{name}: missing " + ", ".join(missing)
    return ToolCall(name, arguments, raw, error)


def required(schema):
    names = schema.get("required")
    return [one for one in names if isinstance(one, str)] if isinstance(names, list) else []


def broken(raw, error):
    return ToolCall(None, None, raw, str(error))


def json_value(text, what):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{what} is not JSON: {error}") from None


def is_within_text(body):
    """Whether a call so far ends within a quoted text, or within the functions of read_xml()."""
    if body.lstrip().startswith("<function="):
        return not body.rstrip().endswith("</function>")
    if body.lstrip().startswith("call:"):
        return body.count(QUOTE) % 2 == 1
    return '"' in re.sub(r'"(?:[^"\\]|\\.)*"', "", body, flags=re.S)


# ---- JSON: Qwen, Hermes, Llama 3, Mistral ----

def from_object(value, raw, offered):
    """{"name": ..., "arguments" or "parameters": {...}}, also inside {"function": ...}."""
    if not isinstance(value, dict):
        return broken(raw, f"a call is an object with a name, got {type(value).__name__}")
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name", value.get("function"))
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(name, str):
        return broken(raw, "the call has no name")
    if isinstance(arguments, str):
        try:
            arguments = json_value(arguments, "arguments")
        except Unreadable as error:
            return ToolCall(name, None, raw, f"{name}: {error}")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        return ToolCall(name, None, raw, f"{name}: arguments are {type(arguments).__name__}, expected an object")
    return made(name, arguments, raw, offered)


def read_json(body, raw, offered):
    """One call, or a list of calls, as JSON."""
    try:
        value = json_value(body, "the call")
    except Unreadable as error:
        return [broken(raw, error)]
    return [from_object(one, raw, offered) for one in (value if isinstance(value, list) else [value])]


def read_tagged(body, raw, offered):
    """What is between <tool_call> and </tool_call>: JSON, or Qwen3-Coder's and Qwen3.5's <function=...>."""
    if body.lstrip().startswith("<function="):
        return read_xml(body, raw, offered)
    return read_json(body, raw, offered)


# ---- <function=NAME><parameter=KEY>value</parameter></function> ----

FUNCTION = re.compile(r"\s*<function=([^>\n]*)>(.*)", re.S)
PARAMETER = re.compile(r"<parameter=([^>\n]*)>")
TEXT = re.compile(r"(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.S)


def read_xml(body, raw, offered):
    several = re.split(r"(?<=</function>)\s*(?=<function=)", body.strip())
    return [read_function(one, raw if len(several) == 1 else one, offered) for one in several]


def read_function(body, raw, offered):
    found = FUNCTION.match(body)
    if found is None:
        return broken(raw, "expected <function=NAME>")
    name, rest = found[1].strip(), found[2]
    inside, closing, _ = rest.rpartition("</function>")
    inside = inside if closing else rest
    types = properties(offered.get(name, {}))
    arguments, errors = {}, [] if closing else ["</function> is missing"]
    for key, text in parameters(inside, types):
        text = text.removeprefix("\n").removesuffix("\n")
        try:
            arguments[key] = typed(text, types.get(key))
        except Unreadable as error:
            arguments[key] = text
            errors.append(f"{key}: {error}")
    return made(name, arguments, raw, offered, f"{name}: " + "; ".join(errors) if errors else None)


def parameters(text, types):
    """(key, text of the value) of each parameter. What is JSON by its type ends where the JSON does: it may have texts
    that look like tags."""
    at = 0
    while (found := PARAMETER.search(text, at)) is not None:
        key, at = found[1].strip(), found.end()
        kinds = kinds_of(types.get(key))
        whole = json_before(text, at, "</parameter>") if kinds and "string" not in kinds else None
        value, at = whole if whole is not None else ((rest := TEXT.match(text, at))[1], rest.end())
        yield key, value


def json_before(text, at, marker):
    """(the text of JSON that begins here and ends before a marker, where that ends); None: there is none."""
    at = blank(text, at)
    try:
        end = blank(text, json.JSONDecoder().raw_decode(text, at)[1])
    except (ValueError, RecursionError):
        return None
    return (text[at:end], end + len(marker)) if text.startswith(marker, end) else None


def properties(schema):
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def typed(text, schema):
    """The value of a text under a JSON schema: the text itself if the schema allows or states nothing else."""
    kinds = kinds_of(schema)
    for kind in kinds:
        try:
            value = json.loads(text if kind != "boolean" else text.strip().lower())
        except (ValueError, RecursionError):
            continue
        if is_kind(value, kind):
            return int(value) if kind == "integer" else value
    if not kinds or "string" in kinds:
        return text
    raise Unreadable(f"{text!r:.80} is not {' or '.join(kinds)}")


def kinds_of(schema):
    """The names of types that a schema allows; none if it does not state any."""
    if not isinstance(schema, dict):
        return []
    kind = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [one for one in kind if isinstance(one, str)]
    options = schema.get("anyOf") or schema.get("oneOf")
    return [name for one in options for name in kinds_of(one)] if isinstance(options, list) else []


def is_kind(value, kind):
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("integer", "number"):
        whole = isinstance(value, int) or isinstance(value, float) and value.is_integer()
        return not isinstance(value, bool) and (whole if kind == "integer" else isinstance(value, (int, float)))
    return {"object": isinstance(value, dict), "array": isinstance(value, list), "null": value is None}.get(kind, False)


# ---- Gemma 4: call:NAME{key:<|"|>text<|"|>,other:2,list:[1,{a:true}]} ----

def read_gemma(body, raw, offered):
    found = re.match(r"\s*call:([^{\s]+)\s*(?=\{)", body)
    if found is None:
        return [broken(raw, "expected call:NAME{...}")]
    name = found[1]
    try:
        arguments, at = gemma_value(body, found.end(), 0)
        if body[at:].strip():
            raise Unreadable(f"{body[at:].strip()!r:.40} follows the arguments")
    except Unreadable as error:
        return [ToolCall(name, None, raw, f"{name}: {error}")]
    return [made(name, arguments, raw, offered)]


SCALARS = {"true": True, "false": False, "null": None}


def gemma_value(text, at, depth):
    """(value, where it ends) of the value that begins at `at`."""
    if depth > DEPTH:
        raise Unreadable(f"values are nested more than {DEPTH} deep")
    at = blank(text, at)
    if text.startswith(QUOTE, at):
        end = text.find(QUOTE, at + len(QUOTE))
        if end < 0:
            raise Unreadable("a quotation is not closed")
        return text[at + len(QUOTE):end], end + len(QUOTE)
    if text[at:at + 1] == "{":
        return gemma_items(text, at + 1, "}", depth)
    if text[at:at + 1] == "[":
        return gemma_items(text, at + 1, "]", depth)
    word = re.compile(r"[^,{}\[\]]*").match(text, at)
    token = word[0].strip()
    if token in SCALARS:
        return SCALARS[token], word.end()
    try:
        return json.loads(token), word.end()
    except ValueError:
        raise Unreadable(f"{token!r:.40} at {at} is not a value") from None


GEMMA_KEY = re.compile(r'(?:<\|"\|>(.*?)<\|"\|>|([^:,{}\[\]]+)):', re.S)


def gemma_items(text, at, close, depth):
    values, found = {}, []
    while True:
        at = blank(text, at)
        if text[at:at + 1] == close and not found:
            return (values if close == "}" else found), at + 1
        if close == "}":
            key = GEMMA_KEY.match(text, at)
            if key is None:
                raise Unreadable(f"expected a key at {at}, got {text[at:at + 20]!r}")
            at = key.end()
        value, at = gemma_value(text, at, depth + 1)
        found.append(value)
        if close == "}":
            values[key[1] if key[1] is not None else key[2].strip()] = value
        at = blank(text, at)
        if text[at:at + 1] == close:
            return (values if close == "}" else found), at + 1
        if text[at:at + 1] != ",":
            raise Unreadable(f"expected ',' or '{close}' at {at}, got {text[at:at + 20]!r}")
        at += 1


def blank(text, at):
    while text[at:at + 1].isspace():
        at += 1
    return at


# ---- gpt-oss: the header names the tool, the message is its arguments ----

def read_harmony(body, raw, offered):
    """body: `assistant<|channel|>commentary to=functions.NAME json<|message|>{...}`"""
    header, _, body = body.partition("<|message|>")
    name = re.search(r"to=([^\s<]+)", header)[1].removeprefix("functions.")
    if name == "python":                        # the built-in tool takes code, not JSON
        return [ToolCall(name, {"code": body}, raw)]
    try:
        arguments = json_value(body, "arguments") if body.strip() else {}
    except Unreadable as error:
        return [ToolCall(name, None, raw, f"{name}: {error}")]
    if not isinstance(arguments, dict):
        return [ToolCall(name, None, raw, f"{name}: arguments are {type(arguments).__name__}, expected an object")]
    return [made(name, arguments, raw, offered if "to=functions." in header else {})]


# ---- Llama 3: bare JSON, or after <|python_tag|> JSON, a built-in call, or code ----

CALL_LENGTH = 4096                              # of a built-in call: Python's own parser recurses without a limit
BUILT_IN = re.compile(r"\s*(\w+)\.call\((.*)\)\s*", re.S)


def read_llama(body, raw, offered):
    if not body.lstrip().startswith("{"):
        return [read_python_tag(body, raw)]
    calls, at, decoder = [], 0, json.JSONDecoder()
    while at < len(body):                       # several calls follow each other, with ';' between
        at = re.compile(r"[\s;]*").match(body, at).end()
        if at == len(body):
            break
        try:
            value, end = decoder.raw_decode(body, at)
        except (ValueError, RecursionError) as error:
            return [*calls, broken(raw if not calls else body[at:], f"the call is not JSON: {error}")]
        calls.append(from_object(value, raw if (at, end) == (0, len(body)) else body[at:end], offered))
        at = end
    return calls


def read_python_tag(body, raw):
    found = BUILT_IN.fullmatch(body)
    if found is None:
        return ToolCall("python", {"code": body}, raw)
    if len(body) > CALL_LENGTH:
        return ToolCall(found[1], None, raw, f"{found[1]}: {len(body)} characters, expected {CALL_LENGTH} or fewer")
    try:
        keywords = ast.parse(f"f({found[2]})", mode="eval").body.keywords
        arguments = {one.arg: ast.literal_eval(one.value) for one in keywords if one.arg}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return ToolCall(found[1], None, raw, f"{found[1]}: arguments cannot be read: {error}")
    return ToolCall(found[1], arguments, raw)


# ---- Mistral: [{"name": ..., "arguments": ...}], or NAME[ARGS]{...} ----

def read_mistral(body, raw, offered):
    if body.lstrip().startswith(("[", "{")):
        return read_json(body, raw, offered)
    name, _, rest = body.partition("[ARGS]")
    name = name.partition("[CALL_ID]")[0].strip()
    if not rest and "{" in body:                # Mistral Small 3.2 writes NAME{...}
        name, _, rest = body.partition("{")
        name, rest = name.strip(), "{" + rest
    try:
        arguments = json_value(rest, "arguments")
    except Unreadable as error:
        return [ToolCall(name or None, None, raw, f"{name}: {error}")]
    return [from_object({"name": name, "arguments": arguments}, raw, offered)]


# ---- DeepSeek: TYPE<｜tool▁sep｜>NAME, then fenced JSON; since V3.1 NAME<｜tool▁sep｜>JSON ----

FENCED = re.compile(r"([^\n]*)\n```(?:json)?\n(.*?)\n?```\s*", re.S)
HEAD = re.compile(r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(?:([^\n{]*)\n```(?:json)?\n)?", re.S)


def read_deepseek(body, raw, offered):
    calls, at, begin = [], body.find("<｜tool▁call▁begin｜>"), "<｜tool▁call▁begin｜>"
    while at >= 0:
        end = deepseek_end(body, at)
        own, whole = body[at + len(begin):end], body[at:end]
        closing = "<｜tool▁call▁end｜>"
        own = own.removesuffix(closing)
        name, _, text = own.partition("<｜tool▁sep｜>")
        fenced = FENCED.fullmatch(text)
        name, text = (fenced[1], fenced[2]) if fenced else (name, text)
        name = name.strip()
        try:
            calls.append(from_object({"name": name, "arguments": json_value(text, "arguments")}, whole, offered))
        except Unreadable as error:
            calls.append(ToolCall(name, None, whole, f"{name}: {error}"))
        at = body.find(begin, end)
    return calls or [broken(raw, "expected <｜tool▁call▁begin｜>")]


def deepseek_end(body, at):
    """Where a call ends: after the marker that follows its JSON, or else the first one; or before the next call."""
    head, closing = HEAD.match(body, at), "<｜tool▁call▁end｜>"
    if head is not None:
        for marker in (closing, f"```{closing}"):
            if (found := json_before(body, head.end(), marker)) is not None:
                return found[1]
    end = body.find(closing, at)
    following = body.find("<｜tool▁call▁begin｜>", at + 1)
    if end >= 0 and (following < 0 or end < following):
        return end + len(closing)
    return following if following >= 0 else len(body)
