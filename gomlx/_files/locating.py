"""Where a model's files are: in a folder, in the package, in the hub's cache."""
import logging
import os

from gomlx import _gomlx
from gomlx._base import arguments
from gomlx._files import hub

PACKAGED = "fable"
PACKAGED_FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "models", "fable-Q8_0.gguf")
log = logging.getLogger("gomlx")


def locate(path_or_name, show_bars=False, name="path_or_name"):
    """The path of a model, which is fetched from the hub if it is neither a path nor in the package. name: of the
    argument, for errors."""
    if path_or_name is None or (path_or_name == PACKAGED and not os.path.exists(PACKAGED)):
        log.info("using %s, the model in the package", PACKAGED)
        return PACKAGED_FILE
    path = arguments.path(name, path_or_name)
    if os.path.isdir(path):
        return gguf_in(path)
    if os.path.isfile(path):
        if path.endswith((".safetensors", ".json")):
            folder = os.path.dirname(path) or "."
            raise _gomlx.Error(f"{path}: one file of a model; expected its folder, {folder!r}, or a .gguf file")
        return path
    if os.path.exists(path):
        raise OSError(f"{path!r} is a pipe or a device, expected a file or a folder")
    if not isinstance(path_or_name, str) or not hub.is_name(path_or_name):
        raise FileNotFoundError(f"no such file or folder: {path!r}; a name of the hub looks like 'org/name' or "
                                "'org/name:Q4_K_M'")
    return hub.fetch(path_or_name, show_bars=show_bars)


def gguf_in(folder):
    """The folder itself, or the one GGUF file (of split ones the first) in a folder without a config.json."""
    if os.path.exists(os.path.join(folder, "config.json")):
        return folder
    models = hub.gguf_models(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name)))
    if len(models) == 1:
        return os.path.join(folder, models[0][0])
    found = "no config.json and no .gguf file" if not models else \
        f"no config.json and {len(models)} .gguf files, name one: " + ", ".join(files[0] for files in models)
    raise FileNotFoundError(f"no model in {folder!r}: {found}")
