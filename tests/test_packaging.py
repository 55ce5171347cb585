"""What someone gets who installs the package: light to import and whole outside the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import specnb

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "triton", "transformers", "sympy", "matplotlib", "IPython"}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def python(code: str, cwd: Path, **env: str) -> str:
    """Run a program in a new interpreter and return what it printed, or fail with what it complained."""
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=os.environ | env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_nothing_heavy(tmp_path):
    code = f"import sys, specnb; print(sorted({HEAVY!r} & set(sys.modules)))"
    assert python(code, tmp_path) == "[]"


def test_verifying_numpy_arrays_loads_no_torch(tmp_path):
    code = (
        "import sys, specnb; specnb.verify([0], [[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], seed=0);"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    assert python(code, tmp_path) == "[]"


@pytest.mark.triton
def test_no_submodule_shadows_a_public_name(tmp_path):
    """A module that is imported late becomes an attribute of its package and would replace a name there."""
    code = """
import importlib, pkgutil, types, specnb
before = {name: getattr(specnb, name) for name in specnb.__all__}
for module in pkgutil.walk_packages(specnb.__path__, "specnb."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
after = {name: getattr(specnb, name) for name in specnb.__all__}
print([name for name in before if before[name] is not after[name]])
print([name for name in after if isinstance(after[name], types.ModuleType)])
"""
    changed, modules = python(code, tmp_path).splitlines()
    assert changed == "[]"
    assert sorted(eval(modules)) == sorted(specnb._MODULES)


def test_names_resolve_when_every_submodule_came_first(tmp_path):
    """The other order: here the lazy look-up never sees a name that a submodule has taken."""
    code = """
import importlib, pkgutil, specnb
for module in pkgutil.walk_packages(specnb.__path__, "specnb."):
    if not module.name.endswith(("__main__", "triton")):
        importlib.import_module(module.name)
for name in specnb._HOMES:
    home = importlib.import_module(f"specnb.{specnb._HOMES[name]}")
    for _ in range(2):
        assert getattr(specnb, name) is getattr(home, name), name
assert set(specnb.__all__) <= set(dir(specnb))
"""
    python(code, tmp_path)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'verifi'"):
        _ = specnb.verifi


def test_kernels_is_no_package():
    """With kernels/__init__.py transformers takes the folder for a package of PyPI and runs it."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
    python("from transformers import LlamaForCausalLM", ROOT)


def test_every_package_folder_is_listed():
    folders = {path.parent for path in (ROOT / "specnb").rglob("*.py")}
    found = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found | {"specnb.data", "specnb_kernels"}


def test_top_level_is_the_house():
    """Ten seconds to find a file: nothing beside what the design names, dot files aside."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    top = {name.partition("/")[0] for name in listed.stdout.splitlines()}
    house = {
        "pyproject.toml",
        "environment.yml",
        "README.md",
        "notebooks",
        "specnb",
        "kernels",
        "tests",
        "data",
    }
    assert {name for name in top if not name.startswith(".")} <= house | {"LICENSE", "CITATION.cff"}


def test_environment_yml_is_in_step():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    project = PYPROJECT["project"]
    *conda, pip = environment["dependencies"]
    assert conda == [f"python{project['requires-python']}", "pip"]
    (requirement,) = pip["pip"]
    extras = re.fullmatch(r"-e \.\[([\w,]+)\]", requirement)[1].split(",")
    assert set(extras) == set(project["optional-dependencies"]) - {"dev"}


def test_citation_has_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == specnb.__version__
    assert citation["license"] == PYPROJECT["project"]["license"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy, so that nothing that an earlier build left behind gets in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("specnb", "kernels", "data"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", out, source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


def relative(folder: Path, pattern: str) -> set[str]:
    """Return the files below a folder, as written in a wheel."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob(pattern) if path.is_file()}


def test_wheel_has_the_sources_and_the_pair(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert relative(ROOT, "specnb/**/*.py") | {"specnb/py.typed"} <= names
    assert relative(ROOT / "kernels", "specnb_kernels/**/*.py") <= names
    assert {f"specnb/{name}" for name in relative(ROOT, "data/pair/**/*") | relative(ROOT, "data/heads/*")} <= names
    assert {name.partition("/")[0] for name in names} == {
        "specnb",
        "specnb_kernels",
        f"specnb-{specnb.__version__}.dist-info",
    }


def test_wheel_works_outside_the_checkout(wheel, tmp_path):
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", target, wheel]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = """
import numpy, torch, specnb, specnb_kernels
from specnb.pair import data_path
from specnb.roofline import Chip, ModelShape
assert Chip.named("H100 SXM").ridge() > 0 and ModelShape.named("Llama-3.1-8B").parameters > 8e9
target, draft, tokenizer = specnb.load_pair()
assert specnb.drafters.HeadsDrafter.bundled().heads.width == target.config.hidden_size
row = torch.softmax(target(**tokenizer("To be", return_tensors="pt")).logits[0, -2:], -1).detach()
verdicts = [specnb.verify([5], q, p, seed=1) for q, p in [(row[:1], row), (row[:1].numpy(), row.numpy())]]
assert verdicts[0].tokens.tolist() == verdicts[1].tokens.tolist()
print(specnb.__file__, specnb_kernels.__file__, data_path("pair"), sep="\\n")
"""
    for path in python(code, tmp_path, PYTHONPATH=str(target)).splitlines():
        assert Path(path).is_relative_to(target.resolve())


def run_marked(tmp_path: Path, required: str) -> subprocess.CompletedProcess[str]:
    """Run a test that needs a GPU, in a folder with this suite's conftest, where there is none."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    test = "import pytest\n@pytest.mark.gpu\ndef test_it(): pass\n"
    (tmp_path / "test_marked.py").write_text(test, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-c",
        ROOT / "pyproject.toml",
        tmp_path,
    ]
    env = os.environ | {"SPECNB_REQUIRE": required, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("required", "code", "words"),
    [("", 0, "1 skipped"), ("gpu", 1, "gpu is missing: no CUDA device"), ("gpus", 4, "expected some of")],
)
def test_a_requirement_turns_a_skip_into_a_failure(tmp_path, required, code, words):
    done = run_marked(tmp_path, required)
    assert done.returncode == code, done.stdout + done.stderr
    assert words in done.stdout + done.stderr
