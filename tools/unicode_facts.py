"""Queries Hugging Face's library for every scalar value and writes the answers, for tools/unicode_tables.py.

    python tools/unicode_facts.py FOLDER          (needs tokenizers 0.23 and regex; takes minutes)

Writes FOLDER/characters_hf0.23.3.json. Ranges are pairs of first and last scalar. The library shows grapheme clusters
only through a charsmap; which rule joins a scalar to the one before it comes from the `regex` package, whose Unicode is
later.
"""
import json
import struct
import sys

import regex
from tokenizers import Regex, normalizers, pre_tokenizers

SCALARS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ALL = "".join(map(chr, SCALARS))
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()
SCRIPTS = """
Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki Bopomofo
Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee Chorasmian Common
Coptic Cuneiform Cypriot Cypro_Minoan Cyrillic Deseret Devanagari Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs
Elbasan Elymaic Ethiopic Garay Georgian Glagolitic Gothic Grantha Greek Gujarati Gunjala_Gondi Gurmukhi Gurung_Khema
Han Hangul Hanifi_Rohingya Hanunoo Hatran Hebrew Hiragana Imperial_Aramaic Inherited Inscriptional_Pahlavi
Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kawi Kayah_Li Kharoshthi Khitan_Small_Script Khmer Khojki
Khudawadi Kirat_Rai Lao Latin Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani Makasar Malayalam Mandaic
Manichaean Marchen Masaram_Gondi Medefaidrin Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi
Mongolian Mro Multani Myanmar Nabataean Nag_Mundari Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham
Ol_Chiki Ol_Onal Old_Hungarian Old_Italic Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian
Old_Turkic Old_Uyghur Oriya Osage Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang
Runic Samaritan Saurashtra Sharada Shavian Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo Sundanese Sunuwar
Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan
Tifinagh Tirhuta Todhri Toto Tulu_Tigalari Ugaritic Unknown Vai Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square
""".split()
GRAPHEME = ["Control", "CR", "LF", "Extend", "ZWJ", "SpacingMark", "Prepend", "L", "V", "T", "LV", "LVT"]


def ranges(scalars):
    out = []
    for c in sorted(scalars):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def matched(pattern):
    pieces = pre_tokenizers.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(ALL)
    return [[SCALARS[start], SCALARS[end - 1]] for _, (start, end) in pieces]


def changed(normalizer):
    """{scalar: what the normalizer makes of it between two letters}, of those that it changes."""
    out = {}
    for c in SCALARS:
        text = normalizer.normalize_str(f"a{chr(c)}b")[1:-1]
        if text != chr(c):
            out[c] = text
    return out


def script_runs():
    """[first, last, number] of the UnicodeScripts pre-tokenizer's scripts, without scalars that fit every script."""
    split = pre_tokenizers.UnicodeScripts()
    anywhere = {c for c in SCALARS if not split.pre_tokenize_str(chr(c))}
    runs, known = [], []
    for _, (start, end) in split.pre_tokenize_str(ALL):
        first = SCALARS[start]
        same = [k for k, c in enumerate(known) if len(split.pre_tokenize_str(chr(c) + chr(first))) == 1]
        number = same[0] if same else len(known)
        known += [] if same else [first]
        inside = [c for c in range(first, SCALARS[end - 1] + 1) if c not in anywhere and not 0xD800 <= c < 0xE000]
        runs += [[low, high, number] for low, high in ranges(inside)]
    return runs


def in_class(name):
    pattern = regex.compile(rf"\p{{{name}}}")
    return ranges(c for c in SCALARS if pattern.match(chr(c)))


def clusters():
    """A normalizer that replaces each grapheme cluster of at most 5 bytes, and each character of a longer one, by P if
    it begins with 'a' or is not ASCII."""
    units = [1 << 10] + [0] * 0x5FF                         # the root's children lie at 1 ^ byte
    for byte in [ord("a"), *range(0xC2, 0xF5)]:
        at, leaf = 1 ^ byte, 0x400 + byte
        units[at] = byte | 1 << 8 | (at ^ leaf) << 10
        units[leaf] = 1 << 31
    return normalizers.Precompiled(struct.pack("<1537I", 4 * 0x600, *units) + b"P\0").normalize_str


def grapheme_facts():
    count = clusters()
    table = {name: {c for low, high in in_class(f"Grapheme_Cluster_Break={name}") for c in range(low, high + 1)}
             for name in GRAPHEME}
    joins = {c for c in SCALARS if c and count("a" + chr(c)) == "P"}
    for name in ["Extend", "SpacingMark", "ZWJ"]:
        table[name] &= joins
    assert joins == table["Extend"] | table["SpacingMark"] | table["ZWJ"]
    others = [c for c in SCALARS if c >= 0x80 and c not in table["Prepend"]]
    assert table["Prepend"] == {c for c in SCALARS if c >= 0x80 and count(chr(c) + "a") == "P"}
    # The last character has a mark, so that it shows whether it is joined to those before it.
    seen = {
        "pictographic": {c for c in others if count(f"{chr(c)}\u200D\u00A9\u0301") == "PPPP"},
        "Consonant": {c for c in others if count(f"{chr(c)}\u094D\u0924\u0301") == "PPPP"},
        "Linker": {c for c in others if count(f"\u0915{chr(c)}\u0924\u0301") == "PPPP"},
    }
    seen["Extend"] = {c for c in joins if count(f"\u0915{chr(c)}\u094D\u0924\u0301") == "PPPPP"} - seen["Linker"]
    return table, seen


def main(folder):
    grapheme, seen = grapheme_facts()
    bert = normalizers.BertNormalizer
    decomposed, compatible = changed(normalizers.NFD()), changed(normalizers.NFKD())
    marks = changed(bert(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False))
    clean = changed(bert(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False))
    punctuation = pre_tokenizers.Punctuation("isolated")
    facts = {
        "categories": {name: matched(rf"\p{{{name}}}+") for name in CATEGORIES},
        "scripts": {name: matched(rf"\p{{{name}}}+") for name in SCRIPTS},
        "word": matched(r"\w+"),
        "pictographic": ranges(seen["pictographic"]),
        "punctuation": ranges(c for c in SCALARS if len(punctuation.pre_tokenize_str(f"a{chr(c)}b")) == 3),
        "control": ranges(c for c, text in clean.items() if text == ""),
        "nonspacing": ranges(c for c, text in marks.items() if text == ""),
        "combining": ranges(c for c, text in changed(normalizers.StripAccents()).items() if text == ""),
        "lowercase": [[c, list(map(ord, text))] for c, text in sorted(changed(normalizers.Lowercase()).items())],
        "decomposed": ranges(decomposed),
        "compatible": [[c, list(map(ord, text))] for c, text in sorted(compatible.items())
                       if text != decomposed.get(c)],
        "script_runs": script_runs(),
        "grapheme": {name: ranges(chars) for name, chars in grapheme.items()},
        "conjunct": {name: ranges(seen[name]) for name in ["Consonant", "Linker", "Extend"]},
    }
    with open(f"{folder}/characters_hf0.23.3.json", "w", encoding="ascii") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    main(sys.argv[1])
