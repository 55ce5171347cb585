"""Notebooks executed as the tests execute them, and written so that nothing but their content can change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from specnb.errors import SpecnbError

if TYPE_CHECKING:
    from nbformat import NotebookNode

ENVIRONMENT = {
    "COLUMNS": "80",  # what wraps at the terminal's width wraps alike everywhere
    "HF_HUB_OFFLINE": "1",  # a notebook needs no network
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRITON_INTERPRET": "1",  # the same outputs with and without a GPU
}
"""The environment of a notebook's kernel, under `specnb render` and in the tests."""

CELL_SECONDS = 120
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KEPT_CELL_METADATA = ("tags",)
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def render(path: Path) -> bool:
    """Execute a notebook and write it back; return whether the file changed.

    Parameters
    ----------
    path : the notebook. It runs in its own folder, in `ENVIRONMENT`.

    Raises
    ------
    SpecnbError : it is no notebook, or a cell failed or wrote to stderr; the file is then left as it was.
    """
    nbformat = _notebook_tools()
    try:
        notebook = nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise SpecnbError(f"there is no notebook {path}") from None
    except Exception as error:  # nbformat raises what its JSON parser and its validators do
        raise SpecnbError(f"{path} is no notebook: {error}") from error
    _execute(notebook, path)
    _strip(notebook)
    _refuse_stderr(notebook, path)
    before, after = path.read_text(encoding="utf-8"), nbformat.writes(notebook) + "\n"
    if after != before:
        path.write_text(after, encoding="utf-8")
    return after != before


@contextmanager
def environment() -> Iterator[None]:
    """Set `ENVIRONMENT` for the kernels that start inside, and restore what was there."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _notebook_tools():
    """Import nbformat, and nbclient with it, or say what to install."""
    try:
        import nbclient  # noqa: F401
        import nbformat
    except ImportError as error:
        raise SpecnbError(f"{error.name} isn't installed: pip install 'specnb[notebooks]'") from None
    return nbformat


def _execute(notebook: NotebookNode, path: Path) -> None:
    """Run all cells of a notebook in place."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError

    notebook.metadata = _as_notebook_node(METADATA)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=CELL_SECONDS,
        coalesce_streams=True,  # how prints are cut into messages is a matter of timing
        record_timing=False,
        resources={"metadata": {"path": str(path.resolve().parent)}},
    )
    try:
        with environment():
            client.execute()
    except CellExecutionError as error:
        failed = next(c for c in notebook.cells if any(o.output_type == "error" for o in c.get("outputs", ())))
        said = f"{_begins(failed)} raised {error.ename}: {error.evalue}"
        raise SpecnbError(f"{path} wasn't written: {said}") from error
    except CellTimeoutError as error:
        raise SpecnbError(f"{path} wasn't written: a cell took longer than {CELL_SECONDS} s") from error


def _strip(notebook: NotebookNode) -> None:
    """Drop what differs between two runs: widget models and views, times of execution."""
    notebook.metadata = _as_notebook_node(METADATA)
    for cell in notebook.cells:
        kept = {key: cell.metadata[key] for key in KEPT_CELL_METADATA if key in cell.metadata}
        cell.metadata = _as_notebook_node(kept)
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(WIDGET_VIEW, None)
            if "metadata" in output:
                output.metadata = _as_notebook_node({})


def _refuse_stderr(notebook: NotebookNode, path: Path) -> None:
    """Raise if a cell wrote to stderr: a warning there holds a path of this machine."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                said = " ".join(output.text.split())
                raise SpecnbError(f"{path} wasn't written: {_begins(cell)} wrote to stderr: {said}")


def _begins(cell: NotebookNode) -> str:
    """Name a cell by its first line."""
    return f"the cell that begins {cell.source.splitlines()[0]!r}"


def _as_notebook_node(value: dict) -> NotebookNode:
    from nbformat import NotebookNode, from_dict

    return cast(NotebookNode, from_dict(value))
