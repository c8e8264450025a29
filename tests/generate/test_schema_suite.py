"""JSON-Schema-Test-Suite: what compiles rejects each invalid document, and nearly no valid one is rejected."""
import glob
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


def schema_of(group, draft):
    schema = group["schema"]
    if draft == "draft7" and isinstance(schema, dict):
        return {"$schema": "http://json-schema.org/draft-07/schema#"} | schema
    return schema


@pytest.mark.parametrize("draft, compiled_least, rejected_most", [("draft2020-12", 0.6, 24), ("draft7", 0.7, 15)])
def test_the_suite(shared, draft, compiled_least, rejected_most):
    view, groups, compiled, wrong, rejected = Bytes(), 0, 0, [], []
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
                accepted = accepts(constraint, view, test["data"])
                name = os.path.basename(path), group["description"], test["description"]
                wrong += [name] if accepted and not test["valid"] else []
                rejected += [name] if test["valid"] and not accepted else []
    assert not wrong
    assert compiled >= compiled_least * groups and len(rejected) <= rejected_most
