/* op_docs.h - the rest of the docstrings of ops.def, after the line that a row has: DOC_<name> of an OP or a HAND row,
 * and what UNARY, BINARY and REDUCE rows share. A blank line, the arguments, one a line, what is returned where the
 * row's line does not tell it, and the errors. `stream` is left out: it is accepted everywhere, and has no effect on a
 * CPU. */
#ifndef GOMLX_PY_OP_DOCS_H
#define GOMLX_PY_OP_DOCS_H

#define DOC_UNARY                                                                                                      \
    "\n\na   an array, or a number"                                                                                    \
    "\n\nReturns an array of a's shape. Functions with a fractional value make float32 of integers and\n"              \
    "bool; floating point and complex64 keep their dtype. ValueError where a function has no complex64."
#define DOC_BINARY                                                                                                     \
    "\n\na, b   arrays or numbers, broadcast against each other. Dtypes are promoted; a Python number\n"               \
    "       takes the array's"                                                                                         \
    "\n\nReturns an array of the common shape. ValueError for shapes that do not broadcast, or dtypes\n"               \
    "that the function does not take (RuntimeError of the bitwise ones)."
#define DOC_REDUCE                                                                                                     \
    "\n\na          an array\n"                                                                                        \
    "axis       an int, several, or None for all\n"                                                                    \
    "keepdims   reduced axes stay, with size 1"                                                                        \
    "\n\nReturns an array without these axes. AxisError for an axis that a does not have; ValueError for\n"            \
    "max and min of no elements."

/* ---- arguments that many have ---- */
#define ONE_AXIS "an int; None: of the flattened array"
#define SCAN                                                                                                           \
    "\n\na           an array\n"                                                                                       \
    "axis        " ONE_AXIS "\nreverse     from the end of the axis\n"                                                 \
    "inclusive   whether an element counts itself; else it has what comes before it\n"
#define SCAN_DTYPE "dtype       of the result; None: a's, int32 or uint32 of bool and small integers\n"
#define SHAPE_ "an int or ints"
#define SQUARE "\n\na   [..., n, n], float32 or float64; other dtypes and shapes are ValueError\n"
#define SYMMETRIC                                                                                                      \
    "\n\na      [..., n, n], float32, float64 or complex64; other dtypes and shapes are ValueError\n"                  \
    "UPLO   'L' or 'U': the triangle that is read\n"

/* ---- made of nothing ---- */
#define DOC_arange                                                                                                     \
    "\n\nstart   the first value; alone it is stop, and start is 0\n"                                                  \
    "stop    not reached\n"                                                                                            \
    "step    may be negative; ValueError for 0\n"                                                                      \
    "dtype   None: int32 when all are ints, else float32"                                                              \
    "\n\nReturns [ceil((stop - start) / step)]."
#define DOC_full                                                                                                       \
    "\n\nshape   " SHAPE_ "\nvals    a number or an array that broadcasts to shape\n"                                  \
    "dtype   None: that of vals"
#define DOC_full_like                                                                                                  \
    "\n\na       an array, whose shape is taken\n"                                                                     \
    "vals    a number or an array that broadcasts to that shape\ndtype   None: a's"
#define DOC_zeros                                                                                                      \
    "\n\nshape   " SHAPE_ "; ValueError for a negative one\n"                                                          \
    "dtype   None: float32"
#define DOC_ones DOC_zeros
#define DOC_zeros_like                                                                                                 \
    "\n\na       an array\n"                                                                                           \
    "dtype   None: a's"
#define DOC_ones_like DOC_zeros_like
#define DOC_eye                                                                                                        \
    "\n\nn, m    rows and columns; m None: n\n"                                                                        \
    "k       0 is the main diagonal, above it is positive\n"                                                           \
    "dtype   None: float32"
#define DOC_identity                                                                                                   \
    "\n\nn       rows and columns\n"                                                                                   \
    "dtype   None: float32"
#define DOC_tri DOC_eye
#define DOC_tril                                                                                                       \
    "\n\nx   [..., n, m]; ValueError for fewer axes\n"                                                                 \
    "k   0 is the main diagonal, above it is positive"
#define DOC_triu DOC_tril
#define DOC_linspace                                                                                                   \
    "\n\nstart, stop   numbers\n"                                                                                      \
    "num           how many, 0 or more\n"                                                                              \
    "endpoint      whether stop is the last of them\ndtype         None: float32"
#define DOC_meshgrid                                                                                                   \
    "\n\narrays     vectors\n"                                                                                         \
    "sparse     each array keeps size 1 along the other axes\n"                                                        \
    "indexing   'xy' (the first two axes swapped) or 'ij'"                                                             \
    "\n\nReturns a list, an array for each vector."
#define DOC_bartlett                                                                                                   \
    "\n\nM   how many values"                                                                                          \
    "\n\nReturns float32 [M]."
