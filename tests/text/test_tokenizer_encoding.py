"""What encoding tells besides ids: offsets, words, masks; pairs, truncation and padding; batches, bytes and arrays.
Against Hugging Face's library where it is installed, and against what it gave for these cases."""
import functools
import json
import os
import pathlib
import random
import signal
import threading

import pytest
from places import ROOT

import gomlx

SHARED = pathlib.Path(os.environ.get("GOMLX_SHARED", os.path.join(os.path.dirname(ROOT), "shared"))) / "data"
NAMES = ["gpt2", "llama3_2", "qwen3", "deepseek_v3", "mistral_nemo", "gemma3"]
FLAG_CONFIGS = ["plain", "lower", "nfc_prefix", "spm"]


def shared(path):
    file = SHARED / path
    if not file.exists():
        pytest.skip(f"no test data: {path} (set GOMLX_SHARED)")
    return file


@functools.cache
def tokenizer_of(name):
    return gomlx.Tokenizer.from_file(shared(f"tokenizers/{name}/tokenizer.json"))


@pytest.fixture(params=NAMES)
def real(request):
    vectors = shared(f"tokenizer-vectors/{request.param}.json")
    return tokenizer_of(request.param), json.loads(vectors.read_text("utf-8"))


LETTERS = "abcdefghij"
CLS, SEP, PAD, SPACE, UNKNOWN = 1, 2, 3, 14, 0


def file_of(**parts):
    """A tokenizer whose ids are letters: a is 4."""
    vocab = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", *LETTERS, "Ġ", "Ġa", "bc"]
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "unk_token": "[UNK]", "vocab": {one: i for i, one in enumerate(vocab)},
                      "merges": [["Ġ", "a"], ["b", "c"]]}}
    return json.dumps(file | parts)


def tok(**parts):
    return gomlx.Tokenizer.from_json(file_of(**parts).encode())


def ids(letters):
    return [4 + LETTERS.index(one) for one in letters]


BERT = {"type": "BertProcessing", "sep": ["[SEP]", SEP], "cls": ["[CLS]", CLS]}
ROBERTA = {"type": "RobertaProcessing", "sep": ["[SEP]", SEP], "cls": ["[CLS]", CLS], "trim_offsets": True,
           "add_prefix_space": True}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def token(name, type_id=0):
    return {"SpecialToken": {"id": name, "type_id": type_id}}


def sequence(name, type_id=0):
    return {"Sequence": {"id": name, "type_id": type_id}}


def template(single, pair):
    return {"type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [CLS], "tokens": ["[CLS]"]},
                               "two": {"id": "two", "ids": [SEP, CLS], "tokens": ["x", "[CLS]"]}}}


ODD = template([token("two", 4), sequence("A", 3)],
               [sequence("B", 1), token("two", 5), sequence("A", 2), token("[CLS]", 7), sequence("B", 4)])
PROCESSORS = {"none": None, "bert": BERT, "roberta": ROBERTA, "byte_level": BYTE_LEVEL, "odd": ODD,
              "sequence": {"type": "Sequence", "processors": [BYTE_LEVEL, ODD]},
              "template first": {"type": "Sequence", "processors": [ODD, BYTE_LEVEL]},
              "twice": template([sequence("A"), token("[CLS]"), sequence("A", 1)], [sequence("A"), sequence("B", 1)])}


# ---- offsets ----
def test_offsets_of_the_vectors(real):
    tokenizer, data = real
    for case in data["cases"]:
        encoding = tokenizer(case["text"], add_special_tokens=False)
        assert encoding.ids == case["ids"]
        assert [one for pair in encoding.offsets for one in pair] == case["offsets"], case["text"]
        assert encoding.special_mask == [0] * len(encoding) and encoding.attention_mask == [1] * len(encoding)


