"""convert(): a model from one container and form of weights to another."""
from __future__ import annotations

import os
import re
import shutil
import tempfile
from typing import Any

from gomlx import _gomlx as mx
from gomlx._base import arguments, bars
from gomlx._base.bars import Progress
from gomlx._conversion import layouts, vocabulary, weights
from gomlx._conversion.weights import Grouped
from gomlx._files import architectures, gguf, locating, safetensors, writing
from gomlx._files.reading import read_json

# GGUF's mixtures as llama-quantize has them: the form of matrices, general.file_type.
MIXES = {"q4_0": ("Q4_0", 2), "q4_1": ("Q4_1", 3), "q5_0": ("Q5_0", 8), "q5_1": ("Q5_1", 9), "q8_0": ("Q8_0", 7),
         "q4_k_s": ("Q4_K", 14), "q4_k_m": ("Q4_K", 15), "q5_k_s": ("Q5_K", 16), "q5_k_m": ("Q5_K", 17),
         "q6_k": ("Q6_K", 18), "mxfp4": ("MXFP4", 38)}
ALIASES = {"q4_k": "q4_k_m", "q5_k": "q5_k_m"}
DENSE = {"f32": ("F32", 0), "f16": ("F16", 1), "bf16": ("BF16", 32)}
MLX = {**{f"mlx-{bits}": Grouped("affine", bits, 64) for bits in (2, 3, 4, 5, 6, 8)}, "mxfp4": Grouped("mxfp4", 4, 32),
       "mxfp8": Grouped("mxfp8", 8, 32), "nvfp4": Grouped("nvfp4", 4, 16)}
TYPES = [*DENSE, *MIXES, *ALIASES, *(name for name in MLX if name not in MIXES)]
NARROWER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}      # for rows that are not multiples of 256
NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
SHARD_BYTES = 5_000_000_000
COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
              "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json", "generation_config.json")
ALWAYS_F32 = re.compile(r".*(_norm|ffn_gate_inp|ffn_gate_inp_shexp|ssm_conv1d|attn_sinks|rope_freqs)\.(weight|bias)$")


def convert(source: str | os.PathLike[str], destination: str | os.PathLike[str], quantize: str | None = None, *,
            overwrite: bool = False, progress: Progress = True) -> dict[str, Any]:
    """Writes a model in another container, or with its weights in another form, with tokenizer and chat template.

    source       a folder (Hugging Face's or MLX's), a .gguf file, or a name of the hub, as in load().
    destination  "x.gguf" for a GGUF file, else a folder: MLX's when quantize is one of its formats, Hugging Face's
                 otherwise. Nothing is left there when it fails or is interrupted.
    quantize     "f32", "f16", "bf16"; for GGUF "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_s", "q4_k_m" (or
                 "q4_k"), "q5_k_s", "q5_k_m" (or "q5_k"), "q6_k", "mxfp4" (experts; the rest Q8_0); for folders "mlx-2"
                 to "mlx-8", "mxfp4", "mxfp8", "nvfp4". None: as in the source where the container has the form;
                 quantised weights that it has not become bfloat16.
    overwrite    whether what is at destination may be replaced: a file, or a folder that is empty or a model's; others
                 are not removed.
    progress     True shows a bar on a terminal or in a notebook, False none; a callable is called with numbers from 0
    to 1.

    Returns a dict: destination, format ("gguf", "mlx" or "huggingface"), bytes, types ({form: tensors}) and
    dequantised, the names of tensors that were quantised in the source and went through float32. Raises ValueError for
    a type that the container has not, FileExistsError, NotImplementedError for architectures that cannot be converted,
    gomlx.Error for files that are not what they should be."""
    source, destination, kind = prepared(source, destination, quantize, overwrite, progress)
    is_gguf = destination.endswith(".gguf")
    read = read_gguf if os.path.isfile(source) else read_folder
    with bars.reporting(progress, f"writing {os.path.basename(os.path.abspath(destination))}") as report:
        job = Job(report)
        if is_gguf:
            write_gguf(job, destination, *read(source, True, kind), kind)
            form = "gguf"
        else:
            write_folder(job, destination, *read(source, False, kind), kind)
            form = "mlx" if isinstance(kind, Grouped) else "huggingface"
    return {"destination": destination, "format": form, "bytes": job.bytes, "types": dict(sorted(job.types.items())),
            "dequantised": job.dequantised}


