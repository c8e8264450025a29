"""batch, classify, score and embed on the command line, and several samples of one text."""
import json
import subprocess
import sys
import time

import numpy as np
import pytest

import gomlx
from gomlx import cli

TEXTS = ["Once upon a time", "The little dog was", "Tom and Lily"]


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n\n", encoding="utf-8")
    return str(path)


def run(capsys, *arguments, status=0):
    assert cli.main(list(arguments)) == status
    said = capsys.readouterr()
    return said.out.splitlines(), said.err


def test_batch(tmp_path, capsys):
    path = tmp_path / "prompts.jsonl"
    asked = [{"prompt": TEXTS[0], "id": "a", "max_tokens": 3}, {"messages": [{"role": "user", "content": "Hello"}]},
             {"prompt": "", "id": 7}, TEXTS[1]]
    path.write_text("\n".join(map(json.dumps, asked)) + "\n", encoding="utf-8")
    out, err = run(capsys, "batch", str(path), "-n", "5", "-t", "0", "--json", status=1)
    results = {one["line"]: one for one in map(json.loads, out)}
    assert sorted(results) == [1, 2, 3, 4] and results[1]["id"] == "a" and results[3]["id"] == 7
    assert "ValueError" in results[3]["error"] and results[1]["error"] is None and "1 failed" in err
    with gomlx.load() as model:
        assert results[1]["tokens"] == model.generate(TEXTS[0], max_tokens=3, temperature=0).read().tokens
        assert results[4]["tokens"] == model.generate(TEXTS[1], max_tokens=5, temperature=0).read().tokens
        assert run(capsys, "batch", str(path), "-n", "5", "-t", "0", status=1)[0][0].startswith("[")
        assert results[2]["tokens"] == model.chat(asked[1]["messages"], max_tokens=5, temperature=0).read().tokens


@pytest.mark.parametrize("line, words", [("{", "not JSON"), ("[1]", "either"),
                                         ('{"prompt": "a", "messages": []}', "either"),
                                         ("{}", "either"), ('{"messages": []}', "messages: expected a list"),
                                         ('{"messages": "a"}', "messages: expected a list"),
                                         ('{"messages": [5]}', "messages: expected a list"),
                                         ('{"prompt": "a", "logit_bias": {"a": 1}}', "logit_bias: expected token ids")])
def test_batch_lines_that_are_no_prompts(tmp_path, capsys, line, words):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n' + line + "\n", encoding="utf-8")
    out, err = run(capsys, "batch", str(path), status=1)
    assert not out and words in err and "line 2" in err


def test_classify(lines, capsys):
    [out], err = run(capsys, "classify", lines, "--label", " happy", "--label", " sad", "--json")
    done = json.loads(out)
    found = done["results"]
    with gomlx.load() as model:
        assert done["label_tokens"] == {one: model.tokenizer.bare(one) for one in (" happy", " sad")}
        assert done["prompt_tokens"] == sum(len(model.tokenizer.encode_prompt(one)) for one in TEXTS)
    assert [one["text"] for one in found] == TEXTS and "gomlx: error" not in err
    assert done["tokens_per_second"] == pytest.approx(done["prompt_tokens"] / done["seconds"])
    for one in found:
        assert one["label"] in (" happy", " sad") and sum(one["probabilities"].values()) == pytest.approx(1)
    out, err = run(capsys, "classify", lines)
    assert len(out) == 3 and out[0].endswith(TEXTS[0]) and "tokens/s" in err


def test_a_bias_in_a_line(tmp_path, capsys):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Once", "logit_bias": {"300": 99}, "max_tokens": 2}', encoding="utf-8")
    [out], _ = run(capsys, "batch", str(path), "--json")
    assert json.loads(out)["tokens"] == [300, 300]


@pytest.mark.parametrize("command", ["batch", "classify", "score", "embed"])
def test_bytes_that_are_no_text(tmp_path, capsys, command):
    path = tmp_path / "tëxts ☃"
    path.write_bytes(b"Once\n\xff\n")
    out, err = run(capsys, command, str(path), status=1)
    assert not out and f"{path}: not utf-8 text: invalid start byte, byte 0xff" in err


def test_score(lines, capsys):
    out, _ = run(capsys, "score", lines, "--json")
    with gomlx.load() as model:
        for line, want in zip(out, model.score(TEXTS), strict=True):
            assert json.loads(line)["total"] == want.total
    assert len(run(capsys, "score", lines)[0]) == 3


def test_embed(lines, capsys):
    out, _ = run(capsys, "embed", lines, "--pooling", "mean", "--normalize", "--json")
    vectors = np.array([json.loads(line)["embedding"] for line in out])
    assert vectors.shape == (3, 256)
    np.testing.assert_allclose((vectors ** 2).sum(-1), 1, rtol=1e-5)
    out, _ = run(capsys, "embed", lines, "--pooling", "mean", "--normalize")
    np.testing.assert_allclose([[float(one) for one in line.split()] for line in out], vectors, rtol=1e-5)


def test_samples(capsys):
    out, _ = run(capsys, "generate", "Once upon a time", "--samples", "3", "-n", "6", "--seed", "4", "-t", "1",
                 "--json")
    found = {one["index"]: one for one in map(json.loads, out)}
    with gomlx.load() as model:
        for index in range(3):
            want = model.generate("Once upon a time", max_tokens=6, temperature=1.0, seed=4 + index).read()
            assert found[index]["tokens"] == want.tokens and found[index]["seed"] == 4 + index
    out, _ = run(capsys, "generate", "Once upon a time", "--samples", "2", "-n", "3")
    assert len(out) >= 2 and out[0].startswith("[0]")


