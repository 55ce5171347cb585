"""The command `specnb`: watch the pair decode, open the notebooks, make them anew, measure."""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from specnb import __version__
from specnb.errors import SpecnbError

CHECKOUT = Path(__file__).resolve().parent.parent
PROMPT = "ROMEO.\n"


class Parser(argparse.ArgumentParser):
    """A parser whose refusal is one line, as every other error of the command is."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2 and the message."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0, or 2 after printing one line that says what was wrong.

    A reader that closes the pipe early, as `head` does, ends the command quietly with 1.
    """
    _print_anything()
    commands = parser()
    args, args.rest = commands.parse_known_args(argv)
    if args.rest and args.run is not run_lab:
        commands.error(f"unrecognized arguments: {' '.join(args.rest)}")
    try:
        code = args.run(args) or 0
        sys.stdout.flush()  # a closed pipe must show here, not while the interpreter shuts down
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's own last flush
        return 1
    except SpecnbError as error:
        print(f"specnb: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; each sets `run`."""
    description = "Lossless speculative decoding: watch it, measure it, and make the notebooks."
    main = Parser(prog="specnb", description=description)
    main.add_argument("--version", action="version", version=f"specnb {__version__}")
    commands = main.add_subparsers(required=True, metavar="command")

    demo = commands.add_parser("demo", help="decode with the bundled pair", description=run_demo.__doc__)
    demo.add_argument("prompt", nargs="?", default=PROMPT, help=f"text to continue (default {PROMPT!r})")
    demo.add_argument("--tokens", type=natural, default=120, help="new tokens (default 120)")
    demo.add_argument("--gamma", type=natural, default=4, help="drafted tokens per step (default 4)")
    demo.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (default 1)")
    demo.add_argument("--seed", type=natural, default=0, help="the text is a function of it (default 0)")
    demo.add_argument(
        "--repeats", type=natural, default=3, help="timed runs of each decoder (default 3); 0 measures nothing"
    )
    demo.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colours or signs")
    demo.set_defaults(run=run_demo)

    bench = commands.add_parser("bench", help="measure, and write CSV", description=run_bench.__doc__)
    bench.add_argument("what", choices=("constrained", "copy", "decode", "heads", "speed", "verify"))
    bench.add_argument("--batch", type=positive, nargs="+", default=[1, 16], help="requests (default 1 16)")
    bench.add_argument("--temperature", type=float, default=1.0, help="not verify: 0 is greedy (default 1)")
    bench.add_argument("--tokens", type=positive, default=128, help="not verify: new tokens per request (default 128)")
    bench.add_argument("--vocabulary", type=positive, default=128256, help="verify: ids (default 128256)")
    bench.add_argument("--seeds", type=positive, default=20, help="verify: inputs (default 20)")
    bench.add_argument("--gamma", type=natural, default=4, help="drafted tokens per step (default 4)")
    bench.add_argument("--seed", type=natural, default=0, help="the first seed (default 0)")
    bench.add_argument("--repeats", type=positive, default=5, help="timed runs of each way (default 5)")
    bench.add_argument("--threads", type=positive, default=1, help="threads of PyTorch (default 1)")
    bench.add_argument("--csv", type=writable, help="file to write, for instance data/decoding.csv")
    bench.set_defaults(run=run_bench)

    lab = commands.add_parser("lab", help="open JupyterLab on the notebooks", description=run_lab.__doc__)
    lab.set_defaults(run=run_lab)

    render = commands.add_parser("render", help="execute the notebooks anew", description=run_render.__doc__)
    render.add_argument(
        "paths", nargs="*", type=Path, help="notebooks; without any, all, and the README's tables and picture"
    )
    render.set_defaults(run=run_render)
    return main


def natural(text: str) -> int:
    """Return an argument as an integer of at least 0."""
    return _at_least(0, text)


def positive(text: str) -> int:
    """Return an argument as an integer of at least 1."""
    return _at_least(1, text)


def _at_least(low: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if number < low:
        raise argparse.ArgumentTypeError(f"{text!r} came; expected an integer >= {low}")
    return number


def writable(text: str) -> Path:
    """Return the path of a file that can be written once there is something to write."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; expected a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}; make it first")
    return path


def run_demo(args: argparse.Namespace) -> None:
    """Decode a prompt with the bundled pair: tokens, acceptance, speed, and the exact law of one step."""
    import torch

    from specnb import demo

    _quiet()
    torch.set_num_threads(1)  # the pair is small: more threads cost more than they bring
    demo.show(args)


def run_bench(args: argparse.Namespace) -> None:
    """Measure on this machine what the README claims."""
    from specnb import bench

    _quiet()
    rows = getattr(bench, args.what)(args)
    print(bench.table(rows))
    if args.csv:
        bench.write(rows, args.csv)


def run_lab(args: argparse.Namespace) -> int:
    """Open JupyterLab on the notebooks of this checkout; JupyterLab gets all other arguments."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise SpecnbError("jupyterlab isn't installed: pip install 'specnb[notebooks]'")
    return subprocess.call([sys.executable, "-m", "jupyterlab", *args.rest], cwd=notebooks())


def run_render(args: argparse.Namespace) -> None:
    """Execute notebooks as the tests do and write them back, the same bytes for the same content."""
    from specnb.readme import draw_picture, fill_tables
    from specnb.render import render

    for path in args.paths or sorted(notebooks().glob("*.ipynb")):
        print(path, "changed" if render(path) else "unchanged")
    if not args.paths:
        readme = CHECKOUT / "README.md"
        text = readme.read_text(encoding="utf-8")
        readme.write_text(fill_tables(text, CHECKOUT / "data"), encoding="utf-8")
        draw_picture(CHECKOUT / "data" / "one_step.png")


def _print_anything() -> None:
    """Let a stdout that can't say a character, an ASCII one, print ? instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _quiet() -> None:
    """Keep transformers' advice on how to call it out of what a command prints."""
    from transformers.utils import logging

    logging.set_verbosity_error()


def notebooks() -> Path:
    """Return the folder of the notebooks, which are part of a checkout and not of an installed wheel."""
    folder = CHECKOUT / "notebooks"
    if not any(folder.glob("*.ipynb")):
        raise SpecnbError(f"no notebook in {folder}; they come with a checkout, which pip install -e . installs")
    return folder
