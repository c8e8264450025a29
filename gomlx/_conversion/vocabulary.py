"""Tokenizers between containers: tokenizer.json and its companions to GGUF's tokenizer.ggml.*, and back."""
from __future__ import annotations

import json
import os

from gomlx import _gomlx as mx
from gomlx._files import gguf
from gomlx._files.reading import read_json
from gomlx._generation import chat
from gomlx._generation.tokenizer import Tokenizer, token_text

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
MARKER = "\u2581"                 # SentencePiece's space

# Several names of tokenizer.ggml.pre mean the same; these are the most common ones.
USUAL = ("qwen2", "deepseek-r1-qwen", "qwen35", "llama-bpe", "smaug-bpe", "tekken", "gpt-4o", "gpt-2", "smollm",
         "command-r", "deepseek-v3")
ENDS_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|return|>")
SAMPLING = {"temperature": "temp", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
            "repetition_penalty": "penalty_repeat"}


def text(value):
    return gguf.STRING, None, value


def texts(values):
    return gguf.ARRAY, gguf.STRING, values


def u32(value):
    return 4, None, int(value)


def f32(value):
    return 6, None, float(value)


def flag(value):
    return 7, None, bool(value)


# ---- to GGUF ----

def to_gguf(folder, rows, config):
    """tokenizer.ggml.* and general.sampling.* of a folder, for an embedding of n rows."""
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.exists(path):
        raise FileNotFoundError(f"no tokenizer.json in {folder!r}, from which GGUF's vocabulary is written")
    tokenizer = Tokenizer.from_file(folder)            # raises what is wrong with the files
    tokenizer.check_fit(path, rows, "the embedding's rows,")
    found = read_json(path)
    settings = read_json(os.path.join(folder, "tokenizer_config.json"))
    settings = read_json(os.path.join(folder, "special_tokens_map.json")) | settings
    generation = read_json(os.path.join(folder, "generation_config.json"))
    model = found.get("model") or {}
    if model.get("type", "BPE") != "BPE":
        raise NotImplementedError(f"{path}: a tokenizer of type {model.get('type')!r}; only BPE can be written to GGUF")
    tokens, types = token_table(found, model, rows, path)
    byte_level = any(step.get("type") == "ByteLevel" for step in steps(found.get("pre_tokenizer")))
    # Gemma 4 has its merges in the file; for other vocabularies of characters they come from scores.
    with_merges = not has_prefix(found) and str(config.get("model_type")).startswith("gemma4")
    out = {"tokenizer.ggml.model": text("gpt2" if byte_level else "gemma4" if with_merges else "llama")}
    if byte_level:
        out["tokenizer.ggml.pre"] = text(pre_name(found, model, path))
    out["tokenizer.ggml.tokens"] = texts(tokens)
    if byte_level:
        out["tokenizer.ggml.token_type"] = (gguf.ARRAY, 5, types)
    if byte_level or with_merges:
        out["tokenizer.ggml.merges"] = texts([" ".join(pair) for pair in merges_of(model)])
    if not byte_level:
        for i, token in enumerate(tokens):
            if types[i] == NORMAL and is_byte(token):
                types[i] = BYTE
        unknown = model.get("unk_token")
        if unknown in model["vocab"]:
            types[model["vocab"][unknown]] = UNKNOWN
            out["tokenizer.ggml.unknown_token_id"] = u32(model["vocab"][unknown])
        out["tokenizer.ggml.scores"] = (gguf.ARRAY, 6, scores_of(model, tokens))
        out["tokenizer.ggml.token_type"] = (gguf.ARRAY, 5, types)
        out["tokenizer.ggml.add_space_prefix"] = flag(has_prefix(found))
    out |= special_tokens(tokenizer, rows, settings, generation, config)
    template = chat.templates_in_folder(folder, settings)
    for name, source in template.items():
        out["tokenizer.chat_template" + ("" if name == "default" else "." + name)] = text(source)
    for key, name in SAMPLING.items():
        value = generation.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            out["general.sampling." + name] = (5, None, int(value)) if key == "top_k" else f32(value)
    return out


def steps(part):
    """A normalizer or pre-tokenizer of tokenizer.json as a list, with nested sequences flattened."""
    if not isinstance(part, dict):
        return []
    inner = part.get("normalizers") or part.get("pretokenizers") or part.get("decoders")
    return [part] if inner is None else [step for one in inner for step in steps(one)]


