"""The layers, gathered from the files of this folder."""
from gomlx.nn.layers.activations import (
    CELU, ELU, GELU, GLU, HardShrink, HardTanh, Hardswish, LeakyReLU, LogSigmoid, LogSoftmax, Mish, PReLU, ReLU,
    ReLU2, ReLU6, SELU, Sigmoid, SiLU, Softmax, Softmin, Softplus, Softshrink, Softsign, Step, Tanh, celu, elu,
    gelu, gelu_approx, gelu_fast_approx, glu, hard_shrink, hard_tanh, hardswish, leaky_relu, log_sigmoid,
    log_softmax, mish, prelu, relu, relu2, relu6, selu, sigmoid, silu, softmax, softmin, softplus, softshrink,
    softsign, step, tanh,
)
from gomlx.nn.layers.base import Module
from gomlx.nn.layers.containers import Sequential
from gomlx.nn.layers.convolution import Conv1d, Conv2d, Conv3d
from gomlx.nn.layers.convolution_transpose import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from gomlx.nn.layers.distributed import (
    AllToShardedLinear, FullyShardedModule, QuantizedAllToShardedLinear, QuantizedShardedToAllLinear,
    ShardedToAllLinear, fully_shard,
)
from gomlx.nn.layers.dropout import Dropout, Dropout2d, Dropout3d
from gomlx.nn.layers.embedding import Embedding
from gomlx.nn.layers.linear import Bilinear, Identity, Linear
from gomlx.nn.layers.normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from gomlx.nn.layers.pooling import AvgPool1d, AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d
from gomlx.nn.layers.positional_encoding import ALiBi, RoPE, SinusoidalPositionalEncoding
from gomlx.nn.layers.quantized import QQLinear, QuantizedEmbedding, QuantizedLinear, quantize
from gomlx.nn.layers.recurrent import GRU, LSTM, RNN
from gomlx.nn.layers.transformer import (
    MultiHeadAttention, Transformer, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder,
    TransformerEncoderLayer,
)
from gomlx.nn.layers.upsample import Upsample

__all__ = [
    "ALiBi", "AllToShardedLinear", "AvgPool1d", "AvgPool2d", "AvgPool3d", "BatchNorm", "Bilinear", "CELU", "Conv1d",
    "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Dropout", "Dropout2d",
    "Dropout3d", "ELU", "Embedding", "FullyShardedModule", "GELU", "GLU", "GRU", "GroupNorm", "HardShrink",
    "HardTanh", "Hardswish", "Identity", "InstanceNorm", "LSTM", "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid",
    "LogSoftmax", "MaxPool1d", "MaxPool2d", "MaxPool3d", "Mish", "Module", "MultiHeadAttention", "PReLU",
    "QQLinear", "QuantizedAllToShardedLinear", "QuantizedEmbedding", "QuantizedLinear",
    "QuantizedShardedToAllLinear", "RMSNorm", "RNN", "ReLU", "ReLU2", "ReLU6", "RoPE", "SELU", "Sequential",
    "ShardedToAllLinear", "SiLU", "Sigmoid", "SinusoidalPositionalEncoding", "Softmax", "Softmin", "Softplus",
    "Softshrink", "Softsign", "Step", "Tanh", "Transformer", "TransformerDecoder", "TransformerDecoderLayer",
    "TransformerEncoder", "TransformerEncoderLayer", "Upsample", "celu", "elu", "fully_shard", "gelu",
    "gelu_approx", "gelu_fast_approx", "glu", "hard_shrink", "hard_tanh", "hardswish", "leaky_relu", "log_sigmoid",
    "log_softmax", "mish", "prelu", "quantize", "relu", "relu2", "relu6", "selu", "sigmoid", "silu", "softmax",
    "softmin", "softplus", "softshrink", "softsign", "step", "tanh",
]
