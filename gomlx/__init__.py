"""gomlx: open language models on CPUs, and MLX's array API, over one C engine.

    with gomlx.load("path/to/model") as model:
        for token in model.generate("Once upon a time", max_tokens=64):
            print(token.text, end="", flush=True)

`gomlx.core` holds the arrays. Importing gomlx imports neither NumPy, Jinja2 nor huggingface_hub. What the library has
to say goes to `logging.getLogger("gomlx")`, and nothing to standard output or error, but progress bars to a terminal's
standard error; `progress=False` does without them.
"""
import logging
from typing import TYPE_CHECKING, Any

try:
    import gomlx._gomlx
except ModuleNotFoundError as error:
    import os
    import platform
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.exists(os.path.join(here, "csrc", "gomlx.h")):
        raise ImportError(
            f"Python found gomlx's sources, {here}, whose extension is not built, and no installed gomlx before them: "
            "run Python in another folder, or as python -P, for the one that is installed (pip install . in the "
            "sources "
            "installs it), or build it there: pip install -e .") from error
    raise ImportError(
        f"gomlx's extension is not installed for {platform.system()} {platform.machine()} in this Python. gomlx runs "
        f"on "
        "Linux: pip install gomlx, or in a clone of the sources pip install . "
        "(On macOS use mlx and mlx-lm, whose API gomlx.core has.)") from error

from gomlx import backends
from gomlx._base import arguments
from gomlx._files.discovery import FoundModel, GGUFInfo, discover, gguf_info
from gomlx._files.memory_plan import MemoryPlan, plan_memory
from gomlx._generation.constraints import Constraint
from gomlx._generation.inspection import Patch, Steer, Validation
from gomlx._generation.model import Model
from gomlx._generation.options import GenerationOptions
from gomlx._generation.prompt_cache import PromptCache
from gomlx._generation.sampling import Sampling, sample, sample_probabilities
from gomlx._generation.streams import BatchStream, Cancelled, Result, TokenStream
from gomlx._generation.tokenizer import Tokenizer
from gomlx._generation.tool_calls import ToolCall
from gomlx._gomlx import (AxisError, ContextLengthExceeded, Encoding, Error, KvStateNotAvailable, ModelNotSupported,
                          Session, Token)
from gomlx._gomlx import version as __version__
from gomlx.loading import load
from gomlx.probes import Probe, ProbeEvent, Recorder
from gomlx.schema import UnsupportedSchema

if TYPE_CHECKING:       # what __getattr__ below imports
    from gomlx import core as core
    from gomlx import distributed as distributed
    from gomlx import lora as lora
    from gomlx import mlx as mlx
    from gomlx import nn as nn
    from gomlx import optimizers as optimizers
    from gomlx import profiling as profiling
    from gomlx import utils as utils
    from gomlx._conversion.convert import convert
    from gomlx._conversion.fuse import fuse
    from gomlx._files.adapters import read_adapter, save_adapter
    from gomlx._generation.scheduler import QueueFull, Scheduler
    from gomlx._generation.state_bundle import StateBundle
    from gomlx._tools.benchmark import bench, compare_reports
    from gomlx._training.ray_workers import ScalingOptions
    from gomlx._training.train import train
    from gomlx._training.adapter import Adapter, Term

logging.getLogger("gomlx").addHandler(logging.NullHandler())

# What few programs need, by the module that has it, and modules that are attributes without being imported by name.
_LAZY = {"convert": "_conversion.convert", "fuse": "_conversion.fuse", "bench": "_tools.benchmark",
         "compare_reports": "_tools.benchmark", "StateBundle": "_generation.state_bundle",
         "Scheduler": "_generation.scheduler", "QueueFull": "_generation.scheduler",
         "Adapter": "_training.adapter", "Term": "_training.adapter", "read_adapter": "_files.adapters",
         "save_adapter": "_files.adapters", "train": "_training.train",
         "ScalingOptions": "_training.ray_workers"}
_MODULES = ("abilities", "core", "data", "distributed", "loading", "lora", "mlx", "nn", "optimizers", "parsing",
            "probes", "profiling", "schema", "serve", "utils")
__all__ = ["Adapter", "AxisError", "BatchStream", "Cancelled", "Constraint", "ContextLengthExceeded", "Encoding",
           "Error", "FoundModel", "GGUFInfo", "GenerationOptions", "KvStateNotAvailable", "MemoryPlan", "Model",
           "ModelNotSupported", "Patch", "Probe", "ProbeEvent", "PromptCache", "QueueFull", "Recorder", "Result",
           "Sampling", "ScalingOptions", "Scheduler", "Session", "StateBundle", "Steer", "Term", "Token",
           "TokenStream", "Tokenizer", "ToolCall", "UnsupportedSchema", "Validation", "__version__", "backends",
           "bench", "compare_reports", "convert", "discover", "fuse", "gguf_info", "load", "plan_memory",
           "read_adapter", "sample", "sample_probabilities", "save_adapter", "train"]

arguments.name_public(globals(), set(__all__) & globals().keys())
arguments.show_as_own(__name__, [globals()[name] for name in __all__ if name in globals()])


def __getattr__(name: str) -> Any:
    import importlib
    if name in _MODULES:
        return importlib.import_module("gomlx." + name)
    if name in _LAZY:
        module = importlib.import_module("gomlx." + _LAZY[name])
        arguments.name_public(vars(module), (name,))
        arguments.show_as_own(__name__, [getattr(module, name)])
        return getattr(module, name)
    raise AttributeError(f"module 'gomlx' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__doc__", "__file__", "__name__", "__path__"})