@pytest.mark.parametrize("name", FLAG_CONFIGS)
def test_added_tokens(name):
    config = json.loads(shared("tokenizer-vectors/added_token_flags.json").read_text("utf-8"))["configs"][name]
    tokenizer = gomlx.Tokenizer.from_json(json.dumps(config["tokenizer_json"]).encode())
    for case in config["cases"]:
        encoding = tokenizer(case["text"])
        assert encoding.ids == case["ids"] and encoding.tokens == case["tokens"], case["text"]
        assert [one for pair in encoding.offsets for one in pair] == case["offsets"], case["text"]


@pytest.mark.parametrize("text, want", [
    ("e\u0301x", [(0, 1), (2, 3)]),                  # what composes stands for the character it starts with
    ("\u1100\u1161\u11a8", [(0, 1)]),
    ("\U0001f468\u200d\U0001f469", [(0, 1), (1, 2), (1, 2), (2, 3)]),    # two tokens of one character
    ("\u0344", [(0, 1), (0, 1), (0, 1)]),            # one character that becomes two
    ("q\u0307\u0323", [(0, 1), (1, 2), (1, 2), (2, 3), (2, 3)]),         # marks that change places
])
def test_offsets_through_nfc(text, want):
    tokenizer = tokenizer_of("qwen3")
    assert tokenizer(text).offsets == want


def test_a_prefix_stands_for_the_first_character():
    made = tok(pre_tokenizer=BYTE_LEVEL)
    assert made("a b").tokens == ["Ġa", "Ġ", "b"] and made("a b").offsets == [(0, 1), (1, 2), (2, 3)]
    marked = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    assert tok(pre_tokenizer=marked)("ab c").word_ids == [0, 0, 0, 1, 1]


def test_trimmed_offsets():
    made = tok(pre_tokenizer=BYTE_LEVEL, post_processor=ROBERTA)
    encoding = made("a  a b", "  a")
    assert encoding.ids == [1, 15, 14, 15, 14, 5, 2, 2, 14, 15, 2]
    assert encoding.offsets == [(0, 0), (0, 1), (2, 2), (3, 4), (5, 5), (5, 6), (0, 0), (0, 0), (0, 0), (2, 3), (0, 0)]
    assert encoding.special_mask == [1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1]
    assert encoding.word_ids == [None, 0, 1, 2, 3, 3, None, None, 0, 1, None]
    assert encoding.sequence_ids == [None, 0, 0, 0, 0, 0, None, None, 1, 1, None]


def test_bytes_without_a_token_are_dropped_as_the_library_counts():
    """é, in the alphabet Ã and ©: with no token for Ã, the tokens behind it move by its two bytes there."""
    model = {"type": "BPE", "merges": [], "vocab": {one: i for i, one in enumerate("©abĠ")}}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    encoding = tok(model=model, pre_tokenizer=byte_level)("aé éb")
    assert encoding.tokens == ["a", "©", "Ġ", "©", "b"]
    assert encoding.offsets == [(0, 1), (1, 2), (1, 2), (2, 3), (3, 4)]


# ---- against the library ----
def differences(ours, theirs, path=""):
    for own, other in (("ids", "ids"), ("tokens", "tokens"), ("offsets", "offsets"), ("word_ids", "word_ids"),
                       ("type_ids", "type_ids"), ("special_mask", "special_tokens_mask"),
                       ("attention_mask", "attention_mask"), ("sequence_ids", "sequence_ids")):
        if getattr(ours, own) != getattr(theirs, other):
            return f"{path}{own}: {getattr(ours, own)}, expected {getattr(theirs, other)}"
    if len(ours.overflowing) != len(theirs.overflowing):
        return f"{path}{len(ours.overflowing)} parts, expected {len(theirs.overflowing)}"
    parts = [differences(one, other, path + f"part {i} ")
             for i, (one, other) in enumerate(zip(ours.overflowing, theirs.overflowing, strict=True))]
    return next((one for one in parts if one), None)


RANGES = [(0x20, 0x7F), (0, 0x370), (0x300, 0x370), (0x900, 0xE00), (0x1100, 0x1200), (0x4E00, 0x9FFF),
          (0xAC00, 0xD7A4), (0x1F000, 0x20000), (0x1D100, 0x1D200), (0, 0x110000)]


