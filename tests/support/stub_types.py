"""What tests/make_stub.py knows beside the extension's signatures: the types of arguments and results.

An argument's type is looked for under "function.argument", then under "argument"; what is in neither has its default's
type, or is an array. Where the default is None the type may be None. A result's is looked for under "function"; else it
is an array. Methods are "Class.method"; functions of a namespace "namespace.function"."""
OPERAND, AXES, SHAPE, IDS = "Operand", "int | Sequence[int]", "int | Sequence[int]", "Ids"
MODE = "Literal['affine', 'mxfp4', 'mxfp8', 'nvfp4']"
TREE = "object"

ARGUMENTS = {
    "axis": "int", "axes": AXES, "shape": SHAPE, "dtype": "Dtype", "stream": "StreamOrDevice", "key": "array",
    "correction": "int", "copy": "bool", "m": "int", "n": "int", "k": "int", "M": "int", "kth": "int", "num": "int",
    "num_samples": "int", "repeats": "int", "source": "int", "destination": "int", "axis1": "int", "axis2": "int",
    "dims": "int", "traditional": "bool", "base": "float", "scale": "float", "eps": "float", "decimals": "int",
    "group_size": "int", "bits": "int", "mode": MODE, "limit": "int", "path": "str | os.PathLike[str]",
    "device": "Device | DeviceType",
    "atol": "float", "rtol": "float", "alpha": "float", "beta": "float", "d": "float", "seed": "int",
    "trees": TREE, "ids": IDS, "format": "str", "name": "str", "header": "str", "keepdims": "bool",
    "arrays": "Iterable[array]", "indices_or_sections": AXES, "constant_values": OPERAND,
    "stride": AXES, "padding": AXES, "dilation": AXES, "kernel_dilation": AXES, "input_dilation": AXES,
    "output_padding": AXES, "norm": "Literal['backward', 'ortho', 'forward'] | None", "s": "Sequence[int]",
    "UPLO": "Literal['L', 'U']", "vals": OPERAND, "shift": AXES, "reps": AXES,
    "pad_width": "int | Sequence[int | Sequence[int]]",
    "side": "Literal['left', 'right']", "indexing": "Literal['xy', 'ij']",
    "input_names": "Sequence[str]", "output_names": "Sequence[str]", "compile_options": "Any",
    "add_special_tokens": "bool", "parse_special": "bool", "skip_special_tokens": "bool",
    "truncation": "bool | int | dict[str, Any]",
}
for_reductions = {f"{name}.axis": AXES for name in (
    "sum", "prod", "max", "min", "all", "any", "logsumexp", "mean", "var", "std", "minmax", "count_nonzero", "softmax",
    "squeeze", "expand_dims", "flip", "roll", "linalg.norm")}
