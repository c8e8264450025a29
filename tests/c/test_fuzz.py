"""Each tests/fuzz/fuzz_*.c, built with libFuzzer, ASan and UBSan, runs for a moment from small seeds. For long runs:
GOMLX_FUZZ_SECONDS=3600 pytest tests/c/test_fuzz.py; what it finds stays in the folder that the failure names."""
import contextlib
import glob
import json
import os
import re
import shutil
import subprocess

import pytest
from byte_level import byte_alphabet
from checkpoints import SMALL, random_weights, save_gguf, save_safetensors
from engine import Compiler, load_setup
from places import ROOT

pytestmark = pytest.mark.slow

ENTRIES = sorted(os.path.basename(path)[5:-2] for path in glob.glob(os.path.join(ROOT, "tests", "fuzz", "fuzz_*.c")))
SECONDS = os.environ.get("GOMLX_FUZZ_SECONDS", "3")
SANITIZE = "address,undefined"
TINY = SMALL | {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 8}
TOKENIZER = {
    "added_tokens": [{"id": 4, "content": "<s>", "special": True}], "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "decoder": {"type": "ByteLevel"},
    "post_processor": {
        "type": "TemplateProcessing", "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}},
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": [["a", "b"]]}}

ISA = """
#include "kernels.h"
struct gm_kernels { const char *family; };
const char *kernels_family(const gm_kernels *table) { return table->family; }
const gm_kernels *kernels_select(const char **why) {
    static gm_kernels table = { .family = "generic" };
    (void)why;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) table.family = "avx2";
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        table.family = "avx512";
#endif
    return &table;
}
"""
MODELS = [
    {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.5], ["ab", -2.0], ["<0x41>", -3.0]], "unk_id": 0,
     "byte_fallback": True},
    {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "##b": 2}, "unk_token": "[UNK]",
     "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    {"type": "WordLevel", "vocab": {"?": 0, "a": 1}, "unk_token": "?"},
    {"type": "BPE", "vocab": {"a": 0, "##b</w>": 1, "ab</w>": 2}, "merges": ["a ##b</w>"], "end_of_word_suffix": "</w>",
     "continuing_subword_prefix": "##", "unk_token": "a", "fuse_unk": True, "byte_fallback": True}]
# A SentencePiece model: pieces with scores and types, then model_type 2, then remove_extra_whitespaces off.
PIECES = (b"".join(b"\n" + bytes([len(piece) + 9, 10, len(piece)]) + piece + b"\x15\0\0\x80\xbf\x18" + bytes([kind])
                   for piece, kind in [(b"<unk>", 2), (b"<s>", 3), (b"</s>", 3), (b"a", 1), (b"ab", 1), (b"b", 1)])
          + b"\x12\2\x18\2" + b"\x1a\2\x20\0")


ADDED = b'{"added_tokens": [{"id": 3, "content": "a", "lstrip": true}, {"id": 9, "content": "zz", "special": true}]}'
# Patterns with a scanner of their own, and one without.
PATTERNS = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}"
    r"\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", r"\w+(?=\s)|\b|[^a-z]",
]
# SentencePiece's spaces and bytes: words are encoded one by one.
WORDS = {
    "added_tokens": [{"id": 0, "content": "<s>", "special": True}],
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
    "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                 {"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "byte_fallback": True, "fuse_unk": True, "unk_token": "<s>", "vocab": {
        token: i for i, token in enumerate(["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"ab1.é▁", "ab", "▁a",
                                            "▁ab", "▁▁", "1.", "aé"])},
        "merges": [["a", "b"], ["▁", "a"], ["▁a", "b"], ["▁", "▁"], ["1", "."], ["a", "é"]]}}
TEXTS = ["ab <s> aé", "Hello  world, it's 12345 中文 e\u0301\n", "  ▁aab\r\n\t ab1.2 ", "x" * 70 + " aaaaaaaaaaaa" * 9]


@pytest.fixture(scope="session")
def parsers(tmp_path_factory):
    """link(name): a fuzzer of tests/fuzz/fuzz_name.c and of all that reads files; returns its path."""
    clang = shutil.which("clang")
    folder = tmp_path_factory.mktemp("fuzz")
    if not clang:
        pytest.skip("no clang")
    probe = folder / "probe.c"
    probe.write_text("int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n > 1u << 30; }\n")
    command = [clang, f"-fsanitize=fuzzer,{SANITIZE}", probe, "-o", folder / "probe"]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("clang has no libFuzzer or sanitizers (libclang-rt-dev)")
    build = load_setup(ROOT)
    compiler = Compiler(ROOT, [
        clang, "-std=c11", "-D_GNU_SOURCE", "-O1", "-g1", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Itests/fuzz",
        *(f"-I{name}" for name in build.INCLUDES), f"-fsanitize=fuzzer-no-link,{SANITIZE}",
        "-fno-sanitize-recover=all"], build.JOBS)
    sources = [os.path.relpath(path, ROOT) for name in ("base", "text", "io")
               for path in glob.glob(os.path.join(ROOT, "csrc", name, "**", "*.c"), recursive=True)
               # which make arrays
               if not build.is_part(path) and not path.endswith(("io/source.c", "io/exchange.c"))]
    with contextlib.chdir(ROOT):
        parts = [part for part in build.parts() if part[0].startswith("csrc/")]
    # What knows the processor would have all kernels in the programs.
    isa = folder / "isa.c"
    isa.write_text(ISA)
    # Configs are read by the architectures too, whose forward passes need all ops: what is not there gets a stub.
    configs = [os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, "csrc", "models", "*.c"))
               if os.path.basename(path) not in ("load.c", "waiting.c", "fields.c", "experts.c", "info.c", "weights.c")]
    objects = list(compiler.compile([*sources, "kernels/quants.c", str(isa), *parts]).values())
    config_objects = list(compiler.compile(configs).values())
    batches = [compiler.object("csrc/run/encode_batch.c", [])]

    def stubs(command):
        """An object with a function that ends the program for each symbol that the linker misses."""
        said = subprocess.run([clang, *command], cwd=ROOT, capture_output=True, text=True).stderr
        names = sorted(set(re.findall(r"undefined (?:reference to|symbol:) [`']?(\w+)", said)))
        source = folder / "stubs.c"
        source.write_text("".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in names))
        compiler.run([clang, "-O1", "-c", str(source), "-o", str(source) + ".o"])
        return str(source) + ".o"

    def link(name):
        own = compiler.object(f"tests/fuzz/fuzz_{name}.c", [])
        program = str(folder / name)
        used = objects + (config_objects if name == "config" else batches if name == "encoding" else [])
        command = [f"-fsanitize=fuzzer,{SANITIZE}", own, *used, *(f"-l{one}" for one in build.LIBRARIES), "-o", program]
        compiler.run([clang, *command, *([stubs(command)] if name == "config" else [])])
        return program

    return link


