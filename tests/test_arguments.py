"""Arguments of the public functions: whatever comes, the error names the argument, and nothing else is raised."""
import pytest

import gomlx

WRONG = {"integer": ["3", b"3", 1.5, float("nan"), True, [], {}, object(), [1]],
         "flag": ["a", 2, 1.5, [], object()],
         "seconds": ["a", b"a", [], object(), True, float("nan"), -1, 0], "items": ["a", b"a", 5, 1.5, True, object()],
         "callable": ["a", 5, [], True], "progress": ["a", 5, [], object()], "path": [5, b"a", 1.5, True, [], object()], "name": [5, b"a", [], ["a"], object()],
         "text": [5, b"a", 1.5, True, object(), [1]],
         "text or integer": ["", b"3", 1.5, float("nan"), True, [], {}, object(), 0],
         "prompt": [5, b"a", None, {}, [1.5], ["a"], object()]}
ARGUMENTS = [
    ("load", "context_length threads parallel", "integer"), ("load", "kv_dtype backend dtype activations", "name"),
    ("load", "path_or_name", "path"), ("load", "progress", "progress"), ("load", "prompt_cache", "flag"),
    ("generate", "max_tokens min_tokens seed top_logprobs n top_k", "integer"), ("generate", "timeout", "seconds"),
    ("generate", "ignore_eos penalty_prompt", "flag"),
    ("generate", "stop_ids logits_processors steer suppress_tokens", "items"),
    ("generate", "probe", "callable"), ("generate", "prompt", "prompt"),
    ("generate", "sampling session parser prefill", "name"),
    ("generate", "prompt_cache logprobs", "integer"), ("generate", "stop", "text"),
    ("chat", "tools", "items"), ("chat", "add_generation_prompt enable_thinking", "flag"), ("chat", "chat_format", "name"),
    ("chat", "template_args", "items"), ("chat", "n max_tokens", "integer"),
    ("generate_batch", "prompts options", "items"), ("generate_batch", "batch_size", "integer"),
    ("generate_batch", "timeout", "seconds"),
    ("classify", "prompts labels", "items"), ("classify", "return_logits", "flag"), ("score", "text", "callable"),
    ("embed", "normalize", "flag"), ("embed", "pooling", "name"), ("inspect", "want", "text"),
    ("inspect", "prompt", "prompt"),
    ("convert", "source destination", "path"), ("convert", "overwrite", "flag"), ("convert", "progress", "progress"),
    ("convert", "quantize", "name"),
    ("plan_memory", "context batch budget", "integer"), ("plan_memory", "kv_dtype dtype", "name"),
    ("plan_memory", "path", "path"), ("discover", "path", "path"),
    ("bench", "generate repeat", "integer"), ("bench", "prompt", "text or integer"), ("bench", "sampling", "name"),
    ("bench", "profile prompt_cache probes", "flag"),
    ("bench", "progress", "progress"),
]


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as model:
        yield model


def call(model, function, arguments, folder):
    if function in ("load", "plan_memory", "discover"):
        made = getattr(gomlx, function)(**arguments)
        if function == "load":
            made.close()
    elif function == "convert":
        gomlx.convert(**{"source": "fable", "destination": str(folder / "x.gguf")} | arguments)
    elif function == "bench":
        gomlx.bench(model, **arguments)
    else:
        first = {"chat": ("messages", [{"role": "user", "content": "hi"}]), "generate_batch": ("prompts", ["a"]),
                 "classify": ("prompts", ["a"]), "score": ("text", "a"), "embed": ("texts", "a")}
        first = first.get(function, ("prompt", "a"))
        made = getattr(model, function)(**{first[0]: first[1]} | arguments)
        if hasattr(made, "read"):
            made.read()


@pytest.mark.parametrize("function, name, kind",
                         [(f, name, kind) for f, names, kind in ARGUMENTS for name in names.split()])
def test_errors_name_the_argument(model, tmp_path, function, name, kind):
    for value in WRONG[kind]:
        if (name, value) == ("text", "a") or (name, value) == ("text", []):
            continue                                        # these are texts, and none
        with pytest.raises((TypeError, ValueError), match=name):
            call(model, function, {name: value}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_folders_that_cannot_be_written(tmp_path, monkeypatch):
    import tempfile

    def refuse(**options):
        raise PermissionError(13, "Permission denied", options["dir"] + "/tmp123")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    for name in ("x.gguf", "x"):
        with pytest.raises(PermissionError, match="the folder cannot be written: Permission denied: '.*0'$"):
            gomlx.convert("fable", tmp_path / name)
    assert not list(tmp_path.iterdir())
