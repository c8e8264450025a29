"""Adapters made here in PEFT, mlx-lm, llama.cpp and llama-cpp-python, and those of PEFT and mlx-lm here."""
import contextlib
import functools
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
from random_adapters import CONFIG, IDS, adapter_for, exact, logits, save_base, saved

import gomlx
import gomlx.core as mx
from gomlx import Adapter


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base") / "llama")


@pytest.fixture(scope="module")
def engine(folder):
    return exact(folder)


# ---- PEFT ----

PEFT_CASES = {
    "lora": {}, "rslora": {"use_rslora": True}, "dora": {"use_dora": True},
    "patterns": {"rank_pattern": {"layers.1.self_attn.q_proj": 6, "down_proj": 2},
                 "alpha_pattern": {"^model.*q_proj": 3}},
    "saved": {"modules_to_save": ["lm_head", "norm"]},
    "some layers": {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
}


@pytest.fixture(scope="module")
def oracles(tmp_path_factory):
    """{model type: (folder, maker)} of tiny models of transformers with biases and groups of heads."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    made, common = {}, {key: CONFIG[key] for key in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "num_attention_heads",
        "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings")}
    for name, kind in (("llama", transformers.LlamaConfig), ("qwen3", transformers.Qwen3Config)):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            kind(**common, head_dim=32, initializer_range=0.2, max_position_embeddings=256))
        folder = tmp_path_factory.mktemp("oracle") / name
        model.save_pretrained(folder)
        made[name] = folder
    return made


def their_logits(model):
    import torch
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


@pytest.mark.parametrize("case", PEFT_CASES)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_adapters_of_peft_and_for_peft(oracles, tmp_path, name, case):
    """What PEFT has saved gives its logits when fused; what is written again, PEFT reads to the same logits."""
    import peft
    import torch
    import transformers
    load = transformers.AutoModelForCausalLM.from_pretrained
    options = {"r": 4, "lora_alpha": 6, "target_modules": "all-linear"} | PEFT_CASES[case]
    model = peft.get_peft_model(load(oracles[name], dtype=torch.float32), peft.LoraConfig(task_type="CAUSAL_LM",
                                                                                          **options))
    torch.manual_seed(1)
    for value in model.parameters():
        if value.requires_grad:
            value.data += torch.randn_like(value) * 0.1
    model.eval()
    want = their_logits(model)
    assert np.abs(want - their_logits(load(oracles[name], dtype=torch.float32))).max() > 0.1
    model.save_pretrained(tmp_path / "theirs")
    adapter = gomlx.read_adapter(tmp_path / "theirs", exact(oracles[name]))
    gomlx.fuse(oracles[name], adapter, tmp_path / "fused", text=None)
    np.testing.assert_allclose(logits(tmp_path / "fused"), want, rtol=1e-4, atol=1e-4)
    if case != "saved":                         # what the engine adds beside the weights, in training and in serving
        engine = exact(oracles[name])
        terms = adapter.engine_terms(engine)
        rows = np.asarray(engine.rows(IDS, [len(IDS)], terms=terms))
        np.testing.assert_allclose(rows @ np.asarray(engine.weight("lm_head.weight")).T, want, rtol=1e-4, atol=1e-4)
        engine.load_adapter("theirs", terms)
        np.testing.assert_allclose(np.asarray(engine.logits([IDS], adapters=[("theirs", 1.0)])[0]), want, rtol=1e-4,
                                   atol=1e-4)
    gomlx.save_adapter(adapter, tmp_path / "ours", model=exact(oracles[name]))
    again = peft.PeftModel.from_pretrained(load(oracles[name], dtype=torch.float32), tmp_path / "ours").eval()
    np.testing.assert_allclose(their_logits(again), want, rtol=1e-5, atol=1e-5)


# ---- mlx-lm ----

MLX_LM = '''
import json, os, sys
import numpy as np
import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model
from pathlib import Path

base, kinds = Path(sys.argv[1]), sys.argv[2:]
ids = mx.array([json.loads(os.environ["IDS"])])
for kind in kinds:
    model, config = load_model(base)
    parameters = {"rank": 4, "scale": 3.0, "dropout": 0.0}
    if kind != "full":
        model.freeze()
        linear_to_lora_layers(model, 2, parameters, use_dora=kind == "dora")
    mx.random.seed(3)
    made = tree_map(lambda a: a + 0.1 * mx.random.normal(a.shape), model.trainable_parameters())
    model.update(made)
    out = Path("theirs-" + kind)
    out.mkdir()
    mx.save_safetensors(str(out / "adapters.safetensors"), dict(tree_flatten(made)))
    (out / "adapter_config.json").write_text(json.dumps(
        {"fine_tune_type": kind, "num_layers": 2, "lora_parameters": parameters, "model": "org/base"}))
    fresh, _ = load_model(base)
    load_adapters(fresh, "ours-" + kind)
    for name, one in (("theirs", model), ("ours", fresh)):
        one.eval()
        np.save(f"{name}-{kind}.npy", np.array(one(ids)[0]))
'''


def test_adapters_of_mlx_lm_and_for_mlx_lm(folder, engine, tmp_path):
    """mlx-lm runs on gomlx.core; its logits are those of the fused model, in both directions."""
    pytest.importorskip("mlx_lm")
    ours = {"lora": adapter_for(engine, rank=3, dropout=0.2), "dora": adapter_for(engine, rank=3, dora=True),
            "full": Adapter({}, {"model.layers.1.self_attn.q_proj.weight": mx.random.normal((64, 64))})}
    for kind, adapter in ours.items():
        gomlx.save_adapter(adapter, tmp_path / f"ours-{kind}", "mlx-lm", model=engine)
    (tmp_path / "run.py").write_text(MLX_LM)
    root = os.path.dirname(os.path.dirname(os.path.abspath(gomlx.__file__)))
    done = subprocess.run([sys.executable, "-m", "gomlx.mlx", "run.py", folder, *ours], cwd=tmp_path, text=True,
                          capture_output=True, timeout=120,
                          env=os.environ | {"PYTHONPATH": root, "IDS": json.dumps(IDS), "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    for one in [f"{name}-{kind}" for name in ("ours", "theirs") for kind in ours]:
        gomlx.fuse(folder, tmp_path / one, tmp_path / f"fused-{one}", text=None)
        np.testing.assert_allclose(logits(tmp_path / f"fused-{one}"), np.load(tmp_path / f"{one}.npy"), rtol=1e-4,
                                   atol=1e-4)


# ---- llama.cpp ----

def llama_cpp(shared, name):
    """The path of one of its programs, and the environment that it runs in."""
    program = os.path.join(shared, "peers", name)
    if not os.path.exists(program) or "avx512_bf16" not in open("/proc/cpuinfo").read():
        pytest.skip(f"no {name} that runs on this machine in the test data")
    return program, os.environ | {"LD_LIBRARY_PATH": os.path.dirname(program)}


def test_llama_cpp_reads_our_gguf(shared, tmp_path):
    """Its perplexity with an adapter is that of the model with the adapter in its weights."""
    program, environment = llama_cpp(shared, "llama-perplexity")
    with gomlx.load("fable") as model:
        path = saved(adapter_for(model._engine, scale=3.0), tmp_path, "gguf", model)
    gomlx.convert("fable", tmp_path / "base.gguf", "f32")
    gomlx.fuse(tmp_path / "base.gguf", path, tmp_path / "fused.gguf", text=None)
    text = tmp_path / "text"
    text.write_text("The little dog ran to the big tree. He was happy and he had a red ball in his mouth. " * 40)

    def perplexity(*arguments):
        for _ in range(5):      # now and then it ends well without its last lines
            done = subprocess.run([program, "-f", text, "-c", "128", "-t", "2", "-m", *arguments], capture_output=True,
                                  text=True, timeout=120, env=environment)
            printed = done.stdout + done.stderr
            assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
            if found := re.search(r"PPL = ([\d.]+)\s", printed):
                return float(found[1])
        raise AssertionError(f"no perplexity in {printed[-2000:]!r}")

    apart, together = perplexity(tmp_path / "base.gguf", "--lora", path), perplexity(tmp_path / "fused.gguf")
    assert abs(apart - together) < 2e-3 * together and abs(together - perplexity(tmp_path / "base.gguf")) > 0.01


def greedy_texts(program, environment, base, adapter, prompts, log):
    """What llama-server writes after lists of ids, with an adapter."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with open(log, "w") as output, subprocess.Popen(
            [program, "-m", base, "--lora", adapter, "-t", "1", "-c", "512", "-np", "1", "--host", "127.0.0.1",
             "--port", port], env=environment, stdout=output, stderr=output) as server:
        try:
            ask = functools.partial(urllib.request.urlopen, timeout=60)
            for _ in range(600):
                with contextlib.suppress(OSError):              # it does not listen yet, or says that it loads
                    ask(f"http://127.0.0.1:{port}/health").close()
                    break
                assert server.poll() is None, log.read_text()[-2000:]
                time.sleep(0.1)
            texts = []
            for ids in prompts:
                question = json.dumps({"prompt": ids, "n_predict": 40, "temperature": 0}).encode()
                with ask(urllib.request.Request(f"http://127.0.0.1:{port}/completion", question,
                                                {"Content-Type": "application/json"})) as answer:
                    texts.append(json.load(answer)["content"])
            return texts
        finally:
            server.terminate()