def test_nothing_to_do(tmp_path, capsys):
    path = tmp_path / "empty"
    path.write_text("\n")
    assert "no text" in run(capsys, "classify", str(path), status=1)[1]
    assert run(capsys, "batch", str(path))[0] == []


# ---- batches that were ended ----

def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def prompts_file(tmp_path, n=6):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": TEXTS[i % 3], "id": f"p{i}", "max_tokens": 3 + i}) + "\n"
                            for i in range(n)),
                    encoding="utf-8")
    return path


def without_times(row):
    return {name: row[name] for name in ("line", "id", "text", "tokens", "finish_reason", "error", "logprobs")}


def test_a_batch_goes_on_where_it_was_ended(tmp_path, capsys):
    """With a last line that is torn at any place: no row is lost, none is there twice, and the others are as they
    were."""
    prompts, out = prompts_file(tmp_path), tmp_path / "out.jsonl"
    said, err = run(capsys, "batch", str(prompts), "-t", "0", "-o", str(out))
    assert said == [] and "6 prompts" in err
    whole = rows_of(out)
    assert sorted(one["line"] for one in whole) == [1, 2, 3, 4, 5, 6]
    want = {one["line"]: without_times(one) for one in whole}
    data = out.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for cut in (0, 1, ends[0] - 1, ends[0], ends[2] + 40, ends[4], len(data) - 1):
        out.write_bytes(data[:cut])
        kept = sum(end <= cut for end in ends)
        _, err = run(capsys, "batch", str(prompts), "-t", "0", "-o", str(out), "--resume")
        assert f"{6 - kept} prompts" in err and (f"{kept} rows were there" in err) == (kept > 0)
        rows = rows_of(out)
        assert out.read_bytes().startswith(data[:ends[kept - 1] if kept else 0])
        assert len(rows) == 6 and {one["line"]: without_times(one) for one in rows} == want
    before = out.read_bytes()
    run(capsys, "batch", str(prompts), "-o", str(out), "--resume")
    assert out.read_bytes() == before
    out.unlink()
    run(capsys, "batch", str(prompts), "-t", "0", "-o", str(out), "--resume")            # nothing to go on with
    assert {one["line"]: without_times(one) for one in rows_of(out)} == want


def test_a_killed_batch_goes_on(tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": TEXTS[i % 3], "max_tokens": 40}) + "\n" for i in range(60)))
    command = [sys.executable, "-P", "-m", "gomlx", "batch", str(prompts), "-t", "0", "--ignore-eos", "-o", str(out),
               "--batch", "2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") < 5):
        time.sleep(0.005)
    process.kill()
    process.wait()
    kept = out.read_bytes().count(b"\n")
    if kept == 60:
        pytest.skip("it was done before it was killed")
    assert kept >= 5
    run(capsys, "batch", str(prompts), "-t", "0", "--ignore-eos", "-o", str(out), "--resume")
    rows = rows_of(out)
    assert sorted(one["line"] for one in rows) == list(range(1, 61))
    assert len({tuple(one["tokens"]) for one in rows}) == 3


def test_output_that_is_not_this_batchs(tmp_path, capsys):
    prompts, out = prompts_file(tmp_path), tmp_path / "out.jsonl"
    run(capsys, "batch", str(prompts), "-n", "1", "--resume", status=1)
    run(capsys, "batch", str(prompts), "-o", str(out))
    _, err = run(capsys, "batch", str(prompts), "-o", str(out), status=1)
    assert "exists already: --resume" in err
    data = out.read_bytes()
    for text, words in (('{"line": 9, "id": "p8"}\n', "line 9"), ('{"line": 1, "id": "p3"}\n', "line 1 has id 'p3'"),
                        ("[1]\n", "line 1: no row"), ("text\n", "line 1: no row"), ("text", "line 1: no row")):
        out.write_text(text)
        _, err = run(capsys, "batch", str(prompts), "-o", str(out), "--resume", status=1)
        assert words in err and out.read_text() == text
    out.write_bytes(data)
    late = tmp_path / "late.jsonl"
    _, err = run(capsys, "batch", str(prompts), "-o", str(late), "--timeout", "1e-6", status=1)
    assert late.read_text() == "" and "--resume goes on with them" in err    # what was not computed is left to it


def test_lines_that_are_no_prompts_become_rows(tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('"Once"\n{\n{"prompt": ""}\n[1]\n"The"\n')
    for _ in range(2):
        run(capsys, "batch", str(prompts), "-n", "2", "-o", str(out), "--keep-going", "--resume", status=1)
        rows = {one["line"]: one for one in rows_of(out)}
        assert len(rows_of(out)) == 5
        assert [bool(rows[i]["error"]) for i in range(1, 6)] == [False, True, True, True, False]
        assert "line 2: not JSON" in rows[2]["error"] and "either" in rows[4]["error"]
    lines, err = run(capsys, "batch", str(prompts), "-n", "2", "--keep-going", "--json", status=1)
    assert len(lines) == 5 and "1 failed" in err
    prompts.write_text('"Once"\n{"prompt": "A", "id": "mended"}\n{"prompt": ""}\n[1]\n"The"\n')
    _, err = run(capsys, "batch", str(prompts), "-o", str(out), "--keep-going", "--resume", status=1)
    assert len(rows_of(out)) == 5 and "3 with an error" in err
