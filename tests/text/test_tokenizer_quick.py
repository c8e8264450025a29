"""The quick way to ids (csrc/text/fast/quick.c) gives what the general way gives, under the chosen instruction set. A
group around a pattern makes it one that has no scanner, which takes the general way; of SentencePiece's words, an
Encoding takes it."""
import functools
import json
import random

import pytest

import gomlx

SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,
    "qwen2": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
              r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES,
}
PIECES = [" ", "  ", "    ", "\n", "\r\n", "\t", " \n", "\n  \n", "\n\n\n", "'", "''", "'s", "'re", "'LL", "'x",
          "don't", "a", "the", "Word", "xxxxxxxxxxxxxxxxxxxx",
          "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy", "1", "12", "1234567", ".", "...",
          "(", "=>", "/", "_", "\u000b", "\u001c", "\u0085", "\u00a0", "\u3000", "\u00e9", "\u017f", "\u0301",
          "\u4e2d\u6587", "\u0440\u0443\u0441", "\U0001f44d", "\u2581", "\u2581x", ">", "> x", "<", "</", "\u200b",
          "\u0000"]


@functools.cache
def alphabet():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


def trained(words, joined, split):
    """(vocabulary, merges) of random merges over the words' symbols, some of them below an earlier one's rank."""
    chance, vocabulary, merges = random.Random(3), {}, []
    for symbol in split:
        vocabulary.setdefault(symbol, len(vocabulary))
    words = [list(word) for word in words]
    while len(merges) < 300:
        pairs = sorted({pair for word in words for pair in zip(word, word[1:])})
        if not pairs:
            break
        left, right = chance.choice(pairs)
        merges.append([left, right])
        vocabulary.setdefault(left + right, len(vocabulary))
        for word in words:
            at = 0
            while at + 1 < len(word):
                if word[at:at + 2] == [left, right]:
                    word[at:at + 2] = [joined(left, right)]
                at += 1
    return vocabulary, merges