#define DOC_hanning DOC_bartlett
#define DOC_hamming DOC_bartlett
#define DOC_blackman DOC_bartlett

/* ---- another shape ---- */
#define DOC_astype                                                                                                     \
    "\n\na       an array\n"                                                                                           \
    "dtype   an mx dtype; None is TypeError"
#define DOC_reshape                                                                                                    \
    "\n\na       an array\n"                                                                                           \
    "shape   " SHAPE_ ", of which one may be -1: what is left"                                                         \
    "\n\nNothing is copied where strides allow it. ValueError when the sizes differ."
#define DOC_transpose                                                                                                  \
    "\n\na      an array\n"                                                                                            \
    "axes   ints, each axis once: axis i of the result is axes[i] of a. None: reversed"                                \
    "\n\nNothing is copied. ValueError for an axis that is given twice, AxisError for one that a does not\n"           \
    "have."
#define DOC_broadcast_to                                                                                               \
    "\n\na       an array\n"                                                                                           \
    "shape   " SHAPE_ "\n\nValueError when a does not broadcast to it."
#define DOC_flatten                                                                                                    \
    "\n\na                     an array\n"                                                                             \
    "start_axis, end_axis   the first and last that become one"
#define DOC_unflatten                                                                                                  \
    "\n\na       an array\n"                                                                                           \
    "axis    the one that is cut\n"                                                                                    \
    "shape   its new sizes"                                                                                            \
    "\n\nValueError when their product is not the axis' size."
#define DOC_squeeze                                                                                                    \
    "\n\na      an array\n"                                                                                            \
    "axis   an int, several, or None for all of size 1"                                                                \
    "\n\nValueError for an axis of another size."
#define DOC_expand_dims                                                                                                \
    "\n\na      an array\n"                                                                                            \
    "axis   an int or ints: where the new axes are in the result"
#define DOC_matrix_transpose                                                                                           \
    "\n\na   [..., n, m]"                                                                                              \
    "\n\nReturns [..., m, n], without a copy. ValueError for fewer than two axes."
#define DOC_moveaxis                                                                                                   \
    "\n\na             an array\n"                                                                                     \
    "source        the axis that moves\n"                                                                              \
    "destination   its index in the result"
#define DOC_swapaxes                                                                                                   \
    "\n\na              an array\n"                                                                                    \
    "axis1, axis2   the two"
#define DOC_atleast_1d "\n\narys   arrays; several give a list"
#define DOC_atleast_2d DOC_atleast_1d
#define DOC_atleast_3d DOC_atleast_1d
#define DOC_broadcast_arrays                                                                                           \
    "\n\narrays   arrays"                                                                                              \
    "\n\nReturns a list of them, all of one shape. ValueError when they do not broadcast."
#define DOC_broadcast_shapes                                                                                           \
    "\n\nshapes   tuples of ints"                                                                                      \
    "\n\nReturns a tuple. ValueError when they do not broadcast."
#define DOC_view                                                                                                       \
    "\n\na       an array\n"                                                                                           \
    "dtype   that its bytes are read as"                                                                               \
    "\n\nValueError when the bytes of the last axis are not a multiple of the item size."
#define DOC_as_strided                                                                                                 \
    "\n\na         an array, taken row-major\n"                                                                        \
    "shape     of the result; None: a's\n"                                                                             \
    "strides   in elements; None: row-major\n"                                                                         \
    "offset    of the first element"                                                                                   \
    "\n\nValueError for elements outside of a."
#define DOC_contiguous                                                                                                 \
    "\n\na                 an array\n"                                                                                 \
    "allow_col_major   column-major memory is good too"

/* ---- parts, and arrays joined ---- */
#define DOC_slice                                                                                                      \
    "\n\na               an array\n"                                                                                   \
    "start_indices   an int array, one for each of axes\n"                                                             \
    "axes            the sliced axes\n"                                                                                \
    "slice_size      the result's shape"                                                                               \
    "\n\nStarts are clamped so that the region is inside a."
#define DOC_slice_update                                                                                               \
    "\n\na               an array\n"                                                                                   \
    "update          what is written, of its dtype\n"                                                                  \
    "start_indices   an int array, one for each of axes\n"                                                             \
    "axes            the axes that it counts in"                                                                       \
    "\n\nReturns a new array; a stays."
#define DOC_concatenate                                                                                                \
    "\n\narrays   a list of arrays, equal in all axes but one\n"                                                       \
    "axis     that one; None flattens them first"                                                                      \
    "\n\nValueError for none, or for shapes that differ elsewhere."
#define DOC_stack                                                                                                      \
    "\n\narrays   a list of arrays of one shape\n"                                                                     \
    "axis     where the new one is in the result"                                                                      \
    "\n\nValueError when shapes differ."
