"""Small random Llama checkpoints, written as safetensors folders and as GGUF files, with the weights that they hold."""
import json
import os

import gguf
import numpy as np

SMALL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": True,
}


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def random_weights(config, seed=0, attention_bias=False, mlp_bias=False):
    """float32 arrays by Hugging Face name. Queries and keys are large enough that attention has favourites."""
    rng = np.random.default_rng(seed)
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * head_dim(config)
    kv = (config.get("num_key_value_heads") or config["num_attention_heads"]) * head_dim(config)
    matrices = {"self_attn.q_proj": (q, hidden, 2), "self_attn.k_proj": (kv, hidden, 2),
                "self_attn.v_proj": (kv, hidden, 1), "self_attn.o_proj": (hidden, q, 1),
                "mlp.gate_proj": (mlp, hidden, 1), "mlp.up_proj": (mlp, hidden, 1), "mlp.down_proj": (hidden, mlp, 1)}
    weights = {"model.embed_tokens.weight": rng.normal(size=(config["vocab_size"], hidden))}
    for i in range(config["num_hidden_layers"]):
        for name, (rows, columns, gain) in matrices.items():
            weights[f"model.layers.{i}.{name}.weight"] = rng.normal(size=(rows, columns)) * gain / np.sqrt(columns)
            if attention_bias if name.startswith("self_attn") else mlp_bias:
                weights[f"model.layers.{i}.{name}.bias"] = rng.normal(size=rows) * 0.3
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{i}.{name}.weight"] = 1 + 0.2 * rng.normal(size=hidden)
    weights["model.norm.weight"] = 1 + 0.2 * rng.normal(size=hidden)
    if not config.get("tie_word_embeddings"):
        weights["lm_head.weight"] = rng.normal(size=(config["vocab_size"], hidden))
    return {name: value.astype(np.float32) for name, value in weights.items()}


# ---- safetensors ----

def stored(value, dtype):
    """The bytes of an array as dtype, and the float32 values that these are."""
    value = np.ascontiguousarray(value, np.float32)
    if dtype == "BF16":                         # the upper half: which way it is rounded does not matter here
        bits = value.view(np.uint32) >> 16
        return bits.astype(np.uint16).tobytes(), (bits << 16).view(np.float32)
    held = value.astype({"F32": np.float32, "F16": np.float16}[dtype])
    return held.tobytes(), held.astype(np.float32)


