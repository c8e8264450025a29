"""bench: its report is whole, and says what it did; how fast anything is, is not tested."""
import json
import shlex
import sys
import types

import pytest

import gomlx
from gomlx import cli

SMALL = {"prompt": 40, "generate": 5, "repeat": 2}
QUIET = {"prompt_cache": False, "kv_restore": False, "state_bundle": False, "probes": False}
# Does as llama-bench does, with numbers that tell what it was asked, and a line in a log for each run.
FAKE = '''
import json, sys
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
if "--help" in sys.argv:
    print("  -d, --n-depth <n>" if KNOWS_DEPTH else "  -gp <pp,tg>")
    sys.exit()
assert options["-m"].endswith(".gguf") and options["-r"] == "1" and options["-o"] == "json"
with open(sys.argv[1], "a") as log:
    print(json.dumps(options), file=log)
rows = [{"n_prompt": int(options["-p"]), "n_gen": 0, "avg_ts": 100.0}] * (options["-p"] != "0")
rows += [{"n_prompt": 0, "n_gen": int(options["-n"]), "avg_ts": 10.0}] * (options["-n"] != "0")
if "-gp" in options:
    rows += [{"n_prompt": 1, "n_gen": 1, "avg_ts": 5.0}]
print("some words first")
print(json.dumps(rows))
'''


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        yield loaded


def test_report(model):
    done = []
    report = gomlx.bench(model, **SMALL, progress=done.append)
    assert json.loads(json.dumps(report)) == report
    assert len(report["prefill_tps"]) == len(report["decode_tps"]) == 2 and min(report["decode_tps"]) > 0
    assert report["config"]["prompt"] == 40 and report["version"] == 2 and report["threads"] >= 1
    assert all(check["pass"] for check in report["quality"])
    assert report["peak_memory_bytes"] >= report["active_memory_bytes"] > 0
    assert report["kv_restore"]["same_length"] and report["kv_restore"]["bytes"] > 0
    assert report["state_bundle"]["bytes"] > report["kv_restore"]["bytes"] / 2
    assert report["prompt_cache"]["hit_rate"] == 1.0 and report["prompt_cache"]["hit_tokens"] == 40
    assert all("error" not in report[name] for name in ("prompt_cache", "kv_restore", "state_bundle"))
    assert done[-1] == 1.0 and done == sorted(done)
    assert model.prompt_cache.stats.entries == 0


def test_depths_and_batches(model):
    deep = gomlx.bench(model, depth=300, **SMALL, **QUIET)
    wide = gomlx.bench(model, batch=3, **SMALL, **QUIET)
    for report in (deep, wide):
        assert len(report["prefill_tps"]) == 2 and all(check["pass"] for check in report["quality"])
        assert "kv_restore" not in report and len(report["runs"]) == 1
    report = gomlx.bench(model, depth=[0, 7], batch=[1, 2], **SMALL, **QUIET)
    assert [(one["depth"], one["batch"]) for one in report["runs"]] == [(0, 1), (0, 2), (7, 1), (7, 2)]
    assert report["prefill_tps"] == report["runs"][0]["prefill_tps"] and json.loads(json.dumps(report)) == report


def test_bytes_per_token(model):
    """The model in the package is tied: a token reads all of it, and a row of the embedding."""
    whole, read = model.info["weight_bytes"], gomlx.bench(model, **SMALL, **QUIET)["bytes_per_token"]
    assert whole < read < 1.01 * whole


def test_profile(model):
    report = gomlx.bench(model, depth=9, batch=2, profile=True, **SMALL, **QUIET)
    profile = report["profile"]
    assert profile["prefill"]["tokens"] == 2 * 40 and profile["decode"]["tokens"] == 2 * 4
    assert profile["decode"]["passes"] == 4 and profile["overhead_ratio"] > -1
    assert "profile" not in gomlx.bench(model, **SMALL, **QUIET)


def test_own_sampling(model, monkeypatch):
    """What is drawn, and how, is as the model's settings say, or as those over them."""
    seen, generate = [], model.generate_batch

    def watched(*args, **options):
        seen.append({name: options.get(name) for name in ("temperature", "top_k", "seed")})
        return generate(*args, **options)

    monkeypatch.setattr(model, "generate_batch", watched)
    for sampling, options, said in (
            ("greedy", {"temperature": 0, "top_k": None, "seed": None}, {}),
            ("model", {"temperature": None, "top_k": None, "seed": 0}, {"temperature": 0.7, "top_p": 0.95}),
            ({"top_k": 7, "bad_words": ([1],)}, {"temperature": None, "top_k": 7, "seed": 0},
             {"temperature": 0.7, "top_p": 0.95, "top_k": 7, "bad_words": [[1]]})):
        seen.clear()
        report = gomlx.bench(model, sampling=sampling, **SMALL, **QUIET)
        assert seen and all(one == options for one in seen)
        assert json.loads(json.dumps(report))["sampling"] == said


