"""Runs programs written for MLX on gomlx: `import mlx.core` and its like find gomlx's modules.

    import gomlx.mlx
    gomlx.mlx.install()                                 # before anything imports mlx

    python -m gomlx.mlx script.py ...                   # the same for a script, or with -m for a module:
    python -m gomlx.mlx -m mlx_lm generate ...

Of a real mlx, where one is installed, core, nn, optimizers and utils stay out of the process. What other packages put
beside them, such as mlx.data, is found as ever. importlib.metadata knows the package "mlx" too: its version is that of
the MLX whose interface gomlx has.
"""
import importlib.metadata
import os
import runpy
import sys
import types
from importlib.machinery import ModuleSpec

import gomlx.core
import gomlx.nn
import gomlx.optimizers
import gomlx.utils

USAGE = "usage: python -m gomlx.mlx (SCRIPT | -m MODULE) [ARGUMENT ...]"


class Metadata(importlib.metadata.Distribution):
    """What importlib.metadata says of the package "mlx"."""

    def read_text(self, filename):
        text = f"Metadata-Version: 2.1\nName: mlx\nVersion: {gomlx.core.__version__}\n"
        return text if filename == "METADATA" else None

    def locate_file(self, path):
        return os.path.join(os.path.dirname(os.path.abspath(__file__)), path)


class Finder(importlib.metadata.DistributionFinder):
    """Finds no module, only the package's metadata."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):
        return None

    @staticmethod
    def find_distributions(context=importlib.metadata.DistributionFinder.Context()):
        return [Metadata()] if context.name in (None, "mlx") else []


class Portions:
    """The folders with modules of the namespace that are not gomlx's: those named mlx along the present sys.path."""

    def __iter__(self):
        folders = (os.path.join(entry or os.getcwd(), "mlx") for entry in sys.path if isinstance(entry, str))
        return (folder for folder in dict.fromkeys(folders) if os.path.isdir(folder))

    def __len__(self):
        return sum(1 for _ in self)

    def __getitem__(self, index):
        return list(self)[index]

    def __repr__(self):
        return repr(list(self))


def install() -> None:
    """From here on, mlx and the modules below it are gomlx's. Call it before anything imports mlx."""
    present = sys.modules.get("mlx.core")
    if present is gomlx.core:
        return
    if present is not None:
        raise RuntimeError(f"gomlx.mlx.install: mlx.core was imported already, from {present.__file__}; "
                           "call install() before anything imports mlx")
    package = types.ModuleType("mlx", "gomlx under MLX's name.")
    package.__spec__ = ModuleSpec("mlx", None, is_package=True)
    package.__path__ = package.__spec__.submodule_search_locations = Portions()
    modules = {"mlx": package}
    for name, module in list(sys.modules.items()):
        if name.startswith(("gomlx.core", "gomlx.nn", "gomlx.optimizers", "gomlx.utils")) and "._" not in name:
            modules[name[2:]] = module
    for name, module in vars(gomlx.core).items():
        if isinstance(module, types.ModuleType) and not name.startswith("_"):
            modules[f"mlx.core.{name}"] = module
    package.core, package.nn = gomlx.core, gomlx.nn
    package.optimizers, package.utils = gomlx.optimizers, gomlx.utils
    sys.modules.update(modules)
    sys.meta_path.insert(0, Finder)


def main(arguments: list[str]) -> None:
    """Runs a script, or with -m a module, as Python itself would, after install()."""
    module = arguments[:1] == ["-m"]
    rest = arguments[1:] if module else arguments
    if not rest or (rest[0].startswith("-") and not module):
        raise SystemExit(USAGE)
    install()
    sys.argv = rest
    if module:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.abspath(rest[0]))
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
