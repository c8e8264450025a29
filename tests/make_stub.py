"""Prints gomlx/_gomlx.pyi from the extension's own signatures:  python tests/make_stub.py > gomlx/_gomlx.pyi
tests/test_packaging.py compares the two. Types stand below by name, where a signature alone does not tell them."""
import inspect
import types

RETURNS = {
    "isa": "str", "isa_reason": "str", "default_threads": "int", "default_threads_reason": "str", "load_model": "Model",
    "stream": "TokenStream", "sample": "list[int]", "sample_probabilities": "array", "eval": "None", "set_threads": "None", "get_active_memory": "int",
    "get_peak_memory": "int",
    "get_cache_memory": "int", "reset_peak_memory": "None", "set_memory_limit": "int", "set_cache_limit": "int",
    "clear_cache": "None", "Model.info": "dict[str, Any]", "Model.new_session": "Session",
    "Model.logits": "list[array]", "Model.score": "list[array] | tuple[array, list[list[float]]]", "Model.close": "None", "Model.vocab_size": "int", "Model.context_length": "int",
    "Session.length": "int", "Session.model": "Model", "Session.truncate": "int", "Session.close": "None",
    "Session.ids": "list[int]", "Session.append": "int", "Session.step": "array", "Session.fork": "Session",
    "Session.save": "bytes", "Session.nbytes": "int", "Model.restore_session": "Session",
    "Tokenizer.from_json": "Self", "Tokenizer.from_gguf": "Self",
    "Tokenizer.encode": "list[int]", "Tokenizer.decode": "str",
    "Tokenizer.token_to_id": "int | None", "Tokenizer.id_to_token": "str | None", "Tokenizer.is_special": "bool",
    "Tokenizer.vocab_size": "int", "Tokenizer.base_vocab_size": "int", "Tokenizer.stream": "Detokenizer", "Detokenizer.push": "str",
    "Detokenizer.finish": "str",
    "TokenStream.__iter__": "Self", "TokenStream.__next__": "Token", "TokenStream.__enter__": "Self",
    "TokenStream.cancel": "None", "TokenStream.close": "None", "TokenStream.stats": "dict[str, Any]",
    "Model.new_decoder": "Decoder", "Decoder.add": "None",
    "Decoder.step": "tuple[TokenStream, Token | Exception] | None",
    "array.shape": "tuple[int, ...]", "array.ndim": "int", "array.size": "int", "array.itemsize": "int",
    "array.nbytes": "int", "array.strides": "tuple[int, ...]",
    "array.dim": "int", "array.floats": "list[float]", "array.ints": "list[int]", "array.int32s": "list[int]",
    "array.free": "None", "array.numpy": "Any", "array.dtype": "Dtype", "array.item": "bool | int | float | complex",
    "array.__len__": "int",
    "array.__bool__": "bool", "array.__int__": "int", "array.__float__": "float", "array.__repr__": "str",
}
# Not the same under every Python, object's own, or put there by gomlx/notebook.py.
LEFT_OUT = {"__doc__", "__module__", "__new__", "__getattribute__", "__init__", "__weakref__", "__dict__", "__buffer__",
            "__release_buffer__", "_repr_html_"}
HEAD = '''# Made by tests/make_stub.py from the extension's own signatures.
from typing import Any, NamedTuple, Self

version: str

class AxisError(ValueError, IndexError): ...
class Error(Exception): ...
class ContextLengthExceeded(ValueError):
    prompt_tokens: int
    context_length: int
class KvStateNotAvailable(ValueError): ...
class ModelNotSupported(ValueError, NotImplementedError): ...

class Token(NamedTuple):
    id: int
    text: str
    logprob: float
    finish_reason: str | None
    top_logprobs: tuple[tuple[int, float], ...]
'''


def parameters(value, is_method):
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return "(self, *args: Any, **kwargs: Any)" if is_method else "(*args: Any, **kwargs: Any)"
    if is_method and not text.startswith(("(self", "($self")):
        text = "(self, " + text[1:] if text != "()" else "(self)"
    return text


def function(name, value, indent="", owner="", ops=()):
    returns = RETURNS.get(owner + name, "array" if name in ops else "Any")
    taken = "(self, *args: Any)" if name.startswith("__") else parameters(value, bool(owner))
    return f"{indent}def {name}{taken} -> {returns}: ..."


def stub_class(name, kind):
    yield f"\nclass {name}:"
    empty = True
    for member, value in sorted(vars(kind).items()):
        if member in LEFT_OUT:
            continue
        empty = False
        if isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            yield f"    @property\n    def {member}(self) -> {RETURNS.get(f'{name}.{member}', 'Any')}: ..."
        elif isinstance(value, types.ClassMethodDescriptorType):
            text = parameters(getattr(kind, member), False)
            yield "    @classmethod\n" + f"    def {member}(cls, {text[1:]} -> {RETURNS.get(f'{name}.{member}', 'Any')}: ..."
        elif callable(value):
            yield function(member, value, "    ", name + ".")
        else:
            yield f"    {member}: Any"
    if empty:
        yield "    ..."


def stub(module):
    members = {name: value for name, value in sorted(vars(module).items())
               if not (name.startswith("__") or name in ("Token", "version")
                       or isinstance(value, type) and issubclass(value, Exception))}
    ops = set(module.__all__) - RETURNS.keys()
    lines = [HEAD.rstrip("\n")]
    kinds = {name: value for name, value in members.items() if isinstance(value, type)}
    for kind in dict.fromkeys(list(kinds.values()) + [type(value) for value in members.values()]):
        if kind.__module__.startswith("gomlx") and kind.__name__ not in kinds:
            kinds[kind.__name__] = kind
    for name, kind in kinds.items():
        lines += stub_class(name, kind)
    lines.append("")
    for name, value in members.items():
        if name in kinds:
            continue
        lines.append(function(name, value, ops=ops) if callable(value) else f"{name}: {type(value).__name__}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    from gomlx import _gomlx
    print(stub(_gomlx), end="")