def test_a_text_is_read_as_it_is(model):
    text = "Once upon a time, there was a little girl named Lily."
    count, bare = len(model.tokenizer.encode_prompt(text)), len(model.tokenizer.bare(text))
    report = gomlx.bench(model, prompt=text, depth=[0, 9], generate=3, repeat=1, prompt_cache=True, kv_restore=False,
                         state_bundle=False, probes=True)
    assert [one["prompt_tokens"] for one in report["runs"]] == [count, bare]
    assert report["prompt_cache"]["hit_tokens"] == count and "error" not in report["probes"]
    assert gomlx.bench(model, **SMALL, **QUIET)["prompt_tokens"] == 40
    with pytest.raises(ValueError, match="context"):
        gomlx.bench(model, prompt=text * 1000)


def test_the_model_s_prompt_cache_is_left_alone(model):
    warmed = model.tokenizer.encode_prompt("Once upon a time, there was a big red ball.")
    model.warm_prompt_cache(warmed)
    cache, before = model.prompt_cache, model.prompt_cache.stats
    try:
        gomlx.bench(model, prompt=600, generate=3, repeat=1)
        assert model.prompt_cache is cache and cache.stats == before
        with pytest.raises(ValueError, match="context"):
            gomlx.bench(model, prompt=10**6)
        assert model.prompt_cache is cache
        stream = model.generate([*warmed, 5], max_tokens=1)
        list(stream)
        assert stream.result.cached_tokens == len(warmed)
    finally:
        model.prompt_cache.clear()


def test_other_settings_run_in_turns(model):
    with gomlx.load(kv_dtype="q8_0", threads=1) as other:
        cache = other.prompt_cache
        report = gomlx.bench(model, peers={"kv8": other}, depth=[0, 7], batch=[1, 2], **SMALL, **QUIET)
        assert other.prompt_cache is cache
    for one in report["runs"]:
        found = one["peers"]["kv8"]
        assert len(found["prefill_tps"]) == len(found["decode_tps"]) == 2 and min(found["decode_tps"]) > 0
        assert found["decode_ratio"] > 0 and found["prefill_ratio"] > 0
    with pytest.raises(TypeError, match="expected a program or a model"):
        gomlx.bench(model, peers={"other": 7}, **SMALL, **QUIET)


def test_settings_of_the_prompt_cache_side_by_side(model):
    kept, before = model.prompt_cache, model.prompt_cache.stats
    settings = {"none": {"entries": 0}, "few": {"entries": 1, "min_tokens": 5}, "all": {"entries": 50, "min_tokens": 5}}
    report = gomlx.bench(model, **SMALL, **QUIET, cache_settings=settings)
    assert json.loads(json.dumps(report)) == report and model.prompt_cache is kept and kept.stats == before
    found = report["cache_settings"]["settings"]
    assert list(found) == list(settings) and report["config"]["cache_settings"] == settings
    assert report["cache_settings"]["prompts"] == 12 and "error" not in report["cache_settings"]
    assert found["none"]["hit_tokens"] == found["none"]["entries"] == found["none"]["bytes"] == 0
    # pieces of 10 tokens: prompts of 20, 30 and 40 four times; a first piece that all share, and all before each turn
    assert found["none"]["miss_tokens"] == 4 * (20 + 30 + 40)
    assert found["few"]["hit_tokens"] == 11 * 10 and found["all"]["hit_tokens"] == 3 * 10 + 4 * (20 + 30)
    assert found["all"]["entries"] == 4 and found["few"]["entries"] == 1 < found["all"]["bytes"]
    assert all(len(one["seconds"]) == 2 and one["seconds_median"] > 0 for one in found.values())
    assert "cache_settings" not in gomlx.bench(model, **SMALL, **QUIET)
    for wrong in ({"x": {"entries": -1}}, {"x": {"size": 1}}, {"x": 5}, [1]):
        with pytest.raises((ValueError, TypeError)):
            gomlx.bench(model, **SMALL, **QUIET, cache_settings=wrong)


