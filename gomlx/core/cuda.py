"""mlx.core.cuda: NVIDIA's GPUs, which this build does not use."""


def is_available() -> bool:
    """Whether there is a CUDA device to run on: no."""
    return False


__all__ = ["is_available"]