ARGUMENTS |= for_reductions | {
    **{f"random.{name}.shape": "Sequence[int]" for name in (
        "bernoulli", "categorical", "gumbel", "laplace", "multivariate_normal", "normal", "randint", "truncated_normal",
        "uniform")},
    "arange.start": "int | float", "arange.stop": "int | float", "arange.step": "int | float",
    "linspace.start": OPERAND, "linspace.stop": OPERAND, "atleast_1d.arys": "array", "atleast_2d.arys": "array",
    "atleast_3d.arys": "array", "broadcast_arrays.arrays": "array", "meshgrid.arrays": "array",
    "broadcast_shapes.shapes": "Sequence[int]", "as_strided.strides": "Sequence[int]", "take.indices": "int | array",
    "concatenate.axis": "int | None", "sort.axis": "int | None", "argsort.axis": "int | None",
    "topk.axis": "int | None",
    "partition.axis": "int | None", "argpartition.axis": "int | None", "take_along_axis.axis": "int | None",
    "slice.slice_size": "Sequence[int]", "where.condition": OPERAND, "where.x": OPERAND, "where.y": OPERAND,
    "reshape.a": OPERAND, "broadcast_to.a": OPERAND, "round.a": OPERAND, "view.a": OPERAND, "nan_to_num.a": OPERAND,
    "nan_to_num.nan": "float", "nan_to_num.posinf": "float", "nan_to_num.neginf": "float",
    "clip.a_min": f"{OPERAND} | None", "clip.a_max": f"{OPERAND} | None", "divmod.a": OPERAND, "divmod.b": OPERAND,
    "array_equal.a": OPERAND, "array_equal.b": OPERAND, "tensordot.axes": "int | Sequence[Sequence[int]]",
    "hadamard_transform.scale": "float", "pad.mode": "Literal['constant', 'edge', 'reflect', 'symmetric']",
    "convolve.mode": "Literal['full', 'valid', 'same']", "conv_general.padding":
    "int | Sequence[int] | tuple[Sequence[int], Sequence[int]]", "repeat.array": "array",
    "asarray.a": "ArrayInput", "from_dlpack.x": "SupportsDLPack", "set_threads.n": "int",
    "dequantize.global_scale": "array", "quantize.global_scale": "array", "fast.rms_norm.weight": "array | None",
    "fast.layer_norm.weight": "array | None", "fast.layer_norm.bias": "array | None",
    "fast.rope.offset": "int | array", "fast.rope.freqs": "array", "fast.rope.base": "float | None",
    "fast.scaled_dot_product_attention.mask": "array | Literal['causal'] | str",
    "fast.metal_kernel.source": "str", "fast.cuda_kernel.source": "str",
    "fast.precompiled_cuda_kernel.compiled_source": "bytes", "fast.precompiled_cuda_kernel.inputs": "Sequence[Operand]",
    "fast.precompiled_cuda_kernel.output_shapes": "Sequence[Sequence[int]]",
    "fast.precompiled_cuda_kernel.output_dtypes": "Sequence[Dtype]",
    "fast.precompiled_cuda_kernel.scalars": "Sequence[object]",
    "fast.precompiled_cuda_kernel.grid": "tuple[int, int, int]",
    "fast.precompiled_cuda_kernel.threadgroup": "tuple[int, int, int]",
    "fast.precompiled_cuda_kernel.init_value": "float", "fast.gated_delta_update.beta": "array",
    "fast.gated_delta_update.k": "array", "fast.scaled_dot_product_attention.k": "array",
    "linalg.norm.ord": "int | float | str", "random.uniform.low": OPERAND,
    "random.uniform.high": OPERAND, "random.normal.loc": OPERAND, "random.normal.scale": OPERAND,
    "random.truncated_normal.lower": OPERAND, "random.truncated_normal.upper": OPERAND,
    "random.randint.low": OPERAND, "random.randint.high": OPERAND, "random.bernoulli.p": OPERAND,
    "random.permutation.x": "int | array", "depends.inputs": "array | Sequence[array]",
    "depends.dependencies": "array | Sequence[array]",
    # The engine's own functions and classes.
    "describe.kv_dtype": "str | Dtype", "describe.dtype": "str | Dtype", "describe.activations": "str",
    "load_model.kv_dtype": "str | Dtype", "load_model.dtype": "str | Dtype", "load_model.activations": "str",
    "load_model.progress": "Callable[[float], object]", "load_model.context_policy": "str",
    "load_model.device": "int", "load_model.host_layers": "int",
    "stream.session": "Session", "stream.tokenizer": "Tokenizer", "stream.prompt_ids": "Sequence[int]",
    "stream.stop_ids": "Sequence[int]", "stream.stop_texts": "Sequence[str]",
    "stream.processors": "Sequence[Callable[..., Any]]",
    "stream.timeout": "float", "stream.edits": "Sequence[Any]", "stream.activations": "Sequence[int]",
    "stream.sampling": "Any", "sample.logits": "Any", "sample.sampling": "Any", "sample.n_prompt": "int",
    "sample_probabilities.logits": "Any", "sample_probabilities.sampling": "Any",
    "sample_probabilities.n_prompt": "int",
    "ArrayAt.add.value": OPERAND, "ArrayAt.divide.value": OPERAND, "ArrayAt.maximum.value": OPERAND,
    "ArrayAt.minimum.value": OPERAND, "ArrayAt.multiply.value": OPERAND, "ArrayAt.subtract.value": OPERAND,
    "Decoder.add.stream": "TokenStream", "Detokenizer.push.id": "int", "Model.head.x": "array",
    "Model.rows.lengths": "Sequence[int]",
    "Model.rows.groups": "Sequence[int] | None",
    **dict.fromkeys(("Model.rows.terms", "Model.load_adapter.terms"),
                    "Sequence[tuple[str, array, array, float] | tuple[str, array, array, float, array, array]]"),
    "Model.rows.sums": "Sequence[tuple[array, ...] | None] | None",
    "Model.loss.targets": "Ids", "Model.inspect.activations": "Sequence[int]", "Model.inspect.edits": "Sequence[Any]",
    "Model.logits.sequences": "Sequence[Sequence[int]]", "Model.restore_session.saved": "bytes",
    "Model.score.kind": "str", "Model.score.sequences": "Sequence[Sequence[int]]",
    **dict.fromkeys(("stream.adapters", "Model.inspect.adapters", "Model.logits.adapters", "Model.score.adapters"),
                    "Sequence[tuple[str, float]]"),
    "Model.score.labels": "Sequence[Sequence[int]]", "Model.weight.name": "str",
    "Session.append.text": "str | Ids", "Session.step.ids": "int | Ids", "Session.truncate.length": "int",
    "Tokenizer.decode.ids": "int | " + IDS, "Tokenizer.encode.text": "str | bytes",
    "Tokenizer.encode_batch.texts": "Sequence[str | bytes]",
    "Tokenizer.encode_batch.pairs": "Sequence[str | bytes]", "Tokenizer.encoding.text": "str | bytes",
    "Tokenizer.encoding.pair": "str | bytes", "Tokenizer.encoding_batch.texts": "Sequence[str | bytes]",
    "Tokenizer.encoding_batch.pairs": "Sequence[str | bytes]", "Tokenizer.from_json.json": "Buffer",
    "Tokenizer.from_sentencepiece.model": "Buffer", "Tokenizer.from_sentencepiece.parts": "Buffer",
    "Tokenizer.id_to_token.id": "int", "Tokenizer.is_special.id": "int", "Tokenizer.token_to_id.token": "str",
    **{f"Tokenizer.{name}.padding": "bool | dict[str, Any]" for name in ("encode", "encode_batch", "encoding",
                                                                         "encoding_batch")},
    "array.dim.axis": "int", "array.astype.dtype": "Dtype", "array.view.dtype": "Dtype",
}
PAIR, TRIPLE = "tuple[array, array]", "tuple[array, array, array]"
RESULTS = {
    "eval": "None", "async_eval": "None", "eval_or_drop": "None", "clear_cache": "None", "keep_memory": "None",
    "reset_peak_memory": "None",
    "set_threads": "None",
    **dict.fromkeys(("get_active_memory", "get_peak_memory", "get_cache_memory", "get_memory_limit", "set_memory_limit",
                     "set_cache_limit", "set_wired_limit", "get_array_buffer_size", "default_threads"), "int"),
    "isa": "str", "isa_reason": "str", "default_threads_reason": "str", "multiplies_bfloat16": "bool",
    "load_model": "Model", "describe": "dict[str, Any]", "describe_cache": "dict[str, Any]",
    "architectures": "list[dict[str, Any]]", "formats": "list[dict[str, Any]]",
    "stream": "TokenStream", "session_bytes": "int", "sample": "list[int]",
    "minmax": PAIR, "meshgrid": "tuple[array, ...]", "unstack": "tuple[array, ...]",
    **dict.fromkeys(("broadcast_arrays", "split", "divmod", "quantize", "array.split"), "list[array]"),
    "broadcast_shapes": "tuple[int, ...]",
    "linalg.lu": TRIPLE, "linalg.lu_factor": PAIR, "linalg.qr": PAIR, "linalg.slogdet": PAIR, "linalg.eigh": PAIR,
    "linalg.eig": PAIR, "random.seed": "None", "fast.precompiled_cuda_kernel": "list[array]",
    "fast.metal_kernel": "Callable[..., list[array]]", "fast.cuda_kernel": "Callable[..., list[array]]",
    # Classes.
    "ArrayAt.__getitem__": "ArrayAt", "ArrayIterator.__iter__": "Self", "ArrayIterator.__next__": "array",
    "Decoder.add": "None", "Decoder.profile": "dict[str, Any]",
    "Decoder.step": "tuple[TokenStream, Token | Exception] | None",
    "Detokenizer.finish": "str", "Detokenizer.push": "str", "Dtype.size": "int", "Dtype.__repr__": "str",
    "Dtype.__reduce__": "str", "Dtype.name": "str",
    "Encoding.__len__": "int", "Encoding.__repr__": "str", "Encoding.tokens": "list[str]",
    "Encoding.offsets": "list[tuple[int, int]]", "Encoding.overflowing": "list[Encoding]", "Encoding.truncated": "bool",
    **dict.fromkeys(("Encoding.ids", "Encoding.attention_mask", "Encoding.special_mask", "Encoding.type_ids"),
                    "list[int]"),
    "Encoding.sequence_ids": "list[int | None]", "Encoding.word_ids": "list[int | None]",
    "Model.activations": "tuple[tuple[int, str, tuple[int, ...], bool, str], ...]", "Model.close": "None",
    "Model.closed": "bool", "Model.context_length": "int", "Model.info": "dict[str, Any]", "Model.inspect": "Any",
    "Model.logits": "list[array]", "Model.new_decoder": "Decoder", "Model.new_session": "Session",
    "Model.restore_session": "Session", "Model.score": "Any", "Model.tokenizer": "Any", "Model.vocab_size": "int",
    "Model.weight_names": "list[str]", "Model.adapters": "list[dict[str, Any]]", "Model.load_adapter": "None",
    "Model.unload_adapter": "None", "Session.adapters": "tuple[tuple[str, int, float], ...]",
    "Session.append": "int", "Session.close": "None", "Session.fork": "Session", "Session.ids": "list[int]",
    "Session.length": "int", "Session.model": "Model", "Session.nbytes": "int", "Session.save": "bytes",
    "Session.truncate": "int",
    "TokenStream.__enter__": "Self", "TokenStream.__iter__": "Self", "TokenStream.__next__": "Token",
    "TokenStream.activations": "Any", "TokenStream.cancel": "None", "TokenStream.close": "None",
    "TokenStream.profile": "dict[str, Any] | None", "TokenStream.stats": "dict[str, Any]",
    "TokenStream.prompt_logprobs": "tuple[list[float | None], list[tuple[tuple[int, float], ...]]] | None",
    "Tokenizer.base_vocab_size": "int", "Tokenizer.from_gguf": "Self", "Tokenizer.from_json": "Self",
    "Tokenizer.from_sentencepiece": "Self", "Tokenizer.gguf_pre_types": "dict[str, Any]",
    "Tokenizer.encoding": "Encoding", "Tokenizer.encoding_batch": "list[Encoding]",
    "Tokenizer.id_to_token": "str | None", "Tokenizer.is_special": "bool", "Tokenizer.padding": "dict[str, Any] | None",
    "Tokenizer.special_ids": "list[int]", "Tokenizer.stream": "Detokenizer", "Tokenizer.token_to_id": "int | None",
    "Tokenizer.truncation": "dict[str, Any] | None", "Tokenizer.vocab_size": "int",
    "array.shape": "tuple[int, ...]", "array.strides": "tuple[int, ...]", "array.dtype": "Dtype", "array.at": "ArrayAt",
    **dict.fromkeys(("array.ndim", "array.size", "array.itemsize", "array.nbytes", "array.dim"), "int"),
    "array.floats": "list[float]", "array.ints": "list[int]", "array.int32s": "list[int]", "array.free": "None",
    "array.numpy": "NDArray[Any]",
    # A number, of the dtype's kind; nested lists of them.
    "array.item": "Any", "array.tolist": "Any",
}

