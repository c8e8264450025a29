"""Makes random.npz beside it: transformers' names, logits and greedy text for every case of architectures.py, in
float32 with eager attention.

    pip install torch==2.13.0 transformers==5.23.0 && python tests/golden/make_random.py [case ...]

With cases named, only these are made anew."""
import json
import os
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open

HERE = os.path.dirname(os.path.abspath(__file__))
PATH = os.path.join(HERE, "random.npz")
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "support")]
from architectures import CONFIGS, TOKENS, Golden, prompt, random_weight  # noqa: E402
from checkpoints import save_safetensors  # noqa: E402

MARGIN = 5e-5                    # by which the best token leads: a good deal more than what float32 costs


def model_class(config):
    return transformers.AutoModelForImageTextToText if "text_config" in config else transformers.AutoModelForCausalLM


def names(config, folder):
    """{tensor: shape} as save_pretrained writes them."""
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    made = model_class(config).from_config(transformers.AutoConfig.from_pretrained(folder), dtype=torch.float32)
    made.save_pretrained(folder)
    with safe_open(os.path.join(folder, "model.safetensors"), "np") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118


def load(config, folder):
    model, info = model_class(config).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                      output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def make(case):
    config = CONFIGS[case]
    with tempfile.TemporaryDirectory() as folder:
        shapes = names(config, folder)
        save_safetensors(folder, config, {name: random_weight(name, shape) for name, shape in shapes.items()})
        model = load(config, folder)
        start = torch.tensor([prompt()])
        ids = model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=TOKENS - start.shape[1],
                             do_sample=False, eos_token_id=None, pad_token_id=0)
        logits = model(ids).logits[0]
    greedy = ids[0, start.shape[1]:]
    assert len(ids[0]) == TOKENS and (logits[start.shape[1] - 1:-1].argmax(-1) == greedy).all()
    best = logits.topk(2).values
    leads = (best[:, 0] - best[:, 1])[start.shape[1] - 1:-1].min().item()
    print(f"{case}: {len(shapes)} tensors, best leads by {leads:.3g}, {len(set(greedy.tolist()))} tokens", flush=True)
    assert leads > MARGIN
    return shapes, {f"{case}: greedy": greedy.numpy().astype(np.uint8),
                    f"{case}: logits": logits[list(Golden.rows)].numpy()}


def main():
    chosen = sys.argv[1:] or list(CONFIGS)
    known = Golden(PATH) if os.path.exists(PATH) else None
    shapes = {case: known.shapes[case] for case in CONFIGS if known and case in known.shapes}
    arrays = {key: value for key, value in known.arrays.items() if key.split(": ")[0] in CONFIGS} if known else {}
    failed = []
    with torch.no_grad():
        for case in chosen:
            try:
                shapes[case], made = make(case)
            except Exception as error:        # the others are made all the same
                failed.append(f"{case}: {type(error).__name__}: {error}")
                continue
            arrays |= made
    arrays["shapes"] = np.array(json.dumps(shapes))
    np.savez_compressed(PATH, **arrays)
    print(os.path.getsize(PATH), "bytes", *failed, sep="\n")


if __name__ == "__main__":
    main()
