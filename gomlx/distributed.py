"""gomlx.core.distributed under a shorter name."""
from gomlx.core.distributed import *  # noqa: F403
from gomlx.core.distributed import __all__ as __all__