# Signatures that no single line says, whole: {"name": lines}. The decorator stands before each line.
OVERLOADS = {
    "atleast_1d": ["(ary: array, /, *, stream: StreamOrDevice = None) -> array",
                   "(*arys: array, stream: StreamOrDevice = None) -> list[array]"],
    "depends": ["(inputs: array, dependencies: array | Sequence[array]) -> array",
                "(inputs: Sequence[array], dependencies: array | Sequence[array]) -> list[array]"],
    "arange": ["(stop: int | float, /, *, dtype: Dtype | None = None, stream: StreamOrDevice = None) -> array",
               "(start: int | float, stop: int | float | None = None, step: int | float | None = None, "
               "dtype: Dtype | None = None, *, stream: StreamOrDevice = None) -> array",
               "(*, stop: int | float, step: int | float | None = None, dtype: Dtype | None = None, "
               "stream: StreamOrDevice = None) -> array"],
    "linalg.svd": ["(a: array, compute_uv: Literal[True] = True, *, stream: StreamOrDevice = None) -> tuple[array, "
                   "array, array]",
                   "(a: array, compute_uv: Literal[False], *, stream: StreamOrDevice = None) -> array",
                   "(a: array, compute_uv: bool, *, stream: StreamOrDevice = None) -> tuple[array, array, array] | "
                   "array"],
    "Tokenizer.encode": [f"(self, /, text: str | bytes, add_special_tokens: bool = True, parse_special: bool = True, "
                         f"*, truncation: "
                         f"bool | int | dict[str, Any] | None = None, padding: bool | dict[str, Any] | None = None, "
                         f"as_arrays: {flag}) -> {result}"
                         for flag, result in (("Literal[False] = False", "list[int]"),
                                              ("Literal[True]", "NDArray[Any]"))],
    "Tokenizer.encode_batch": [
        f"(self, /, texts: Sequence[str | bytes], add_special_tokens: bool = True, parse_special: bool = True, *, "
        f"truncation: "
        f"bool | int | dict[str, Any] | None = None, padding: bool | dict[str, Any] | None = None, as_arrays: {flag}, "
        f"pairs: Sequence[str | bytes] | None = None, threads: int = 0) -> {result}"
        for flag, result in (("Literal[False] = False", "list[list[int]]"), ("Literal[True]", "list[NDArray[Any]]"))],
    "Tokenizer.decode": [f"(self, /, ids: int | {IDS}, skip_special_tokens: bool = False, *, as_bytes: {flag}) "
                         f"-> {result}"
                         for flag, result in (("Literal[False] = False", "str"), ("Literal[True]", "bytes"))],
    "array.reshape": ["(self, shape: Sequence[int], /, *, stream: StreamOrDevice = None) -> array",
                      "(self, *shape: int, stream: StreamOrDevice = None) -> array"],
    "array.transpose": ["(self, axes: Sequence[int] | None, /, *, stream: StreamOrDevice = None) -> array",
                        "(self, *axes: int, stream: StreamOrDevice = None) -> array"],
}
OVERLOADS |= dict.fromkeys(("atleast_2d", "atleast_3d"), OVERLOADS["atleast_1d"])

