"""The command: what it prints, and that it fails in one line that says why."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys

import pytest

import specnb
from specnb import bench, cli, demo
from specnb.measure.reports import STAGES


@pytest.mark.parametrize(("choice", "no_color", "expected"), [("always", "1", True), ("never", "", False)])
def test_colour_is_as_asked(monkeypatch, choice, no_color, expected):
    monkeypatch.setenv("NO_COLOR", no_color)
    assert demo.colored(choice) is expected


@pytest.mark.parametrize(("no_color", "expected"), [("", True), ("1", False)])
def test_colour_on_a_terminal(monkeypatch, no_color, expected):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert demo.colored("auto") is expected


def test_demo_shows_text_acceptance_law_and_speed(capsys):
    assert cli.main(["demo", "JULIET.\n", "--tokens", "12", "--gamma", "3", "--repeats", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("JULIET.\n")
    assert re.search(r"12 tokens in \d+ steps", shown)
    assert "exact, \u03a3 min(p, q)" in shown
    for way in ("transformers, plain", "transformers, assisted", "specnb, speculative", "bare forwards"):
        assert re.search(rf"{way} +\d+ .*\d \u00d7\n", shown), shown

    law = re.search(r"its exact probability +([\d. ]+)", shown)[1].split()
    assert len(law) == 4
    assert sum(map(float, law)) == pytest.approx(1, abs=4 * 0.005)  # four numbers, rounded to two decimals


def test_demo_is_a_function_of_its_seed(capsys):
    texts = []
    for seed in ("1", "1", "2"):
        cli.main(["demo", "--tokens", "8", "--repeats", "0", "--seed", seed])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_demo_without_drafts(capsys):
    assert cli.main(["demo", "--tokens", "3", "--gamma", "0", "--repeats", "0"]) == 0
    assert "0 of 0 drafts" in capsys.readouterr().out


def test_one_steps_law_matches_the_verdict_of_the_run():
    """The rows shown are those that the run verified: the same seed verifies to the same tokens."""
    target, draft, tokenizer = specnb.load_pair()
    prompt = tokenizer("ROMEO.\n", return_tensors="pt").input_ids
    run = specnb.generate(target, specnb.drafters.ModelDrafter(draft), prompt, max_new_tokens=9, gamma=4, seed=3)
    first = run.rounds[0]
    q, p = demo.rows_of(first, run, target, draft, specnb.Sampling())
    verdict = specnb.verify(list(first.draft), q, p, seed=3, position=first.position)
    assert verdict.num_accepted == first.accepted
    assert verdict.tokens[: first.accepted + 1].tolist() == list(first.tokens)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--temperature", "-1"], "temperature"),
        (["demo", ""], "empty"),
        (["render", "absent.ipynb"], "there is no notebook absent.ipynb"),
    ],
)
def test_an_error_is_one_line(capsys, arguments, words):
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert re.fullmatch(r"specnb: .+\n", printed.err)
    assert words in printed.err


def test_an_unknown_argument_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["demo", "--tokns", "3"])
    assert "unrecognized arguments: --tokns" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        *(["demo", f"--{name}", "-1"] for name in ("tokens", "gamma", "seed", "repeats")),
        *(["bench", "decode", f"--{name}", "0"] for name in ("batch", "tokens", "repeats", "threads")),
        *(["bench", "verify", f"--{name}", "0"] for name in ("seeds", "vocabulary")),
        *(["bench", "verify", f"--{name}", "-1"] for name in ("gamma", "seed")),
        ["bench", "decode", "--batch", "1", "0"],
        ["bench", "decode", "--tokens", "1.5"],
    ],
    ids=" ".join,
)
def test_numbers_out_of_range_are_refused_before_any_work(capsys, monkeypatch, arguments):
    monkeypatch.setattr(cli, "run_demo", pytest.fail)
    monkeypatch.setattr(cli, "run_bench", pytest.fail)
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    error = rf"specnb \w+: argument {arguments[-2] if arguments[-2] != '1' else '--batch'}: .*expected an integer >= "
    assert re.match(error, _one_line(capsys))


@pytest.mark.parametrize(("path", "words"), [("absent/a.csv", "there is no folder"), (".", "is a folder")])
def test_a_csv_that_cant_be_written_is_refused_before_measuring(capsys, monkeypatch, tmp_path, path, words):
    monkeypatch.setattr(cli, "run_bench", pytest.fail)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["bench", "verify", "--csv", str(tmp_path / path)])
    assert words in _one_line(capsys)


def _one_line(capsys):
    printed = capsys.readouterr()
    assert re.fullmatch(r".+\n", printed.err)
    assert printed.out == ""
    return printed.err


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"specnb {specnb.__version__}\n"


DEMO = [sys.executable, "-m", "specnb", "demo", "--tokens", "3", "--repeats", "0"]


def test_a_reader_that_leaves_early_ends_the_command_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(DEMO, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_ascii_terminal_gets_question_marks():
    done = subprocess.run(DEMO, capture_output=True, text=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "exact, ? min(p, q)" in done.stdout


def test_bench_writes_what_it_prints(capsys, tmp_path):
    path = tmp_path / "decoding.csv"
    command = ["bench", "decode", "--batch", "1", "2", "--tokens", "6", "--repeats", "1", "--gamma", "2"]
    assert cli.main([*command, "--csv", str(path)]) == 0
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["batch"] for row in rows if row["method"] == "specnb, speculative"} == {"1", "2"}
    assert all(float(row["low"]) <= float(row["tokens_per_second"]) <= float(row["high"]) for row in rows)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(rows) + 1
    assert all(row["method"] in line for row, line in zip(rows, shown[1:], strict=True))


def test_bench_speed_leads_from_the_formula_to_the_clock(capsys, tmp_path):
    path = tmp_path / "speed.csv"
    command = ["bench", "speed", "--batch", "1", "2", "--tokens", "6", "--repeats", "1", "--gamma", "2"]
    assert cli.main([*command, "--csv", str(path)]) == 0
    said = capsys.readouterr().out
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 2 * len(STAGES)
    assert lines[0].startswith("batch,with,speedup,low,high,factor,gamma")
    assert said.count("achieved") == 2


def test_bench_verify_compares_with_transformers(capsys):
    command = ["bench", "verify", "--vocabulary", "500", "--seeds", "2", "--repeats", "1"]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert bench.PEER in said
    assert "softmax and verify, torch" in said


def test_bench_prompts_are_distinct():
    ids = bench.prompts(specnb.load_pair()[2], 16)
    assert ids.shape == (16, bench.PROMPT_TOKENS)
    assert len({tuple(row) for row in ids.tolist()}) == 16


def test_lab_without_jupyterlab(capsys, monkeypatch):
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["lab"]) == 2
    assert "jupyterlab isn't installed: pip install 'specnb[notebooks]'" in capsys.readouterr().err


def test_lab_and_render_outside_a_checkout(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "CHECKOUT", tmp_path)
    for command in ("lab", "render"):
        assert cli.main([command]) == 2
        assert "they come with a checkout" in capsys.readouterr().err


def test_lab_opens_the_notebooks(monkeypatch):
    calls = []
    monkeypatch.setattr(cli.subprocess, "call", lambda command, cwd: calls.append((command, cwd)) or 0)
    assert cli.main(["lab", "--no-browser", "--port", "1234"]) == 0
    ((command, folder),) = calls
    assert command == [sys.executable, "-m", "jupyterlab", "--no-browser", "--port", "1234"]
    assert list(folder.glob("*.ipynb"))


def test_render_prints_what_changed_and_fills_the_readme(capsys, monkeypatch, tmp_path):
    import nbformat

    (tmp_path / "notebooks").mkdir()
    (tmp_path / "data").mkdir()
    shutil.copy(cli.CHECKOUT / "notebooks" / "matplotlibrc", tmp_path / "notebooks")
    (tmp_path / "data" / "a.csv").write_text("x\n1\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("<!-- table: a.csv -->\n<!-- end -->\n", encoding="utf-8")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
    nbformat.write(notebook, tmp_path / "notebooks" / "01_a.ipynb")
    monkeypatch.setattr(cli, "CHECKOUT", tmp_path)

    for outcome in ("changed", "unchanged"):
        assert cli.main(["render"]) == 0
        assert capsys.readouterr().out.split()[-1] == outcome
    assert (tmp_path / "data" / "one_step.png").exists()
    assert "| x |\n| ---: |\n| 1 |" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "specnb", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    for command in ("demo", "lab", "render"):
        assert command in done.stdout
