"""Results in files: batches that are killed, shared out, go on and are merged; the forms of rows."""
import contextlib
import csv
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

import pytest

import gomlx
from gomlx import cli
from gomlx._batches import inputs, journal, shards

TEXTS = ["Once upon a time", "The little dog was", "Tom and Lily"]


def run(capsys, *arguments, status=0):
    assert cli.main([str(one) for one in arguments]) == status
    said = capsys.readouterr()
    return said.out.splitlines(), said.err


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path, rows):
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return path


def prompts_file(tmp_path, n=6):
    return write(tmp_path / "prompts.jsonl", [{"prompt": TEXTS[i % 3], "id": f"p{i}", "max_tokens": 3 + i}
                                              for i in range(n)])


def part(out):
    return out.with_name(out.name + ".part")


def test_a_batch_goes_on_where_it_was_ended(tmp_path, capsys):
    """With a last line that is torn at any place: no row is lost, none is there twice, and the bytes are those of a
    batch that nothing ended."""
    prompts, out = prompts_file(tmp_path), tmp_path / "out.jsonl"
    said, err = run(capsys, "batch", prompts, "-o", out)
    assert said == [] and "6 prompts" in err and not part(out).exists()
    data = out.read_bytes()
    assert [one["line"] for one in rows_of(out)] == [1, 2, 3, 4, 5, 6]
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for cut in (0, 1, ends[0] - 1, ends[0], ends[2] + 40, ends[4], len(data) - 1, len(data)):
        out.unlink()
        part(out).write_bytes(data[:cut])
        kept = sum(end <= cut for end in ends)
        _, err = run(capsys, "batch", prompts, "-o", out, "--resume")
        assert (f"{6 - kept} prompts" in err) == (kept < 6) and (f"{kept} rows were there" in err) == (kept > 0)
        assert out.read_bytes() == data and not part(out).exists()
    before = os.stat(out).st_mtime_ns
    part(out).write_bytes(data)                 # killed between the rename and what comes after it
    run(capsys, "batch", prompts, "-o", out, "--resume")
    assert os.stat(out).st_mtime_ns == before and not part(out).exists()
    prompts = prompts_file(tmp_path, 8)         # rows that are new
    _, err = run(capsys, "batch", prompts, "-o", out, "--resume")
    assert "2 prompts" in err and out.read_bytes().startswith(data) and len(rows_of(out)) == 8


def test_rows_are_known_by_their_ids(tmp_path, capsys):
    prompts, out = prompts_file(tmp_path), tmp_path / "out.jsonl"
    run(capsys, "batch", prompts, "-o", out)
    rows = rows_of(out)
    write(prompts, [{"prompt": TEXTS[i % 3], "id": f"p{i}", "max_tokens": 3 + i} for i in (5, 1, 0, 4, 3, 2)])
    _, err = run(capsys, "batch", prompts, "-o", out, "--resume")
    assert "prompts" not in err
    assert rows_of(out) == [rows[i] | {"line": at} for at, i in enumerate((5, 1, 0, 4, 3, 2), 1)]
    write(prompts, [{"prompt": "A", "id": 1}, {"prompt": "B", "id": 1}])
    assert "line 2: has the id of" in run(capsys, "batch", prompts, status=1)[1]


