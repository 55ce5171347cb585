"""`sweep` gives the same tidy table here, in threads and on a cluster, whatever fails or is interrupted on the way."""

from __future__ import annotations

import copy
import functools
import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from pandas.testing import assert_frame_equal

import specnb
from specnb import SpecnbError, sweep

GRID = {"p": [0.2, 0.5], "gamma": [1, 2, 3]}
quiet = functools.partial(sweep, progress=False)


def accepted(p, gamma):
    """Return what a step accepts on average when the draft says one half."""
    mean = specnb.laws.expected_accepted("token", p=[p, 1 - p], q=[0.5, 0.5], gamma=gamma)
    return {"accepted": float(mean), "gamma": gamma}


def test_a_row_for_every_combination_in_order():
    frame = quiet(accepted, GRID)
    assert list(frame.columns) == ["p", "gamma", "accepted"]
    assert frame[["p", "gamma"]].values.tolist() == [[p, gamma] for p in GRID["p"] for gamma in GRID["gamma"]]
    assert frame.accepted[:2].tolist() == pytest.approx([0.7, 0.7 + 0.49])


def test_scalars_of_any_kind_are_values():
    frame = quiet(lambda x: x, [{"x": np.float64(0.5)}, {"x": np.array(3)}, {"x": "text"}, {"x": None}])
    assert frame.value.tolist()[:3] == [0.5, 3, "text"]
    assert quiet(lambda: 1, {}).value.tolist() == [1]
    assert len(quiet(lambda x: x, {"x": []})) == 0


def test_a_list_of_dicts_may_have_different_names():
    frame = quiet(lambda a, b=0: {"a": a, "sum": a + b}, [{"a": 1}, {"a": 2, "b": 3}])
    assert frame["sum"].tolist() == [1, 5]
    assert np.isnan(frame.b[0])


def test_threads_give_the_serial_table_whatever_finishes_first():
    last = threading.Event()

    def slow_first(x):
        if x == 0:
            assert last.wait(10)
        elif x == 5:
            last.set()
        return x**2

    with ThreadPoolExecutor(2) as pool:
        assert quiet(slow_first, {"x": range(6)}, pool).value.tolist() == [0, 1, 4, 9, 16, 25]
        assert_frame_equal(quiet(accepted, GRID, pool), quiet(accepted, GRID))


def inverse(x):
    return {"inverse": 1 / x}


@pytest.mark.parametrize("workers", [None, 2])
def test_a_failing_item_keeps_its_row_and_its_error(workers):
    pool = workers and ThreadPoolExecutor(workers)
    with pytest.warns(UserWarning, match="1 of 3 items failed; the column 'error' says why") as said:
        frame = sweep(inverse, {"x": [1, 0, 2]}, pool, progress=False)
    assert Path(said[0].filename) == Path(__file__)
    assert list(frame.columns) == ["x", "inverse", "error"]
    assert frame.inverse.isna().tolist() == [False, True, False]
    assert frame.error[1] == "ZeroDivisionError: division by zero"
    assert frame.error.isna().tolist() == [True, False, True]


def test_a_sweep_that_gave_nothing_raises_the_first_failure():
    with pytest.raises(SpecnbError, match=r"every item .* failed; the first, \{'x': 0\}, with ZeroDiv") as said:
        quiet(inverse, {"x": [0, 0]})
    assert isinstance(said.value.__cause__, ZeroDivisionError)


def test_an_interrupted_sweep_keeps_what_it_had():
    def stops(x):
        if x == 2:
            raise KeyboardInterrupt
        return x

    frame = quiet(stops, {"x": range(4)})
    assert frame.value[:2].tolist() == [0, 1]
    assert frame.error[2:].tolist() == ["not run: interrupted"] * 2
    again = quiet(lambda x: -x, frame[frame.error.notna()][["x"]].to_dict("records"))
    assert again.value.tolist() == [-2, -3]


