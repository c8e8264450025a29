"""Answers that have to be something: schemas, types, regexes, grammars, choices; what is refused, and what is left of
an answer that was cut off."""
import dataclasses
import enum
import json
import os
import random
import re
import sys
from typing import Literal, NotRequired, TypedDict

import pytest
from test_schema_suite import Bytes

import gomlx
from gomlx._generation import constraints
from gomlx._generation.constraints import Constraint, standing

pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="gomlx[structured] is not installed")
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        yield loaded


@dataclasses.dataclass
class Inner:
    x: bool
    kind: Literal["a", "b"]


class Colour(enum.Enum):
    red = "r"
    green = "g"


@dataclasses.dataclass
class Outer:
    inner: Inner
    many: list[Inner]
    colour: Colour
    either: bool | None
    pair: tuple[bool, Colour]
    note: Literal["n"] = "n"


class Film(TypedDict):
    seen: bool
    stars: Literal[1, 2, 3]
    by: NotRequired[Colour]


def answer(model, **options):
    return model.generate(PROMPT, **{"max_tokens": 300, "temperature": 1.5, "seed": 1} | options).read()


def finished(model, **options):
    """The first result that is whole, of several seeds."""
    for seed in range(40):
        result = answer(model, seed=seed, **{"temperature": 4.0} | options)
        if result.incomplete is None:
            assert result.finish_reason == "stop"
            return result
        assert result.parsed is None and result.finish_reason == "length"
    raise AssertionError("none of 40 answers came to an end")


# ---- kinds ----

@pytest.mark.parametrize("pattern", ["[a-c]{3,5}!", r"\d{4}-\d\d", "(yes|no)( (yes|no)){2}", "[^a-z]{5}"])
def test_regex(model, pattern):
    for seed in range(5):
        result = answer(model, regex=pattern, seed=seed)
        assert re.fullmatch(pattern, result.text) and result.parsed == result.text and result.finish_reason == "stop"


def test_choice(model):
    texts = ["yes", "no", 'a "quoted" one\n', "ja", "nein"]
    assert {answer(model, choice=texts, seed=i, temperature=20.0).parsed for i in range(60)} == set(texts)


@pytest.mark.parametrize("grammar, pattern", [
    ('start: "x" NUMBER ("," NUMBER)? "y"\nNUMBER: /[0-9]{2}/', "x[0-9]{2}(,[0-9]{2})?y"),
    ('root ::= "a" item{3} "."\nitem ::= [0-9] | "(" item ")"', r"a[0-9()]{3,}\."),
])
def test_grammars(model, grammar, pattern):
    result = finished(model, grammar=grammar)
    assert re.fullmatch(pattern, result.text)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.5}, {"temperature": 1, "top_k": 2}],
                         ids=str)
def test_greedy_and_filtered_answers_hold_too(model, sampling):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}},
              "required": ["a", "b"], "additionalProperties": False}
    result = answer(model, schema=schema, **sampling)
    jsonschema.validate(result.parsed, schema)
    assert result.text == json.dumps(result.parsed)


@pytest.mark.parametrize("whitespace, pattern", [("default", r'\{"a": \[true, false\]\}'),
                                                 ("compact", r'\{"a":\[true,false\]\}'),
                                                 ("any", r'\s{0,20}'.join(["", *(re.escape(one) for one in (
                                                     "{", '"a"', ":", "[", "true", ",", "false", "]", "}")), ""]))])
def test_whitespace(model, whitespace, pattern):
    schema = {"const": {"a": [True, False]}}
    if whitespace == "any":                             # a const is written as it is: a type is not
        schema = {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [
            {"const": True}, {"const": False}], "items": False, "minItems": 2}}, "required": ["a"],
            "additionalProperties": False}
    assert re.fullmatch(pattern, finished(model, schema=schema, whitespace=whitespace).text)


