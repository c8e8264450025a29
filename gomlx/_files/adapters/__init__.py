"""Adapters as files, in four forms: PEFT's, mlx-lm's, go-mlx's and llama.cpp's GGUF."""
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gomlx import _gomlx as mx
from gomlx._base import arguments
from gomlx._files.adapters import gguf_form, mlx, peft, shared
from gomlx._training.adapter import Adapter

if TYPE_CHECKING:
    from gomlx._generation.model import Model

Form = Literal["peft", "mlx-lm", "go-mlx", "gguf"]
Shapes = Mapping[str, tuple[int, ...]]
CONTENTS = {"peft": peft.contents, "mlx-lm": mlx.mlx_lm_contents, "go-mlx": mlx.go_mlx_contents}
WEIGHTS = {peft.WEIGHTS: "peft", mlx.MLX_LM: "mlx-lm", mlx.GO_MLX: "go-mlx"}
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def read_adapter(path: str | os.PathLike[str], model: Model | mx.Model | Shapes | shared.Base | None = None
                 ) -> Adapter:
    """An adapter from its files, in any of four forms, which is found by looking.

    path    a folder, or one of its files, or a .gguf file:
            PEFT      adapter_model.safetensors with adapter_config.json (rslora, DoRA, rank_pattern, alpha_pattern,
                      modules_to_save)
            mlx-lm    adapters.safetensors with adapter_config.json (lora, dora, full)
            go-mlx    adapter.safetensors, perhaps with adapter_config.json
            GGUF      llama.cpp's, general.type "adapter"
    model   the loaded model that it belongs to, or {weight: shape} of one: the adapter is checked against it, and
            matrices are turned by its shapes where a form's files are stored either way. GGUF files for Llama need a
            loaded model.

    Raises ValueError where it does not fit the model, naming the tensor and both shapes; NotImplementedError for what
    is not read, naming it; gomlx.Error for files that are not what they should be; FileNotFoundError."""
    path = arguments.path("path", path)
    base = shared.base_of(model)
    file = locate(path)
    adapter = gguf_form.read(file, base) if file.endswith(".gguf") else read_safetensors(file, base)
    if base is not None:
        try:
            adapter.check(base.shapes)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
    return adapter


@dataclass(frozen=True)
class FoundAdapter:
    """An adapter, or files that cannot be read as one: then error says why."""
    path: str
    adapter: Adapter | None = None
    error: str | None = None


def find_adapters(path: str | os.PathLike[str]) -> list[FoundAdapter]:
    """The adapters in a folder and the folders below it, or the one that path is. The rows of GGUF's are in the order
    that their files have."""
    path = arguments.path("path", path)
    if not os.path.lexists(path):
        raise FileNotFoundError(f"no such file or folder: {path!r}")
    places = [path]
    if os.path.isdir(path):
        places = []
        for folder, folders, files in os.walk(path):
            folders.sort()
            if any(is_named_as_adapter(one) for one in files):
                places.append(folder)
            places += [file for one in sorted(files) if one.endswith(".gguf") and
                       gguf_form.is_adapter(file := os.path.join(folder, one))]
    return [found(one) for one in places]


def is_named_as_adapter(name):
    return name in WEIGHTS or name.endswith("_" + mlx.MLX_LM) or name.startswith("adapter_model.") and \
        name.endswith(PICKLED)


def found(path):
    try:
        file = locate(path)
        if file.endswith(".gguf"):
            return FoundAdapter(path, gguf_form.read(file, None, ordered=False))
        return FoundAdapter(path, read_adapter(path))
    except (mx.Error, OSError, ValueError, NotImplementedError) as error:
        return FoundAdapter(path, error=str(error))


def read_safetensors(file, base):
    tensors = shared.read_safetensors(file)
    config = shared.Config.read(os.path.join(os.path.dirname(file), peft.CONFIG))
    form = form_of(file, config, tensors)
    if form != "go-mlx" and not config.values:
        raise FileNotFoundError(f"no {peft.CONFIG} beside {file!r}, which says the scale of its terms")
    if form == "peft":
        return peft.read(config, tensors, file)
    return (mlx.read_mlx_lm if form == "mlx-lm" else mlx.read_go_mlx)(config, tensors, file, base)