#define DOC_split                                                                                                      \
    "\n\na                     an array\n"                                                                             \
    "indices_or_sections   an int: that many parts of one size; ints: a cut before each index\n"                       \
    "axis                  which one is cut"                                                                           \
    "\n\nReturns a list. ValueError when the number does not divide the axis."
#define DOC_unstack                                                                                                    \
    "\n\nx      an array\n"                                                                                            \
    "axis   the one that goes"                                                                                         \
    "\n\nReturns a tuple."
#define DOC_tile                                                                                                       \
    "\n\na      an array\n"                                                                                            \
    "reps   an int or ints; missing ones on either side are 1"
#define DOC_repeat                                                                                                     \
    "\n\narray     an array\n"                                                                                         \
    "repeats   how often, 0 or more\n"                                                                                 \
    "axis      " ONE_AXIS
#define DOC_pad                                                                                                        \
    "\n\na                 an array\n"                                                                                 \
    "pad_width         an int, a pair (before, after), or a pair for each axis\n"                                      \
    "mode              'constant', 'edge', 'reflect' or 'symmetric'\n"                                                 \
    "constant_values   a number or a 0-d array, for 'constant'"                                                        \
    "\n\nValueError for another mode, or 'edge' of an empty axis."
#define DOC_flip                                                                                                       \
    "\n\na      an array\n"                                                                                            \
    "axis   an int, several, or None for all"
#define DOC_roll                                                                                                       \
    "\n\na       an array\n"                                                                                           \
    "shift   an int, or one for each axis; to higher indices when positive\n"                                          \
    "axis    an int or ints; None: the flattened array, in a's shape"
#define DOC_depends                                                                                                    \
    "\n\ninputs         an array, or a list of them\n"                                                                 \
    "dependencies   likewise"                                                                                          \
    "\n\nReturns inputs, as they were given."
#define DOC_diag                                                                                                       \
    "\n\na   [n], or [n, m]; ValueError for other numbers of axes\n"                                                   \
    "k   0 is the main diagonal, above it is positive"                                                                 \
    "\n\nReturns [n + |k|, n + |k|] of a vector, a vector of a matrix."
#define DOC_diagonal                                                                                                   \
    "\n\na              an array of at least two axes\n"                                                               \
    "offset         0 is the main diagonal, above it is positive\n"                                                    \
    "axis1, axis2   the axes of the matrices"
#define DOC_trace DOC_diagonal "\ndtype          of the sum; None: a's, int32 or uint32 of bool and small integers"
#define DOC_diff                                                                                                       \
    "\n\na      an array\n"                                                                                            \
    "n      how often, 0 or more\n"                                                                                    \
    "axis   which one; it loses n items"

/* ---- order ---- */
#define DOC_sort                                                                                                       \
    "\n\na      an array of any dtype\n"                                                                               \
    "axis   " ONE_AXIS
#define DOC_argsort DOC_sort
#define DOC_partition                                                                                                  \
    "\n\na      an array\n"                                                                                            \
    "kth    an int; negative ones count from the end\n"                                                                \
    "axis   " ONE_AXIS "\n\nValueError for a kth that the axis does not have."
#define DOC_argpartition DOC_partition
#define DOC_topk                                                                                                       \
    "\n\na      an array\n"                                                                                            \
    "k      how many\n"                                                                                                \
    "axis   " ONE_AXIS "\n\nValueError when k is more than the axis has."
#define DOC_searchsorted                                                                                               \
    "\n\nsorted_sequence   [n], ascending\n"                                                                           \
    "values            an array of any shape\n"                                                                        \
    "side              'left' or 'right'\n\nReturns uint32 of the shape of values, from 0 to n."
#define DOC_argmax                                                                                                     \
    "\n\na          an array\n"                                                                                        \
    "axis       " ONE_AXIS "\nkeepdims   the axis stays, with size 1"                                                  \
    "\n\nValueError for no elements."
#define DOC_argmin DOC_argmax
#define DOC_minmax                                                                                                     \
    "\n\na          an array\n"                                                                                        \
    "axis       an int, several, or None for all\n"                                                                    \
    "keepdims   reduced axes stay, with size 1"                                                                        \
    "\n\nReturns two arrays. ValueError for no elements."

/* ---- sums along an axis ---- */
#define DOC_cumsum SCAN SCAN_DTYPE
#define DOC_cumprod SCAN SCAN_DTYPE
#define DOC_cummax SCAN
#define DOC_cummin SCAN
#define DOC_logcumsumexp SCAN
#define DOC_var                                                                                                        \
    "\n\na            an array; integers are computed in float32\n"                                                    \
    "axis         an int, several, or None for all\n"                                                                  \
    "keepdims     reduced axes stay, with size 1\n"                                                                    \
    "ddof         taken off the count\n"                                                                               \
    "correction   the same by the Array API's name"
