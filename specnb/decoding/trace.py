"""The rows that a run was decided on, on disk as they come: a folder of safetensors files.

Every file is complete when it gets its name, so a trace can be read whatever became of the run. Layout of a file
of n decided rounds with G_r drafts each: `step`, `row`, `position`, `drafted`, `accepted`, `emitted`, int64 [n];
`draft`, int64 [ΣG_r]; `p` [Σ(G_r + 1), V]; `q` [ΣG_r, V'], absent where all drafts of the file are one-hot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specnb.arrays import to_numpy
from specnb.decoding.arguments import check_path
from specnb.decoding.choosing import Proposal
from specnb.decoding.replay import Rows
from specnb.decoding.statistics import Logged
from specnb.errors import SpecnbError
from specnb.verdict import CONTRACT

FORMAT = 1
HEADER = "trace.json"
FILE_BYTES = 2**25
"""A file is written when its rows have grown to this; besides one round's, no more is held in memory."""

COUNTS = ("step", "row", "position", "drafted", "accepted", "emitted")


class Writer:
    """Writes each round that it is shown; `close` writes what is left."""

    def __init__(self, path: Any, about: dict[str, Any]) -> None:
        self.path = _new_folder(path)
        header = {"format": FORMAT, "contract": CONTRACT} | about
        (self.path / HEADER).write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")
        self._files = self._steps = 0
        self._empty()

    def __call__(self, logged: Logged, proposal: Proposal, p: Any) -> None:
        """Keep the rows that one round of the batch was decided on."""
        decision, drafted = logged.decision, logged.decision.limits
        onehot = proposal.q is None
        if onehot != self._onehot and self._counts:
            self.flush()
        self._onehot = onehot
        columns = (decision.rows, decision.position, drafted, decision.accepted, logged.counts)
        self._counts += [(self._steps, *values) for values in zip(*(c.tolist() for c in columns), strict=True)]
        kept = np.arange(decision.draft.shape[1]) < drafted[:, None]  # [R, G]
        self._keep("draft", decision.draft[kept])
        self._keep("p", to_numpy(p)[np.arange(p.shape[1]) <= drafted[:, None]])
        if not onehot:
            self._keep("q", to_numpy(proposal.q)[kept])
        self._steps += 1
        if sum(array.nbytes for arrays in self._arrays.values() for array in arrays) >= FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write a file of what was kept since the last one."""
        from safetensors.numpy import save_file

        if not self._counts:
            return
        counts = np.array(self._counts, np.int64)
        tensors = {name: np.ascontiguousarray(counts[:, i]) for i, name in enumerate(COUNTS)}
        tensors |= {name: np.concatenate(arrays) for name, arrays in self._arrays.items()}
        path = self.path / f"rounds-{self._files:06d}.safetensors"
        save_file(tensors, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
        self._files += 1
        self._empty()

    close = flush

    def _empty(self) -> None:
        self._counts: list[tuple[int, ...]] = []
        self._arrays: dict[str, list[np.ndarray]] = {}
        self._onehot = True

    def _keep(self, name: str, array: np.ndarray) -> None:
        self._arrays.setdefault(name, []).append(array)


def _new_folder(name: Any) -> Path:
    """Return a folder with nothing in it, made if it isn't there, or raise `SpecnbError`."""
    path = check_path("trace", name, "a new or empty folder, or None")
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise SpecnbError(f"trace is {str(path)!r}, where something is already; expected a new or empty folder")
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        if isinstance(error, SpecnbError):
            raise
        raise SpecnbError(f"trace is {str(path)!r}, which can't be made ({error}); expected a new folder") from error
    return path


@dataclass(frozen=True)
class Traced:
    """One decided round of one request, from a trace: `Rows` and its counts."""

    step: int
    row: int
    position: int
    accepted: int
    emitted: int
    rows: Rows


def header(path: Any) -> dict[str, Any]:
    """Return what a trace says about its run, or raise `SpecnbError`."""
    file = check_path("trace", path, "a folder that generate(trace=...) wrote, or its Generation") / HEADER
    if not file.is_file():
        raise SpecnbError(f"there is no trace at {str(path)!r}; expected a folder that generate(trace=...) wrote")
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        found = about.get("format")
    except (OSError, ValueError, AttributeError) as error:
        raise SpecnbError(f"{HEADER} at {str(path)!r} can't be read ({error}); expected an unchanged trace") from error
    if found != FORMAT:
        raise SpecnbError(f"the trace at {str(path)!r} has format {found}; expected {FORMAT}")
    if not (isinstance(about.get("rule"), str) and type(about.get("gamma")) is int):
        raise SpecnbError(f"{HEADER} at {str(path)!r} lacks the run's rule or gamma; expected an unchanged trace")
    return about


def read(path: Any) -> Iterator[Traced]:
    """Yield the decided rounds of a trace in order, with one file in memory at a time."""
    header(path)
    for file in sorted(Path(path).glob("rounds-*.safetensors")):
        tensors = _tensors(file)
        drafts = tensors["draft"]
        drafted, q = tensors["drafted"], tensors.get("q")
        ends, p_ends = np.cumsum(drafted), np.cumsum(drafted + 1)
        for i in range(len(drafted)):
            own = slice(int(ends[i] - drafted[i]), int(ends[i]))
            p = tensors["p"][int(p_ends[i] - drafted[i] - 1) : int(p_ends[i])]
            counts = {name: int(tensors[name][i]) for name in COUNTS if name != "drafted"}
            yield Traced(**counts, rows=Rows(drafts[own], None if q is None else q[own], p))


def _tensors(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file of rounds, or raise `SpecnbError` if it isn't whole."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(file)
        rounds, drafts = len(tensors["drafted"]), int(tensors["drafted"].sum())
        expected = dict.fromkeys(COUNTS, rounds) | {"draft": drafts, "p": drafts + rounds}
        expected |= {"q": drafts} if "q" in tensors else {}
        whole = all(len(tensors[name]) == length for name, length in expected.items())
        why = "" if whole else "its arrays don't belong together"
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        tensors, why = {}, f"{type(error).__name__}: {error}"
    if why:
        raise SpecnbError(f"{file.name} at {str(file.parent)!r} can't be read ({why}); expected an unchanged trace")
    return tensors


def rows_of(path: Any, step: int, row: int) -> Rows:
    """Return the rows of one request's round."""
    for traced in read(path):
        if (traced.step, traced.row) == (step, row):
            return traced.rows
    raise SpecnbError(f"the trace at {str(path)!r} has no round {step} of request {row}; expected a whole trace")
