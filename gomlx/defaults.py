"""What a model's files say about generating: the ids that end it, and how to sample. Every stop id knows its
sources."""
from gomlx import _gomlx

# Tokens that end a turn wherever they exist as special tokens, for files that name too few of them.
TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<turn|>", "<eos>",
             "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<|tool_response>")

CONFIG_KEYS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
               "repetition_penalty": "repetition_penalty"}
GGUF_KEYS = {"general.sampling.temp": "temperature", "general.sampling.top_p": "top_p",
             "general.sampling.top_k": "top_k", "general.sampling.min_p": "min_p",
             "general.sampling.penalty_repeat": "repetition_penalty"}


def sampling_from_config(generation):
    """generation_config.json: greedy when do_sample is false or nothing is said about sampling."""
    found = numbers(generation, CONFIG_KEYS, "generation_config.json")
    if generation.get("do_sample", bool(found.keys() - {"repetition_penalty"})):
        return {"temperature": 1.0} | found
    return {key: value for key, value in found.items() if key == "repetition_penalty"}


def sampling_from_gguf(metadata):
    """GGUF's general.sampling.*: greedy when there is none."""
    found = numbers(metadata, GGUF_KEYS, "GGUF metadata")
    return {"temperature": 1.0} | found if found else {}


def numbers(source, keys, where):
    found = {}
    for key, name in keys.items():
        value = source.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 2**31:
            raise _gomlx.Error(f"{where}: {key} is {value!r}, expected a number")
        found[name] = int(value) if name == "top_k" else float(f"{value:.6g}")   # 0.7 as float32 is 0.699999988
    return found


def stop_ids(tokenizer, *, generation=None, config=None, metadata=None):
    """{id: [source, ...]} of all ids that end a generation: the union of everything the files name."""
    stops = {}

    def add(token_id, source):
        ids = token_id if isinstance(token_id, list) else [token_id]
        for one in ids:
            if isinstance(one, int) and not isinstance(one, bool) and 0 <= one < tokenizer.vocab_size:
                stops.setdefault(one, []).append(source)

    add((generation or {}).get("eos_token_id"), "generation_config.json")
    add((config or {}).get("eos_token_id"), "config.json")
    text_config = (config or {}).get("text_config")
    if isinstance(text_config, dict):
        add(text_config.get("eos_token_id"), "config.json text_config")
    for key in ("eos", "eot", "eom"):
        add((metadata or {}).get(f"tokenizer.ggml.{key}_token_id"), f"GGUF {key}")
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
