"""Tokenizer: the engine's tokenizer plus what a model's files say beside it: special tokens by role and the chat
template."""
from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from gomlx import _gomlx
from gomlx._base import arguments, notebook
from gomlx._files import headers
from gomlx._files.reading import mapped, read_json
from gomlx._generation import chat, chat_formats, defaults

# The keyword arguments of a call, for its error message.
CALL = ("pair", "add_special_tokens", "parse_special", "truncation", "padding", "threads")


class Tokenizer(_gomlx.Tokenizer):
    """encode, decode, stream and the vocabulary are the engine's; the chat template is the model's own Jinja.

        tok = gomlx.Tokenizer.from_file("path/to/tokenizer.json")
        tok.encode("Hello")                         # [9707]
        tok("Hello", "world").offsets               # an Encoding: ids, tokens, offsets, masks

    A Tokenizer never changes; any number of threads may use it.

    chat_template           the template's text, or None
    bos_token, eos_token, pad_token     texts of these tokens, or None; bos_token_id, ... their ids
    model_type              what config.json or GGUF's architecture calls the model, or None: see chat_format
    per_layer_inputs        whether the model has them (Gemma 4's small ones), which its built-in chat format asks
    """

    _templates: dict[str, str] = {}
    _folder = _metadata = None              # where it was loaded from: a folder, or a GGUF file and its metadata
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    model_type: str | None = None
    per_layer_inputs: bool = False

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """From a folder with a tokenizer.json or else a tokenizer.model (SentencePiece), or from such a file; the
        files beside it give the chat template and, for a tokenizer.model, the added tokens."""
        path = os.fspath(path)
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        file = _file_in(folder) if os.path.isdir(path) else path
        config = read_json(os.path.join(folder, "tokenizer_config.json"))
        data = mapped(file)
        if _is_json(file, data):
            self = cls.from_json(data, file)
        else:
            parts, add_bos, add_eos = _beside_model(folder, config)
            self = cls.from_sentencepiece(data, parts, add_bos, add_eos, file)
        names = read_json(os.path.join(folder, "special_tokens_map.json")) | config
        self.bos_token, self.eos_token, self.pad_token = (token_text(names.get(f"{role}_token"))
                                                          for role in ("bos", "eos", "pad"))
        self._templates = chat.templates_in_folder(folder, config)
        self._folder = folder
        return self

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str], metadata: dict[str, Any] | None = None) -> Tokenizer:
        """From a GGUF file. metadata: its scalar keys, as in model.info["metadata"], where they are known already."""
        self = super().from_gguf(os.fspath(path))
        metadata = headers.read(path).config if metadata is None else metadata
        self._metadata, self._folder = metadata, os.fspath(path)
        self.bos_token = self._token_of(metadata.get("tokenizer.ggml.bos_token_id"))
        self.eos_token = self._token_of(metadata.get("tokenizer.ggml.eos_token_id"))
        self.pad_token = self._token_of(metadata.get("tokenizer.ggml.padding_token_id"))
        self._templates = chat.templates_in_gguf(metadata, os.fspath(path))
        return self

    def check_fit(self, file: str, rows: int, rows_of: str) -> None:
        """gomlx.Error when this is the tokenizer of another model than one with `rows` rows of embeddings. file: where
        the tokenizer is from; rows_of: what says the number of rows.

        Training pads the rows to a multiple of 64 to 512: Qwen 2.5 has 151936 or 152064 for 151665 ids, Gemma 3 262208
        for 262145, Phi 2 51200 for 50295, none twice as many as there are ids. Added tokens may be after the rows, as
        Gemma 3's <image_soft_token> is in its models without images; they raise when a text has them. Which ids
        config.json names as BOS, EOS or padding tells nothing: files of one good model contradict each other there."""
        if self.base_vocab_size > rows:
            token = self.id_to_token(self.base_vocab_size - 1)
            raise _gomlx.Error(f"{file}: the tokenizer's vocabulary goes to id {self.base_vocab_size - 1} ({token!r}), "
                               f"expected ids below {rows_of} {rows}: it is another model's")
        if 2 * self.vocab_size < rows:
            raise _gomlx.Error(f"{file}: the tokenizer has {self.vocab_size} ids, expected about as many as {rows_of} "
                               f"{rows}: it is another model's")

    @property
    def bos_token_id(self) -> int | None:
        """The id of bos_token, or None."""
        return self._id_of(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        """The id of eos_token, or None; eos_ids names each id that ends a generation."""
        return self._id_of(self.eos_token)

    @property
    def pad_token_id(self) -> int | None:
        """The id of pad_token, or None."""
        return self._id_of(self.pad_token)

    def _id_of(self, token):
        return self.token_to_id(token) if token is not None else None

    def get_vocab(self) -> dict[str, int]:
        """{token: id} of the whole vocabulary, the added tokens included."""
        tokens = map(self.id_to_token, range(self.vocab_size))
        return {token: i for i, token in enumerate(tokens) if token is not None}

    def __len__(self) -> int:
        """vocab_size."""
        return self.vocab_size

    def _token_of(self, token_id):
        return self.id_to_token(token_id) if isinstance(token_id, int) and 0 <= token_id < self.vocab_size else None

    @overload
    def __call__(self, text: str | bytes, pair: str | bytes | None = None, add_special_tokens: bool = True,
                 **options: Any) -> _gomlx.Encoding: ...
    @overload
    def __call__(self, text: list[str] | list[bytes] | tuple[str | bytes, ...],
                 pair: Sequence[str | bytes] | None = None, add_special_tokens: bool = True,
                 **options: Any) -> list[_gomlx.Encoding]: ...
    def __call__(self, text: Any, pair: Any = None, add_special_tokens: bool = True,
                 **options: Any) -> _gomlx.Encoding | list[_gomlx.Encoding]:
        """The Encoding of a text, or of a pair of texts; of a list of texts (and one of pairs) a list of Encodings,
        made on the engine's threads. options: parse_special, truncation, padding as in encode()."""
        arguments.known("Tokenizer.__call__", options, CALL)
        one = isinstance(text, (str, bytes))
        return (self.encoding if one else self.encoding_batch)(text, pair, add_special_tokens, **options)

    def decode_batch(self, batch: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        """The text of each sequence of ids."""
        return [self.decode(ids, skip_special_tokens) for ids in batch]

    def bare(self, text: str | bytes) -> list[int]:
        """The ids of the text alone: without added tokens, truncation or padding, whatever the file declares."""
        return self.encode(text, False, truncation=False, padding=False)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that an id adds to a text that others have begun: of a part of a character that part, of
        WordPiece's beginnings of words a space before them, of a special token its own text; b"" of an id that no
        token has."""
        return self.bytes_of_tokens([token], self._begin_a_text)[0]

    def all_token_bytes(self) -> list[bytes]:
        """token_bytes() of each id below vocab_size."""
        return self.bytes_of_tokens(range(self.vocab_size), self._begin_a_text)

    @functools.cached_property
    def _begin_a_text(self):
        """Two ids with text of their own."""
        return list(dict.fromkeys(one for letter in "abxe10." for one in self.bare(letter)[-1:]
                                  if not self.is_special(one) and self.decode([one])))[:2]

    @functools.cached_property
    def special_tokens(self) -> dict[str, int]:
        """{text: id} of all special tokens, by id: decoding can leave them out."""
        return {self.id_to_token(one): one for one in self.special_ids()}

    @functools.cached_property
    def eos_ids(self) -> dict[int, list[str]]:
        """{id: [source, ...]} of the ids that end a generation: the union of what generation_config.json, config.json
        and tokenizer_config.json beside the file name, or GGUF's metadata, and of the known ends of turns that are
        special tokens here."""
        if self._metadata is not None:
            return defaults.stop_ids(self, metadata=self._metadata, where=self._folder)
        found = {name: read_json(os.path.join(self._folder, file)) if self._folder is not None else {}
                 for name, file in (("generation", "generation_config.json"), ("config", "config.json"))}
        return defaults.stop_ids(self, where=self._folder or "", **found)

    def render(self, text: str | bytes | Sequence[int], *, colour: bool = True, add_special_tokens: bool = True) -> str:
        """The tokens of a text, or of ids, as lines to print: the id, and the text that it completes ("" within a
        character); special tokens by name. colour: with a terminal's codes."""
        ids = self.encode(text, add_special_tokens) if isinstance(text, (str, bytes)) else list(text)
        rows, lines = self.pieces(ids), []
        width = max((len(str(one)) for one in ids), default=0)
        for i, row in enumerate(rows):
            shown, code = (row["token"], "7;36") if row["special"] else (repr(row["text"]), "32" if i % 2 else "1")
            name = f"  {row['token']}" if not row["text"] and not row["special"] else ""
            lines.append(f"{row['id']:{width}}  " + (f"\033[{code}m{shown}\033[0m" if colour else shown) + name)
        return "\n".join(lines)

    def pieces(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """For each id {"id", "token", "text", "special"}: the vocabulary's name for it, and the text that it completes,
        "" within a character."""
        return [{"id": one, "token": self.id_to_token(one), "text": text, "special": self.is_special(one)}
                for one, text in zip(ids, self.completed(ids), strict=True)]

    def completed(self, ids: Sequence[int]) -> list[str]:
        """The text that each id completes, "" within a character; together they are the text of all."""
        stream = self.stream(skip_special_tokens=False)
        texts = [stream.push(one) for one in ids]
        if texts:
            texts[-1] += stream.finish()
        return texts

    def _repr_html_(self) -> str:
        return notebook.tokenizer(self)

    @property
    def chat_template(self) -> str | None:
        return self._templates.get("default")

    @property
    def chat_format(self) -> str | None:
        """The family's built-in format (chat_formats.py), used only where the model brings no template."""
        return chat_formats.choose(lambda token: self.token_to_id(token) is not None, self.model_type)

    def template_for(self, tools: Sequence[dict[str, Any]] | None = None, chat_format: str | None = None) -> str:
        """The template's text that apply_chat_template would render."""
        template = self._templates.get("tool_use") if tools else None
        template = template or self.chat_template
        if template is not None and chat_format is None:
            return template
        name = chat_format or self.chat_format
        if name is None:
            raise _gomlx.Error("this model has no chat template, and its vocabulary has the turn markers of no family: "
                               "use generate() with a prompt in the model's own format, or chat_format=, one of "
                               + ", ".join(chat_formats.FORMATS))
        if name not in chat_formats.FORMATS:
            raise ValueError(f"chat_format: unknown format {name!r}; expected one of "
                             + ", ".join(chat_formats.FORMATS))
        return chat_formats.FORMATS[name]

    @overload
    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]] | None = None,
                            add_generation_prompt: bool = True, chat_format: str | None = None, *,
                            tokenize: Literal[False] = False, **kwargs: Any) -> str: ...
    @overload
    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]] | None = None,
                            add_generation_prompt: bool = True, chat_format: str | None = None, *,
                            tokenize: Literal[True], **kwargs: Any) -> list[int]: ...
    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]] | None = None,
                            add_generation_prompt: bool = True, chat_format: str | None = None, *,
                            tokenize: bool = False,
                            **kwargs: Any) -> str | list[int]:
        """The text that the model's template makes of messages, a list of {"role": ..., "content": ...}; with tokenize
        its ids, in which BOS comes once. chat_format names a built-in format that is used instead; kwargs are the
        template's variables. ValueError when the template refuses the messages; gomlx.Error, with the line, when it is
        broken."""
        roles = {"bos_token": self.bos_token or "", "eos_token": self.eos_token or "",
                 "per_layer_inputs": self.per_layer_inputs}
        text = chat.render(self.template_for(tools, chat_format), messages, tools=tools,
                           add_generation_prompt=add_generation_prompt, **(roles | kwargs))
        return self.encode_prompt(text) if tokenize else text

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a prompt: begins with BOS if this tokenizer adds one, once, and never ends with EOS."""
        ids, prefix = self.bare(text), self._prefix()
        return ids if ids[:len(prefix)] == prefix else prefix + ids

    def encode_after(self, text: str) -> list[int]:
        """Ids of a text that follows another: nothing is put before it, no BOS and no space; special tokens in it
        are read as such. The text before keeps its ids, also where both together would have others."""
        ids = self.bare(text)
        for before in ("\n", "a", "."):
            first = self.bare(before)
            if self.decode(first + ids) == before + text:       # no space of SentencePiece's comes with it
                return ids
            both = self.bare(before + text)
            if both[:len(first)] == first and self.decode(both) == before + text:
                return both[len(first):]
        return ids                                              # a normalizer changes the text

    def sequences_with(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids after which one of the texts may have come: every token that has it inside, and every token that ends
        with its beginning, with the tokens of its rest. The vocabulary is read once for each combination of texts."""
        known, key = self.__dict__.setdefault("_sequences", {}), tuple(texts)
        if key not in known:
            rests = {text: [self.bare(text[i:]) for i in range(1, len(text))]
                     for text in key}
            found = []
            for i in range(self.vocab_size):
                token = self.decode([i])
                if any(text in token for text in key):
                    found.append([i])
                else:
                    found += [[i, *rest] for text in key for at, rest in enumerate(rests[text], 1)
                              if token.endswith(text[:at])]
            known[key] = found
        return known[key]

    def _prefix(self):
        """The ids that the post-processor puts before any text, found by encoding one."""
        bare, full = self.bare("a"), self.encode("a", truncation=False, padding=False)
        for start in range(len(full) - len(bare) + 1):
            if full[start:start + len(bare)] == bare:
                return full[:start]
        return []


