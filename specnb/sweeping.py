"""One function at every point of a grid, here or on any `concurrent.futures.Executor`: `sweep`."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import CancelledError, Executor, Future, as_completed
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from specnb.decoding.arguments import check_switch
from specnb.errors import SpecnbError

if TYPE_CHECKING:
    import pandas as pd

Item = dict[str, Any]
"""The arguments of one call."""

Outcomes = Generator[tuple[int, Any], None, None]
"""The number of an item, and its columns or the exception that it raised."""

VALUE, ERROR = "value", "error"
"""Columns of a result that isn't a dict, and of what went wrong."""

STOPPED = "not run: interrupted"


def sweep(
    function: Callable[..., Any],
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    executor: Executor | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Call a function with each item of a grid, and return a tidy table: a row per item, in the grid's order.

    Where the calls run doesn't change the table: a function whose randomness is its seed, as all of this package
    is, gives the same numbers here, in threads, in processes and on a cluster.

    An item that fails keeps its row: `error` says why, its results are missing, the other items go on, and a
    warning counts the failures. Ctrl-C returns the table with what was finished, and the rows of the other items say
    that they weren't run; what an executor has begun runs on there. Without either there is no column `error`.

    Parameters
    ----------
    function : called as function(**item). It returns a scalar, for the column `value`, or a dict of scalars, whose
        keys, strings, become columns. On other processes or machines it has to be importable there, and specnb too;
        bind what is the same for all items by `functools.partial`.
    grid : a dict from names to lists (every combination, the last name fastest), or a list of dicts.
    executor : a thread or process pool, `client.get_executor()` of a dask cluster (which runs the items of a worker
        that died again), or any other `concurrent.futures.Executor`; it is used and not shut down. None: here, one
        after another.
    progress : show a bar on stderr.

    Returns
    -------
    pandas.DataFrame : columns for the items' names, then for the results, then `error` if something failed.

    Raises
    ------
    SpecnbError : no grid or function, or a parameter named `error`; or every item failed, with the first failure as
        the cause.

    Examples
    --------
    >>> from specnb import theory
    >>> sweep(theory.expected_tokens, {"alpha": [0.5, 0.75], "gamma": [1, 2]}, progress=False)
       alpha  gamma   value
    0   0.50      1  1.5000
    1   0.50      2  1.7500
    2   0.75      1  1.7500
    3   0.75      2  2.3125
    """
    items = read_grid(grid)
    if not callable(function):
        raise SpecnbError(f"function is {function!r}; expected something to call as function(**item)")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise SpecnbError(f"executor is {executor!r}; expected a concurrent.futures.Executor or None")
    check_switch("progress", progress)
    outcomes: dict[int, Any] = {}
    with tqdm(total=len(items), unit="item", disable=not progress) as bar:
        finished = _here(function, items) if executor is None else _elsewhere(function, items, executor)
        try:
            for index, outcome in finished:
                outcomes[index] = outcome
                bar.update()
        except KeyboardInterrupt:
            finished.close()
    return _table(items, outcomes)


def read_grid(grid: Any) -> list[Item]:
    """Return the items of a grid: every combination of a dict of lists, or copies of the dicts of a list.

    Examples
    --------
    >>> read_grid({"gamma": [2, 4], "seed": range(2)})[:3]
    [{'gamma': 2, 'seed': 0}, {'gamma': 2, 'seed': 1}, {'gamma': 4, 'seed': 0}]
    """
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
                raise SpecnbError(f"grid[{name!r}] is {values!r}; expected a list of values: [{values!r}] for one")
        items: list[Item] = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    else:
        listed: list[Any] = list(grid) if isinstance(grid, Iterable) and not isinstance(grid, (str, bytes)) else [grid]
        if wrong := [item for item in listed if not isinstance(item, Mapping)]:
            raise SpecnbError(f"the grid has {wrong[0]!r}; expected a dict of lists, or a list of dicts")
        items = [dict(item) for item in listed]
    for name in itertools.chain.from_iterable(items):
        if not isinstance(name, str) or name == ERROR:
            raise SpecnbError(f"the grid names a parameter {name!r}; expected strings other than {ERROR!r}")
    return items


def call(function: Callable[..., Any], item: Item) -> Item:
    """Return the result of one item as a dict of columns; a parameter that comes back unchanged is no result."""
    result = function(**item)
    if not isinstance(result, Mapping) and VALUE in item:
        raise SpecnbError(
            f"the function returned a scalar for the column {VALUE!r}, which is a parameter's; expected a dict with "
            "another name for the result, or another name for the parameter"
        )
    columns: Mapping[Any, Any] = result if isinstance(result, Mapping) else {VALUE: result}
    if wrong := [name for name in columns if not isinstance(name, str)]:
        raise SpecnbError(f"the function returned a dict with the key {wrong[0]!r}; expected strings, the columns")
    columns = {name: value for name, value in columns.items() if name not in item or not _same(value, item[name])}
    if taken := sorted({*columns} & {*item, ERROR}):
        raise SpecnbError(f"the function returned another {taken[0]!r} than it was given; rename that result")
    for name, value in columns.items():
        if isinstance(value, (list, tuple, set, frozenset, Mapping)) or getattr(value, "ndim", 0):
            where = f" as {name!r}" if isinstance(result, Mapping) else ""
            kind = type(value).__name__
            raise SpecnbError(f"the function returned a {kind}{where}; expected a scalar, or a dict of scalars")
    return {name: _plain(value) for name, value in columns.items()}


def _same(value: Any, given: Any) -> bool:
    """Tell whether a parameter came back as it was: the object itself, or one equal to it in every entry."""
    if value is given:
        return True
    try:
        equal = (value == given) | ((value != value) & (given != given))  # a NaN is the same as a NaN
        alike = getattr(value, "shape", ()) == getattr(given, "shape", ())
        return alike and bool(equal.all() if hasattr(equal, "all") else equal)
    except Exception:  # arrays of other shapes, or whatever else can't be compared
        return False


def _plain(value: Any) -> Any:
    """Return a tensor or array without axes as the number that it holds."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _here(function: Callable[..., Any], items: list[Item]) -> Outcomes:
    """Yield each item's number and its columns, or what it raised."""
    for index, item in enumerate(items):
        try:
            outcome: Any = call(function, item)
        except Exception as error:
            outcome = error
        yield index, outcome


def _elsewhere(function: Callable[..., Any], items: list[Item], executor: Executor) -> Outcomes:
    """Yield the same in the order in which the items finish; closing it cancels those that haven't begun."""
    futures: dict[Future[Item], int] = {}
    try:
        for index, item in enumerate(items):
            try:
                futures[executor.submit(call, function, item)] = index
            except Exception as error:  # a pool that broke while the grid was handed over
                yield index, error
        for future in as_completed(futures):
            yield futures[future], _outcome(future)
    finally:
        for future in futures:
            future.cancel()


def _outcome(future: Future[Item]) -> Any:
    """Return what a finished future has: its columns, or its exception, which may well be false as a truth value."""
    if future.cancelled():
        return CancelledError()
    error = future.exception()
    return future.result() if error is None else error


def _table(items: list[Item], outcomes: dict[int, Any]) -> pd.DataFrame:
    """Return the tidy table of what came out, and warn of what didn't."""
    import pandas as pd

    lines = [item | _columns(outcomes.get(index)) for index, item in enumerate(items)]
    failed = [index for index, outcome in outcomes.items() if isinstance(outcome, BaseException)]
    if failed and len(failed) == len(items):
        text = f"every item of the sweep failed; the first, {items[0]}, with {lines[0][ERROR]}"
        raise SpecnbError(text) from outcomes[0]
    if failed:
        warnings.warn(f"{len(failed)} of {len(items)} items failed; the column 'error' says why", stacklevel=3)
    names = list(dict.fromkeys(itertools.chain(*items, *lines)))
    return pd.DataFrame(lines, columns=sorted(names, key=ERROR.__eq__))  # the sort is stable: `error` goes last


def _columns(outcome: Any) -> Item:
    """Return what an item's row has besides its parameters."""
    if outcome is None:
        return {ERROR: STOPPED}
    return {ERROR: _reason(outcome)} if isinstance(outcome, BaseException) else outcome


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