def random_text(rng, added):
    parts = []
    for _ in range(rng.choice([0, 1, 3, 6, 20])):
        kind = rng.random()
        if kind < 0.3:
            parts.append(rng.choice(["the", " of", "don't", "e\u0301", "한국어", "\u0344", "\u1100\u1161\u11a8"]))
        elif kind < 0.45:
            parts.append(rng.choice(" \n\t\u2003\x85\u3000") * rng.randrange(1, 5))
        elif kind < 0.55 and added:
            parts.append(rng.choice(added))
        else:
            parts += [chr(c) for c in [rng.randrange(*rng.choice(RANGES)) for _ in range(rng.randrange(1, 6))]
                      if not 0xD800 <= c < 0xE000]
    return "".join(parts)


@pytest.mark.parametrize("name", NAMES)
def test_random_text_against_the_library(name):
    tokenizers = pytest.importorskip("tokenizers")
    path = shared(f"tokenizers/{name}/tokenizer.json")
    ours, theirs = tokenizer_of(name), tokenizers.Tokenizer.from_file(str(path))
    added = [token.content for _, token in sorted(theirs.get_added_tokens_decoder().items())]
    rng = random.Random(name)
    for k in range(200):
        text, pair = random_text(rng, added), random_text(rng, added) if k % 3 == 0 else None
        found = differences(ours(text, pair, bool(k & 1)), theirs.encode(text, pair, add_special_tokens=bool(k & 1)))
        assert not found, f"{text!r} {pair!r}: {found}"


@pytest.mark.parametrize("processor", PROCESSORS)
def test_truncation_and_padding_against_the_library(processor):
    tokenizers = pytest.importorskip("tokenizers")
    file = file_of(pre_tokenizer=BYTE_LEVEL, post_processor=PROCESSORS[processor])
    ours, theirs, rng = gomlx.Tokenizer.from_json(file.encode()), tokenizers.Tokenizer.from_str(file), random.Random(1)
    tried = 0
    for _ in range(300):
        text, pair = ("".join(rng.choices("abcdefgh ", k=rng.randrange(9))) for _ in range(2))
        pair = pair if rng.random() < 0.6 else None
        special, truncation, padding = rng.random() < 0.7, False, False
        theirs.no_truncation(), theirs.no_padding()
        if rng.random() < 0.7:
            truncation = {"max_length": rng.randrange(6, 12), "stride": rng.choice([0, 0, 1]),
                          "strategy": rng.choice(["longest_first", "only_first", "only_second"]),
                          "direction": rng.choice(["left", "right"])}
            theirs.enable_truncation(**truncation)
        if rng.random() < 0.5:
            padding = {"length": rng.choice([None, 9, 14]), "pad_to_multiple_of": rng.choice([None, 4]), "pad_id": 3,
                       "pad_type_id": rng.choice([0, 6]), "pad_token": rng.choice(["[PAD]", "fill"]),
                       "direction": rng.choice(["left", "right"])}
            theirs.enable_padding(**padding)
        try:
            want = theirs.encode(text, pair, add_special_tokens=special)
        except BaseException as error:               # a panic of Rust is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            with pytest.raises(ValueError):
                ours(text, pair, special, truncation=truncation, padding=padding)
            continue
        made = ours(text, pair, special, truncation=truncation, padding=padding)
        assert not (found := differences(made, want)), f"{text!r} {pair!r} {truncation} {padding}: {found}"
        if pair is None:
            assert ours.encode(text, special, truncation=truncation, padding=padding) == want.ids
        assert made.truncated == bool(want.overflowing)
        tried += 1
    assert tried > 150


