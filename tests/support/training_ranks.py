"""What tests/nn/test_train_together.py runs in several processes: `training_ranks.py CASE MODEL FOLDER STEPS`. Each
prints "rank: " and the bits of its adapter, or its error."""
import hashlib
import os
import signal
import sys

import numpy as np

import gomlx
import gomlx.core as mx
from gomlx import lora

ROWS = [{"prompt": f"Tell me about number {i}.", "completion": f"Once upon a time the number {i} met a cat. " *
         (1 + i % 3 * 8)} for i in range(9)]            # some are longer than a chain of sums
PAIRS = [{"prompt": f"Tell me about number {i}.", "chosen": f"The number {i} met a cat. " * (1 + i % 2 * 20),
          "rejected": "I will not."} for i in range(5)]
LABELS = [{"prompt": f"Tell me about number {i}.", "label": i % 2 == 0,
           "completion": "The number met a cat." if i % 2 == 0 else "I will not."} for i in range(6)]
DATA = {"sft": ROWS, "dpo": PAIRS, "orpo": PAIRS, "kto": LABELS}


def options(loss="sft", **changes):
    """Of a run whose steps have rows that ranks cannot share evenly."""
    return {"loss": loss, "batch": 5, "learning_rate": 5e-3, "eval_data": DATA[loss][:3], "progress": False,
            "lora": lora.LoRAConfig(targets="all", layers=2, dropout=0.1)} | changes


def said_of(run):
    """The adapter's bits, and what the steps told."""
    made = hashlib.sha256()
    for one in run.adapter.parameters().values():
        made.update(np.asarray(one).tobytes())
    told = [(one.loss, one.gradient_norm, one.eval_loss, one.rows, one.tokens, one.metrics) for one in run.history]
    return f"{made.hexdigest()[:16]} {hashlib.sha256(repr(told).encode()).hexdigest()[:16]} {len(told)}"


def main(case, name, folder, steps):
    group = mx.distributed.init()
    with gomlx.load(name if name != "fable" else None, threads=1, progress=False) as model:
        if case == "resume":
            return said_of(gomlx.train(model, ROWS, resume=folder, eval_data=ROWS[:3], steps=steps,
                                       progress=False).finish())
        if case == "broken":
            broken = {layer: gomlx.Term(mx.full(term.a.shape, 3e38), term.b, 1.0)
                      for layer, term in model.apply_lora().terms.items()}
            gomlx.train(model, ROWS, **options(lora=gomlx.Adapter(broken))).finish()
        if case == "other":
            gomlx.train(model, ROWS, **options(learning_rate=1e-3 * (1 + (group.rank() == 1))))
        if case == "there":
            gomlx.train(model, ROWS, **options(run=folder))
        loss = "sft" if case in ("killed", "interrupted", "diverged") else case
        run = gomlx.train(model, DATA[loss], **options(loss, steps=steps, save_every=1),
                          run=folder if folder != "none" else None)
        for step in run:
            if case == "killed" and group.rank() == 1 and step.step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if case == "interrupted" and group.rank() == 1 and step.step == 1:
                signal.setitimer(signal.ITIMER_REAL, 0.002)     # within the next step
            if case == "diverged" and group.rank() == 1 and step.step == 2:
                name, one = next(iter(run.adapter.parameters().items()))
                run._parameters[name] = one * 1.0000002
        return said_of(run)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        said = main(*sys.argv[1:4], int(sys.argv[4]))
    except (Exception, KeyboardInterrupt) as error:
        said = f"{type(error).__name__} {error}".replace("\n", " ")
    print(f"{mx.distributed.init().rank()}: {said}\n", end="", flush=True)
