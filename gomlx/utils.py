"""Trees: nested lists, tuples and dicts whose leaves are anything else.

A leaf's path joins the keys and positions that lead to it with dots. `is_leaf` may declare a container to be a leaf.
"""
from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from gomlx._base.arguments import name_public

__all__ = ["tree_flatten", "tree_map", "tree_map_with_path", "tree_merge", "tree_reduce", "tree_unflatten"]

CONTAINERS = (list, tuple, dict)


def rebuild(like, values):
    """A sequence of the type of `like`; a named tuple takes its fields one by one."""
    return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)


def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[..., Any] | None = None) -> Any:
    """The tree of fn(leaf, ...) over the leaves of `tree`.

    Each tree of `rest` contains `tree`'s structure, and gives fn one more argument.
    """
    return mapped(fn, tree, rest, is_leaf)


def mapped(fn, tree, rest, is_leaf):
    if is_leaf is not None and is_leaf(tree):
        return fn(tree, *rest)
    if isinstance(tree, (list, tuple)):
        return rebuild(tree, [mapped(fn, child, [r[i] for r in rest], is_leaf) for i, child in enumerate(tree)])
    if isinstance(tree, dict):
        return {k: mapped(fn, child, [r[k] for r in rest], is_leaf) for k, child in tree.items()}
    return fn(tree, *rest)


def tree_map_with_path(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[..., Any] | None = None,
                       path: Any | None = None) -> Any:
    """tree_map whose fn takes the leaf's path first; `path` is where the tree itself hangs."""
    return mapped_with_path(fn, tree, rest, is_leaf, path)


def mapped_with_path(fn, tree, rest, is_leaf, path):
    if is_leaf is not None and is_leaf(tree):
        return fn(path, tree, *rest)

    def below(key):
        return f"{path}.{key}" if path else str(key)

    if isinstance(tree, (list, tuple)):
        return rebuild(tree, [mapped_with_path(fn, child, [r[i] for r in rest], is_leaf, below(i))
                              for i, child in enumerate(tree)])
    if isinstance(tree, dict):
        return {k: mapped_with_path(fn, child, [r[k] for r in rest], is_leaf, below(k)) for k, child in tree.items()}
    return fn(path, tree, *rest)


def tree_flatten(tree: Any, prefix: str = "", is_leaf: Callable[..., Any] | None = None,
                 destination: list[tuple[str, Any]] | dict[str, Any] | None = None
                 ) -> list[tuple[str, Any]] | dict[str, Any]:
    """The leaves with their paths, appended to `destination` (a new list; a dict makes it a flat dict).

    The first character of `prefix` is dropped: it is the dot before the first key.
    """
    if destination is None:
        destination = []
    if isinstance(destination, list):
        def keep(path, leaf):
            destination.append((path[1:], leaf))
    elif isinstance(destination, dict):
        keep = None
    else:
        raise ValueError("Destination should be either a list or a dictionary or None, "
                         f"not {type(destination).__name__}")

    def walk(node, path):
        if isinstance(node, CONTAINERS) and (is_leaf is None or not is_leaf(node)):
            for key, child in node.items() if isinstance(node, dict) else enumerate(node):
                walk(child, f"{path}.{key}")
        elif keep is None:
            destination[path[1:]] = node
        else:
            keep(path, node)

    walk(tree, prefix)
    return destination


def tree_unflatten(tree: list[tuple[str, Any]] | dict[str, Any]) -> Any:
    """The tree that tree_flatten flattened.

    Where all keys of a level are integers, each another one, it is a list, its gaps filled with {}.
    """
    pairs = list(tree.items() if isinstance(tree, dict) else tree)
    return grow(pairs) if pairs else []


def grow(pairs):
    if len(pairs) == 1 and pairs[0][0] == "":
        return pairs[0][1]
    children = {}
    for path, leaf in pairs:
        key, _, below = path.partition(".")
        children.setdefault(key, []).append((below, leaf))
    try:
        indexed = sorted((int(key), key) for key in children)
    except ValueError:
        indexed = []
    if len({index for index, _ in indexed}) < len(children):         # a name among them, or "7" and "007"
        return {key: grow(below) for key, below in children.items()}
    out = []
    for index, key in indexed:
        out.extend({} for _ in range(index - len(out)))
        out.append(grow(children[key]))
    return out


def tree_reduce(fn: Callable[..., Any], tree: Any, initializer: Any = None,
                is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """fn(accumulated, leaf) over all leaves in order, from `initializer`, or from the first leaf where that is None."""
    return reduced(fn, tree, initializer, is_leaf)


def reduced(fn, tree, total, is_leaf):
    if isinstance(tree, CONTAINERS) and (is_leaf is None or not is_leaf(tree)):
        for child in tree.values() if isinstance(tree, dict) else tree:
            total = reduced(fn, child, total, is_leaf)
        return total
    return tree if total is None else fn(total, tree)


def tree_merge(tree_a: Any, tree_b: Any, merge_fn: Callable[..., Any] | None = None) -> Any:
    """The tree with the leaves of both; where both have something under one key, merge_fn(a, b) decides.

    None and empty containers count as nothing there; with nothing in both, merge_fn(None, None) decides, but two empty
    containers of one type stay what they are.
    """
    return merged(tree_a, tree_b, merge_fn)


def merged(tree_a, tree_b, merge_fn):
    a, b = present(tree_a), present(tree_b)
    if a is None and b is None and tree_a is not None and tree_b is not None:
        if isinstance(tree_a, type(tree_b)):
            return tree_a
        raise ValueError(f"Cannot merge {type(tree_a).__name__} with {type(tree_b).__name__}")
    if (a is None) != (b is None):
        return tree_b if a is None else tree_a
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return rebuild(a, [merged(*pair, merge_fn) for pair in zip_longest(a, b)])
    if isinstance(a, dict) and isinstance(b, dict):
        return {key: merged(a.get(key), b.get(key), merge_fn) for key in [*a, *(k for k in b if k not in a)]}
    if merge_fn is None:
        raise ValueError("Trees contain elements at the same locations but no merge function was provided")
    return merge_fn(a, b)


def present(tree):
    """The tree, or None for an empty container."""
    return None if isinstance(tree, CONTAINERS) and not tree else tree


name_public(globals(), __all__)