def test_padding_of_batches_against_the_library():
    tokenizers = pytest.importorskip("tokenizers")
    file = file_of(post_processor=BERT)
    ours, theirs = gomlx.Tokenizer.from_json(file.encode()), tokenizers.Tokenizer.from_str(file)
    texts = ["abc", "", "abcdefg", "a"]
    for padding in ({"pad_id": 3, "pad_token": "[PAD]"}, {"pad_id": 3, "length": 6, "direction": "left"},
                    {"pad_id": 2, "pad_to_multiple_of": 4, "pad_type_id": 1}):
        theirs.enable_padding(**padding)
        want = theirs.encode_batch(texts)
        for one, other in zip(ours(texts, padding={"pad_token": "[PAD]"} | padding), want, strict=True):
            assert not differences(one, other)
        assert ours.encode_batch(texts, padding=padding) == [one.ids for one in want]
        rows = ours.encode_batch(texts, padding=padding, as_arrays=True)
        assert [row.tolist() for row in rows] == [one.ids for one in want]


def test_equal_paths_of_unigram_against_the_library():
    """Scores are numbers as the library reads them, not always the nearest doubles: a last bit decides between
    paths."""
    tokenizers = pytest.importorskip("tokenizers")
    rng = random.Random(4)
    for _ in range(60):
        letters = [[one, -rng.uniform(1, 20)] for one in ("?", "a", "aa", "b", "bb")]
        file = file_of(model={"type": "Unigram", "unk_id": 0, "vocab": letters})
        ours, theirs = gomlx.Tokenizer.from_json(file.encode()), tokenizers.Tokenizer.from_str(file)
        for text in ("aaa", "baaab", "bbbaaa", "aaaaabbbbb"):
            assert ours.encode(text) == theirs.encode(text).ids, letters


# ---- post-processors, pairs ----
def test_pairs():
    encoding = tok(post_processor=BERT)("ab", "cd")
    assert encoding.ids == [CLS, *ids("ab"), SEP, *ids("cd"), SEP] and encoding.type_ids == [0, 0, 0, 0, 1, 1, 1]
    assert encoding.special_mask == [1, 0, 0, 1, 0, 0, 1] and encoding.sequence_ids == [None, 0, 0, None, 1, 1, None]
    odd = tok(post_processor=ODD)
    assert odd("ab").ids == [SEP, CLS, *ids("ab")] and odd("ab").type_ids == [4, 4, 3, 3]
    assert odd("ab").tokens == ["x", "[CLS]", "a", "b"]
    assert odd("ab", "cd").ids == [*ids("cd"), SEP, CLS, *ids("ab"), CLS, *ids("cd")]
    assert odd("ab", "cd", False).type_ids == [1, 1, 2, 2, 4, 4]
    assert tok()("ab", "cd").ids == ids("abcd") and tok()("ab", "cd").type_ids == [0, 0, 1, 1]
    assert tok(post_processor=PROCESSORS["twice"]).encode("ab") == [*ids("ab"), CLS, *ids("ab")]


def test_a_missing_pair_template_is_an_error():
    alone = template([token("[CLS]"), sequence("A")], [])
    with pytest.raises(ValueError, match="no template for two texts"):
        tok(post_processor=alone)("a", "b")
    with pytest.raises(ValueError, match="has a second sequence"):
        tok(post_processor=template([sequence("B")], [sequence("A")])).encode("a")


# ---- truncation ----
def test_truncation():
    made = tok(post_processor=BERT)
    plain = made("defghi", truncation={"max_length": 5, "stride": 1})
    assert plain.ids == [CLS, *ids("def"), SEP] and plain.truncated
    assert [one.ids for one in plain.overflowing] == [[CLS, *ids("fgh"), SEP], [CLS, *ids("hi"), SEP]]
    assert plain.overflowing[0].offsets == [(0, 0), (2, 3), (3, 4), (4, 5), (0, 0)]
    assert made.encode("defghi", truncation=4) == [CLS, *ids("de"), SEP]
    assert made.encode("defghi", truncation={"max_length": 4, "direction": "left"}) == [CLS, *ids("hi"), SEP]
    whole = made("defghi", truncation=8)
    assert not whole.truncated and whole.overflowing == []