def made_report(model, tps, **changes):
    report = gomlx.bench(model, depth=[0, 5], **SMALL, **(QUIET | {"kv_restore": True})) | changes
    for one, factor in zip(report["runs"], (1, 2), strict=True):
        one["prefill_tps_median"], one["decode_tps_median"] = 10 * tps * factor, tps * factor
    return report


def test_two_reports_side_by_side(model):
    first, second = made_report(model, 10.0), made_report(model, 15.0, threads=77)
    second["config"] |= {"generate": 6}
    found = gomlx.compare_reports(first, second)
    assert json.loads(json.dumps(found)) == found
    assert [(one["depth"], one["batch"], one["decode_ratio"], one["prefill_ratio"]) for one in found["runs"]] == \
        [(0, 1, 1.5, 1.5), (5, 1, 1.5, 1.5)]
    assert found["runs"][1]["decode_tps"] == [20.0, 30.0]
    assert found["differences"] == {"generate": [5, 6], "threads": [first["threads"], 77]}
    assert found["sections"]["kv_restore"]["bytes"] == [first["kv_restore"]["bytes"], second["kv_restore"]["bytes"]]
    other = second | {"runs": [second["runs"][0] | {"depth": 3}]}
    with pytest.raises(ValueError, match="same depth and batch"):
        gomlx.compare_reports(first, other)
    for wrong in ({}, [], {"version": 1}, first | {"runs": []}):
        with pytest.raises(ValueError, match="second is not a report"):
            gomlx.compare_reports(first, wrong)


