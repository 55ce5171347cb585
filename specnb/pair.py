"""The model pair that travels with the package: what it is, data/pair/README.md says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specnb.errors import SpecnbError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HERE = Path(__file__).resolve().parent


def data_path(name: str) -> Path:
    """Return where a file or folder of `data/` lies: inside an installed package, or beside it in a checkout.

    Parameters
    ----------
    name : relative to `data/`, for instance "pair".

    Raises
    ------
    SpecnbError : it is in neither place.
    """
    places = (HERE / "data" / name, HERE.parent / "data" / name)
    for path in places:
        if path.exists():
            return path
    looked = " nor at ".join(map(str, places))
    raise SpecnbError(f"data {name!r} is neither at {looked}; expected it with the package: reinstall specnb")


def load_pair() -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the bundled target, its draft and their tokenizer, without a network or a progress bar.

    Returns
    -------
    target, draft : Llama-architecture models of transformers, float32, on the CPU, in eval mode.
    tokenizer : the byte-level BPE that both share.

    Examples
    --------
    >>> target, draft, tokenizer = load_pair()
    >>> target.config.vocab_size == draft.config.vocab_size == len(tokenizer)
    True
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = data_path("pair")
    load = partial(AutoModelForCausalLM.from_pretrained, dtype=torch.float32, local_files_only=True)
    with _no_progress_bar():
        target, draft = (load(folder / name).eval() for name in ("target", "draft"))
    return target, draft, AutoTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Silence transformers' bar over two small files: a notebook would store it as stderr."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