#define DOC_std DOC_var
#define DOC_count_nonzero                                                                                              \
    "\n\na          an array; NaN is not zero\n"                                                                       \
    "axis       an int, several, or None for all\n"                                                                    \
    "keepdims   reduced axes stay, with size 1"                                                                        \
    "\n\nReturns int32."
#define DOC_softmax                                                                                                    \
    "\n\na         an array; integers give float32\n"                                                                  \
    "axis      an int, several, or None for all\n"                                                                     \
    "precise   accepted: sums are in float32 in any case"

/* ---- choosing ---- */
#define DOC_where                                                                                                      \
    "\n\ncondition   bool, or anything that is true or false\n"                                                        \
    "x, y        arrays or numbers; dtypes are promoted"                                                               \
    "\n\nAll three broadcast against each other; ValueError when they do not."
#define DOC_take                                                                                                       \
    "\n\na         an array\n"                                                                                         \
    "indices   an int or an integer array; negative ones count from the end\n"                                         \
    "axis      " ONE_AXIS                                                                                              \
    "\n\nReturns a's shape with the axis replaced by the shape of indices. ValueError for indices that\n"              \
    "are not integers."
#define DOC_take_along_axis                                                                                            \
    "\n\na         an array\n"                                                                                         \
    "indices   integers, of as many axes as a, broadcasting but along axis\n"                                          \
    "axis      " ONE_AXIS "\n\nReturns an array of the shape of indices."
#define DOC_put_along_axis                                                                                             \
    "\n\na         an array\n"                                                                                         \
    "indices   integers, of as many axes as a\n"                                                                       \
    "values    an array that broadcasts to indices\n"                                                                  \
    "axis      " ONE_AXIS "\n\nReturns a new array; a stays."
#define DOC_clip                                                                                                       \
    "\n\na              an array\n"                                                                                    \
    "a_min, a_max   numbers, arrays, or None; ValueError when both are None"
#define DOC_round                                                                                                      \
    "\n\na          an array; integers stay\n"                                                                         \
    "decimals   how many; negative ones are digits before the point"
#define DOC_nan_to_num                                                                                                 \
    "\n\na                an array; integers stay\n"                                                                   \
    "nan              what NaN becomes\n"                                                                              \
    "posinf, neginf   what the infinities become"
#define DOC_divmod                                                                                                     \
    "\n\na, b   arrays or numbers, broadcast against each other"                                                       \
    "\n\nReturns a list of two arrays."
#define DOC_isclose                                                                                                    \
    "\n\na, b        arrays, broadcast against each other\n"                                                           \
    "rtol, atol   the relative and the absolute tolerance\n"                                                           \
    "equal_nan    whether NaN is close to NaN"                                                                         \
    "\n\nReturns bool."
#define DOC_allclose                                                                                                   \
    "\n\na, b        arrays, broadcast against each other\n"                                                           \
    "rtol, atol   the relative and the absolute tolerance\n"                                                           \
    "equal_nan    whether NaN is close to NaN"                                                                         \
    "\n\nReturns a 0-d bool array."
#define DOC_array_equal                                                                                                \
    "\n\na, b        arrays\n"                                                                                         \
    "equal_nan   whether NaN equals NaN"                                                                               \
    "\n\nReturns a 0-d bool array; False for shapes that differ."

/* ---- products ---- */
#define FLOATS "ValueError for integers and bool, and for shapes that do not fit."
#define DOC_matmul                                                                                                     \
    "\n\na   [..., m, k], or a vector [k], which counts as one row\n"                                                  \
    "b   [..., k, n], or a vector [k], which counts as one column"                                                     \
    "\n\nReturns [..., m, n] in the promoted dtype, summed in float32 (float64 of float64); an axis that\n"            \
    "a vector stood for is gone. " FLOATS
#define DOC_addmm                                                                                                      \
    "\n\nc             broadcasts to the product\n"                                                                    \
    "a, b          as of matmul\n"                                                                                     \
    "alpha, beta   numbers; with 0 the factor beside is not read"                                                      \
    "\n\n" FLOATS
#define DOC_inner                                                                                                      \
    "\n\na, b   arrays whose last axes have one size; a number multiplies"                                             \
    "\n\nReturns a.shape[:-1] + b.shape[:-1]. " FLOATS
#define DOC_outer "\n\na, b   arrays"
#define DOC_vecdot                                                                                                     \
    "\n\na, b   arrays of as many axes, which broadcast but along axis\n"                                              \
    "axis   which one is summed\n\nValueError for other shapes."
#define DOC_tensordot                                                                                                  \
    "\n\na, b   arrays\n"                                                                                              \
    "axes   an int, or a pair of lists of axes"                                                                        \
    "\n\n" FLOATS