@pytest.fixture
def ctrl_c():
    """Let Ctrl-C raise KeyboardInterrupt, as it does in a shell and a notebook."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_sweep_cancels_what_has_not_begun(ctrl_c):
    begun, release = [], threading.Event()

    def stops(x):
        begun.append(x)
        if x == 1:
            ctrl_c()
            assert release.wait(10)
        return x

    with ThreadPoolExecutor(1) as pool:
        frame = quiet(stops, {"x": range(5)}, pool)
        release.set()
    assert begun == [0, 1]
    assert frame.value[0] == 0
    assert frame.error[1:].tolist() == ["not run: interrupted"] * 4


class Broken:
    """A pool that breaks after its first item."""

    taken = 0

    def submit(self, function, *arguments):
        self.taken += 1
        if self.taken > 1:
            raise RuntimeError("the pool broke")
        future = Future()
        future.set_result(function(*arguments))
        return future


def test_a_pool_that_breaks_leaves_what_was_finished():
    with pytest.warns(UserWarning, match="2 of 3 items failed"):
        frame = quiet(inverse, {"x": [1, 2, 4]}, Broken())
    assert frame.inverse[0] == 1
    assert frame.error[1:].tolist() == ["RuntimeError: the pool broke"] * 2


@pytest.mark.parametrize(("function", "grid", "message"), [
    (inverse, {"x": 3}, r"grid\['x'\] is 3; expected a list of values: \[3\]"),
    (inverse, {"x": "12"}, "expected a list of values"),
    (inverse, [3], "the grid has 3; expected a dict of lists"),
    (inverse, "x", "the grid has 'x'; expected a dict of lists"),
    (inverse, {"error": [1]}, "a parameter 'error'"),
    (None, {"x": [1]}, "function is None; expected something to call"),
    (lambda x: [x], {"x": [1]}, "the function returned a list; expected a scalar"),
    (lambda x: np.zeros(2), {"x": [1]}, "the function returned a ndarray; expected"),
    (lambda x: {"x": 2}, {"x": [1]}, "returned another 'x' than it was given"),
    (lambda x: {"error": 2}, {"x": [1]}, "returned another 'error'"),
    (lambda value: value, {"value": [1]}, "a scalar for the column 'value', which is a parameter's; expected a"),
    (lambda value: -value, {"value": [1]}, "a scalar for the column 'value'"),
    (lambda x: {1: x}, {"x": [1]}, "a dict with the key 1; expected strings"),
    (lambda x: {"y": [x]}, {"x": [1]}, "the function returned a list as 'y'; expected a scalar"),
    (lambda x: {"y": np.zeros(2)}, {"x": [1]}, "the function returned a ndarray as 'y'"),
    (lambda x: {"y": {"z": 1}}, {"x": [1]}, "the function returned a dict as 'y'"),
    (lambda x: {"x": np.zeros(2)}, {"x": [np.zeros(3)]}, "returned another 'x' than it was given"),
    (lambda x: {"x": 0.0}, {"x": [np.zeros(2)]}, "returned another 'x' than it was given"),
    (lambda x: {"x": np.array([0.0, 1.0])}, {"x": [np.zeros(2)]}, "returned another 'x' than it was given"),
])  # fmt: skip
def test_what_cannot_be_swept_says_why(function, grid, message):
    with pytest.raises(SpecnbError, match=message):
        quiet(function, grid)


def test_a_key_that_is_no_string_fails_its_item_alone():
    with pytest.warns(UserWarning, match="1 of 2 items failed"):
        frame = quiet(lambda a: {1: a} if a == 2 else {"b": a}, {"a": [1, 2]})
    assert frame.b[0] == 1
    assert "the key 1" in frame.error[1]


@pytest.mark.parametrize("values", [[np.array([1, np.nan])], [float("nan"), 1.0], [None], [[1, 2]]])
@pytest.mark.parametrize("copied", [copy.copy, lambda value: value])
def test_a_parameter_of_any_kind_may_come_back(values, copied):
    frame = quiet(lambda a: {"a": copied(a), "r": 1}, {"a": values})
    assert list(frame.columns) == ["a", "r"]
    assert frame.r.tolist() == [1] * len(values)


def test_a_nan_that_was_made_anew_is_the_parameter_too():
    assert quiet(lambda a: {"a": np.float64("nan"), "r": 1}, {"a": [float("nan")]}).r.tolist() == [1]


class Falsy(Exception):
    """An error that is false as a truth value."""

    def __bool__(self):
        return False


def test_an_error_that_is_false_is_still_an_error():
    def fails_at_two(x):
        if x == 2:
            raise Falsy("no")
        return x

    for pool in (None, ThreadPoolExecutor(1)):
        with pytest.warns(UserWarning, match="1 of 2 items failed"):
            frame = quiet(fails_at_two, {"x": [1, 2]}, pool)
        assert frame.error[1] == "Falsy: no"
    pool.shutdown()


def test_an_executor_is_asked_for_by_what_it_can():
    with pytest.raises(SpecnbError, match="executor is 4; expected a concurrent"):
        quiet(inverse, {"x": [1]}, 4)


def test_the_bar_counts_items_on_stderr(capsys):
    sweep(inverse, {"x": [1, 2]})
    said = capsys.readouterr()
    assert said.out == ""
    assert "2/2" in said.err


def dying(folder, x):
    """Kill the worker that runs item 2 for the first time, and note every run."""
    runs = Path(folder, f"{x} {os.getpid()}")
    if x == 2 and not list(Path(folder).glob("2 *")):
        runs.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    runs.touch()
    verdict = specnb.verify([[0]], [[[0.5, 0.5]]], [[[0.2, 0.8], [0.5, 0.5]]], seed=x)
    return {"x": x, "token": int(verdict.tokens[0, 0]), "accepted": int(verdict.num_accepted[0])}


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes, each with one thread, that see this module."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        yield client


def test_a_dask_cluster_runs_the_items_of_a_killed_worker_again(cluster, tmp_path):
    grid = {"x": range(8)}
    frame = quiet(functools.partial(dying, str(tmp_path)), grid, cluster.get_executor())
    runs = [path.name.split() for path in tmp_path.iterdir()]
    assert len({pid for x, pid in runs if x == "2"}) == 2, "killed on one worker, finished on another"
    assert str(os.getpid()) not in {pid for _, pid in runs}
    (tmp_path / "2 here").touch()
    assert_frame_equal(frame, quiet(functools.partial(dying, str(tmp_path)), grid))


def test_a_failure_on_a_dask_cluster_comes_back(cluster):
    with pytest.warns(UserWarning, match="1 of 2 items failed"):
        frame = quiet(inverse, {"x": [0, 2]}, cluster.get_executor())
    assert frame.error[0] == "ZeroDivisionError: division by zero"
    assert frame.inverse[1] == 0.5
