"""Models and files of tokenizers: Unigram, WordPiece, WordLevel and BPE against Hugging Face's library where it is
installed, SentencePiece .model files against SentencePiece, damaged files of every kind."""
import io
import json
import random
import re
import struct

import pytest
from byte_level import byte_alphabet
from test_tokenizer import bpe, byte_gguf, load, random_text, shared, vectors, write_gguf

import gomlx

BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
ALPHABETS = ["abcde", "aéñ中文한👍▁ ", "ab\u0301é ▁<0x41>", "xyz012 .,"]


def unigram(vocab, **settings):
    return {"type": "Unigram", "vocab": [[token, score] for token, score in vocab.items()]} | settings


def wordpiece(tokens, **settings):
    return {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {token: i for i, token in enumerate(tokens)}} | settings


# ---- by hand ----
def test_unigram_takes_the_best_sum(tmp_path):
    vocab = {"<unk>": 0.0, "a": -1.0, "b": -1.0, "ab": -1.5, "abc": -9.0, "c": -1.0, "bc": -1.4}
    tok = load(tmp_path, model=unigram(vocab, unk_id=0))
    assert tok.encode("abc") == [1, 6] and tok.encode("ab") == [3]
    # The worst score is -9, an unknown character's -19; neighbours are one; the unknown token's own text fuses too.
    assert tok.encode("axyb") == [1, 0, 2] and tok.encode("<unk>x") == [0]
    assert tok.encode("") == []


def test_unigram_ties_stay_with_the_first_found(tmp_path):
    tok = load(tmp_path, model=unigram({"<unk>": 0.0, "a": -1.0, "aa": -2.0, "aaa": -3.0}, unk_id=0))
    assert tok.encode("aaa") == [3]      # -3, found from the start; the sums of the others are no better


def test_unigram_bytes(tmp_path):
    tokens = ["<unk>", "a", *sorted(BYTES)]
    tok = load(tmp_path, model=unigram(dict.fromkeys(tokens, -1.0), unk_id=0, byte_fallback=True))
    assert tok.encode("aé") == [1, 2 + 0xC3, 2 + 0xA9]
    some = load(tmp_path, model=unigram({t: -1.0 for t in tokens if t != "<0xA9>"}, unk_id=0, byte_fallback=True))
    assert some.encode("aé") == [1, 0]


def test_unigram_without_unknown_token(tmp_path):
    tok = load(tmp_path, model=unigram({"a": -1.0}))
    assert tok.encode("aa") == [0, 0]
    with pytest.raises(ValueError, match="unk_id"):
        tok.encode("ab")


def test_unigram_is_linear(tmp_path):
    tok = load(tmp_path, model=unigram({"<unk>": 0.0, "a": -1.0, "a" * 16: -2.0}, unk_id=0))
    assert tok.encode("a" * (1 << 20)) == [2] * (1 << 16)


def test_wordpiece(tmp_path):
    tok = load(tmp_path, model=wordpiece(["[UNK]", "un", "##aff", "##able", "##a", "##ffable", "unaff"]))
    assert tok.encode("unaffable") == [6, 3] and tok.encode("unaffab") == [0] and tok.encode("aff") == [0]
    short = load(tmp_path, model=wordpiece(["[UNK]", "é", "##é"], max_input_chars_per_word=3))
    assert short.encode("ééé") == [1, 2, 2] and short.encode("éééé") == [0]


def test_wordpiece_is_linear(tmp_path):
    tok = load(tmp_path, model=wordpiece(["[UNK]", "a", "##a"], max_input_chars_per_word=10 ** 9))
    assert tok.encode("a" * (1 << 20)) == [1] + [2] * ((1 << 20) - 1)


