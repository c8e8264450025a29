"""benchmarks/gpu_models.py: the models of random blocks that it writes load and say finite numbers."""
import os
import sys

import numpy as np
import pytest
from places import ROOT

import gomlx

pytest.importorskip("gguf", reason="the benchmark writes files with PyPI's gguf")


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(os.path.join(ROOT, "benchmarks"))
    import gpu_models
    import models
    monkeypatch.setitem(models.SHAPES, "tiny", models.Shape(8, 256, 512, 4, 2, 64, 512, 1e4, 512, tied=False))
    yield gpu_models
    for name in ("gpu_models", "models"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("kind", ["BF16", "Q4_K_M", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K",
                                  "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"])
def test_a_model_of_random_blocks_loads(benchmark, tmp_path, kind):
    benchmark.POOL = 65_537
    path = str(tmp_path / f"{kind}.gguf")
    benchmark.write("tiny", kind, path)
    with gomlx.load(path, device="cpu") as model:
        logits = np.array(model.logits([1, 2, 3]))
        assert np.isfinite(logits).all() and 1e-3 < logits.std() < 1e3, logits.std()
