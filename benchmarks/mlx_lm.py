"""Measures mlx-lm, unmodified, on gomlx and on mlx[cpu], beside gomlx's own engine, and prints one table.

    pip install . mlx-lm gguf numpy                                          # here; and in another environment
    pip install mlx-lm 'mlx[cpu]'                                            # the peer
    python benchmarks/mlx_lm.py --mlx /path/to/that/bin/python               # about ten minutes

The model has SmolLM2-135M's shape and random weights (models.py; made in --folder once), as a Hugging Face folder in
bfloat16 and as mlx-lm's `convert` makes it with 4 bits; the engine reads the same matrices as GGUF, in BF16 and Q4_0,
which like MLX's 4 bits takes 4.5 bits a weight (Q4_0 where llama.cpp's llama-quantize is in --peers).

Every library stays loaded in a process of its own; in each round each measures a row once, one after the other. A
generation runs from a prompt of 16 tokens, greedily, for --tokens tokens or --seconds seconds; its rate does not count
the first token. A LoRA step is mlx-lm's trainer's: forward, backward and Adam, on --lora-layers layers, a batch of one
sequence of --lora-tokens tokens, the base in bfloat16. Cells are medians with [least..greatest]; "x" is gomlx's median
over the other's (for steps, the other's over gomlx's): above 1 gomlx is faster."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "smollm2"


# ---- what a worker measures: one JSON line asks, one answers ----

class MlxLm:
    """mlx-lm on whichever mlx this process imports."""

    def __init__(self, options):
        import mlx.core as mx
        import mlx_lm
        self.mx, self.mlx_lm, self.options, self.loaded = mx, mlx_lm, options, {}

    def version(self):
        from importlib.metadata import version
        library = f"mlx {version('mlx')}"
        if self.mx.__name__ == "gomlx.core":
            library = f"gomlx {sys.modules['gomlx'].__version__}"
        return f"mlx-lm {version('mlx-lm')} on {library}"

    def model(self, kind):
        if kind not in self.loaded:
            self.loaded[kind] = self.mlx_lm.load(self.options[kind])
        return self.loaded[kind]

    def generate(self, kind):
        model, tokenizer = self.model(kind)
        times = []
        for _ in self.mlx_lm.stream_generate(model, tokenizer, prompt(), max_tokens=self.options["tokens"]):
            times.append(time.perf_counter())
            if times[-1] - times[0] > self.options["seconds"] and len(times) > 3:
                break
        return (len(times) - 1) / (times[-1] - times[0])

    def step(self, kind):
        from functools import partial

        import mlx.nn as nn
        import mlx.optimizers as optim
        from mlx_lm.tuner.trainer import default_loss
        from mlx_lm.tuner.utils import linear_to_lora_layers
        mx, options = self.mx, self.options
        if "step" not in self.loaded:
            model, _ = self.mlx_lm.load(options[kind])
            model.freeze()
            linear_to_lora_layers(model, options["lora_layers"], {"rank": 8, "scale": 20.0, "dropout": 0.0})
            model.train()
            optimizer = optim.Adam(learning_rate=1e-5)
            gradient = nn.value_and_grad(model, default_loss)
            state = [model.state, optimizer.state, mx.random.state]

            @partial(mx.compile, inputs=state, outputs=state)       # as mlx-lm's trainer does
            def step(batch, lengths):
                (loss, _), gradients = gradient(model, batch, lengths)
                optimizer.update(model, gradients)
                return loss

            n = options["lora_tokens"] + 1
            batch = mx.array([[(i * 7919 + 1) % 256 for i in range(n)]])

            def run():
                mx.eval(step(batch, mx.array([[0, n]])), state)

            run()
            self.loaded["step"] = run
        start = time.perf_counter()
        self.loaded["step"]()
        return time.perf_counter() - start


class Engine:
    """gomlx's own decode loop on GGUF files."""

    def __init__(self, options):
        import gomlx
        self.gomlx, self.options, self.loaded = gomlx, options, {}

    def version(self):
        return f"gomlx {self.gomlx.__version__}"

    def generate(self, kind):
        path = self.options[f"{kind} gguf"]
        if path is None:
            return None
        if kind not in self.loaded:
            self.loaded[kind] = self.gomlx.load(path)
        times = []
        for _ in self.loaded[kind].generate(prompt(), max_tokens=self.options["tokens"], temperature=0):
            times.append(time.perf_counter())
        return (len(times) - 1) / (times[-1] - times[0])

    def step(self, kind):
        return None


def prompt():
    return [(i * 7919 + 1) % 256 for i in range(16)]


def worker(kind, options):
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)                                                   # what libraries print is not an answer
    library = (Engine if kind == "engine" else MlxLm)(options)
    print(json.dumps(library.version()), file=answers, flush=True)
    for line in sys.stdin:
        what, which = json.loads(line)
        print(json.dumps(getattr(library, what)(which)), file=answers, flush=True)


class Worker:
    """A library in a process of its own."""

    def __init__(self, command, kind, options):
        self.command = [*command, os.path.abspath(__file__), "--worker", kind, json.dumps(options)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, env=environment)
        self.version = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            sys.exit(f"{' '.join(self.command[:-1])} failed:\n{self.errors.read()[-3000:]}")
        return json.loads(line)

    def ask(self, what, which):
        print(json.dumps([what, which]), file=self.process.stdin, flush=True)
        return self.answer()


# ---- the model, in the forms that the libraries read ----