# Methods that Python calls: (arguments, result).
BINARY = {f"__{side}{name}__": ("value: Operand, /", "array") for side in ("", "r", "i") for name in (
    "add", "and", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift", "sub", "truediv", "xor", "div")}
SPECIAL = BINARY | {
    **{f"__{name}__": ("value: Operand, /", "array") for name in ("ge", "gt", "le", "lt")},
    **{f"__{name}__": ("", "array") for name in ("abs", "invert", "neg", "pos")},
    "__array__": ("dtype: Any = None, copy: bool | None = None", "NDArray[Any]"),
    "__array_namespace__": ("api_version: str | None = None", "Any"),
    "__arrow_c_array__": ("requested_schema: Any = None", "tuple[Any, Any]"),
    "__bool__": ("", "bool"), "__bytes__": ("", "bytes"), "__complex__": ("", "complex"), "__copy__": ("", "array"),
    "__deepcopy__": ("memo: Any, /", "array"), "__delitem__": ("key: Index, /", "None"),
    "__dlpack__": ("*, stream: Any = None, max_version: tuple[int, int] | None = None, "
                   "dl_device: tuple[int, int] | None = None, copy: bool | None = None", "Any"),
    "__dlpack_device__": ("", "tuple[int, int]"), "__enter__": ("", "Self"),
    "__exit__": ("*exception: object", "None"), "__float__": ("", "float"), "__format__": ("spec: str, /", "str"),
    "__getitem__": ("key: Index, /", "array"), "__getstate__": ("", "Any"), "__hash__": ("", "int"),
    "__index__": ("", "int"), "__int__": ("", "int"), "__iter__": ("", "ArrayIterator"), "__len__": ("", "int"),
    "__next__": ("", "array"), "__reduce__": ("", "Any"), "__repr__": ("", "str"),
    "__setitem__": ("key: Index, value: ArrayInput, /", "None"), "__setstate__": ("state: Any, /", "None"),
}
# == and != are elementwise, which object's are not.
COMPARED = {"__eq__", "__ne__"}
