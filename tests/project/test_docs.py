"""The pages: every Python block of docs/ and of the README runs, links lead somewhere, and the site builds."""
import importlib.util
import os
import re
import subprocess
import sys

import pytest
from places import ROOT

DOCS = os.path.join(ROOT, "docs")
PAGES = sorted(name for name in os.listdir(DOCS) if name.endswith(".md"))
RUN = """
import sys, re
with open(sys.argv[1], encoding="utf-8") as file:
    page = file.read()
scope = {"__name__": "__main__"}
for block in re.finditer(r"^```python\\n(.*?)^```", page, re.S | re.M):
    line = page.count("\\n", 0, block.start(1))
    exec(compile("\\n" * line + block[1], sys.argv[1], "exec"), scope)
"""


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


# What the output of a page must have in it, besides some output.
SAYS = {
    "arrays.md": r"right (9[1-9]|100)%",
    "chat.md": r"(?s)False\n.*I will look.*weather \{'city': 'Oslo', 'days': 2\} None",
    "generation.md": r"(?s)ended by length, seed 1.*cancelled",
    "inspection.md": r"layers\.0\.attention_weights \(4, 4, 4\)",
    "models.md": r"'activations': 'float32'", "numerics.md": "True True"}


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in read(os.path.join(DOCS, page))])
def test_the_examples_of_a_page_run_one_after_another(page, tmp_path):
    done = subprocess.run([sys.executable, "-c", RUN, os.path.join(DOCS, page)], cwd=tmp_path, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert re.search(SAYS.get(page, "."), done.stdout), done.stdout


def test_the_processor_on_the_page_avoids_a_letter(tmp_path):
    page = read(os.path.join(DOCS, "generation.md"))
    [block] = re.findall(r"```python\n((?:(?!```).)*?avoid_e.*?)```", page, re.S)
    done = subprocess.run([sys.executable, "-c", "import gomlx\nmodel = gomlx.load()\n" + block], cwd=tmp_path,
                          capture_output=True, text=True, timeout=120)
    assert len(done.stdout) > 30 and "e" not in done.stdout, done.stderr


def test_the_plot_on_the_page_draws_every_head(tmp_path):
    pytest.importorskip("matplotlib", reason="the plot of the page needs matplotlib")
    page = read(os.path.join(DOCS, "inspection.md"))
    [seen] = re.findall(r"```python\n((?:(?!```).)*?want=.*?)```", page, re.S)
    [plot] = re.findall(r"```py\n(.*?)```", page, re.S)
    code = seen + plot + "print(len(axes), len(tokens), [axis.get_images()[0].get_array().shape for axis in axes])\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          env=os.environ | {"MPLBACKEND": "Agg"})
    assert done.stdout.endswith("4 4 [(4, 4), (4, 4), (4, 4), (4, 4)]\n"), done.stderr
    assert (tmp_path / "attention.png").stat().st_size > 1000


def test_an_example_that_fails_is_told_by_its_line(tmp_path):
    (tmp_path / "page.md").write_text("# A page\n\n```python\nx = 1\n```\n\n```python\nprint(x)\nnothing\n```\n")
    done = subprocess.run([sys.executable, "-c", RUN, tmp_path / "page.md"], capture_output=True, text=True)
    assert done.returncode and done.stdout == "1\n" and 'page.md", line 9' in done.stderr


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
                                  *(f"docs/{page}" for page in PAGES)])
def test_links_within_the_project_lead_to_files(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", read(os.path.join(ROOT, page)), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("https://", "#")):
            path = os.path.join(ROOT, os.path.dirname(page), target.split("#")[0])
            assert os.path.exists(path), f"{page}: {target}"


def test_the_readme_is_short_and_names_every_architecture():
    text = read(os.path.join(ROOT, "README.md"))
    models = re.findall(r"^MODEL\((\w+)\)", read(os.path.join(ROOT, "csrc", "models", "models.def")), re.M)
    assert len(text.splitlines()) <= 150
    assert [name for name in models if f"`{name}`" not in text] == []


def test_the_site_builds(tmp_path):
    missing = [name for name in ("mkdocs", "material", "mkdocstrings_handlers") if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"{missing[0]} is not installed: pip install '.[docs]'")
    done = subprocess.run([sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "-q", "-f",
                           os.path.join(DOCS, "site", "mkdocs.yml"), "-d", tmp_path / "site"],
                          cwd=tmp_path, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = read(tmp_path / "site" / "reference" / "gomlx" / "index.html")
    import gomlx
    documented = set(re.findall(r'id="gomlx\.(?:\w+\.)?(\w+)"', reference))
    assert set(gomlx.__all__) - {"__version__"} <= documented
    assert "prefill_tps: float | None" in reference         # fields of dataclasses, with their comments
    assert 'id="gomlx.core.matmul"' in read(tmp_path / "site" / "reference" / "core" / "index.html")
