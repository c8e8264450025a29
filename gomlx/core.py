"""MLX's array API: `import gomlx.core as mx`. The names are the engine's own, from its catalogue of ops."""
from gomlx._gomlx import *  # noqa: F403
from gomlx._gomlx import __all__  # noqa: F401
