"""batch, classify, score and embed on the command line, and several samples of one text."""
import json

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
    out, err = run(capsys, "batch", str(path), "--max-errors", "0", status=1)
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
