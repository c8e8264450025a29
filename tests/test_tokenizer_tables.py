"""The committed tables of Unicode (csrc/text/generated) are what tools/unicode_tables.py writes from its facts. Two
files of facts are test data, the third is what tools/unicode_facts.py learns from Hugging Face's library."""
import importlib.util
import os
import pathlib
import re
import shutil

import pytest

ROOT = pathlib.Path(__file__).parents[1]
GENERATED = ROOT / "csrc" / "text" / "generated"
SHARED = pathlib.Path(os.environ.get("GOMLX_SHARED", ROOT.parent / "shared")) / "data" / "tokenizer-vectors"


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


@pytest.mark.slow
def test_the_script_writes_exactly_the_committed_tables(tmp_path):
    tables = tool("unicode_tables")
    for name in tables.FACTS[:2]:
        if not (SHARED / name).exists():
            pytest.skip(f"no test data: tokenizer-vectors/{name} (set GOMLX_SHARED)")
        shutil.copy(SHARED / name, tmp_path)
    pytest.importorskip("tokenizers")
    pytest.importorskip("regex")
    tool("unicode_facts").main(tmp_path)
    facts = [(tmp_path / name).read_bytes() for name in tables.FACTS]
    if tables.hash_of(facts) != hash_in(GENERATED / "unicode_tables.inc"):
        pytest.skip("tokenizers, regex or the test data are of another version than the committed tables")
    tables.main(tmp_path, tmp_path)
    for path in GENERATED.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