#define DOC_kron "\n\na, b   arrays; the one with fewer axes gets leading ones of size 1"
#define DOC_gather_mm                                                                                                  \
    "\n\na, b                       [..., m, k] and [..., k, n]\n"                                                     \
    "lhs_indices, rhs_indices   integers, broadcast against each other; None: each matrix in its\n"                    \
    "                           order\n"                                                                               \
    "sorted_indices            a promise that rhs_indices ascend; it changes no result"                                \
    "\n\nReturns the shape of the indices, then [m, n]. IndexError when evaluated where an index is out\n"             \
    "of range. " FLOATS
#define DOC_segmented_mm                                                                                               \
    "\n\na          [m, k]\n"                                                                                          \
    "b          [k, n]\n"                                                                                              \
    "segments   integers [..., 2], starts and ends within k"                                                           \
    "\n\nReturns segments.shape[:-1] + [m, n]."
#define DOC_block_masked_mm                                                                                            \
    "\n\na, b         as of matmul\n"                                                                                  \
    "block_size   rows and columns of a block\n"                                                                       \
    "mask_out     [..., m / block, n / block], of the product\n"                                                       \
    "mask_lhs     [..., m / block, k / block], of a\n"                                                                 \
    "mask_rhs     [..., k / block, n / block], of b"                                                                   \
    "\n\nBlocks at a mask's False are zeros. " FLOATS
#define DOC_hadamard_transform                                                                                         \
    "\n\na       an array; ValueError for a last axis of another size\n"                                               \
    "scale   a number; None: 1 / sqrt(n)"

/* ---- convolutions ---- */
#define CONV_FOR(weight, how)                                                                                          \
    "\n\ninput      [N, ..., C_in], floating point\n"                                                                  \
    "weight     " weight "\nstride     an int, or one for each spatial axis\n"                                         \
    "padding    " how "\n"
#define CONV                                                                                                           \
    CONV_FOR("[C_out, ..., C_in / groups]", "zeros around each spatial axis: an int, or one for each")                 \
    "dilation   distance of the weight's taps\n"                                                                       \
    "groups     channels are cut into that many; it divides C_in and C_out\n"
#define CONV_RESULT "\nReturns [N, ..., C_out]. ValueError for channels that do not match, and for integers."
#define DOC_conv_general                                                                                               \
    CONV_FOR("[C_out, ..., C_in / groups]", "zeros around each spatial axis, as above")                                \
    "kernel_dilation, input_dilation   distance of the weight's and of the input's items\n"                            \
    "groups     channels are cut into that many\n"                                                                     \
    "flip       convolution in the mathematical sense, with the weight reversed\n" CONV_RESULT
#define DOC_conv1d                                                                                                     \
    CONV                                                                                                               \
    CONV_RESULT
#define DOC_conv2d                                                                                                     \
    CONV                                                                                                               \
    CONV_RESULT
#define DOC_conv3d                                                                                                     \
    CONV                                                                                                               \
    CONV_RESULT
#define CONV_TRANSPOSE                                                                                                 \
    CONV                                                                                                               \
    "output_padding   items added at the end of each spatial axis of the result\n" CONV_RESULT
#define DOC_conv_transpose1d CONV_TRANSPOSE
#define DOC_conv_transpose2d CONV_TRANSPOSE
#define DOC_conv_transpose3d CONV_TRANSPOSE
#define DOC_convolve                                                                                                   \
    "\n\na, v   vectors of at least one item, of n and m\n"                                                            \
    "mode   'full': n + m - 1 items; 'same': max(n, m); 'valid': where they overlap whole"

/* ---- fast ---- */
#define DOC_gelu "\n\nx   an array; integers give float32"
#define DOC_rms_norm                                                                                                   \
    "\n\nx        [..., d]\n"                                                                                          \
    "weight   [d] or None\n"                                                                                           \
    "eps      a number"                                                                                                \
    "\n\nReturns an array of x's shape and dtype. ValueError for another weight."
#define DOC_layer_norm                                                                                                 \
    "\n\nx              [..., d]\n"                                                                                    \
    "weight, bias   [d] or None\n"                                                                                     \
    "eps            a number"                                                                                          \
    "\n\nReturns an array of x's shape and dtype. ValueError for other weights."
#define DOC_rope                                                                                                       \
    "\n\na             [B, ..., T, D]\n"                                                                               \
    "dims          how many of D, an even number; ValueError for others\n"                                             \
    "traditional   pairs are neighbours; else i and i + dims / 2\n"                                                    \
    "base          of the frequencies base**(-2i / dims); None with freqs\n"                                           \
    "scale         positions are multiplied by it\n"                                                                   \
    "offset        of the first position: an int, or an int array of one or B items\n"                                 \
    "freqs         [dims / 2], in place of base: positions are divided by them"                                        \
    "\n\nValueError unless exactly one of base and freqs is given."
