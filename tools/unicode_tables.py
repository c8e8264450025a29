"""Writes the tables of csrc/text/generated: unicode_tables.inc for unicode.c and property_tables.inc for property.c.

    python tools/unicode_tables.py FOLDER csrc/text/generated

FOLDER holds three files of facts (FACTS below): onig_classes (ranges of \\p{L}, \\p{N}, \\s ... as Hugging Face's regex
engine defines them, Unicode 16), nfc_tables (its NFC, Unicode 9) and characters, which tools/unicode_facts.py writes.
What the classes lack is listed here; it was found by querying the same library for every scalar value. Each file begins
with the hash of the facts, by which tests/text/test_tokenizer_tables.py knows whether it has the same ones.
"""
import hashlib
import json
import pathlib
import sys

FACTS = ["onig_classes_hf0.23.2.json", "nfc_tables_hf_unicode9.json", "characters_hf0.23.3.json"]

# \p{Nd}: first digit of each run of ten, and of the two longer runs their length.
DIGITS = """
30 660 6F0 7C0 966 9E6 A66 AE6 B66 BE6 C66 CE6 D66 DE6 E50 ED0 F20 1040 1090 17E0 1810 1946 19D0 1A80 1A90 1B50 1BB0
1C40 1C50 A620 A8D0 A900 A9D0 A9F0 AA50 ABF0 FF10 104A0 10D30 10D40 11066 110F0 11136 111D0 112F0 11450 114D0 11650
116C0 116D0:20 11730 118E0 11950 11BF0 11C50 11D50 11DA0 11F50 16130 16A60 16AC0 16B50 16D70 1CCF0 1D7CE:50 1E140
1E2F0 1E4F0 1E5F1 1E950 1FBF0
"""
LETTER_NUMBERS = [(0x16EE, 0x16F0), (0x2160, 0x2182), (0x2185, 0x2188), (0x3007, 0x3007), (0x3021, 0x3029),
                  (0x3038, 0x303A), (0xA6E6, 0xA6EF), (0x10140, 0x10174), (0x10341, 0x10341), (0x1034A, 0x1034A),
                  (0x103D1, 0x103D5), (0x12400, 0x1246E)]
CONNECTORS = [(0x5F, 0x5F), (0x203F, 0x2040), (0x2054, 0x2054), (0xFE33, 0xFE34), (0xFE4D, 0xFE4F), (0xFF3F, 0xFF3F)]
CIRCLED_LETTERS = [(0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189)]
JOIN_CONTROLS = [(0x200C, 0x200D)]
NUMERIC_SINCE_17 = [(0x11DE0, 0x11DE9), (0x16FF4, 0x16FF6)]   # the Digits pre-tokenizer is one Unicode version ahead
HANGUL_SECOND = [(0x1161, 0x1175), (0x11A8, 0x11C2)]          # vowels and trailing consonants

BLOCK = 128


def members(ranges):
    return {c for low, high in ranges for c in range(low, high + 1)}


def digits():
    out = set()
    for run in DIGITS.split():
        first, _, length = run.partition(":")
        out |= set(range(int(first, 16), int(first, 16) + int(length or 10)))
    return out


def table_of(bits):
    """Of each code point the bits whose sets have it."""
    table = [0] * 0x110000
    for bit, chars in enumerate(bits):
        for c in chars:
            table[c] |= 1 << bit
    return table


def classes(facts, check):
    of = {name: members(ranges) for name, ranges in facts.items()}
    nd = digits()
    assert nd <= of["N"] and members(LETTER_NUMBERS) <= of["N"]
    word = of["L"] | of["M"] | nd | members(LETTER_NUMBERS + CONNECTORS + CIRCLED_LETTERS + JOIN_CONTROLS)
    # ORDER CLASS: the bits of unicode.h, lowest first.
    bits = [of["L"], of["N"], of["s"], of["M"], of["P"], of["S"],
            of["Lu"] | of["Lt"] | of["Lm"] | of["Lo"] | of["M"], of["Ll"] | of["Lm"] | of["Lo"] | of["M"],
            word, of["N"] | members(NUMERIC_SINCE_17), check, of["Lt"], of["Lm"], nd, of["Han"]]
    return table_of(bits)


def nfc_check(nfc):
    """Characters that a text in NFC may lack: without any of them it is in NFC already."""
    decomposition = dict(nfc["canonical_decomposition"])
    composed = {c for _, _, c in nfc["composition"]}
    check = {c for c, _ in nfc["ccc"]} | {second for _, second, _ in nfc["composition"]} | members(HANGUL_SECOND)
    return check | {c for c in decomposition if c not in composed}


def traits(facts, nfc):
    # ORDER TRAIT: the bits of unicode.h, lowest first.
    joins = [r for ranges in facts["grapheme"].values() for r in ranges]
    bits = [members(facts["punctuation"]), members(facts["control"]), members(facts["nonspacing"]),
            members(facts["combining"]), {c for c, _ in facts["lowercase"]},
            members(facts["decomposed"]) | {c for c, _ in nfc["ccc"]}, {c for c, _ in facts["compatible"]},
            members(joins) | members(facts["pictographic"])]
    return table_of(bits)


