"""The characters that stand for bytes in byte-level vocabularies."""


def byte_alphabet():
    """GPT-2's: printable Latin-1 is itself, the other bytes follow from U+0100."""
    table, extra = {}, 0
    for byte in range(256):
        printable = 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE
        table[byte] = chr(byte if printable else 0x100 + extra)
        extra += not printable
    return table