@pytest.mark.parametrize("truncation, message", [
    ({"max_length": 4, "stride": 2}, "stride of truncation is 2, expected less than the 2 tokens"),
    (1, "truncation to 1 tokens is less than the 2 special tokens"),
    ({"max_length": 4, "strategy": "only_second"}, "only one text"),
    ({"max_length": -1}, "max_length is -1"), ({}, "max_length"),
    ({"max_length": 4, "length": 2}, "no setting 'length'"), ({"max_length": 4, "strategy": "first"}, "longest_first"),
    ({"max_length": 4, "direction": "up"}, "'left' or 'right'"),
])
def test_bad_truncation(truncation, message):
    with pytest.raises(ValueError, match=message):
        tok(post_processor=BERT)("defghi", truncation=truncation)


DECLARED = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 1}


def test_what_the_file_declares_is_done_and_seen():
    made = tok(post_processor=BERT, truncation=DECLARED)
    assert made.truncation == {"max_length": 4, "stride": 1, "strategy": "longest_first", "direction": "right"}
    with pytest.warns(UserWarning, match="truncation to 4 tokens"):
        assert made.encode("defg") == [CLS, *ids("de"), SEP]
    with pytest.warns(UserWarning, match="truncation=False"):
        assert made.encode_batch(["d", "defg"]) == [[CLS, *ids("d"), SEP], [CLS, *ids("de"), SEP]]
    assert made.encode("de") == [CLS, *ids("de"), SEP]
    assert made.encode("defg", truncation=False) == [CLS, *ids("defg"), SEP] and made.bare("defg") == ids("defg")
    assert made.encode_prompt("defg") == [CLS, *ids("defg")]
    encoding = made("defg")                 # no warning: what is cut off is there
    assert encoding.truncated and [one.ids[1:-1] for one in encoding.overflowing] == [ids("ef"), ids("fg")]
    assert tok().truncation is None and tok().padding is None


def test_padding_that_the_file_declares():
    declared = {"strategy": {"Fixed": 6}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 3,
                "pad_type_id": 2, "pad_token": "fill"}
    made = tok(padding=declared)
    assert made.padding == {"length": 6, "pad_to_multiple_of": None, "pad_id": 3, "pad_token": "fill", "pad_type_id": 2,
                            "direction": "left"}
    encoding = made("de")
    assert encoding.ids == [3] * 4 + ids("de") and encoding.tokens == ["fill"] * 4 + ["d", "e"]
    assert encoding.attention_mask == [0] * 4 + [1] * 2 and encoding.type_ids == [2] * 4 + [0] * 2
    assert encoding.special_mask == [1] * 4 + [0] * 2 and encoding.offsets[3:5] == [(0, 0), (0, 1)]
    assert made.encode("de", padding=False) == ids("de") == made.bare("de")
    assert made.encode_batch(["de", "d"], padding=True) == [ids("de"), [3, *ids("d")]]
    with pytest.raises(ValueError, match="no padding token"):
        tok().encode_batch(["de", "d"], padding=True)
    assert tok().encode_batch(["de", "d"], padding={"pad_token": "[PAD]"}) == [ids("de"), [*ids("d"), PAD]]


# ---- batches ----
def test_batches_do_not_depend_on_threads(real):
    tokenizer, data = real
    texts = [case["text"] for case in data["cases"]]
    texts += ["".join(texts)] * 3 + ["", "a" * 200000]
    want = [tokenizer.encode(one) for one in texts]
    for threads in (1, 2, 5):
        assert tokenizer.encode_batch(texts, threads=threads) == want
    assert [one.tolist() for one in tokenizer.encode_batch(texts, as_arrays=True)] == want
    assert [one.ids for one in tokenizer(texts[:300])] == want[:300]


def test_batch_of_pairs():
    made = tok(post_processor=BERT)
    assert made.encode_batch(["a", "d"], pairs=["e", "f"]) == [made("a", "e").ids, made("d", "f").ids]
    assert [one.type_ids for one in made(["a", "d"], ["e", "f"])] == [[0, 0, 0, 1, 1]] * 2
    with pytest.raises(ValueError, match="2 texts but 1 pairs"):
        made.encode_batch(["a", "d"], pairs=["e"])


