"""Neural networks over gomlx.core, with the names of mlx.nn: modules, layers, losses, initialisers."""
from gomlx._base.arguments import name_public
from gomlx.nn import init, layers, losses, utils
from gomlx.nn.layers import *  # noqa: F403 - its __all__ is the list
from gomlx.nn.layers import __all__ as _layers
from gomlx.nn.layers import (
    activations, base, containers, convolution, convolution_transpose, distributed, dropout, embedding, linear,
    normalization, pooling, positional_encoding, quantized, recurrent, transformer, upsample,
)
from gomlx.nn.utils import average_gradients, value_and_grad

__all__ = [*_layers, "average_gradients", "init", "losses", "value_and_grad"]
name_public(globals(), __all__)