def token_table(found, model, rows, path):
    """Texts and types by id. Rows of the embedding beyond the vocabulary are unused tokens; added tokens beyond the
    embedding, of images and the like, are left out."""
    by_id, types = {}, {}
    for token, i in model.get("vocab", {}).items():
        by_id[i], types[i] = token, NORMAL
    for token in found.get("added_tokens") or []:
        by_id[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token.get("special") else USER_DEFINED
    return [by_id.get(i, f"[PAD{i}]") for i in range(rows)], [types.get(i, UNUSED) for i in range(rows)]


def pre_name(found, model, path):
    known = Tokenizer.gguf_pre_types()
    patterns, nfc = [], any(step.get("type") == "NFC" for step in steps(found.get("normalizer")))
    for step in steps(found.get("pre_tokenizer")):
        if step.get("type") == "Split":
            patterns.append(step["pattern"].get("Regex") or step["pattern"].get("String"))
        elif step.get("type") == "Digits":
            patterns.append(r"\p{N}" if step.get("individual_digits") else r"\p{N}+")
        elif step.get("type") == "ByteLevel" and step.get("use_regex", True):
            patterns += known["gpt-2"][0]
        elif step.get("type") != "ByteLevel":
            patterns.append(step.get("type"))
    wanted, whole = tuple(patterns), bool(model.get("ignore_merges"))
    alike = [name for name in (*USUAL, *known) if known[name][0] == wanted]
    alike = [name for name in alike if known[name][2] == whole] or alike
    alike = [name for name in alike if known[name][1] == nfc] or alike
    if not alike:
        raise NotImplementedError(f"{path}: GGUF has no name for its pre-tokenizer {patterns}")
    return alike[0]


def merges_of(model):
    return [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model.get("merges", [])]


def scores_of(model, tokens):
    """Scores that give the merges their order: minus the rank of the first that gives the token."""
    ranks = {}
    for rank, (left, right) in enumerate(merges_of(model)):
        ranks.setdefault(left + right, rank)
    last = float(len(ranks) + 1)
    return [-float(ranks[token]) if token in ranks else -last for token in tokens]


def is_byte(token):
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def has_prefix(found):
    every = [step for part in ("normalizer", "pre_tokenizer") for step in steps(found.get(part))]
    return any(step.get("type") == "Prepend" or
               step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never" for step in every)


def special_tokens(tokenizer, rows, settings, generation, config):
    def id_of(role):
        """The id of a token by its text, or else by the given id."""
        found = token_text(settings.get(f"{role}_token"))
        found = tokenizer.token_to_id(found) if found is not None else None
        for source in (generation, config):
            given = source.get(f"{role}_token_id")
            given = given[0] if isinstance(given, list) and given else given
            if found is None and type(given) is int:
                found = given
        return found if found is not None and 0 <= found < rows else None

    out = {}
    for role, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        found = id_of(role)
        if found is not None:
            out[f"tokenizer.ggml.{name}_token_id"] = u32(found)
    bare, full = tokenizer.bare("a"), tokenizer.encode("a", truncation=False, padding=False)
    before = full[:len(full) - len(bare)] if full[len(full) - len(bare):] == bare else full[:1]
    after = len(full) > len(bare) + len(before)
    if before:
        out["tokenizer.ggml.bos_token_id"] = u32(before[0])
    if after:
        out["tokenizer.ggml.eos_token_id"] = u32(full[-1])
    out["tokenizer.ggml.add_bos_token"], out["tokenizer.ggml.add_eos_token"] = flag(before), flag(after)
    for token in ENDS_OF_TURN:
        if tokenizer.token_to_id(token) is not None:
            out["tokenizer.ggml.eot_token_id"] = u32(tokenizer.token_to_id(token))
            break
    return out


# ---- from GGUF ----

def from_gguf(metadata, path):
    """{file name: object} of tokenizer.json, tokenizer_config.json and generation_config.json."""
    values = {key: value for key, (_, _, value) in metadata.items()}
    model, tokens = values.get("tokenizer.ggml.model"), values.get("tokenizer.ggml.tokens")
    if model not in ("gpt2", "llama", "gemma4") or not isinstance(tokens, list):
        raise NotImplementedError(f"{path}: tokenizer.ggml.model {model!r}; readable are 'gpt2', 'llama' and 'gemma4'")
    types = values.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise mx.Error(f"{path}: {len(types)} tokenizer.ggml.token_type for {len(tokens)} tokens")

    def role(name):
        i = values.get(f"tokenizer.ggml.{name}_token_id")
        return tokens[i] if type(i) is int and 0 <= i < len(tokens) else None

    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": types[i] != USER_DEFINED}
             for i, token in enumerate(tokens) if types[i] in (CONTROL, USER_DEFINED, UNKNOWN)]
    vocab = {token: i for i, token in enumerate(tokens) if types[i] != UNUSED}
    parts = byte_level_parts(values, vocab, path) if model == "gpt2" else piece_parts(values, tokens, vocab, path)
    pre = Tokenizer.gguf_pre_types().get(values.get("tokenizer.ggml.pre"))
    adds_bos = model != "gpt2" or bool(pre and pre[3])
    bos = role("bos") if values.get("tokenizer.ggml.add_bos_token", adds_bos) else None
    eos = role("eos") if values.get("tokenizer.ggml.add_eos_token") else None
    if bos or eos:
        parts["post_processor"] = template(bos, eos, vocab)
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added} | parts
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
                "add_bos_token": bool(bos), "add_eos_token": bool(eos)}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if role(key) is not None:
            settings[f"{name}_token"] = role(key)
    templates = chat.templates_in_gguf(values)
    if templates:
        settings["chat_template"] = templates["default"] if list(templates) == ["default"] else \
            [{"name": name, "template": source} for name, source in templates.items()]
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": settings,
            "generation_config.json": generation_of(values)}


