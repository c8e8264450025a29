"""gomlx.data: models over batches of columns, without Ray, and with it where it is installed."""
import importlib.util
import os
import pickle

import numpy as np
import pytest

import gomlx
import gomlx.data

PROMPTS = ["Once upon a time", "The little dog was", "Tom and Lily"]


def column(values):
    made = np.empty(len(values), object)
    made[:] = values
    return made


def test_generate():
    """Rows have the bits of generate() with their seeds, in any batch; what cannot be answered is told in its row."""
    worker = gomlx.data.Generate(max_tokens=6, temperature=1.0, id="id", seed=3)
    batch = {"prompt": column([*PROMPTS, "", [{"role": "user", "content": "Hi"}], 5]), "id": np.arange(6)}
    done = pickle.loads(pickle.dumps(worker))(batch)
    assert [one is None for one in done["error"]] == [True] * 3 + [False, True, False]
    assert "ValueError" in done["error"][3] and done["text"][3] == "" and done["generated_tokens"][3] == 0
    with gomlx.load() as model:
        for i in range(3):
            want = model.generate(PROMPTS[i], max_tokens=6, temperature=1.0, seed=int(done["seed"][i])).read()
            assert done["text"][i] == want.text and done["finish_reason"][i] == want.finish_reason
            assert done["prompt_tokens"][i] == want.prompt_tokens and done["seconds"][i] > 0
        want = model.chat("Hi", max_tokens=6, temperature=1.0, seed=int(done["seed"][4])).read()
        assert done["text"][4] == want.text
    alone = worker({name: one[1:2] for name, one in batch.items()})
    assert alone["text"][0] == done["text"][1] and alone["seed"][0] == done["seed"][1]
    assert (done["id"] == batch["id"]).all() and len(set(done["seed"])) == 6
    assert len(pickle.dumps(worker)) < 2000


def test_templates():
    worker = gomlx.data.Generate(max_tokens=2, template="{who} went to {where}")
    done = worker({"who": column(["Tom", "Lily"]), "where": column(["the park", "school"])})
    with gomlx.load() as model:
        assert done["prompt_tokens"].tolist() == [len(model.tokenizer.encode_prompt(one)) for one in
                                                  ("Tom went to the park", "Lily went to school")]
    done = gomlx.data.Generate(template="{nobody}")({"who": column(["Tom"])})
    assert "template '{nobody}': KeyError" in done["error"][0]
    with pytest.raises(ValueError, match="no column 'prompt', there are who"):
        gomlx.data.Generate()({"who": column(["Tom"])})
    with pytest.raises(ValueError, match="no column 'id'"):
        gomlx.data.Generate(id="id")({"prompt": column(["Tom"])})


def test_classify_score_embed():
    batch = {"text": column([PROMPTS[0], 5, PROMPTS[1]])}
    with gomlx.load() as model:
        good = [PROMPTS[0], PROMPTS[1]]
        labels = [one.label for one in model.classify(good, labels=[" happy", " sad"])]
        totals = [one.total for one in model.score(good)]
        vectors = model.embed(good, pooling="mean").tolist()
    done = gomlx.data.Classify(labels=[" happy", " sad"])(batch)
    assert [done["label"][0], done["label"][2]] == labels and done["label"][1] is None
    assert 0.5 <= done["probability"][0] <= 1 and "expected a text" in done["error"][1]
    done = gomlx.data.Score()(batch)
    assert [done["logprob"][0], done["logprob"][2]] == totals and np.isnan(done["logprob"][1])
    done = gomlx.data.Embed(pooling="mean")(batch)
    assert done["embedding"].shape == (3, 256) and done["embedding"][[0, 2]].tolist() == vectors
    assert np.isnan(done["embedding"][1]).all()


def test_one_model_in_a_process():
    first, second = gomlx.data.Score(), gomlx.data.Generate()
    assert first.model is second.model
    assert gomlx.data.Score(load_options={"threads": 1}).model is not first.model


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs the package ray[data]")
def test_ray_data(monkeypatch):
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    ray = pytest.importorskip("ray")
    data = pytest.importorskip("ray.data")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        rows = [{"id": i, "prompt": PROMPTS[i % 3] if i % 5 else ""} for i in range(40)]
        options = {"max_tokens": 5, "temperature": 1.0, "id": "id"}
        found = data.from_items(rows).map_batches(gomlx.data.Generate, fn_constructor_kwargs=options, batch_size=8,
                                                  concurrency=2, num_cpus=1).take_all()
    finally:
        ray.shutdown()
    want = gomlx.data.Generate(**options)({"id": np.arange(40), "prompt": column([one["prompt"] for one in rows])})
    found.sort(key=lambda one: one["id"])
    assert [one["id"] for one in found] == list(range(40))
    assert [one["text"] for one in found] == list(want["text"])
    assert [one["error"] is None for one in found] == [i % 5 > 0 for i in range(40)]
