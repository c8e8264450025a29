"""What a model's files say about generating: the ids that end it, and how to sample. Every stop id knows its
sources."""
import os

from gomlx import _gomlx
from gomlx._generation.sampling import sample

# Tokens that end a turn wherever they exist as special tokens, for files that name too few of them.
TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<turn|>", "<eos>",
             "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<|tool_response>")

CONFIG_KEYS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
               "typical_p": "typical_p", "repetition_penalty": "repetition_penalty"}
CONFIG_LISTS = {"suppress_tokens": "suppress_tokens", "bad_words_ids": "bad_words"}
GGUF_KEYS = {"general.sampling.temp": "temperature", "general.sampling.top_p": "top_p",
             "general.sampling.top_k": "top_k", "general.sampling.min_p": "min_p",
             "general.sampling.xtc_probability": "xtc_probability", "general.sampling.xtc_threshold": "xtc_threshold",
             "general.sampling.penalty_last_n": "penalty_last_n",
             "general.sampling.penalty_repeat": "repetition_penalty"}
GGUF_MIROSTAT = {"general.sampling.mirostat_tau": "mirostat_tau", "general.sampling.mirostat_eta": "mirostat_eta"}
# Options that also change greedy decoding.
WITHOUT_DRAWS = {"repetition_penalty", "penalty_last_n", "suppress_tokens", "bad_words"}
# Keys of generation_config.json that say nothing about which token comes next, or are used elsewhere.
NOT_SAMPLING = {"eos_token_id", "bos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version",
                "do_sample", "use_cache", "cache_implementation", "cache_config", "return_legacy_cache",
                "return_dict_in_generate", "output_attentions", "output_hidden_states", "output_scores",
                "output_logits"}
NEUTRAL = {"num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1, "encoder_repetition_penalty": 1,
           "length_penalty": 1, "guidance_scale": 1}


def sampling_from_config(generation, where="generation_config.json", vocab_size=2**31):
    """generation_config.json: greedy when do_sample is false or nothing is said about sampling. gomlx.Error, which
    names the file and the key, when a value cannot be used."""
    found = numbers(generation, CONFIG_KEYS, where) | lists(generation, where, vocab_size)
    draws = generation.get("do_sample")
    if draws is not None and not isinstance(draws, bool):
        raise _gomlx.Error(f"{where}: do_sample is {draws!r:.80}, expected true or false")
    if bool(found.keys() - WITHOUT_DRAWS) if draws is None else draws:
        return {"temperature": 1.0} | found
    return {key: value for key, value in found.items() if key in WITHOUT_DRAWS}


def sampling_ignored_in_config(generation, applied):
    """{key: value} of what a generation_config.json says about generating and sampling_from_config did not apply."""
    used = {key for key, name in (CONFIG_KEYS | CONFIG_LISTS).items() if name in applied}
    return {key: value for key, value in generation.items()
            if key not in used | NOT_SAMPLING and not key.startswith("_") and value and value != NEUTRAL.get(key)}


def sampling_from_gguf(metadata, where="GGUF metadata"):
    """GGUF's general.sampling.*: greedy when there is none."""
    found = numbers(metadata, GGUF_KEYS, where)
    if metadata.get("general.sampling.mirostat") == 2:
        found |= {"mirostat_tau": 5.0} | numbers(metadata, GGUF_MIROSTAT, where)
    return {"temperature": 1.0} | found if found else {}


def sampling_ignored_in_gguf(metadata, applied):
    """{key: value} of the general.sampling.* that sampling_from_gguf did not apply."""
    used = {key for key, name in (GGUF_KEYS | GGUF_MIROSTAT).items() if name in applied}
    if "mirostat_tau" in applied or not metadata.get("general.sampling.mirostat"):
        used |= {"general.sampling.mirostat", *GGUF_MIROSTAT}
    return {key: value for key, value in metadata.items() if key.startswith("general.sampling.") and key not in used}


def numbers(source, keys, where):
    found = {}
    for key, name in keys.items():
        value = source.get(key)
        if value is None:
            continue
        is_whole = name in ("top_k", "penalty_last_n")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 2**31 \
                or is_whole and value != int(value):
            raise _gomlx.Error(f"{where}: {key} is {value!r:.80}, expected a {'whole ' * is_whole}number")
        found[name] = int(value) if is_whole else float(f"{value:.6g}")         # not 0.699999988
        try:                            # of one logit: the engine knows the ranges
            sample([0.0], **{name: found[name]})
        except ValueError as error:
            raise _gomlx.Error(f"{where}: {key}: {error}") from None
    return found


def lists(generation, where, vocab_size):
    """Ids and sequences of ids; an empty list says nothing."""
    found = {}
    for key, name in CONFIG_LISTS.items():
        value = generation.get(key)
        if value is None or value == []:
            continue
        flat = value if key == "suppress_tokens" else [one for word in value for one in word] \
            if isinstance(value, list) and all(isinstance(word, list) and word for word in value) else None
        if not isinstance(flat, list) or not all(type(one) is int and 0 <= one < vocab_size for one in flat):
            raise _gomlx.Error(f"{where}: {key} is {value!r:.80}, expected token ids"
                               + (f" below {vocab_size}" if vocab_size < 2**31 else ""))
        found[name] = value
    return found


def stop_ids(tokenizer, *, generation=None, config=None, metadata=None, where=""):
    """{id: [source, ...]} of all ids that end a generation: the union of everything the files name; where: the folder,
    or the GGUF file. Ids outside the vocabulary cannot come; what is not an id is a gomlx.Error."""
    stops = {}

    def add(token_id, source, key=None):
        for one in token_id if isinstance(token_id, list) else [] if token_id is None else [token_id]:
            if not isinstance(one, int) or isinstance(one, bool):
                file = os.path.join(where, source) if metadata is None else where
                raise _gomlx.Error(f"{file}: {key} is {token_id!r:.80}, expected a token id"
                                   + " or a list of them" * (metadata is None))
            if 0 <= one < tokenizer.vocab_size:
                stops.setdefault(one, []).append(source)

    add((generation or {}).get("eos_token_id"), "generation_config.json", "eos_token_id")
    add((config or {}).get("eos_token_id"), "config.json", "eos_token_id")
    text_config = (config or {}).get("text_config")
    if isinstance(text_config, dict):
        add(text_config.get("eos_token_id"), "config.json text_config", "eos_token_id")
    for key in ("eos", "eot", "eom"):
        name = f"tokenizer.ggml.{key}_token_id"
        add((metadata or {}).get(name), f"GGUF {key}", name)
    if metadata is None and tokenizer.eos_token is not None:
        add(tokenizer.token_to_id(tokenizer.eos_token), "tokenizer_config.json")
    for token in turn_ends(tokenizer):
        add(tokenizer.token_to_id(token), f"special token {token}")
    return stops


def turn_ends(tokenizer):
    """Those of TURN_ENDS that this tokenizer has as special tokens and that end a turn in its family."""
    have = [token for token in TURN_ENDS
            if (token_id := tokenizer.token_to_id(token)) is not None and tokenizer.is_special(token_id)]
    if "<|return|>" in have and "<|call|>" in have:      # gpt-oss: <|end|> ends one message, not the turn
        have = [token for token in have if token != "<|end|>"]
    if "<turn|>" in have:                                # Gemma 4: </s> is an ordinary token of its markup
        have = [token for token in have if token != "</s>"]
    else:
        have = [token for token in have if token != "<|tool_response>"]
    return have
