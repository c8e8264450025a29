"""Some of the requests of tests/fuzz/mutated_requests.py: none gets a 500, or leaves something behind."""
import asyncio
import logging
import os
import sys

import pytest
from places import TESTS

pytest.importorskip("starlette", reason="needs gomlx[serve]")
pytest.importorskip("prometheus_client", reason="needs gomlx[serve]")
sys.path.insert(0, os.path.join(TESTS, "fuzz"))
import mutated_requests  # noqa: E402


def test_mutated_requests(monkeypatch):
    monkeypatch.setattr(logging.getLogger("gomlx.serve"), "disabled", True)
    statuses, found = asyncio.run(mutated_requests.campaign(7, lambda number: number >= 600))
    assert found == [] and sum(statuses.values()) == 600
    assert statuses[200] >= 50 and statuses[400] >= 200         # it gets past the first look, and not always


def test_what_it_calls_wrong():
    wrong = mutated_requests.wrong_with
    said = b'{"error": {"message": "m"}}'
    assert wrong("/", 400, said, False) is None and wrong("/", 500, said, False) is not None
    assert wrong("/", 200, b'data: {"error": {"code": "internal_error"}}\n\n', False) is not None
