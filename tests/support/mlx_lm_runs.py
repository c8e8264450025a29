"""What test_mlx_lm.py compares: mlx-lm's inference, conversion, fine-tuning and perplexity, on whichever mlx is found.

    python -m gomlx.mlx mlx_lm_runs.py MODELS TEXTS FOLDER PROMPT NAME ...       on gomlx
    python mlx_lm_runs.py MODELS TEXTS FOLDER PROMPT NAME ...                    on MLX

NAMEs are folders in MODELS; TEXTS is a file of stories. FOLDER/results.npz gets an array for each result; converted
models and adapters stay in FOLDER.
"""
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm import convert, load, stream_generate
from mlx_lm.perplexity import eval_ppl
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.tuner import TrainingArgs, linear_to_lora_layers, train
from mlx_lm.tuner.datasets import CacheDataset, TextDataset

results = {}


def keep(name, value):
    results[name] = np.array(value.astype(mx.float32) if isinstance(value, mx.array) else value)


def generated(model, tokenizer, prompt, **options):
    return [r.token for r in stream_generate(model, tokenizer, prompt, max_tokens=16, **options)]


def inference(folder, texts, prompt, names):
    for name in names:
        model, tokenizer = load(os.path.join(folder, name))
        ids = mx.array([tokenizer.encode(texts[0])[:80]])
        keep(f"{name} logits", model(ids))
        model.set_dtype(mx.float32)
        keep(f"{name} float32 logits", model(ids))
        keep(f"{name} tokens", generated(model, tokenizer, prompt))
        keep(f"{name} tokens by chunks", generated(model, tokenizer, prompt, prefill_step_size=4))
        if name == "fable":
            keep("quantised cache", generated(model, tokenizer, prompt, kv_bits=8, kv_group_size=32,
                                              quantized_kv_start=0))
            keep("rotating cache", generated(model, tokenizer, prompt, max_kv_size=16))
            processors = make_logits_processors(repetition_penalty=1.3, repetition_context_size=20)
            keep("penalty", generated(model, tokenizer, prompt, logits_processors=processors))
            for label in ("sampled", "sampled again"):
                mx.random.seed(11)
                sampler = make_sampler(temp=0.8, top_p=0.9, min_p=0.02, top_k=40)
                keep(label, generated(model, tokenizer, prompt, sampler=sampler))
            tokens = mx.array(tokenizer.encode(" ".join(texts[1:8]))[:256]).reshape(4, 64)
            keep("perplexity", eval_ppl(model, tokens, batch_size=2))


def conversion(folder, prompt, out):
    for name, options in (("fable", {"q_bits": 4, "q_group_size": 64}), ("fable", {"q_bits": 8, "q_group_size": 32}),
                          ("qwen3", {"q_bits": 4, "q_group_size": 32}), ("llama3", {"q_mode": "mxfp4"}),
                          ("stories260k", {"q_bits": 8, "q_group_size": 32})):
        label = f"{name} {options.get('q_mode', options.get('q_bits'))}"
        path = os.path.join(out, label.replace(" ", "-"))
        convert(os.path.join(folder, name), path, quantize=True, **options)
        for key, value in mx.load(os.path.join(path, "model.safetensors")).items():
            value = value if value.dtype == mx.uint32 else value.astype(mx.float32)
            results[f"{label} weights {key}"] = np.array(value)
        model, tokenizer = load(path)
        ids = mx.array([tokenizer.encode(prompt)])
        keep(f"{label} logits", model(ids))
        keep(f"{label} step logits", model(ids[:, :1]))
        model.set_dtype(mx.float32)
        keep(f"{label} float32 logits", model(ids))
        keep(f"{label} tokens", generated(model, tokenizer, prompt))


class Losses:
    """A callback of mlx-lm's trainer that remembers what it is told."""

    def __init__(self):
        self.train, self.valid = [], []

    def on_train_loss_report(self, report):
        self.train.append(report["train_loss"])

    def on_val_loss_report(self, report):
        self.valid.append(report["val_loss"])


def fine_tuning(folder, texts, out):
    runs = (("lora", "fable", optim.Adam(learning_rate=1e-3), {}),
            ("dora", "qwen3", optim.AdamW(learning_rate=optim.cosine_decay(1e-3, 20)), {"use_dora": True}),
            ("checkpointed", "fable", optim.Adam(learning_rate=1e-3), {}),
            ("quantised", os.path.join(out, "fable-4"), optim.Muon(learning_rate=1e-2), {}))
    for label, name, optimizer, options in runs:
        model, tokenizer = load(os.path.join(folder, name))
        model.set_dtype(mx.float32)
        mx.random.seed(3)
        model.freeze()
        linear_to_lora_layers(model, 3, {"rank": 4, "scale": 10.0, "dropout": 0.0}, **options)
        keep(f"{label} trainable", [sum(x.size for _, x in tree_flatten(model.trainable_parameters()))])
        data = CacheDataset(TextDataset([{"text": text[:200]} for text in texts[:24]], tokenizer))
        losses = Losses()
        args = TrainingArgs(batch_size=2, iters=6, val_batches=2, steps_per_report=1, steps_per_eval=6,
                            steps_per_save=100, max_seq_length=48,
                            adapter_file=os.path.join(out, f"{label}.safetensors"),
                            grad_checkpoint=label == "checkpointed",
                            grad_accumulation_steps=2 if label == "dora" else 1)
        np.random.seed(5)
        train(model=model, args=args, optimizer=optimizer, train_dataset=data, val_dataset=data,
              training_callback=losses)
        keep(f"{label} train losses", losses.train)
        keep(f"{label} valid losses", losses.valid)


def main(folder, text, out, prompt, *names):
    with open(text, encoding="utf-8") as file:
        texts = [story.strip() for story in file.read().split("<|endoftext|>") if story.strip()]
    inference(folder, texts, prompt, names)
    conversion(folder, prompt, out)
    fine_tuning(folder, texts, out)
    np.savez(os.path.join(out, "results.npz"), **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