def test_a_seed_follows_from_the_row(tmp_path, capsys):
    """Not from its place among others, nor from the number of shards; rows without an id differ by their lines."""
    rows = [{"prompt": "Once", "id": "a"}, {"prompt": "Once", "id": "b"}, {"prompt": "Once"}, {"prompt": "Once"},
            {"prompt": "Once", "seed": 5}]
    options = ["-n", "8", "-t", "1", "-o"]
    first, other = write(tmp_path / "one.jsonl", rows), write(tmp_path / "two.jsonl", rows[1::-1])
    run(capsys, "batch", first, *options, tmp_path / "a.jsonl")
    run(capsys, "batch", other, *options, tmp_path / "b.jsonl")
    run(capsys, "batch", first, "--seed", "1", *options, tmp_path / "c.jsonl")
    found, swapped, reseeded = (rows_of(tmp_path / name) for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
    assert len({one["seed"] for one in found}) == 5 and found[4]["seed"] == 5
    assert [one["tokens"] for one in swapped] == [one["tokens"] for one in found[1::-1]]
    assert all(one["seed"] != was["seed"] for one, was in zip(reseeded[:4], found, strict=False))
    with gomlx.load() as model:
        want = model.generate("Once", max_tokens=8, temperature=1.0, seed=found[0]["seed"]).read()
        assert found[0]["tokens"] == want.tokens


def command(prompts, out, shard):
    return [sys.executable, "-P", "-m", "gomlx", "batch", str(prompts), "--ignore-eos", "-o", str(out),
            "--batch", "2", "--threads", "1", "--shard", f"{shard}/3", "--resume"]


@pytest.mark.slow
def test_shards_that_are_killed_end_as_a_single_run(tmp_path, capsys):
    """Killed at random moments and resumed until they are done, merged: byte for byte the single run, with rows that
    are errors among them."""
    prompts, out, single = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl", tmp_path / "single.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": TEXTS[i % 3], "max_tokens": 60} |
                                          ({"id": f"r{i}"} if i % 2 else {})) + "\n" if i % 10 else "{\n"
                               for i in range(40)), encoding="utf-8")
    run(capsys, "batch", prompts, "--ignore-eos", "-o", single, status=1)
    chance, killed = random.Random(3), 0
    for shard in range(3):
        mine = tmp_path / f"out.{shard}-of-3.jsonl"
        for attempt in range(20):
            process = subprocess.Popen(command(prompts, out, shard), stderr=subprocess.DEVNULL)
            rows, seen = chance.randrange(1, 12), lambda: part(mine).exists() and part(mine).read_bytes().count(b"\n")
            begun = seen() or 0
            with contextlib.suppress(FileNotFoundError):        # it is renamed at the end
                while process.poll() is None and attempt < 3 and seen() < begun + rows:
                    time.sleep(chance.random() * 0.01)
            if attempt < 3 and process.poll() is None:
                process.kill()
                killed += 1
            if process.wait() in (0, 1):
                break
        assert mine.exists() and not part(mine).exists()
    assert killed
    merged = tmp_path / "merged.jsonl"
    run(capsys, "merge", *(tmp_path / f"out.{i}-of-3.jsonl" for i in (2, 0, 1)), "-o", merged)
    assert merged.read_bytes() == single.read_bytes() and len(rows_of(single)) == 40


def test_output_that_is_not_this_batchs(tmp_path, capsys):
    prompts, out = prompts_file(tmp_path), tmp_path / "out.jsonl"
    assert "--resume: expected -o" in run(capsys, "batch", prompts, "--resume", status=1)[1]
    assert "expected *.jsonl" in run(capsys, "batch", prompts, "-o", tmp_path / "a.csv", status=1)[1]
    run(capsys, "batch", prompts, "-o", out)
    assert "exists already: --resume" in run(capsys, "batch", prompts, "-o", out, status=1)[1]
    head = f'{{"file": "{prompts}", '
    for text, words in ((head + '"line": 9, "id": "p8"}\n', 'id "p8", which is not among'),
                        (head + '"line": 9, "id": null}\n', "line 9 of"),
                        ("[1]\n", "line 1: no row"), ("text\n", "line 1: no row"), ("text", "line 1: no row"),
                        ("9" * 5000 + "\n", "line 1: no row")):
        out.write_text(text)
        assert words in run(capsys, "batch", prompts, "-o", out, "--resume", status=1)[1]
        assert out.read_text() == text and not part(out).exists()
    late = tmp_path / "late.jsonl"
    _, err = run(capsys, "batch", prompts, "-o", late, "--timeout", "1e-6", status=1)
    assert not late.exists() and "--resume goes on with them" in err         # what was not computed is left to it
    assert "is not finished" in run(capsys, "merge", late, "-o", tmp_path / "m.jsonl", status=1)[1]


def test_ids_are_json(tmp_path, capsys):
    """A NaN is not: the row of the result could not have it, and would be nobody's when the batch goes on."""
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"prompt": "a", "id": NaN}\n{"prompt": "a", "id": [1e999]}\n')
    for more in ([], ["--resume", "--retry-errors"]):
        run(capsys, "batch", prompts, "-o", out, *more, status=1)
        assert [one["id"] for one in rows_of(out)] == [None, None]
        assert all("id: expected no NaN" in one["error"] for one in rows_of(out))


def test_a_disk_that_is_full_at_the_end_keeps_no_second_copy(tmp_path, capsys, monkeypatch):
    prompts, out = prompts_file(tmp_path), tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left")))
        assert "No space left" in run(capsys, "batch", prompts, "-o", out, status=1)[1]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out.jsonl.part", "prompts.jsonl"]
    assert "6 rows were there" in run(capsys, "batch", prompts, "-o", out, "--resume")[1]


def test_two_processes_do_not_write_one_output(tmp_path):
    first = journal.Journal(str(tmp_path / "out.jsonl"), False, lambda row: b"")
    with pytest.raises(ValueError, match="another process writes"):
        journal.Journal(str(tmp_path / "out.jsonl"), True, lambda row: b"")
    first.close()
    journal.Journal(str(tmp_path / "out.jsonl"), True, lambda row: b"").close()


