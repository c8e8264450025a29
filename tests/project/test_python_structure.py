"""The rooms of gomlx/: who may import whom, what is public, and what is imported inside functions."""
import ast
import glob
import os

from places import ROOT

import gomlx

PACKAGE = os.path.join(ROOT, "gomlx")

# What each room may import besides itself and the extension. Modules at the top that belong to a room are in it.
BELOW = {
    "_base": set(),
    "_files": {"_base"},
    "core": {"_base", "_files"},
    "utils": {"_base"},
    "nn": {"_base", "core", "utils"},
    "optimizers": {"_base", "core", "utils", "nn"},
    "_generation": {"_base", "_files"},
    "_batches": {"_base"},
    "_conversion": {"_base", "_files", "_generation"},
    "_training": {"_base", "_files", "_generation", "core", "nn", "optimizers", "utils", "loading"},
    "backends": {"_base", "_files", "_generation", "face", "mlx"},
    "loading": {"_base", "_files", "_generation", "backends"},
    "_tools": {"_base", "_files", "_generation", "face"},
    "face": {"_base", "_files", "_generation", "backends", "loading"},
    "mlx": {"core", "nn", "optimizers", "utils", "face"},
    "distributed": {"core"},
    "data": {"_base", "_generation", "loading"},
    "cli": {"_base", "_batches", "_files", "_generation", "_tools", "_training", "loading", "face"},
    "serve": {"_base", "_generation", "core", "face"},
    "__main__": {"cli"},
}
IN_A_ROOM = {"abilities": "_generation", "parsing": "_generation", "probes": "_generation", "profiling": "_generation",
             "schema": "_generation",
             "lora": "_training", "_training.adapter": "_files", "_training.config": "_files"}   # of adapters as such


def modules():
    """{dotted name below gomlx, "" is gomlx itself: path}."""
    found = {}
    for path in glob.glob(os.path.join(PACKAGE, "**", "*.py"), recursive=True):
        name = os.path.relpath(path, PACKAGE)[:-len(".py")].replace(os.sep, ".")
        found[name.removesuffix("__init__").removesuffix(".")] = path
    return found


MODULES = modules()


def room(name):
    top = name.split(".")[0]
    return "face" if top == "" else IN_A_ROOM.get(name) or IN_A_ROOM.get(top, top)


def imports(path):
    """(what is imported of gomlx as a dotted name below it, the statement, the function that it is in or None)."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())

    def walk(node, function):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.ImportFrom) and (child.level or child.module.split(".")[0] == "gomlx"):
                assert not child.level, f"{path}:{child.lineno}: a relative import; expected from gomlx..."
                for one in child.names:
                    full = f"{child.module}.{one.name}".partition(".")[2]
                    known = full in MODULES or full == "_gomlx"
                    yield full if known else child.module.partition(".")[2], child, function
            elif isinstance(child, ast.Import):
                for one in child.names:
                    if one.name.split(".")[0] == "gomlx":
                        yield one.name.partition(".")[2], child, function
            else:
                yield from walk(child, child if isinstance(child, ast.FunctionDef) else function)

    return list(walk(tree, None))


def test_every_module_is_in_a_room():
    assert {room(name) for name in MODULES} == BELOW.keys()


def test_imports_between_rooms_point_down():
    wrong = []
    for name, path in MODULES.items():
        for target, statement, _ in imports(path):
            if target.split(".")[0] != "_gomlx" and room(target) not in BELOW[room(name)] | {room(name)}:
                wrong.append(f"{os.path.relpath(path, ROOT)}:{statement.lineno} imports gomlx.{target}")
    assert not wrong, "\n".join(wrong)


def test_few_imports_are_inside_functions_and_each_has_its_reason():
    inside, bare = [], []
    for path in MODULES.values():
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
        for target, statement, function in imports(path):
            if function is not None:
                inside.append(f"{os.path.relpath(path, ROOT)}:{statement.lineno} imports gomlx.{target}")
                if "#" not in lines[statement.lineno - 1] and "import" not in (ast.get_docstring(function) or ""):
                    bare.append(inside[-1])
    assert len(inside) < 11 and not bare, "\n".join(bare or inside)


def test_modules_at_the_top_are_public_and_shown():
    at_the_top = {name.split(".")[0] for name in MODULES} - {"", "__main__", "cli"}
    assert {name for name in at_the_top if not name.startswith("_")} == set(gomlx._MODULES) | {"backends"}
    assert set(gomlx._MODULES) | set(gomlx.__all__) <= set(dir(gomlx))


def test_what_users_see_names_no_private_module():
    for name in gomlx.__all__:
        home = getattr(getattr(gomlx, name), "__module__", "gomlx")
        assert home in ("gomlx", "gomlx._gomlx"), f"gomlx.{name} is shown as one of {home}"
