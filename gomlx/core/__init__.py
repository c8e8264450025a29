"""The array library, with the names of mlx.core.

The operations come from the engine's catalogue (csrc/ops/ops.def) through the extension: a new one needs no line here.
"""
import math as _math
import sys as _sys

from gomlx._base.arguments import name_public as _name_public
from gomlx._base.arguments import show_as_own as _show_as_own
from gomlx._gomlx import *  # noqa: F403 - its __all__ is the catalogue
from gomlx._gomlx import __all__ as _catalogue
from gomlx._gomlx import fast, fft, linalg, random
from gomlx.core import (_compile, _devices, _dtypes, _einsum, _evaluation, _export, _io, _printing, _sorting, _stft,
                        _transforms, cuda, distributed, metal)
from gomlx.core._compile import *  # noqa: F403
from gomlx.core._devices import *  # noqa: F403
from gomlx.core._dtypes import *  # noqa: F403
from gomlx.core._einsum import *  # noqa: F403
from gomlx.core._evaluation import *  # noqa: F403
from gomlx.core._export import *  # noqa: F403
from gomlx.core._io import *  # noqa: F403
from gomlx.core._namespace_info import ArrayNamespaceInfo as __array_namespace_info__  # noqa: F401
from gomlx.core._printing import *  # noqa: F403
from gomlx.core._sorting import *  # noqa: F403
from gomlx.core._transforms import *  # noqa: F403

__version__ = "0.32.4"    # of mlx.core, whose names and behaviour these are; gomlx's own is gomlx.__version__

e = _math.e
pi = _math.pi
inf = _math.inf
nan = _math.nan
euler_gamma = 0.5772156649015329
newaxis = None

# Second names, of the Array API: alias = function.
_aliases = {"acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
            "atan2": "arctan2", "atanh": "arctanh", "bitwise_left_shift": "left_shift",
            "bitwise_right_shift": "right_shift", "concat": "concatenate", "cumulative_prod": "cumprod",
            "cumulative_sum": "cumsum", "empty": "zeros",
            "empty_like": "zeros_like", "permute_dims": "transpose", "pow": "power"}
globals().update({alias: globals()[name] for alias, name in _aliases.items()})
matrix_norm = linalg.norm
_name_public(vars(_stft), ("stft", "istft"))
fft.stft, fft.istft = _stft.stft, _stft.istft
_show_as_own(fft.__name__, (fft.stft, fft.istft))

# So that `import gomlx.core.random` finds what `gomlx.core.random` is.
_submodules = {"cuda": cuda, "distributed": distributed, "fast": fast, "fft": fft, "linalg": linalg, "metal": metal,
               "random": random}
_sys.modules.update({f"{__name__}.{name}": module for name, module in _submodules.items()})

_parts = (_compile, _devices, _dtypes, _einsum, _evaluation, _export, _io, _printing, _sorting, _transforms)
__all__ = sorted({*_catalogue, *_aliases, *_submodules, "e", "euler_gamma", "inf", "matrix_norm", "nan", "newaxis",
                  "pi", *(name for part in _parts for name in part.__all__)})
for _module, _names in ((globals(), __all__), (vars(cuda), cuda.__all__), (vars(distributed), distributed.__all__),
                        (vars(metal), metal.__all__)):
    _name_public(_module, _names)
_show_as_own(__name__, [globals()[name] for part in _parts for name in part.__all__])
