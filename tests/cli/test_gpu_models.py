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
    for name, architecture in (("moe", "qwen3moe"), ("oss", "gpt-oss")):
        monkeypatch.setitem(models.SHAPES, name, models.Shape(4, 256, 256, 4, 2, 64, 512, 1e4, 512, architecture, False,
                                                              8, 2))
    yield gpu_models
    for name in ("gpu_models", "models", "torch_decoder"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("kind", ["BF16", "Q4_K_M", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K",
                                  "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"])
def test_a_model_of_random_blocks_loads(benchmark, tmp_path, kind):
    says_numbers(benchmark, "tiny", kind, str(tmp_path / f"{kind}.gguf"))


@pytest.mark.parametrize("name, kind", [("moe", "Q4_0"), ("moe", "Q4_K_M"), ("oss", "MXFP4"), ("moe:2", "BF16")])
def test_a_model_of_experts_loads(benchmark, tmp_path, name, kind):
    says_numbers(benchmark, benchmark.named(f"{name}-{kind}")[0], kind, str(tmp_path / "model.gguf"))


def says_numbers(benchmark, name, kind, path):
    benchmark.POOL = 65_537
    benchmark.write(name, kind, path)
    with gomlx.load(path, device="cpu") as model:
        logits = np.array(model.logits([1, 2, 3]))
        assert np.isfinite(logits).all() and 1e-3 < logits.std() < 1e3, logits.std()


def test_the_table(benchmark, tmp_path, monkeypatch, capsys):
    """On the processor, without torch: each line that was asked for, and one for what cannot be measured."""
    benchmark.POOL = 65_537
    monkeypatch.setattr(sys, "argv", ["gpu_models.py", "--only", "tiny-Q4_0,moe:1-Q8_0,tiny-Q9", "--device", "cpu",
                                      "--folder", str(tmp_path), "--rounds", "2", "--tokens", "4", "--no-idle",
                                      "--settings", "16x1,8x2", "--prompts", "32", "--no-torch"])
    assert benchmark.main() == 1
    lines = capsys.readouterr().out.splitlines()
    for case in ("tiny-Q4_0", "moe:1-Q8_0"):
        said = [line for line in lines if line.startswith(case + " ")]
        assert "written 0.00 GB" in said[0] and len(said) == 4
        for what, line in zip(("prefill     32", "decode depth      8 batch   2", "decode depth     16 batch   1"),
                              said[1:], strict=True):
            assert what in line and "tok/s, 2 rounds" in line
    assert lines[-1].startswith("tiny-Q9") and "FAILED: ValueError: 'Q9' is none of Q4_0, " in lines[-1]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_torch_s_decoder_steps_as_it_reads(benchmark, architecture):
    torch = pytest.importorskip("torch", reason="what the benchmark compares with")
    import models
    from torch_decoder import Decoder
    decoder = Decoder(models.Shape(3, 256, 512, 4, 2, 64, 512, 1e4, 512, architecture, False), "cpu", torch.float32)
    ids, caches = torch.tensor([5, 9, 100, 7, 33]), decoder.new_caches(2, 64)
    want, token, position = decoder.prompt(ids), ids[-1:].repeat(2), torch.tensor([4])
    for one in (0, 1):
        decoder.prompt(ids[:-1], [[keys[one:one + 1], values[one:one + 1]] for keys, values in caches])
    for got in decoder.step(token, position, caches):
        assert (want - got).abs().max() < 1e-4 and position == 5
    assert token.tolist() == [int(want.argmax())] * 2
