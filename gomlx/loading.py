"""load(): a path, a name of the hub or nothing at all becomes a Model."""
from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from gomlx import _gomlx, backends
from gomlx._base import arguments, bars
from gomlx._base.bars import Progress
from gomlx._files import devices, headers, memory_plan, placement
from gomlx._files.locating import PACKAGED as PACKAGED
from gomlx._files.locating import PACKAGED_FILE as PACKAGED_FILE
from gomlx._files.locating import locate
from gomlx._files.reading import read_json
from gomlx._generation import chat_formats, defaults
from gomlx._generation.model import Model
from gomlx._generation.prompt_cache import PromptCache
from gomlx._generation.scoring import stated_pooling
from gomlx._generation.tokenizer import Tokenizer
from gomlx._training.adapter import Adapter

if TYPE_CHECKING:
    from typing import Unpack

    from gomlx._generation.options import Activations, Float, KvDtype, LoadOptions

log = logging.getLogger("gomlx")


@overload
def load(path_or_name: str | os.PathLike[str] | None = None, *, backend: Literal["native"] | None = None,
         **options: Unpack[LoadOptions]) -> Model: ...
@overload
def load(path_or_name: str | os.PathLike[str] | None = None, *, backend: str, **options: Any) -> Model: ...
def load(path_or_name: str | os.PathLike[str] | None = None, *, context_length: int | None = None,
         dtype: Float | _gomlx.Dtype | None = None, kv_dtype: KvDtype | _gomlx.Dtype | None = None,
         activations: Activations | None = None, threads: int | None = None,
         context_policy: str | None = None, parallel: int | None = None, prompt_cache: bool | PromptCache = True,
         progress: Progress = True, backend: str | None = None,
         adapter_path: str | os.PathLike[str] | Adapter | Sequence[str | os.PathLike[str] | Adapter] | None = None,
         fits: str = "warn", device: str | None = None, gpu_layers: int | None = None,
         gpu_memory: int | str | None = None,
         **backend_options: Any) -> Model:
    """Loads a model.

    path_or_name    a folder with config.json, tokenizer.json and safetensors; a .gguf file (the first of split ones); a
                    name of the Hugging Face hub, "org/name", "org/name:Q4_K_M" or "org/name/file.gguf"; None or "fable"
                    is the small model inside the package.
    context_length  tokens a session may hold; the model's own when None.
    context_policy  what happens when a sequence has that many: "stop" (the default) ends its stream with finish_reason
                    "context", "error" raises ValueError, "rotate" goes on, every layer seeing the last context_length
                    tokens at most.
    dtype           "float32", "float16" or "bfloat16" for weights that are not quantised; as in the file when None.
    kv_dtype        of the KV cache: "float32", "float16", "bfloat16" or "q8_0" (34 bytes for 32 values; head_dim must
    be
                    a multiple of 32). When None "float32" with float32 activations, else "float16".
    activations     what products multiply by weights: "float32" (exact), "int8" (fast, with quantised weights of GGUF
                    and MLX, but not of mxfp8), or "bfloat16" (fast, rounded for weights in bfloat16). When None: "int8"
                    with such quantised weights, "bfloat16" with bfloat16 weights where the processor multiplies such
                    (AVX-512 BF16, Armv8.6), else "float32"; a file may have both. When given, weights that it is not
                    made for have float32: "int8" leaves a file's matrices in bfloat16 exact. Routers of experts have
                    "float32" always.
    threads         when None, what `gomlx doctor` shows.
    parallel        generations that may run at a time, each stream from its first token to its last, a batch as one;
                    the others wait, as long as their timeout lets them. None is any number: their forward passes take
                    turns. A thread that reads several streams in turn needs a slot for each.
    prompt_cache    whether the keys of prompts are kept for later ones that begin alike, or a gomlx.PromptCache that
    says
                    how many. Results say in cached_tokens what was not computed again; the bits are the same.
    progress        True shows a bar on a terminal or in a notebook while weights are read, and the hub's while they are
                    fetched; False shows none. A callable is called with numbers from 0 to 1 instead.
    backend         what runs it, a name of gomlx.backends.names(): "native" (this engine) if None and GOMLX_BACKEND is
                    not set. The others take options of their own, and refuse those above that they do not know.
    adapter_path    an adapter's folder or file, an Adapter, or several, that are loaded too and used unless a
                    generation says otherwise (Model.load_adapter, model.adapter); several add up. Weights are those of
                    model.adapter.
    fits            what is done where plan_memory() says that it does not fit the memory that is available: "error"
    raises
                    MemoryError before anything is read, "ignore" does not ask. "warn" (the default) says it in the log,
                    for memory may become free, a context need not be used up, and there may be swap; it raises only
                    where the weights alone are more than all the memory and swap of this machine.
    device          where the model is and computes: "cpu", the processor, which None is too; "cuda", the first NVIDIA
                    GPU, or "cuda:1" (ValueError or gomlx.Error say what is missing); "auto" is the GPU where there is
                    one that has room for weights of 64 MB and more with a cache of the context, or for four layers and
                    more, else the processor. model.info["placement"] tells. On a GPU activations are "float32", or
                    "bfloat16" with bfloat16 weights; adapters and training are the processor's.
    gpu_layers      so many of the last layers are on the GPU, with their cache, and so is the head; the embedding and
                    the layers before them are on the processor. -1, and more than there are: all; 0: none. Without
                    `device` that is "cuda". When None all are there, or with "auto" as many as fit.
    gpu_memory      bytes, or a text such as "10GB", that the model may take of the GPU: as many of the last layers are
                    there as fit with the cache of a sequence of context_length tokens, or of 4096 when that is None.
                    MemoryError says what one takes, where none fits.
    """
    check_options(context_length, kv_dtype, threads, parallel, prompt_cache, progress, backend, fits)
    devices.check(device)
    devices.check_share(device, gpu_layers, gpu_memory)
    backend = backend or os.environ.get("GOMLX_BACKEND") or "native"
    if backend != "native":
        own = {"context_length": context_length, "dtype": dtype, "kv_dtype": kv_dtype, "activations": activations,
               "threads": threads, "context_policy": context_policy, "parallel": parallel,
               "prompt_cache": None if prompt_cache is True else prompt_cache, "fits": None if fits == "warn" else fits,
               "adapter_path": adapter_path, "device": device, "gpu_layers": gpu_layers, "gpu_memory": gpu_memory}
        return backends.get(backend).load(path_or_name, **backend_options,
                                          **{name: value for name, value in own.items() if value is not None})
    if backend_options:
        wrong = next(iter(backend_options))
        names = set(inspect.signature(load).parameters)
        raise arguments.WrongType(f"load: the native backend has no option {wrong}" + arguments.hint(wrong, names))
    adapters = adapter_sources(adapter_path)
    path = locate(path_or_name, show_bars=bars.is_wanted(progress))
    place = placement.choose(device, path, context_length=context_length, dtype=dtype,
                             kv_dtype=kv_name(kv_dtype, activations), gpu_layers=gpu_layers, gpu_memory=gpu_memory)
    if fits != "ignore":
        check_fit(path, fits == "error", context_length, dtype, kv_name(kv_dtype, activations), place)
    with bars.reporting(progress, f"loading {os.path.basename(path)}") as report, placement.advising(place):
        engine = _gomlx.load_model(path, context_length=context_length or 0, dtype=dtype, kv_dtype=kv_dtype,
                                   activations=activations, threads=threads or 0, progress=report,
                                   context_policy=context_policy, device=place.number, host_layers=place.host_layers)
    try:
        info = engine.info()
        info["path"] = path
        info["placement"] = place.described(info["n_layers"])
        if os.path.isdir(path):
            tokenizer = Tokenizer.from_file(path)
            tokenizer.check_fit(os.path.join(path, "tokenizer.json"), engine.vocab_size, "config.json's vocab_size")
            generation_file = os.path.join(path, "generation_config.json")
            generation = read_json(generation_file)
            config = read_json(os.path.join(path, "config.json"))
            sampling = defaults.sampling_from_config(generation, generation_file, engine.vocab_size)
            info["sampling_ignored"] = defaults.sampling_ignored_in_config(generation, sampling)
            chat_formats.configure(tokenizer, config)
        else:
            metadata = info.get("metadata", {})
            tokenizer = Tokenizer.from_gguf(path, metadata)
            tokenizer.check_fit(path, engine.vocab_size, "the rows of token_embd.weight,")
            sampling = defaults.sampling_from_gguf(metadata, path)
            info["sampling_ignored"] = defaults.sampling_ignored_in_gguf(metadata, sampling)
            tokenizer.model_type = metadata.get("general.architecture")
            key = f"{tokenizer.model_type}.embedding_length_per_layer_input"
            tokenizer.per_layer_inputs = bool(metadata.get(key))
        info |= headers.quantisation_of_loaded(read_json(os.path.join(path, "config.json")) if os.path.isdir(path)
                                               else None, info["weight_types"])
        info["pooling"] = stated_pooling(path, info.get("metadata", {})) or None
        model = Model(engine, tokenizer, info, sampling, tokenizer.eos_ids, parallel, prompt_cache)
        if adapters:
            model.adapter = {model.load_adapter(one): 1.0 for one in adapters}
        return model
    except BaseException:
        engine.close()
        raise


