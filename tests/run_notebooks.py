"""Runs the notebooks and writes them with what they show:  python tests/run_notebooks.py [notebooks/NAME.ipynb ...]

What is written has no times, no paths, no messages of standard error and no bars: the same notebook, run twice, differs
in what was measured and in nothing else. tests/project/test_notebooks.py runs them too, and writes nothing."""
import glob
import os
import sys
import tempfile

import nbformat
from nbclient import NotebookClient

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "notebooks")
SECONDS = 300           # that a cell may take: two were seen to need more than 60 on a busy machine
WIDGET = "application/vnd.jupyter.widget-view+json"     # a progress bar, where something took long
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"}}


def paths():
    return sorted(glob.glob(os.path.join(FOLDER, "*.ipynb")))


def executed(path):
    """The notebook, run in an empty folder by this interpreter; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=SECONDS, kernel_name="python3",
                       resources={"metadata": {"path": folder}}).execute()
    return cleaned(notebook)


def cleaned(notebook):
    """Without what says when and where it ran."""
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    number = 0
    for i, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{i}", nbformat.from_dict({})
        if cell.cell_type != "code":
            continue
        number += 1
        cell.execution_count = number
        outputs = []
        for one in cell.outputs:
            if one.get("name") == "stdout" and outputs and outputs[-1].get("name") == "stdout":
                outputs[-1].text += one.text            # a stream that was flushed comes in pieces
            elif one.get("name") != "stderr" and WIDGET not in one.get("data", {}):
                outputs.append(cleaned_output(one, number))
        cell.outputs = outputs
    return notebook


def cleaned_output(output, number):
    if "data" in output:
        output.metadata = nbformat.from_dict({})
        # what stands beside a picture or a table is for those who cannot show it
        if len(output.data) > 1:
            output.data.pop("text/plain", None)
    if "execution_count" in output:
        output.execution_count = number
    return output


def main(names):
    for path in names or paths():
        made = executed(path)
        nbformat.validate(made)
        nbformat.write(made, path)
        print(os.path.basename(path), os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
