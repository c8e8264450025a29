"""The operations of a graph by the names and arguments of MLX's primitives, as programs that read exported graphs
expect them.

MLX splits what the engine does in one: operands that are smaller than the result are broadcast by a primitive of their
own, and a reduction keeps its axes, which a Squeeze takes away. `steps` gives the parts of one operation in order."""
from typing import NamedTuple


class Step(NamedTuple):
    """One primitive: its name and arguments in an exported graph, its label in a drawing, (shape, dtype) of its
    outputs.

    It reads what the operation reads; one that has an `operand` reads that alone, and its output replaces it in the
    steps that follow; after any other step but the last its output is all that is read."""
    name: str
    arguments: list
    outputs: list
    label: str
    operand: int | None = None


_LABELS = {
    "arcsin": "ArcSin", "arccos": "ArcCos", "arctan": "ArcTan", "arcsinh": "ArcSinh", "arccosh": "ArcCosh",
    "arctanh": "ArcTanh", "erfinv": "ErfInv", "logaddexp": "LogAddExp", "arctan2": "ArcTan2", "argsort": "ArgSort",
    "argpartition": "ArgPartition", "arg_reduce": "ArgReduce", "addmm": "AddMM", "astype": "AsType", "where": "Select",
    "conv": "Convolution", "fft": "FFT", "qr": "QRF", "svd": "SVD", "lu": "LUF", "broadcast_to": "Broadcast",
    "take_along_axis": "GatherAxis", "scatter_along": "ScatterAxis", "gather_mm": "GatherMM", "logsumexp": "LogSumExp",
    "searchsorted": "SearchSorted",
}
_REDUCTIONS = {"all": 0, "any": 1, "sum": 2, "prod": 3, "min": 4, "max": 5}
_SCANS = {"cummax": 0, "cummin": 1, "cumsum": 2, "cumprod": 3, "logcumsumexp": 4}
_BITWISE = {"bitwise_and": 0, "bitwise_or": 1, "bitwise_xor": 2, "left_shift": 3, "right_shift": 4}
_LOGARITHMS = {"log2": 0, "log10": 1, "log": 2}
_BROADCASTING = {"add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power", "maximum", "minimum",
                 "logaddexp", "arctan2", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
                 "logical_and", "logical_or", "logical_xor", "where", *_BITWISE}


def _label(name):
    return _LABELS.get(name) or "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _bits(mask):
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def _as_state(name, parameters, outputs):
    """(name, arguments) where they are not the label and the parameters."""
    (shape, dtype), last = outputs[0], len(outputs[0][0]) - 1
    if name in _REDUCTIONS:
        return "Reduce", [_REDUCTIONS[name], _bits(parameters[0])]
    if name in _SCANS:
        return "Scan", [_SCANS[name], parameters[0], bool(parameters[1]), not parameters[2]]
    if name in _BITWISE:
        return "BitwiseBinary", [_BITWISE[name]]
    if name in _LOGARITHMS:
        return "Log", [_LOGARITHMS[name]]
    if name in _BROADCASTING:
        return _label(name), [False] if name == "equal" else []
    match name:
        case "arg_reduce": arguments = [int(parameters[2]), parameters[0]]
        case "sqrt": arguments = [False]
        case "rsqrt": return "Sqrt", [True]
        case "softmax": arguments = [False]
        case "logsumexp" | "full": arguments = []
        case "sort" | "argsort": arguments = [last]
        case "partition" | "argpartition": arguments = [parameters[0], last]
        case "astype" | "view": arguments = [dtype]
        case "broadcast_to" | "reshape": arguments = [shape]
        case "unflatten": arguments = [parameters[0], tuple(parameters[2][:parameters[1]])]
        case "expand_dims" | "squeeze": arguments = [_bits(parameters[0])]
        case "slice": arguments = [tuple(parameters[0][k::3]) for k in range(3)]
        case "take_along_axis": arguments = [parameters[0] % len(shape)]
        case "scatter_along": arguments = [1 - parameters[1], parameters[0] % len(shape)]
        case "pad": arguments = [list(range(len(shape))), tuple(parameters[0][::2]), tuple(parameters[0][1::2])]
        case "quantized_matmul": arguments = [parameters[2], parameters[1], parameters[0], bool(parameters[3])]
        case "conv": arguments = [*(list(part[:len(shape) - 2]) for part in parameters[1:6]), parameters[0], False]
        case "arange": arguments = [parameters[0], parameters[0] + parameters[1] * parameters[2], parameters[1]]
        case "svd" | "cholesky" | "searchsorted": arguments = [bool(parameters[0])]
        case "eigh": arguments = ["U" if parameters[1] else "L", bool(parameters[0])]
        case _: arguments = parameters
    return _label(name), arguments


def steps(name, parameters, inputs, outputs):
    """The primitives of one operation, by its name here, its parameters, and (shape, dtype) of its inputs (None:
    absent) and outputs."""
    (shape, dtype), label = outputs[0], _label(name)
    if name == "fused":
        name = label = "Compiled" + "".join(map(_label, parameters))
        return [Step(name, [], outputs, label)]
    own, arguments = _as_state(name, parameters, outputs)
    if name in _BROADCASTING:
        spread = [Step("Broadcast", [shape], [(shape, x[1])], "Broadcast", k) for k, x in enumerate(inputs)
                  if x is not None and x[0] != shape]
        return [*spread, Step(own, arguments, outputs, label)]
    if name in _REDUCTIONS or name in ("logsumexp", "arg_reduce"):
        axes = [parameters[0]] if name == "arg_reduce" else _bits(parameters[0])
        kept = tuple(1 if i in axes else n for i, n in enumerate(inputs[0][0]))
        whole = Step(own, arguments, [(kept, dtype)], label)
        return [whole] if kept == shape else [whole, Step("Squeeze", [axes], outputs, "Squeeze")]
    return [Step(own, arguments, outputs, label)]