def byte_level(pattern, model, normalizer=None):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return gomlx.Tokenizer.from_json(json.dumps({
        "added_tokens": [], "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            split, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "decoder": {"type": "ByteLevel"}, "model": model}).encode())


def both_ways(name, model, normalizer=None):
    return byte_level(PATTERNS[name], model, normalizer), byte_level(f"(?:{PATTERNS[name]})", model, normalizer)


def merging(ignore_merges=False):
    of = alphabet()
    words = ["".join(of[b] for b in text.encode()) for text in PIECES + [" " + p for p in PIECES] + ["Hello world the"]]
    vocabulary, merges = trained(words, str.__add__, of.values())
    if ignore_merges:
        vocabulary.update({"Ġdon": len(vocabulary), "xxx": len(vocabulary) + 1})
    return {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": ignore_merges}


def ending():
    """A byte is another token where a piece ends: ids show how a text is split."""
    tokens = [c + suffix for suffix in ("", "</w>") for c in alphabet().values()]
    return {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": [],
            "end_of_word_suffix": "</w>"}


def words_of_sentencepiece(prefix):
    words = [p.replace(" ", "\u2581") for p in PIECES]
    words += ["\u2581the", "\u2581Word", "the\u2581", "\u2581\u2581\u2581", ">\u2581</"]
    symbols = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581", *"thewordx>.</ax1'", "\u4e2d", "\u0440"]
    vocabulary, merges = trained(words, str.__add__, symbols)
    vocabulary["<b>"] = len(vocabulary)
    merges = [m for m in merges if not (m[1].startswith("\u2581") and m[0][-1] not in "\u2581>")]
    merges = [m for m in merges if m[0] in vocabulary and m[1] in vocabulary and "".join(m) in vocabulary]
    steps = [{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    if prefix:
        steps.insert(0, {"type": "Prepend", "prepend": "\u2581"})
    return gomlx.Tokenizer.from_json(json.dumps({
        "added_tokens": [{"id": vocabulary["<b>"], "content": "<b>", "special": False, "normalized": False,
                          "lstrip": False, "rstrip": False, "single_word": False}],
        "normalizer": {"type": "Sequence", "normalizers": steps} if prefix else steps[0],
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                          "invert": False},
        "decoder": None,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "unk_token": "<unk>", "byte_fallback": True,
                  "fuse_unk": True}}).encode())


def texts(n, seed=0):
    chance = random.Random(seed)
    yield from ("", " ", "\n", "'", "a", " a", "a ", "<b>", " <b> a")
    for size in range(55, 140):    # each kind of thing at each place of a block
        yield "ab " * (size // 3) + "x" * (size % 3) + chance.choice(PIECES) + chance.choice(PIECES)
    for _ in range(n):
        kind = PIECES if chance.random() < 0.5 else [p for p in PIECES if p.isascii()]
        yield "".join(chance.choice(kind) for _ in range(chance.randrange(1, 80)))


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def same(quick, general, n=1500):
    for text in texts(n):
        assert ids_of(quick, text) == general(text), text
    everything = "".join(texts(n, seed=5))    # with all that was learned so far, and longer than a run
    assert ids_of(quick, everything) == general(everything)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("model", [merging(), merging(ignore_merges=True), ending()],
                         ids=["merging", "ignore_merges", "ending"])
def test_known_patterns(name, model):
    quick, general = both_ways(name, model)
    same(quick, lambda text: ids_of(general, text))


@pytest.mark.parametrize("name", PATTERNS)
def test_every_character(name):
    """Alone, between letters, behind a space, a quote and a sign, at every place of a block, and cut by its end."""
    quick, general = both_ways(name, ending())
    scalars = [chr(c) for c in range(0x80, 0x3400)] + \
        [chr(c) for c in (*range(0x3400, 0xD800, 61), *range(0x9F00, 0xAC40), *range(0xD700, 0xD800),
                          *range(0xE000, 0x11000, 3))]
    for form in ("{0}", "ab{0}", " {0}a", "'{0}", ".{0}b", "{0}{0} ", "1{0}\n"):
        text = "".join(form.format(c) for c in scalars)
        assert ids_of(quick, text) == ids_of(general, text), form


def test_pieces_of_many_tokens():
    """More of them in a run than there is room for at once, known and unknown; and pieces of each length at the end."""
    quick, general = both_ways("gpt2", ending())
    words = [" " + chr(97 + i % 26) * (5 + i % 60) for i in range(4000)]
    for text in ("".join(words), "".join(words[::-1]), "".join(words[:3000])):
        assert ids_of(quick, text) == ids_of(general, text)
    for length in range(1, 80):
        text = "the end " + "z" * length
        assert ids_of(quick, text) == ids_of(quick, text) == ids_of(general, text)


def test_normalized_text():
    quick, general = both_ways("qwen2", merging(), {"type": "NFC"})
    same(quick, lambda text: ids_of(general, text))


@pytest.mark.parametrize("prefix", [False, True])
def test_words(prefix):
    tokenizer = words_of_sentencepiece(prefix)
    same(tokenizer, lambda text: tokenizer(text, add_special_tokens=False).ids)


def test_new_pieces_that_come_again_at_once():
    """Pieces of all lengths, several times in a run before they are known, among others that differ in a byte."""
    quick, general = both_ways("gpt2", merging())
    chance = random.Random(2)
    words = [f" {chance.choice('ab')}{'q' * (i % 37)}{chr(97 + i % 26)}{'x' * (i % 3)}" for i in range(1500)]
    text = "".join(chance.choice(words) for _ in range(20_000))
    assert ids_of(quick, text) == ids_of(general, text)


def by_the_rule(vocabulary, ranks, piece):
    """The ids of a piece: the pair of the lowest rank, of equal ones the leftmost, until none is left."""
    symbols = [alphabet()[byte] for byte in piece.encode()]
    while True:
        found = [(ranks[pair], at) for at, pair in enumerate(zip(symbols, symbols[1:])) if pair in ranks]
        if not found:
            return [vocabulary[symbol] for symbol in symbols]
        at = min(found)[1]
        symbols[at:at + 2] = [symbols[at] + symbols[at + 1]]


@pytest.mark.parametrize("order", ["as made", "shuffled"])
@pytest.mark.parametrize("seed", range(6))
def test_merges_in_any_order(order, seed):
    """Pairs of bytes that merge at once do so only where the rule comes to them first: tables of few bytes, in which
    every pair has rivals; shuffled, what a merge makes takes part in merges of lower rank. Some merges are there twice:
    the last counts."""
    chance = random.Random(seed)
    letters = ["a", "b", "c", "\u0430", "\u0431"][:3 + seed % 3]
    symbols = sorted({alphabet()[byte] for letter in letters for byte in letter.encode()})
    vocabulary = {symbol: i for i, symbol in enumerate(alphabet().values())}
    merges = {}
    while len(merges) < 40:
        left, right = chance.choice(symbols), chance.choice(symbols)
        if len(left + right) > 12 or (left, right) in merges:
            continue
        merges[left, right] = None
        vocabulary.setdefault(left + right, len(vocabulary))
        symbols.append(left + right)
    merges = list(merges) + chance.choices(list(merges), k=6)
    if order == "shuffled":
        chance.shuffle(merges)
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    tokenizer = byte_level(PATTERNS["gpt2"], {"type": "BPE", "vocab": vocabulary, "merges": [list(m) for m in merges]})
    for _ in range(400):
        length = chance.choice([1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 47, 48, 63, 64, 65, 70])
        piece = "".join(chance.choices(letters, k=length))
        assert ids_of(tokenizer, piece) == by_the_rule(vocabulary, ranks, piece), piece


def test_known_pieces_with_more_ids_than_a_run_has_room_for():
    quick, general = both_ways("gpt2", merging())
    chance = random.Random(3)
    words = ["".join(chance.choices("qzxj", k=chance.choice([5, 14, 15, 29, 30, 31, 40]))) for _ in range(4000)]
    text = " ".join(words + words[:500])
    expected = ids_of(general, text)
    assert len(expected) > 1 << 16
    for _ in range(3):
        assert ids_of(quick, text) == expected


def test_what_is_learned_is_forgotten_unharmed():
    """More different pieces than the tables keep."""
    quick, general = both_ways("gpt2", merging())
    chance = random.Random(1)
    for _ in range(3):
        text = " ".join(f"w{chance.randrange(10**9)}{'q' * chance.randrange(40)}" for _ in range(60_000))
        assert ids_of(quick, text) == ids_of(general, text)


def without_scanners(step):
    if step is None:
        return None
    if step["type"] == "Sequence":
        return step | {"pretokenizers": [without_scanners(part) for part in step["pretokenizers"]]}
    if step["type"] == "Split" and "Regex" in step["pattern"]:
        return step | {"pattern": {"Regex": f"(?:{step['pattern']['Regex']})"}}
    if step["type"] == "ByteLevel" and step["use_regex"]:
        split = {"type": "Split", "pattern": {"Regex": f"(?:{PATTERNS['gpt2']})"}, "behavior": "Isolated",
                 "invert": False}
        return {"type": "Sequence", "pretokenizers": [split, step | {"use_regex": False}]}
    return step


@pytest.mark.parametrize("name", ["gpt2", "llama3_2", "qwen3", "gemma3", "mistral_nemo", "deepseek_v3"])
def test_real_tokenizers(shared, name):
    path = f"{shared}/data/tokenizers/{name}"
    quick = gomlx.Tokenizer.from_file(path)
    if name == "gemma3":
        same(quick, lambda text: quick(text, add_special_tokens=False).ids, n=400)
        return
    with open(f"{path}/tokenizer.json", encoding="utf-8") as file:
        data = json.load(file)
    data["pre_tokenizer"] = without_scanners(data["pre_tokenizer"])
    general = gomlx.Tokenizer.from_json(json.dumps(data).encode())
    same(quick, lambda text: ids_of(general, text), n=400)
