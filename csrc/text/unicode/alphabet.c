/* alphabet.c - see alphabet.h. */
#include "text/unicode/alphabet.h"
#include "text/unicode/unicode.h"

/* Printable Latin-1 represents itself; the 68 other bytes follow from U+0100, in order. */
static bool is_printable(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t alphabet_char(uint8_t byte) {
    if (is_printable(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xAD ? 0x143 : 0x121u + (byte - 0x7Fu);
}

int alphabet_byte(uint32_t c) {
    if (c < 0x100)
        return is_printable(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)(c - 0x100);
    if (c == 0x143)
        return 0xAD;
    return c < 0x143 ? (int)(c - 0x121 + 0x7F) : -1;
}

gm_status alphabet_append(const uint8_t *bytes, size_t length, byte_buffer *out) {
    GM_TRY(bytes_reserve(out, 2 * length));
    uint8_t *at = out->data + out->size;
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] > ' ' && bytes[i] < 0x7F)
            *at++ = bytes[i];
        else
            at += utf8_put(alphabet_char(bytes[i]), at);
    }
    out->size = (size_t)(at - out->data);
    return GM_OK;
}

gm_status alphabet_text(const uint8_t *bytes, size_t length, byte_buffer *out) {
    out->size = 0;
    return alphabet_append(bytes, length, out);
}
