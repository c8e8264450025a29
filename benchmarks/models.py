"""Writes models of true shapes with random weights, to measure speed where no weights can be fetched.

    python benchmarks/models.py smollm2 smollm2-bf16.gguf

The file is GGUF in BF16 with a byte-level vocabulary, and is written tensor by tensor. It names no end of text, so that
a generation runs to the length it is given. `quantised` makes the other types with llama.cpp's llama-quantize, the
smallest of them with an importance matrix of llama-imatrix: of random weights any is as good.
Needs numpy and PyPI's gguf."""
import argparse
import os
import subprocess
from dataclasses import dataclass

import gguf
import numpy as np

POOL = 4_194_301        # random values that the tensors are cut from, each from a place of its own; a prime


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    theta: float
    context: int
    architecture: str = "llama"
    tied: bool = True       # the head is the embedding
    experts: int = 0        # instead of an MLP, each of width mlp
    experts_used: int = 0


SHAPES = {
    "smollm2": Shape(30, 576, 1536, 9, 3, 64, 49152, 1e5, 8192),                      # SmolLM2-135M
    "qwen3": Shape(28, 1024, 3072, 16, 8, 128, 151936, 1e6, 40960, "qwen3"),          # Qwen3-0.6B
    "llama1b": Shape(16, 2048, 8192, 32, 8, 64, 128256, 5e5, 131072),                 # Llama-3.2-1B
    "llama8b": Shape(32, 4096, 14336, 32, 8, 128, 128256, 5e5, 131072, tied=False),   # Llama-3.1-8B
    "qwen3moe": Shape(48, 2048, 768, 32, 4, 128, 151936, 1e6, 40960, "qwen3moe", False, 128, 8),    # Qwen3-30B-A3B
    "gptoss": Shape(24, 2880, 2880, 64, 8, 64, 201088, 1.5e5, 131072, "gpt-oss", False, 32, 4),     # gpt-oss-20b
}
DENSE = [name for name, shape in SHAPES.items() if not shape.experts]


def tensors(shape):
    """(name, rows, columns) of each matrix; rows is None for a vector, and (experts, rows) for a stack of matrices."""
    yield "token_embd.weight", shape.vocab, shape.hidden
    for i in range(shape.layers):
        for name, rows, columns in in_layer(shape):
            yield f"blk.{i}.{name}", rows, columns
    yield "output_norm.weight", None, shape.hidden
    if not shape.tied:
        yield "output.weight", shape.vocab, shape.hidden


def in_layer(shape):
    """tensors() of a layer."""
    wide, narrow, hidden = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.hidden
    biased, mlp = shape.architecture == "gpt-oss", [("gate", shape.mlp, hidden), ("up", shape.mlp, hidden),
                                                    ("down", hidden, shape.mlp)]
    yield "attn_norm.weight", None, hidden
    for name, rows, columns in (("q", wide, hidden), ("k", narrow, hidden), ("v", narrow, hidden),
                                ("output", hidden, wide)):
        yield f"attn_{name}.weight", rows, columns
        if biased:
            yield f"attn_{name}.bias", None, rows
    if shape.architecture.startswith("qwen3"):
        yield "attn_q_norm.weight", None, shape.head_dim
        yield "attn_k_norm.weight", None, shape.head_dim
    if biased:
        yield "attn_sinks.weight", None, shape.heads
    yield ("post_attention_norm.weight" if biased else "ffn_norm.weight"), None, hidden
    if not shape.experts:
        for name, rows, columns in mlp:
            yield f"ffn_{name}.weight", rows, columns
        return
    yield "ffn_gate_inp.weight", shape.experts, hidden
    if biased:
        yield "ffn_gate_inp.bias", None, shape.experts
    for name, rows, columns in mlp:
        yield f"ffn_{name}_exps.weight", (shape.experts, rows), columns
        if biased:
            yield f"ffn_{name}_exps.bias", None, (shape.experts, rows)