def token_text(value):
    """A token in a tokenizer_config.json: its text, or {"content": text, ...}."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _file_in(folder):
    for name in ("tokenizer.json", "tokenizer.model"):
        if os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    raise FileNotFoundError(f"neither tokenizer.json nor tokenizer.model in {folder!r}")


def _is_json(file, data):
    """By the file's name, or if that does not tell, by its first bytes."""
    name = os.path.basename(file)
    return name.endswith(".json") or not name.endswith(".model") and bytes(data[:64]).lstrip()[:1] == b"{"


# Tokenizers with fairseq's numbers: their ids are those of the model moved by one and more.
FAIRSEQ = ("XLMRoberta", "MBart", "Camembert", "Barthez", "Nllb", "Plbart", "XGLM")


def _beside_model(folder, config):
    """What a tokenizer.model does not say: added tokens, as tokenizer.json has them; whether texts get bos, eos."""
    name = str(config.get("tokenizer_class") or "")
    if name.startswith(FAIRSEQ):
        raise NotImplementedError(f"{folder}: a {name} numbers its tokens otherwise than its tokenizer.model; it needs "
                                  "a tokenizer.json")
    try:
        added = {int(i): dict(token) for i, token in (config.get("added_tokens_decoder") or {}).items()}
        for token, i in read_json(os.path.join(folder, "added_tokens.json")).items():
            added.setdefault(int(i), {"content": token})
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise _gomlx.Error(f"{folder}: the added tokens beside tokenizer.model have no texts or ids: {error}") from None
    tokens = [{"special": False, "normalized": False} | token | {"id": i} for i, token in sorted(added.items())]
    return (json.dumps({"added_tokens": tokens}).encode(), config.get("add_bos_token", True) is not False,
            config.get("add_eos_token", name.startswith("T5")) is True)
