"""The committed tables of Unicode (csrc/text/generated) are what tools/unicode_tables.py writes from its facts, files
of the folder GOMLX_UNICODE_FACTS or of the test data."""
import importlib.util
import os
import pathlib
import re

import places
import pytest

ROOT = pathlib.Path(places.ROOT)
GENERATED = ROOT / "csrc" / "text" / "generated"
SHARED = pathlib.Path(os.environ.get("GOMLX_SHARED", ROOT.parent / "shared"))
FACTS = pathlib.Path(os.environ.get("GOMLX_UNICODE_FACTS", SHARED / "data" / "tokenizer-vectors"))


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hash_in(path):
    """The hash that a table's head names."""
    head = path.read_text("ascii")[:300]
    found = re.match(r"/\* Written by tools/unicode_tables\.py; do not edit\.\n"
                     r" \* SHA-256 of the facts: ([0-9a-f]{64})\. \*/\n", head)
    assert found, f"{path.name} begins with {head[:80]!r}"
    return found[1]


def test_every_generated_file_names_the_same_facts():
    names = sorted(path.name for path in GENERATED.iterdir())
    assert names == ["property_tables.inc", "unicode_tables.inc"]
    assert len({hash_in(GENERATED / name) for name in names}) == 1


def test_the_script_writes_exactly_the_committed_tables(tmp_path):
    tables = tool("unicode_tables")
    for name in tables.FACTS:
        if not (FACTS / name).exists():
            pytest.skip(f"no facts: {name} (set GOMLX_UNICODE_FACTS; tools/unicode_facts.py writes the characters)")
    facts = [(FACTS / name).read_bytes() for name in tables.FACTS]
    if tables.hash_of(facts) != hash_in(GENERATED / "unicode_tables.inc"):
        pytest.skip("the facts are of another version than the committed tables")
    tables.main(FACTS, tmp_path)
    for path in GENERATED.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