def adapter_sources(given):
    """What load_adapter() takes, each of adapter_path."""
    what, kinds = "a path, a gomlx.Adapter or a list of them", (str, os.PathLike, Adapter)
    if given is None:
        return []
    if isinstance(given, kinds):
        return [given]
    if isinstance(given, Mapping):
        raise arguments.WrongType(f"adapter_path: expected {what}, got {arguments.shown(given)}: weights are set in "
                                  "model.adapter")
    found = arguments.sequence("adapter_path", given, what)
    for one in found:
        if not isinstance(one, kinds):
            raise arguments.WrongType(f"adapter_path: expected {what}, found {arguments.shown(one)}")
    return found


def kv_name(kv_dtype, activations):
    """The name of kv_dtype, or of what None becomes by the activations alone; else None."""
    return placement.named(kv_dtype) or ("float32" if activations == "float32" else None)


def check_fit(path, strict, context_length, dtype, kv_dtype, place):
    """Asks the memory plan, of the processor's memory or of what is free on another device. A context of the model's
    own is not counted whole: sessions take memory as they grow."""
    try:
        if not strict and fits_by_far(path, context_length, place.number):
            return
        plan = memory_plan.plan_memory(path, context=context_length, kv_dtype=kv_dtype, dtype=placement.named(dtype),
                                       device=devices.name_of(place.number),
                                       gpu_layers=place.gpu_layers)
    except (_gomlx.Error, OSError, ValueError, TypeError, NotImplementedError) as error:
        log.debug("%s: no memory plan: %s", path, error)        # what is wrong with the file, its loader says better
        return
    if plan.fits or plan.context > plan.context_ceiling:
        return
    advice = f". {placement.ADVICE}" if place.number and place.gpu_layers is None else ""
    if strict:
        raise MemoryError(plan.why + advice)
    whole, source = memory_plan.whole_memory()
    if not place.number and plan.weight_bytes > whole:
        raise MemoryError(f"{path}: weights {memory_plan.size(plan.weight_bytes)} are more than {source}, "
                          f"{memory_plan.size(whole)}: a smaller model, or one with fewer bits, is needed "
                          f"(fits='ignore' "
                          "loads it nevertheless)")
    if advice and plan.weight_bytes > plan.budget_bytes:
        raise MemoryError(f"{path}: {plan.why}{advice} (fits='ignore' tries it nevertheless)")
    log.warning("%s may not fit: %s", path, plan.why)


