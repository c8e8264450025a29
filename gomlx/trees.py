"""Trees: lists, tuples and dicts of lists, ... of arrays, as the transforms take and give them."""
from gomlx._gomlx import array


def flatten(tree, leaves):
    """Appends the arrays of a tree to leaves, in order; dicts in their own order."""
    if isinstance(tree, array):
        leaves.append(tree)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            flatten(item, leaves)
    elif isinstance(tree, dict):
        for item in tree.values():
            flatten(item, leaves)
    return leaves


def unflatten(tree, leaves):
    """The tree with its arrays replaced by those of the iterator leaves; other values stay."""
    if isinstance(tree, array):
        return next(leaves)
    if isinstance(tree, tuple):
        items = [unflatten(item, leaves) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if isinstance(tree, list):
        return [unflatten(item, leaves) for item in tree]
    if isinstance(tree, dict):
        return {key: unflatten(item, leaves) for key, item in tree.items()}
    return tree


def fill(tree, leaves):
    """Puts the arrays of the iterator leaves into the lists and dicts of a tree, in place; tuples are made anew."""
    if isinstance(tree, array):
        return next(leaves)
    if isinstance(tree, list):
        for i, item in enumerate(tree):
            tree[i] = fill(item, leaves)
    elif isinstance(tree, dict):
        for key, item in tree.items():
            tree[key] = fill(item, leaves)
    elif isinstance(tree, tuple):
        return unflatten(tree, leaves)
    return tree
