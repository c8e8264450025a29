"""Arguments of calls that are not JSON: Gemma 4's values, and parameters between XML tags. A schema becomes rules of
call_grammars.Rules; what a notation cannot hold a value to is refused for strict tools, and left out for others."""
from __future__ import annotations

import json
import re
from typing import Any

from gomlx._generation.grammar_rules import TEXT, Offer, Rules, as_json, escaped, literal, one_of
from gomlx._generation.tool_calls import QUOTE, kinds_of
from gomlx.schema import Place, UnsupportedSchema, found_at, pointer_of_fragment

# What says nothing of a value.
NOTES = {"title", "description", "default", "examples", "$defs", "definitions", "deprecated", "readOnly", "writeOnly",
         "additionalProperties"}
NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
# Keywords that rules have, by type; those of no type say what the values are.
KNOWN = {"string": {"minLength", "maxLength"}, "integer": NUMBERS, "number": NUMBERS, "boolean": set(), "null": set(),
         "array": {"items", "minItems", "maxItems"}, "object": {"properties", "required"}}
MANY = 32                       # items that minItems and maxItems are counted up to
NEWLINE = "\n"
NUMBER = '%json {"type": "number"}'


def length_of(schema: dict[str, Any]) -> str:
    """The pattern of a string's characters."""
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return TEXT if not least and most == "" else f"(?s:.{{{least},{most}}})"


class Values:
    """Rules for the values of one tool's arguments in Gemma 4's notation."""

    def __init__(self, rules: Rules, offer: Offer) -> None:
        self._rules, self._offer = rules, offer

    def beyond(self, pointer: str, keyword: str) -> None:
        """Something that the notation cannot be held to: an error for strict tools."""
        if self._offer.is_strict:
            raise UnsupportedSchema([Place(self._offer.place + pointer, keyword,
                                           "calls of this model are in a notation that cannot be held to it")])

    def value(self, schema: Any, pointer: str) -> str:
        if schema is True or schema == {}:
            return self.anything()
        if not isinstance(schema, dict):
            self.beyond(pointer, "false")
            return self.anything()
        if "$ref" in schema:
            return self.referred(schema["$ref"])
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            return one_of([self.constant(one) for one in values])
        if "anyOf" in schema:
            self.check(schema, {"anyOf", "type"}, pointer)
            return one_of([self.value(one, f"{pointer}/anyOf/{i}") for i, one in enumerate(schema["anyOf"])])
        kinds = kinds_of(schema)
        if not kinds:
            self.check(schema, set(), pointer)
            return self.anything()
        self.check(schema, {"type"}.union(*(KNOWN.get(one, ()) for one in kinds)), pointer)
        return one_of([self.of_kind(one, schema, pointer) for one in kinds])

    def check(self, schema, known, pointer):
        for keyword in schema:
            if keyword not in known and keyword not in NOTES:
                self.beyond(pointer, keyword)

    def referred(self, target):
        key = f"{self._offer.name} {target}"
        name, is_new = self._rules.begin(key)
        if is_new:
            pointer = pointer_of_fragment(target)
            self._rules.end(name, self.value(found_at(self._offer.schema, pointer), pointer))
        return name

    def of_kind(self, kind, schema, pointer):
        if kind == "string":
            return self.string(schema)
        if kind == "array":
            return self.array(schema, pointer)
        if kind == "object":
            return self.object(schema, pointer)
        return "%json " + json.dumps({key: one for key, one in schema.items() if key in NUMBERS} | {"type": kind})

    def quoted(self, text):
        quote = self._rules.mark(QUOTE)
        return f"{quote} {literal(text)} {quote}" if text else f"{quote} {quote}"

    def string(self, schema):
        return f"{self._rules.mark(QUOTE)} {self._rules.until(QUOTE, pattern=length_of(schema))}"

    def constant(self, value):
        if isinstance(value, str):
            return self.quoted(value)
        if isinstance(value, list):
            return '"[" ' + ' "," '.join(self.constant(one) for one in value) + ' "]"'
        if isinstance(value, dict):
            return '"{" ' + ' "," '.join(f"{self.key(name)} {self.constant(one)}"
                                         for name, one in value.items()) + ' "}"'
        return literal(json.dumps(value))

    def key(self, name):
        return literal(f"{name}:") if re.fullmatch(r"[\w.-]+( [\w.-]+)*", name) else f'{self.quoted(name)} ":"'

    def anything(self):
        name, is_new = self._rules.begin("any value of Gemma's")
        if is_new:
            key = self._rules.add("/[A-Za-z_][A-Za-z0-9_]{0,40}:/")
            self._rules.end(name, f'{self.string({})} | {NUMBER} | "true" | "false" | "null" | '
                            f'"[" ({name} ("," {name})*)? "]" | "{{" ({key} {name} ("," {key} {name})*)? "}}"')
        return name

    def array(self, schema, pointer):
        item = self._rules.add(self.value(schema.get("items", True), f"{pointer}/items"))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if least > MANY or (most is not None and most > MANY):
            self.beyond(pointer, "minItems" if least > MANY else "maxItems")
            least, most = min(least, MANY), None
        if most == 0:
            return '"[" "]"'
        times = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        return f'"[" {item} ("," {item}){times} "]"' if least else f'"[" ({item} ("," {item}){times})? "]"'

    def object(self, schema, pointer):
        properties = schema.get("properties") or {}
        if not properties and schema.get("additionalProperties", True) is not False:
            of = schema.get("additionalProperties", True)
            value = self._rules.add(self.value(of, f"{pointer}/additionalProperties"))
            key = self._rules.add("/[A-Za-z_][A-Za-z0-9_]{0,40}:/")
            return self._named(f'"{{" ({key} {value} ("," {key} {value})*)? "}}"', schema, pointer)
        members = [(f"{self.key(name)} {self.value(one, f'{pointer}/properties/{name}')}",
                    name in schema.get("required", ())) for name, one in properties.items()]
        return f'"{{" {self._rest(members, True)} "}}"'

    def _named(self, made, schema, pointer):
        if schema.get("required"):
            self.beyond(pointer, "required")
        return made

    def _rest(self, members, is_first):
        """Members from here on: those that are not required may be left out."""
        if not members:
            return '""'
        (member, is_required), *others = members
        after = self._rest(others, False)
        here = f'{"" if is_first else chr(34) + "," + chr(34)} {member} {after}'
        if is_required:
            return self._rules.add(here)
        return self._rules.add(f"{here} | {self._rest(others, True) if is_first else after}")


