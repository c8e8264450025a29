"""The differences between gomlx and MLX 0.32.4 that stay, each with its reason: what beside_mlx.py looks up."""
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass
class Known:
    """Which differences a reason explains; a part that is None explains any."""
    reason: str
    # a regular expression that fits the whole name of the step, or of one in a chain
    ops: str | None = None
    kinds: tuple | None = None
    modes: str | None = None            # a regular expression, found in the mode
    dtypes: set | None = None           # one of them is among those that the step reads
    detail: str | None = None           # a regular expression, found in the text: "ours for theirs", or an error's
    holds: Callable | None = None       # of a Difference: whether its numbers are such as the reason makes them

    def explains(self, d):
        return ((self.ops is None or any(re.fullmatch(self.ops, op) for op in d.op.split(" > ")))
                and (self.kinds is None or d.kind in self.kinds)
                and (self.modes is None or re.search(self.modes, d.mode) is not None)
                and (self.dtypes is None or bool(self.dtypes & set(d.dtypes)))
                and (self.detail is None or re.search(self.detail, d.detail) is not None)
                and (self.holds is None or self.holds(d)))


def both(d):
    """(ours, theirs) of a value that differs; NaN where they are not two real numbers."""
    found = re.match(r"(\S+) for (\S+) at ", d.detail)
    try:
        return (float(found[1]), float(found[2])) if found else (math.nan, math.nan)
    except ValueError:                  # complex
        return math.nan, math.nan


def reads_nan(d):
    return any(np.isnan(values).any() for values, _ in d.program.inputs)


def near_as_large_values_are_rounded(d):
    """Within 16 units in the last place of the largest value that is read, relative to theirs: the error of a logarithm
    is the relative one of what it is of."""
    ours, theirs = both(d)
    read = [np.abs(values[np.isfinite(values)]).max(initial=0) for values, _ in d.program.inputs]
    return abs(ours - theirs) <= 16 * 2.0**-23 * float(max(read, default=0)) * abs(theirs)


def within_what_a_sum_adds(d):
    """log(n) is the most that n values add to the largest of them, which a sum that stalls has."""
    ours, theirs = both(d)
    return abs(ours - theirs) <= math.log(max((values.size for values, _ in d.program.inputs), default=0) or 1)


def as_exp_of_float32_gives(d):
    """Theirs is infinite where ours is beyond float32, or both agree to what float32 holds of the exponent."""
    ours, theirs = both(d)
    if math.isinf(theirs):
        return ours > 2.4e38
    return ours > 0 and theirs > 0 and abs(ours - theirs) <= 2.0**-21 * max(1, abs(math.log(ours))) * theirs


def near_to_rounding(d):
    """As far apart as the last places of numbers near 10, of which differences were taken."""
    ours, theirs = both(d)
    return abs(ours - theirs) <= 2e-6


def products_pass_denormals(d):
    """A running product of what is read, along some axis and in one of its directions, is smaller than float32's normal
    numbers."""
    for values, _ in d.program.inputs:
        for lines in [values.reshape(-1)] + [np.moveaxis(values, axis, 0) for axis in range(values.ndim)]:
            with np.errstate(all="ignore"):
                products = [np.abs(np.cumprod(one.astype("D"), axis=0)) for one in (lines, lines[::-1])]
            if any(((p > 0) & (p < 2.0**-126)).any() for p in products):
                return True
    return False


# Found by the comparison itself: vmap on gomlx gives what the function gives on each of the batch, and MLX's does not.
LOOP = "MLX's vmap does not give what its function gives on each of the batch"

