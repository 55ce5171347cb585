"""What the README shows and `specnb render` makes anew: its tables, from CSV files, and its picture."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from specnb.errors import SpecnbError

ROWS = {"p": [0.5, 0.3, 0.2], "q": [0.2, 0.3, 0.5]}
"""The position that the README explains."""

TABLE = re.compile(r"(<!-- table: (\S+\.csv)(?:: ([^>]+?))? -->\n)(?s:.*?)(<!-- end -->)")


def fill_tables(text: str, folder: Path) -> str:
    """Return a Markdown text with its tables written anew from CSV files.

    A table stands between `<!-- table: NAME.csv -->` and `<!-- end -->`; `NAME.csv: A, B` chooses columns.

    Parameters
    ----------
    text : Markdown.
    folder : where the CSV files lie.

    Raises
    ------
    SpecnbError : a file or a column is missing.
    """
    return TABLE.sub(lambda found: found[1] + _table(folder / found[2], found[3]) + found[4], text)


def draw_picture(path: Path) -> None:
    """Draw the README's example, one position of p and q, in the style of the notebooks."""
    import matplotlib

    matplotlib.use("agg")  # whatever the machine has
    with matplotlib.rc_context(fname=path.parents[1] / "notebooks" / "matplotlibrc"):
        from specnb import plots

        parts = plots.step_parts(**ROWS, labels=["token 0", "token 1", "token 2"])
        plots.one_step(parts).savefig(path, metadata={"Software": None})  # the version would change the bytes


def _table(path: Path, columns: str | None) -> str:
    """Return the rows of a CSV file as a Markdown table, its numbers to the right."""
    if not path.exists():
        raise SpecnbError(f"the table {path.name} has no file in {path.parent}")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [name.strip() for name in columns.split(",")] if columns else list(rows[0])
    if unknown := [name for name in names if name not in rows[0]]:
        raise SpecnbError(f"{path.name} has no column {unknown}; it has {list(rows[0])}")
    rules = ["---:" if all(_is_number(row[name]) for row in rows) else "---" for name in names]
    lines = [names, rules, *([row[name] for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