def prepared(source, destination, quantize, overwrite, progress):
    """(path of the source, destination, kind) of arguments that are checked before the work begins."""
    destination = arguments.path("destination", destination)
    overwrite = arguments.flag("overwrite", overwrite)
    bars.check(progress)
    source = locating.locate(source, show_bars=bars.is_wanted(progress), name="source")
    is_gguf = destination.endswith(".gguf")
    kind = wanted(quantize, is_gguf)
    if not destination:
        raise ValueError("destination is '', expected a file that ends in .gguf, or a folder")
    if os.path.lexists(destination):
        if not overwrite:
            raise FileExistsError(f"{destination!r} exists; choose another destination, or overwrite it")
        check_replaceable(source, destination, is_gguf)
    folder = os.path.dirname(os.path.abspath(destination))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"no folder {folder!r} to write to")
    return source, destination, kind


def wanted(quantize, is_gguf):
    """None, a mixture or dense type of GGUF or a dense type of folders as its name, or Grouped."""
    if quantize is None:
        return None
    name = ALIASES.get(str(quantize).lower(), str(quantize).lower())
    if name not in DENSE and name not in MIXES and name not in MLX:
        raise ValueError(f"convert: got quantize {quantize!r}, expected one of {', '.join(TYPES)}")
    if is_gguf and name not in DENSE and name not in MIXES:
        raise ValueError(f"convert: {name} is not a type of GGUF files; they have {', '.join([*DENSE, *MIXES])}")
    if not is_gguf and name not in DENSE and name not in MLX:
        raise ValueError(f"convert: {name} is a type of GGUF files: end the destination in .gguf, or choose one of "
                         f"{', '.join([*DENSE, *MLX])}")
    return MLX[name] if not is_gguf and name in MLX else name


class Job:
    """What a conversion counts for its report."""

    def __init__(self, progress):
        self.progress, self.types, self.dequantised, self.bytes = progress, {}, [], 0
        self.total, self.done = 1, 0

    def begin(self, values):
        self.total = max(values, 1)

    def advance(self, values):
        self.done += values
        if self.progress:
            self.progress(min(self.done / self.total, 1.0))

    def note(self, name, source, target):
        self.types[str(target)] = self.types.get(str(target), 0) + 1
        if source not in weights.DENSE and not weights.is_copied(source, target):
            self.dequantised.append(name)


# ---- reading ----

def unchanged(tensors, config):
    return tensors


def read_folder(source, to_gguf, kind, change=unchanged):
    """The weights of a folder as the destination names them, its config.json, and the files or metadata beside.
    change(tensors, config): what is done to them first, under the names of the folder."""
    path = os.path.join(source, "config.json")
    config = read_json(path)
    if not config:
        raise FileNotFoundError(f"no config.json in {source!r}")
    tensors = change(weights.folder_weights(source, config), config)
    if not to_gguf and kind is None and not any(isinstance(w.form, Grouped) for w in tensors.values()):
        return tensors, config, companions(source)          # a weight that is copied as it is, in any form
    arch, c = architectures.of_config(config, path)
    tensors = layouts.gathered(tensors, arch, c)
    if "model.embed_tokens.weight" not in tensors:
        raise mx.Error(f"{source}: no tensor model.embed_tokens.weight among its {len(tensors)}")
    if not to_gguf:
        into = layouts.for_mlx if isinstance(kind, Grouped) else layouts.for_hugging_face
        config = folder_config(arch, config, c, kind, "lm_head.weight" not in tensors)
        return into(tensors, arch, c), config, companions(source)
    rows = tensors["model.embed_tokens.weight"].shape[0]
    header = {"general.architecture": vocabulary.text(arch.gguf), "general.type": vocabulary.text("model"),
              "general.name": vocabulary.text(os.path.basename(os.path.abspath(source)))}
    header |= architectures.metadata(arch, c | {"vocab_size": rows}, path)
    header |= vocabulary.to_gguf(source, rows, config)
    return layouts.for_gguf(tensors, arch, c), header


