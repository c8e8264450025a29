"""Makes the golden files beside it: logits and greedy text of transformers, in float32 with eager attention.

    pip install torch==2.13.0 transformers gguf && python tests/golden/make.py [folder of test data]

Each NAME.npz holds: ids, the tokens of some text; rows, positions among them, and logits, the float32 logits there;
logsumexp and argmax of the logits of every position; for each prompt its ids, its greedy continuation without the stop
token, whether there was one, and the text of both. fable-Q8_0: transformers on the values in the packaged GGUF file."""
import os
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "support")]
from checkpoints import dequantised  # noqa: E402

MODELS = ("fable", "llama3", "mistral", "stories260k", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3", "gemma4",
          "gpt_oss", "qwen3_5")
PROMPTS = ("Once upon a time", "The little dog was sad because")
TOKENS, NEW = 300, 100


def make(name, folder, text, weights=None):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if weights:
        result = model.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()}, strict=False)
        assert result.missing_keys == ["lm_head.weight"] and not result.unexpected_keys     # tied to the embedding
    ids = tokenizer(text).input_ids[:TOKENS]
    logits = model(torch.tensor([ids])).logits[0]
    rows = np.linspace(0, TOKENS - 1, 6).astype(np.int32)
    golden = {"ids": np.array(ids, np.int32), "rows": rows, "logits": logits[rows].numpy(),
              "logsumexp": torch.logsumexp(logits.double(), -1).numpy(),
              "argmax": logits.argmax(-1).numpy().astype(np.int32)}
    for i, prompt in enumerate(PROMPTS):
        start = tokenizer(prompt).input_ids
        out = model.generate(torch.tensor([start]), max_new_tokens=NEW, do_sample=False)[0].tolist()
        stopped = len(out) < len(start) + NEW
        golden |= {f"prompt{i}": np.array(start, np.int32), f"stopped{i}": stopped,
                   f"greedy{i}": np.array(out[len(start):len(out) - stopped], np.int32),
                   f"text{i}": tokenizer.decode(out, skip_special_tokens=True)}
    path = os.path.join(HERE, name + ".npz")
    np.savez_compressed(path, **golden)
    print(path, os.path.getsize(path), golden["text0"])


def main():
    data = os.path.join(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "..", "..", "shared"), "data")
    with open(os.path.join(data, "text", "stories.txt"), encoding="utf-8") as file:
        text = file.read(3000)
    with torch.no_grad():
        for name in MODELS:
            make(name, os.path.join(data, "models", name), text)
        packaged = os.path.join(HERE, "..", "..", "gomlx", "models", "fable-Q8_0.gguf")
        make("fable-Q8_0", os.path.join(data, "models", "fable"), text, dequantised(packaged)[1])


if __name__ == "__main__":
    main()
