"""Module: a dict whose items are also attributes.

What holds state a program may learn or replace (arrays, modules, and lists, tuples and dicts that may hold them) is an
item; every other attribute stays an attribute. So a model is a tree: of parameters, of modules, of state.
"""
from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import gomlx.core as mx
from gomlx.utils import tree_flatten, tree_unflatten

ITEM_TYPES = (mx.array, dict, list, tuple)


class Module(dict[str, Any]):
    """The base class of layers and models.

    Its arrays, however deep in lists, dicts and other modules, are its parameters; names that begin with an underscore
    are not. Parameters are trainable until freeze() says otherwise.
    """

    __call__: Callable

    def __init__(self) -> None:
        self._no_grad = set()
        self._training = True

    @property
    def training(self) -> bool:
        """Whether the module is in training mode."""
        return self._training

    @property
    def state(self) -> Module:
        """The module itself, as the dict of its items: writing to it writes to the module."""
        return self

    def _extra_repr(self) -> str:
        return ""

    def __repr__(self) -> str:
        text = f"{type(self).__name__}({self._extra_repr()}"
        children = tree_flatten(self.children(), is_leaf=self.is_module)
        for name, child in children:
            text += "\n" + textwrap.indent(f"({name}): {child!r}", "  ")
        return text + ("\n)" if children else ")")

    def __getattr__(self, key: str) -> Any:
        if key in self:
            return self[key]
        return super().__getattribute__(key)            # for its error

    def __setattr__(self, key: str, val: Any) -> None:
        if isinstance(val, ITEM_TYPES):
            self.__dict__.pop(key, None)
            self[key] = val
        else:
            super().__setattr__(key, val)
            self.pop(key, None)

    def __delattr__(self, name: str) -> None:
        if name in self:
            del self[name]
        else:
            super().__delattr__(name)

    def load_weights(self, file_or_weights: str | list[tuple[str, mx.array]], strict: bool = True) -> Module:
        """Takes its parameters from a .npz or .safetensors file, or from pairs (name, array).

        With `strict` the names and shapes are exactly the module's; without, what it knows is taken as it comes.
        """
        weights = file_or_weights
        if isinstance(weights, str):
            weights = list(mx.load(weights).items())
        if strict:
            self._check_weights(dict(weights))
        if len(weights) != 0:
            self.update(tree_unflatten(weights), strict=False)
        return self

    def _check_weights(self, given):
        expected = tree_flatten(self.parameters(), destination={})
        if extra := sorted(given.keys() - expected.keys()):
            names = ",\n".join(extra)
            raise ValueError(f"Received {len(extra)} parameters not in model: \n{names}.")
        if missing := sorted(expected.keys() - given.keys()):
            names = ",\n".join(missing)
            raise ValueError(f"Missing {len(missing)} parameters: \n{names}.")
        for name, parameter in expected.items():
            value = given[name]
            if not isinstance(value, mx.array):
                raise ValueError(f"Expected mx.array but received {type(value)} for parameter {name}")
            if value.shape != parameter.shape:
                raise ValueError(f"Expected shape {parameter.shape} but received shape {value.shape} "
                                 f"for parameter {name}")

    def save_weights(self, file: str) -> None:
        """Writes the parameters; the name's ending, .npz or .safetensors, decides the format."""
        weights = tree_flatten(self.parameters(), destination={})
        if file.endswith(".npz"):
            mx.savez(file, **weights)
        elif file.endswith(".safetensors"):
            mx.save_safetensors(file, weights)
        else:
            raise ValueError(f"Unsupported file extension for {file}. Use '.npz' or '.safetensors'.")

    @staticmethod
    def is_module(value: Any) -> bool:
        return isinstance(value, Module)

    @staticmethod
    def valid_child_filter(module: Module, key: str, value: Any) -> bool:
        return isinstance(value, (dict, list))

    @staticmethod
    def valid_parameter_filter(module: Module, key: str, value: Any) -> bool:
        return isinstance(value, (dict, list, mx.array)) and not key.startswith("_")

    @staticmethod
    def trainable_parameter_filter(module: Module, key: str, value: Any) -> bool:
        return Module.valid_parameter_filter(module, key, value) and key not in module._no_grad

    def filter_and_map(self, filter_fn: Callable[[Module, str, Any], bool], map_fn: Callable[..., Any] | None = None,
                       is_leaf_fn: Callable[[Module, str, Any], bool] | None = None) -> dict[str, Any]:
        """The tree of map_fn(value) for the items that filter_fn(module, key, value) keeps.

        `key` is the path within the module that owns the value. What is dropped from inside a list or dict leaves {}.
        """
        map_fn = map_fn or (lambda value: value)
        is_leaf_fn = is_leaf_fn or (lambda module, key, value: not isinstance(value, (dict, list)))
        return {key: branch(self, key, value, filter_fn, map_fn, is_leaf_fn)
                for key, value in self.items() if filter_fn(self, key, value)}

    def parameters(self) -> dict[str, Any]:
        """The tree of all arrays."""
        return self.filter_and_map(self.valid_parameter_filter)

    def trainable_parameters(self) -> dict[str, Any]:
        """The tree of the arrays that are not frozen."""
        return self.filter_and_map(self.trainable_parameter_filter)

    def children(self) -> dict[str, Any]:
        """The tree of the modules directly below this one."""
        return self.filter_and_map(self.valid_child_filter, is_leaf_fn=lambda module, key, value: self.is_module(value))

    def leaf_modules(self) -> dict[str, Any]:
        """The tree of the modules that hold no other module."""
        def is_leaf(module, key, value):
            return self.is_module(value) and not tree_flatten(value.children(), is_leaf=self.is_module)

        return self.filter_and_map(self.valid_child_filter, is_leaf_fn=is_leaf)

    def update(self, parameters: dict[str, Any], strict: bool = True) -> Module:
        """Replaces the arrays at the paths that the tree `parameters` has; `strict`: all its paths must exist."""
        replace_arrays(self, parameters, strict)
        return self

    def apply(self, map_fn: Callable[[mx.array], mx.array],
              filter_fn: Callable[[Module, str, Any], bool] | None = None) -> Module:
        """Replaces each parameter (that filter_fn keeps) by map_fn of it."""
        self.update(self.filter_and_map(filter_fn or Module.valid_parameter_filter, map_fn))
        return self

    def update_modules(self, modules: dict[str, Any], strict: bool = True) -> Module:
        """Replaces the modules at the paths that the tree `modules` has; `strict`: there must be modules."""
        replace_modules(self, modules, strict)
        return self

    def apply_to_modules(self, apply_fn: Callable[[str, Module], Any]) -> Module:
        """Calls apply_fn(path, module) for this module and all below."""
        for name, module in self.named_modules():
            apply_fn(name, module)
        return self

    def modules(self) -> list[Module]:
        """This module and all below, in a list."""
        return [module for _, module in self.named_modules()]

    def named_modules(self) -> list[tuple[str, Module]]:
        """(path, module) of this module and all below; this one's path is empty."""
        found, pending = [], [("", self)]
        while pending:
            name, module = pending.pop()
            found.append((name, module))
            prefix = "." + name if name else ""
            pending += [pair for pair in tree_flatten(module.children(), prefix=prefix, is_leaf=self.is_module)
                        if self.is_module(pair[1])]
        return found

    def freeze(self, *, recurse: bool = True, keys: str | list[str] | None = None, strict: bool = False) -> Module:
        """No gradients for these parameters from now on.

        All parameters, or those named `keys`; of all modules below too, unless `recurse` is false. `strict`: a key that
        no module has is a KeyError.
        """
        modules = self.modules() if recurse else [self]
        names = self._named_keys(modules, keys, strict)
        for module in modules:
            module._no_grad.update(module._own_arrays() if names is None else names)
        return self

    def unfreeze(self, *, recurse: bool = True, keys: str | list[str] | None = None, strict: bool = False) -> Module:
        """Undoes freeze(), with the same arguments. Without keys nothing stays frozen."""
        modules = self.modules() if recurse else [self]
        names = self._named_keys(modules, keys, strict)
        for module in modules:
            module._no_grad.difference_update(list(module._no_grad) if names is None else names)
        return self

    @staticmethod
    def _named_keys(modules, keys, strict):
        """`keys` as a list, or None; with `strict` each is the name of an item of some module."""
        if keys is None:
            return None
        keys = keys if isinstance(keys, list) else [keys]
        if strict:
            for key in keys:
                if not any(key in module for module in modules):
                    raise KeyError(f"Module doesn't contain member {key}.")
        return keys

    def _own_arrays(self):
        """The paths of the arrays that are this module's and not those of a module below."""
        own = self.filter_and_map(lambda module, key, value: not isinstance(value, Module)
                                  and Module.valid_parameter_filter(module, key, value))
        return [path for path, _ in tree_flatten(own)]

    def _set_training_mode(self, mode: bool) -> None:
        self._training = mode

    def train(self, mode: bool = True) -> Module:
        """Puts this module and all below into training mode, or out of it: dropout and the like depend on it."""
        self.apply_to_modules(lambda _, module: module._set_training_mode(mode))
        return self

    def eval(self) -> Module:
        """train(False)."""
        return self.train(False)

    def set_dtype(self, dtype: mx.Dtype,
                  predicate: Callable[[mx.Dtype], bool] | None = lambda x: mx.issubdtype(x, mx.floating)) -> None:
        """Casts the parameters whose dtype the predicate accepts (all, if it is None); by default the floating ones."""
        accepts = predicate or (lambda _: True)
        self.apply(lambda x: x.astype(dtype) if accepts(x.dtype) else x)


