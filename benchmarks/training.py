"""Measures a step of QLoRA on gomlx's engine, on PyTorch's PEFT and on mlx-lm, and prints one table.

    pip install . numpy gguf torch transformers peft mlx-lm
    python benchmarks/training.py                               # half an hour, the most of it mlx
    python benchmarks/training.py --only smollm2 --tokens 512 --libraries "gomlx bfloat16,peft bfloat16" --repeat 3

A step is forward, backward and Adam for one sequence of so many tokens: rank 8 on all seven projections of all layers,
of a model of a true shape with random weights (models.py; made in --folder once). gomlx reads Q4_K_M; "int8" rounds
activations as decoders do, "bfloat16" both factors of products with the model's matrices, "float32" nothing. PEFT has
the same shape dequantised, in float32 and in bfloat16; mlx-lm has MLX's 4 bits in groups of 64, on gomlx.core and on
the installed mlx, which takes minutes. Each library measures in a process of its own, one after the other.
Seconds are medians with [least..greatest] of --repeat steps after one that warms up; where that one takes longer than
--seconds, it is the only one ("first"). A library that has not ended after --limit seconds is ended then, and one that
fails is a row that says so; the others go on. "tokens/s" is of the median. "memory" is the highest resident memory of
the steps less what was resident before the first one, with the weights: MB; in brackets over the floor, what a step
must keep. "of peak": operations of the step, those of layers that are computed again included, over the time and over
what fma.c measured in the same run with float32."""
import argparse
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RANK, SCALE = 8, 2.0
PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
               "mlp.up_proj", "mlp.down_proj")
LIBRARIES = ("gomlx float32", "gomlx int8", "gomlx bfloat16", "peft float32", "peft bfloat16", "mlx-lm gomlx",
             "mlx-lm mlx")


def memory(field):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) / 1024


def tokens(n, vocab):
    return [(i * 7919 + 1) % min(vocab, 40000) for i in range(n + 1)]


# ---- the libraries: a function that does a step ----

def gomlx_step(options, kind):
    import numpy as np

    import gomlx.core as mx
    from gomlx import _gomlx, optimizers
    model = _gomlx.load_model(options["gguf"], threads=options["threads"],
                              **({} if kind == "int8" else {"activations": "float32"}))
    rounding = {"int8": kind == "int8", "bf16": kind == "bfloat16"}
    _gomlx.keep_memory(True)                                        # as gomlx.train() does
    mx.eval(model.rows([1], [1]))                                   # the weights are packed now
    rng = np.random.default_rng(0)
    parameters = {}
    for name in model.weight_names():
        if name.endswith("_proj.weight"):
            rows, columns = options["sizes"][name.split(".", 3)[3].removesuffix(".weight")]
            parameters[name[:-len(".weight")]] = {
                "a": mx.array(rng.normal(0, columns ** -0.5, (RANK, columns)).astype(np.float32)),
                "b": mx.array(np.zeros((rows, RANK), np.float32))}
    ids = tokens(options["tokens"], options["vocab"])
    n = len(ids) - 1

    def loss(p):
        terms = [(name, one["a"], one["b"], SCALE) for name, one in p.items()]
        rows = model.rows(ids[:-1], [n], terms=terms, checkpoints=options["checkpoints"], **rounding)
        return model.loss(rows, ids[1:], gradient=True, bf16=rounding["bf16"]).mean()

    optimizer = optimizers.Adam(learning_rate=1e-5)
    gradient = mx.value_and_grad(loss)

    def step():
        nonlocal parameters
        value, grads = gradient(parameters)
        parameters = optimizer.apply_gradients(grads, parameters)
        mx.eval(value, parameters, optimizer.state)
        return value.item()
    return step


def peft_step(options, dtype):
    import peft
    import torch
    import transformers
    torch.set_num_threads(options["threads"])
    shape = options["shape"]
    kind = transformers.Qwen3Config if shape["architecture"] == "qwen3" else transformers.LlamaConfig
    config = kind(hidden_size=shape["hidden"], intermediate_size=shape["mlp"], num_hidden_layers=shape["layers"],
                  num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"],
                  head_dim=shape["head_dim"], vocab_size=shape["vocab"], tie_word_embeddings=True,
                  max_position_embeddings=8192)
    torch.set_default_dtype(getattr(torch, dtype))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=RANK, lora_alpha=int(RANK * SCALE), lora_dropout=0.0, target_modules=[n.split(".")[1] for n in PROJECTIONS]))
    if options["checkpoints"]:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.config.use_cache = False
    model.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    ids = torch.tensor([tokens(options["tokens"], options["vocab"])[:-1]])

    def step():
        value = model(input_ids=ids, labels=ids).loss
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value.item()
    return step


