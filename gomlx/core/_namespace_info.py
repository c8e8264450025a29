"""What the array API standard asks a namespace about itself."""
from __future__ import annotations

from typing import Any

from gomlx import _gomlx
from gomlx.core import _devices as devices
from gomlx.core._dtypes import isdtype

_NAMES = ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "complex64",
          "float64")


class ArrayNamespaceInfo:
    """The standard's dtypes and devices; `gomlx.core.__array_namespace_info__()` makes one."""

    __slots__ = ()

    def capabilities(self) -> dict[str, Any]:
        """What array code may count on."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 10}

    def default_device(self) -> devices.Device:
        """The device that arrays are made on."""
        return devices.default_device()

    def devices(self) -> tuple[devices.Device, ...]:
        """Every device."""
        return (devices.Device(devices.cpu),)

    def default_dtypes(self, *, device: devices.Device | None = None) -> dict[str, _gomlx.Dtype]:
        """The dtype of each kind that arrays have unless told otherwise."""
        return {"real floating": _gomlx.float32, "complex floating": _gomlx.complex64, "integral": _gomlx.int32,
                "indexing": _gomlx.int32}

    def dtypes(self, *, device: devices.Device | None = None,
               kind: str | tuple[str, ...] | None = None) -> dict[str, _gomlx.Dtype]:
        """Dtypes by name: all of the standard's, or those of a kind, or of a tuple of kinds, as in isdtype."""
        every = {name.rstrip("_"): getattr(_gomlx, name) for name in _NAMES}
        return {name: dtype for name, dtype in every.items() if kind is None or isdtype(dtype, kind)}