def branch(module, key, value, filter_fn, map_fn, is_leaf_fn):
    """filter_and_map below `value`, which `module` owns at `key`."""
    if is_leaf_fn(module, key, value):
        return map_fn(value)
    if isinstance(value, Module):
        return {k: branch(value, k, v, filter_fn, map_fn, is_leaf_fn)
                for k, v in value.items() if filter_fn(value, k, v)}

    def element(k, v):
        path = f"{key}.{k}"
        return branch(module, path, v, filter_fn, map_fn, is_leaf_fn) if filter_fn(module, path, v) else {}

    if isinstance(value, dict):
        return {k: element(k, v) for k, v in value.items()}
    if isinstance(value, list):
        return [element(i, v) for i, v in enumerate(value)]
    raise RuntimeError("Unexpected leaf found while traversing the module")


def refuse(value):
    raise ValueError(f"Received invalid type: {type(value).__name__}.")


def matches(target, source, strict, what):
    """The (key, old, new) of the keys of `source` that `target` has; of others, if strict, a ValueError."""
    if isinstance(source, dict):
        for key, new in source.items():
            if key in target:
                yield key, target[key], new
            elif strict:
                raise ValueError(f'Module does not have {what} named "{key}".')
    elif isinstance(source, list):
        for i, new in enumerate(source):
            if i < len(target):
                yield i, target[i], new
            elif strict:
                raise ValueError(f"List index {i} is out of bounds for destination of length {len(target)}.")
    elif strict:
        refuse(source)


def replace_arrays(target, source, strict):
    for key, old, new in matches(target, source, strict, "parameter"):
        if not isinstance(old, mx.array):
            replace_arrays(old, new, strict)
        elif strict and not isinstance(new, mx.array):
            refuse(new)
        else:
            target[key] = new


def replace_modules(target, source, strict):
    for key, old, new in matches(target, source, strict, "sub-module"):
        if isinstance(old, Module) and isinstance(new, Module):
            target[key] = new
        elif isinstance(old, (dict, list)):
            replace_modules(old, new, strict)
        elif strict and new != {}:
            refuse(new)
