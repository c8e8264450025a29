"""An unknown keyword argument: the error names the function, and the name that may have been meant."""
import enum
import inspect
import pickle
import re
import types

import pytest
from test_types import NAMES

import gomlx
import gomlx.core as mx
import gomlx.nn as nn
import gomlx.optimizers as optim
from gomlx import utils
from gomlx._base import arguments
from gomlx._generation import options

X = mx.array([1.0, 2.0])
PYTHON = {
    "median": (lambda: mx.median(X, keepdim=True), "keepdim", "keepdims"),
    "vmap": (lambda: mx.vmap(abs, in_axis=0), "in_axis", "in_axes"),
    "grad": (lambda: mx.grad(abs, argnum=0), "argnum", "argnums"),
    "compile": (lambda: mx.compile(abs, shapless=True), "shapless", "shapeless"),
    "save_safetensors": (lambda: mx.save_safetensors("x", {}, metdata=None), "metdata", "metadata"),
    "Linear.__init__": (lambda: nn.Linear(1, 2, biass=False), "biass", "bias"),
    "cross_entropy": (lambda: nn.losses.cross_entropy(X, X, reductions="mean"), "reductions", "reduction"),
    "Adam.__init__": (lambda: optim.Adam(learning_rates=0.1), "learning_rates", "learning_rate"),
    "Sampling.__init__": (lambda: gomlx.Sampling(temprature=1), "temprature", "temperature"),
    "PromptCache.__init__": (lambda: gomlx.PromptCache(entry=1), "entry", "entries"),
    "plan_memory": (lambda: gomlx.plan_memory(kv_type="q8_0"), "kv_type", "kv_dtype"),
    "replace": (lambda: gomlx.Sampling().replace(top_pp=1), "top_pp", "top_p"),
    "sample": (lambda: gomlx.sample([1.0], steps=1), "steps", "step")}
ENGINE = {
    "sum": (lambda: mx.sum(X, keepdim=True), "keepdim", "keepdims"),
    "prod": (lambda: X.prod(axs=0), "axs", "axis"),
    "zeros": (lambda: mx.zeros(2, dtyp=mx.int8), "dtyp", "dtype"),
    "rms_norm": (lambda: mx.fast.rms_norm(X, None, epsi=1e-5), "epsi", "eps"),
    "array": (lambda: mx.array([1], dtypes=mx.int8), "dtypes", "dtype"),
    "svd": (lambda: mx.linalg.svd(X, compute_u=True), "compute_u", "compute_uv"),
    "random_normal": (lambda: mx.random.normal(shapes=(2,)), "shapes", "shape"),
    "from_json": (lambda: gomlx.Tokenizer.from_json(jsn=b""), "jsn", "json")}


def by_keyword(function):
    """The last argument that it takes by its name, or None: it has none, takes any name, or is C code of MLX's
    devices."""
    try:
        taken = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    names = [one.name for one in taken if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
             and one.name not in ("self", "cls")]
    code = getattr(inspect.unwrap(function), "__code__", None)     # its signature may show what it takes by any name
    takes_any = code.co_flags & inspect.CO_VARKEYWORDS if code else any(one.kind is one.VAR_KEYWORD for one in taken)
    return names[-1] if names and not takes_any else None


def every_function():
    """(shown name, function) of all that is public, with classes' public methods."""
    for module, name, value in NAMES:
        yield f"{module}.{name}", value
        for method, one in vars(value).items() if isinstance(value, type) else ():
            one = getattr(one, "__func__", one)
            if not method.startswith("_") and isinstance(one, types.FunctionType):
                yield f"{module}.{name}.{method}", one


FUNCTIONS = {shown: value for shown, value in every_function() if callable(value)
             and not isinstance(value, enum.EnumType)
             and not shown.endswith("_kernel") and by_keyword(value)}


@pytest.mark.parametrize("shown", FUNCTIONS)
def test_every_public_function_knows_its_names(shown):
    function = FUNCTIONS[shown]
    meant = by_keyword(function)
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument|has no option") as told:
        function(**{meant + "x": None})
    assert f"Did you mean {meant!r}?" in str(told.value)