def test_errors_are_rows(tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_bytes(b'"Once"\n{\n{"prompt": ""}\n[1]\n"The"\n"\xff"\n{"prompt": "A", "top_q": 1}\n')
    for _ in range(2):
        _, err = run(capsys, "batch", prompts, "-n", "2", "-o", out, "--resume", status=1)
        rows = rows_of(out)
        assert [bool(one["error"]) for one in rows] == [False, True, True, True, False, True, True]
        assert "5 rows have an error" in err
    for i, words in ((1, "line 2: not JSON"), (3, "either"), (5, "not utf-8 text"), (6, "top_q")):
        assert words in rows[i]["error"]
    lines, err = run(capsys, "batch", prompts, "-n", "2", "--json", status=1)
    assert len(lines) == 7 and "5 failed" in err
    prompts.write_text('"Once"\n{"prompt": "A", "id": "mended"}\n{"prompt": ""}\n[1]\n"The"\n"B"\n"C"\n')
    run(capsys, "batch", prompts, "-n", "2", "-o", out, "--resume", status=1)
    assert rows_of(out) == rows                 # an error is a result
    _, err = run(capsys, "batch", prompts, "-n", "2", "-o", out, "--resume", "--retry-errors", status=1)
    mended = rows_of(out)
    assert [bool(one["error"]) for one in mended] == [False, False, True, True, False, False, False]
    assert mended[1]["id"] == "mended" and mended[0] == rows[0] and "5 prompts" not in err
    assert "--retry-errors: expected --resume" in run(capsys, "batch", prompts, "-o", out, "--retry-errors",
                                                      status=1)[1]


def test_most_errors(tmp_path, capsys):
    prompts, out = write(tmp_path / "p.jsonl", ["Once", "", "", "The", ""]), tmp_path / "out.jsonl"
    _, err = run(capsys, "batch", prompts, "-n", "2", "-o", out, "--max-errors", "2", "--batch", "1", status=1)
    assert "more than 2 rows failed, the last is line 5" in err and not out.exists() and len(rows_of(part(out))) >= 3
    _, err = run(capsys, "batch", prompts, "-n", "2", "-o", out, "--max-errors", "3", "--resume", status=1)
    assert len(rows_of(out)) == 5


@pytest.mark.parametrize("text, environment, want", [
    (None, {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "5"}, (0, 1)), ("2/5", {}, (2, 5)),
    ("auto", {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "5"}, (3, 5)),
    ("auto", {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_COUNT": "5", "SLURM_ARRAY_TASK_MIN": "1"},
     "task 5 of 5 from 1 on"),
    ("auto", {"SLURM_ARRAY_TASK_ID": "17", "SLURM_ARRAY_TASK_COUNT": "1", "SLURM_ARRAY_TASK_MIN": "17"},
     "task 17 of 1 from 17 on"),
    ("auto/3", {"JOB_COMPLETION_INDEX": "2"}, (2, 3)),
    ("auto", {"JOB_COMPLETION_INDEX": "2"}, "expected auto/N"), ("auto", {}, "neither"), ("5/5", {}, "0 to N - 1"),
    ("0/0", {}, "0 to N - 1"), ("3", {}, "expected I/N"), ("-1/3", {}, "expected I/N"),
    ("auto/2", {"JOB_COMPLETION_INDEX": "x"}, "expected a number"),
    ("auto/4", {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "5"}, "has 5 tasks"),
    ("auto", {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_COUNT": "5"}, "task 9 of 5")])
def test_which_shard(text, environment, want):
    if isinstance(want, tuple):
        assert shards.parse(text, environment) == want
        return
    with pytest.raises(ValueError, match=want):
        shards.parse(text, environment)


def test_every_row_is_in_one_shard(tmp_path):
    files = [write(tmp_path / name, list(range(n))) for name, n in (("b.jsonl", 5), ("a.jsonl", 4), ("c.jsonl", 0))]
    whole = [(one.file, one.line) for one in inputs.Inputs([str(one) for one in files])]
    assert whole == [(str(files[1]), i) for i in range(1, 5)] + [(str(files[0]), i) for i in range(1, 6)]
    for count in (1, 2, 3, 20):
        found = [(one.file, one.line) for i in range(count)
                 for one in inputs.Inputs([str(one) for one in files], shards.Shard(i, count))]
        assert sorted(found) == sorted(whole)
    with pytest.raises(ValueError, match="given twice"):
        inputs.Inputs(["a", "a"])


def test_merging(tmp_path, capsys):
    def row(line, **fields):
        return {"file": "in", "line": line, "id": None, "error": None} | fields

    one, two, out = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "all.jsonl"
    write(one, [row(3, x=1), row(1, x=2), row(2, error="ValueError: no")])
    write(two, [row(2, x=3), row(1, x=2)])
    assert "3 rows" in run(capsys, "merge", one, two, "-o", out)[1]
    assert [(at["line"], at["x"]) for at in rows_of(out)] == [(1, 2), (2, 3), (3, 1)]
    write(two, [row(1, x=9)])
    before = out.read_bytes()
    for files, words in (((one, two), "that differ"), ((one, out), "is among the results")):
        assert words in run(capsys, "merge", *files, "-o", out, status=1)[1]
    write(two, [[1]])
    assert "line 1: no row" in run(capsys, "merge", one, two, "-o", out, status=1)[1]
    write(tmp_path / "c.1-of-3.jsonl", [])
    assert "c.0-of-3.jsonl: missing among the parts (2 of" in run(capsys, "merge", tmp_path / "c.1-of-3.jsonl", "-o",
                                                                   out, status=1)[1]
    assert out.read_bytes() == before and not part(out).exists()


def test_tables_are_read_and_written(tmp_path, capsys):
    table, out = tmp_path / "prompts.csv", tmp_path / "out.jsonl"
    with open(table, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "prompt", "max_tokens", "stop"], ["7", "Once,\nupon", "3", ""],
                                    ["b", "12", "2", '["dog"]'], ["c", "The", "two", ""]])
    run(capsys, "batch", table, "-n", "9", "-o", out, status=1)
    rows = rows_of(out)
    assert [(one["id"], one["line"]) for one in rows] == [("7", 1), ("b", 2), ("c", 3)]
    assert len(rows[0]["tokens"]) == 3 and "max_tokens" in rows[2]["error"]
    with gomlx.load() as model:
        assert rows[0]["prompt_tokens"] == len(model.tokenizer.encode_prompt("Once,\nupon"))
    run(capsys, "merge", out, "-o", tmp_path / "out.csv")
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        for record, row in zip(csv.DictReader(file), rows, strict=True):
            assert record["text"] == row.get("text", "")
            assert json.loads(record["tokens"] or "[]") == row.get("tokens", [])
    table.write_bytes(b'id,prompt\na,"\xff"\n')
    assert "not a CSV file in UTF-8" in run(capsys, "batch", table, status=1)[1]


def test_parquet(tmp_path, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    asked = [{"id": "a", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
             {"id": "b", "messages": [{"role": "system", "content": "x"}], "max_tokens": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(asked), tmp_path / "in.parquet")
    out = tmp_path / "out.jsonl"
    run(capsys, "batch", tmp_path / "in.parquet", "-n", "3", "-o", out)
    rows = rows_of(out)
    assert [len(one["tokens"]) for one in rows] == [2, 3]
    run(capsys, "merge", out, "-o", tmp_path / "out.parquet")
    back = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    for name in ("file", "line", "id", "text", "tokens", "seed", "logprobs", "error"):
        assert [one[name] for one in back] == [one[name] for one in rows]
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    assert "not a Parquet file" in run(capsys, "batch", tmp_path / "in.parquet", status=1)[1]


def test_pyarrow_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        list(inputs.Inputs([str(tmp_path / "a.parquet")]))


def test_openais_form(tmp_path, capsys):
    chat, url = {"messages": [{"role": "user", "content": "Hi"}], "model": "m", "max_completion_tokens": 3,
                 "temperature": 0, "n": 1, "user": "u"}, "/v1/chat/completions"
    asked = [{"custom_id": "a", "method": "POST", "url": url, "body": chat},
             {"custom_id": "b", "method": "POST", "url": "/v1/completions",
              "body": {"prompt": "Once", "max_tokens": 2}},
             {"custom_id": "c", "url": "/v1/embeddings", "body": {"input": "x"}},
             {"custom_id": "d", "url": url, "body": chat | {"n": 2}}, {"custom_id": "e", "url": url, "body": []}]
    prompts, out = write(tmp_path / "p.jsonl", asked), tmp_path / "out.jsonl"
    run(capsys, "batch", prompts, "-o", out, status=1)
    rows = rows_of(out)
    assert [one["custom_id"] for one in rows] == list("abcde")
    body = rows[0]["response"]["body"]
    with gomlx.load() as model:
        want = model.chat(chat["messages"], max_tokens=3, temperature=0).read()
        vector = model.embed("x").tolist()
    assert body["choices"][0]["message"] == {"role": "assistant", "content": want.answer} and body["model"] == "m"
    assert body["usage"]["completion_tokens"] == 3 and body["choices"][0]["finish_reason"] == "length"
    assert rows[1]["response"]["body"]["object"] == "text_completion"
    for row, words in zip(rows[2:], ("url: expected", "n: only 1", 'expected an object with a text "custom_id"'),
                          strict=True):
        assert row["response"] is None and words in row["error"]["message"]
    lines, _ = run(capsys, "batch", prompts, status=1)
    assert any(one.endswith(want.answer) for one in lines)
    write(prompts, asked[2:3])
    run(capsys, "embed", prompts, "-o", tmp_path / "e.jsonl")
    [row] = rows_of(tmp_path / "e.jsonl")
    assert row["response"]["body"]["data"][0]["embedding"] == vector


@pytest.mark.parametrize("command", [["classify", "--label", " happy", "--label", " sad"], ["score"],
                                     ["embed", "--pooling", "mean"]], ids=lambda one: one[0])
def test_rows_of_texts(tmp_path, capsys, command):
    """Shared out and merged they are the single run's bytes; a text that cannot be taken is its own error."""
    texts = write(tmp_path / "texts.jsonl", [*TEXTS, {"text": "A dog", "id": "a"}, {"text": ""}, {"text": 5},
                                             "The end"])
    out, single = tmp_path / "out.jsonl", tmp_path / "single.jsonl"
    run(capsys, *command, texts, "-o", single, status=1)
    rows = rows_of(single)
    assert len(rows) == 7 and rows[3]["id"] == "a" and "text: expected a text" in rows[5]["error"]
    assert [one["error"] is None for one in rows[:4]] == [True] * 4
    for i in range(2):
        run(capsys, *command, texts, "-o", out, "--shard", f"{i}/2", status=1 if rows[i::2] and any(
            one["error"] for one in rows[i::2]) else 0)
    run(capsys, "merge", tmp_path / "out.0-of-2.jsonl", tmp_path / "out.1-of-2.jsonl", "-o", out)
    assert out.read_bytes() == single.read_bytes()
    plain = tmp_path / "texts.txt"
    plain.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    run(capsys, *command, plain, "-o", tmp_path / "plain.jsonl")
    for row, was in zip(rows_of(tmp_path / "plain.jsonl"), rows, strict=False):
        assert row == was | {"file": str(plain)}


# ---- what must not get lost ----
def test_pipes_are_read_once(tmp_path):
    fifo, out = str(tmp_path / "fifo"), str(tmp_path / "o.jsonl")
    os.mkfifo(fifo)
    feeder = threading.Thread(target=lambda: pathlib.Path(fifo).write_text('{"prompt": "Once"}\n{"prompt": "A"}\n'))
    feeder.start()
    assert cli.main(["batch", fifo, "-o", out, "-n", "2"]) == 0
    feeder.join()
    assert len(pathlib.Path(out).read_text().splitlines()) == 2


def test_merge_leaves_an_unfinished_batch_alone(tmp_path, capsys):
    part = tmp_path / "out.jsonl.part"
    part.write_text("what is there\n")
    done = tmp_path / "a.jsonl"
    done.write_text('{"file": "x", "line": 1, "id": null, "error": null}\n')
    assert cli.main(["merge", str(done), "-o", str(tmp_path / "out.jsonl")]) != 0
    assert "of a batch that is not finished" in capsys.readouterr().err and part.read_text() == "what is there\n"


def test_an_empty_output_is_in_nobody_s_way(tmp_path):
    rows = tmp_path / "p.jsonl"
    rows.write_text('{"prompt": "Once"}\n')
    out = tmp_path / "o.jsonl"
    part = tmp_path / "o.jsonl.part"
    assert cli.main(["batch", str(rows), "-o", str(out), "-n", "2"]) == 0
    whole = out.read_bytes()
    os.rename(out, part)
    out.touch()
    assert cli.main(["batch", str(rows), "-o", str(out), "-n", "2", "--resume"]) == 0
    assert out.read_bytes() == whole and not part.exists()


def test_merge_knows_ids_that_are_there_twice(tmp_path, capsys):
    for i, error in enumerate(("null", '"ValueError: x"')):
        (tmp_path / f"{i}.jsonl").write_text(f'{{"file": "x", "line": {i + 1}, "id": "a", "error": {error}}}\n')
    names = [str(tmp_path / name) for name in ("0.jsonl", "1.jsonl", "o.jsonl")]
    assert cli.main(["merge", *names[:2], "-o", names[2]]) != 0
    assert "line 1 of x and line 2 of x have the same id" in capsys.readouterr().err
