"""assert_type for a running program: a value against what a type checker was told of it."""
import collections.abc
import types
import typing


def matches(value, kind):
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is typing.Any:
        return True
    if kind is None or kind is type(None):
        return value is None
    if origin is typing.Literal:
        return value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(matches(value, one) for one in arguments)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return isinstance(value, tuple) and all(matches(one, arguments[0]) for one in value)
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(matches, value, arguments))
    if origin is list:
        return isinstance(value, list) and all(matches(one, arguments[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(matches(key, arguments[0]) and matches(one, arguments[1])
                                               for key, one in value.items())
    if origin is collections.abc.Callable:
        return callable(value)
    return getattr(kind, "_is_protocol", False) or isinstance(value, kind)


def assert_type(value, kind):
    assert matches(value, kind), f"{value!r:.200} is no {kind}"
    return value
