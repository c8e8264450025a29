"""The small components of a tokenizer.json, each against what Hugging Face's library makes of the same file."""
import base64
import json
import pathlib
import struct

import places
import pytest
from test_tokenizer import bpe, load, streamed, vectors

import gomlx

ERRORS = (gomlx.Error,)
GOLDEN = pathlib.Path(places.GOLDEN)


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


# ---- normalizers ----
def bytes_model():
    """Its ids are the bytes of the text: what a normalizer wrote can be read off them."""
    return bpe([f"<0x{b:02X}>" for b in range(256)], byte_fallback=True)


def normalized(tok, text):
    return bytes(tok.encode(text)).decode()


def test_normalizers(tmp_path):
    data = vectors("components")
    assert len(data["normalizers"]) == 16
    for name, entry in data["normalizers"].items():
        tok = load(tmp_path, model=bytes_model(), normalizer=entry["config"])
        for text, want in zip(data["texts"], entry["out"]):
            assert normalized(tok, text) == want, (name, text)


@pytest.mark.parametrize("n", range(26))
def test_normalizers_by_golden(n, tmp_path):
    data = golden("normalizers")
    entry = data["normalizers"][n]
    tok = load(tmp_path, model=bytes_model(), normalizer=entry["normalizer"])
    for text, want in zip(data["texts"], entry["texts"]):
        assert normalized(tok, text) == want, (entry["normalizer"], text)


def test_all_goldens_are_tested():
    assert len(golden("normalizers")["normalizers"]) == 26


