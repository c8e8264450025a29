"""Counts what of JSON-Schema-Test-Suite compiles and is held to, and prints one table.

    python benchmarks/structured_suite.py ../shared/data/schemas/tests
    python benchmarks/structured_suite.py ../shared/data/schemas/tests --llama gomlx/models/fable-Q8_0.gguf

FOLDER has draft2020-12/*.json and draft7/*.json. "compile": groups whose schema is taken; of their documents, "valid"
are those that are valid and can be written, "invalid" those that are not and can be: each of these is a wrong answer
that may come. A document is tried in the spellings of tests/generate/test_schema_suite.py. --llama: the same groups and
documents with the grammars of llama-cpp-python, which has to be installed and writes what it cannot read to stderr,
over the vocabulary of this file."""
import argparse
import ctypes
import glob
import json
import sys
from pathlib import Path

from gomlx import UnsupportedSchema
from gomlx._generation.constraints import Constraint

sys.path.append(str(Path(__file__).parents[1] / "tests" / "generate"))
from test_schema_suite import Bytes, accepts, schema_of, spellings


class Ours:
    name = "gomlx"

    def __init__(self):
        self.view = Bytes()

    def compiled(self, schema):
        try:
            return Constraint.schema(schema)
        except UnsupportedSchema:
            return None

    def accepts(self, grammar, document):
        return accepts(grammar, self.view, document)


class Llama:
    name = "llama-cpp-python"

    def __init__(self, path):
        import llama_cpp
        self.library = llama_cpp
        silent = llama_cpp.llama_log_callback(lambda *said: None)
        llama_cpp.llama_log_set(silent, ctypes.c_void_p())
        self.model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model.model)
        self.end = llama_cpp.llama_vocab_eos(self.vocab)
        self.kept = silent

    def compiled(self, schema):
        try:
            grammar = self.library.LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)._grammar
        except Exception:                               # of any kind: what it cannot read
            return None
        sampler = self.library.llama_sampler_init_grammar(self.vocab, grammar.encode(), b"root")
        if not sampler:
            return None
        self.library.llama_sampler_free(sampler)
        return grammar

    def accepts(self, grammar, document):
        sampler = self.library.llama_sampler_init_grammar(self.vocab, grammar.encode(), b"root")
        text = json.dumps(document, ensure_ascii=False).encode()
        ids = self.model.tokenize(text, add_bos=False, special=False)
        try:
            return self.model.detokenize(ids) == text and all(self.takes(sampler, one) for one in [*ids, self.end])
        finally:
            self.library.llama_sampler_free(sampler)

    def takes(self, sampler, token):
        one = (self.library.llama_token_data * 1)(self.library.llama_token_data(token, 1.0, 0.0))
        found = self.library.llama_token_data_array(data=one, size=1, selected=-1, sorted=False)
        self.library.llama_sampler_apply(sampler, ctypes.byref(found))
        if one[0].logit == float("-inf"):
            return False
        if token != self.end:
            self.library.llama_sampler_accept(sampler, token)
        return True


def count(engine, folder, draft):
    groups = compiled = 0
    taken = {True: [0, 0], False: [0, 0]}               # [accepted, all] of valid and invalid documents
    for path in sorted(glob.glob(f"{folder}/{draft}/*.json")):
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        for group in found:
            groups += 1
            grammar = engine.compiled(schema_of(group, draft))
            if grammar is None:
                continue
            compiled += 1
            for test in group["tests"]:
                taken[test["valid"]][1] += 1
                taken[test["valid"]][0] += any(engine.accepts(grammar, one) for one in spellings(test["data"]))
    print(f"{engine.name:17} {draft:13} compile {compiled:3} of {groups} ({compiled / groups:.1%})   "
          f"valid {taken[True][0]} of {taken[True][1]}   invalid {taken[False][0]} of {taken[False][1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--llama", metavar="GGUF")
    options = parser.parse_args()
    engines = [Ours(), *([Llama(options.llama)] if options.llama else [])]
    for draft in ("draft2020-12", "draft7"):
        for engine in engines:
            count(engine, options.folder, draft)


if __name__ == "__main__":
    main()
