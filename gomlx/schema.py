"""JSON schemas as the grammar of an answer: what cannot be enforced is refused by name and place, nothing is dropped.

    prepared = prepare({"type": "object", "properties": {"age": {"type": "integer"}}})
    prepared.schema         # what the matcher gets: rewritten where that changes nothing of what is valid
    prepared.unenforced     # enforce="relaxed": the places that were left out

Drafts 4 to 2020-12. Nothing is fetched: a $ref that leaves the document is refused."""
from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, unquote, urldefrag, urljoin

from gomlx._generation import drafts, property_names
from gomlx._generation.array_schemas import all_that, why_not_compared, without_contains, without_unique
from gomlx._generation.exclusion import beside_others, canonical, exclude
from gomlx._generation.negation import NOTES, TYPES, all_of, is_closed, negation, without_if, without_one_of
from gomlx._generation.regular import automaton, rewriting
from gomlx._generation.regular.syntax import Unreadable

__all__ = ["Place", "Prepared", "UnsupportedSchema", "prepare"]

MAX_BYTES = 1 << 20             # of a schema, as JSON
LEAST_NUMBER = -2**62           # of those that are below it none is taken
MAX_DEPTH = 100                 # of values within one another
MAX_REWRITTEN = 100_000         # characters of what conditions become
MAX_NESTED = 8                  # conditions within one another that are rewritten
MAX_COMPARED = 1 << 25          # characters of branches of oneOf that are compared with others
MANY_NAMES = 256                # listed, from which on those of which nothing is said are one pattern
MAX_EFFORT = 80_000             # steps of all patterns together, and their characters
# The values of `format` that the matcher enforces; all others are annotations, as 2020-12 says.
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
DISTINCT = "x-distinct"         # of a prepared array: its items differ, which the matcher compares beside the grammar
# Keywords that no grammar here can hold a document to.
REFUSED = ("not", "if", "contains", "uniqueItems", "propertyNames", "unevaluatedItems", "unevaluatedProperties",
           "$dynamicRef", "$recursiveRef")
# What has no meaning without another keyword, or only names a place.
ALONE = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
NAMES = ("$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema", "$vocabulary", "$comment",
         "x-guidance")          # the matcher's own: it would leave out what it does not know
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
# Beside these a property or an item may be evaluated elsewhere.
APPLICATORS = ("allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "dependentSchemas", "contains")
NEW = ("/draft/2019-09/", "/draft/2020-12/")     # in a schema that names them, `format` is an annotation
OLD = ("/draft-03/", "/draft-04/", "/draft-06/", "/draft-07/")
# Keywords whose value is a schema, a list of schemas, a mapping to schemas.
ONE = ("additionalItems", "additionalProperties", "items")
LIST = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
MAP = ("properties", "patternProperties", "$defs", "definitions")
INNER = ("not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties")
# What the value of a keyword has to be, where it is read here.
FORMS = {"properties": dict, "patternProperties": dict, "$defs": dict, "definitions": dict, "dependentRequired": dict,
         "dependentSchemas": dict, "dependencies": dict, "allOf": list, "anyOf": list, "oneOf": list,
         "prefixItems": list, "required": list, "enum": list, "$ref": str}


@dataclass(frozen=True)
class Place:
    """What of a schema is not supported, and where: a JSON pointer into it, "" for its root."""
    pointer: str
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.keyword}: {self.reason}"