GBNF = {
    "arithmetic": ('''# sums, one in a line
root  ::= (expr "=" term "\\n")+
expr  ::= term ([-+*/] term)*
term  ::= num | "(" expr ")"   # nested
num   ::= [0-9]+ | [a-z] [a-z0-9_]*
''', ["1+2=3\n", "(a*b_1)-2=c\nx=y\n"], ["1+=2\n", "1=2", "(1=2\n", "A=1\n"]),
    "list": (r'''root ::= item{1,3}
item ::= "- " [^\r\n\x0b\x0c\u2028]+ "\n"
''', ["- a b\n", "- é\n- 2\n- 3\n"], ["-a\n", "- \n", "- a\n- a\n- a\n- a\n", "- a"]),
    "json": (r'''root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
''', ['{"a": [1, -2.5e3, "x\\n"], "b": {}}', "{}"], ['{"a": 01}', "[]", '{"a": "\n"}', '{"a"  : 1}']),
}


@pytest.mark.parametrize("name", GBNF)
def test_grammars_of_llama_cpps_kind(name):
    grammar, those, others = GBNF[name]
    constraint, view = Constraint.grammar(grammar), Bytes()
    for text in those + others:
        matcher = constraint.matcher(view)
        whole = matcher.consume_tokens(list(text.encode()))
        assert (whole and matcher.is_accepting()) == (text in those), text


# ---- types ----

def test_dataclasses(model):
    made = finished(model, schema=Outer, max_tokens=600).parsed
    assert type(made) is Outer and type(made.inner) is Inner and all(type(one) is Inner for one in made.many)
    assert type(made.colour) is Colour and type(made.pair) is tuple and made.either in (True, False, None)


def test_typed_dicts_literals_and_lists(model):
    made = finished(model, schema=Film).parsed
    assert type(made["seen"]) is bool and made["stars"] in (1, 2, 3) and set(made) <= {"seen", "stars", "by"}
    assert finished(model, schema=Literal["one", "two"]).parsed in ("one", "two")
    assert all(type(one) is bool for one in finished(model, schema=list[bool]).parsed)


def test_pydantic(model):
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", ok=(bool, ...))
    outer = pydantic.create_model("Outer", one=(inner, ...), colour=(Colour, ...))
    made = finished(model, schema=outer).parsed
    assert type(made) is outer and type(made.one) is inner and type(made.colour) is Colour
    assert all(type(one) is inner for one in finished(model, schema=list[inner], max_tokens=600).parsed)


# ---- streams ----

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer",
          "minimum": 0, "maximum": 99}}, "required": ["name", "n"], "additionalProperties": False}


def test_a_batch_and_samples_give_what_single_streams_give(model):
    made = Constraint.schema(SCHEMA)
    prompts = [PROMPT, "The dog", "A", "There was a boy"] * 2
    together = model.generate_batch(prompts, constraint=made, max_tokens=60, temperature=1.2, seed=5).read()
    alone = [model.generate(one, constraint=made, max_tokens=60, temperature=1.2, seed=5).read()
             for one in prompts]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert [one.parsed for one in together] == [one.parsed for one in alone]
    samples = model.generate(PROMPT, n=3, constraint=made, max_tokens=60, temperature=1.2, seed=5).read()
    assert samples[0].tokens == alone[0].tokens
    for one in [*together, *samples]:
        assert one.incomplete or jsonschema.validate(one.parsed, SCHEMA) is None


# ---- what is cut off ----

@pytest.mark.parametrize("text, where", [
    ('{"items": [{"name": "ab', "within a string at /items/0/name"), ("[1, 2", "before its end at /1"),
    ('{"a": {}, "b', "within a string at /"), ('"x\\"', "within a string at /"), ("", "before its end at /"),
    ('{"a]": [[], [', "before its end at /a]/1/0")])
def test_where_json_stands(text, where):
    assert standing(text) == where


def test_answers_that_are_cut_off(model):
    result = answer(model, schema={"type": "string", "minLength": 200}, max_tokens=5)
    assert result.finish_reason == "length" and result.parsed is None
    assert result.incomplete == "the answer ends within a string at /"
    assert answer(model, regex="a{500}", max_tokens=3).incomplete.startswith("the answer ends after")


# ---- what is refused ----

