"""bench: its report is whole, and says what it did; how fast anything is, is not tested."""
import json

import pytest

import gomlx
from gomlx import cli

SMALL = {"prompt": 40, "generate": 5, "repeat": 2}


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        yield loaded


def test_report(model):
    done = []
    report = gomlx.bench(model, **SMALL, progress=done.append)
    assert json.loads(json.dumps(report)) == report
    assert len(report["prefill_tps"]) == len(report["decode_tps"]) == 2 and min(report["decode_tps"]) > 0
    assert report["config"]["prompt"] == 40 and report["version"] == 1 and report["threads"] >= 1
    assert all(check["pass"] for check in report["quality"])
    assert report["peak_memory_bytes"] >= report["active_memory_bytes"] > 0
    assert report["kv_restore"]["same_length"] and report["kv_restore"]["bytes"] > 0
    assert report["state_bundle"]["bytes"] > report["kv_restore"]["bytes"] / 2
    assert report["prompt_cache"]["hit_rate"] == 1.0 and report["prompt_cache"]["hit_tokens"] == 40
    assert all("error" not in report[name] for name in ("prompt_cache", "kv_restore", "state_bundle"))
    assert done[-1] == 1.0 and done == sorted(done)
    assert model.prompt_cache.stats.entries == 0


def test_depth_and_batch(model):
    quiet = {"prompt_cache": False, "kv_restore": False, "state_bundle": False, "probes": False}
    deep = gomlx.bench(model, depth=300, **SMALL, **quiet)
    wide = gomlx.bench(model, batch=3, **SMALL, **quiet)
    for report in (deep, wide):
        assert len(report["prefill_tps"]) == 2 and all(check["pass"] for check in report["quality"])
        assert "kv_restore" not in report


@pytest.mark.parametrize("changes, words", [({"prompt": 0}, "prompt is 0"), ({"repeat": 0}, "repeat is 0"),
                                            ({"depth": -1}, "depth is -1"), ({"prompt": 10**6}, "context")])
def test_what_cannot_be_run(model, changes, words):
    with pytest.raises(ValueError, match=words):
        gomlx.bench(model, **changes)


def test_command(capsys):
    arguments = ["bench", "--prompt", "20", "--generate", "3", "--repeat", "1", "--no-probes"]
    assert cli.main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["load_s"] > 0 and report["config"]["probes"] is False and "probes" not in report
    assert cli.main(arguments) == 0
    said = capsys.readouterr()
    assert "read 20" in said.out and "write 3" in said.out and "tokens/s" in said.out
    assert cli.main(["bench", "a", "-m", "b"]) == 1
    assert "two models" in capsys.readouterr().err