def components():
    """A tokenizer.json for each component of the golden files."""
    folder = os.path.join(ROOT, "tests", "golden")
    parts = []
    for name, key in [("normalizers", "normalizers"), ("pre_tokenizers", "pipelines"), ("decoders", "decoders"),
                      ("patterns", "patterns")]:
        with open(os.path.join(folder, f"{name}.json"), encoding="utf-8") as f:
            for entry in json.load(f)[key]:
                if name == "patterns":
                    entry = {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": entry["pattern"]},
                                               "behavior": "Isolated", "invert": False}}
                parts.append({key: value for key, value in entry.items() if key in TOKENIZER})
    return [json.dumps(TOKENIZER | part, ensure_ascii=False).encode() for part in parts]


@pytest.fixture(scope="session")
def seeds(tmp_path_factory):
    """{entry: [bytes]}"""
    folder = tmp_path_factory.mktemp("seeds")
    weights = random_weights(TINY)
    save_safetensors(str(folder / "model"), TINY, weights)
    save_gguf(str(folder / "tiny.gguf"), TINY, weights)
    config, tokenizer = json.dumps(TINY).encode(), json.dumps(TOKENIZER).encode()
    gguf, safetensors = (folder / "tiny.gguf").read_bytes(), (folder / "model" / "model.safetensors").read_bytes()
    return {"gguf": [gguf], "safetensors": [safetensors], "json": [config, tokenizer],
            "config": [b"\0" + config, b"\1" + gguf],
            "tokenizer": [b"\0" + tokenizer, b"\1" + gguf, b"\2" + PIECES, b"\3" + PIECES + b"\xff" + ADDED,
                          *(b"\0" + json.dumps(TOKENIZER | {"model": model}).encode() for model in MODELS),
                          *(b"\0" + file for file in components())],
            "encoding": [bytes([number, options]) + text.encode() for text in TEXTS for number in range(8)
                         for options in (0, 63, 129)]}


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory):
    """A folder of tokenizer.json files for fuzz_encoding.c: one of every component, and those that lose no byte."""
    folder = tmp_path_factory.mktemp("tokenizers")
    for i, file in enumerate(components()):
        (folder / f"component-{i:03}.json").write_bytes(file)
    for i, model in enumerate(MODELS):
        (folder / f"model-{i}.json").write_text(json.dumps(TOKENIZER | {"model": model}))
    (folder / "words.json").write_text(json.dumps(WORDS))
    alphabet = {token: i for i, token in enumerate([*byte_alphabet().values(), "aa", "aaa", "aaaa", "ab", "Ġa"])}
    merges = [["aa", "a"], ["a", "a"], ["aa", "aa"], ["a", "b"], ["Ġ", "a"]]
    for i, pattern in enumerate(PATTERNS):
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        steps = [split, TOKENIZER["pre_tokenizer"] | {"use_regex": False}]
        for whole in (False, True):
            file = TOKENIZER | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "model": {
                "type": "BPE", "vocab": alphabet, "merges": merges, "ignore_merges": whole}}
            del file["normalizer"]
            (folder / f"bytes-{i}{whole:d}.json").write_text(json.dumps(file))
    return str(folder)


@pytest.mark.parametrize("name", ENTRIES)
def test_fuzz(parsers, seeds, tokenizers, name, tmp_path):
    program = parsers(name)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for i, seed in enumerate(seeds[name]):
        (corpus / str(i)).write_bytes(seed)
    options = [f"-max_total_time={SECONDS}", "-timeout=20", "-rss_limit_mb=3000", "-max_len=8192", "-seed=1"]
    done = subprocess.run([program, *options, f"-artifact_prefix={tmp_path}/", str(corpus)], capture_output=True,
                          text=True, errors="replace", env=os.environ | {"GOMLX_FUZZ_TOKENIZERS": tokenizers})
    assert done.returncode == 0, f"{tmp_path}\n{done.stderr[-4000:]}"
    assert "Done" in done.stderr, done.stderr[-2000:]
