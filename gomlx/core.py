"""The array library, with the names of mlx.core.

Everything comes from the engine's catalogue (csrc/ops/ops.def) through the extension: a new op needs no line here.
"""
import math as _math

from ._gomlx import *  # noqa: F403 - its __all__ is the catalogue
from ._gomlx import __all__ as _names
from .transforms import *  # noqa: F403
from .transforms import __all__ as _transforms

e = _math.e
pi = _math.pi
inf = _math.inf
nan = _math.nan
euler_gamma = 0.5772156649015329
newaxis = None

__all__ = [*_names, *_transforms, "e", "euler_gamma", "inf", "nan", "newaxis", "pi"]