def trained_texts(base, adapter):
    """Writes a model in float32 and an adapter that was trained on it; lists of ids, and what they continue as here."""
    gomlx.convert("fable", base, "f32", progress=False)
    rows = [{"prompt": f"Tell me about number {i}.", "completion": f"The number {i} met a cat."} for i in range(8)]
    with gomlx.load(base, activations="float32", kv_dtype="float32") as model:
        run = gomlx.train(model, rows, lora=gomlx.lora.LoRAConfig(targets="all"), steps=8, batch=8, learning_rate=5e-3,
                          progress=False).finish()
        gomlx.save_adapter(run.adapter, adapter, "gguf", model=model)
        prompts = [model.tokenizer.encode_prompt(text) for text in ("Tell me about number 3.", "Once upon", "The cat")]
        options = {"max_tokens": 40, "temperature": 0}
        plain = [model.generate(ids, **options).read().text for ids in prompts]
        model.load_adapter(adapter, "learnt")
        ours = [model.generate(ids, adapter="learnt", **options).read().text for ids in prompts]
    assert ours != plain
    return prompts, ours


def test_llama_cpp_writes_the_same_text_with_our_gguf(shared, tmp_path):
    program, environment = llama_cpp(shared, "llama-server")
    base, adapter = tmp_path / "base.gguf", tmp_path / "adapter.gguf"
    prompts, ours = trained_texts(base, adapter)
    assert greedy_texts(program, environment, base, adapter, prompts, tmp_path / "log") == ours


def test_llama_cpp_python_writes_the_same_text_with_our_gguf(tmp_path):
    llama_cpp_python = pytest.importorskip("llama_cpp")
    base, adapter = tmp_path / "base.gguf", tmp_path / "adapter.gguf"
    prompts, ours = trained_texts(base, adapter)
    theirs = llama_cpp_python.Llama(str(base), lora_path=str(adapter), n_ctx=512, n_threads=1, verbose=False)
    try:
        answers = [theirs.create_completion(ids, max_tokens=40, temperature=0, repeat_penalty=1) for ids in prompts]
    finally:
        theirs.close()
    assert [answer["choices"][0]["text"] for answer in answers] == ours