#define DOC_scaled_dot_product_attention                                                                               \
    "\n\nq             [B, Hq, T, D]\n"                                                                                \
    "k, v          [B, Hkv, S, D] and [B, Hkv, S, Dv]; Hkv divides Hq\n"                                               \
    "scale         a number, usually D**-0.5\n"                                                                        \
    "mask          None, 'causal' (the last query sees the last key), or an array that broadcasts to\n"                \
    "              [B, Hq, T, S]: bool, True where a key is seen, or numbers that are added to the\n"                  \
    "              scores\n"                                                                                           \
    "sinks         [Hq]: one more score of each head, without a value; or None\n"                                      \
    "force_fused   accepted: it is fused in any case"                                                                  \
    "\n\nReturns [B, Hq, T, Dv]; softmax in float32. ValueError for other shapes and dtypes."
#define DEVICE_KERNEL                                                                                                  \
    "\n\nname, source, header         as in MLX\n"                                                                     \
    "input_names, output_names    as in MLX\n"
#define DOC_metal_kernel DEVICE_KERNEL "ensure_row_contiguous, atomic_outputs, compile_options   as in MLX"
#define DOC_cuda_kernel DEVICE_KERNEL "ensure_row_contiguous, shared_memory   as in MLX"
#define DOC_precompiled_cuda_kernel                                                                                    \
    "\n\nname, compiled_source, inputs, output_shapes, output_dtypes, scalars   as in MLX\n"                           \
    "grid, threadgroup, shared_memory, init_value, ensure_row_contiguous      as in MLX"
#define DOC_cross_entropy                                                                                              \
    "\n\nlogits    [..., classes]\n"                                                                                   \
    "targets   integers [...]"                                                                                         \
    "\n\nReturns float32 [...]. IndexError when evaluated where a target is out of range."
#define DOC_gated_delta_update                                                                                         \
    "\n\nq, k            [B, T, Hk, Dk]; Hk divides Hv\n"                                                              \
    "v               [B, T, Hv, Dv]\n"                                                                                 \
    "gamma, beta     [B, T, Hv]: decay and rate of writing\n"                                                          \
    "initial_state   [B, Hv, Dv, Dk]; None: zeros\n"                                                                   \
    "mask            bool [B, T]: False leaves the state as it is"
#define DOC_quantize_blocks                                                                                            \
    "\n\nw        [..., k], floating point\n"                                                                          \
    "format   a name of those above"                                                                                   \
    "\n\nValueError for another format, or a k that it does not divide."
#define DOC_dequantize_blocks                                                                                          \
    "\n\nblocks   uint8 [..., bytes of a row]\n"                                                                       \
    "format   a name of those above"                                                                                   \
    "\n\nValueError for another format, or rows that are not whole blocks."

/* ---- quantisation ---- */
#define FORMAT                                                                                                         \
    "group_size   values that share a scale: 32, 64 or 128 of 'affine', 16 of 'nvfp4', else 32; None:\n"               \
    "             the mode's (64)\n"                                                                                   \
    "bits         2, 3, 4, 5, 6 or 8 of 'affine'; None: the mode's (4, of 'mxfp8' 8)\n"                                \
    "mode         'affine', 'mxfp4', 'mxfp8' or 'nvfp4'\n"
#define DOC_quantize                                                                                                   \
    "\n\nw            [..., k], floating point; k a multiple of group_size\n" FORMAT                                   \
    "global_scale   a factor of all scales, of 'nvfp4'"                                                                \
    "\n\nReturns fields uint32 [..., k * bits / 32], scales [..., k / group_size] and biases likewise: w\n"            \
    "is about scale * field + bias. ValueError for other modes, bits and sizes."
#define PACKED_W                                                                                                       \
    "w            uint32 [..., n, k * bits / 32], of quantize\n"                                                       \
    "scales, biases   [..., n, k / group_size]; biases of 'affine' alone\n"
#define DOC_dequantize                                                                                                 \
    "\n\n" PACKED_W FORMAT "global_scale   as it was given to quantize\n"                                              \
    "dtype        of the result; None: that of scales"                                                                 \
    "\n\nReturns [..., n, k]."
#define DOC_quantized_matmul                                                                                           \
    "\n\nx            [..., m, k], floating point\n" PACKED_W                                                          \
    "transpose    w holds rows of k values; else rows of n\n" FORMAT                                                   \
    "\nReturns [..., m, n] in x's dtype. ValueError for shapes and formats that do not fit."
#define GATHERED                                                                                                       \
    "lhs_indices, rhs_indices   integers, broadcast against each other; None: each matrix in its\n"                    \
    "                           order\n"                                                                               \
    "sorted_indices   a promise that rhs_indices ascend; it changes no result\n"