def mlx_lm_step(options):
    from functools import partial

    import mlx.core as mx
    import mlx.nn as nn
    import mlx.optimizers as optim
    from mlx_lm.models import llama, qwen3
    from mlx_lm.tuner.trainer import default_loss, grad_checkpoint
    from mlx_lm.tuner.utils import linear_to_lora_layers
    shape = options["shape"]
    module, name = (qwen3, "qwen3") if shape["architecture"] == "qwen3" else (llama, "llama")
    model = module.Model(module.ModelArgs(
        model_type=name, hidden_size=shape["hidden"], num_hidden_layers=shape["layers"],
        intermediate_size=shape["mlp"], num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"],
        head_dim=shape["head_dim"], vocab_size=shape["vocab"], rms_norm_eps=1e-5, rope_theta=shape["theta"],
        max_position_embeddings=8192, tie_word_embeddings=True))
    nn.quantize(model, group_size=64, bits=4)
    mx.eval(model.parameters())
    model.freeze()
    linear_to_lora_layers(model, shape["layers"], {"rank": RANK, "scale": SCALE, "dropout": 0.0,
                                                   "keys": list(PROJECTIONS)})
    if options["checkpoints"]:
        grad_checkpoint(model.layers[0])
    model.train()
    optimizer = optim.Adam(learning_rate=1e-5)
    gradient = nn.value_and_grad(model, default_loss)
    state = [model.state, optimizer.state, mx.random.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def compiled(batch, lengths):
        (value, _), gradients = gradient(model, batch, lengths)
        optimizer.update(model, gradients)
        return value

    batch = mx.array([tokens(options["tokens"], options["vocab"])])

    def step():
        value = compiled(batch, mx.array([[0, options["tokens"] + 1]]))
        mx.eval(value, state)
        return value.item()
    return step


def worker(options):
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)                                                   # what libraries print is not an answer
    library, _, kind = options["library"].partition(" ")
    if library == "gomlx":
        step = gomlx_step(options, kind)
    elif library == "peft":
        step = peft_step(options, kind)
    else:
        if kind == "gomlx":
            import gomlx.mlx
            gomlx.mlx.install()
        step = mlx_lm_step(options)
    gc.collect()
    before = memory("VmRSS")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")                                             # the highest resident memory counts anew
    start = time.perf_counter()
    losses, first = [step()], time.perf_counter() - start
    times = [first] if first > options["seconds"] else []
    for _ in range(0 if times else options["repeat"]):
        start = time.perf_counter()
        losses.append(step())
        times.append(time.perf_counter() - start)
        if sum(times) > options["seconds"]:
            break
    print(json.dumps({"times": times, "first": first, "memory": memory("VmHWM") - before, "losses": losses}),
          file=answers, flush=True)


# ---- what a step takes at least ----

def sizes(shape):
    wide, narrow = shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    hidden, mlp = shape["hidden"], shape["mlp"]
    return dict(zip(PROJECTIONS, ((wide, hidden), (narrow, hidden), (narrow, hidden), (hidden, wide), (mlp, hidden),
                                  (mlp, hidden), (hidden, mlp))))


def operations(shape, n, checkpoints):
    """Of products: forwards and the gradients of rows through weights, both of a term and of its matrices; attention's
    two products forwards and five backwards over half of the square; the head."""
    matrices = sum(rows * columns for rows, columns in sizes(shape).values())
    terms = sum(RANK * (rows + columns) for rows, columns in sizes(shape).values())
    attention = n / 2 * shape["heads"] * shape["head_dim"]
    forward = 2 * (matrices + terms + 2 * attention)
    backward = 2 * (matrices + 2 * terms + 5 * attention)
    layers = shape["layers"] * (forward * (2 if checkpoints else 1) + backward)
    return n * (layers + 4 * shape["vocab"] * shape["hidden"])