PARTS = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def write_folder(source, folder, shape, models):
    """The GGUF file as a Hugging Face folder: same numbers, in that convention's names and order of rows."""
    import gguf
    import numpy as np
    header, blobs, end = {}, [], 0
    for tensor in gguf.GGUFReader(source).tensors:
        name = WHOLE.get(tensor.name)
        if name is None:
            _, block, part, _ = tensor.name.split(".")
            name = f"model.layers.{block}.{PARTS[part]}.weight"
        rows = [int(n) for n in tensor.shape[::-1]]
        if tensor.data.dtype == np.float32:
            values = models.bfloat16(np.ascontiguousarray(tensor.data))
        else:
            values = np.ascontiguousarray(tensor.data).view(np.uint16).reshape(rows)
        if name.endswith(("q_proj.weight", "k_proj.weight")):       # GGUF interleaves the halves of each head
            heads = rows[0] // shape.head_dim
            values = values.reshape(heads, shape.head_dim // 2, 2, rows[1]).swapaxes(1, 2)
        data = values.tobytes()
        header[name] = {"dtype": "BF16", "shape": rows, "data_offsets": [end, end + len(data)]}
        blobs.append(data)
        end += len(data)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(blobs)
    vocabulary = models.byte_tokens() + ["th"]
    vocabulary += [f"<{i}>" for i in range(len(vocabulary), shape.vocab)]
    write_json(folder, "tokenizer.json", {
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None, "truncation": None,
        "padding": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False},
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(vocabulary)}, "merges": [["t", "h"]]}})
    write_json(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    write_json(folder, "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers, "intermediate_size": shape.mlp, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "vocab_size": shape.vocab,
        "rope_theta": shape.theta, "max_position_embeddings": shape.context, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16"})


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(value, file)


def prepare(folder, peers):
    """Paths of the model in every form, made where they are not there yet."""
    import models
    paths = {"bf16 gguf": models.quantised(NAME, "bf16", folder, peers)}
    try:
        paths["4-bit gguf"] = models.quantised(NAME, "Q4_0", folder, peers)
    except FileNotFoundError:
        paths["4-bit gguf"] = None
    paths["bf16"] = os.path.join(folder, f"{NAME}-hf")
    if not os.path.exists(os.path.join(paths["bf16"], "config.json")):
        write_folder(paths["bf16 gguf"], paths["bf16"], models.SHAPES[NAME], models)
    paths["4-bit"] = os.path.join(folder, f"{NAME}-mlx-4bit")
    if not os.path.exists(paths["4-bit"]):
        subprocess.run([sys.executable, "-P", "-m", "gomlx.mlx", "-m", "mlx_lm", "convert", "--hf-path", paths["bf16"],
                        "--mlx-path", paths["4-bit"], "-q", "--q-bits", "4", "--q-group-size", "64"], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    return paths


# ---- rounds and table ----

ROWS = {"generate 4-bit": ("generate", "4-bit", "tokens/s"), "generate bf16": ("generate", "bf16", "tokens/s"),
        "LoRA step": ("step", "bf16", "s")}


def cell(values):
    if not values:
        return "-"
    return f"{statistics.median(values):.3g} [{min(values):.3g}..{max(values):.3g}]"


def ratio(row, found, other):
    if not found.get("gomlx") or not found.get(other):
        return "-"
    x = statistics.median(found["gomlx"]) / statistics.median(found[other])
    return f"{1 / x if ROWS[row][2] == 's' else x:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlx", help="Python that has mlx-lm and mlx[cpu]; the peer is left out without it")
    parser.add_argument("--only", default=",".join(ROWS), help="rows, separated by commas")
    parser.add_argument("--repeat", type=int, default=3, help="rounds")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--lora-layers", type=int, default=16)
    parser.add_argument("--lora-tokens", type=int, default=128)
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "gomlx-benchmarks"))
    parser.add_argument("--peers", default=os.environ.get("GOMLX_PEERS") or
                        os.path.join(os.path.dirname(os.path.dirname(HERE)), "shared", "peers"))
    parser.add_argument("--json", help="write all measurements there")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker[0], json.loads(options.worker[1]))

    shared = {**prepare(options.folder, options.peers), "tokens": options.tokens, "seconds": options.seconds,
              "lora_layers": options.lora_layers, "lora_tokens": options.lora_tokens}
    # -P: this folder, which has a file of mlx-lm's name, is not a place to import from.
    workers = {"gomlx": Worker([sys.executable, "-P", "-m", "gomlx.mlx"], "mlx-lm", shared)}
    if options.mlx:
        workers["mlx"] = Worker([options.mlx, "-P"], "mlx-lm", shared)
    workers["engine"] = Worker([sys.executable, "-P"], "engine", shared)

    rows = options.only.split(",")
    measured = {row: {name: [] for name in workers} for row in rows}
    for row in rows:
        for library in workers.values():                            # loads, compiles and warms up
            library.ask(*ROWS[row][:2])
        for _ in range(options.repeat):
            for name, library in workers.items():
                value = library.ask(*ROWS[row][:2])
                if value is not None:
                    measured[row][name].append(value)
    others = [name for name in workers if name != "gomlx"]
    header = ["row", "unit", "mlx-lm on gomlx"]
    for name in others:
        header += ["mlx-lm on mlx" if name == "mlx" else "gomlx's engine", "x"]
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        cells = [row, ROWS[row][2], cell(measured[row]["gomlx"])]
        for name in others:
            cells += [cell(measured[row][name]), ratio(row, measured[row], name)]
        print("| " + " | ".join(cells) + " |")
    print("\nversions: " + "; ".join(library.version for library in workers.values()))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(measured, file)


if __name__ == "__main__":
    main()
