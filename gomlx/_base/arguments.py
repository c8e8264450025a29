"""Checks of arguments, whose errors name the argument, what came and what was expected."""
from __future__ import annotations

import abc
import difflib
import enum
import functools
import inspect
import numbers
import operator
import os
import re
import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

# Of a function that takes any keyword argument, or that begins to run later.
ANY_NAMES_OR_LATER = inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
F = TypeVar("F", bound=Callable[..., Any])


class WrongType(TypeError):
    """An argument is not of the expected type. The command line shows it as the user's error; any other TypeError
    is a mistake in a program, and keeps its traceback."""


def integer(name, value, least, most=None):
    """An integer from least to most."""
    try:
        number = operator.index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        raise WrongType(f"{name}: expected an integer, got {shown(value)}")
    if number < least or most is not None and number > most:
        raise ValueError(f"{name} is {shown(value)}, expected {least} " + ("or more" if most is None else f"to {most}"))
    return number


UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30,
         "ti": 1 << 40}


def byte_count(name, value):
    """A number of bytes, of an integer or a text: 8GB, 512MiB."""
    if not isinstance(value, str):
        return integer(name, value, 1)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", value.strip().lower(), re.ASCII)
    count = int(float(found[1]) * UNITS[found[2]]) if found and found[2] in UNITS else 0
    if count < 1:
        raise ValueError(f"{name} is {shown(value)}, expected a number of bytes, such as 8GB or 512MiB")
    return count


def seconds(name, value):
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise WrongType(f"{name}: expected a number of seconds, got {shown(value)}")
    if not value > 0:
        raise ValueError(f"{name} is {shown(value)}, expected more than 0 seconds, or None for no limit")
    return value


def flag(name, value):
    if not isinstance(value, bool) and not (isinstance(value, int) and value in (0, 1)):
        raise WrongType(f"{name}: expected True or False, got {shown(value)}")
    return bool(value)


def sequence(name, value, what):
    """The items of a sequence as a list; a text is not a sequence of characters here."""
    if isinstance(value, (str, bytes, bytearray)) or not hasattr(value, "__iter__"):
        raise WrongType(f"{name}: expected {what}, got {shown(value)}")
    return list(value)


def token_ids(name, value):
    found = sequence(name, value, "token ids")
    if {*map(type, found)} <= {int}:                # as a long prompt's are
        return found
    for one in found:
        if not hasattr(one, "__index__"):
            raise WrongType(f"{name}: expected token ids, found {shown(one)}")
    return found


def functions(name, value):
    found = sequence(name, value, "callables")
    for one in found:
        function(name, one)
    return found


def function(name, value):
    if not callable(value):
        raise WrongType(f"{name}: expected a callable, got {shown(value)}")
    return value


def mapping(name, value):
    if not hasattr(value, "keys"):
        raise WrongType(f"{name}: expected a dict, got {shown(value)}")
    return dict(value)


def one_of(name, value, choices):
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is {shown(value)}, expected one of {', '.join(choices)}")
    return value


def path(name, value):
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise WrongType(f"{name}: expected a path, a str or os.PathLike, got {shown(value)}")
    return os.path.expanduser(os.fspath(value))


def text(name, value, what="a text"):
    if not isinstance(value, str):
        raise WrongType(f"{name}: expected {what}, got {shown(value)}")
    return value


def shown(value):
    return f"{value!r:.80}" if isinstance(value, (str, bytes, int, float, type(None))) else \
        f"{type(value).__name__} {value!r:.80}"


