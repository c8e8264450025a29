"""The process of the backend mlx_lm: one model of mlx-lm, driven by lines of JSON.

Runs under any Python that has mlx-lm and imports nothing of gomlx, unless gomlx is used as mlx. It computes
only when asked: each {"do": "next"} has exactly one answer, a token or an end. Between the chunks of a prompt it looks
whether {"do": "stop"} has come. It ends when its standard input does, so it never outlives the process that started it.

    -> {"do": "load", "path": ...}                      <- {"loaded": {...}}
    -> {"do": "generate", "prompt": [...], ...}         (no answer)
    -> {"do": "next"}                                  <- {"token": 5, "logprob": -0.1}, {"end": "length" | "stopped"}
    -> {"do": "stop"}                                   (no answer of its own)
    -> {"do": "metrics"}                                <- {"metrics": {...}}
    any                                                 <- {"error": ..., "kind": ...}

A request with a number gets it back in its answer, so that an answer that comes too late is recognised.
"""
import json
import os
import select
import sys


class Lines:
    """Lines of standard input, with a check whether another line has come."""

    def __init__(self):
        self.data = b""

    def next(self):
        while b"\n" not in self.data:
            more = os.read(0, 1 << 16)
            if not more:
                raise SystemExit(0)
            self.data += more
        line, _, self.data = self.data.partition(b"\n")
        return json.loads(line)

    def waits(self):
        return b"\n" in self.data or bool(select.select([0], [], [], 0)[0])


class Stopped(Exception):
    pass


class Bridge:
    def __init__(self, lines):
        self.lines = lines
        self.model = self.steps = None

    def load(self, request):
        import mlx.core as mx
        from mlx_lm import load
        self.mx = mx
        self.model = load(request["path"])[0]
        return {"loaded": {"mlx": getattr(mx, "__version__", None), "device": str(mx.default_device())}}

    def generate(self, request):
        from mlx_lm.generate import generate_step
        from mlx_lm.sample_utils import make_logits_processors, make_sampler
        if self.model is None:
            raise RuntimeError("no model is loaded")
        self.mx.random.seed(request["seed"])
        penalty, bias = request["repetition_penalty"], request["logit_bias"]
        processors = make_logits_processors(
            logit_bias={int(i): value for i, value in bias.items()} or None,
            repetition_penalty=None if penalty == 1 else penalty, repetition_context_size=request["penalty_last_n"])
        sampler = make_sampler(temp=request["temperature"], top_p=request["top_p"], min_p=request["min_p"],
                               top_k=request["top_k"])
        self.steps = generate_step(self.mx.array(request["prompt"]), self.model, max_tokens=request["max_tokens"],
                                   sampler=sampler, logits_processors=processors, prefill_step_size=512,
                                   prompt_progress_callback=self.prefilled)

    def prefilled(self, done, total):
        if self.lines.waits():
            self.stop(self.lines.next())
            raise Stopped

    def next(self, request):
        if self.steps is None:
            return {"end": "stopped"}
        try:
            token, logprobs = next(self.steps)
        except Stopped:
            return {"end": "stopped"}
        except StopIteration:
            self.steps = None
            return {"end": "length"}
        return {"token": int(token), "logprob": float(logprobs[int(token)].item())}

    def stop(self, request):
        self.steps = None

    def metrics(self, request):
        return {"metrics": {"peak_memory_bytes": int(self.mx.get_peak_memory()),
                            "active_memory_bytes": int(self.mx.get_active_memory())} if self.model else {}}


def main(library, home):
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)                               # what libraries print must not come between the answers
    if library == "gomlx":
        sys.path.append(home)
        import gomlx.mlx  # the other library's Python need not have gomlx
        gomlx.mlx.install()
    lines = Lines()
    bridge = Bridge(lines)
    commands = {"load": bridge.load, "generate": bridge.generate, "next": bridge.next, "stop": bridge.stop,
                "metrics": bridge.metrics}
    while True:
        request = lines.next()
        try:
            answer = commands[request["do"]](request)
        except Exception as error:              # every error is sent to the other side, which raises it
            bridge.steps = None
            if request["do"] == "generate":     # generate has no answer: that of the next request carries the error
                bridge.steps = failing(error)
                continue
            answer = {"error": str(error) or type(error).__name__, "kind": type(error).__name__}
        if answer is not None:
            answer["number"] = request.get("number")
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def failing(error):
    raise error
    yield


if __name__ == "__main__":
    del sys.path[0]                             # this folder, whose mlx_lm.py is not mlx-lm
    main(*sys.argv[1:])
