"""Writes tables.inc: the character classes and the NFC data of csrc/text/unicode.c.

    python csrc/text/tables.py FOLDER > csrc/text/tables.inc

FOLDER holds two files of facts: onig_classes_hf0.23.2.json (ranges of \\p{L}, \\p{N}, \\s ... as Hugging Face's regex
engine has them, Unicode 16) and nfc_tables_hf_unicode9.json (its NFC, Unicode 9). What those two lack is below; it was
found by asking the same library about every scalar value.
"""
import json
import sys

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


def classes(facts, check):
    of = {name: members(ranges) for name, ranges in facts.items()}
    nd = digits()
    assert nd <= of["N"] and members(LETTER_NUMBERS) <= of["N"]
    word = of["L"] | of["M"] | nd | members(LETTER_NUMBERS + CONNECTORS + CIRCLED_LETTERS + JOIN_CONTROLS)
    # ORDER CLASS: the bits of unicode.h, lowest first.
    bits = [of["L"], of["N"], of["s"], of["M"], of["P"], of["S"],
            of["Lu"] | of["Lt"] | of["Lm"] | of["Lo"] | of["M"], of["Ll"] | of["Lm"] | of["Lo"] | of["M"],
            word, of["N"] | members(NUMERIC_SINCE_17), check, of["Lt"], of["Lm"], nd, of["Han"]]
    table = [0] * 0x110000
    for bit, chars in enumerate(bits):
        for c in chars:
            table[c] |= 1 << bit
    return table


def nfc_check(nfc):
    """Characters that a text in NFC may lack: without any of them it is in NFC already."""
    decomposition = dict((c, parts) for c, parts in nfc["canonical_decomposition"])
    composed = {c for _, _, c in nfc["composition"]}
    check = {c for c, _ in nfc["ccc"]} | {second for _, second, _ in nfc["composition"]} | members(HANGUL_SECOND)
    return check | {c for c in decomposition if c not in composed}


def write_numbers(declaration, numbers):
    print(f"{declaration} = {{")
    line = "   "
    for n in numbers:
        item = f" {n},"
        if len(line) + len(item) > 118:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


def main(folder):
    with open(f"{folder}/onig_classes_hf0.23.2.json") as f:
        facts = json.load(f)["classes"]
    with open(f"{folder}/nfc_tables_hf_unicode9.json") as f:
        nfc = json.load(f)
    table = classes(facts, nfc_check(nfc))
    blocks, index = {}, []
    for start in range(0, len(table), BLOCK):
        index.append(blocks.setdefault(tuple(table[start:start + BLOCK]), len(blocks)))
    print("/* Written by tables.py; do not edit. */")
    write_numbers(f"static const uint16_t class_index[{len(index)}]", index)
    bits = [bits for block in blocks for bits in block]
    write_numbers(f"static const uint16_t class_blocks[{len(bits)}]", bits)
    runs = []
    for c, combining in sorted(nfc["ccc"]):
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == combining:
            runs[-1][1] = c
        else:
            runs.append([c, c, combining])
    write_numbers(f"static const uint32_t combining_runs[{3 * len(runs)}]", [n for run in runs for n in run])
    pairs = sorted((c, parts[0], parts[1] if len(parts) > 1 else 0) for c, parts in nfc["canonical_decomposition"])
    write_numbers(f"static const uint32_t decompositions[{3 * len(pairs)}]", [n for pair in pairs for n in pair])
    triples = sorted(tuple(triple) for triple in nfc["composition"])
    write_numbers(f"static const uint32_t compositions[{3 * len(triples)}]", [n for triple in triples for n in triple])


if __name__ == "__main__":
    main(sys.argv[1])