def lowercase_runs(facts):
    """(first, last, step, what is added); the one that becomes two characters is left out: U+0130."""
    runs = []
    for c, lower in facts["lowercase"]:
        if len(lower) > 1:
            assert (c, lower) == (0x130, [0x69, 0x307])
            continue
        added = lower[0] - c
        if runs and runs[-1][3] == added and c - runs[-1][1] in (1, 2) and runs[-1][2] in (0, c - runs[-1][1]):
            runs[-1][1:3] = c, c - runs[-1][1]
        else:
            runs.append([c, c, 0, added])
    return [[first, last, max(step, 1), added & 0xFFFFFFFF] for first, last, step, added in runs]


def labelled_runs(named):
    """(first << 8 | label) where a run begins; label 0: in none."""
    label = [0] * 0x110001
    for number, of in enumerate(named, 1):
        for first, last in of:
            label[first:last + 1] = [number] * (last + 1 - first)
    return [c << 8 | label[c] for c in range(0x110000) if c == 0 or label[c] != label[c - 1]]


def write_table(name, table, kind, out):
    blocks, index = {}, []
    for start in range(0, len(table), BLOCK):
        index.append(blocks.setdefault(tuple(table[start:start + BLOCK]), len(blocks)))
    write_numbers(f"static const uint{16 if len(blocks) > 256 else 8}_t {name}_index[{len(index)}]", index, out)
    bits = [bits for block in blocks for bits in block]
    write_numbers(f"static const {kind} {name}_blocks[{len(bits)}]", bits, out)


def write_numbers(declaration, numbers, out):
    print(f"{declaration} = {{", file=out)
    line = "   "
    for n in numbers:
        item = f" {n},"
        if len(line) + len(item) > 118:
            print(line, file=out)
            line = "   "
        line += item
    print(line, file=out)
    print("};", file=out)


def write_compatible(facts, out):
    """Sorted: the scalar and where in the texts its decomposition begins, up to where the next one does."""
    text, entries = [], []
    for c, parts in facts["compatible"]:
        assert c < 1 << 17 and len(text) < 1 << 15 and max(parts) < 1 << 16
        entries.append(c << 15 | len(text))
        text += parts
    entries.append(len(text))
    write_numbers(f"static const uint32_t compatible_chars[{len(entries)}]", entries, out)
    write_numbers(f"static const uint16_t compatible_text[{len(text)}]", text, out)


def write_characters(facts, nfc, characters, out):
    write_table("class", classes(facts, nfc_check(nfc)), "uint16_t", out)
    write_table("trait", traits(characters, nfc), "uint8_t", out)
    runs = []
    for c, combining in sorted(nfc["ccc"]):
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == combining:
            runs[-1][1] = c
        else:
            runs.append([c, c, combining])
    write_numbers(f"static const uint32_t combining_runs[{3 * len(runs)}]", [n for run in runs for n in run], out)
    pairs = sorted((c, parts[0], parts[1] if len(parts) > 1 else 0) for c, parts in nfc["canonical_decomposition"])
    write_numbers(f"static const uint32_t decompositions[{3 * len(pairs)}]", [n for pair in pairs for n in pair], out)
    triples = sorted(tuple(triple) for triple in nfc["composition"])
    write_numbers(f"static const uint32_t compositions[{3 * len(triples)}]", [n for triple in triples for n in triple],
                  out)
    write_compatible(characters, out)
    runs = lowercase_runs(characters)
    write_numbers(f"static const uint32_t lowercase_runs[{4 * len(runs)}]", [n for run in runs for n in run], out)


def write_names(declaration, names, out):
    write_numbers(f"{declaration}[{len(names)}]", [f'"{name}"' for name in names], out)


def write_properties(characters, out):
    def write_runs(name, named):
        runs = labelled_runs(named)
        write_numbers(f"static const uint32_t {name}[{len(runs)}]", runs, out)

    write_names("static const char *const category_names", list(characters["categories"]), out)
    write_runs("category_runs", characters["categories"].values())
    scripts = {name: runs for name, runs in characters["scripts"].items() if name != "Unknown"}
    write_names("static const char *const script_names", list(scripts), out)
    write_runs("script_runs", scripts.values())
    split = [[] for _ in range(1 + max(number for _, _, number in characters["script_runs"]))]
    for first, last, number in characters["script_runs"]:
        split[number].append((first, last))
    write_runs("split_script_runs", split)
    # What \w has beyond letters, marks, decimal digits and connectors.
    of = {name: members(runs) for name, runs in characters["categories"].items()}
    base = set().union(*(chars for name, chars in of.items() if name[0] in "LM" or name in ("Nd", "Pc")))
    extra = members(characters["word"]) - base
    assert base <= members(characters["word"])
    write_runs("word_runs", [[(c, c) for c in extra]])
    write_runs("pictographic_runs", [characters["pictographic"]])
    # ORDER GRAPHEME: of grapheme.c
    write_runs("grapheme_runs", characters["grapheme"].values())
    write_runs("conjunct_runs", characters["conjunct"].values())


def hash_of(facts):
    """The SHA-256 of the facts, bytes of the files in the order of FACTS."""
    return hashlib.sha256(b"".join(facts)).hexdigest()


def main(folder, target):
    files = [pathlib.Path(folder, name).read_bytes() for name in FACTS]
    classes, nfc, characters = map(json.loads, files)
    head = f"/* Written by tools/unicode_tables.py; do not edit.\n * SHA-256 of the facts: {hash_of(files)}. */"
    with open(pathlib.Path(target, "unicode_tables.inc"), "w", encoding="ascii") as out:
        print(head, file=out)
        write_characters(classes["classes"], nfc, characters, out)
    with open(pathlib.Path(target, "property_tables.inc"), "w", encoding="ascii") as out:
        print(head, file=out)
        write_properties(characters, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