def locate(path):
    """The file with the weights of an adapter."""
    if os.path.isdir(path):
        files = sorted(os.listdir(path))
        fitting = [one for one in files if one in WEIGHTS] or [
            one for one in files if one.endswith(".gguf") and gguf_form.is_adapter(os.path.join(path, one))] or [
            one for one in files if one.endswith("_" + mlx.MLX_LM)][-1:]            # mlx-lm's last one in between
        if len(fitting) > 1:
            raise ValueError(f"{path!r} has {' and '.join(fitting)}: name the one that is meant")
        if fitting:
            file = os.path.join(path, fitting[0])
            shared.check_is_file(file)
            return file
        refuse_pickled(next((one for one in files if one.startswith("adapter") and one.endswith(PICKLED)), ""), path)
        raise FileNotFoundError(f"no adapter in {path!r}: expected {', '.join(WEIGHTS)} or a .gguf file with "
                                "general.type 'adapter'")
    refuse_pickled(path, os.path.dirname(path))
    shared.check_is_file(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no such file or folder: {path!r}")
    if not path.endswith((".safetensors", ".gguf")):
        raise mx.Error(f"{path}: expected an adapter's folder, .safetensors or .gguf")
    return path


def refuse_pickled(name, folder):
    if name.endswith(PICKLED):
        raise NotImplementedError(f"{os.path.join(folder, os.path.basename(name))} is a pickle, which can run any "
                                  "program when it is read: save the adapter as safetensors (PEFT: "
                                  "save_pretrained(folder, safe_serialization=True))")


def form_of(file, config, tensors):
    """By what the config says, by the names of tensors, and by the name of the file."""
    said = config.values
    for form, keys in (("peft", {"peft_type"}), ("mlx-lm", {"fine_tune_type", "lora_parameters"}),
                       ("go-mlx", {"rank", "alpha"})):
        if keys & said.keys():
            return form
    if any(".lora_A." in name for name in tensors):
        return "peft"
    return WEIGHTS.get(os.path.basename(file), "mlx-lm")


def save_adapter(adapter: Adapter, path: str | os.PathLike[str], form: Form = "peft", *,
                 model: Model | mx.Model | shared.Base | None = None) -> str:
    """Writes an adapter; returns the path. Files are written under other names first, so nothing half written is left.

    path    a folder, which is made or keeps what else is in it, or the form's .safetensors file in one; for "gguf" a
            file that ends in .gguf
    form    "peft"; "mlx-lm" and "go-mlx", which have one rank and one scale for all layers: smaller ranks are filled up
            with zeros, scales that differ go into b; "gguf" (llama.cpp's)
    model   the loaded model that it belongs to: "gguf" needs it; the adapter is checked against it

    Raises NotImplementedError for what a form cannot hold: DoRA is held by PEFT's and mlx-lm's, weights that were
    trained whole by PEFT's, beside terms, and mlx-lm's, alone."""
    if not isinstance(adapter, Adapter):
        raise arguments.WrongType(f"adapter: expected a gomlx.Adapter, got {arguments.shown(adapter)}")
    path = arguments.path("path", path)
    if not path:
        raise ValueError("path is '', expected a folder or a file")
    arguments.one_of("form", form, (*CONTENTS, "gguf"))
    base = shared.base_of(model)
    if base is not None:
        adapter.check(base.shapes)
    if form != "gguf":
        path = folder_of(path, form)
        others = [one for one in WEIGHTS if WEIGHTS[one] != form and os.path.exists(os.path.join(path, one))]
        if others:
            raise FileExistsError(f"{path!r} has {others[0]}, an adapter in another form: choose another folder")
        shared.save_folder(path, CONTENTS[form](adapter, base))
        return path
    if not path.endswith(".gguf"):
        raise ValueError(f"path is {path!r}, expected a name that ends in .gguf")
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path!r} is a folder, expected a file")
    folder, name = os.path.split(os.path.abspath(path))
    with shared.temporary_folder(path, folder) as temporary:
        shared.write(os.path.join(temporary, name), gguf_form.contents(adapter, base))
        os.replace(os.path.join(temporary, name), path)
    return path


def folder_of(path, form):
    """The folder of a path that is one, or that names the file with the weights in one."""
    if not path.endswith(".safetensors"):
        return path
    folder, name = os.path.split(os.path.abspath(path))
    if WEIGHTS.get(name) != form:
        expected = next(one for one in WEIGHTS if WEIGHTS[one] == form)
        raise ValueError(f"path is {path!r}, expected a folder, or {expected} in one: {form} has this name")
    return folder