def byte_tokens():
    """One printable character for each byte, as byte-level BPE writes them: those that print stand for themselves,
    the others are numbered from 256 on."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in prints else next(others)) for byte in range(256)]


def bfloat16(values):
    """float32 rounded to the nearest bfloat16, as uint16."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def begun(name, path, file_type):
    """A writer that has everything but the tensors: the shape, and a byte-level vocabulary."""
    shape = SHAPES[name]
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_name(name)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.experts_used)
        writer.add_expert_feed_forward_length(shape.mlp)
    if shape.architecture == "gpt-oss":
        writer.add_sliding_window(128)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
    writer.add_file_type(file_type)
    vocabulary = byte_tokens() + ["th"]
    vocabulary += [f"<{i}>" for i in range(len(vocabulary), shape.vocab)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([gguf.TokenType.NORMAL] * shape.vocab)
    writer.add_token_merges(["t h"])
    writer.add_add_bos_token(False)
    return writer


def write(name, path):
    shape = SHAPES[name]
    rng = np.random.default_rng(0)
    pool = bfloat16(rng.standard_normal(POOL, dtype=np.float32) * np.float32(0.02))
    writer = begun(name, path, gguf.LlamaFileType.MOSTLY_BF16)
    for tensor, rows, columns in tensors(shape):
        if rows is None:
            writer.add_tensor_info(tensor, (columns,), np.dtype(np.float32), 4 * columns)
        else:
            writer.add_tensor_info(tensor, (rows, 2 * columns), np.dtype(np.uint8), 2 * rows * columns,
                                   raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, rows, columns in tensors(shape):
        if rows is None:
            writer.write_tensor_data(np.ones(columns, np.float32))
        else:
            cut = np.resize(np.roll(pool, int(rng.integers(POOL))), rows * columns)
            writer.write_tensor_data(cut.view(np.uint8).reshape(rows, 2 * columns))
    writer.close()


def importance(name, folder, peers):
    """The path of an importance matrix of the model, which llama-quantize wants for IQ1, IQ2 and IQ3."""
    path = os.path.join(folder, f"{name}.imatrix.gguf")
    if not os.path.exists(path):
        text, part = os.path.join(folder, "importance.txt"), path + ".part"
        with open(text, "w", encoding="ascii") as file:          # every byte is a token: 256 of each chunk
            file.write(" ".join(str(i * 7919 % 1000) for i in range(700)))
        call(peers, "llama-imatrix", "-m", quantised(name, "bf16", folder, peers), "-f", text, "-o", part, "-c", "256",
             "--chunks", "4", "--output-format", "gguf")
        os.rename(part, path)
    return path


def call(peers, program, *arguments):
    path = os.path.join(peers, program)
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} is not there; it is needed to make models (--peers or GOMLX_PEERS)")
    subprocess.run([path, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def quantised(name, quant, folder, peers):
    """The path of the model in this type ("bf16", "Q4_K_M", ...), made in the folder when it is not there yet."""
    path = os.path.join(folder, f"{name}-{quant}.gguf")
    if os.path.exists(path):
        return path
    os.makedirs(folder, exist_ok=True)
    part = path + ".part"
    if quant == "bf16":
        write(name, part)
    else:
        source = quantised(name, "bf16", folder, peers)
        weighed = ["--imatrix", importance(name, folder, peers)] if quant.upper()[:3] in ("IQ1", "IQ2", "IQ3") else []
        call(peers, "llama-quantize", *weighed, source, part, quant.upper(), str(os.cpu_count()))
    os.rename(part, path)
    return path


def bytes_per_token(path):
    """Bytes of weights that one decoded token reads: all tensors, but of an embedding that is not the head one row."""
    found = gguf.GGUFReader(path).tensors
    untied = any(tensor.name == "output.weight" for tensor in found)
    return sum(int(tensor.n_bytes) for tensor in found if not (untied and tensor.name == "token_embd.weight"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=DENSE)
    parser.add_argument("path")
    arguments = parser.parse_args()
    write(arguments.name, arguments.path)
