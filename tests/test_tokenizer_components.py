"""The small components of a tokenizer.json, each against what Hugging Face's library makes of the same file."""
import json
import pathlib

import pytest

import gomlx

from test_tokenizer import bpe, load, streamed

ERRORS = (gomlx.Error,)
GOLDEN = pathlib.Path(__file__).parent / "golden"


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


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
