"""What every test relies on: one thread, Triton's interpreter where there is no GPU, and honest skips.

Mark a test `triton`, `gpu` or `browser` when it needs one; it is skipped with the reason where that is
missing, and fails instead when SPECNB_REQUIRE (for instance `SPECNB_REQUIRE=triton,gpu`) names what it needs.
"""

from __future__ import annotations

import importlib.util
import os
import shutil

import hypothesis
import pytest
import torch

# Before anything imports Triton, which reads it on import. A subprocess that compiles must unset it.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

torch.set_num_threads(1)  # small tensors on shared cores: a second thread only adds variance

# Shared machines pause: a deadline would fail tests for the neighbour's sake. In CI the examples are the same
# each time, so that a red run can be repeated.
hypothesis.settings.register_profile("specnb", deadline=None, derandomize="CI" in os.environ, print_blob=True)
hypothesis.settings.load_profile("specnb")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def missing_triton() -> str:
    """Say why Triton kernels can't run, or nothing."""
    return "" if importlib.util.find_spec("triton") else "triton isn't installed"


def missing_gpu() -> str:
    """Say why there is no GPU, or nothing."""
    return "" if torch.cuda.is_available() else "no CUDA device"


@pytest.fixture(scope="session")
def chromium() -> str | None:
    """Return the path of the browser, for tests marked `browser`."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def missing_browser() -> str:
    """Say why there is no browser, or nothing."""
    if not any(map(shutil.which, BROWSERS)):
        return f"none of {', '.join(BROWSERS)} is on the path"
    return "" if importlib.util.find_spec("playwright") else "playwright isn't installed"


MISSING = {"triton": missing_triton, "gpu": missing_gpu, "browser": missing_browser}


def required() -> set[str]:
    """Return the names in SPECNB_REQUIRE."""
    return {name.strip() for name in os.environ.get("SPECNB_REQUIRE", "").split(",") if name.strip()}


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a misspelt requirement, which would require nothing."""
    if unknown := required() - set(MISSING):
        raise pytest.UsageError(f"SPECNB_REQUIRE names {sorted(unknown)}; expected some of {sorted(MISSING)}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that lacks what it needs, or fail it if that was required."""
    for name, missing in MISSING.items():
        if item.get_closest_marker(name) and (reason := missing()):
            outcome = pytest.fail if name in required() else pytest.skip
            outcome(f"{name} is missing: {reason}")
    if item.get_closest_marker("triton") and missing_gpu():
        from interpreter import patch_once_per_launch

        patch_once_per_launch()
