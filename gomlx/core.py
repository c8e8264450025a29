"""The array library, with the names of mlx.core.

The operations come from the engine's catalogue (csrc/ops/ops.def) through the extension: a new one needs no line here.
"""
import math as _math
import sys as _sys

from . import cuda, devices as _devices, distributed, metal, printing as _printing
from ._gomlx import *  # noqa: F403 - its __all__ is the catalogue
from ._gomlx import __all__ as _names
from ._gomlx import fast, fft, linalg, random
from .devices import *  # noqa: F403
from .printing import *  # noqa: F403
from .compiled import *  # noqa: F403
from .compiled import __all__ as _compiled
from .transforms import *  # noqa: F403
from .transforms import __all__ as _transforms

e = _math.e
pi = _math.pi
inf = _math.inf
nan = _math.nan
euler_gamma = 0.5772156649015329
newaxis = None

# So that `import gomlx.core.random` finds what `gomlx.core.random` is.
for _module in (cuda, distributed, fast, fft, linalg, metal, random):
    _sys.modules[f"{__name__}.{_module.__name__.rpartition('.')[2]}"] = _module

# Second names, of the Array API: alias = function.
_aliases = {"concat": "concatenate", "empty": "zeros", "empty_like": "zeros_like", "permute_dims": "transpose"}
globals().update({alias: globals()[name] for alias, name in _aliases.items()})

__all__ = [*_names, *_devices.__all__, *_printing.__all__, *_transforms, *_compiled, *_aliases, "cuda", "distributed", "metal", "e",
           "euler_gamma", "inf", "nan", "newaxis", "pi"]
