"""The array library, with the names of mlx.core.

The operations come from the engine's catalogue (csrc/ops/ops.def) through the extension: a new one needs no line here.
"""
import math as _math
import sys as _sys

from . import compiled as _compiled
from . import contraction as _contraction
from . import cuda, distributed, metal
from . import devices as _devices
from . import dtypes as _dtypes
from . import evaluation as _evaluation
from . import exported as _exported
from . import io as _io
from . import ordered as _ordered
from . import printing as _printing
from . import spectrogram as _spectrogram
from . import transforms as _transforms
from ._gomlx import *  # noqa: F403 - its __all__ is the catalogue
from ._gomlx import __all__ as _catalogue
from ._gomlx import fast, fft, linalg, random
from .arguments import name_public as _name_public
from .compiled import *  # noqa: F403
from .contraction import *  # noqa: F403
from .devices import *  # noqa: F403
from .dtypes import *  # noqa: F403
from .evaluation import *  # noqa: F403
from .exported import *  # noqa: F403
from .io import *  # noqa: F403
from .namespace_info import ArrayNamespaceInfo as __array_namespace_info__  # noqa: F401
from .ordered import *  # noqa: F403
from .printing import *  # noqa: F403
from .transforms import *  # noqa: F403

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
            "bitwise_right_shift": "right_shift", "concat": "concatenate", "cumulative_prod": "cumprod", "cumulative_sum": "cumsum", "empty": "zeros",
            "empty_like": "zeros_like", "permute_dims": "transpose", "pow": "power"}
globals().update({alias: globals()[name] for alias, name in _aliases.items()})
matrix_norm = linalg.norm
_name_public(vars(_spectrogram), ("stft", "istft"))
fft.stft, fft.istft = _spectrogram.stft, _spectrogram.istft

# So that `import gomlx.core.random` finds what `gomlx.core.random` is.
_submodules = {"cuda": cuda, "distributed": distributed, "fast": fast, "fft": fft, "linalg": linalg, "metal": metal,
               "random": random}
_sys.modules.update({f"{__name__}.{name}": module for name, module in _submodules.items()})

_parts = (_compiled, _contraction, _devices, _dtypes, _evaluation, _exported, _io, _ordered, _printing, _transforms)
__all__ = sorted({*_catalogue, *_aliases, *_submodules, "e", "euler_gamma", "inf", "matrix_norm", "nan", "newaxis",
                  "pi", *(name for part in _parts for name in part.__all__)})
for _module, _names in ((globals(), __all__), (vars(cuda), cuda.__all__), (vars(distributed), distributed.__all__),
                        (vars(metal), metal.__all__)):
    _name_public(_module, _names)