@pytest.mark.parametrize("options, error, text", [
    ({"schema": {"type": "objekt"}}, gomlx.UnsupportedSchema, "Invalid type: objekt"),
    ({"schema": {"properties": {"a": {"not": {"multipleOf": 7}}}}}, gomlx.UnsupportedSchema, "/properties/a: not:"),
    ({"schema": {"$ref": "https://example.com/x"}}, gomlx.UnsupportedSchema, r"\$ref: .*nothing is fetched"),
    ({"schema": {"$ref": "#"}}, gomlx.UnsupportedSchema, "leads back to itself"),
    ({"schema": {1, 2}}, TypeError, "neither a JSON schema nor a type"),
    ({"schema": {"enum": [object()]}}, ValueError, "not JSON"),
    ({"schema": {"enum": ["x" * 10_000_000]}}, ValueError, "more than 1048576 bytes"),
    ({"schema": {"properties": {f"key{i}": {} for i in range(200_000)}}}, ValueError, "more than 1048576 bytes"),
    ({"schema": {"enum": ["\n" * 600_000]}}, ValueError, "bytes of JSON, expected at most 1048576"),
    ({"choice": [f"text {i}" for i in range(200_000)]}, ValueError, "characters in 200000 texts, expected at most"),
    ({"schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}},
     gomlx.UnsupportedSchema, r"/\$defs/a: \$ref: '#/\$defs/b' leads back to itself"),
    ({"regex": r"(a)\1"}, ValueError, "backreferences are not supported"),
    ({"regex": "(?=a)b"}, ValueError, "look-around"),
    ({"grammar": "start: missing"}, ValueError, "unknown name: \"missing\""),
    ({"regex": "(a"}, ValueError, "regex: .*"),
    ({"regex": ""}, ValueError, "0 characters"),
    ({"grammar": "foo: bar"}, ValueError, "grammar: no start rule found"),
    ({"grammar": 'foo ::= "a"'}, ValueError, "grammar: "),
    ({"choice": []}, ValueError, "choice: expected texts"),
    ({"constraint": "a+"}, TypeError, "expected a gomlx.Constraint"),
    ({"regex": "a", "choice": ["a"]}, ValueError, "regex and choice: expected at most one"),
    ({"regex": "a", "ignore_eos": True}, ValueError, "regex: its end is a stop id"),
    ({"schema": {}, "whitespace": "none"}, ValueError, "expected one of default, compact, any"),
])
def test_bad_input_is_named(model, options, error, text):
    with pytest.raises(error, match=text):
        answer(model, **options)


def test_a_schema_cannot_have_the_matcher_leave_out_what_it_does_not_know():
    for inner in ({"minProperties": 2, "properties": {"a": {}}}, {"properties": {"a": {"x-guidance": {"lenient": True},
                                                                 "minProperties": 2, "properties": {"a": {}}}}}):
        with pytest.raises(gomlx.UnsupportedSchema, match="Properties only supported"):
            gomlx.Constraint.schema({"x-guidance": {"lenient": True}} | inner)


def test_a_document_that_contains_itself(model):
    schema = {}
    schema["properties"] = {"a": schema}
    with pytest.raises(ValueError, match="more than 100 values within one another"):
        answer(model, schema=schema)


def test_without_the_matcher_the_error_names_the_command(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'gomlx[structured]'")):
        Constraint.regex("a")


def test_the_view_of_a_vocabulary_may_be_made_before(monkeypatch):
    with gomlx.load(progress=False) as model:
        monkeypatch.setattr(constraints, "is_installed", lambda: False)
        model.ready_for_constraints()
        assert not model._views._made
        monkeypatch.undo()
        model.ready_for_constraints()
        monkeypatch.setattr(constraints, "View", None)
        assert answer(model, choice=["yes"]).parsed == "yes"


def test_relaxed_schemas_are_checked_at_the_end(model):
    schema = {"enum": [1, 2, 3, 4, 5, 6], "not": {"maximum": 3, "type": "integer"}}
    results = [answer(model, schema=schema, enforce="relaxed", seed=i) for i in range(30)]
    assert {one.unenforced[0].keyword for one in results} == {"not"}
    for one in results:
        assert (one.violation is None) == (int(one.text) > 3) == (one.parsed is not None)
    assert {one.violation is None for one in results} == {True, False}


@pytest.mark.parametrize("inner", [{"$ref": "http://127.0.0.1:1/nothing"}, {"pattern": "(?<a>"}, {"type": "foo"}])
def test_what_was_not_enforced_is_never_fetched(monkeypatch, inner):
    """Nor does what the checker cannot read raise."""
    import urllib.request
    asked = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda *request, **options: asked.append(request))
    made = Constraint.schema({"not": inner}, enforce="relaxed").outcome('"x"', True)
    assert "what was not enforced of the schema cannot be checked" in made["violation"] and not asked


def test_what_a_type_raises_is_a_violation():
    @dataclasses.dataclass
    class Ratio:
        a: int
        b: int

        def __post_init__(self):
            self.a /= self.b
    made = Constraint.schema(Ratio).outcome('{"a": 1, "b": 0}', True)
    assert made == {"violation": "ZeroDivisionError: division by zero"}


# ---- models ----

PATTERNS = ["^(?!a)[a-z]{1,9}$", "^[a-z-]{1,6}(?<!-)$", "^(?=.{1,5}$)[a-z]+( [a-z]+)*$", r"^[0-9]{2}(?![0-9]).{0,3}$",
            "^(?!.*--)[a-z-]{3}$"]


def random_schema(rng, depth=3):
    kind = rng.choice(["object", "array", "string", "integer", "number", "boolean", "null", "enum", "anyOf"][
        0 if depth else 2:8 if not depth else 9])
    if kind == "object":
        properties = {f"k{i}": random_schema(rng, depth - 1) for i in range(rng.randint(0, 3))}
        required = [one for one in properties if rng.random() < 0.6]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth - 1), "maxItems": rng.randint(0, 3)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth - 1) for _ in range(2)]}
    if kind == "enum":
        return {"enum": rng.sample([None, True, 3, "é", "two words", [1], {"a": "b"}], 3)}
    texts = [{"maxLength": rng.randint(0, 9)}, {"pattern": rng.choice(PATTERNS)},
             {"pattern": rng.choice(PATTERNS), "maxLength": 8}]
    more = {"string": rng.choice(texts), "integer": {"minimum": -5, "maximum": rng.randint(0, 900)}}
    return {"type": kind} | more.get(kind, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fable", "stories260k", "qwen3", "gemma3", "gpt_oss"])
def test_random_schemas_hold_with_vocabularies_of_all_kinds(shared, name):
    rng, whole = random.Random(name), 0
    with gomlx.load(os.path.join(shared, "data", "models", name)) as model:
        for seed in range(200):
            schema = random_schema(rng)
            result = model.generate(PROMPT, schema=schema, temperature=1.5, max_tokens=400, seed=seed,
                                    stop_ids=[] if model._stop_ids else [2]).read()
            if result.incomplete is None:
                jsonschema.validate(json.loads(result.text), schema)
                whole += 1
    assert whole > 100


@pytest.mark.parametrize("name", ["llama2", "qwen3", "gpt2"])
def test_what_is_forced_has_the_bytes_of_the_text(shared, name):
    """A vocabulary of SentencePiece puts a space before a text: of "rue" after "t" that would be another text."""
    tokenizer = gomlx.Tokenizer.from_file(os.path.join(shared, "data", "tokenizers", name))
    view = constraints.View(tokenizer, tokenizer.vocab_size, [0])
    for text in ("rue", " a", '"key": ', "é", "\n", "日本"):
        assert b"".join(view.tokens[one] for one in view(text)) == text.encode()


def test_numbers_of_a_grammar_that_the_matcher_would_end_the_process_with():
    with pytest.raises(ValueError, match="is below"):
        gomlx.Constraint.grammar('start: %json {"const": -9223372036854775808}')
    assert gomlx.Constraint.grammar('start: %json {"const": -5}').kind == "grammar"