@pytest.fixture
def fake_peer(tmp_path):
    """A function that gives the command of a peer, and one that gives what it was asked."""
    def command(knows_depth=True):
        script = tmp_path / "peer.py"
        script.write_text(FAKE.replace("KNOWS_DEPTH", str(knows_depth)))
        return shlex.join([sys.executable, str(script), str(tmp_path / "log")])

    return command, lambda: [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def test_peers_run_in_turns(model, fake_peer):
    command, asked = fake_peer
    report = gomlx.bench(model, peers={"other": command() + " -fa 1"}, depth=[0, 7], **SMALL, **QUIET)
    first, second = (one["peers"]["other"] for one in report["runs"])
    assert first["prefill_tps"] == [100.0] * 2 and first["decode_tps"] == [10.0] * 2
    assert first["prefill_ratio"] == pytest.approx(report["prefill_tps_median"] / 100)
    assert second["decode_ratio"] == pytest.approx(report["runs"][1]["decode_tps_median"] / 10)
    options = asked()
    assert len(options) == 3 + 2 * 3 and all(one["-fa"] == "1" for one in options)      # each once more to warm up
    assert all(int(one["-t"]) == report["threads"] for one in options)
    assert [one.get("-d") for one in options] == [None] * 3 + ["7"] * 6


def test_peer_that_reads_at_no_depth(model, fake_peer):
    command, asked = fake_peer
    report = gomlx.bench(model, peers={"other": command(knows_depth=False)}, depth=7, **SMALL, **QUIET)
    found = report["peers"]["other"]
    assert found["prefill_tps"] is None and found["prefill_ratio"] is None and found["decode_tps"] == [5.0] * 2
    assert all(one["-gp"] == "7,5" for one in asked())


def test_peers_are_for_batches_of_one(model, fake_peer):
    report = gomlx.bench(model, peers={"other": fake_peer[0]()}, batch=[2, 1], **SMALL, **QUIET)
    assert ["peers" in one for one in report["runs"]] == [False, True]


@pytest.mark.parametrize("command, error, words", [
    ("/no/such/program", FileNotFoundError, "no/such"),
    (f"{sys.executable} -c 'import sys; sys.exit(\"it broke\")'", RuntimeError, "ended with 1: it broke"),
    (f"{sys.executable} -c print(7)", RuntimeError, "not llama-bench's JSON"),
    (f"{sys.executable} -c 'print([dict(n_gen=0)])'", RuntimeError, "not llama-bench's JSON"),
    ("", ValueError, "no program")])
def test_peers_that_fail(model, command, error, words):
    with pytest.raises(error, match=words):
        gomlx.bench(model, peers={"other": command}, **SMALL, **QUIET)


def test_other_backends_are_refused():
    with pytest.raises(NotImplementedError, match="backend is mlx_lm"):
        gomlx.bench(types.SimpleNamespace(info={"backend": "mlx_lm"}))


def test_peers_read_gguf_files(tmp_path):
    gomlx.convert(gomlx.loading.PACKAGED_FILE, tmp_path / "folder")
    with gomlx.load(tmp_path / "folder") as made, pytest.raises(ValueError, match="peers read .gguf files"):
        gomlx.bench(made, peers={"other": "llama-bench"}, **SMALL, **QUIET)


@pytest.mark.parametrize("changes, words", [({"prompt": 0}, "prompt is 0"), ({"repeat": 0}, "repeat is 0"),
                                            ({"depth": -1}, "depth is -1"), ({"batch": [1, 0]}, "batch is 0"),
                                            ({"batch": []}, "batch is"), ({"prompt": 10**6}, "context"),
                                            ({"depth": [0, 10**6]}, "context")])
def test_what_cannot_be_run(model, changes, words):
    with pytest.raises(ValueError, match=words):
        gomlx.bench(model, **changes)


def test_command(capsys):
    arguments = ["bench", "--prompt", "20", "--max-tokens", "3", "--repeat", "1", "--no-probes"]
    assert cli.main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["load_s"] > 0 and report["config"]["probes"] is False and "probes" not in report
    assert cli.main(arguments) == 0
    said = capsys.readouterr()
    assert "read 20" in said.out and "write 3" in said.out and "tokens/s" in said.err
    assert cli.main(["bench", "--prompt", "Once upon a time", *arguments[3:], "--no-cache", "--sampling", "model",
                     "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["config"]["prompt"] == "Once upon a time" and report["sampling"]["temperature"] == pytest.approx(0.7)
    assert cli.main(["bench", "a", "-m", "b"]) == 1
    assert "two models" in capsys.readouterr().err


def test_command_against_other_settings_and_reports(capsys, tmp_path):
    few = ["--prompt", "20", "-n", "3", "--repeat", "1", "--no-probes", "--no-cache", "--no-restore", "--no-bundle"]
    against = ["--against", "kv8=kv_dtype=q8_0,threads=1", "--top-k", "5"]
    assert cli.main(["bench", *few, *against]) == 0
    assert "kv8 reads" in capsys.readouterr().out
    assert cli.main(["bench", *few, *against, "--json"]) == 0
    said = capsys.readouterr().out
    assert json.loads(said)["config"]["sampling"] == {"top_k": 5}
    (tmp_path / "a.json").write_text(said)
    pair = [str(tmp_path / "a.json")] * 2
    assert cli.main(["bench", "--compare", *pair]) == 0
    assert "first writes" in capsys.readouterr().out
    assert cli.main(["bench", "--compare", *pair, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["decode_ratio"] == 1
    assert cli.main(["bench", "--sampling", "greedy", "--top-k", "5"]) == 1
    for wrong in (["--against", "x"], ["--against", "x=colour=red"], ["--against", "x=threads=few"]):
        with pytest.raises(SystemExit):
            cli.main(["bench", *wrong])


def test_command_with_settings_of_the_prompt_cache(capsys):
    few = ["bench", "--prompt", "20", "-n", "3", "--repeat", "1", "--no-probes", "--no-cache", "--no-restore",
           "--no-bundle"]
    assert cli.main([*few, "--cache", "off=entries=0", "--cache", "short=min_tokens=4,entries=9"]) == 0
    said = capsys.readouterr().out
    assert "s to read 12 prompts" in said and "short" in said and "off" in said
    assert cli.main([*few, "--cache", "a=entries=1", "--cache", "a=entries=2"]) == 1
    for wrong in ("x", "x=entries=-1", "x=colour=1", "x=entries=few"):
        with pytest.raises(SystemExit):
            cli.main([*few, "--cache", wrong])


def test_command_with_peers_and_profile(capsys, fake_peer):
    arguments = ["bench", "--prompt", "20", "--max-tokens", "3", "--repeat", "1", "--depth", "0", "--depth", "5",
                 "--batch", "1", "--batch", "2", "--no-probes", "--no-cache", "--no-restore", "--no-bundle",
                 "--profile", "--threads", "1", "--peer", "other=" + fake_peer[0]()]
    assert cli.main(arguments) == 0
    said = capsys.readouterr().out
    assert "other reads" in said and "decode: 4 tokens in 2 passes" in said and "counting took" in said
    assert cli.main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["config"]["batch"] == [1, 2] and report["threads"] == 1 and len(report["runs"]) == 4
    assert report["runs"][2]["peers"]["other"]["prefill_tps"] == [100.0]
    for wrong in (["--batch", "x"], ["--peer", "other"], ["--peer", "=x"]):
        with pytest.raises(SystemExit):
            cli.main(["bench", *wrong])
