"""The notebooks: each runs from beginning to end in less than a minute, and stands here as run_notebooks.py writes
it."""
import os
import re

import pytest

pytest.importorskip("nbclient", reason="the notebooks need the extra `notebooks`: nbclient, ipykernel, matplotlib")
pytest.importorskip("ipykernel", reason="the notebooks need the extra `notebooks`: nbclient, ipykernel, matplotlib")
pytest.importorskip("matplotlib", reason="the notebooks need the extra `notebooks`: nbclient, ipykernel, matplotlib")
import nbformat
import run_notebooks

PATHS = run_notebooks.paths()
NAMES = [os.path.basename(path).removesuffix(".ipynb") for path in PATHS]
notebooks = pytest.mark.parametrize("path", PATHS, ids=NAMES)


def read(path):
    return nbformat.read(path, as_version=4)


def test_all_of_them_are_there():
    assert NAMES == ["arrays_and_gradients", "batches_caches_sessions", "fine_tuning", "from_nothing",
                     "inside_a_model", "quickstart", "which_quantisation"]


@notebooks
def test_it_runs(path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")               # all they need is in the package
    made, kept = run_notebooks.executed(path), read(path)
    for ours, theirs in zip(made.cells, kept.cells, strict=True):
        if ours.cell_type == "code":                        # numbers may differ, what kind of thing is shown does not
            assert [kinds(one) for one in ours.outputs] == [kinds(one) for one in theirs.outputs], ours.source


def kinds(output):
    return output.output_type, sorted(output.get("data", {}))


@notebooks
def test_what_is_kept_is_clean(path):
    kept = read(path)
    nbformat.validate(kept)
    written = nbformat.writes(run_notebooks.cleaned(read(path)))
    assert written == nbformat.writes(kept), "python tests/run_notebooks.py writes it"
    code = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert code and all(cell.source.strip() for cell in kept.cells) and any(cell.outputs for cell in code)
    assert os.path.getsize(path) < 300_000
    for cell in code:
        for output in cell.outputs:
            assert output.output_type in ("stream", "execute_result", "display_data")
            text = "".join(value for kind, value in output.get("data", {"": output.get("text")}).items()
                           if kind != "image/png")
            assert not re.search(r"(?<![\w.<])/(?:\w[\w.-]*/)+", text), text       # no path of the machine where it ran
        assert max(map(len, cell.source.splitlines())) <= 110 and not cell.source.lstrip().startswith(("%", "!"))
