"""Every notebook as a reader sees it: in JupyterLab, in a browser, in both themes. Optional: marked `browser`.

It needs Chromium on the path and `pip install playwright`. Screenshots lie in pytest's temporary folder, to be looked
at: what is legible is computed, what is ugly isn't.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LAB = "04_speedup.ipynb"
THEMES = ("JupyterLab Light", "JupyterLab Dark")
LEGIBLE = 4.5
"""The contrast that WCAG 2.1 (1.4.3) asks of text."""
PATIENCE = 180_000
"""Milliseconds after which the browser gives up; a busy machine takes its time."""
WIDTH, TALLEST = 1100, 16_000
"""Pixels: of the window, and of the tallest screenshot that Chromium makes."""

CONTRASTS = """() => {
  const rgba = text => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const over = (top, under) => [0, 1, 2].map(k => top[k] * top[3] + under[k] * (1 - top[3]));
  const behind = element => {
    if (!element) return [255, 255, 255];
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
  };
  const light = color => {
    const [r, g, b] = color.map(x => x / 255).map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const area of document.querySelectorAll('.jp-OutputArea-output, .jp-RenderedMarkdown')) {
    const walker = document.createTreeWalker(area, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest('mjx-assistive-mml, svg')) {
        continue;
      }
      const back = behind(element), front = over(rgba(getComputedStyle(element).color), back);
      const [low, high] = [light(back), light(front)].sort((a, b) => a - b);
      found.push([(high + 0.05) / (low + 0.05), walker.currentNode.data.trim().slice(0, 60)]);
    }
  }
  return found;
}"""
"""The contrast of each piece of text that a reader sees in outputs and text cells, with its beginning."""


@pytest.fixture(scope="module")
def playwright():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright


def serve(folder: Path, theme: str) -> tuple[subprocess.Popen[bytes], str, str]:
    """Start JupyterLab on a fresh copy of the notebooks, with own settings; return it, its address and its token."""
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*", "__pycache__"))
    settings = {
        "apputils-extension/themes": {"theme": theme},
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "notebook-extension/tracker": {"windowingMode": "none"},  # draw what is out of sight, too
    }
    for name, values in settings.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.port=0",
        "--ServerApp.ip=127.0.0.1", "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    token = secrets.token_hex(16)
    places = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "RUNTIME")}
    places |= {f"JUPYTERLAB_{name}_DIR": str(folder / name.lower()) for name in ("SETTINGS", "WORKSPACES")}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")])
    log = folder / "server.log"
    with log.open("w") as said:
        server = subprocess.Popen(
            command, cwd=folder / "notebooks", stdout=said, stderr=said,
            env=os.environ | places | {"PYTHONPATH": paths, "JUPYTER_TOKEN": token},
        )  # fmt: skip
    while server.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+/", log.read_text()):
            return server, found[0], token
        time.sleep(0.2)
    raise AssertionError(f"JupyterLab ended without an address: {log.read_text()}")


@pytest.fixture(scope="module", params=THEMES, ids=lambda theme: theme.split()[1].lower())
def lab(request, playwright, chromium, tmp_path_factory):
    """Yield a function that opens a notebook, and the folder for screenshots."""
    folder = tmp_path_factory.mktemp(request.param.split()[1].lower())
    server, address, token = serve(folder, request.param)
    try:
        browser = playwright.chromium.launch_persistent_context(
            folder / "profile", executable_path=chromium, args=["--no-sandbox"], headless=True,
            viewport={"width": WIDTH, "height": 1000},
        )  # fmt: skip
        browser.set_default_timeout(PATIENCE)
        browser.new_page().goto(f"{address}lab?token={token}")  # its cookie lets the other pages in
        yield lambda name: open_notebook(browser, address, name), folder
        browser.close()
    finally:
        server.terminate()
        server.wait()


def open_notebook(browser, address, name):
    """Return a page that shows a whole notebook and nothing else."""
    page = browser.new_page()
    page.goto(f"{address}lab/tree/{name}?reset")
    page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell")
    page.evaluate("jupyterapp.commands.execute('application:set-mode', {mode: 'single-document'})")
    if page.evaluate("jupyterapp.shell.leftCollapsed") is False:
        page.evaluate("jupyterapp.shell.collapseLeft()")
    cells = len(nbformat.read(ROOT / "notebooks" / name, as_version=4).cells)
    page.wait_for_function(f"document.querySelectorAll('.jp-Notebook .jp-Cell').length === {cells}")
    page.wait_for_function("[...document.querySelectorAll('.jp-OutputArea-output img')].every(i => i.complete)")
    page.wait_for_function("!document.querySelector('.jp-RenderedLatex:not(:has(mjx-container))')")
    return page


def keep(page, path):
    """Make the window as tall as the notebook, and keep a picture of it."""
    page.evaluate("document.querySelector('.jp-Notebook .jp-WindowedPanel-outer').scrollTop = 0")
    for _ in range(2):  # a taller window may show what the first height didn't know of
        end = page.locator(".jp-Notebook .jp-Cell").last.evaluate("cell => cell.getBoundingClientRect().bottom")
        page.set_viewport_size({"width": WIDTH, "height": min(TALLEST, int(end) + 60)})
        page.wait_for_timeout(300)
    page.screenshot(path=path)


def figures(path):
    """Count the pictures that a notebook stores."""
    cells = nbformat.read(path, as_version=4).cells
    return sum("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", ()))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_opens_with_its_figures_and_legible_text(lab, path):
    open_it, folder = lab
    page = open_it(path.name)
    keep(page, folder / f"{path.stem}.png")
    images = page.evaluate(
        "[...document.querySelectorAll('.jp-OutputArea-output img')].map(i => [i.naturalWidth, i.clientWidth])"
    )
    assert len(images) == figures(path)
    assert all(natural > 0 and shown > 100 for natural, shown in images)
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 20
    assert not [(round(contrast, 2), text) for contrast, text in contrasts if contrast < LEGIBLE]
    assert not page.query_selector_all("mjx-merror")
    page.close()


def test_illegible_text_is_noticed(lab):
    open_it, _ = lab
    page = open_it(NOTEBOOKS[0].name)
    assert min(contrast for contrast, _ in page.evaluate(CONTRASTS)) >= LEGIBLE
    page.evaluate("document.querySelector('.jp-RenderedMarkdown p').style.color = 'rgba(128, 128, 128, 0.4)'")
    assert min(contrast for contrast, _ in page.evaluate(CONTRASTS)) < LEGIBLE
    page.close()


def test_the_lab_s_sliders_move_the_picture(lab):
    open_it, folder = lab
    page = open_it(LAB)
    page.wait_for_function("jupyterapp.shell.currentWidget.context.sessionContext.kernelDisplayStatus === 'idle'")
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_selector(".jupyter-widgets.widget-image")
    page.wait_for_function("document.querySelector('.widget-image').naturalWidth > 0")
    page.wait_for_function("!document.querySelector('.jp-Notebook .jp-InputPrompt')?.textContent.includes('*')")

    def state():
        places = {"src": ".widget-image", "textContent": ".widget-html-content"}
        return [page.evaluate(f"document.querySelector('{place}').{what}") for what, place in places.items()]

    for label, key in {"α": "ArrowRight", "γ": "ArrowRight", "batch": "ArrowLeft", "context": "ArrowRight"}.items():
        before = state()
        handle = page.locator(".widget-inline-hbox", has=page.locator(f"label:has-text('{label}')")).first
        handle.locator(".noUi-handle").focus()
        page.keyboard.press(key)
        page.wait_for_function(
            "([src, line]) => document.querySelector('.widget-image').src !== src"
            " && document.querySelector('.widget-html-content').textContent !== line",
            arg=before,
        )
    keep(page, folder / "lab.png")
    contrasts = page.evaluate(CONTRASTS)
    assert not [(round(contrast, 2), text) for contrast, text in contrasts if contrast < LEGIBLE]
    page.close()
