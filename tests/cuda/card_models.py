"""Models on the first GPU beside the processor, a line each:

    python tests/cuda/card_models.py [--layers] [FOLDER ...]

A FOLDER has models, each a folder or a .gguf file; without one it is the packaged model. Of float32 activations: the
relative root mean square and the divergence (KL) of logits from the processor's, the share of positions with the same
first token, and whether 64 greedy tokens are the same; of the default: the same numbers, beside the processor's float32
ones. Then what has to be equal bit for bit: sequences alone and together, a prompt at once and in parts, a session that
goes from one device to the other; and tokens/s of one sequence, with the GPU and with the processor. It ends with 1
where the float32 path is more than 1e-5 away, a text differs or bits do. With --layers a line is one number of layers
on the GPU, the others on the processor, with the numbers of the float32 path alone."""
import glob
import os
import sys
import time

import numpy as np

import gomlx

PROMPTS = ["Once upon a time", "The fox said to the crow", "A", "In the morning the king called his sons and said"]
LONG = "Once upon a time there was a fox. The fox saw a crow in a tree, and the crow had a piece of cheese. " * 4
TOKENS = 64
MOST_RMS = 1e-5


def models_of(folders):
    found = []
    for folder in folders:
        found += sorted(os.path.dirname(path) for path in glob.glob(os.path.join(folder, "**", "config.json"),
                                                                    recursive=True))
        found += sorted(glob.glob(os.path.join(folder, "**", "*.gguf"), recursive=True))
    return found


def greedy(model, prompt, **options):
    return model.generate(prompt, max_tokens=TOKENS, temperature=0, ignore_eos=True, **options).read()


def bits(result):
    return result.tokens, np.float32(result.logprobs).tobytes()


def log_softmax(logits):
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def compared(want, got):
    """Relative RMS, mean KL and the share of equal first tokens."""
    p, q = log_softmax(want), log_softmax(got)
    rms = np.sqrt(np.mean((got.astype(np.float64) - want) ** 2) / np.mean(want.astype(np.float64) ** 2))
    return rms, np.mean((np.exp(p) * (p - q)).sum(-1)), np.mean(want.argmax(-1) == got.argmax(-1))


def same_bits(gpu, cpu):
    """What is not equal bit for bit."""
    wrong, alone = [], [bits(greedy(gpu, prompt)) for prompt in PROMPTS]
    batch = gpu.generate_batch(PROMPTS, max_tokens=TOKENS, temperature=0, ignore_eos=True)
    for _ in batch:
        pass
    if [bits(one) for one in batch.results] != alone:
        wrong.append("batch")
    ids = gpu.tokenizer.encode_prompt(LONG)
    whole = gpu.session()
    want = bits(greedy(gpu, ids, session=whole))
    for size in (1, 17, len(ids) // 2):
        session = gpu.session()
        gpu.generate(ids[:size], max_tokens=0, session=session).read()
        if bits(greedy(gpu, ids, session=session)) != want:
            wrong.append(f"parts of {size}")
    if bits(greedy(gpu, ids, session=gpu.session())) != want:
        wrong.append("again")
    saved = whole.save()
    if cpu.restore_session(saved).save() != saved:
        wrong.append("session")
    return wrong


def speed(model):
    """Tokens/s of one sequence, the second time: the first one makes plans."""
    greedy(model, LONG)
    start = time.perf_counter()
    made = model.generate("A", max_tokens=TOKENS, temperature=0, ignore_eos=True)
    next(made)
    first = time.perf_counter()
    for _ in made:
        pass
    return (TOKENS - 1) / (time.perf_counter() - first), first - start


def line_of(path):
    """A row of the table, and whether all is as it has to be."""
    with gomlx.load(path, device="cpu", activations="float32", prompt_cache=False) as cpu:
        ids = cpu.tokenizer.encode_prompt(LONG)
        want, text = np.asarray(cpu.logits(ids)), greedy(cpu, PROMPTS[1]).tokens
        cpu_speed, _ = speed(cpu)
        with gomlx.load(path, device="cuda", activations="float32", prompt_cache=False) as gpu:
            exact = compared(want, np.asarray(gpu.logits(ids)))
            same = greedy(gpu, PROMPTS[1]).tokens == text
            wrong = same_bits(gpu, cpu)
            gpu_speed, _ = speed(gpu)
        with gomlx.load(path, device="cuda", prompt_cache=False) as gpu:
            usual = compared(want, np.asarray(gpu.logits(ids)))
            usual_same = greedy(gpu, PROMPTS[1]).tokens == text
            kind = gpu.info["activations"]
    good = exact[0] <= MOST_RMS and same and not wrong
    name = os.path.basename(path) if path else "(packaged)"
    return (f"{name:24} {exact[0]:8.1e} {exact[1]:8.1e} {100 * exact[2]:6.1f} % {'same' if same else 'DIFFERS':8} | "
            f"{kind:9} {usual[0]:8.1e} {usual[1]:8.1e} {100 * usual[2]:6.1f} % {'same' if usual_same else 'other':6} | "
            f"{' '.join(wrong) or 'equal':12} | {gpu_speed:7.0f} {cpu_speed:7.0f}"), good


def lines_of_layers(path):
    """A row for each number of layers, and whether all is as it has to be."""
    name = os.path.basename(path) if path else "(packaged)"
    with gomlx.load(path, device="cpu", activations="float32", prompt_cache=False) as cpu:
        ids = cpu.tokenizer.encode_prompt(LONG)
        want, text = np.asarray(cpu.logits(ids)), greedy(cpu, PROMPTS[1]).tokens
        for count in gomlx.plan_memory(path).possible_gpu_layers:
            with gomlx.load(path, gpu_layers=count, activations="float32", prompt_cache=False) as gpu:
                away = compared(want, np.asarray(gpu.logits(ids)))
                same, wrong = greedy(gpu, PROMPTS[1]).tokens == text, same_bits(gpu, cpu)
                line = (f"{name:24} {count:3} of {gpu.info['n_layers']:3} {away[0]:8.1e} {away[1]:8.1e} "
                        f"{100 * away[2]:6.1f} % {'same' if same else 'DIFFERS':8} | {' '.join(wrong) or 'equal':12} | "
                        f"{speed(gpu)[0]:7.0f}")
            yield line, away[0] <= MOST_RMS and same and not wrong


def main(folders):
    by_layers, folders = "--layers" in folders, [one for one in folders if one != "--layers"]
    paths = models_of(folders) if folders else [None]
    failed = 0
    if by_layers:
        print("model                        layers      rms       KL     first   64 tokens| bits         | tok/s")
        for path in paths:
            for line, good in lines_of_layers(path):
                failed += not good
                print(line, "" if good else "  WRONG", flush=True)
        print(f"{len(paths)} models, {failed} wrong")
        return 1 if failed or not paths else 0
    print("model                      rms       KL     first   64 tokens| default      rms       KL     first         "
          "| bits         | tok/s GPU, CPU")
    for path in paths:
        line, good = line_of(path)
        failed += not good
        print(line, "" if good else "  WRONG", flush=True)
    print(f"{len(paths)} models, {failed} wrong")
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
