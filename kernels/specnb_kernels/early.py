"""A rejection that is known while rows are still being read: those behind it need not be.

A row pair's forms tell whether its draft passes, so the pair's last program tells the request's other programs.
Nothing depends on when, or if, they hear of it. Kernel A finds the first rejection anew, by the same arithmetic.
"""

import triton
import triton.language as tl

from specnb_kernels.arithmetic import GRID
from specnb_kernels.drafts import draw_words, read_probabilities
from specnb_kernels.sums import is_last_split

# What is known of a request: the launch's number in the high half of an int64, below it how many drafts of G lie from
# the first known rejection on. So the largest value holds, and those of earlier launches hold nothing.


@triton.jit
def may_decide(known, launch, position, G):
    """Tell whether a row lies before, or at, the first rejection that is known so far in this launch."""
    told = tl.load(known, cache_modifier=".cg")
    return ((told >> 32) != launch) | (position + (told & 0xFFFFFFFF) <= G)


@triton.jit
def tell_rejection(y, z, onehot, forms, seeds, positions, uniforms, known, met, launch, seed, start,
                   x, request, position, closes, soft, G, z_width, y_width, z_pos, z_id, y_pos, y_id,
                   GAMMA_BLOCK: tl.constexpr, FILTERED: tl.constexpr):  # fmt: skip
    """Make it known if the draft at a position is rejected, once all forms that decide it are written.

    z, y, forms, known and met point to the request's first. closes: this program has written a form that decides it, or
    found that its row need not be read. soft: there are two, and the other may come later.
    """
    ready = closes & (soft == 0)
    if closes & soft:
        ready = is_last_split(met + position, 2)
    if ready:
        tl.debug_barrier()  # one thread has stored what all now load
        i = tl.arange(0, GAMMA_BLOCK)
        here = request * 0 + start
        if positions is not None:
            here = tl.load(positions + request).to(tl.int64)
        words, _ = draw_words(seeds, uniforms, seed, here, request, i, G, 0, 0)
        V = tl.maximum(z_width, y_width)
        in_range, p_x, q_x, _ = read_probabilities(
            y, z, onehot, forms, x, i == position, request, i, G, V, z_width, y_width,
            z_pos, z_id, y_pos, y_id, FILTERED)  # fmt: skip
        u = (words >> 11).to(tl.int64).to(tl.float64) * (1.0 / GRID)
        accepted = in_range & (q_x > 0.0) & (u * q_x.to(tl.float64) < p_x.to(tl.float64))
        if tl.max(((i == position) & (accepted == 0)).to(tl.int32), 0) > 0:
            number = tl.full((), 0, tl.int64) + launch
            tl.atomic_max(known, (number << 32) + (G - position), sem="relaxed")