def save_safetensors(folder, config, weights, dtype="F32", shards=1):
    """Writes the folder; returns the weights as they are in the files."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    names, held, index = list(weights), {}, {}
    for shard in range(shards):
        file_name = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        header, data = {}, b""
        for name in names[shard::shards]:
            raw, held[name] = weights[name].tobytes(), weights[name]
            if weights[name].dtype.kind == "f":
                raw, held[name] = stored(weights[name], dtype)
            kind = {"u1": "U8", "u4": "U32"}.get(weights[name].dtype.str[1:], dtype)
            header[name] = {"dtype": kind, "shape": list(weights[name].shape),
                            "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
            index[name] = file_name
        text = json.dumps(header).encode()
        with open(os.path.join(folder, file_name), "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + data)
    if shards > 1:
        with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
            json.dump({"weight_map": index}, file)
    return held


# ---- GGUF ----

GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
HF_NAMES = {ours: theirs for theirs, ours in GGUF_NAMES.items()}


def gguf_name(name):
    """"model.layers.3.mlp.up_proj.weight" as "blk.3.ffn_up.weight"."""
    base, kind = name.rsplit(".", 1)
    if base.startswith("model.layers."):
        _, _, layer, part = base.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"
    return f"{GGUF_NAMES[base]}.{kind}"


def hf_name(name):
    """The way back."""
    base, kind = name.rsplit(".", 1)
    if base.startswith("blk."):
        _, layer, part = base.split(".")
        return f"model.layers.{layer}.{HF_NAMES[part]}.{kind}"
    return f"{HF_NAMES[base]}.{kind}"


def interleaved(value, dim):
    """Rows of queries or keys in GGUF's order: of each head row j goes to 2j, row j + dim/2 to 2j + 1."""
    return value.reshape(-1, 2, dim // 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def halves(value, dim):
    """interleaved, undone."""
    return value.reshape(-1, dim // 2, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def is_permuted(name):
    return ".q_proj." in name or ".k_proj." in name


def save_gguf(path, config, weights, kind="F32", rope_freqs=None, split=0):
    """Writes the file, matrices as `kind`, vectors as F32; returns the weights as they are in it, rows as Hugging Face
    orders them. A block format that PyPI gguf cannot write (K and IQ) gets random blocks instead of these values."""
    kind = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config.get("num_key_value_heads") or config["num_attention_heads"])
    writer.add_key_length(head_dim(config))
    writer.add_value_length(head_dim(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta", 1e4)))
    scaling = rope.get("rope_type", rope.get("type"))
    if scaling in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
        writer.add_rope_scaling_factor(rope["factor"])
    if scaling == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(rope_freqs, np.float32))
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    held = {}
    for name, value in weights.items():
        if is_permuted(name):
            value = interleaved(value, head_dim(config))
        if value.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(value, np.float32))
            held[name] = value
        else:
            try:
                blocks = gguf.quantize(value, kind)
            except NotImplementedError:
                blocks = random_blocks(kind, value.shape, seed=len(held))
            held[name] = block_values(blocks, kind)
            writer.add_tensor(gguf_name(name), blocks, raw_dtype=kind)
        if is_permuted(name):
            held[name] = halves(held[name], head_dim(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def random_blocks(kind, shape, seed):
    """Rows of blocks: any bits, under scales that make values of about the size of a trained weight's."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (shape[0], shape[1] // values, size), np.uint8)
    # the largest value, where the float16 scales are, and how large beside the first: minimums are the mean of what
    # they are taken from
    largest, scales = {"Q2_K": (15 * 3, ((80, 1), (82, 1.5))), "Q3_K": (32 * 4, ((108, 1),)),
                       "Q4_K": (63 * 15, ((0, 1), (2, 7.5))), "Q5_K": (63 * 31, ((0, 1), (2, 15.5))),
                       "Q6_K": (128 * 32, ((208, 1),)), "IQ4_NL": (127, ((0, 1),)),
                       "IQ4_XS": (32 * 127, ((0, 1),)), "IQ1_S": (15 * 1.125, ((0, 1),)), "IQ1_M": (15 * 1.125, ()),
                       "IQ2_XXS": (31 * 43 / 8, ((0, 1),)), "IQ2_XS": (31 * 43 / 8, ((0, 1),)),
                       "IQ2_S": (31 * 43 / 8, ((0, 1),)), "IQ3_XXS": (31 * 62 / 4, ((0, 1),)),
                       "IQ3_S": (31 * 15, ((0, 1),)), "TQ1_0": (1, ((52, 1),)), "TQ2_0": (2, ((64, 1),)),
                       "Q8_K": (128, ())}[kind.name]
    if kind.name == "IQ1_M":               # its float16 is the top half bytes of four numbers
        scale = (rng.uniform(0.5, 1, blocks.shape[:2]) * 0.3 / largest).astype(np.float16).view(np.uint16)
        for i in range(4):
            blocks[..., 49 + 2 * i] = blocks[..., 49 + 2 * i] & 15 | (scale >> 4 * i & 15) << 4
    if kind.name == "Q8_K":
        scale = rng.uniform(0.5, 1, blocks.shape[:2]) * 0.3 / largest
        blocks[..., :4] = scale.astype(np.float32)[..., None].view(np.uint8)
    for at, ratio in scales:
        scale = rng.uniform(0.5, 1, blocks.shape[:2]) * 0.3 / largest * ratio
        blocks[..., at:at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(shape[0], -1)


def block_values(blocks, kind):
    """The float32 values of rows of blocks, uint8, as PyPI gguf has them, and of Q8_K, which it does not read."""
    if kind.name != "Q8_K":
        return gguf.dequantize(blocks, kind).astype(np.float32)
    blocks = blocks.reshape(*blocks.shape[:-1], -1, 292)
    scale = np.ascontiguousarray(blocks[..., :4]).view(np.float32)
    values = scale * blocks[..., 4:260].view(np.int8).astype(np.float32)
    return values.reshape(*values.shape[:-2], -1)


def swap_blocks(source, path, chosen, kind):
    """Copies a GGUF file with random blocks of another type for the matrices, or stacks of them, whose name `chosen` is
    true of; returns the values that these hold."""
    kind = gguf.GGMLQuantizationType[kind]
    reader, held = gguf.GGUFReader(source), {}
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if array else None)
    for tensor in reader.tensors:
        if not chosen(tensor.name):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        *rows, columns = tensor.shape[::-1].tolist()
        blocks = random_blocks(kind, (int(np.prod(rows)), columns), seed=len(held)).reshape(*rows, -1)
        held[tensor.name] = block_values(blocks, kind)
        writer.add_tensor(tensor.name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def dequantised(path):
    """({name: type name}, {name: float32 array}) of a GGUF file as PyPI gguf reads it, in Hugging Face's terms."""
    reader = gguf.GGUFReader(path)
    dim = reader.fields["llama.attention.key_length"].contents()
    types, weights = {}, {}
    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        value = block_values(tensor.data, tensor.tensor_type)
        value = value.reshape(tensor.shape[::-1].tolist())
        types[name] = tensor.tensor_type.name
        weights[name] = np.ascontiguousarray(halves(value, dim) if is_permuted(name) else value)
    return types, weights
