"""mlx.core.cuda: whether there are NVIDIA's GPUs."""
from gomlx import _gomlx


def is_available() -> bool:
    """Whether there is a GPU to run on."""
    return _gomlx._device_count()[0] > 0


__all__ = ["is_available"]