def generation_of(values):
    out = {}
    for name, key in (("bos", "bos"), ("pad", "padding")):
        if type(values.get(f"tokenizer.ggml.{key}_token_id")) is int:
            out[f"{name}_token_id"] = values[f"tokenizer.ggml.{key}_token_id"]
    ends = [values.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    ends = list(dict.fromkeys(i for i in ends if type(i) is int))
    if ends:
        out["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    for key, name in SAMPLING.items():
        value = values.get("general.sampling." + name)
        if isinstance(value, (int, float)):
            out |= {"do_sample": True, key: float(f"{value:.6g}") if key != "top_k" else int(value)}
    return out


def byte_level_parts(values, vocab, path):
    pre, known = values.get("tokenizer.ggml.pre"), Tokenizer.gguf_pre_types()
    if pre not in known:
        raise NotImplementedError(f"{path}: tokenizer.ggml.pre {pre!r}; readable are {', '.join(sorted(known))}")
    patterns, nfc, ignore_merges, _ = known[pre]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    cuts = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in patterns]
    merges = values.get("tokenizer.ggml.merges") or []
    return {"normalizer": {"type": "NFC"} if nfc else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, byte_level]},
            "post_processor": byte_level | {"trim_offsets": False}, "decoder": byte_level | {"add_prefix_space": True},
            "model": bpe(vocab, [split_merge(merge) for merge in merges], ignore_merges=ignore_merges)}


def split_merge(merge):
    """"left right", where left has at least one character."""
    space = merge.find(" ", 1)
    return [merge[:space], merge[space + 1:]]


def piece_parts(values, tokens, vocab, path):
    """SentencePiece's BPE: every way to make a token of two others is a merge, best score first; or Gemma 4's, whose
    merges are in the file."""
    given = values["tokenizer.ggml.model"] == "gemma4"
    if given:
        merges = [split_merge(merge) for merge in values.get("tokenizer.ggml.merges") or []]
    else:
        merges = scored_merges(values.get("tokenizer.ggml.scores"), tokens, vocab, path)
    unknown = values.get("tokenizer.ggml.unknown_token_id", 0)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": MARKER}
    back = [{"type": "Replace", "pattern": {"String": MARKER}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}]
    normalizers = [replace]
    if values.get("tokenizer.ggml.add_space_prefix", True) and not given:
        normalizers = [{"type": "Prepend", "prepend": MARKER}, replace]
        back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    cut = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    unknown = tokens[unknown] if 0 <= unknown < len(tokens) else None
    return {"normalizer": {"type": "Sequence", "normalizers": normalizers}, "pre_tokenizer": cut if given else None,
            "post_processor": None, "decoder": {"type": "Sequence", "decoders": back},
            "model": bpe(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)}


def scored_merges(scores, tokens, vocab, path):
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise mx.Error(f"{path}: tokenizer.ggml.scores must be a list of {len(tokens)} numbers")
    ways = []
    for i, token in enumerate(tokens):
        if len(token) > 1024:
            raise NotImplementedError(f"{path}: token {i} has {len(token)} characters; at most 1024 are supported")
        ways += [(-scores[i], -at, at - len(token), i, token[:at], token[at:]) for at in range(1, len(token))
                 if token[:at] in vocab and token[at:] in vocab]
    return [[left, right] for *_, left, right in sorted(ways)]


def bpe(vocab, merges, **more):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False} | more | {
            "vocab": vocab, "merges": merges}


def template(bos, eos, vocab):
    single = [{"Sequence": {"id": "A", "type_id": 0}}]
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
    if bos:
        single.insert(0, {"SpecialToken": {"id": bos, "type_id": 0}})
        pair.insert(1, {"SpecialToken": {"id": bos, "type_id": 1}})
        pair.insert(0, {"SpecialToken": {"id": bos, "type_id": 0}})
    if eos:
        single.append({"SpecialToken": {"id": eos, "type_id": 0}})
        pair.append({"SpecialToken": {"id": eos, "type_id": 1}})
    return {"type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {token: {"id": token, "ids": [vocab[token]], "tokens": [token]}
                               for token in (bos, eos) if token}}


def dump(value):
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