def test_wordlevel(tmp_path):
    model = {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a b": 1}}
    tok = load(tmp_path, model=model)
    assert tok.encode("a b") == [1] and tok.encode("a") == [0]
    with pytest.raises(ValueError, match="unknown"):
        load(tmp_path, model=model | {"unk_token": "!"}).encode("a")


def test_models_of_bytes(tmp_path):
    """ByteLevel turns text into its alphabet for every model."""
    tok = load(tmp_path, model=wordpiece(["[UNK]", "Ã", "##©", "Ġ", "##Ã"]), pre_tokenizer=BYTE_LEVEL)
    assert tok.encode("é é") == [1, 2, 3, 4, 2]


@pytest.mark.parametrize("merges", [
    [["▁", "a"], ["<0x0A>", "▁a"], ["<0x0A>", "▁"]], [["▁", "a"], ["", "▁a"], ["", "▁"]],
    [["▁", "a"], ["b", "▁a"], ["a", "▁"], ["a", "b"]], [["▁", "▁"], ["▁▁", "▁a"], ["▁", "a"], ["a", "▁▁"]]])
def test_merges_over_spaces(tmp_path, merges):
    """Texts are cut where no merge reaches over a space: what an encoding finds uncut is the same."""
    tokens = list(dict.fromkeys(["", "<unk>", *sorted(BYTES), "▁", "a", "b", *map("".join, merges)]))
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    tok = load(tmp_path, normalizer=replace,
               model=bpe(tokens, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    rng = random.Random(7)
    for n in range(400):
        text = "".join(rng.choices("ab  \né", k=n % 100))
        assert tok.encode(text) == tok(text).ids


def test_bpe_affixes(tmp_path):
    clip = bpe(["a", "b", "a</w>", "b</w>", "ab</w>", "ab"], [["a", "b</w>"], ["a", "b"]], end_of_word_suffix="</w>")
    tok = load(tmp_path, model=clip)
    assert tok.encode("ab") == [4] and tok.encode("aba") == [5, 2] and tok.encode("a") == [2]
    hashes = bpe(["a", "##b", "##c", "ab", "abc"], [["a", "##b"], ["ab", "##c"]], continuing_subword_prefix="##")
    assert load(tmp_path, model=hashes).encode("abcb") == [4, 1]
    late = {key: hashes[key] for key in ("type", "vocab", "merges", "continuing_subword_prefix")}
    assert load(tmp_path, model=late).encode("abcb") == [4, 1]
    first = {key: hashes[key] for key in ("merges", "continuing_subword_prefix", "vocab", "type")}
    assert load(tmp_path, model=first).encode("abcb") == [4, 1]


def test_models_without_a_type(tmp_path):
    def ids(model, text="ab"):
        return load(tmp_path, model={k: v for k, v in model.items() if k != "type"}).encode(text)
    assert ids(bpe(["a", "b", "ab"], ["a b"])) == [2]
    assert ids(unigram({"a": -1.0, "b": -1.0})) == [0, 1]
    assert ids(wordpiece(["a", "##b", "[UNK]"])) == [0, 1]
    assert ids({"vocab": {"ab": 0, "?": 1}, "unk_token": "?"}) == [0]
    with pytest.raises(gomlx.Error, match="type"):
        ids({"vocab": {"ab": 0}})


def test_bytes_where_nothing_is_declared(tmp_path):
    model = bpe(["Ġ", "t", "h", "e", "Ġt", "he", "Ġthe"], [["Ġ", "t"], ["h", "e"], ["Ġt", "he"]])
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": model}))
    tok = gomlx.Tokenizer.from_file(path)
    assert tok.encode(" the") == [6] and tok.decode([6]) == " the"
    assert load(tmp_path, model=model).encode(" the") == [1, 5]      # null is a declaration


# ---- against the library ----
def word(rng, alphabet, n):
    return "".join(rng.choice(alphabet) for _ in range(n))


def random_tokens(rng, alphabet, n, *more):
    tokens = {word(rng, alphabet, rng.choice([1, 1, 1, 2, 2, 3, 5])) for _ in range(n)} | set(more)
    return sorted(tokens, key=lambda token: (rng.random(), token))


def random_unigram(rng, alphabet):
    tokens = random_tokens(rng, alphabet, rng.randrange(3, 30), "<unk>")
    if rng.random() < 0.4:
        tokens += [token for token in sorted(BYTES) if rng.random() < 0.99 and token not in tokens]
    scores = [rng.choice([0.0, -1.0, -2.0, -10 * rng.random()]) for _ in tokens]
    return unigram(dict(zip(tokens, scores)), byte_fallback=rng.random() < 0.5,
                   unk_id=tokens.index("<unk>") if rng.random() < 0.8 else None)


def random_wordpiece(rng, alphabet):
    prefix = rng.choice(["##", "", "a"])
    tokens = random_tokens(rng, alphabet, rng.randrange(3, 30))
    inside = [prefix + token for token in random_tokens(rng, alphabet, rng.randrange(2, 30))]
    tokens = list(dict.fromkeys(tokens + inside + ["[UNK]"]))
    return wordpiece(tokens, continuing_subword_prefix=prefix, max_input_chars_per_word=rng.choice([3, 10, 100]))


def random_wordlevel(rng, alphabet):
    tokens = random_tokens(rng, alphabet, rng.randrange(3, 60), "[UNK]")
    return {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {token: i for i, token in enumerate(tokens)}}


def random_bpe(rng, alphabet):
    prefix, suffix = rng.choice([None, "", "##"]), rng.choice([None, "", "</w>"])
    first, last = (prefix or ""), (suffix or "")
    chars = sorted(set(alphabet))
    spelled = [a + c + b for c in chars if rng.random() < 0.95 for a in {"", first} for b in {"", last}]
    tokens, merges = list(dict.fromkeys([*spelled, "<unk>"])), []
    for _ in range(40):
        left, right = rng.choice(tokens), rng.choice(tokens)
        if right.startswith(first) and "<unk>" not in (left, right):
            merges.append([left, right])
            tokens.append(left + right[len(first):])
    tokens = list(dict.fromkeys(tokens))
    if rng.random() < 0.4:
        tokens += [token for token in sorted(BYTES) if rng.random() < 0.99 and token not in tokens]
    return bpe(tokens, merges, continuing_subword_prefix=prefix, end_of_word_suffix=suffix, dropout=None,
               byte_fallback=rng.random() < 0.5, fuse_unk=rng.random() < 0.5, ignore_merges=rng.random() < 0.2,
               unk_token=rng.choice(["<unk>", None]))


@pytest.mark.parametrize("make", [random_unigram, random_wordpiece, random_wordlevel, random_bpe])
def test_random_models_against_the_library(make, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    rng = random.Random(make.__name__)
    for _ in range(40):
        alphabet = rng.choice(ALPHABETS)
        pre = rng.choice([None, METASPACE, BYTE_LEVEL, METASPACE | {"split": False, "prepend_scheme": "never"}])
        ours = load(tmp_path, model=make(rng, alphabet), pre_tokenizer=pre)
        theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        for _ in range(40):
            text = word(rng, rng.choice([alphabet, alphabet + "Qß漢\n"]), rng.choice([0, 1, 2, 3, 8, 30, 120]))
            try:
                want = theirs.encode(text).ids
            except Exception:      # a text that needs an unknown token where there is none: the library's own Exception
                with pytest.raises(ValueError):
                    ours.encode(text)
            else:
                assert ours.encode(text) == want, repr(text)


# ---- damaged models ----
DEEP = '{"type": "BPE", "other": ' + "[" * 10 ** 6


@pytest.mark.parametrize("model, message", [
    ({"type": "BPE", "vocab": {}}, "merges"),
    ({"type": "BPE", "vocab": [], "merges": []}, "vocab"),
    ({"type": "BPE", "vocab": {"a": 10 ** 9}, "merges": []}, "1000000000"),
    ({"type": "BPE", "vocab": {"a": -1}, "merges": []}, "-1"),
    ({"type": "BPE", "vocab": {"a": 1.5}, "merges": []}, "integer"),
    ({"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}, "'a' and by 'b'"),
    ({"type": "BPE", "vocab": {"a": None}, "merges": []}, "null"),
    ({"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}, "'b'"),
    ({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}, "'ab'"),
    ({"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}, "string"),
    ({"type": "BPE", "vocab": {"a": 0}, "merges": [7]}, "pair"),
    ({"type": "BPE", "vocab": {"a": 0}, "merges": {}}, "'merges' is an object, expected an array"),
    ({"type": "BPE", "vocab": {"a": 0}, "merges": [], "fuse_unk": 1}, "'fuse_unk' is a number, expected true or false"),
    ({"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": 1}, "unk_token"),
    ({"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": "0"}, "number"),
    ({"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"], "continuing_subword_prefix": "##"}, "prefix"),
    ({"type": 3, "vocab": {"a": 0}, "merges": []}, "'type' is a number, expected a string"),
    ({"type": "Unigram", "vocab": {"a": 0}}, "scores"),
    ({"type": "Unigram", "vocab": [["a"]]}, "number"),
    ({"type": "Unigram", "vocab": [["a", "b"]]}, "number"),
    ({"type": "Unigram", "vocab": ["a"]}, "pair"),
    ({"type": "Unigram", "vocab": [["a", 0]], "unk_id": 1}, "unk_id"),
    ({"type": "Unigram", "vocab": [["a", 0]], "unk_id": -1}, "unk_id"),
    ({"type": "Unigram"}, "vocab"),
    ({"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a", "continuing_subword_prefix": "##"}, "max_input_chars"),
    (wordpiece(["a"], max_input_chars_per_word=-1), "'max_input_chars_per_word' is -1, expected at least 0"),
    (wordpiece(["a"], continuing_subword_prefix=7), "continuing_subword_prefix"),
    ({"type": "WordLevel", "vocab": {"a": 0}}, "unk_token"),
    ([], "'model' is an array, expected an object"),
])
def test_damaged_models(model, message, tmp_path):
    with pytest.raises(gomlx.Error, match=message) as error:
        load(tmp_path, model=model)
    assert "tokenizer.json" in str(error.value)


@pytest.mark.parametrize("text, message", [
    (b'{"model": ' + DEEP.encode(), "128 levels"),
    (b'{"model": {"type": "BPE", "vocab": {"\xc3": 0}, "merges": []}}', "UTF-8"),
    (b'{"model": {"type": "BPE", "vocab": {"a": 0}, "vocab": {"a": 0}, "merges": []}}', "two 'vocab'"),
    (b'{"model": {"type": "BPE", "vocab": {"a": 0', "comma"),
    (b"{}", "no 'model'"),
    (b"", "ends"),
    (b"{", "."),
])
def test_damaged_json(text, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(text)
    with pytest.raises(gomlx.Error, match=message):
        gomlx.Tokenizer.from_file(path)


def test_vocabulary_with_holes(tmp_path):
    tok = load(tmp_path, model={"type": "BPE", "vocab": {"a": 7, "": 2, "b": 3}, "merges": []})
    assert tok.vocab_size == 8 and tok.id_to_token(5) is None and tok.encode("ab") == [7, 3]
    assert tok.id_to_token(2) == "" and tok.token_to_id("") == 2


# ---- how a file is written ----
TOKENS = ["<unk>", "a", "b", "é", "\n", "ab", "abé", "aab", "日", "日本", "本", '"', '"a', "a" * 9, "a" * 18, "\n\n"]
MERGES = [["a", "b"], ["ab", "é"], ["a", "ab"], ["日", "本"], ['"', "a"], ["a" * 9, "a" * 9], ["\n", "\n"]]


@pytest.mark.parametrize("merges", [MERGES, [" ".join(pair) for pair in MERGES], MERGES * 40], ids=range(3))
@pytest.mark.parametrize("write", [
    json.dumps, lambda file: json.dumps(file, ensure_ascii=False, separators=(",", ":")),
    lambda file: json.dumps(file, indent="\t" * 20), lambda file: json.dumps(file, indent=1).replace("\n ", " \r\n"),
    lambda file: json.dumps(file).replace('"a"', '"\\u0061"').replace("5,", "5  ,")], ids=range(5))
def test_one_model_written_in_many_ways(write, merges, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(write({"model": bpe(TOKENS, merges, unk_token="<unk>")}).encode())
    tok = gomlx.Tokenizer.from_file(path)
    assert [tok.id_to_token(i) for i in range(tok.vocab_size)] == TOKENS
    assert tok.encode('aabé"a\n\n日本' + "a" * 18) == [1, 6, 12, 15, 9] + [1] * 18
    assert tok.encode("aabb") == [7, 2]


def test_merges_of_a_text_with_two_ids(tmp_path):
    """The last id of a text counts, in merges too."""
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"type": "BPE", "vocab": {"a": 0, "ab": 1, "b": 2, "ab": 3}, "merges": [["a", "b"]]}}')
    tok = gomlx.Tokenizer.from_file(path)
    assert tok.encode("ab") == [3] and tok.id_to_token(1) == tok.id_to_token(3) == "ab"


GOOD = b'["a", "b"], ' * 70


@pytest.mark.parametrize("merges, message", [
    (GOOD + b'["a", "c"]', "merge 70 joins 'a' and 'c', but the vocabulary has no 'c'"),
    (GOOD + b'["b", "a"]', "merge 70 joins 'b' and 'a', but the vocabulary has no 'ba'"),
    (GOOD + b'["b\\n", "a"]', "merge 70 joins 'b\n' and 'a', but the vocabulary has no 'b\n'"),
    (GOOD + b'["a", "\xff"]', "byte 920: bytes that are not UTF-8"),
    (GOOD + b'["a", "\xff"], ["a", "c"]', "byte 920: bytes that are not UTF-8"),
    (GOOD + b'["a", "b\n"]', "byte 921: a control character"),
    (GOOD + b'["a", "b\\x"]', "byte 921: an invalid escape"),
    (GOOD + b'["a", "b", "c"]', "byte 925: a string, expected the end of the array"),
    (GOOD + b'["a"]', "byte 917: the end of the array, expected a string"),
    (GOOD + b'["a" "b"]', "byte 918: expected a comma or ]"),
    (GOOD + b'["a", "b"', "byte 923: expected a comma or ]"),
    (GOOD + b'["a", "b', "the text ends inside this string"),
    (GOOD + b'["a", 1]', "byte 919: a number, expected a string"),
    (GOOD, "byte 913: expected a value"),
    (b'["a", "b"] ["a", "b"]', "byte 84: expected a comma or ]"),
], ids=range(15))
def test_damaged_merges(merges, message, tmp_path):
    """What is wrong is told as exactly as if each string were checked when it is met."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b'{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [' + merges + b"]}}")
    with pytest.raises(gomlx.Error, match=re.escape(message)):
        gomlx.Tokenizer.from_file(path)


@pytest.mark.parametrize("number, message", [
    (b"01", "byte 46: a malformed number"), (b"1.0", "byte 46: a number with a fraction"),
    (b"1e0", "byte 46: a number with"), (b"-1", "-1 of 'b' is out of range, expected 0 to 4194303"),
    (b"123456789", "123456789 of 'b' is out of range"), (b"1234567890", "1234567890 of 'b'"),
    (b"1234567890123456789012", "byte 46: an integer that does not fit in 64 bits"),
    (b"1x", "byte 47: expected a comma or }"), (b"", "byte 46: expected a value"), (b'"1"', "byte 47: a string"),
    (b"1,", "byte 48: expected a key in quotes"), (b"0", "id 0 is used by 'a' and by 'b'")], ids=range(12))
def test_damaged_ids(number, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b'{"model": {"type": "BPE", "vocab": {"a":0,"b":' + number + b'}, "merges": []}}')
    with pytest.raises(gomlx.Error, match=re.escape(message)):
        gomlx.Tokenizer.from_file(path)


# ---- SentencePiece ----
def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def proto(*fields):
    """A message of (number, value): int, float (four bytes), bytes or str."""
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def spm(pieces, trainer=(), normalizer=((4, 0),)):
    """pieces: (text, score[, type])"""
    return proto(*[(1, proto(*zip((1, 2, 3), piece))) for piece in pieces],
                 (2, proto(*trainer)), (3, proto(*normalizer)))


SMALL = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("▁", -1.0), ("a", -2.0), ("b", -3.0), ("ab", -1.5),
         ("▁a", -1.2), ("[x]", 0.0, 4)]


def from_model(data, tmp_path, **config):
    (tmp_path / "tokenizer.model").write_bytes(data)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return gomlx.Tokenizer.from_file(tmp_path)


def test_sentencepiece_vectors():
    folder, data = shared("tokenizers/llama2/tokenizer.model").parent, vectors("llama-spm")
    tok, same = gomlx.Tokenizer.from_file(folder), gomlx.Tokenizer.from_file(folder / "tokenizer.model")
    for case in data["cases"]:
        assert tok.encode(case["text"], add_special_tokens=False) == case["ids"], case["text"]
        assert same.encode(case["text"]) == [1] + case["ids"]
        assert tok.decode(case["ids"]) == case.get("decoded", case["text"])


def test_sentencepiece_bpe(tmp_path):
    tok = from_model(spm(SMALL, [(3, 2)]), tmp_path)
    assert tok.encode("ab") == [1, 7, 5] and tok.encode("aab", add_special_tokens=False) == [7, 6]
    assert tok.encode("xy[x]</s>") == [1, 3, 0, 8, 2] and tok.decode([7, 5]) == "ab"
    assert tok.encode("</s>", add_special_tokens=False, parse_special=False) == [3, 0]


def test_sentencepiece_unigram(tmp_path):
    tok = from_model(spm(SMALL, [(3, 1), (40, 0)]), tmp_path)
    assert tok.encode("ab", add_special_tokens=False) == [3, 6] and tok.encode("zz") == [1, 3, 0]
    # A control piece is no text, however good its score is.
    assert tok.encode("<s>", add_special_tokens=False, parse_special=False) == [3, 0]


def test_sentencepiece_characters(tmp_path):
    tok = from_model(spm(SMALL, [(3, 4)]), tmp_path)
    assert tok.encode("ab", add_special_tokens=False) == [3, 4, 5]


def test_sentencepiece_bytes(tmp_path):
    pieces = SMALL + [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    tok = from_model(spm(pieces, [(3, 2), (35, 1)]), tmp_path)
    assert tok.encode("é", add_special_tokens=False) == [3, 9 + 0xC3, 9 + 0xA9] and tok.decode([3, 204, 178]) == "é"


def charsmap(texts):
    """SentencePiece's double array of {text: what stands for it}."""
    root, blob = {}, b""
    for text, to in texts.items():
        node = root
        for byte in text.encode():
            node = node.setdefault(byte, {})
        node["end"] = len(blob)
        blob += to.encode() + b"\0"
    units, free = {}, 1

    def place(node, at, label):
        """A node's children lie where its position, its offset and their byte, exclusive or, say; a text's end at 0."""
        nonlocal free
        base, free = 256 * free, free + 1
        units[at] = (at ^ base) << 10 | ("end" in node) << 8 | label
        if "end" in node:
            units[base] = 1 << 31 | node["end"]
        for byte, child in node.items():
            if byte != "end":
                place(child, base ^ byte, byte)

    place(root, 0, 0)
    array = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(256 * free))
    return struct.pack("<I", len(array)) + array + blob


def test_sentencepiece_charsmap(tmp_path):
    """The longest text of the array counts; what is no text of it stays."""
    table = charsmap({"ﬁ": "ab", "é": "a", "e": "b", "e\u0301": "a", "\u3000": " "})
    tok = from_model(spm(SMALL, [(3, 2)], [(2, table), (4, 0)]), tmp_path)
    assert tok.encode("ﬁ", add_special_tokens=False) == [7, 5]
    assert tok.encode("be\u0301e\u3000éb", add_special_tokens=False) == [3, 5, 6, 7, 5]
    assert list(tok.encoding("ﬁb", add_special_tokens=False).offsets) == [(0, 1), (0, 1), (1, 2)]
    with pytest.raises(gomlx.Error, match="charsmap"):
        from_model(spm(SMALL, [(3, 2)], [(2, table[:40])]), tmp_path)


def test_sentencepiece_spaces(tmp_path):
    def ids(text, *normalizer):
        tok = from_model(spm(SMALL, [(3, 2)], normalizer), tmp_path)
        return tok.encode(text, add_special_tokens=False)
    assert ids("  a   b  ") == [7, 3, 5] and ids("   ") == [] and ids("a ▁") == [7]
    assert ids("  a ", (4, 0)) == [3, 3, 7, 3] and ids(" a", (3, 0)) == [4]
    assert ids("b" + " " * (1 << 20) + "b") == [3, 5, 3, 5]


@pytest.mark.parametrize(("kind", "rule", "options"), [
    ("bpe", "identity", {"remove_extra_whitespaces": False}), ("unigram", "nmt_nfkc", {}),
    ("bpe", "nmt_nfkc", {"byte_fallback": True, "add_dummy_prefix": False}),
    ("unigram", "nfkc_cf", {"byte_fallback": True}), ("char", "nfkc", {})])
def test_random_text_against_sentencepiece(kind, rule, options, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    rng, model = random.Random(kind), io.BytesIO()
    words = ["the", "of", "hello", "world", "naïve", "日本語", "한국어", "Привет", "1234", "x=y+z;", "don't", "ﬁne",
             "Ａｂｃ"]
    lines = [" ".join(rng.choice(words) + rng.choice(["", "", rng.choice(words)]) for _ in range(8))
             for _ in range(500)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=500 if options.get("byte_fallback") else 150,
        model_type=kind, normalization_rule_name=rule, hard_vocab_limit=False, minloglevel=2, **options)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ours = gomlx.Tokenizer.from_sentencepiece(model.getvalue())
    for _ in range(400):
        text = random_text(rng, [" ", "  ", *words]).replace("<s>", "").replace("</s>", "")
        assert ours.encode(text) == theirs.encode(text), repr(text)


def test_what_stands_beside_a_model(tmp_path):
    (tmp_path / "added_tokens.json").write_text('{"<new>": 9}')
    decoder = {"2": {"content": "</s>", "special": True}, "10": {"content": "<more>", "rstrip": True}}
    tok = from_model(spm(SMALL, [(3, 2)]), tmp_path, add_bos_token=False, add_eos_token=True,
                     added_tokens_decoder=decoder, eos_token="</s>")
    assert tok.encode("<new>a<more>  a") == [9, 7, 10, 7, 2] and tok.eos_token == "</s>"
    with pytest.raises(NotImplementedError, match="XLMRobertaTokenizer"):
        from_model(spm(SMALL), tmp_path, tokenizer_class="XLMRobertaTokenizer")


@pytest.mark.parametrize("data, message", [
    (b"", "ends|empty"),
    (spm([]), "no pieces"),
    (spm(SMALL)[:40], "longer than the file"),
    (spm([("", 0.0)]), "empty"),
    (spm([(b"\xff", 0.0)]), "UTF-8"),
    (spm([("a", float("nan"))]), "not a number"),
    (spm([("a", 0.0, 9)]), "type 9"),
    (spm([("a", 1)]), "wrong wire type"),
    (spm(SMALL, [(40, 99)]), "99"),
    (spm(SMALL, [(3, 9)]), "model_type 9"),
    (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "not a SentencePiece model"),
    (b"\x0b\x0c", "unknown wire type"),
    (b"IQ== 0\nIg== 1\n", "not a SentencePiece model"),
])
def test_damaged_sentencepiece(data, message, tmp_path):
    with pytest.raises(gomlx.Error, match=message):
        from_model(data, tmp_path)


@pytest.mark.parametrize("tokens", [{"3": 5}, {"x": {"content": "a"}}, {"3": None}, [1], {"3": {"content": 7}}])
def test_damaged_added_tokens_beside_sentencepiece(tokens, tmp_path):
    with pytest.raises(gomlx.Error):
        from_model(spm(SMALL), tmp_path, tokenizer_class=7, added_tokens_decoder=tokens)


@pytest.mark.parametrize("trainer, normalizer, message", [
    ([(3, 3)], [(4, 0)], "word"), ([(24, 1)], [(4, 0)], "treat_whitespace_as_suffix"),
    ([], [(4, 0), (5, 0)], "escape")])
def test_refused_sentencepiece(trainer, normalizer, message, tmp_path):
    with pytest.raises(NotImplementedError, match=message):
        from_model(spm(SMALL, trainer, normalizer), tmp_path)


def test_no_tokenizer_at_all(tmp_path):
    with pytest.raises(FileNotFoundError, match="tokenizer.model"):
        gomlx.Tokenizer.from_file(tmp_path)


# ---- GGUF ----
def byte_pairs(rng, texts, alphabet):
    """Merges of neighbouring bytes wherever they stand: what a cut keeps apart shows in the ids."""
    merges, tokens = [], list(alphabet)
    for _ in range(2):
        seen = sorted({(alphabet[a], alphabet[b]) for text in texts for a, b in zip(text.encode(), text.encode()[1:])})
        for pair in rng.sample(seen, min(300, len(seen))):
            if "".join(pair) not in tokens:
                merges.append(pair)
                tokens.append("".join(pair))
    return tokens, merges


# Patterns that llama.cpp has as code: the original ones.
HAND_WRITTEN = {
    "kimi-k2": [r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "afmoe": [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"],
}
SIMPLE_CASE = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"


# Those of llama.cpp that are no more than near to the original: the file that has it.
ORIGINALS = {"TEKKEN": "mistral_nemo", "GPT4O": "gptoss", "MINIMAX_M2": "gptoss"}


def original_patterns(name, entry):
    if entry["type"] in ORIGINALS:
        pre = vectors("pretok_splits_hf")["by_tokenizer"][ORIGINALS[entry["type"]]]["pre_tokenizer"]
        return [step["pattern"]["Regex"] for step in pre["pretokenizers"] if step["type"] == "Split"]
    if name == "afmoe":
        return HAND_WRITTEN[name] + entry["llama_cpp_regex"][1:]
    if name in HAND_WRITTEN:
        return HAND_WRITTEN[name]
    patterns = entry["original_in_comment"] or entry["llama_cpp_regex"]
    return [pattern.replace(SIMPLE_CASE, "(?i:'s|'t|'re|'ve|'m|'ll|'d)") for pattern in patterns]


def test_gguf_pre_types_against_the_library(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    rng, alphabet = random.Random(5), list(byte_alphabet().values())
    data = vectors("gguf_pre_types")["pre"]
    more = ["IMGIMGABZ", "<sentinel:12>", "12345678", " 1 22 333 4444", "a.b,c", "Ünï Cödé", "中文字 한국",
            "don't DON'T"]
    texts = [random_text(rng, more) for _ in range(300)]
    texts = [tokenizers.normalizers.NFC().normalize_str(text) for text in texts]
    tokens, merges = byte_pairs(rng, texts, alphabet)
    seen = {}
    for name, entry in data.items():
        steps = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
                 for pattern in original_patterns(name, entry)]
        whole = entry.get("ignore_merges", False)
        key = json.dumps([steps, whole])
        if key not in seen:
            pre = {"type": "Sequence", "pretokenizers": [*steps, BYTE_LEVEL | {"use_regex": False}]}
            model = bpe(tokens, merges, ignore_merges=whole)
            file = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": pre,
                    "post_processor": None, "decoder": None, "model": model}
            theirs = tokenizers.Tokenizer.from_str(json.dumps(file))
            seen[key] = [theirs.encode(text).ids for text in texts]
        path = write_gguf(tmp_path / "t.gguf", {
            "general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name,
            "tokenizer.ggml.tokens": (8, tokens), "tokenizer.ggml.merges": (8, [" ".join(m) for m in merges])})
        ours = gomlx.Tokenizer.from_gguf(path)
        for text, want in zip(texts, seen[key]):
            assert ours.encode(text, add_special_tokens=False) == want, (name, text)
    assert len(data) == 82


def test_gguf_unknown_pre_lists_the_known(tmp_path):
    path = write_gguf(tmp_path / "t.gguf", byte_gguf(**{"tokenizer.ggml.pre": "new-model"}))
    with pytest.raises(NotImplementedError, match="new-model.*llama-bpe.*afmoe"):
        gomlx.Tokenizer.from_gguf(path)


def test_gguf_gemma4(tmp_path):
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "\n\n", "▁", "a", "▁a", "\n", *sorted(BYTES)]
    types = [3, 3, 3, 2, 4] + [1] * 4 + [6] * 256
    path = write_gguf(tmp_path / "t.gguf", {
        "general.architecture": "gemma4", "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.tokens": (8, tokens),
        "tokenizer.ggml.token_type": (5, types), "tokenizer.ggml.scores": (6, [0.0] * len(tokens)),
        "tokenizer.ggml.merges": (8, ["▁ a"]), "tokenizer.ggml.bos_token_id": 2})
    tok = gomlx.Tokenizer.from_gguf(path)
    assert tok.encode("a a\n\n\né") == [2, 6, 7, 4, 8, 9 + 0xC3, 9 + 0xA9]
    assert tok.decode([6, 7, 4, 9 + 0xC3, 9 + 0xA9]) == "a a\n\né"


def test_gguf_unigram(tmp_path):
    path = write_gguf(tmp_path / "t.gguf", {
        "general.architecture": "t5", "tokenizer.ggml.model": "t5", "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.tokens": (8, [piece[0] for piece in SMALL]),
        "tokenizer.ggml.scores": (6, [piece[1] for piece in SMALL]),
        "tokenizer.ggml.token_type": (5, [(*piece, 1)[2] for piece in SMALL])})
    assert gomlx.Tokenizer.from_gguf(path).encode("ab a") == [3, 6, 7, 2]


def bert_gguf(path, tokens):
    """GGUF marks the start of a word where WordPiece marks its inside."""
    spelled = [t if t[0] == "[" else t[2:] if t.startswith("##") else "▁" + t for t in tokens]
    return write_gguf(path, {
        "general.architecture": "bert", "tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": (8, spelled),
        "tokenizer.ggml.token_type": (5, [3 if t[0] == "[" else 1 for t in tokens]),
        "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.cls_token_id": 1,
        "tokenizer.ggml.seperator_token_id": 2})


BERT = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "cafe", "##s", "!", "日", "本", "a", "##b", "##a"]


def test_gguf_wordpiece(tmp_path):
    tok = gomlx.Tokenizer.from_gguf(bert_gguf(tmp_path / "t.gguf", BERT))
    assert tok.encode("Unaffable CAFÉS!日本 [MASK]") == [1, 4, 5, 6, 7, 8, 9, 10, 11, 3, 2]
    assert tok.encode("xyz") == [1, 0, 2] and tok.id_to_token(6) == "##able"
    assert tok.decode([4, 5, 6, 9]) == "unaffable!"


def test_gguf_wordpiece_against_the_library(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer(tokenizers.models.WordPiece({t: i for i, t in enumerate(BERT)}, unk_token="[UNK]"))
    theirs.normalizer = tokenizers.normalizers.BertNormalizer()
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    theirs.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    theirs.add_special_tokens(BERT[:4])
    ours, rng = gomlx.Tokenizer.from_gguf(bert_gguf(tmp_path / "t.gguf", BERT)), random.Random(3)
    for _ in range(400):
        text = random_text(rng, ["Unaffable", " cafés", "abab", "[MASK]", "aBa"])
        assert ours.encode(text) == theirs.encode(text).ids, repr(text)