MLX_RAISES, GOMLX_RAISES, VALUE = ("MLX raises",), ("gomlx raises",), ("value",)
TRANSFORMED = "vjp|jvp|vmap"
INTEGERS = {"bool_", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"}
HALVES = {"float16", "bfloat16"}
NOT_FINITE = r"(nan|inf).* (for|at) |for \S*(nan|inf)"
# What gives truth values or indices.
DISCRETE = (r"all|any|argmin|argmax|argsort|equal|not_equal|less.*|greater.*|logical_.*|"
            r"is(nan|inf|finite|posinf|neginf|close)|"
            r"allclose|array_equal|searchsorted|count_nonzero|operator\.(eq|ne|lt|le|gt|ge)|random\..*")

KNOWN = [
    Known("MLX ends the process, or hangs: there is nothing to compare with", kinds=("MLX crashes",)),

    Known("each step of a chain agrees alone, and the chain gives to the bit what its steps give: roundings were "
          "carried on",
          kinds=("carried",)),

    # What MLX refuses.
    Known("gomlx has the gradient, tangent or batching rule that MLX lacks", kinds=MLX_RAISES, modes=TRANSFORMED,
          detail=r"[Nn]ot implemented|not yet implemented|Cannot calculate VJP with respect to|Cannot vmap over"
                 r"|Updates with shape|Type of cotangents does not match|does not support|not supported|Invalid axis "
                 r"\d{4,}"),
    Known("an update may have the shape of what is read, with the 1 of None; MLX refuses it", ops=r"\[\]=|at\..*",
          kinds=MLX_RAISES, detail="Cannot broadcast array of shape"),
    Known("nan_to_num of float64 is refused by MLX", ops="nan_to_num", kinds=MLX_RAISES, dtypes={"float64"}),
    Known("three-dimensional convolutions in groups are refused by MLX", ops="conv3d", kinds=MLX_RAISES,
          detail="groups"),
    Known("linear algebra of half precision is refused by MLX", ops=r"linalg\..*", kinds=MLX_RAISES,
          detail="must have type float32|Arrays must type|only.*float"),
    Known("argmax and argmin of an array without dimensions, with keepdims, fail on MLX", ops="argmax|argmin",
          kinds=MLX_RAISES, detail="max_size"),
    Known("axes of empty arrays are not checked by every function of MLX", ops="softmax|argmax|argmin",
          kinds=("gomlx raises", "error"), detail="IndexError|AxisError|out of range"),
    Known("median over no axes is refused by MLX", ops="median", kinds=MLX_RAISES, detail="start_axis"),
    Known("gomlx has the reflected operators & | ^: another error, or none", ops=r"operator\.(and_|or_|xor)",
          kinds=("error", "MLX raises"), detail="TypeError"),

    # What MLX computes otherwise.
    Known("softmax of integers: the dtype and all zeros on MLX, float32 on gomlx", ops="softmax", dtypes=INTEGERS),
    Known("MLX reduces integers without converting them where it has no kernel for the axes", ops="logsumexp",
          kinds=VALUE, dtypes=INTEGERS),
    Known("means, variances, norms and differences of integers overflow on MLX",
          ops=r"mean|var|std|linalg\.norm|isclose|allclose", kinds=VALUE, dtypes=INTEGERS),
    Known("sum and prod of small integers without dimensions keep their dtype on MLX", ops="sum|prod", kinds=("dtype",),
          dtypes=INTEGERS),
    Known("all and any over axes of which one is empty ignore the others on MLX", ops="all|any", kinds=VALUE,
          modes="eager|compile"),
    Known("quotient and remainder by zero of integers and bool are undefined",
          ops="divmod|floor_divide|remainder|operator.(mod|floordiv)",
          kinds=VALUE, dtypes=INTEGERS, modes="eager|compile"),
    Known("sums over an empty axis among several may read memory that nothing wrote on MLX",
          ops=r"sum|prod|max|min|mean|logsumexp|linalg\.norm", kinds=VALUE, detail=r"^(0|1|-?inf|nan)\S* for"),
    Known("the order within the parts of a partition is not specified", ops="partition|topk", kinds=VALUE),
    Known("a row whose values are equal, NaN or infinite has no scale: MLX's quantisation of it is undefined",
          ops="quantize"),
    Known("full: MLX keeps the dtype of an array value, or float32 of a scalar, where dtype asks for another",
          ops="full"),
    Known("an update through None, (), or ... alone takes the dtype of what is assigned on MLX", ops=r"\[\]=|at\..*",
          kinds=("dtype", "count")),
    Known("a view shows the last bits of what was rounded before it", ops="view", kinds=VALUE),
    Known("NaN is lost by cummax, cummin and by maxima and minima of updates on MLX; on gomlx it stays",
          ops=r"cummax|cummin|at\.maximum|at\.minimum", kinds=VALUE, detail="nan for"),
    Known("what is before the first of complex extremes is infinite in both parts on MLX, in the real one on gomlx",
          ops="cummax|cummin", kinds=VALUE, dtypes={"complex64"}, detail="inf"),
    Known("infinities and NaN in transforms and complex products: the parts that are NaN differ", kinds=VALUE,
          ops=r"fft\..*|.*matmul|addmm|inner|vecdot|tensordot|einsum|multiply|divide|operator\.(mul|truediv|pow)|"
              r"power|prod|cumprod",
          detail=NOT_FINITE),
    Known("MLX leaves padding out of a convolution, gomlx multiplies by its zeros: NaN and infinite weights tell",
          kinds=VALUE, ops=r"conv.*", detail=NOT_FINITE),
    Known("MLX's transposed convolution is wrong where the padding exceeds dilation * (kernel - 1)",
          ops=r"conv_transpose\dd"),
    Known("a kernel that is larger than the input is an error; MLX's conv3d reads on", ops=r"conv\dd",
          kinds=GOMLX_RAISES, detail="reaches over"),
    Known("erf of values below 1e-3 has a relative error of 2e-3 on MLX", ops="erf|nn.gelu", kinds=VALUE),
    Known("a product over nothing with c of one item is refused by MLX", ops="addmm", kinds=MLX_RAISES,
          detail="Cannot infer the shape of an empty array"),
    Known("logsumexp of infinite complex numbers is NaN on gomlx, infinite on MLX", kinds=VALUE, ops="logsumexp",
          dtypes={"complex64"}, detail=r"nan\S* for \S*inf"),
    Known("infinities in attention and in linear equations: the parts that are NaN differ", kinds=VALUE,
          ops=r"fast\.scaled_dot_product_attention|linalg\..*", detail=NOT_FINITE),
    Known("MLX rounds each step to half precision and overflows there; gomlx computes in float32", kinds=VALUE,
          dtypes=HALVES, ops=r"std|var|at\.multiply|sigmoid", modes="eager|compile|vmap"),
    Known("logcumsumexp of half precision stalls on MLX, which rounds each step to it; gomlx computes in float32",
          ops="logcumsumexp", kinds=VALUE, modes="^(eager|compile|vmap)$", dtypes=HALVES,
          holds=within_what_a_sum_adds),
    Known("running sums and products of half precision are rounded at each step on MLX, where sums stall; gomlx "
          "computes in float32", ops="cumsum|cumprod", kinds=VALUE, dtypes=HALVES),
    Known("exp is infinite above 88.37 on MLX, up to 88.72 it is finite on gomlx", ops="exp", kinds=VALUE,
          dtypes={"float32", "complex64"}, detail=r"e\+38\S* for \S*inf"),
    Known("exp of float64 is computed in float32 on MLX: infinite from e**88.37 on, seven digits below", ops="exp",
          kinds=VALUE, dtypes={"float64"}, holds=as_exp_of_float32_gives),
    Known("round of integers beyond float32's goes through floats on MLX", ops="round", kinds=VALUE, dtypes=INTEGERS),
    Known("addmm of two vectors: c of one item makes the result an array of one item on MLX", ops="addmm",
          kinds=GOMLX_RAISES, detail="does not broadcast to the product's shape"),

    Known("convolve of complex numbers is refused by MLX, or loses the imaginary parts of one of them", ops="convolve",
          dtypes={"complex64"}),
    Known("vecdot of as many dimensions each; MLX sums another axis than that of the shorter one", ops="vecdot",
          kinds=GOMLX_RAISES, detail="expected as many dimensions"),
    Known("sums and products out of range come back on gomlx; on MLX they stay infinite, or become NaN", kinds=VALUE,
          ops="sum|cumsum|prod|cumprod|mean|trace", detail=NOT_FINITE),
    Known("products that underflow on their way come back on gomlx; on MLX they stay 0, or have lost digits",
          kinds=VALUE, ops="prod|cumprod", holds=products_pass_denormals),

    # Gradients, tangents, batches.
    Known("divmod's gradient is 0 on MLX; gomlx has that of the remainder", ops="divmod", kinds=VALUE, modes="vjp|jvp"),
    Known("MLX's tangent of addmm leaves out alpha and beta", ops="addmm", kinds=VALUE, modes="jvp"),
    Known("truth values and indices have tangents and gradients on MLX, without meaning", ops=DISCRETE,
          modes="vjp|jvp"),
    Known("an array that a function returns twice gets one of its cotangents on MLX, their sum on gomlx",
          ops=r"atleast_\dd|broadcast_arrays|meshgrid|minmax", kinds=VALUE, modes="vjp"),
    Known("gradients of complex functions are multiplied by the conjugate of the derivative; of MLX's power by the "
          "derivative",
          ops=r"power|operator\.pow|at\.multiply|logcumsumexp", kinds=VALUE, modes="vjp|jvp",
          dtypes={"complex64"}),
    Known("logcumsumexp's gradient of large values: MLX subtracts the result from the cotangent's logarithm, which is "
          "rounded to the result's last place", ops="logcumsumexp", kinds=VALUE, modes="vjp|jvp", dtypes={"float32"},
          holds=near_as_large_values_are_rounded),
    Known("gradients of logcumsumexp at infinities: e**(inf - inf) is 1 on gomlx and NaN on MLX, which loses NaN of "
          "cotangents", ops="logcumsumexp", kinds=VALUE, modes="vjp|jvp", detail=NOT_FINITE),
    Known("arccosh below 1 is NaN and has no gradient; MLX's formula gives one", ops="arccosh", kinds=VALUE,
          modes="vjp|jvp", detail="nan for"),
    Known("activations at infinities and beyond exp's range: MLX's gradients are NaN", ops=r"nn\..*", kinds=VALUE,
          modes="vjp|jvp", detail="for nan"),
    Known("a row of attention that its mask leaves nothing has zero gradients; on MLX they are NaN",
          ops=r"fast\.scaled_dot_product_attention", kinds=VALUE, modes="vjp|jvp", detail="for nan"),
    Known("where extremes are equal the tangent is their mean on gomlx, that of the first on MLX",
          ops="max|min|minmax", kinds=VALUE, modes="jvp"),
    Known("updates by maxima and minima: gradients where NaN or equal values meet", ops=r"at\.(maximum|minimum)",
          kinds=VALUE, modes="vjp|jvp"),
    Known("what clip, max, where and rounding cut off has a gradient of 0; NaN comes through on MLX",
          ops="clip|maximum|minimum|where|relu6?|round|floor|ceil|trunc|sign|floor_divide", kinds=VALUE,
          modes="vjp|jvp", detail="^-?0.0 for nan"),
    Known("where has a gradient of 0 for what it did not choose; NaN comes through on MLX, in the sum over what was "
          "broadcast", ops="where", kinds=VALUE, modes="vjp", detail=r"^-?\d\S* for nan"),
    Known("the order of 0.0 and -0.0 is not specified, and what is divided by them has the sign of either",
          ops="sort|partition|topk", kinds=VALUE, modes="vjp|jvp", detail="^-?inf for -?inf"),
    Known("the tangent of irfft of an odd length, or of one item, fails on MLX", ops=r"fft\.irfft.*", kinds=MLX_RAISES,
          modes="jvp|vjp"),
    Known("take from an array without items is refused by MLX, though what is taken has none either", ops="take",
          kinds=MLX_RAISES, detail="non-empty take"),
    Known("tangents of maxima and minima of nothing, over an axis that is not empty, are refused by MLX",
          ops="max|min|minmax", kinds=MLX_RAISES, modes="jvp|vjp", detail="zero size array"),
    Known("the median of a row with NaN is that NaN, which has its gradient; on MLX others have it", ops="median",
          kinds=VALUE, modes="vjp|jvp", detail=r"for -?0\.0"),
    Known("a quotient's gradient cancels to nothing, or to the rounding of its terms", ops=r"divide|operator\.truediv",
          kinds=VALUE, modes="vjp|jvp", detail=r"^-?(0\.0|\S+e-0\d) for -?(0\.0|\S+e-0\d|0\.000\d+)"),
    Known("what cummax and cummin give from a NaN on is that NaN, which has their gradient; on MLX others have it, "
          "or none", ops="cummax|cummin", kinds=VALUE, modes="vjp|jvp", holds=reads_nan),
    Known("maxima and minima of NaN have no gradient; over no axes MLX has one", ops="max|min", kinds=VALUE,
          modes="vjp|jvp", detail="nan for"),
    Known("MLX rounds each step of a gradient to half precision, gomlx computes attention, norms, activations and "
          "angles in float32",
          ops=r"fast\..*|nn\..*|softmax|logsumexp|logcumsumexp|var|std|linalg\.norm|logaddexp|sigmoid|tanh|arctan2",
          kinds=VALUE, modes="vjp|jvp", dtypes=HALVES),
    Known("gradients of norms where weights are infinite: the parts that are NaN differ",
          ops=r"fast\.(rms|layer)_norm", kinds=VALUE, modes="vjp|jvp", detail=NOT_FINITE),
    Known("gradients of norms cancel down to the rounding of their terms", ops=r"fast\.(rms|layer)_norm", kinds=VALUE,
          modes="vjp|jvp", detail=r"(e-0[5-9]|^-?0\.000\d+) for"),
    Known("where one key has nearly all of a row's attention, gradients of scores cancel down to the rounding of their "
          "terms", ops=r"fast\.scaled_dot_product_attention", kinds=VALUE, modes="vjp|jvp", holds=near_to_rounding),
    Known("norms and attention of float64 are computed in float32 on MLX", ops=r"fast\..*", kinds=VALUE,
          dtypes={"float64"}),
    Known("what tril and triu leave out has a gradient of 0; NaN comes through on MLX", ops="tril|triu", kinds=VALUE,
          modes="vjp|jvp", detail="for nan"),
    Known("gradients of slices and updates of nothing fail on MLX", ops=r"at\..*|\[\]=?", kinds=MLX_RAISES,
          modes="vjp|jvp", detail=r"Shapes .*\b0\b.* cannot be broadcast|Cannot broadcast array of shape \(.*\b0\b"),
    Known("tangents and gradients of empty slices have another shape than the values on MLX", ops=r"\[\]=?",
          kinds=("shape",), modes="vjp|jvp"),
]


def reason(difference):
    """Why this difference stays, or None."""
    return next((known.reason for known in KNOWN if known.explains(difference)), None)
