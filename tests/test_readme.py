"""The README holds: its code runs, its tables are those in data/, and what it names exists."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
import shutil
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import specnb
from specnb import cli
from specnb.errors import SpecnbError
from specnb.readme import ROWS, draw_picture, fill_tables

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(specnb.__path__, "specnb.")
    if not module.name.endswith(("__main__", "triton"))
)


def failures(examples: list[doctest.DocTest]) -> str:
    """Run doctests and return what went wrong."""
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for example in examples:
        runner.run(example, out=said.append)
    return "".join(said)


def test_python_blocks_run_and_print_what_they_say():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    assert all(block.startswith(">>> ") for block in blocks)
    one_session = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "README", "README.md", 0)
    assert len(one_session.examples) > 10
    assert failures([one_session]) == ""


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(name)
    assert failures(doctest.DocTestFinder().find(module)) == ""


def test_a_wrong_example_is_noticed():
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", "wrong", 0)
    assert "Expected" in failures([wrong])


def test_tables_are_fresh():
    assert fill_tables(README, ROOT / "data") == README, "run `specnb render`"


def test_tables_come_from_csv(tmp_path):
    (tmp_path / "a.csv").write_text("device,ms,note\nCPU,1.50,x\nGPU,0.25,y\n", encoding="utf-8")
    text = "# A\n<!-- table: a.csv: device, ms -->\nstale < text\n<!-- end -->\nrest"
    fresh = fill_tables(text, tmp_path)
    assert fresh == (
        "# A\n<!-- table: a.csv: device, ms -->\n"
        "| device | ms |\n| --- | ---: |\n| CPU | 1.50 |\n| GPU | 0.25 |\n<!-- end -->\nrest"
    )
    assert fill_tables(fresh, tmp_path) == fresh
    with pytest.raises(SpecnbError, match="no column"):
        fill_tables(text.replace("ms", "seconds"), tmp_path)
    with pytest.raises(SpecnbError, match=r"b\.csv has no file"):
        fill_tables(text.replace("a.csv", "b.csv"), tmp_path)


# Another FreeType smooths the edges of letters differently: of values in 0 to 1, well under this on average.
PICTURE_TOLERANCE = 0.01


def test_the_picture_is_fresh(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "data").mkdir()
    shutil.copy(ROOT / "notebooks" / "matplotlibrc", tmp_path / "notebooks")
    draw_picture(tmp_path / "data" / "one_step.png")
    stored, drawn = (plt.imread(root / "data" / "one_step.png") for root in (ROOT, tmp_path))
    assert stored.shape == drawn.shape, "run `specnb render`"
    assert abs(stored - drawn).mean() < PICTURE_TOLERANCE, "run `specnb render`"


def test_the_example_is_the_pictures():
    assert f"q = np.array([{ROWS['q']}])" in README
    assert f"p = np.array([{ROWS['p']}, " in README


def test_the_two_commands_are_one_line_each():
    assert len(COMMANDS) == 2
    demo, test = (command.strip() for command in COMMANDS)
    assert "\n" not in demo + test
    assert demo.endswith("specnb demo")
    assert test.endswith("pytest tests --nbval notebooks -n 2 --dist loadfile")


def test_ci_runs_the_test_command():
    """`.ci/run` takes the command from here by its marker."""
    assert README.count("<!-- test command -->\n```bash\n" + COMMANDS[1]) == 1
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_specnb_command_exists():
    named = set(re.findall(r"`?(?:\.venv/bin/)?specnb (\w+)`", README)) | {"demo"}
    assert {"demo", "lab", "render"} <= named
    for command in named:
        assert cli.parser().parse_args([command]).run


def test_every_named_file_and_test_exists():
    names = re.findall(r"`((?:tests|notebooks|data|kernels|specnb)/[\w./]+(?:::\w+)?)`", README)
    names += [name for name in re.findall(r"\]\(([^)#:]+)\)", README)]
    assert names
    for name in names:
        path, _, test = name.partition("::")
        assert (ROOT / path).exists(), name
        assert not test or f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), name


def test_every_notebook_is_listed():
    listed = set(re.findall(r"notebooks/\d\d_\w+\.ipynb", README))
    assert listed == {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}


def test_extras_in_commands_exist():
    for command in COMMANDS:
        for word in shlex.split(command):
            if extras := re.fullmatch(r"\.\[([\w,]+)\]", word):
                pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
                assert all(f"\n{extra} = [" in pyproject for extra in extras[1].split(","))