#define DOC_gather_qmm                                                                                                 \
    "\n\nx            [..., m, k], floating point\n" PACKED_W GATHERED                                                 \
    "transpose    w holds rows of k values; else rows of n\n" FORMAT "global_scale   as it was given to quantize"      \
    "\n\nReturns the shape of the indices, then [m, n]. IndexError when evaluated where an index is out\n"             \
    "of range."
#define QUANTISED_X                                                                                                    \
    "\n\nx            [..., m, k], floating point\n"                                                                   \
    "w            [..., n, k] floating point, or uint32 of quantize with scales\n"                                     \
    "scales       of w, where it comes quantised\n"
#define DOC_qqmm                                                                                                       \
    QUANTISED_X FORMAT "global_scale_x, global_scale_w   factors of all scales, of 'nvfp4'"                            \
                       "\n\nReturns [..., m, n] in x's dtype."
#define DOC_gather_qqmm                                                                                                \
    QUANTISED_X GATHERED FORMAT                                                                                        \
        "global_scale_x, global_scale_w   factors of all scales, of 'nvfp4'"                                           \
        "\n\nReturns the shape of the indices, then [m, n]. IndexError when evaluated where an index is out\n"         \
        "of range."
#define DOC_to_fp8                                                                                                     \
    "\n\nx   an array of floating point"                                                                               \
    "\n\nReturns uint8 of its shape."
#define DOC_from_fp8                                                                                                   \
    "\n\nx       uint8\n"                                                                                              \
    "dtype   of the result"

/* ---- linalg ---- */
#define SINGULAR " RuntimeError when evaluated for a singular one."
#define DOC_norm                                                                                                       \
    "\n\na          an array\n"                                                                                        \
    "ord        of vectors a number or +-inf; of matrices 'fro', 'nuc', 1, -1, 2, -2, inf or -inf;\n"                  \
    "           None\n"                                                                                                \
    "axis       an int (vectors), a pair (matrices), or None for all\n"                                                \
    "keepdims   reduced axes stay, with size 1"                                                                        \
    "\n\nValueError for an ord that vectors or matrices do not have."
#define DOC_cross                                                                                                      \
    "\n\na, b   arrays that broadcast; ValueError for other numbers of components\n"                                   \
    "axis   of the components"
#define DOC_lu                                                                                                         \
    "\n\na   [..., m, n], float32 or float64"                                                                          \
    "\n\nReturns P, uint32 [..., m], L [..., m, r] and U [..., r, n] with r = min(m, n)."
#define DOC_lu_factor                                                                                                  \
    "\n\na   [..., m, n], float32 or float64"                                                                          \
    "\n\nReturns L below and U on and above the diagonal, [..., m, n], and pivots uint32 [..., r]: row i\n"            \
    "was exchanged with row pivots[i]."
#define DOC_qr                                                                                                         \
    "\n\na   [..., m, n], float32 or float64"                                                                          \
    "\n\nReturns Q [..., m, r] and R [..., r, n] with r = min(m, n)."
#define DOC_cholesky                                                                                                   \
    SQUARE "upper   U instead of L"                                                                                    \
           "\n\nOnly one triangle of a is read; a must be symmetric and positive definite."
#define DOC_cholesky_inv SQUARE "upper   whether a is the upper factor"
#define DOC_inv SQUARE "\nReturns [..., n, n]." SINGULAR
#define DOC_tri_inv SQUARE "upper   whether a is upper triangular"
#define DOC_pinv                                                                                                       \
    "\n\na   [..., m, n], float32 or float64"                                                                          \
    "\n\nReturns [..., n, m]."
#define DOC_solve                                                                                                      \
    SQUARE "b   [..., n] or [..., n, k]"                                                                               \
           "\n\nReturns an array of b's shape." SINGULAR
#define DOC_solve_triangular                                                                                           \
    SQUARE "b       [..., n] or [..., n, k]\n"                                                                         \
           "upper   whether a is upper triangular"
#define DOC_det SQUARE "\nReturns [...]."
#define DOC_slogdet SQUARE "\nReturns two arrays [...]; 0 and -inf of a singular matrix."
#define DOC_svd                                                                                                        \
    "\n\na            [..., m, n], float32 or float64\n"                                                               \
    "compute_uv   whether U and Vt are wanted"                                                                         \
    "\n\nReturns U [..., m, m], S [..., min(m, n)], descending, and Vt [..., n, n]; or S."
#define DOC_eigh SYMMETRIC "\nReturns float [..., n] and [..., n, n], an eigenvector in each column."
#define DOC_eigvalsh SYMMETRIC "\nReturns float [..., n]."
#define DOC_eig                                                                                                        \
    "\n\na   [..., n, n], float32, float64 or complex64"                                                               \
    "\n\nReturns complex64 [..., n] and [..., n, n], an eigenvector in each column."
#define DOC_eigvals                                                                                                    \
    "\n\na   [..., n, n], float32, float64 or complex64"                                                               \
    "\n\nReturns complex64 [..., n]."