class UnsupportedSchema(ValueError):
    """A schema that cannot be enforced. places: a Place for each part that is the reason."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        super().__init__("the schema cannot be enforced: " + "; ".join(map(str, places)))


@dataclass
class Prepared:
    """schema: for the matcher; unenforced: what was left out of it (enforce="relaxed"), warnings: what is only an
    annotation; has_distinct: arrays are marked DISTINCT; document: the schema as it was read; origins: parts of schema,
    and the pointer in document of what each was made of."""
    schema: Any
    unenforced: list[Place] = field(default_factory=list)
    has_distinct: bool = False
    warnings: list[str] = field(default_factory=list)
    document: Any = None
    origins: list[tuple[dict[str, Any], str]] = field(default_factory=list)


def prepare(schema: Any, enforce: Literal["strict", "relaxed"] = "strict", strict_formats: bool = False,
            compares_items: bool = False, shows_words: bool = False) -> Prepared:
    """What the matcher is given for a schema, a dict or a boolean.

    enforce         "strict" refuses what cannot be enforced (UnsupportedSchema); "relaxed" leaves those keywords out
    strict_formats  a `format` that is not known is refused; else it is an annotation, and so is any in a schema whose
                    $schema is 2019-09 or 2020-12, as these say
    compares_items  the matcher compares the items of arrays that are marked DISTINCT; else uniqueItems is refused where
                    no grammar says it
    shows_words     patterns beside lengths or others have a text that holds to all of them as an alternative, which
                    takes some time: the matcher looks for one, and may give up before it finds any

    TypeError or ValueError for what is not a schema: not JSON, more than 1 MiB, deeper than 100 values."""
    if not isinstance(schema, bool | Mapping):
        raise TypeError(f"schema: expected a dict or a boolean, got {type(schema).__name__}")
    schema, lines = drafts.without_later(_as_json(schema))
    work = _Walk(schema, strict_formats, compares_items, shows_words)
    work.warnings += lines
    with automaton.effort(MAX_EFFORT):
        try:
            made = work.schema(schema, "")
            if made is False:
                raise UnsupportedSchema([Place("", "false", "no document is valid")])
            made = {} if made is True else made
            work.place_targets(made)
        except automaton.Exhausted as error:
            raise UnsupportedSchema([Place(work.at_work[0], work.at_work[1], str(error))]) from None
        except RecursionError:                      # trees of patterns are followed part by part
            raise UnsupportedSchema([Place(work.at_work[0], work.at_work[1], "too many nested parts")]) from None
    if work.places and enforce == "strict":
        raise UnsupportedSchema(work.places)
    fatal = [one for one in work.places if one.keyword == "$ref"]
    if fatal:                                       # what it stands for is not known: nothing would be left
        raise UnsupportedSchema(fatal)
    return Prepared(made, work.places, work.has_distinct, work.warnings, schema, work.origins)


def _as_json(schema):
    check_size(schema)
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"schema: not JSON: {error}") from None
    if len(text) > MAX_BYTES:
        raise ValueError(f"schema: {len(text)} bytes of JSON, expected at most {MAX_BYTES}")
    _check_numbers(schema)
    return json.loads(text)


def _check_numbers(schema: Any) -> None:
    """UnsupportedSchema for numbers with which the matcher, which negates 64-bit integers, would recurse for ever."""
    level = [schema]
    while level:
        for one in level:
            if isinstance(one, int | float) and one < LEAST_NUMBER:
                raise UnsupportedSchema([Place("", "number", f"{one} is below {LEAST_NUMBER}")])
        level = [inner for one in level for inner in _children(one)]


def check_size(schema: Any) -> None:
    """ValueError for what is certainly larger or deeper than a schema may be, after a look at no more than that."""
    level, depth, length = [schema], 0, 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"schema: more than {MAX_DEPTH} values within one another")
        inner: list[Any] = []
        for one in level:
            length += len(one) + 2 if isinstance(one, str) else 1
            if isinstance(one, Mapping):
                length += sum(len(key) + 4 for key in one if isinstance(key, str))
            inner += _children(one)
            if length + 2 * len(inner) > MAX_BYTES:
                raise ValueError(f"schema: more than {MAX_BYTES} bytes of JSON")
        level = inner


def _children(value) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


class _Walk:
    """One pass over a schema: copies it, rewrites what can be, collects what cannot."""

    def __init__(self, root, strict_formats, compares_items, shows_words):
        self.root = root
        self.shows_words = shows_words
        self.compares_items, self.has_distinct = compares_items, False
        named = root.get("$schema", "") if isinstance(root, dict) else ""
        self.is_old = isinstance(named, str) and any(one in named for one in OLD)
        self.formats_are_notes = isinstance(named, str) and any(one in named for one in NEW) and not strict_formats
        self.uris = _Uris(root, self.is_old)
        self.strict_formats = strict_formats
        self.places = []
        self.at_work = "", "pattern"                # (a pointer, the keyword there whose patterns are looked at)
        self.warnings = []
        self.depth = 0                              # of rewritten conditions within one another
        self.rewritten = 0                          # characters of what they have become
        self.cyclic = {}                            # {pointer: whether its $ref leads back to itself}
        self.walked = {}                            # {pointer: what the schema there has become}
        self.origins = []                           # (a schema of the copy, where what it was made of stands)
        self.references = []                        # (a schema of the copy, the pointer of what its $ref leads to)
        self.left = MAX_COMPARED

    def refuse(self, pointer, keyword, reason):
        place = Place(self.existing(pointer), keyword, reason)
        if place not in self.places[-1:]:           # of a part that was rewritten as several
            self.places.append(place)

    def existing(self, pointer):
        """The pointer, or where the part that was rewritten to what it leads to stands in the document."""
        while found_at(self.root, pointer) is None:
            pointer = pointer.rpartition("/")[0]
        return pointer

    def look_at(self, pointer, keyword):
        self.at_work = self.existing(pointer) if self.depth else pointer, keyword

    def schema(self, schema, pointer):
        made = self.copy(schema, pointer)
        if self.depth == 0:
            self.walked[pointer] = made
        if isinstance(made, dict):
            self.origins.append((made, self.existing(pointer) if self.depth else pointer))
        return made

    def copy(self, schema, pointer):
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise ValueError(f"schema: {pointer or '/'} is {json.dumps(schema)[:60]}, expected an object or a boolean")
        self.check_forms(schema, pointer)
        if self.is_old and isinstance(schema.get("$ref"), str):        # drafts up to 7: what is beside it says nothing
            kept = {key: value for key, value in schema.items() if key in ("$ref", "definitions", "$defs")}
        else:
            kept = {key: value for key, value in schema.items() if key not in NAMES and key != DISTINCT
                    and (key not in ALONE or ALONE[key] in schema)}
        made = {key: self.value(key, value, f"{pointer}/{_escaped(key)}") for key, value in kept.items()}
        self.dynamic_reference(made, kept)
        self.look_at(pointer, "propertyNames")
        for rewrite in (self.counts, self.unevaluated, self.names_of_properties, self.dependencies):
            rewrite(made, kept)
        self.patterns(made, pointer)
        if self.conditions(made, kept, pointer) is False:
            return False
        reasons = self.compare_items(made, kept, pointer)
        for keyword in REFUSED:
            if keyword in made and not self.says_nothing(keyword, kept):
                self.refuse(pointer, keyword, reasons.get(keyword, "no grammar can hold a text to it"))
            made.pop(keyword, None)
        for keyword in ALONE:
            made.pop(keyword, None)
        self.reference(made, made, pointer)
        self.format(made, pointer)
        if "oneOf" in made:
            self.one_of(made, kept, pointer)
        return made

    def check_forms(self, schema, pointer):
        for keyword, form in FORMS.items():
            if keyword in schema and not isinstance(schema[keyword], form):
                what = {dict: "an object", list: "a list", str: "a text"}[form]
                raise ValueError(f"schema: {pointer}/{keyword} is {json.dumps(schema[keyword])[:60]}, expected {what}")

    # ---- rewrites that change nothing of what is valid ----

    def conditions(self, made, schema, pointer):
        """`not`, `if` and overlapping branches, where other keywords say the same; False: nothing is valid."""
        for keyword in ("not", "if", "oneOf", "contains", "uniqueItems"):
            if keyword not in made or keyword != "oneOf" and self.says_nothing(keyword, schema):
                continue
            self.look_at(pointer, keyword)
            if keyword == "oneOf":
                if self.are_too_large(schema["oneOf"]) or self.clash_of(schema) is None:
                    continue
                kind = {"type": schema["type"]} if "type" in schema else {}
                said = without_one_of(schema["oneOf"], [kind | one if is_closed(one) else one
                                                        for one in map(self.in_full, schema["oneOf"])])
            else:
                said = self.without(keyword, schema)
            if said is None or self.depth == MAX_NESTED or self.uris.are_inner(f"{pointer}/{keyword}"):
                continue
            self.rewritten += len(json.dumps(said))
            if self.rewritten > MAX_REWRITTEN:
                continue
            if said is not True:
                self.depth += 1
                said = self.schema(said, f"{pointer}/{keyword}")
                self.depth -= 1
            if said is False:
                return False
            for one in (keyword, "then", "else") if keyword == "if" else (keyword,):
                made.pop(one, None)
            if said is not True:
                _also(made, said)
        return None

    def without(self, keyword, schema):
        """What one keyword says, by others; None: cannot."""
        if keyword == "not":
            return negation(self.in_full(schema["not"]))
        if keyword == "if":
            return without_if(schema)
        if keyword == "contains":
            return without_contains(schema)
        values = all_that(self.in_full(schema["items"]) if isinstance(schema.get("items"), dict | bool) else True)
        return without_unique(schema, values and list({canonical(one): one for one in values}.values()))

    def compare_items(self, made, schema, pointer):
        """Marks an array whose items the matcher compares; {"uniqueItems": why it does not}."""
        if not self.compares_items or made.get("uniqueItems") is not True:
            return {}
        beside: dict[str, Any] = {}
        found = re.search(r"/(allOf|anyOf|oneOf)/(\d+)$", pointer)
        parent = found_at(self.root, pointer[:found.start()]) if found else None
        if found and isinstance(parent, dict):
            beside = {key: value for key, value in parent.items() if key != found[1]}
            if found[1] == "allOf":
                beside["allOf"] = [one for i, one in enumerate(parent["allOf"]) if i != int(found[2])]
        why = why_not_compared(schema, beside, self.resolved)
        if why is not None:
            return {"uniqueItems": why}
        del made["uniqueItems"]
        made[DISTINCT] = self.has_distinct = True
        return {}

    def counts(self, made, schema):
        for keyword in COUNTS:
            if isinstance(made.get(keyword), float) and made[keyword].is_integer():
                made[keyword] = int(made[keyword])

    def unevaluated(self, made, schema):
        """Where nothing else can have evaluated them, those that are left are the additional ones."""
        if any(one in schema for one in APPLICATORS):
            return
        items = "additionalItems" if isinstance(schema.get("items"), list) else "items"
        for keyword, plain in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", items)):
            if keyword in made:
                value = made.pop(keyword)
                made.setdefault(plain, value)

    def names_of_properties(self, made, schema):
        """The names that are valid, as the properties that there may be."""
        names = self.in_full(schema["propertyNames"]) if "propertyNames" in schema else True
        if names is False:
            del made["propertyNames"]
            _also(made, {"type": [one for one in TYPES if one != "object"]}, {"maxProperties": 0})
        if not isinstance(names, dict) or "propertyNames" not in made:
            return
        with contextlib.suppress(automaton.TooLarge, Unreadable):
            self.only_names(made, {key: one for key, one in names.items() if key not in NOTES})

    def only_names(self, made, names):
        if "enum" in names or "const" in names:
            self.only_these_names(made, names)
            return
        found = property_names.names_of(names, self.in_full, set() if self.formats_are_notes else FORMATS)
        if found is None:
            return
        known = {name: one if name in found else False for name, one in made.get("properties", {}).items()}
        patterns: dict[str | None, Any] = {}
        for one, value in made.get("patternProperties", {}).items():
            property_names.add(patterns, property_names.within(one, names, found), value)
        additional = made.get("additionalProperties", True)
        if additional is not False:
            rest = found & ~property_names.Names.of_texts(known) if known else found
            for one in made.get("patternProperties", {}):
                rest &= ~property_names.Names.of_pattern(one)
            property_names.add(patterns, rest.pattern(), additional)
        patterns.pop(None, None)
        made["properties"] = known
        made.pop("patternProperties", None)
        if patterns:
            made["patternProperties"] = patterns
        made["additionalProperties"] = False
        del made["propertyNames"]

    def only_these_names(self, made, names):
        """Where they are listed, each is a property, with all that is said of it."""
        formats = set() if self.formats_are_notes else FORMATS
        found = property_names.listed(names, self.in_full, formats)
        if found is None:
            return
        additional, own = made.get("additionalProperties", True), made.get("properties", {})
        known = {}
        for name in found if additional is not False else [*(one for one in own if one in found), *found]:
            said = [own[name]] if name in own else []
            said += [value for pattern, value in made.get("patternProperties", {}).items()
                     if property_names.has_match(pattern, name)]
            known[name] = all_of(said or [additional])
        made |= {"properties": known, "additionalProperties": False}
        made.pop("patternProperties", None)
        if len(known) > MANY_NAMES:                 # more properties than the matcher follows: one pattern says them
            rest = {name: one for name, one in known.items() if name not in own and one == additional}
            made["properties"] = {name: one for name, one in known.items() if name not in rest}
            property_names.add(made.setdefault("patternProperties", {}),
                               property_names.Names.of_texts(rest).pattern(), additional)
            made["patternProperties"].pop(None, None)
        del made["propertyNames"]

    def patterns(self, made, pointer):
        """In the matcher's syntax, and so that it finds a text that holds to them and to the lengths, too."""
        for keyword, rewrite in (("patternProperties", self.patterns_of_names), ("pattern", self.pattern)):
            self.look_at(pointer, keyword)
            try:
                rewrite(made)
            except (automaton.TooLarge, Unreadable) as error:
                self.refuse(pointer, keyword, f"a pattern that cannot be read or rewritten: {error}")
                made.pop(keyword, None)

    def patterns_of_names(self, made):
        if not isinstance(made.get("patternProperties"), dict):
            return
        said: dict[str, Any] = {}
        for pattern, value in property_names.disjoint(made["patternProperties"]).items():
            property_names.add(said, rewriting.one_of_names(pattern), value)
        made["patternProperties"] = said

    def pattern(self, made):
        if not isinstance(made.get("pattern"), str):
            return
        parts = rewriting.rewritten(made["pattern"])
        del made["pattern"]
        least, most = made.get("minLength", 0), made.get("maxLength")
        if parts and self.shows_words and (least or most is not None or len(parts) > 1) and not any(
                isinstance(one, bool) or not isinstance(one, int) for one in (least, most or 0)):
            parts = rewriting.with_word(parts, least, most)
        if parts:
            made["pattern"] = parts[0]
        if parts[1:]:
            made["allOf"] = [*made.get("allOf", ()), *({"pattern": one} for one in parts[1:])]

    def dynamic_reference(self, made, schema):
        """One that leads to the same place whatever refers to it is a $ref."""
        target = made.get("$dynamicRef", made.get("$recursiveRef"))
        if not isinstance(target, str) or "$ref" in made:
            return
        if "$dynamicRef" in made and self.uris.n_dynamic.get(target.rpartition("#")[2], 0) <= 1:
            made["$ref"] = made.pop("$dynamicRef")
        elif "$recursiveRef" in made and self.uris.n_recursive == 0:
            made["$ref"] = made.pop("$recursiveRef")

    def dependencies(self, made, schema):
        """If there is a property, others are required, or a schema holds: either it is not there, or they do."""
        rules = [(name, rule) for keyword in ("dependentRequired", "dependentSchemas", "dependencies")
                 for name, rule in made.pop(keyword, {}).items()]
        for name, rule in rules:
            then = {"required": rule if isinstance(rule, list) else [rule]} if isinstance(rule, list | str) else rule
            if then not in (True, {}, {"required": []}):
                _also(made, {"properties": {name: False}}, then)

    def value(self, key, value, pointer):
        if key in ("$defs", "definitions") and isinstance(value, dict):     # what is no schema is nothing to refer to
            value = {name: one for name, one in value.items() if isinstance(one, dict | bool)}
        if key in MAP and isinstance(value, dict):
            return {name: self.schema(one, f"{pointer}/{_escaped(name)}") for name, one in value.items()}
        if key in LIST and isinstance(value, list):
            return [self.schema(one, f"{pointer}/{i}") for i, one in enumerate(value)]
        if key in ("dependentSchemas", "dependencies") and isinstance(value, dict):
            return {name: one if isinstance(one, list | str) else self.schema(one, f"{pointer}/{_escaped(name)}")
                    for name, one in value.items()}
        if key in ONE or key in INNER[-2:]:
            return self.schema(value, pointer)
        return value

    def says_nothing(self, keyword, schema):
        """Whether a keyword leaves everything valid that is, here."""
        value = schema[keyword]
        if keyword == "not":
            return value is False
        if keyword == "if":
            return "then" not in schema and "else" not in schema
        if keyword == "contains":
            return schema.get("minContains", 1) == 0 and "maxContains" not in schema
        if keyword in ("propertyNames", "unevaluatedItems", "unevaluatedProperties"):
            return value is True or value == {}
        return value in (False, {})

    def reference(self, made, schema, pointer):
        """A $ref is within the document, and leads somewhere: it becomes a pointer from the root."""
        target = schema.get("$ref")
        if not isinstance(target, str):
            return
        found = self.uris.pointer_of(target, pointer)
        if found is None:
            self.refuse(pointer, "$ref", f"{target!r} is not in this document, and nothing is fetched")
        elif self.is_cycle(found):
            self.refuse(pointer, "$ref", f"{target!r} leads back to itself")
        else:
            made["$ref"] = "#" + quote(found)
            self.references.append((made, found))

    def place_targets(self, made):
        """What a $ref leads to, but does not stand in the copy as a schema, or has become what else holds there, too,
        is put beside the definitions."""
        places = {}
        while self.references:
            schema, pointer = self.references.pop()
            if pointer and (pointer not in self.walked or found_at(made, pointer) is not self.walked[pointer]):
                if pointer not in places:
                    definitions = made.setdefault("$defs", {})
                    name = next(name for i in itertools.count() if (name := f"target {i}") not in definitions)
                    places[pointer] = name
                    definitions[name] = True                    # the place is taken: it may refer to itself
                    self.depth += 1
                    definitions[name] = self.schema(found_at(self.root, pointer), pointer)
                    self.depth -= 1
                schema["$ref"] = "#/$defs/" + quote(places[pointer])

    def is_cycle(self, pointer):
        seen = set()
        while pointer is not None and pointer not in self.cyclic and pointer not in seen:
            seen.add(pointer)
            schema = found_at(self.root, pointer)
            target = schema.get("$ref") if isinstance(schema, dict) else None
            pointer = self.uris.pointer_of(target, pointer) if isinstance(target, str) else None
        found = pointer in seen or self.cyclic.get(pointer, False)
        self.cyclic.update(dict.fromkeys(seen, found))
        return found

    def format(self, made, pointer):
        name = made.get("format")
        if not isinstance(name, str) or name in FORMATS and not self.formats_are_notes:
            return
        if self.strict_formats:
            self.refuse(pointer, "format", f"{name!r} is not enforced")
        else:
            self.warnings.append(f"{pointer or '/'}: format {name!r} is an annotation: it is not enforced")
        del made["format"]

    def one_of(self, made, schema, pointer):
        """oneOf is anyOf where no two branches have a document in common."""
        clash = None
        self.look_at(pointer, "oneOf")
        if self.are_too_large(schema["oneOf"]):
            self.refuse(pointer, "oneOf",
                        f"its {len(schema['oneOf'])} branches are too large to compare each with all others")
        else:
            clash = self.clash_of(schema)
        if clash is not None:
            self.refuse(pointer, "oneOf", f"branches {clash[0]} and {clash[1]} may have a document in common")
        alternatives = made.pop("oneOf")
        if "anyOf" in made:
            made["allOf"] = [*made.get("allOf", ()), {"anyOf": alternatives}]
        else:
            made["anyOf"] = alternatives

    def clash_of(self, schema):
        """Two branches of a oneOf that may have a document in common; None: there are no two."""
        beside = {key: value for key, value in schema.items() if key != "oneOf"}
        branches = [beside_others(self.resolved(one), beside) for one in schema["oneOf"]]
        return next(((i, k) for k in range(len(branches)) for i in range(k)
                     if not exclude(branches[i], branches[k], self.resolved)), None)

    def are_too_large(self, alternatives):
        """Whether comparing them would take long: each one's length counts as often as it is compared."""
        branches = [self.resolved(one) for one in alternatives]
        for one in branches:
            self.left -= (len(json.dumps(one)) + 100) * len(branches)     # each comparison takes some time, too
            if self.left < 0:
                return True
        return False

    def resolved(self, schema, is_in_full=False):
        """What a $ref leads to, which is all or part of what it says; itself where that is not known here."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict):
                return schema is not False
            target = schema.get("$ref")
            if not isinstance(target, str) or is_in_full and not self.is_old and schema.keys() - NOTES - {"$ref"}:
                return schema
            # Where there are several bases, what the target is depends on where the $ref stands: that is not known.
            pointer = self.uris.pointer_of(target, "") if len(self.uris.bases) == 1 else None
            found = None if pointer is None else found_at(self.root, pointer)
            if not isinstance(found, dict | bool):
                return {"$ref": target} if self.is_old else schema      # up to draft 7 nothing is said beside it
            schema = found
        return schema

    def in_full(self, schema):
        """The same where nothing beside a $ref says more, else what has this one."""
        return self.resolved(schema, True)


class _Uris:
    """What URIs the parts of a document have: their pointers, by URI without and with a fragment's name."""

    def __init__(self, root, is_old):
        self.root, self.is_old = root, is_old
        self.named = {}                             # {URI: pointer}
        self.bases = {}                             # {pointer of what has an $id: its URI}
        self.n_dynamic, self.n_recursive = Counter(), 0     # of anchors that depend on what refers to them
        self._enter(root, "", "")

    def _enter(self, value, pointer, base, is_schema=True):
        if isinstance(value, list):
            for i, one in enumerate(value):
                self._enter(one, f"{pointer}/{i}", base)
        if not isinstance(value, dict):
            return
        if is_schema:
            base = self._name(value, pointer, base)
        for key, one in value.items():
            if not is_schema or key not in ("const", "enum", "default", "examples"):
                inner = is_schema and (key in MAP or key in ("dependentSchemas", "dependencies"))
                self._enter(one, f"{pointer}/{_escaped(key)}", base, not inner)

    def _name(self, schema, pointer, base):
        own = schema.get("$id", schema.get("id"))
        if isinstance(own, str) and not (self.is_old and "$ref" in schema):
            uri, fragment = urldefrag(urljoin(base, own))
            if fragment:
                self.named.setdefault(f"{uri}#{fragment}", pointer)
            else:
                base = uri
                self.named.setdefault(uri, pointer)
                self.bases[pointer] = uri
        if not pointer and pointer not in self.bases:
            self.named.setdefault("", pointer)
            self.bases[pointer] = ""
        self.n_recursive += schema.get("$recursiveAnchor") is True
        if isinstance(schema.get("$dynamicAnchor"), str):
            self.n_dynamic[schema["$dynamicAnchor"]] += 1
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                self.named.setdefault(f"{base}#{schema[key]}", pointer)
        return base

    def are_inner(self, pointer):
        """Whether a part there, or of what belongs to an `if`, has its own base: once it is moved, its references would
        lead elsewhere."""
        places = [pointer, pointer[:-2] + "then", pointer[:-2] + "else"] if pointer.endswith("/if") else [pointer]
        return any(f"{base}/".startswith(f"{one}/") for base in self.bases for one in places)

    def pointer_of(self, target, pointer):
        """Of what a $ref at a pointer leads to; None: it is not in the document."""
        at = pointer
        while at not in self.bases:
            at = at.rpartition("/")[0]
        base, fragment = self.bases[at], ""
        if target.startswith("#"):
            uri, fragment = base, target[1:]
        else:
            uri, fragment = urldefrag(urljoin(base, target))
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self.named.get(f"{uri}#{fragment}")
        if uri not in self.named:
            return None
        found = self.named[uri] + fragment
        return found if isinstance(found_at(self.root, found), dict | bool) else None


def _also(made, *ways):
    """One of these holds beside all else."""
    made["allOf"] = [*made.get("allOf", ()), ways[0] if len(ways) == 1 else {"anyOf": list(ways)}]


def _escaped(key):
    return key.replace("~", "~0").replace("/", "~1")


def pointer_of_fragment(target: str) -> str:
    """The pointer that "#..." has."""
    return unquote(target[1:])


def found_at(root: Any, pointer: str) -> Any:
    """The value at a pointer; None: there is none."""
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(root, list) and part.isdigit() and int(part) < len(root):
            root = root[int(part)]
        elif isinstance(root, dict) and part in root:
            root = root[part]
        else:
            return None
    return root
