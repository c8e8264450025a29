"""gomlx train: what it shows before anything is loaded, runs, and going on with them."""
import json
import os

import pytest

import gomlx
from gomlx import cli


def run(capfd, *argv):
    """(status, standard output, standard error) of one command, in this process."""
    status = cli.main(list(argv))
    out, err = capfd.readouterr()
    return status, out, err


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Number {i}?", "completion": f"It is {i}."}) + "\n"
                            for i in range(8)))
    return str(path)


def test_a_preview_and_a_plan_load_nothing(capfd, data, monkeypatch):
    monkeypatch.setattr(gomlx, "load", None)
    status, out, err = run(capfd, "train", "--data", data, "--preview")
    assert status == 0 and "[[It is 0.<|im_end|>]]" in out and "8 rows of kind completion" in err
    status, out, _ = run(capfd, "train", "--data", data, "--preview", "--json", "--mask", "all")
    assert status == 0 and json.loads(out)["targets"] == json.loads(out)["tokens"] - 8
    status, out, _ = run(capfd, "train", "--data", data, "--plan", "--json", "--targets", "all", "--batch", "2")
    found = json.loads(out)
    assert status == 0 and found["fits"] and found["steps"] == 4 and found["hours"] > 0
    with gomlx.loading.load() as model:
        assert found["parameters"] == model.apply_lora(gomlx.lora.LoRAConfig(targets="all")).count
    for wrong in (["--targets", "nope"], ["--loss", "distillation"], ["--loss", "dpo"]):
        status, out, err = run(capfd, "train", "--data", data, "--plan", *wrong)
        assert status == 1 and out == "" and err and "Traceback" not in err
    status, out, _ = run(capfd, "train", "--data", data, "--plan")
    assert "activation_bytes:" in out


def test_a_run_and_its_end(capfd, data, tmp_path):
    folder = str(tmp_path / "run")
    status, out, err = run(capfd, "train", "--data", data, "--run", folder, "--steps", "3", "--learning-rate", "5e-3",
                           "--rank", "2", "--targets", "q_proj,v_proj", "--layers", "2", "--eval-data", data)
    assert status == 0 and out.startswith("step 1 of 3  loss ") and "evaluation" in out.splitlines()[-1]
    assert f"the adapter is in {folder}/adapter" in err
    assert gomlx.read_adapter(os.path.join(folder, "adapter")).ranks == [2]
    status, out, err = run(capfd, "train", "--resume", folder, "--steps", "5", "--json", "--logs",
                           "tensorboard,trackio")
    assert os.path.exists(os.path.join(folder, "tensorboard")) and os.path.exists(os.path.join(folder, "trackio.csv"))
    steps = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [one["step"] for one in steps] == [4, 5] and steps[-1]["eval_loss"] > 0


def test_a_teacher_writes_a_file_and_a_student_learns_from_it(capfd, data, tmp_path):
    path, folder = str(tmp_path / "teacher.safetensors"), tmp_path / "rows"
    status, out, err = run(capfd, "teacher", "--data", data, "-o", path, "--top", "8", "--temperature", "2", "--json")
    said = json.loads(out)
    assert status == 0 and said["rows"] == 8 and said["bytes"] == os.path.getsize(path), err
    taught = ["--data", data, "--loss", "distillation", "--teacher", path]
    status, out, _ = run(capfd, "train", *taught, "--temperature", "2", "--plan", "--json")
    assert status == 0 and json.loads(out)["teacher_bytes"] > 0
    status, out, err = run(capfd, "train", *taught, "--temperature", "2", "--run", str(tmp_path / "run"), "--steps",
                           "1")
    assert status == 0 and out.startswith("step 1 of 1"), err
    status, _, err = run(capfd, "train", *taught, "--run", str(tmp_path / "other"))
    assert status == 1 and "is of the temperature 2, the loss of 1" in err
    folder.mkdir()
    for name, text in (("train", "Number one."), ("valid", "Number two.")):
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    model = os.path.join(os.path.dirname(gomlx.__file__), "models", "fable-Q8_0.gguf")
    status, _, err = run(capfd, "teacher", model, "--data", str(folder), "--student", model, "-o", path,
                         "--all-tokens")
    assert status == 0 and "tokens of 2 rows" in err
    status, _, err = run(capfd, "teacher", "--data", data, "-o", str(tmp_path / "teacher.bin"))
    assert status == 1 and "expected a name that ends in .safetensors" in err


def test_an_adapter_is_gone_on_from(capfd, data, tmp_path):
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert run(capfd, "train", "--data", data, "--run", first, "--steps", "1", "--rank", "2", "--layers", "1")[0] == 0
    status, _, err = run(capfd, "train", "--data", data, "--run", second, "--steps", "1", "--learning-rate", "0",
                         "--adapter", os.path.join(first, "adapter"))
    assert status == 0, err
    before, after = (gomlx.read_adapter(os.path.join(one, "adapter")).parameters() for one in (first, second))
    assert before.keys() == after.keys()
    assert all(before[name].tolist() == after[name].tolist() for name in before)


@pytest.mark.parametrize("argv, message", [
    ([], "--data is missing"), (["--data", "nothing.jsonl"], "nothing.jsonl"),
    (["a", "-m", "b", "--data", "c"], "two models"),
    (["--data", "DATA", "--targets", "qproj", "--run", "RUN"], "no layer is called 'qproj'; this model has down_proj"),
    (["--data", "DATA", "--loss", "dpo", "--run", "RUN"], "needs rows with prompt, chosen and rejected"),
    (["--data", "DATA", "--dpo", "--run", "RUN"], "loss='dpo' needs rows with prompt, chosen and rejected"),
    (["--resume", "RUN"], "RUN"),
    (["--resume", "RUN", "--rank", "64"], "--rank and --resume: a run goes on as it began"),
    (["--resume", "RUN", "--lora-dtype", "bfloat16"], "--lora-dtype and --resume"),
    (["--resume", "RUN", "--run", "elsewhere"], "--run and --resume"),
    (["--resume", "RUN", "--adapter", "a"], "--adapter and --resume"),
    (["--resume", "RUN", "--plan"], "--plan and --resume"),
    (["--resume", "RUN", "--preview"], "--preview and --resume"),
    (["--data", "DATA", "--adapter", "a", "--targets", "all"], "--targets and --adapter"),
    (["--data", "DATA", "--adapter", "a", "--plan"], "--plan and --adapter"),
    (["--data", "DATA", "--adapter", "a", "--adapter", "b"], "--adapter: 2 of them"),
])
def test_errors_are_a_line(capfd, data, tmp_path, argv, message):
    folder = tmp_path / "RUN"
    given = [data if one == "DATA" else str(folder) if one == "RUN" else one for one in argv]
    status, out, err = run(capfd, "train", *given)
    assert status == 1 and out == "" and message in err and not folder.exists()


@pytest.mark.parametrize("text", ["{}", '{"format": 1, "model": 5}', "[]"])
def test_a_folder_that_is_no_run_is_a_line(capfd, tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    status, out, err = run(capfd, "train", "--resume", str(tmp_path))
    assert status == 1 and out == "" and "config.json: " in err and "Traceback" not in err


def test_its_page_has_examples(capfd):
    status, out, _ = run(capfd, "help", "train")
    assert status == 0 and "gomlx train --resume my-run" in out and "--learning-rate" in out