def test_the_first_bad_text_of_a_batch_is_named():
    made = tok(model={"type": "BPE", "unk_token": "gone", "vocab": {"a": 0}, "merges": []})
    texts = ["a" * 50000] * 40
    texts[7] = texts[23] = texts[31] = "a" * 60000 + "z"
    for threads in (1, 4):
        with pytest.raises(ValueError, match="text 7: .*unknown token"):
            made.encode_batch(texts, threads=threads)
    for bad in ("abc", b"abc"):
        with pytest.raises(TypeError, match="sequence of texts"):
            made.encode_batch(bad)
    with pytest.raises(TypeError, match="str or bytes"):
        made.encode_batch(["a", 3])
    assert made.encode_batch([]) == [] and made.encode_batch([], as_arrays=True) == []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer here")
def test_a_signal_ends_a_batch():
    class Interrupt(Exception):
        pass

    def interrupt(*_):
        raise Interrupt

    made, before = tok(), signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            while True:
                made.encode_batch(["abcdefgh" * 10000] * 200, as_arrays=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert made.encode_batch(["ad"]) == [ids("ad")]


def test_many_threads_encode_at_once():
    made = tokenizer_of("qwen3")
    text, wrong = "Once upon a time, 12345 naïve cafés — e\u0301! " * 50, []
    want = made.encode(text)

    def work():
        for _ in range(20):
            if made.encode(text) != want or made.encode_batch([text] * 3) != [want] * 3:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


# ---- arrays, bytes ----
def test_arrays():
    np = pytest.importorskip("numpy")
    made = tok()
    array = made.encode("abcdef", as_arrays=True)
    assert isinstance(array, np.ndarray) and array.dtype == np.int32 and array.tolist() == made.encode("abcdef")
    array[0] = 9                            # it is the caller's own
    assert made.encode("abcdef", as_arrays=True)[0] == 4
    assert made.encode("", as_arrays=True).shape == (0,)
    assert made.decode(made.encode("abc", as_arrays=True)) == made.decode(made.encode("abc"))
    assert made.decode(np.array([4, 5], dtype=np.int64)) == made.decode([4, 5])
    assert made.decode(np.array([4, 0, 5], dtype=np.int32)[::2]) == made.decode([4, 5])


def test_bytes_come_back(real):
    tokenizer, data = real
    if data["cases"] and tokenizer.token_to_id("Ġthe") is None:
        pytest.skip("not byte-level")
    if tokenizer.encode("\u2126") != tokenizer.encode("\u03a9"):       # it does not normalize
        rng = random.Random(1)
        for n in (1, 2, 3, 10, 100, 1000):
            for _ in range(50):
                data = bytes(rng.choice([rng.randrange(256), 32, 97, 0xE2, 0x80, 0xF0]) for _ in range(n))
                found = tokenizer.encode(data, add_special_tokens=False)
                assert tokenizer.decode(found, as_bytes=True) == data
                assert tokenizer.decode(found) == data.decode("utf-8", "replace")
    text = "Hello wörld 中文"
    assert tokenizer.encode(text.encode()) == tokenizer.encode(text)


def test_bytes_offsets_are_bytes():
    made = tokenizer_of("gpt2")
    data = "é中\xff".encode("latin-1", "replace") + "é中 a".encode()
    encoding = made(data)
    pieces = [data[start:end] for start, end in encoding.offsets]
    assert encoding.offsets[0][0] == 0 and encoding.offsets[-1][1] == len(data) and pieces[-1] == b" a"
    assert made.decode(encoding.ids, as_bytes=True) == data


def test_bytes_without_tokens_are_an_error():
    with pytest.raises(ValueError, match="not UTF-8 at byte 1, and the vocabulary has no token"):
        tok().encode(b"a\xff")
    made = tok(model={"type": "BPE", "vocab": {"a": 0, "<0xFF>": 1}, "merges": [], "byte_fallback": True})
    assert made.encode(b"a\xffa") == [0, 1, 0]
    with pytest.raises(NotImplementedError, match="byte-level"):
        made.decode([0], as_bytes=True)
    with pytest.raises(TypeError, match="str or bytes"):
        tok().encode(bytearray(b"a"))


def test_lone_surrogates_count_as_replacement_characters():
    made = tokenizer_of("gpt2")
    assert made.encode("a\ud800b") == made.encode("a\ufffdb")
    assert made("a\ud800b").offsets[-1] == (2, 3)


# ---- streams, lookup, showing ----
def test_strict_streams_equal_the_batch():
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁a": 256, "b": 257}
    decoder = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    made, rng = tok(model={"type": "BPE", "vocab": vocab, "merges": []}, decoder=decoder), random.Random(3)
    pool = [*b"a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80", 256, 257]
    for _ in range(300):
        tokens = [rng.choice(pool) for _ in range(rng.randrange(12))]
        stream = made.stream(skip_special_tokens=False, strict=True)
        parts = [stream.push(one) for one in tokens]
        assert "".join([*parts, stream.finish()]) == made.decode(tokens)
    stream = made.stream(strict=True)
    assert [stream.push(one) for one in (0xC3, 0xA9, 257)] == ["", "", "éb"]
    stream = made.stream()
    assert [stream.push(one) for one in (0xC3, 0xA9, 257)] == ["", "é", "b"]


def test_streams_hold_back_three_bytes_at_most(real):
    tokenizer, data = real
    byte_level = tokenizer.token_to_id("Ġthe") is not None
    for case in data["cases"]:
        stream, given = tokenizer.stream(skip_special_tokens=False), ""
        whole = tokenizer.decode(case["ids"]).encode()
        for i, one in enumerate(case["ids"]):
            given += stream.push(one)
            assert whole.startswith(given.encode())
            if byte_level:                  # a run of <0xNN> tokens is U+FFFD in a batch until it is whole
                sure = tokenizer.decode(case["ids"][:i + 1], as_bytes=True)
                assert len(given.encode()) <= len(sure) <= len(given.encode()) + 3
        assert given + stream.finish() == whole.decode()


def test_special_tokens_and_ends():
    made = tokenizer_of("qwen3")
    assert made.special_tokens["<|im_end|>"] == 151645 and "<think>" not in made.special_tokens
    assert list(made.special_tokens.values()) == sorted(made.special_tokens.values()) == made.special_ids()
    assert "special token <|im_end|>" in made.eos_ids[151645]


def test_decode_batch():
    assert tok().decode_batch([[4, 5], [], [6]]) == [tok().decode(one) for one in ([4, 5], [], [6])]


def test_render():
    with gomlx.load() as model:
        tokenizer = model.tokenizer
    shown = tokenizer.render("Hi wörld<|im_end|>", colour=False).splitlines()
    assert [int(one.split()[0]) for one in shown] == tokenizer.encode("Hi wörld<|im_end|>")
    assert shown[-1].endswith("<|im_end|>") and "\033" not in "".join(shown)
    coloured = tokenizer.render(tokenizer.encode("Hi<|im_end|>"))
    assert "\033[7;36m<|im_end|>\033[0m" in coloured and tokenizer.render([]) == ""


def test_a_chat_has_one_bos():
    made = tok(post_processor=template([token("[CLS]"), sequence("A")], [sequence("A"), sequence("B")]),
               added_tokens=[{"id": CLS, "content": "[CLS]", "special": True, "normalized": False, "single_word": False,
                              "lstrip": False, "rstrip": False}])
    made.bos_token, made._templates = "[CLS]", {"default": "{{ bos_token }}{{ messages[0].content }}"}
    assert made.apply_chat_template([{"role": "user", "content": "de"}], tokenize=True) == [CLS, *ids("de")]
    assert made.apply_chat_template([{"role": "user", "content": "de"}]) == "[CLS]de"
