"""Tokenizers against vectors of Hugging Face's library, and against the library itself where it is installed."""
import json
import os
import pathlib
import random
import struct

import pytest
from byte_level import byte_alphabet
from places import ROOT

import gomlx

SHARED = pathlib.Path(os.environ.get("GOMLX_SHARED", os.path.join(os.path.dirname(ROOT), "shared"))) / "data"
NAMES = ["gpt2", "llama3_2", "qwen3", "deepseek_v3", "mistral_nemo", "gemma3"]
MODELS = ["fable", "llama3", "stories260k"]
R_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def shared(path):
    file = SHARED / path
    if not file.exists():
        pytest.skip(f"no test data: {path} (set GOMLX_SHARED)")
    return file


def vectors(name):
    return json.loads(shared(f"tokenizer-vectors/{name}.json").read_text("utf-8"))


def tokenizer_file(name):
    return shared(f"models/{name}/tokenizer.json" if name in MODELS else f"tokenizers/{name}/tokenizer.json")


def streamed(tok, ids):
    stream = tok.stream(skip_special_tokens=False)
    return "".join([stream.push(i) for i in ids] + [stream.finish()])


def load(tmp_path, **parts):
    """A tokenizer from a file made of these parts."""
    file = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": None, "model": bpe(["a", "b", "ab"], [["a", "b"]])}
    file.update(parts)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file, ensure_ascii=False), "utf-8")
    return gomlx.Tokenizer.from_file(path)