/* ---- fft ---- */
#define NORM                                                                                                           \
    "'backward' (the inverse is divided by n), 'ortho' (both by sqrt(n)) or 'forward'; ValueError for\n"               \
    "others\n"
#define FFT1                                                                                                           \
    "\n\na      an array\n"                                                                                            \
    "n      items of the axis that are used, cut or filled with zeros; None: all\n"                                    \
    "axis   which one\n"                                                                                               \
    "norm   " NORM
#define FFTN                                                                                                           \
    "\n\na      an array\n"                                                                                            \
    "s      items of each of axes that are used, cut or filled with zeros; None: all\n"                                \
    "axes   ints; None: all axes, and then no s\n"                                                                     \
    "norm   " NORM
#define COMPLEX "\nReturns complex64."
#define HALF "\nReturns complex64, n // 2 + 1 items of the last of the axes. An imaginary part of a is dropped."
#define REAL_RESULT "\nReturns float32; n is of the result, None: 2 * (items - 1)."
#define DOC_fft FFT1 COMPLEX
#define DOC_fft2 FFTN COMPLEX
#define DOC_fftn FFTN COMPLEX
#define DOC_ifft FFT1 COMPLEX
#define DOC_ifft2 FFTN COMPLEX
#define DOC_ifftn FFTN COMPLEX
#define DOC_rfft FFT1 HALF
#define DOC_rfft2 FFTN HALF
#define DOC_rfftn FFTN HALF
#define DOC_irfft FFT1 REAL_RESULT
#define DOC_irfft2 FFTN REAL_RESULT
#define DOC_irfftn FFTN REAL_RESULT
#define DOC_fftfreq                                                                                                    \
    "\n\nn   items\n"                                                                                                  \
    "d   the distance of samples"                                                                                      \
    "\n\nReturns float32 [n]."
#define DOC_rfftfreq                                                                                                   \
    "\n\nn   items\n"                                                                                                  \
    "d   the distance of samples"                                                                                      \
    "\n\nReturns float32 [n // 2 + 1]."
#define DOC_fftshift                                                                                                   \
    "\n\na      an array\n"                                                                                            \
    "axes   an int or ints; None: all"
#define DOC_ifftshift DOC_fftshift

/* ---- random ---- */
#define DRAW                                                                                                           \
    "key     uint32 [2], of which the values are a function; None: the next of the global state\n"                     \
    "        (random.seed)\n"
#define FLOAT_DRAW                                                                                                     \
    "shape   of the result, an int or ints\n"                                                                          \
    "dtype   floating point; None: float32. ValueError for integers\n"
#define DOC_random_key "\n\nseed   0 to 2**64 - 1"
#define DOC_random_split                                                                                               \
    "\n\nkey   uint32 [2]\n"                                                                                           \
    "num   how many"                                                                                                   \
    "\n\nReturns uint32 [num, 2]."
#define DOC_random_uniform "\n\nlow, high   numbers or arrays that broadcast to shape\n" FLOAT_DRAW DRAW
#define DOC_random_normal                                                                                              \
    "\n\n" FLOAT_DRAW "loc, scale   numbers or arrays that broadcast to shape; None: 0 and 1\n" DRAW
#define DOC_random_truncated_normal                                                                                    \
    "\n\nlower, upper   numbers or arrays, broadcast against each other\n" FLOAT_DRAW DRAW
#define DOC_random_gumbel "\n\n" FLOAT_DRAW DRAW
#define DOC_random_laplace "\n\n" FLOAT_DRAW "loc, scale   numbers: the mean, and the mean distance from it\n" DRAW
#define DOC_random_multivariate_normal                                                                                 \
    "\n\nmean    [..., n]\n"                                                                                           \
    "cov     [..., n, n], symmetric and positive semidefinite\n"                                                       \
    "shape   of the batch\n"                                                                                           \
    "dtype   float32\n" DRAW "\nReturns shape + [n]."
#define DOC_random_randint                                                                                             \
    "\n\nlow, high   numbers or arrays that broadcast to shape\n"                                                      \
    "shape   of the result, an int or ints\n"                                                                          \
    "dtype   None: int32. ValueError for floating point\n" DRAW
#define DOC_random_bernoulli                                                                                           \
    "\n\np       a number or an array\n"                                                                               \
    "shape   of the result; None: that of p\n" DRAW "\nReturns bool."
#define DOC_random_permutation                                                                                         \
    "\n\nx       an int, or an array\n"                                                                                \
    "axis    of the array\n" DRAW
#define DOC_random_categorical                                                                                         \
    "\n\nlogits        an array; they need not be normalised\n"                                                        \
    "axis          of the classes\n"                                                                                   \
    "shape         of the result; None: logits' without axis\n"                                                        \
    "num_samples   draws of each line, as a new last axis; not with shape\n" DRAW

#endif
