"""token_bytes: the bytes of each id, of vocabularies of every kind."""
import os

import pytest

import gomlx

TEXT = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich: 1234 日本語 😀 {\"a\": [1]}\n\ttabs  and"


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "llama2", "gpt2", "llama3_2", "mistral_nemo", "deepseek_v3"])
def test_bytes_of_a_texts_tokens_are_the_text(shared, name):
    tokenizer = gomlx.Tokenizer.from_file(os.path.join(shared, "data", "tokenizers", name))
    ids = tokenizer.encode_after(TEXT)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode().lstrip(" ") == TEXT


def test_parts_of_characters_and_byte_tokens(shared):
    tokenizer = gomlx.Tokenizer.from_file(os.path.join(shared, "data", "tokenizers", "llama2"))
    assert [tokenizer.token_bytes(tokenizer.token_to_id(f"<0x{i:02X}>")) for i in range(256)] == \
        [bytes([i]) for i in range(256)]
    assert tokenizer.token_bytes(tokenizer.token_to_id("▁the")) == b" the"
    assert tokenizer.token_bytes(tokenizer.token_to_id("</s>")) == b"</s>"
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""


def test_a_gguf_vocabulary_has_the_bytes_of_its_folder(shared):
    models = os.path.join(shared, "data", "models")
    file = gomlx.Tokenizer.from_gguf(os.path.join(models, "fable-gguf", "fable-Q8_0.gguf"))
    folder = gomlx.Tokenizer.from_file(os.path.join(models, "fable"))
    assert [file.token_bytes(i) for i in range(file.vocab_size)] == \
        [folder.token_bytes(i) for i in range(folder.vocab_size)]


def test_wordpiece_begins_words_with_a_space():
    tokenizer = gomlx.Tokenizer.from_json(
        b'{"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",'
        b' "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "play": 1, "##ing": 2, "a": 3, "b": 4}},'
        b' "pre_tokenizer": {"type": "Whitespace"},'
        b' "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false}}', "w.json")
    assert [tokenizer.token_bytes(i) for i in (1, 2, 3, 4)] == [b" play", b"ing", b" a", b" b"]


def test_all_at_once_are_one_by_one(shared):
    tokenizer = gomlx.Tokenizer.from_file(os.path.join(shared, "data", "models", "stories260k"))
    assert tokenizer.all_token_bytes() == [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    letter = tokenizer.token_to_id("a")
    assert tokenizer.token_bytes(letter) == b"a"                # also of the one that begins the text of all others
    with pytest.raises(NotImplementedError, match="no token of this vocabulary has a text of its own"):
        tokenizer.bytes_of_tokens([letter], [])
    with pytest.raises(TypeError):
        tokenizer.bytes_of_tokens("text", [letter])
    with pytest.raises(TypeError):
        tokenizer.bytes_of_tokens([letter], "text")
