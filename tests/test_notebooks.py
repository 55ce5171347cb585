"""The stored notebooks are executed whole, portable, and compared for real; `specnb render` writes them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from specnb.errors import SpecnbError
from specnb.render import METADATA, WIDGET_VIEW, render

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:home|root|Users|tmp|work|opt|usr|private|mnt)/[\w.-]+|[A-Z]:\\\\?Users")
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")

# Cells whose output nbval doesn't compare, as (notebook, first line): why it differs between machines.
UNCOMPARED = {
    ("01_one_step.ipynb", "specnb.available_backends()"): "what a machine has is the machine's",
    ("03_exact_laws.ipynb", "theirs"): "error texts are the installed transformers' and PyTorch's",
    ("05_roofline.ipynb", "import torch"): "times are the machine's",
    (
        "07_where_it_breaks.ipynb",
        'quickly = {"context": 32, "repeats": 5, "forwards": 3, "progress": False}',
    ): "times are the machine's",
    ("09_the_fused_kernel.ipynb", "specnb.available_backends()"): "what a machine has is the machine's",
}


def code_cells(path):
    """Return the code cells that hold code."""
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]


def output_text(cell):
    """Return everything textual that a cell stored."""
    texts = []
    for output in cell.outputs:
        texts += [output.get("text", "")]
        texts += [v for mime, v in output.get("data", {}).items() if isinstance(v, str) and "image" not in mime]
        texts += output.get("traceback", [])
    return "\n".join(texts)


def nbval(folder, *arguments):
    """Run pytest --nbval on a folder of notebooks, with the project's settings and no conftest of its own."""
    command = [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider", "-q", "--color=no"]
    command += ["-c", ROOT / "pyproject.toml", "--rootdir", folder, folder, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_notebooks_are_numbered():
    assert NOTEBOOKS, "no notebook was found: every test below would pass on nothing"
    numbers = [re.fullmatch(r"(\d\d)_[a-z0-9_]+\.ipynb", path.name)[1] for path in NOTEBOOKS]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestStored:
    def test_every_cell_was_executed_in_order(self, path):
        """An unexecuted cell passes nbval in silence."""
        counts = [cell.execution_count for cell in code_cells(path)]
        assert counts == list(range(1, len(counts) + 1))

    def test_no_stderr_and_no_error(self, path):
        for cell in code_cells(path):
            assert "stderr" not in [output.get("name") for output in cell.outputs], cell.source
            assert "error" not in [output.output_type for output in cell.outputs], cell.source

    def test_no_trailing_semicolon(self, path):
        """nbval runs cells without history, where a semicolon silences nothing."""
        for cell in code_cells(path):
            last = re.sub(r"\s+#[^'\"]*$", "", cell.source.rstrip().splitlines()[-1])
            assert not last.endswith(";"), cell.source

    def test_nothing_of_this_machine(self, path):
        for cell in nbformat.read(path, as_version=4).cells:
            text = cell.source + (output_text(cell) if cell.cell_type == "code" else "")
            assert not MACHINE_PATH.search(text), MACHINE_PATH.search(text)[0]
            assert not ADDRESS.search(text), ADDRESS.search(text)[0]

    def test_pictures_are_png(self, path):
        """nbval compares SVG, whose ids and dates differ each time."""
        for cell in code_cells(path):
            kinds = {mime for output in cell.outputs for mime in output.get("data", {}) if mime.startswith("image/")}
            assert kinds <= {"image/png"}, cell.source
            assert "<svg" not in output_text(cell), cell.source

    def test_metadata_is_what_render_writes(self, path):
        notebook = nbformat.read(path, as_version=4)
        assert notebook.metadata == METADATA
        for cell in notebook.cells:
            assert set(cell.metadata) <= {"tags"}, cell.source
            for output in cell.get("outputs", ()):
                assert not output.get("metadata"), cell.source
                assert WIDGET_VIEW not in output.get("data", {}), cell.source
        assert path.read_text(encoding="utf-8") == nbformat.writes(notebook) + "\n"

    def test_every_uncompared_cell_has_a_reason(self, path):
        for cell in code_cells(path):
            tags = {tag for tag in cell.metadata.get("tags", ()) if tag.startswith("nbval") or "exception" in tag}
            if tags or re.search(r"(?m)^\s*#+\s*(NBVAL|PYTEST_VALIDATE)_", cell.source):
                assert UNCOMPARED.get((path.name, cell.source.splitlines()[0])), cell.source


def test_no_reason_outlives_its_cell():
    present = {(path.name, cell.source.splitlines()[0]) for path in NOTEBOOKS for cell in code_cells(path)}
    assert set(UNCOMPARED) <= present


def corruptible(notebook):
    """Return the index of the first code cell that prints a number, and of the output that has it."""
    for index, cell in enumerate(notebook.cells):
        for number, output in enumerate(cell.get("outputs", ())):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            if not cell.metadata.get("tags") and re.search(r"\d", text):
                return index, number
    raise AssertionError("no cell of this notebook stores a number")


def corrupt(output):
    """Change the last digit that an output shows."""
    place = output if "text" in output else output["data"]
    key = "text" if "text" in output else "text/plain"
    place[key] = re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), place[key])


