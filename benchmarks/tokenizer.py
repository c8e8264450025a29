"""Measures tokenizers, ours and the peers', on the same texts, and prints one table.

    pip install . numpy tokenizers tiktoken bpe-openai gigatoken==0.10.0
    python benchmarks/tokenizer.py FOLDER...                        # folders with a tokenizer.json
    python benchmarks/tokenizer.py qwen3 gemma3 --text english=book.txt --threads 1 --repeat 5

FOLDER is a model's folder. gigatoken and tokenizers read the same file as we. tiktoken is given GPT-2's vocabulary from
it where the folder's name begins with gpt2, without special tokens; bpe-openai cannot read any and encodes with its own
cl100k: its ids are others, its work is alike. Without --text the texts are made of what the machine has: english is the
documentation in Python's packages, code their sources, multilingual the translations of the system's programs
(/usr/share/locale), json records of both, letters a megabyte of one letter. A text is --megabytes long.

"first" is the first pass of a fresh tokenizer over the text, "later" the two after it, in MB/s of UTF-8: medians and
spreads over fresh tokenizers, the libraries in turns, each after the system has made memory ready for it; with
--threads 2 a pass is a batch of the text's documents (20,000 characters each). Peers run their fastest call: tokenizers
encode_batch_fast, gigatoken encode or encode_batch, the others encode_to_numpy or encode_ordinary_batch. Ours is
encode(..., as_arrays=True) or encode_batch; "list" is ours with lists of ints. "ratio" is ours over the best peer's,
first and later. "ids": whether a library gives ours."""
import argparse
import ast
import ctypes
import gettext
import glob
import json
import mmap
import os
import random
import re
import statistics
import subprocess
import sys
import time

DOCUMENT = 20_000            # characters
LETTERS = 1_000_000
READY = 512 << 20
SLOW = 3.0                   # seconds: a library that takes as long for a pass gets no more of them


# ---- texts ----

def sources():
    import site
    roots = [os.path.dirname(os.__file__), *site.getsitepackages()]
    return sorted({path for root in roots for path in glob.glob(root + "/**/*.py", recursive=True)})


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(400_000)
    except (OSError, UnicodeDecodeError):
        return ""


def docstrings(text):
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            doc = ast.get_docstring(node)
            if doc and len(doc) > 80:
                yield doc


def translations():
    for path in sorted(glob.glob("/usr/share/locale/*/LC_MESSAGES/*.mo")):
        try:
            with open(path, "rb") as file:
                catalog = gettext.GNUTranslations(file)._catalog
        except Exception:    # a broken catalog is none of ours
            continue
        yield from (text for text in catalog.values() if isinstance(text, str) and len(text) > 20 and
                    not text.isascii())


def records(text, size):
    chance, words, made = random.Random(4), re.findall("[A-Za-z]+", text[:3_000_000]), 0
    while made < size:
        at = chance.randrange(max(1, len(text) - 500))
        row = json.dumps({"id": chance.randrange(10**9), "name": " ".join(chance.choices(words, k=3)),
                          "text": text[at:at + chance.randrange(20, 400)], "score": round(chance.random(), 6),
                          "tags": chance.choices(words, k=3), "parent": None}, ensure_ascii=False)
        made += len(row)
        yield row


def cut(parts, size, mix=True):
    """So many bytes of the parts, each once, in a fixed order."""
    parts = list(dict.fromkeys(parts))
    if mix:
        random.Random(1).shuffle(parts)
    return "\n\n".join(parts).encode()[:size].decode(errors="ignore")


def make_texts(size):
    files = [text for text in map(read, sources()) if text]
    english = cut((doc for text in files for doc in docstrings(text)), size)
    return {"english": english, "code": cut(files, size), "multilingual": cut(translations(), size),
            "json": cut(records(english, size), size, mix=False), "letters": "a" * min(LETTERS, size)}


# ---- libraries: name, version, and a function that makes one from a folder: None where it cannot read it ----

def ours(folder, threads, as_list=False):
    import gomlx
    tokenizer = gomlx.Tokenizer.from_file(folder)
    if threads > 1:
        return lambda text, documents: tokenizer.encode_batch(documents, add_special_tokens=False,
                                                               as_arrays=not as_list)
    return lambda text, documents: [tokenizer.encode(text, add_special_tokens=False, as_arrays=not as_list)]


def ours_list(folder, threads):
    return ours(folder, threads, as_list=True)


def hugging_face(folder, threads):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    return lambda text, documents: [e.ids for e in tokenizer.encode_batch_fast(
        documents if threads > 1 else [text], add_special_tokens=False)]


def gigatoken(folder, threads):
    import gigatoken
    tokenizer = gigatoken.Tokenizer(folder)
    if threads > 1:
        return lambda text, documents: tokenizer.encode_batch(documents)
    return lambda text, documents: [tokenizer.encode(text)]


def tiktoken(folder, threads):
    import tiktoken
    if not os.path.basename(os.path.normpath(folder)).startswith("gpt2"):
        return None
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
        model = json.load(file)["model"]
    bytes_of = {chr(c): b for b, c in byte_alphabet().items()}
    ranks = {bytes(bytes_of[c] for c in token): rank for token, rank in model["vocab"].items()
             if token != "<|endoftext|>"}
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
    encoding = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    if threads > 1:
        return lambda text, documents: encoding.encode_ordinary_batch(documents, num_threads=threads)
    return lambda text, documents: [encoding.encode_to_numpy(text)]


def bpe_openai(folder, threads):
    import bpe_openai as library
    if os.path.basename(os.path.normpath(folder)).startswith("gemma"):
        return None
    encoding = library.get_encoding("cl100k_base")
    if threads > 1:
        return lambda text, documents: encoding.encode_ordinary_batch(documents)
    return lambda text, documents: [encoding.encode_to_numpy(part) for part in documents]    # 20 MB at once it refuses


