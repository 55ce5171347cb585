"""Run the notebooks under nbval as `specnb render` ran them; each passes without this file, too."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from specnb.render import environment


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Start the kernel, which happens in the set-up of a notebook's first cell, in the shared environment."""
    with environment():
        return (yield)
