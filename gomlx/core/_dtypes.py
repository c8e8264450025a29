"""Functions of dtypes, with MLX's names: categories, limits, promotion."""
from __future__ import annotations

import enum
from typing import Any

from gomlx import _gomlx
from gomlx._gomlx import Dtype, array

_UNSIGNED = (_gomlx.uint8, _gomlx.uint16, _gomlx.uint32, _gomlx.uint64)
_SIGNED = (_gomlx.int8, _gomlx.int16, _gomlx.int32, _gomlx.int64)
_FLOATING = (_gomlx.float16, _gomlx.bfloat16, _gomlx.float32, _gomlx.float64)
_COMPLEX = (_gomlx.complex64,)


class DtypeCategory(enum.Enum):
    """Kinds of dtypes; issubdtype tells what belongs to them."""

    complexfloating = 0
    floating = 1
    inexact = 2
    signedinteger = 3
    unsignedinteger = 4
    integer = 5
    number = 6
    generic = 7

    def __repr__(self) -> str:
        return f"DtypeCategory.{self.name}"

    __str__ = __repr__


complexfloating = DtypeCategory.complexfloating
floating = DtypeCategory.floating
inexact = DtypeCategory.inexact
signedinteger = DtypeCategory.signedinteger
unsignedinteger = DtypeCategory.unsignedinteger
integer = DtypeCategory.integer
number = DtypeCategory.number
generic = DtypeCategory.generic

_PARENT = {complexfloating: inexact, floating: inexact, inexact: number, signedinteger: integer,
           unsignedinteger: integer, integer: number, number: generic, generic: None, _gomlx.bool_: generic,
           **dict.fromkeys(_UNSIGNED, unsignedinteger), **dict.fromkeys(_SIGNED, signedinteger),
           **dict.fromkeys(_FLOATING, floating), **dict.fromkeys(_COMPLEX, complexfloating)}
_KINDS = {"bool": (_gomlx.bool_,), "signed integer": _SIGNED, "unsigned integer": _UNSIGNED,
          "integral": _SIGNED + _UNSIGNED, "real floating": _FLOATING, "complex floating": _COMPLEX,
          "numeric": _SIGNED + _UNSIGNED + _FLOATING + _COMPLEX}


def _name(dtype):
    return repr(dtype).rpartition(".")[2]


def issubdtype(arg1: Dtype | DtypeCategory, arg2: Dtype | DtypeCategory) -> bool:
    """Whether a dtype or category is, or belongs to, another one."""
    for arg in (arg1, arg2):
        if not isinstance(arg, (Dtype, DtypeCategory)):
            raise ValueError(f"issubdtype: a Dtype or a DtypeCategory is needed, not {type(arg)!r}")
    while arg1 is not None and arg1 != arg2:
        arg1 = _PARENT[arg1]
    return arg1 is not None


def _dtype(function, value):
    if isinstance(value, Dtype):
        return value
    if isinstance(value, array):
        return value.dtype
    raise ValueError(f"{function}: an array or a Dtype is needed, not {type(value)!r}")


def result_type(*arrays_and_dtypes: array | Dtype) -> Dtype:
    """The dtype to which these arrays or dtypes are promoted together."""
    if not arrays_and_dtypes:
        raise ValueError("result_type: at least one array or dtype is needed")
    result, *others = (_dtype("result_type", value) for value in arrays_and_dtypes)
    for other in others:
        result = _gomlx._promote(result, other)
    return result


def can_cast(from_: array | Dtype, to: array | Dtype) -> bool:
    """Whether promotion of the two gives `to`."""
    return _gomlx._promote(_dtype("can_cast", from_), _dtype("can_cast", to)) == to


def isdtype(dtype: Dtype, kind: Dtype | str | tuple[Dtype | str, ...]) -> bool:
    """Whether a dtype is of a kind: a dtype, one of the array API standard's names, or a tuple of these."""
    if not isinstance(dtype, Dtype):
        raise ValueError(f"isdtype: a Dtype is needed, not {type(dtype)!r}")
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return dtype in _KINDS[kind]
    if isinstance(kind, Dtype):
        return dtype == kind
    raise ValueError(f"isdtype: kind must be a Dtype, one of {', '.join(map(repr, _KINDS))}, or a tuple of these, "
                     f"not {kind!r}")


class finfo:
    """The limits of a floating-point dtype: min, max, eps, smallest_normal, bits; of complex64 those of its parts."""

    __slots__ = ("bits", "dtype", "eps", "max", "min", "smallest_normal")
    _LIMITS = {_gomlx.float16: (16, 65504.0, 2.0**-10, 2.0**-14),
               _gomlx.bfloat16: (16, (2 - 2.0**-7) * 2.0**127, 2.0**-7, 2.0**-126),
               _gomlx.float32: (32, (2 - 2.0**-23) * 2.0**127, 2.0**-23, 2.0**-126),
               _gomlx.float64: (64, (2 - 2.0**-52) * 2.0**1023, 2.0**-52, 2.0**-1022)}

    dtype: Dtype
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float

    def __init__(self, dtype: Dtype) -> None:
        if not isinstance(dtype, Dtype):
            raise TypeError(f"finfo: a Dtype is needed, not {type(dtype)!r}")
        self.dtype = _gomlx.float32 if dtype == _gomlx.complex64 else dtype
        if self.dtype not in self._LIMITS:
            raise ValueError(f"finfo: {_name(dtype)} is not a floating-point dtype")
        self.bits, self.max, self.eps, self.smallest_normal = self._LIMITS[self.dtype]
        self.min = -self.max

    def __repr__(self) -> str:
        return f"finfo(min={self.min:g}, max={self.max:g}, dtype={_name(self.dtype)})"


class iinfo:
    """The limits of an integer dtype: min and max."""

    __slots__ = ("dtype", "max", "min")

    dtype: Dtype
    max: int
    min: int

    def __init__(self, dtype: Dtype) -> None:
        if not isinstance(dtype, Dtype):
            raise TypeError(f"iinfo: a Dtype is needed, not {type(dtype)!r}")
        if not issubdtype(dtype, integer):
            raise ValueError(f"iinfo: {_name(dtype)} is not an integer dtype")
        bits = 8 * dtype.size
        signed = dtype in _SIGNED
        self.dtype = dtype
        self.min = -(1 << bits - 1) if signed else 0
        self.max = (1 << bits - signed) - 1

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={_name(self.dtype)})"


class ArrayLike:
    """Any object that can become an array: one that has `__mlx_array__`."""

    def __init__(self, object: Any, /) -> None:
        self._object = object

    def __mlx_array__(self) -> array:
        return array(self._object)


__all__ = ["ArrayLike", "DtypeCategory", "can_cast", "complexfloating", "finfo", "floating", "generic", "iinfo",
           "inexact", "integer", "isdtype", "issubdtype", "number", "result_type", "signedinteger", "unsignedinteger"]