def byte_alphabet():
    """GPT-2's: {byte: scalar}."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {b: b for b in plain} | {b: 256 + i for i, b in enumerate(rest)}


LIBRARIES = {"gomlx": ("gomlx", ours), "list": ("gomlx", ours_list), "tokenizers": ("tokenizers", hugging_face),
             "gigatoken": ("gigatoken", gigatoken), "tiktoken": ("tiktoken", tiktoken),
             "bpe-openai": ("bpe-openai", bpe_openai)}
PEERS = ("tokenizers", "gigatoken", "tiktoken", "bpe-openai")


def version(package):
    from importlib import metadata
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "?"


# ---- measuring ----

def ready_memory():
    """Touches memory and gives it back: a virtual machine takes its time over pages that have lain free for long,
    which would be counted for whoever comes first."""
    with mmap.mmap(-1, READY, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:    # a shared one has no large pages
        if hasattr(mmap, "MADV_HUGEPAGE"):
            block.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, READY, 4096):
            block[at] = 1


def seconds(encoder, text, documents):
    """Of one pass, and what came of it; None where the text is refused."""
    start = time.perf_counter()
    try:
        out = encoder(text, documents)
    except ValueError as error:
        print(f"# the text is refused: {str(error)[:100]}", file=sys.stderr)
        return None, None
    return time.perf_counter() - start, out


def measure(folder, text, threads, repeat, chosen):
    """{library: {"first": rates, "later": rates}}, {library: whether its ids are ours}."""
    documents = [text[at:at + DOCUMENT] for at in range(0, len(text), DOCUMENT)]
    megabytes, rates, same, reference = len(text.encode()) / 1e6, {}, {}, None
    for part in (text, *documents):    # Python keeps a str's UTF-8: made here, for all alike
        ctypes.pythonapi.PyUnicode_AsUTF8AndSize(ctypes.py_object(part), None)
    waiting = list(chosen)
    for _ in range(repeat):
        for name in list(waiting):
            try:
                encoder = LIBRARIES[name][1](folder, threads)
            except Exception as error:    # a peer may refuse a file in any way it likes
                print(f"# {name} cannot read {folder}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
                encoder = None
            if encoder is None:
                waiting.remove(name)
                continue
            encoder("a word", ["a word"])    # what is imported or started at the first call
            ready_memory()
            for test in ("first", "later", "later"):
                took, out = seconds(encoder, text, documents)
                if took is None:
                    waiting.remove(name)
                    break
                rates.setdefault(name, {"first": [], "later": []})[test].append(megabytes / took)
                if name not in same:
                    ids = [int(i) for row in out for i in row][:1_000_000]
                    reference = ids if reference is None else reference
                    same[name] = ids == reference
                del out
                if took > SLOW:
                    waiting.remove(name)
                    break
    for found in rates.values():
        found["later"] = found["later"] or found["first"]
    return rates, same


def cell(rates):
    return f"{statistics.median(rates):8.1f} {f'{min(rates):.0f}..{max(rates):.0f}':>12}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--text", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--only", help="names of texts, separated by commas")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="separated by commas; gomlx is always there")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5, help="fresh tokenizers of each library")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    if os.environ.get("GOMLX_THREADS") != str(a.threads):    # libraries read theirs when they are loaded
        os.environ.update(GOMLX_THREADS=str(a.threads), RAYON_NUM_THREADS=str(a.threads),
                          TOKENIZERS_PARALLELISM=str(a.threads > 1).lower())
        sys.exit(subprocess.call([sys.executable, *sys.argv]))
    texts = {}
    for given in a.text:
        name, _, path = given.partition("=")
        with open(path, encoding="utf-8") as file:
            texts[name] = file.read()
    texts = texts or make_texts(int(a.megabytes * 1e6))
    chosen = ["gomlx", *(name for name in a.libraries.split(",") if name != "gomlx")]
    report = []
    if not a.json:
        print("# " + ", ".join(f"{name} {version(LIBRARIES[name][0])}" for name in chosen if name != "list"),
              f"threads {a.threads}", sep=", ")
        print(f"{'tokenizer':14} {'text':13} {'library':12} {'first':>8} {'spread':>12} {'later':>8} {'spread':>12}  "
              f"ids")
    for folder in a.folders:
        for name, text in texts.items():
            if not text or (a.only and name not in a.only.split(",")):
                continue
            rates, same = measure(folder, text, a.threads, a.repeat, chosen)
            label = os.path.basename(os.path.normpath(folder))
            if "gomlx" not in rates:
                continue
            peers = [p for p in PEERS if p in rates]
            medians = {p: [statistics.median(rates[p][test]) for test in ("first", "later")] for p in rates}
            ratios = {p: [ours / theirs for ours, theirs in zip(medians["gomlx"], medians[p])] for p in peers}
            report.append({"tokenizer": label, "text": name, "bytes": len(text.encode()), "rates": rates, "same": same,
                           "ratios": ratios})
            if a.json:
                continue
            for library in rates:
                print(f"{label:14} {name:13} {library:12} {cell(rates[library]['first'])} "
                      f"{cell(rates[library]['later'])}  {'yes' if same[library] else 'NO'}")
            if peers:
                print(f"{label:14} {name:13} {'ratio':12} {min(r[0] for r in ratios.values()):8.2f} {'':12} "
                      f"{min(r[1] for r in ratios.values()):8.2f}", flush=True)
    if a.json:
        print(json.dumps({"threads": a.threads, "versions": {n: version(LIBRARIES[n][0]) for n in chosen},
                          "rows": report}))


if __name__ == "__main__":
    main()
