"""Trees: lists, tuples and dicts of lists, ... of arrays, as the transforms take and give them."""
from gomlx import _gomlx
from gomlx._gomlx import array


def flatten(tree, leaves, others=None):
    """Appends the arrays of a tree to leaves, in order; dicts in their own order. Other leaves go to others, if
    given."""
    if isinstance(tree, array):
        leaves.append(tree)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            flatten(item, leaves, others)
    elif isinstance(tree, dict):
        for item in tree.values():
            flatten(item, leaves, others)
    elif others is not None:
        others.append(tree)
    return leaves


def unflatten(tree, leaves):
    """The tree with its arrays replaced by the items of the iterator leaves; other values stay."""
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


_hole = array(0)


def hollow(tree):
    """The tree with one and the same array instead of its arrays: its structure, which keeps nothing alive."""
    return unflatten(tree, iter([_hole] * len(flatten(tree, []))))


def fill(tree, leaves):
    """Replaces the arrays of a tree by the items of the iterator leaves: lists and dicts keep their identity,
    tuples that hold arrays are made anew. Returns the tree."""
    if isinstance(tree, array):
        return next(leaves)
    if isinstance(tree, list):
        for i, item in enumerate(tree):
            tree[i] = fill(item, leaves)
    elif isinstance(tree, dict):
        for key, item in tree.items():
            tree[key] = fill(item, leaves)
    elif isinstance(tree, tuple):
        items = [fill(item, leaves) for item in tree]
        if any(new is not old for new, old in zip(items, tree)):
            return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return tree


def lend(tree, leaves, lent):
    """fill, which records in `lent` what take_back restores."""
    if isinstance(tree, array):
        new = next(leaves)
        lent[id(new)] = new, _gomlx._node_id(new), tree
        return new
    if isinstance(tree, (list, dict)):
        for key, item in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
            tree[key] = lend(item, leaves, lent)
    elif isinstance(tree, tuple):
        items = [lend(item, leaves, lent) for item in tree]
        if any(new is not old for new, old in zip(items, tree)):
            new = type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
            lent[id(new)] = new, None, tree
            return new
    return tree


def take_back(tree, lent):
    """The tree after `lend` with what it had before instead of all that was lent, but for arrays that are another
    value now, and what was put there meanwhile."""
    _, node, old = lent.get(id(tree), (None, None, tree))
    if isinstance(old, array):
        return tree if node is not None and _gomlx._node_id(tree) != node else old
    if isinstance(old, tuple):
        for item in tree:
            take_back(item, lent)
        return old
    if isinstance(tree, (list, dict)):
        for key, item in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
            kept = take_back(item, lent)
            if kept is not item:
                tree[key] = kept
    return tree


def become(tree, like, leaves):
    """Makes `tree` what `like` is, with the items of leaves instead of the arrays of `like`: lists and dicts that are
    there are changed in place and keep what `like` does not have; what is not an array stays where there is
    something."""
    if isinstance(like, array):
        return next(leaves)
    if isinstance(like, dict) and isinstance(tree, dict):
        for key, item in like.items():
            tree[key] = become(tree[key], item, leaves) if key in tree else unflatten(item, leaves)
        return tree
    if isinstance(like, list) and isinstance(tree, list):
        for i, item in enumerate(like):
            if i < len(tree):
                tree[i] = become(tree[i], item, leaves)
            else:
                tree.append(unflatten(item, leaves))
        return tree
    if isinstance(like, tuple) and isinstance(tree, tuple) and len(like) == len(tree):
        items = [become(old, item, leaves) for old, item in zip(tree, like)]
        if all(new is old for new, old in zip(items, tree)):
            return tree
        return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
    return unflatten(like, leaves) if isinstance(like, (dict, list, tuple)) else tree


def containers(tree, found):
    """Appends (list or dict, a copy of its items) for each one in the tree."""
    if isinstance(tree, (list, tuple)):
        if isinstance(tree, list):
            found.append((tree, list(tree)))
        for item in tree:
            containers(item, found)
    elif isinstance(tree, dict):
        found.append((tree, dict(tree)))
        for item in tree.values():
            containers(item, found)
    return found


def restore(found):
    """Gives each container of `containers` the items that it had."""
    for container, items in found:
        if isinstance(container, dict):
            for key in [key for key in container if key not in items]:
                del container[key]
            container.update(items)
        else:
            container[:] = items