def test_a_corrupted_number_fails(tmp_path):
    """The harness can fail: the same notebook passes as it is, and not with one digit changed."""
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    index, number = corruptible(notebook)
    notebook.cells = notebook.cells[: index + 1]
    nbformat.write(notebook, tmp_path / "as_stored.ipynb")
    corrupt(notebook.cells[index].outputs[number])
    nbformat.write(notebook, tmp_path / "corrupted.ipynb")

    done = nbval(tmp_path)
    assert done.returncode == 1, done.stdout
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    assert f"1 failed, {2 * cells - 1} passed" in done.stdout, done.stdout
    assert f"FAILED corrupted.ipynb::Cell {cells - 1}" in done.stdout, done.stdout


SMALL = ["1 + 1", "print('a')\nprint('b')", "import ipywidgets\nipywidgets.IntSlider(3)", "{'p': 0.5}"]
FIGURE = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 2])\nplt.close(fig)\nfig"


def write_notebook(path, sources):
    """Write an unexecuted notebook with cell ids of its own."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_render_is_stable_to_the_byte(tmp_path):
    path = write_notebook(tmp_path / "small.ipynb", [*SMALL, FIGURE])
    assert render(path) is True
    first = path.read_bytes()
    assert render(path) is False
    assert path.read_bytes() == first

    cells = nbformat.read(path, as_version=4).cells
    assert [cell.execution_count for cell in cells] == [1, 2, 3, 4, 5]
    assert cells[1].outputs[0].text == "a\nb\n"
    assert WIDGET_VIEW not in cells[2].outputs[0].data
    assert cells[4].outputs[0].data["image/png"]
    assert nbval(tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("source", "words"),
    [("1 / 0", "ZeroDivisionError"), ("import warnings\nwarnings.warn('old')", "wrote to stderr")],
)
def test_render_refuses_to_store_a_failure(tmp_path, source, words):
    path = write_notebook(tmp_path / "failing.ipynb", ["1", source])
    before = path.read_bytes()
    with pytest.raises(SpecnbError, match=words):
        render(path)
    assert path.read_bytes() == before


def test_render_leaves_the_environment_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "133")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    before = dict(os.environ)
    path = write_notebook(tmp_path / "env.ipynb", ["import os", "os.environ['COLUMNS'], os.environ['HF_HUB_OFFLINE']"])
    render(path)
    assert nbformat.read(path, as_version=4).cells[1].outputs[0].data["text/plain"] == "('80', '1')"
    assert dict(os.environ) == before


@pytest.mark.parametrize(("name", "content"), [("absent.ipynb", None), ("broken.ipynb", "{")])
def test_render_names_what_is_no_notebook(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(SpecnbError, match=name):
        render(tmp_path / name)
