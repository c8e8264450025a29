"""StateBundle: all that is needed to continue a session elsewhere, as a JSON file beside a file of its cache.

The JSON names the model, the tokenizer and the prompt by hashes, so that a bundle is refused where it does not belong;
the cache file is what Session.save() gives, and its SHA-256 is in the JSON. Both are written to temporary names and
renamed, readable by their owner only.
"""
from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gomlx import _gomlx
from gomlx._files.reading import read_json

if TYPE_CHECKING:
    from gomlx._generation.model import Model

VERSION = 1
KIND = "gomlx/state-bundle"
HASHED_BYTES = 1 << 16          # hashed at each end of a weight file


@dataclass(frozen=True)
class StateBundle:
    """model, prompt, tokenizer, runtime, sampler: what is known of each, as dicts. kv: the session's bytes. meta: the
    caller's own. Model.bundle() makes one, restore() makes its session."""
    model: dict[str, Any]
    prompt: dict[str, Any]
    tokenizer: dict[str, Any]
    runtime: dict[str, Any]
    sampler: dict[str, Any]
    kv: bytes = field(repr=False)
    adapter: dict[str, Any] | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes path, and the cache to path + ".kv"."""
        path = os.fspath(path)
        known = {"version": VERSION, "kind": KIND, **{name: getattr(self, name) for name in FIELDS},
                 "kv_path": os.path.basename(path) + ".kv", "kv_hash": sha256(self.kv), "kv_bytes": len(self.kv)}
        text = json.dumps(known, ensure_ascii=False, indent=1).encode()
        write(path + ".kv", self.kv)
        write(path, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StateBundle:
        """gomlx.Error when it is not a bundle, of another version, or its cache is damaged or missing."""
        path = os.fspath(path)
        if not os.path.exists(path):
            raise FileNotFoundError(f"no such file: {path!r}")
        known = read_json(path)
        if known.get("kind") != KIND or known.get("version") != VERSION:
            raise _gomlx.Error(f"{path}: kind {known.get('kind')!r} version {known.get('version')!r}, expected "
                               f"{KIND!r} "
                               f"version {VERSION}")
        for name in FIELDS:
            if not isinstance(known.get(name), dict) and not (name == "adapter" and known.get(name) is None):
                raise _gomlx.Error(f"{path}: {name} is {type(known.get(name)).__name__}, expected an object")
        kv_name = known.get("kv_path")
        if not isinstance(kv_name, str) or kv_name != os.path.basename(kv_name) or kv_name in ("", ".", ".."):
            raise _gomlx.Error(f"{path}: kv_path is {kv_name!r}, expected the name of a file beside it")
        kv_path = os.path.join(os.path.dirname(path), kv_name)
        with open(kv_path, "rb") as file:
            kv = file.read()
        if sha256(kv) != known.get("kv_hash"):
            raise _gomlx.Error(f"{kv_path}: {len(kv)} bytes with another SHA-256 than {path} says")
        return cls(kv=kv, **{name: known[name] for name in FIELDS})

    def check_compatibility(self, model: Model) -> None:
        """ValueError that names what differs between the bundle's model and this one."""
        for ours, theirs, what in ((self.model, describe_model(model), "model"),
                                   (self.tokenizer, describe_tokenizer(model), "tokenizer")):
            for key in CHECKED[what]:
                if ours.get(key) != theirs[key]:
                    raise ValueError(f"the bundle's {what} has {key} {ours.get(key)!r}, this one {theirs[key]!r}")

        loaded = {one["hash"]: name for name, one in model.adapters.items()}
        there = ", ".join(f"{name!r} ({hashed})" for hashed, name in loaded.items()) or "none"
        for name, hashed in adapters_of(self.adapter):
            if hashed not in loaded:
                raise ValueError(f"the bundle was made with adapter {name!r} ({hashed}); loaded here: {there}")

    def restore(self, model: Model) -> _gomlx.Session:
        """The session, in this process: it continues with the same bits as where it was saved."""
        self.check_compatibility(model)
        return model.restore_session(self.kv)


FIELDS = ("model", "prompt", "tokenizer", "runtime", "sampler", "adapter", "meta")
CHECKED = {"model": ("architecture", "num_layers", "hidden_size", "vocab_size", "kv_dtype", "hash"),
           "tokenizer": ("vocab_size", "hash")}


def make(model, session, prompt="", sampling=None, meta=None) -> StateBundle:
    """A bundle of a session that no stream uses."""
    kv = session.save()
    return StateBundle(
        model=describe_model(model), tokenizer=describe_tokenizer(model),
        prompt={"text": prompt, "hash": sha256(prompt.encode()), "token_count": len(session.ids), "token_offset": 0},
        runtime={"name": "gomlx", "version": _gomlx.version, "isa": model.info["isa"], "platform": platform.platform()},
        sampler=asdict(sampling or model.sampling), kv=kv, adapter=describe_adapters(session), meta=dict(meta or {}))


def describe_model(model) -> dict[str, Any]:
    info = model.info
    types = info["weight_types"]
    return {"name": os.path.basename(info["path"].rstrip("/")), "path": info["path"],
            "architecture": info["architecture"],
            "vocab_size": info["vocab_size"], "num_layers": info["n_layers"], "hidden_size": info["hidden_size"],
            "quant_type": max(types, key=types.get) if types else None, "context_length": info["context_length"],
            "kv_dtype": info["kv_dtype"], "activations": info["activations"], "hash": weights_hash(info["path"])}


def describe_adapters(session) -> dict[str, Any] | None:
    """What its keys were computed with; None: the model alone."""
    used = [{"name": name, "hash": f"{hashed:016x}", "weight": weight} for name, hashed, weight in session.adapters]
    return {"adapters": used} if used else None


def adapters_of(known) -> list[tuple[Any, Any]]:
    """(name, hash) of what describe_adapters() told of; ValueError for anything else."""
    listed = known.get("adapters") if known is not None else []
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ValueError(f"the bundle's adapter is {known!r:.80}, expected a list of adapters in it")
    return [(one.get("name"), one.get("hash")) for one in listed]


def describe_tokenizer(model) -> dict[str, Any]:
    tokenizer = model.tokenizer
    pieces = hashlib.sha256()
    for i in range(tokenizer.vocab_size):
        pieces.update((tokenizer.id_to_token(i) or "").encode("utf-8", "surrogateescape") + b"\0")
    template = tokenizer.chat_template
    return {"vocab_size": tokenizer.vocab_size, "hash": pieces.hexdigest(), "chat_template": template is not None,
            "chat_template_hash": sha256(template.encode()) if template else None}


def weights_hash(path) -> str:
    """Of the names, sizes and both ends of the weight files, and of the whole config.json: enough to tell models and
    their quantisations apart without reading gigabytes."""
    known = hashlib.sha256()
    names = [path] if os.path.isfile(path) else sorted(
        os.path.join(path, name) for name in os.listdir(path)
        if name.endswith((".safetensors", ".gguf", "config.json")))
    for name in names:
        size = os.path.getsize(name)
        known.update(f"{os.path.basename(name)} {size}\0".encode())
        with open(name, "rb") as file:
            known.update(file.read(HASHED_BYTES))
            file.seek(max(0, size - HASHED_BYTES))
            known.update(file.read())
    return known.hexdigest()


def sha256(data) -> str:
    return hashlib.sha256(data).hexdigest()


def write(path, data):
    """Writes a whole file or nothing, readable by its owner only."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".gomlx-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