def bpe(tokens, merges=(), **settings):
    return {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": list(merges)} | settings


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def whole_pieces(pieces):
    """A model whose ids are pieces: it makes the cuts of a pre-tokenizer visible."""
    return bpe(sorted(set(pieces)), ignore_merges=True)


# ---- the vectors ----
@pytest.mark.parametrize("name", NAMES)
def test_vectors(name):
    data = vectors(name)
    tok = gomlx.Tokenizer.from_file(tokenizer_file(name))
    for case in data["cases"]:
        text, ids = case["text"], case["ids"]
        assert tok.encode(text, add_special_tokens=False) == ids, text
        assert tok.encode(text) == case.get("ids_special", data["special_prefix"] + ids), text
        decoded = case.get("decoded", text)
        assert tok.decode(ids) == decoded
        assert tok.decode(ids, skip_special_tokens=True) == case.get("decoded_skip_special", decoded)
        assert streamed(tok, ids) == decoded


@pytest.mark.parametrize("name", ["plain", "nfc_prefix", "spm"])
def test_added_token_flags(name, tmp_path):
    config = vectors("added_token_flags")["configs"][name]
    tok = load(tmp_path, **config["tokenizer_json"])
    for case in config["cases"]:
        assert tok.encode(case["text"]) == case["ids"], case["text"]
        assert tok.decode(case["ids"]) == case["decoded"]
        assert tok.decode(case["ids"], skip_special_tokens=True) == case["decoded_skip_special"]
        assert streamed(tok, case["ids"]) == case["decoded"]


@pytest.mark.parametrize("through_regex", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama3", "qwen3", "deepseek_v3", "mistral_nemo", "gptoss", "command_r_plus"])
def test_split_patterns(name, through_regex, tmp_path):
    """Adversarial strings: the hand-written scanners, and the same patterns run by PCRE2."""
    data = vectors("pretok_splits_hf")
    entry, alphabet = data["by_tokenizer"][name], byte_alphabet()
    pre = entry["pre_tokenizer"]
    if through_regex:       # a group around a pattern makes it one that has no scanner
        steps = []
        for step in pre.get("pretokenizers", [pre]):
            if step["type"] == "ByteLevel" and step["use_regex"]:
                steps.append(split(f"(?:{R_GPT2})"))
                step = step | {"use_regex": False}
            elif step["type"] == "Split":
                step = step | {"pattern": {"Regex": "(?:" + step["pattern"]["Regex"] + ")"}}
            steps.append(step)
        pre = {"type": "Sequence", "pretokenizers": steps}
    wanted = []
    for text, lengths in zip(data["texts"], entry["lens"]):
        ends = [sum(lengths[:i + 1]) for i in range(len(lengths))]
        pieces = [text[end - n:end] for n, end in zip(lengths, ends)]
        wanted.append(["".join(alphabet[b] for b in piece.encode()) for piece in pieces])
    model = whole_pieces([p for pieces in wanted for p in pieces])
    tok = load(tmp_path, model=model, pre_tokenizer=pre)
    known = list(model["vocab"])
    for text, want in zip(data["texts"], wanted):
        assert [known[i] for i in tok.encode(text)] == want, repr(text)


# ---- the library itself ----
RANGES = [(0x20, 0x7F), (0, 0x370), (0x300, 0x370), (0x370, 0x780), (0x900, 0xE00), (0x1100, 0x1200), (0x1E00, 0x2100),
          (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xFE00, 0x10000), (0x1F000, 0x20000), (0, 0x110000)]
WORDS = ["the", " of", " 's", "'S", "'ll", "don't", "12345", "3.14", " Hello", "naïve", "\r\n", "▁", "<0x0A>", "<s>",
         "</s>", "ſ", "'ſ", "e\u0301", "...", " !!!", "CamelCase", "XMLHttp", "ǅ", "ª", "中文", "한국어", "العربية",
         "हिन्दी", "👨‍👩‍👧", "½", "Ⅷ"]


def random_text(rng, added):
    parts = []
    for _ in range(rng.choice([1, 3, 6, 12, 40])):
        kind = rng.random()
        if kind < 0.4:
            parts.append(rng.choice(WORDS))
        elif kind < 0.5:
            parts.append(rng.choice(" \n\t\r\u2003\x85") * rng.randrange(1, 6))
        elif kind < 0.58:
            parts.append(rng.choice(added))
        else:
            chars = [rng.randrange(*rng.choice(RANGES)) for _ in range(rng.randrange(1, 6))]
            parts += [chr(c) for c in chars if not 0xD800 <= c < 0xE000]
    return "".join(parts)


@pytest.mark.parametrize("name", NAMES + MODELS)
def test_random_text_against_the_library(name):
    tokenizers = pytest.importorskip("tokenizers")
    path = tokenizer_file(name)
    ours, theirs = gomlx.Tokenizer.from_file(path), tokenizers.Tokenizer.from_file(str(path))
    added = [token.content for _, token in sorted(theirs.get_added_tokens_decoder().items())]
    rng, size = random.Random(name), theirs.get_vocab_size()
    for k in range(400):
        text, special = random_text(rng, added), bool(k & 1)
        ids = theirs.encode(text, add_special_tokens=special).ids
        assert ours.encode(text, add_special_tokens=special) == ids, repr(text)
        decoded = theirs.decode(ids, skip_special_tokens=False)
        assert ours.decode(ids) == decoded and streamed(ours, ids) == decoded
        noise = [rng.randrange(size + 3) for _ in range(rng.randrange(1, 12))]
        assert ours.decode(noise, skip_special_tokens=special) == theirs.decode(noise, skip_special_tokens=special)


# ---- GGUF ----
def gguf_string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def write_gguf(path, entries):
    """Metadata only. Values: str, bool, int, or (item type, list)."""
    formats = {4: "<I", 5: "<i", 6: "<f"}
    out = b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries))
    for key, value in entries.items():
        out += gguf_string(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + gguf_string(value)
        elif isinstance(value, bool):
            out += struct.pack("<IB", 7, value)
        elif isinstance(value, int):
            out += struct.pack("<II", 4, value)
        else:
            kind, items = value
            out += struct.pack("<IIQ", 9, kind, len(items))
            out += b"".join(gguf_string(i) if kind == 8 else struct.pack(formats[kind], i) for i in items)
    path.write_bytes(out)
    return path


def protobuf(data):
    """(field, value) of one message: varints, four bytes, or bytes."""
    def varint(at):
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                return value, at
    at = 0
    while at < len(data):
        tag, at = varint(at)
        if tag & 7 == 0:
            value, at = varint(at)
        elif tag & 7 == 5:
            value, at = data[at:at + 4], at + 4
        else:
            assert tag & 7 == 2
            n, at = varint(at)
            value, at = data[at:at + n], at + n
        yield tag >> 3, value


def test_gguf_with_scores(tmp_path):
    """The Llama 2 vocabulary: its scores become merges."""
    tokens, scores, types = [], [], []
    for field, piece in protobuf(shared("tokenizers/llama2/tokenizer.model").read_bytes()):
        if field == 1:
            entry = dict(protobuf(piece))
            tokens.append(entry[1])
            scores.append(struct.unpack("<f", entry[2])[0])
            types.append(entry.get(3, 1))
    path = write_gguf(tmp_path / "llama.gguf", {
        "general.architecture": "llama", "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": (8, tokens),
        "tokenizer.ggml.scores": (6, scores), "tokenizer.ggml.token_type": (5, types)})
    tok, data = gomlx.Tokenizer.from_gguf(path), vectors("llama-spm")
    for case in data["cases"]:
        ids = case["ids"]
        assert tok.encode(case["text"], add_special_tokens=False) == ids, case["text"]
        assert tok.encode(case["text"]) == [1] + ids
        assert tok.decode(ids) == case.get("decoded", case["text"])


@pytest.mark.parametrize("quant", ["BF16", "Q4_0"])
def test_gguf_equals_json(quant):
    text = shared("text/stories.txt").read_text("utf-8")
    ours = gomlx.Tokenizer.from_gguf(shared(f"models/fable-gguf/fable-{quant}.gguf"))
    other = gomlx.Tokenizer.from_file(tokenizer_file("fable"))
    ids = ours.encode(text)
    assert ids == other.encode(text) and ours.decode(ids) == text
    chat = "<|im_start|>user\nhi<|im_end|>\n"
    assert ours.encode(chat) == other.encode(chat)


def byte_gguf(**entries):
    return {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe",
            "tokenizer.ggml.tokens": (8, ["a", "b", "ab", "<s>"]), "tokenizer.ggml.merges": (8, ["a b"]),
            "tokenizer.ggml.token_type": (5, [1, 1, 1, 3]), "tokenizer.ggml.bos_token_id": 3} | entries


def test_gguf_start_token(tmp_path):
    """Llama 3's group adds its start token unless the file says otherwise."""
    path = tmp_path / "t.gguf"
    assert gomlx.Tokenizer.from_gguf(write_gguf(path, byte_gguf())).encode("ab<s>") == [3, 2, 3]
    no_bos = byte_gguf(**{"tokenizer.ggml.add_bos_token": False})
    assert gomlx.Tokenizer.from_gguf(write_gguf(path, no_bos)).encode("ab<s>") == [2, 3]


@pytest.mark.parametrize("entries, message", [
    ({"tokenizer.ggml.pre": "new-model"}, "new-model"),
    ({"tokenizer.ggml.model": "rwkv"}, "rwkv"),
])
def test_gguf_unknown_kind_is_named(entries, message, tmp_path):
    path = write_gguf(tmp_path / "t.gguf", byte_gguf(**entries))
    with pytest.raises(NotImplementedError, match=message):
        gomlx.Tokenizer.from_gguf(path)


@pytest.mark.parametrize("entries", [
    {"tokenizer.ggml.merges": (8, ["a c"])},                     # a part that is no token
    {"tokenizer.ggml.merges": (8, ["ab"])},                      # no parts
    {"tokenizer.ggml.token_type": (5, [1, 1])},                  # too few
    {"tokenizer.ggml.token_type": (8, ["1", "1", "1", "1"])},    # strings
    {"tokenizer.ggml.bos_token_id": 99},
    {"tokenizer.ggml.tokens": (8, ["a", "b", "ab", b"\xff"])},
    {"tokenizer.ggml.tokens": "a"},
])
def test_gguf_damaged(entries, tmp_path):
    path = write_gguf(tmp_path / "t.gguf", byte_gguf(**entries))
    with pytest.raises(gomlx.Error):
        gomlx.Tokenizer.from_gguf(path)


# ---- streams ----
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PIECES = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                           {"type": "ByteFallback"}, {"type": "Fuse"},
                                           {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def test_stream_holds_back_only_half_characters(tmp_path):
    alphabet = list(byte_alphabet().values())
    tok = load(tmp_path, model=bpe(alphabet), decoder=BYTES, pre_tokenizer=BYTES)
    stream = tok.stream(skip_special_tokens=False)
    got = [stream.push(byte) for byte in "aé한👍".encode()]
    assert got == ["a", "", "é", "", "", "한", "", "", "", "👍"] and stream.finish() == ""
    # E1 can still become a character, E1 41 no more; F5 never; a cut end shows when the stream ends.
    assert [stream.push(b) for b in b"\xE1A\xF5\xF0\x9F"] == ["", "\uFFFDA", "\uFFFD", "", ""]
    assert stream.finish() == "\uFFFD"


def test_stream_of_byte_tokens_and_leading_space(tmp_path):
    tokens = [f"<0x{b:02X}>" for b in range(256)] + ["▁a", "▁"]
    tok = load(tmp_path, model=bpe(tokens), decoder=PIECES)
    stream = tok.stream(skip_special_tokens=False)
    assert [stream.push(i) for i in [257, 256, 0xC3, 0xA9, 256]] == ["", " a", "", "é", " a"]
    assert tok.decode([257, 256, 0xC3, 0xA9, 256]) == " aé a"
    # The batch turns a run with any fault into U+FFFD, byte by byte, as the reference does.
    assert tok.decode([256, 0xC3, 0xA9, 0xFF, 256]) == "a\uFFFD\uFFFD\uFFFD a"


# ---- what is refused ----
@pytest.mark.parametrize("parts, message", [
    ({"post_processor": {"type": "OtherProcessing"}}, "OtherProcessing"),
    ({"model": {"type": "Characters", "vocab": []}}, "Characters"),
    ({"model": bpe(["a"], dropout=0.1)}, "dropout"),
])
def test_unknown_component_is_named(parts, message, tmp_path):
    with pytest.raises(NotImplementedError, match=message):
        load(tmp_path, **parts)


@pytest.mark.parametrize("model", [
    {"type": "BPE", "merges": []},
    bpe(["a", "b"], ["a b"]),                    # the merged token is missing
    bpe(["a", "ab"], [["a", "b"]]),
    bpe(["a", "b", "ab"], ["a  b"]),
    bpe(["a", "b", "ab"], [["a", "b", "c"]]),
    {"type": "BPE", "vocab": {"a": -1}, "merges": []},
    {"type": "BPE", "vocab": {"a": 2 ** 40}, "merges": []},
    {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []},
    {"type": "BPE", "vocab": {"a": "0"}, "merges": []},
    [],
])
def test_damaged_model(model, tmp_path):
    with pytest.raises(gomlx.Error):
        load(tmp_path, model=model)


@pytest.mark.parametrize(("token_id", "message"), [
    (10**9, "tokenizer.json.*<new>.*1000000000"), (1 << 22, "4194304"), (-1, "'id' is -1, expected at least 0"),
    ("3", "'id' is a string, expected an integer"), (1.5, "integer")])
def test_added_token_of_an_absurd_id(token_id, message, tmp_path):
    """The number decides nothing, as in the reference, but one that no vocabulary has is no accident."""
    with pytest.raises(gomlx.Error, match=message):
        load(tmp_path, model=bpe(["a"]), added_tokens=[{"id": token_id, "content": "<new>"}])
    assert load(tmp_path, model=bpe(["a"]), added_tokens=[{"id": 7, "content": "<new>"}]).token_to_id("<new>") == 1


def test_long_pieces_are_not_quadratic(tmp_path):
    """A million letters in one piece; the square would take hours."""
    tokens = ["a"] + ["a" * 2 ** k for k in range(1, 11)]
    merges = [["a" * 2 ** k, "a" * 2 ** k] for k in range(10)]
    tok = load(tmp_path, model=bpe(tokens, merges))
    assert tok.encode("a" * (1 << 20)) == [10] * 1024


def test_names_of_transformers_tokenizers():
    tok = gomlx.Tokenizer.from_gguf(gomlx.loading.PACKAGED_FILE)
    assert len(tok) == tok.vocab_size == len(tok.get_vocab())
    assert all(tok.token_to_id(token) == i for token, i in tok.get_vocab().items())
    assert (tok.eos_token_id, tok.pad_token_id, tok.bos_token_id) == (2, 0, None) and tok.eos_token == "<|im_end|>"
    first, *_ = ids = tok.encode("Once upon")
    assert tok.decode(first) == tok.decode([first]) == "Once" and tok.decode(ids) == "Once upon"
