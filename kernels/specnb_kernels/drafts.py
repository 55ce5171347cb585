"""What a verdict reads before it streams: random words, the drafted ids and their own probabilities."""

import triton
import triton.language as tl

from specnb_kernels.arithmetic import INFINITY, magnitude, on_grid, word
from specnb_kernels.logits import FORM, load_form, read

NONFINITE = tl.constexpr(1)
IMPOSSIBLE = tl.constexpr(2)
OUT_OF_RANGE = tl.constexpr(4)
NO_MASS = tl.constexpr(8)
EXCESS_MASS = tl.constexpr(16)
BAD_UNIFORM = tl.constexpr(32)

ACCEPTING = tl.constexpr(1)  # the Philox purpose of the acceptance uniforms


@triton.jit
def _row_seed(seeds, seed, row):
    """Return the Philox key and stream of a row: its own key and stream 0, or one key and stream = row."""
    if seeds is None:
        return row * 0 + seed, row
    else:
        return tl.load(seeds + row).to(tl.int64), row * 0


@triton.jit
def draw_words(seeds, uniforms, seed, position, row, i, G, index, purpose):
    """Return the words of drafts i < G and, at i = G, of the final token; and which came from outside [0, 1)."""
    if uniforms is None:
        key, stream = _row_seed(seeds, seed, row)
        words = word(key, stream, position, tl.where(i == G, index, i), tl.where(i == G, purpose, ACCEPTING))
        return words, i < 0
    else:
        steps, outside = on_grid(tl.load(uniforms + row * (G + 1) + i, mask=i <= G, other=0.0))
        return steps.to(tl.uint64) << 11, outside


@triton.jit
def read_ids(draft, lengths, row, i, G):
    """Return the drafts x at the positions i, a block of more than G, and how many of them count."""
    x = tl.load(draft + row * G + i, mask=i < G, other=-1)
    length = tl.min(tl.where(x == -1, i, G), 0)
    if lengths is not None:
        length = tl.minimum(tl.maximum(tl.load(lengths + row), 0), length).to(tl.int32)
    return x, length


@triton.jit
def read_probabilities(q, p, onehot, forms, x, counted, row, i, G, V, p_width, q_width, p_pos, p_id, q_pos, q_id,
                       FILTERED: tl.constexpr):  # fmt: skip
    """Return which drafts that count are ids, their p(x) and q(x), and how many ids of this row's q there are.

    No ids: the row's drafts are one-hot, and q(x) is 1. p, q and forms, None unless p and q are logits, point to
    position 0.
    """
    in_range = (x >= 0) & (x < V) & counted
    here = in_range & (x < p_width)
    p_form = None
    if forms is not None:
        p_form = load_form(forms + i * FORM, here, FILTERED)
    p_x = read(p + i * p_pos, x, p_id, here, p_form, FILTERED)
    q_x = tl.full(i.shape, 1.0, tl.float32)
    if q is not None:
        if onehot is not None:
            q_width = tl.where(tl.load(onehot + row), 0, q_width)
        here = in_range & (x < q_width)
        q_form = None
        if forms is not None:
            q_form = load_form(forms + (G + 1 + i) * FORM, here, FILTERED)
        q_soft = read(q + i * q_pos, x, q_id, here, q_form, FILTERED)
        q_x = tl.where(q_width > 0, q_soft, 1.0)
    return in_range, p_x, q_x, q_width


@triton.jit
def faults(seen, stopping, in_range, p_x, q_x, outside, i, G):
    """Return the status bits of what was seen: of the numbers, and of drafts that may have stopped the verdict."""
    finite = (magnitude(p_x) < INFINITY) & (magnitude(q_x) < INFINITY)
    bits = tl.where(seen & in_range & (finite == 0), NONFINITE, 0)
    bits |= tl.where(stopping & in_range & ((q_x > 0.0) == 0), IMPOSSIBLE, 0)
    bits |= tl.where(stopping & (in_range == 0), OUT_OF_RANGE, 0)
    bits |= tl.where((seen | (i == G)) & outside, BAD_UNIFORM, 0)
    return tl.reduce_or(bits, 0)


@triton.jit
def one_hot_at(here, in_range, x, w):
    """Return the drafted id at one position, -1 if it is none, and what it weighs by w."""
    return tl.max(tl.where(here & in_range, x, -1), 0).to(tl.int32), tl.sum(tl.where(here, w, 0), 0)