def read_gguf(source, to_gguf, kind, change=unchanged):
    header, tensors = weights.gguf_weights(source)
    tensors = change(tensors, header)
    if to_gguf:
        dropped = ("general.alignment", "general.file_type", "general.quantization_version")
        return tensors, {key: value for key, value in header.items()
                         if key not in dropped and not key.startswith("split.")}
    arch, config = architectures.of_metadata(header, source)
    tensors = layouts.from_gguf(tensors, arch, config, source)
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    files = {name: vocabulary.dump(value) for name, value in vocabulary.from_gguf(header, source).items()}
    into = layouts.for_mlx if isinstance(kind, Grouped) else layouts.for_hugging_face
    for key in ("bos", "eos"):
        found = header.get(f"tokenizer.ggml.{key}_token_id")
        config |= {f"{key}_token_id": found[2]} if found else {}
    return into(tensors, arch, config), config, files


def companions(source):
    """{name: path} of the files beside the weights."""
    return {name: os.path.join(source, name) for name in COMPANIONS if os.path.exists(os.path.join(source, name))}


def folder_config(arch, config, c, kind, tied):
    """config.json without its quantisation, for a larger model only its text part; for mlx-lm the older
    spelling of keys beside the newer."""
    out = {key: value for key, value in config.items() if key not in ("quantization", "quantization_config")}
    if isinstance(config.get("text_config"), dict):
        shared = {key: config[key] for key in ("dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id")
                  if config.get(key) is not None}
        out = config["text_config"] | shared | {"architectures": [arch.hf_class], "model_type": arch.model_type}
    if isinstance(kind, Grouped):
        known = ("rope_theta", "rope_scaling", "rope_local_base_freq", "num_experts", "head_dim", "num_key_value_heads",
                 "global_head_dim", "num_global_key_value_heads")
        out |= {key: c[key] for key in known if c.get(key) is not None and out.get(key) is None}
        kinds = c.get("layer_types")
        if isinstance(kinds, list) and "full_attention" in kinds and c.get("sliding_window"):
            out.setdefault("sliding_window_pattern", kinds.index("full_attention") + 1)
    elif not str(out.get("model_type")).endswith("_text"):      # mlx-lm's name of a text model is a larger one's in
        out["model_type"] = arch.model_type                     # transformers, which asks for a text_config then
    return out | {"tie_word_embeddings": tied}


def mlx_type(config):
    """model_type as mlx-lm names it."""
    name = config.get("model_type")
    return config | {"model_type": name.removesuffix("_text")} if str(name).startswith("qwen3_5") else config


# ---- GGUF ----

def gguf_form(name, w, kind, known):
    """The form of a tensor in a GGUF file. known: what a mixture depends on besides the name."""
    if len(w.shape) < 2 or w.is_bias or ALWAYS_F32.match(name) or not name.endswith("weight"):
        return "F32" if weights.is_readable(w.form) else w.form
    if kind is None:
        if isinstance(w.form, Grouped):
            return "MXFP4" if w.form == Grouped("mxfp4", 4, 32) else "BF16"
        return w.form
    if kind in DENSE:
        return DENSE[kind][0]
    form = mixed(name, MIXES[kind][0], kind, known)
    if not weights.fits(form, w.shape):
        form = NARROWER.get(form, "F16")
    return form if weights.fits(form, w.shape) else "F16"