# Arguments of transformers, llama-cpp-python, mlx-lm and OpenAI's API, and what does the same: a name or a sentence.
ELSEWHERE = {
    "max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens", "n_predict": "max_tokens",
    "min_new_tokens": "min_tokens", "temp": "temperature", "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "penalty_last_n", "num_return_sequences": "n", "logprobs": "top_logprobs",
    "stop_strings": "stop", "stopping_criteria": "stop", "eos_token_id": "stop_ids",
    "logits_processor": "logits_processors", "past_key_values": "session", "reasoning_effort": "template_args",
    "model_path": "path_or_name", "pretrained_model_name_or_path": "path_or_name", "torch_dtype": "dtype",
    "n_ctx": "context_length", "max_seq_len": "context_length", "max_kv_size": "context_length",
    "n_threads": "threads", "lr": "learning_rate",
    "do_sample": "temperature=0 takes the likeliest token each time",
    "stream": "What is returned is a stream: iterate over it, or read() all of it",
    "streamer": "What is returned is a stream: iterate over it",
    "sampler": "Samplers are options by name, such as temperature, top_p and top_k",
    "prompt_cache": "A session of model.session() holds keys and values: session=",
    "kv_bits": "load(kv_dtype='q8_0') holds keys and values in 8 bits",
    "echo": "model.score(text) gives the log probabilities of a prompt",
    "return_tensors": "encode(text, as_arrays=True) gives an array of NumPy",
    "n_gpu_layers": "gpu_layers", "max_memory": "gpu_memory",
    "device_map": "load(device='auto') puts on a GPU what fits there; gpu_layers= and gpu_memory= say how much",
}


def hint(name, names):
    """What may have been meant by a name that is not one of these: a sentence with a space before it, or ""."""
    here = ELSEWHERE.get(name, "")
    if " " in here:
        return f". {here}"
    near = [here] if here and here in names else difflib.get_close_matches(name, names, 1)
    return f". Did you mean {near[0]!r}?" if near else ""


def unexpected(function, name, names):
    """The text of the TypeError for a keyword argument that a function does not have."""
    return f"{function}() got an unexpected keyword argument {name!r}" + hint(name, names)


def named(function: F) -> F:
    """A decorator: where the caller gives a keyword argument that the function does not have, the error names the one
    that may have been meant. From Python 3.13 on the interpreter does."""
    if sys.version_info >= (3, 13) or function.__code__.co_flags & ANY_NAMES_OR_LATER or hasattr(function,
                                                                                                 "_names_told"):
        return function

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            told = re.fullmatch(r"(.*)\(\) got an unexpected keyword argument '(.*)'", str(error))
            if told is None or error.__traceback__.tb_next is not None:         # it comes from within
                raise
            names = [one.name for one in inspect.signature(function).parameters.values() if one.kind not in (
                one.POSITIONAL_ONLY, one.VAR_POSITIONAL, one.VAR_KEYWORD)]
            raise TypeError(unexpected(told[1], told[2], names)) from None
    call._names_told = True
    return call


def name_public(namespace, names=None):
    """`named` for those of the names of a namespace that are functions written in Python, and for the constructors and
    public methods of those that are classes. names: None for all that a module without __all__ defines."""
    if names is None:
        names = [name for name, value in namespace.items() if not name.startswith("_")
                 and getattr(value, "__module__", None) == namespace["__name__"]]
    for name in names:
        value = namespace[name]
        if isinstance(value, types.FunctionType):
            namespace[name] = made = named(value)
            home = vars(sys.modules[value.__module__])
            if home.get(name) is value:                     # pickle wants to find it there
                home[name] = made
        elif type(value) in (type, abc.ABCMeta):
            for one in (value, *value.__mro__[1:]):
                if one.__module__.startswith("gomlx"):
                    name_methods(one)


def show_as_own(module, values):
    """Functions and classes written in Python, in private modules, are shown and pickled as those of the module, by its
    name, from which users import them."""
    for value in values:
        if isinstance(value, types.FunctionType) or type(value) in (type, abc.ABCMeta, enum.EnumType):
            if value.__module__.startswith("gomlx.") and value.__module__ != "gomlx._gomlx":
                value.__module__ = module


def name_methods(kind):
    for name, member in list(vars(kind).items()):
        function = getattr(member, "__func__", member)
        if not isinstance(function, types.FunctionType) or name.startswith("_") and name != "__init__":
            continue
        if (made := named(function)) is not function:
            setattr(kind, name, made if member is function else type(member)(made))


def known(function, given, names):
    """Raises TypeError unless every given keyword argument has one of the names."""
    for name in given:
        if name not in names:
            raise TypeError(unexpected(function, name, list(names)))