def floor(shape, n, checkpoints):
    """MB that a step must keep: for each token and layer the residual stream twice, queries, keys, values, what
    attention gives, gate and up, or with checkpoints these of one layer and the stream of all; a slice of logits, of
    64 MiB or 64 to 256 rows; the terms four times, with gradients and Adam's state."""
    wide, narrow = shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    layers, kept = shape["layers"], 2 * (shape["hidden"] + wide + narrow + shape["mlp"])
    terms = layers * sum(RANK * (rows + columns) for rows, columns in sizes(shape).values())
    kept = kept + layers * shape["hidden"] if checkpoints else layers * kept
    rows = min(n, max(64, min(256, 2**24 // shape["vocab"])))
    return 4 * (n * kept + rows * shape["vocab"] + 4 * terms) / 2**20


def measure(options, limit):
    """What a library measured, or {"failed": a line}."""
    command = [sys.executable, "-P", os.path.abspath(__file__), "--worker", json.dumps(options)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {limit:g} s"}
    if done.returncode:
        print(f"{options['library']} failed:\n{done.stderr[-3000:]}", file=sys.stderr, flush=True)
        return {"failed": f"failed with {done.returncode}"}
    return json.loads(done.stdout)


def row(case, result):
    """A line of the table."""
    start = f"| {case['model']} | {case['tokens']} | {case['checkpoints']} | {case['library']} | "
    if "failed" in result:
        return f"{start}{result['failed']} | | | |"
    times, n, checkpoints = result["times"], case["tokens"], case["checkpoints"] == "on"
    median = statistics.median(times)
    share = operations(case["shape"], n, checkpoints) / median / case["peak"] / 1e9
    spread = f"[{min(times):.3g}..{max(times):.3g}]" if times != [result["first"]] else "first"
    return (f"{start}{median:.3g} {spread} | {n / median:.0f} | {share:.0%} of {case['peak']:.0f} | "
            f"{result['memory']:.0f} ({result['memory'] / case['floor']:.2f}) |")


def cases(arguments):
    """What there is to measure, as options of workers."""
    import models
    for name in arguments.only.split(","):
        shape = vars(models.SHAPES[name])
        path = models.quantised(name, arguments.quant, arguments.folder, arguments.peers)
        for n, checkpoints, library in itertools.product(arguments.tokens.split(","), arguments.checkpoints.split(","),
                                                         arguments.libraries.split(",")):
            yield name, {
                "library": library, "gguf": path, "shape": shape, "sizes": sizes(shape), "vocab": shape["vocab"],
                "tokens": int(n), "checkpoints": checkpoints == "on", "repeat": arguments.repeat,
                "seconds": arguments.seconds, "threads": arguments.threads}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="smollm2,qwen3", help="shapes of models.py, separated by commas")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="separated by commas")
    parser.add_argument("--tokens", default="512,2048", help="separated by commas")
    parser.add_argument("--checkpoints", default="off,on")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20, help="that a library takes at most for its steps")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a library's process is ended")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quant", default="Q4_K_M")
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "gomlx-benchmarks"))
    parser.add_argument("--peers", default=os.environ.get("GOMLX_PEERS") or
                        os.path.join(os.path.dirname(os.path.dirname(HERE)), "shared", "peers"))
    parser.add_argument("--json", help="write all measurements there")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(json.loads(arguments.worker))

    sys.path.insert(0, HERE)
    import matmul

    from gomlx import _gomlx
    peak = matmul.Peak(_gomlx.isa())
    print("| model | tokens | checkpoints | library | s | tokens/s | of peak | memory MB |\n" + 8 * "|---" + "|")
    found = []
    for name, options in cases(arguments):
        result = measure(options, arguments.limit)
        case = {"model": name, "tokens": options["tokens"], "checkpoints": "on" if options["checkpoints"] else "off",
                "library": options["library"], "peak": peak(arguments.threads),
                "floor": floor(options["shape"], options["tokens"], options["checkpoints"])}
        print(row(case | {"shape": options["shape"]}, result), flush=True)
        found.append(case | result)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(found, file)


if __name__ == "__main__":
    main()