@pytest.mark.parametrize("normalizer, error, message", [
    ({"type": "Uppercase"}, NotImplementedError, "normalizer 'Uppercase'"),
    ({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFX"}]}, NotImplementedError, "NFX"),
    ({"type": "Prepend"}, gomlx.Error, "prepend"),
    ({"type": "Replace", "pattern": {"String": "a"}}, gomlx.Error, "content"),
    ({"type": "Lowercase", "type2": 1}, None, None),
    ({"type": "BertNormalizer", "strip_accents": "yes"}, gomlx.Error, "strip_accents"),
    ({"type": "Precompiled", "precompiled_charsmap": "AAA"}, gomlx.Error, "base64"),
    ({"type": "Precompiled", "precompiled_charsmap": "AA*A"}, gomlx.Error, "base64"),
    ({"type": "Precompiled", "precompiled_charsmap": ""}, gomlx.Error, "charsmap"),
    ({"type": "Precompiled", "precompiled_charsmap": "////////"}, gomlx.Error, "charsmap"),    # 4 GB in 6 bytes
    ({"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAD/"}, gomlx.Error, "UTF-8"),
])
def test_damaged_normalizer(normalizer, error, message, tmp_path):
    if error is None:
        assert normalized(load(tmp_path, model=bytes_model(), normalizer=normalizer), "A") == "a"
        return
    with pytest.raises(error, match=message):
        load(tmp_path, model=bytes_model(), normalizer=normalizer)


def charsmap(units, texts):
    data = struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + texts
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


@pytest.mark.parametrize("units, texts", [
    ([1 << 10], b""),                                       # every child lies outside the array
    ([(1 << 31) - 1], b"x"),
    ([0] * 0x61 + [0x61 | 1 << 8 | 0x1FFFFF << 10], b"x"),         # a text that ends outside of it
    ([0] * 0x61 + [0x61 | 1 << 8 | 0x61 << 10] + [0] * 99, b""),
    ([1 << 31 | 9] + [0] * 0x60 + [0x61 | 1 << 8 | 0x61 << 10], b"x"),    # a text behind all texts
    ([1 << 31 | 2] + [0] * 0x60 + [0x61 | 1 << 8 | 0x61 << 10], b"x\xc3\xa9"),    # half of a character
])
def test_hostile_charsmap(units, texts, tmp_path):
    tok = load(tmp_path, model=bytes_model(), normalizer=charsmap(units, texts))
    assert normalized(tok, "ab é") in ("ab é", "b é")


def test_a_run_of_marks_is_not_quadratic(tmp_path):
    steps = [{"type": "NFKC"}, {"type": "StripAccents"}, {"type": "Lowercase"}]
    tok = load(tmp_path, model=bytes_model(), normalizer={"type": "Sequence", "normalizers": steps})
    assert normalized(tok, "A" + "\u0301\u0323" * (1 << 18) + "B") == "\u1ea1b"


# ---- pre-tokenizers ----
def cutter(tmp_path, pieces, **parts):
    """A tokenizer whose tokens are the pieces that its pre-tokenizer cuts."""
    vocab = {piece: i for i, piece in enumerate(sorted({*pieces, "<unk>"}))}
    return load(tmp_path, model={"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}, **parts)


def test_pre_tokenizers(tmp_path):
    data = vectors("components")
    assert len(data["pre_tokenizers"]) == 44
    for name, entry in data["pre_tokenizers"].items():
        wanted = [[p if isinstance(p, str) else p[0] for p in out] for out in entry["out"]]
        tok = cutter(tmp_path, [p for out in wanted for p in out], pre_tokenizer=entry["config"])
        for text, want in zip(data["texts"], wanted):
            assert tok(text).tokens == want, (name, text)


@pytest.mark.parametrize("n", range(34))
def test_pre_tokenizers_by_golden(n, tmp_path):
    """Pieces and where in the text they come from, through normalizers too."""
    data = golden("pre_tokenizers")
    entry = data["pipelines"][n]
    pieces = [token for encoding in entry["encodings"] for token in encoding["tokens"]]
    tok = cutter(tmp_path, pieces, normalizer=entry["normalizer"], pre_tokenizer=entry["pre_tokenizer"])
    for text, want in zip(data["texts"], entry["encodings"]):
        got = tok(text)
        assert got.tokens == want["tokens"], (entry["pre_tokenizer"], text)
        assert [list(at) for at in got.offsets] == want["offsets"], (entry["pre_tokenizer"], text)
        assert tok.encode(text) == got.ids          # without offsets another way is taken


def test_all_pipelines_are_tested():
    assert len(golden("pre_tokenizers")["pipelines"]) == 34


@pytest.mark.parametrize("pre_tokenizer, error, message", [
    ({"type": "Morse"}, NotImplementedError, "pre_tokenizer 'Morse'"),
    ({"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}] * 17}, NotImplementedError, "in a row"),
    ({"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}] * 9}, NotImplementedError, "in a row"),
    ({"type": "Punctuation", "behavior": "Merged"}, gomlx.Error, "behavior"),
    ({"type": "CharDelimiterSplit", "delimiter": "--"}, gomlx.Error, "delimiter"),
    ({"type": "CharDelimiterSplit"}, gomlx.Error, "delimiter"),
    ({"type": "FixedLength", "length": 0}, gomlx.Error, "length"),
    ({"type": "FixedLength", "length": -1}, gomlx.Error, "length"),
    ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "last"}, gomlx.Error, "prepend_scheme"),
    ({"type": "Metaspace"}, gomlx.Error, "replacement"),
    ({"type": "Split", "pattern": {"String": "-"}, "behavior": "isolated"}, gomlx.Error, "behavior"),
    ({"type": "Split", "pattern": {"Glob": "-"}, "behavior": "Isolated"}, gomlx.Error, "pattern"),
    ({"type": "Digits", "individual_digits": 1}, gomlx.Error, "individual_digits"),
])
def test_damaged_pre_tokenizer(pre_tokenizer, error, message, tmp_path):
    with pytest.raises(error, match=message):
        load(tmp_path, pre_tokenizer=pre_tokenizer)


# ---- regular expressions ----
def regex_split(pattern, **more):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": True} | more


def test_patterns(tmp_path):
    """Oniguruma's meaning of each construct: what the pattern matches in each text."""
    data = golden("patterns")
    assert len(data["patterns"]) == 51
    for entry in data["patterns"]:
        tok = cutter(tmp_path, [p for pieces in entry["matches"] for p in pieces],
                     pre_tokenizer=regex_split(entry["pattern"]))
        for text, want in zip(data["texts"], entry["matches"]):
            assert tok(text).tokens == want, (entry["pattern"], text)


@pytest.mark.parametrize("pattern, message", [
    (r"a\p{Klingon}b", "Klingon"), (r"[\p{Klingon}]", "Klingon"), (r"[[:alpha:]]", "alpha"), (r"\p{", "p{"),
    (r"(a)\1", r"\\1"), (r"\X", r"\\X"), (r"\Ka", r"\\K"), (r"(?x: a)", r"\(\?x"), (r"(?<n>a)", r"\(\?<n"),
    (r"(?i:ss)", "several"), (r"(?i:ß)", "several"), (r"(?i:[a&&b])", "&&"), (r"(?i:[a[b]])", "inside a class"),
    ("(a", "not closed"), ("a)", "closes no"), ("[a", "not closed"), ("[]a]", r"\]"), ("[b-a]", "range"),
    (r"[\d-z]", "range"), ("[a&&", "not closed"), ("a\\", "ends"), ("[a\\", "ends|not closed"), (r"\x{110000}", "x"),
    (r"\ud800", "ud800"), ("*a", "quantifier"), ("(" * 101, "deep"), ("[" * 102, "class"),
    (r"(?:\p{L}a){400}", "too large"), (r"\b" * 10_000, "makes it too large"),
])
def test_what_a_pattern_cannot_have_is_named(pattern, message, tmp_path):
    with pytest.raises(NotImplementedError, match=message):
        load(tmp_path, pre_tokenizer=regex_split(pattern))


def test_a_pattern_that_backtracks_without_end_is_an_error(tmp_path):
    tok = load(tmp_path, pre_tokenizer=regex_split("(?:a|aa)+$"))
    with pytest.raises(NotImplementedError, match="limit"):
        tok.encode("a" * 5000 + "b")


@pytest.mark.parametrize("lstrip", [False, True])
def test_an_added_token_in_the_white_space_of_another(lstrip, tmp_path):
    added = [{"id": 3, "content": "<a>", "rstrip": True}, {"id": 4, "content": " x", "lstrip": lstrip}]
    tok = cutter(tmp_path, ["x", "y"], added_tokens=added)
    for text, wanted in [("<a> x", [(0, 4), (4 if lstrip else 3, 5)]),
                         ("y x<a>  x", [(0, 1), (1, 3), (3, 8), (8 if lstrip else 7, 9)])]:
        assert tok(text).ids == [2, 4, 3, 4][4 - len(wanted):]
        assert list(map(tuple, tok(text).offsets)) == wanted


# ---- decoders ----
@pytest.mark.parametrize("n", range(27))
def test_decoders(n, tmp_path):
    data = golden("decoders")
    entry = data["decoders"][n]
    tok = load(tmp_path, model=bpe(data["vocab"]), decoder=entry["decoder"])
    for ids, want in zip(data["tokens"], entry["texts"]):
        if want is None:            # the library gives up
            continue
        assert tok.decode(ids) == want, (entry["decoder"], [data["vocab"][i] for i in ids])
        if "ByteFallback" not in json.dumps(entry["decoder"]) or "\uFFFD" not in want:
            assert streamed(tok, ids) == want


def test_all_decoders_are_tested():
    assert len(golden("decoders")["decoders"]) == 27


FUSED = {"type": "Fuse"}


@pytest.mark.parametrize("decoders, parts", [
    ([FUSED, {"type": "Replace", "pattern": {"String": "ab"}, "content": "X"}], ["b", "", "X", "c", ""]),
    ([{"type": "Strip", "content": "a", "start": 0, "stop": 1}], ["b", "", "b", "c", ""]),
    ([FUSED, {"type": "Strip", "content": "a", "start": 0, "stop": 1}], ["b", "", "ab", "c", ""]),
    ([{"type": "BPEDecoder", "suffix": "c"}], ["b", "a", "b", "", " a"]),
])
def test_a_stream_holds_back_what_is_not_certain(decoders, parts, tmp_path):
    tok = load(tmp_path, model=bpe(["a", "b", "c"]), decoder={"type": "Sequence", "decoders": decoders})
    stream = tok.stream(skip_special_tokens=False)
    assert [stream.push("abc".index(c)) for c in "babca"] == parts
    assert "".join(parts) + stream.finish() == tok.decode(["abc".index(c) for c in "babca"])


@pytest.mark.parametrize("decoder, message", [
    ({"type": "Morse"}, "decoder 'Morse'"),
    ({"type": "Sequence", "decoders": [FUSED, {"type": "Morse"}]}, "decoder 'Morse'"),
    ({"type": "Sequence", "decoders": [FUSED] * 25}, "decoders in a row"),
])
def test_unknown_decoder_is_named(decoder, message, tmp_path):
    with pytest.raises(NotImplementedError, match=message):
        load(tmp_path, decoder=decoder)


@pytest.mark.parametrize("decoder, message", [
    ({"type": "Strip", "content": "ab", "start": 1, "stop": 0}, "content"),
    ({"type": "Strip", "content": "", "start": 1, "stop": 0}, "content"),
    ({"type": "Strip", "content": " ", "start": -1, "stop": 0}, "start"),
    ({"type": "Replace", "pattern": {"String": "a"}}, "content"),
    ({"type": "Replace", "pattern": {"Regex": "("}, "content": ""}, "pattern"),
    ({"type": "WordPiece"}, "prefix"),
    ({"type": "BPEDecoder"}, "suffix"),
    ({"type": "CTC", "pad_token": "a"}, "word_delimiter_token"),
    ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "sometimes"}, "prepend_scheme"),
])
def test_damaged_decoder(decoder, message, tmp_path):
    with pytest.raises((NotImplementedError, *ERRORS), match=message):
        load(tmp_path, decoder=decoder)