def mixed(name, form, kind, known):
    """The form of a matrix in a mixture, which stores some with more bits."""
    layer = layouts.LAYER.match(name)
    part = (layer[3] if layer else name).removesuffix(".weight")
    if part == ("token_embd" if known["tied"] else "output"):
        return "Q8_0" if kind in ("q8_0", "mxfp4") else "Q6_K"
    if kind == "mxfp4":
        return form if part.endswith("_exps") else "Q8_0"
    if not layer or not kind.endswith(("_s", "_m")):
        return form
    better = {"Q4_K": "Q5_K", "Q5_K": "Q6_K"}[form]
    i, n = int(layer[2]), known["layers"]
    if known["experts"] == 8 and part in ("attn_v", "attn_k"):
        return "Q8_0"
    if known["experts"] == 8 and part == "attn_output" and form == "Q4_K":
        return "Q5_K"
    if part == "attn_v":
        i, n = known["values"].index(i), len(known["values"])
    if part in ("attn_v", "ffn_down", "ffn_down_exps"):
        if kind.endswith("_m"):
            return "Q6_K" if more_bits(i, n) else form
        return better if form == "Q4_K" and i < (4 if part == "attn_v" else n // 8) else form
    return better if part == "attn_qkv" and kind.endswith("_m") else form


def more_bits(i, n):
    """The first and last eighth of the layers, and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def write_gguf(job, destination, tensors, header, kind):
    name = header.get("general.architecture", (0, 0, ""))[2]
    layers = [int(found[2]) for t in tensors if (found := layouts.LAYER.match(t))]
    known = {"tied": "output.weight" not in tensors, "layers": max(layers, default=-1) + 1,
             "values": sorted(int(found[2]) for t in tensors if (found := layouts.LAYER.match(t))
                              and found[3] == "attn_v.weight"),
             "experts": header.get(f"{name}.expert_count", (4, None, 0))[2]}
    forms = {t: gguf_form(t, w, kind, known) for t, w in tensors.items()}
    file_type = {**DENSE, **MIXES}[kind][1] if kind else guessed_type(forms)
    header = header | {"general.quantization_version": vocabulary.u32(2),
                       "general.file_type": vocabulary.u32(file_type)}
    infos = []
    for t, w in tensors.items():
        if len(t.encode()) > 63 or len(w.shape) > 4:
            raise mx.Error(f"{w.origin}: GGUF cannot hold {t!r} of {len(w.shape)} dimensions")
        infos.append((t, w.shape, gguf.IDS[forms[t]], weights.form_bytes(forms[t], w.shape)))
    head = gguf.head(header, infos)
    job.bytes = len(head) + sum(size + len(gguf.padding(size)) for *_, size in infos)
    job.begin(sum(w.size for w in tensors.values()))
    check_space(os.path.dirname(os.path.abspath(destination)), job.bytes)

    def write(stream):
        stream.write(head)
        for t, _, _, size in infos:
            w, written = tensors[t], 0
            for data in weights.chunks(w, forms[t]):
                written += stream.write(data)
                job.advance(w.size * len(data) // max(size, 1))
            if written != size:
                raise mx.Error(f"{w.origin}: {written} bytes came, expected {size}")
            stream.write(gguf.padding(size))
            job.note(t, w.form, forms[t])

    writing.replace("convert", destination, ".gguf", write)


def guessed_type(forms):
    """general.file_type of what most matrices are."""
    counts = {}
    for form in forms.values():
        counts[form] = counts.get(form, 0) + 1
    counts.pop("F32", None)
    most = max(counts, key=counts.get, default="F32")
    return next((number for form, number in [*DENSE.values(), *reversed(MIXES.values())] if form == most), 0)


# ---- folders ----

def write_folder(job, destination, tensors, config, files, kind):
    dense = DENSE[kind][0] if isinstance(kind, str) else model_dtype(tensors)
    forms = {name: folder_form(name, w, kind, dense) for name, w in tensors.items()}
    scheme = {}
    if isinstance(kind, Grouped):
        scheme = kind.of()
        scheme |= {name.removesuffix(".weight"): form.of() for name, form in forms.items()
                   if isinstance(form, Grouped) and form != kind}
        config = mlx_type(config) | {"quantization": scheme, "quantization_config": scheme}
    elif not any(isinstance(form, Grouped) for form in forms.values()):
        config = config | {"torch_dtype" if "torch_dtype" in config else "dtype": NAMES[dense]}
    place_folder(job, destination, tensors, forms, config, files)


def place_folder(job, destination, tensors, forms, config, files):
    """Writes the folder under another name and renames it."""
    shards = sharded({name: stored(name, w, forms[name]) for name, w in tensors.items()})
    job.bytes = sum(size for shard in shards for *_, size in shard)
    job.begin(sum(w.size for w in tensors.values()))
    parent, base = os.path.split(os.path.abspath(destination))
    check_space(parent, job.bytes)
    temporary = tempfile.mkdtemp(prefix=f".{base}.", dir=parent)
    try:
        write_shards(job, temporary, shards, tensors, forms)
        write_text(os.path.join(temporary, "config.json"), vocabulary.dump(config))
        for name, content in files.items():
            path = os.path.join(temporary, name)
            if os.path.isfile(content):
                shutil.copyfile(content, path)
            else:
                write_text(path, content)
        os.chmod(temporary, 0o777 & ~writing.umask())
        replace_folder(temporary, destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_text(path, content):
    with open(path, "w", encoding="utf-8") as file:
        file.write(content)


def replace_folder(temporary, destination):
    """Moves the finished folder to its destination; an old one there is removed last."""
    old = None
    if os.path.lexists(destination):
        old = temporary + ".old"
        os.rename(destination, old)
    try:
        os.rename(temporary, destination)
    except BaseException:
        if old:
            os.rename(old, destination)
        raise
    if old and os.path.isdir(old) and not os.path.islink(old):
        shutil.rmtree(old)
    elif old:
        os.unlink(old)


def model_dtype(tensors):
    """The dense form that most of the matrices are in; bfloat16 when they are quantised."""
    counts = {"BF16": 0}
    for w in tensors.values():
        if len(w.shape) > 1:
            form = w.form if w.form in weights.DENSE else "BF16"
            counts[form] = counts.get(form, 0) + w.size
    return max(counts, key=counts.get)


def folder_form(name, w, kind, dense):
    if not weights.is_readable(w.form):
        return w.form                                    # integers and the like
    if isinstance(kind, Grouped) and is_quantised(name, w):
        form = router_form(name, kind)
        return form if weights.fits(kind, w.shape) else dense
    return dense


def is_quantised(name, w):
    return name.endswith(".weight") and len(w.shape) > 1 and not name.endswith("conv1d.weight")


def router_form(name, kind):
    """Routers keep eight bits, as mlx-lm does."""
    routers = ("mlp.gate.weight", "mlp.router.weight", "router.proj.weight", "shared_expert_gate.weight")
    return Grouped("affine", 8, 64) if name.endswith(routers) else kind


def stored(name, w, form):
    """[(name in the file, dtype word, shape, part, bytes)] of one weight."""
    if not isinstance(form, Grouped):
        word = form
        item = safetensors.DTYPES[word].size
        return [(name, word, w.shape, 0, w.size * item)]
    stem, lead, width = name.removesuffix(".weight"), w.shape[:-1], w.shape[-1]
    rows = w.size // width
    parts = [(f"{stem}.weight", "U32", (*lead, width * form.bits // 32), 0, rows * width * form.bits // 8)]
    groups = width // form.group
    if form.mode != "affine":
        return [*parts, (f"{stem}.scales", "U8", (*lead, groups), 1, rows * groups)]
    word = w.form if w.form in weights.DENSE else "BF16"
    if isinstance(w.form, Grouped) and w.form == form:
        word = {repr(dtype): key for key, dtype in weights.DENSE.items()}[repr(w.read()[1].dtype)]
    size = rows * groups * safetensors.DTYPES[word].size
    return [*parts, (f"{stem}.scales", word, (*lead, groups), 1, size),
            (f"{stem}.biases", word, (*lead, groups), 2, size)]


def sharded(stored_as):
    """Files of at most SHARD_BYTES, as lists of (name, word, shape, weight, part, bytes), widest elements first."""
    shards, left = [[]], SHARD_BYTES
    for name, parts in stored_as.items():
        size = sum(part[-1] for part in parts)
        if size > left and shards[-1]:
            shards.append([])
            left = SHARD_BYTES
        left -= size
        shards[-1] += [(key, word, shape, name, part, n) for key, word, shape, part, n in parts]
    return [sorted(shard, key=lambda one: -safetensors.DTYPES[one[1]].size) for shard in shards]


def write_shards(job, folder, shards, tensors, forms):
    index = {}
    for i, shard in enumerate(shards):
        file = "model.safetensors" if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        kept = {}                                        # scales and biases are kept until they are written
        with open(os.path.join(folder, file), "wb") as stream:
            is_mlx = any(isinstance(forms[name], Grouped) or forms[name] == "U32" for *_, name, _, _ in shard)
            stream.write(safetensors.head([(key, word, shape, n) for key, word, shape, _, _, n in shard],
                                             {"format": "mlx" if is_mlx else "pt"}))
            for key, _, _, name, part, size in shard:
                index[key], w = file, tensors[name]
                if isinstance(forms[name], Grouped):
                    if name not in kept:
                        kept[name] = weights.converted(w, forms[name])
                        mx.eval(kept[name])
                        job.note(name, w.form, forms[name])
                        job.advance(w.size)
                    written = stream.write(writing.bytes_of(kept[name][part]))
                    kept[name][part] = None
                else:
                    written = sum(stream.write(data) for data in weights.chunks(w, forms[name]))
                    job.note(name, w.form, forms[name])
                    job.advance(w.size)
                if written != size:
                    raise mx.Error(f"{w.origin}: {written} bytes came, expected {size}")
    if len(shards) > 1:
        total = sum(n for shard in shards for *_, n in shard)
        write_text(os.path.join(folder, "model.safetensors.index.json"),
                   vocabulary.dump({"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}))


def check_replaceable(source, destination, is_gguf):
    """Checked before the work begins; and a folder is replaced with all that is in it, so it must be a model's."""
    if os.path.exists(destination) and os.path.samefile(source, destination):
        raise ValueError(f"{destination!r} is the source itself")
    if os.path.isdir(destination):
        if is_gguf:
            raise IsADirectoryError(f"{destination!r} is a folder, expected a .gguf file to overwrite")
        if os.path.samefile(destination, ".") or os.path.ismount(destination):
            raise ValueError(f"{destination!r} is in use and cannot be replaced; choose another destination")
        found = os.listdir(destination)
        if found and "config.json" not in found:
            raise FileExistsError(f"{destination!r} is not a model's folder (it has no config.json) and is not "
                                  f"overwritten")
        inside = os.path.realpath(destination)
        if os.path.commonpath([inside, os.path.realpath(source)]) == inside:
            raise ValueError(f"the source {source!r} is within {destination!r}, which would be replaced")
    elif os.path.exists(destination) and not os.path.isfile(destination):
        raise FileExistsError(f"{destination!r} is a pipe or a device and is not overwritten")


def check_space(folder, needed):
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:                    # the check of free space below would say less
        raise type(error)(error.errno, f"the folder cannot be written: {error.strerror}", folder) from None
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(f"{folder!r} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are to be written")