def fits_by_far(path, context_length, number):
    """Whether no plan is needed: without reading headers, which would take longer than loading a small model."""
    names = headers.split_files(path) if os.path.isfile(path) else \
        [os.path.join(path, one) for one in os.listdir(path) if one.endswith(".safetensors")]
    available, _ = devices.free_memory(number) if number else memory_plan.available_memory()
    return (context_length or 0) <= 8192 and 3 * sum(map(os.path.getsize, names)) + (1 << 30) < available


def check_options(context_length, kv_dtype, threads, parallel, prompt_cache, progress, backend, fits):
    arguments.one_of("fits", fits, ("error", "warn", "ignore"))
    for name, value, most in (("context_length", context_length, 2**31 - 1), ("threads", threads, 256),
                              ("parallel", parallel, 2**31 - 1)):
        if value is not None:
            arguments.integer(name, value, 1, most)
    if kv_dtype is not None and not isinstance(kv_dtype, _gomlx.Dtype):
        arguments.one_of("kv_dtype", kv_dtype, ("float32", "float16", "bfloat16", "q8_0"))
    if not isinstance(prompt_cache, (bool, PromptCache)):
        raise TypeError(f"prompt_cache: expected True, False or a gomlx.PromptCache, got "
                        f"{arguments.shown(prompt_cache)}")
    bars.check(progress)
    if backend is not None:
        arguments.text("backend", backend, "a name")
