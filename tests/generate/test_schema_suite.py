"""JSON-Schema-Test-Suite: what compiles rejects each invalid document, and nearly no valid one is rejected."""
import glob
import itertools
import json
import os

import pytest

from gomlx._generation.constraints import Constraint
from gomlx.schema import UnsupportedSchema

llguidance = pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")


class Bytes:
    """A vocabulary of bytes, and an end."""
    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [*(bytes([i]) for i in range(256)), b"<eos>"]

    def __init__(self):
        self.matching = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self), n_vocab=257)

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


def accepts(constraint, view, document):
    matcher = constraint.matcher(view)
    whole = matcher.consume_tokens(list(json.dumps(document, ensure_ascii=False).encode()))
    return whole and matcher.is_accepting() and not matcher.is_error()


def usual(value):
    """The same value as JSON is usually written: whole numbers without a fraction."""
    if isinstance(value, list):
        return [usual(one) for one in value]
    if isinstance(value, dict):
        return {key: usual(one) for key, one in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def spellings(document):
    """Texts of one document: properties come in the order of a schema, which is not always the document's."""
    yield document
    yield usual(document)
    if isinstance(document, dict) and 1 < len(document) < 5:
        yield from (usual(dict(pairs)) for pairs in itertools.permutations(document.items()))


def schema_of(group, draft):
    schema = group["schema"]
    if draft == "draft7" and isinstance(schema, dict):
        return {"$schema": "http://json-schema.org/draft-07/schema#"} | schema
    return schema


@pytest.mark.parametrize("draft, compiled_least", [("draft2020-12", 0.72), ("draft7", 0.84)])
def test_the_suite(shared, draft, compiled_least):
    view, groups, compiled, n_valid, wrong, rejected = Bytes(), 0, 0, 0, [], []
    for path in sorted(glob.glob(os.path.join(shared, "data", "schemas", "tests", draft, "*.json"))):
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        for group in found:
            groups += 1
            try:
                constraint = Constraint.schema(schema_of(group, draft))
            except UnsupportedSchema as error:
                assert error.places and all(one.keyword for one in error.places)
                continue
            compiled += 1
            for test in group["tests"]:
                accepted = any(accepts(constraint, view, one) for one in spellings(test["data"]))
                n_valid += test["valid"]
                name = os.path.basename(path), group["description"], test["description"]
                wrong += [name] if accepted and not test["valid"] else []
                rejected += [name] if test["valid"] and not accepted else []
    assert not wrong
    assert compiled >= compiled_least * groups and len(rejected) <= 0.005 * n_valid, rejected