def gemma_call(rules: Rules, offer: Offer) -> str:
    """call:NAME{...}"""
    made = Values(rules, offer)
    return f'"call:{offer.name}" {made.value({"type": "object"} | offer.schema, "")}'


# ---- <function=NAME><parameter=KEY>value</parameter></function> ----

END = "</parameter>"
TAGS = ("<parameter=", "</function>", "<function=", "</tool_call>")


def xml_function(rules: Rules, offer: Offer) -> str:
    """The parameters in the order of the schema; those that are not required may be left out."""
    made = XmlValues(rules, offer)
    properties = offer.schema.get("properties") or {}
    required = [one for one in offer.schema.get("required", ()) if isinstance(one, str)]
    made.check(offer.schema, {"type", "properties", "required"}, "")
    parts = []
    for name, schema in (properties | {one: {} for one in required if one not in properties}).items():
        if set(name) & set("<>\n"):                     # where it ends would not be where the tag does
            made.beyond(f"/properties/{name}", "properties")
            continue
        part = f"{literal(f'<parameter={name}>' + NEWLINE)} {made.parameter(schema, f'/properties/{name}')}"
        parts.append(part if name in required else f"({part})?")
    return f"{literal(f'<function={offer.name}>' + NEWLINE)} {' '.join(parts)} \"</function>\""


class XmlValues(Values):
    """A string is bare text, any other value JSON; each with the end of its parameter."""

    def parameter(self, schema, pointer):
        end = literal(f"\n{END}\n")
        if not isinstance(schema, dict):
            return self.text({})
        kinds = kinds_of(schema)
        if ("const" in schema or "enum" in schema) and set(kinds) <= {"string"}:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            texts = [one for one in values if isinstance(one, str) and not any(tag in one for tag in (END, *TAGS))]
            if len(texts) < len(values):
                self.beyond(pointer, "const" if "const" in schema else "enum")
            return f"{one_of([literal(one) for one in texts])} {end}" if texts else self.text({})
        if kinds and "string" not in kinds:
            root = self._offer.schema
            named = {key: root[key] for key in ("$defs", "definitions") if key in root}
            return f"{as_json(schema | named, self._offer.spacing)} {end}"
        self.check(schema, {"type", *(KNOWN["string"] if kinds == ["string"] else ())}, pointer)
        return self.text(schema if kinds == ["string"] else {})

    def text(self, schema):
        last = escaped(END)
        inner = [last + "(?s:.)", *map(escaped, TAGS)]
        return self._rules.add(self._rules.terminal(length_of(schema) + r"\n" + last, inner), "[lazy]") + ' "\\n"'