def test_public_functions_can_be_pickled():
    for function in (mx.einsum, mx.grad, nn.relu, nn.losses.mse_loss, nn.init.constant, optim.cosine_decay,
                     utils.tree_map, gomlx.plan_memory, gomlx.load):
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("function", [*PYTHON, *ENGINE])
def test_the_error_names_function_and_nearest_name(function):
    call, wrong, meant = (PYTHON | ENGINE)[function]
    told = f"{function}() got an unexpected keyword argument {wrong!r}. Did you mean {meant!r}?"
    with pytest.raises(TypeError, match=re.escape(told) + "$"):
        call()


@pytest.mark.parametrize("call, wrong, meant", [
    (lambda model: model.generate("a", max_token=3), "generate", "max_tokens"),
    (lambda model: model.generate("a", n=2, temprature=1), "generate", "temperature"),
    (lambda model: model.chat([{"role": "user", "content": "a"}], max_token=3), "chat", "max_tokens"),
    (lambda model: model.generate_batch(["a"], batchsize=3), "generate_batch", "batch_size"),
    (lambda model: model.classify(["a"], label=["b"]), "classify", "labels"),
    (lambda model: model.warm_prompt_cache("a", message=[]), "warm_prompt_cache", "messages")])
def test_what_takes_any_field_of_sampling_knows_its_names(call, wrong, meant):
    with gomlx.load() as model:
        told = rf"^{wrong}\(\) got an unexpected keyword argument '\w+'. Did you mean {meant!r}\?$"
        with pytest.raises(TypeError, match=told):
            call(model)


def test_load_names_the_option_that_may_have_been_meant():
    with pytest.raises(TypeError, match="has no option context_len. Did you mean 'context_length'?"):
        gomlx.load(context_len=5)


@pytest.mark.parametrize("call, told", [
    (lambda model: model.generate("a", max_new_tokens=3), r"'max_new_tokens'. Did you mean 'max_tokens'\?"),
    (lambda model: model.generate("a", temp=0.5), r"'temp'. Did you mean 'temperature'\?"),
    (lambda model: model.chat("a", do_sample=False), "'do_sample'. temperature=0 takes the likeliest token each time"),
    (lambda model: model.generate("a", stream=True),
     r"'stream'. What is returned is a stream: iterate .* read\(\) all"),
    (lambda model: gomlx.load(n_ctx=512), r"has no option n_ctx. Did you mean 'context_length'\?"),
    (lambda model: gomlx.load(model_path="x.gguf"), r"has no option model_path. Did you mean 'path_or_name'\?"),
    (lambda model: gomlx.load(device_map="auto"), r"has no option device_map. load\(device='auto'\) puts on a GPU"),
    (lambda model: gomlx.load(n_gpu_layers=20), r"has no option n_gpu_layers. Did you mean 'gpu_layers'\?"),
    (lambda model: optim.SGD(lr=0.1), r"'lr'. Did you mean 'learning_rate'\?"),
    (lambda model: model.tokenizer("a", return_tensors="np"), r"'return_tensors'. encode\(text, as_arrays=True\)")])
def test_names_of_other_libraries_are_told_with_those_of_this_one(call, told):
    with gomlx.load() as model, pytest.raises(TypeError, match=told):
        call(model)


def test_what_other_libraries_names_stand_for_is_there():
    names = {"path_or_name", "context_length", "threads", "dtype", "learning_rate", "gpu_layers", "gpu_memory",
             *options.CHAT, *options.BATCH}
    assert {one for one in arguments.ELSEWHERE.values() if " " not in one} <= names
    assert not set(arguments.ELSEWHERE) & options.GENERATE


def test_a_name_like_no_other_is_told_alone():
    with pytest.raises(TypeError, match=r"^median\(\) got an unexpected keyword argument 'zzz'$"):
        mx.median(X, zzz=1)


def test_errors_from_within_a_function_stay_as_they_are():
    def inner(*, right):
        return right

    @arguments.named
    def outer(**options):
        return inner(**options)

    with pytest.raises(TypeError, match=r"inner\(\) got an unexpected keyword argument 'rihgt'"):
        outer(rihgt=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        arguments.named(lambda x: x)()
