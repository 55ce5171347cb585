"""Bytes that the kernels touch, counted in Triton's interpreter, over the least that a verdict must read.

`TRITON_INTERPRET=1 python -m specnb_kernels.touched 32000` prints a line per input. Every load, store and ticket counts
with its element's bytes, also where a cache would serve it. What early.py spares is a matter of timing, so the two ends
are counted: nothing, and all that it can.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import sys
from collections.abc import Iterator

import torch
from triton.runtime.interpreter import interpreter_builder

from specnb_kernels import from_logits, operators

GAMMA = 4
SPLITS = {"one request": None, "many requests": 16}  # how many share a row, by default and among many rows


@contextlib.contextmanager
def counter() -> Iterator[list[int]]:
    """Count in a list of one number the bytes that the interpreter loads and stores."""
    total = [0]
    names = ("create_masked_load", "create_masked_store", "create_atomic_rmw")
    originals = {name: getattr(interpreter_builder, name) for name in names}

    def load(pointers, mask, *more):
        value = originals["create_masked_load"](pointers, mask, *more)
        total[0] += int(mask.data.sum()) * value.data.itemsize
        return value

    def store(pointers, value, mask, *more):
        total[0] += int(mask.data.sum()) * value.data.itemsize
        return originals["create_masked_store"](pointers, value, mask, *more)

    def ticket(operation, pointers, value, mask, *more):
        total[0] += 2 * int(mask.data.sum()) * value.data.itemsize
        return originals["create_atomic_rmw"](operation, pointers, value, mask, *more)

    for name, counted in zip(names, (load, store, ticket), strict=True):
        setattr(interpreter_builder, name, counted)
    try:
        yield total
    finally:
        for name in names:
            delattr(interpreter_builder, name)


@contextlib.contextmanager
def programs_in_turn(backwards: bool = False) -> Iterator[None]:
    """Run a grid's programs one place of rows after the other, as a GPU starts them; or the last place first."""
    left: list[tuple[int, int, int]] = []
    originals = {name: getattr(interpreter_builder, name) for name in ("set_grid_dim", "set_grid_idx")}

    def set_grid_dim(*dims):
        originals["set_grid_dim"](*dims)
        left[:] = ((x, y, z) for z, y, x in itertools.product(*map(range, reversed(dims))))
        left.sort(key=lambda program: program[2], reverse=backwards)

    def set_grid_idx(*_):
        originals["set_grid_idx"](*left.pop(0))

    for name, changed in zip(originals, (set_grid_dim, set_grid_idx), strict=True):
        setattr(interpreter_builder, name, changed)
    try:
        yield
    finally:
        for name in originals:
            delattr(interpreter_builder, name)


def rows(width: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return drafts [1, GAMMA], the draft's logits and the target's, far apart."""
    generator = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(1, GAMMA + 1, width, generator=generator)
    y = z[:, :GAMMA] + torch.randn(1, GAMMA, width, generator=generator)
    return torch.multinomial(y[0].softmax(-1), 1, generator=generator).T, y, z


def uniforms(accepted: int) -> torch.Tensor:
    """Return uniforms that accept so many drafts of one request, if their ratios lie within (0, 1)."""
    u = torch.zeros(1, GAMMA + 1, dtype=torch.float64)
    u[0, accepted:GAMMA] = 1 - 2.0**-53
    u[0, GAMMA] = 0.5
    return u


def from_probabilities(width: int, accepted: int, splits: int | None, _: bool) -> tuple[int, int]:
    """Return the bytes of kernel A on float32 probabilities, and the least: the one row or pair that decides."""
    draft, y, z = rows(width)
    p, q = z.softmax(-1), y.softmax(-1)
    drafted = 0, torch.arange(GAMMA), draft[0]
    p[drafted] = q[drafted] / 2
    with counter() as total:
        n = operators.launch(draft, q, p, None, None, None, None, uniforms(accepted), 0, 0, 0, 2, stretch=1,
                             splits=splits)[1]  # fmt: skip
    assert n.item() == accepted
    return total[0], 4 * width * (1 if accepted == GAMMA else 2)


def from_both_logits(width: int, accepted: int, splits: int | None, late: bool) -> tuple[int, int]:
    """Return the bytes of kernel B on bfloat16 logits, and the least: each row of both models once.

    late: a rejection is known too late to spare a row.
    """
    draft, y, z = (x if i == 0 else x.bfloat16() for i, x in enumerate(rows(width)))
    drafted = 0, torch.arange(GAMMA), draft[0]
    z[:, :GAMMA] = y
    z[drafted] -= 1  # so that p(x) < q(x), and what is accepted is chosen by the uniforms
    how = [torch.ones(1, dtype=torch.float64), None, None, None]
    with counter() as total, programs_in_turn(backwards=late):
        n = from_logits.launch(draft, y, z, None, None, None, None, uniforms(accepted), how, how, 0, 0, 0, 2, stretch=1,
                               splits=splits, tile_splits=2)[1]  # fmt: skip
    assert n.item() == accepted
    return total[0], 2 * width * (2 * GAMMA + 1)


WAYS = {"token fp32 probabilities": from_probabilities, "token bf16 logits": from_both_logits}
OUTCOMES = {"all rejected": (0, True), "all accepted": (GAMMA, True), "all rejected, known in time": (0, False)}


def table(width: int) -> Iterator[dict[str, str | int | float]]:
    """Return a line per way, outcome and number of splits."""
    for way, touched in WAYS.items():
        for outcome, (accepted, late) in OUTCOMES.items():
            if touched is from_probabilities and not late:
                continue  # it reads no row before it knows
            for load, splits in SPLITS.items():
                total, least = touched(width, accepted, splits, late)
                yield {"way": way, "outcome": outcome, "load": load, "vocabulary": width,
                       "bytes": total, "least bytes": least, "ratio": round(total / least, 4)}  # fmt: skip


def main(widths: list[int]) -> None:
    """Print the table."""
    lines = [line for width in widths for line in table(width)]
    writer = csv.DictWriter(sys.stdout, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)


if __name__ == "__main__":
    main([int(width) for width in sys.argv[1:]] or [32000])
