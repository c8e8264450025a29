"""gomlx: open language models on CPUs, and MLX's array API, over one C engine.

    with gomlx.load("path/to/model") as model:
        for token in model.generate("Once upon a time", max_tokens=64):
            print(token.text, end="", flush=True)

`gomlx.core` holds the arrays. Importing gomlx imports neither NumPy, Jinja2 nor huggingface_hub. What the library has to
say goes to `logging.getLogger("gomlx")`, and nothing to standard output or error, but progress bars to a terminal's
standard error; `progress=False` does without them.
"""
import logging
from typing import TYPE_CHECKING, Any

try:
    import gomlx._gomlx
except ModuleNotFoundError as error:
    import platform
    raise ImportError(
        f"gomlx's extension is not installed for {platform.system()} {platform.machine()} in this Python. gomlx runs on "
        "Linux: pip install gomlx, or in a clone of the sources pip install . "
        "(On macOS use mlx and mlx-lm, whose API gomlx.core has.)") from error

from gomlx import arguments, backends
from gomlx._gomlx import (AxisError, ContextLengthExceeded, Encoding, Error, KvStateNotAvailable, ModelNotSupported,
                          Session, Token)
from gomlx._gomlx import version as __version__
from gomlx.discovery import FoundModel, GGUFInfo, discover, gguf_info
from gomlx.inspection import Patch, Steer, Validation
from gomlx.loading import load
from gomlx.memory_plan import MemoryPlan, plan_memory
from gomlx.model import Model
from gomlx.options import GenerationOptions
from gomlx.probes import Probe, ProbeEvent, Recorder
from gomlx.prompt_cache import PromptCache
from gomlx.sampling import Sampling, sample, sample_probabilities
from gomlx.streams import BatchStream, Cancelled, Result, TokenStream
from gomlx.tokenizer import Tokenizer
from gomlx.tool_calls import ToolCall

if TYPE_CHECKING:       # what __getattr__ below imports
    from gomlx import core as core
    from gomlx import nn as nn
    from gomlx import optimizers as optimizers
    from gomlx import profiling as profiling
    from gomlx import utils as utils
    from gomlx.benchmark import bench, compare_reports
    from gomlx.conversion import convert
    from gomlx.state_bundle import StateBundle

logging.getLogger("gomlx").addHandler(logging.NullHandler())

LATER = {"convert": "conversion", "bench": "benchmark", "compare_reports": "benchmark",     # few programs need them
         "StateBundle": "state_bundle"}
MODULES = ("core", "nn", "optimizers", "profiling", "utils")        # attributes without being imported by name
__all__ = ["AxisError", "BatchStream", "Cancelled", "ContextLengthExceeded", "Encoding", "Error", "FoundModel", "GGUFInfo",
           "GenerationOptions", "KvStateNotAvailable", "MemoryPlan", "Model", "ModelNotSupported", "Patch", "Probe", "ProbeEvent",
           "PromptCache", "Recorder", "Result", "Sampling", "Session", "StateBundle", "Steer", "Token", "TokenStream",
           "Tokenizer", "ToolCall", "Validation", "__version__", "backends", "bench", "compare_reports", "convert",
           "discover", "gguf_info", "load", "plan_memory", "sample", "sample_probabilities"]

arguments.name_public(globals(), set(__all__) & globals().keys())


def __getattr__(name: str) -> Any:
    import importlib
    if name in MODULES:
        return importlib.import_module("gomlx." + name)
    if name in LATER:
        module = importlib.import_module("gomlx." + LATER[name])
        arguments.name_public(vars(module), (name,))
        return getattr(module, name)
    raise AttributeError(f"module 'gomlx' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *MODULES, "__doc__", "__file__", "__name__", "__path__"})
