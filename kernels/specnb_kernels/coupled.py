"""The rule coupled: how far a draft agrees with the target's own draws."""

import triton
import triton.language as tl

from specnb_kernels.drafts import OUT_OF_RANGE, read_ids


@triton.jit(do_not_specialize=["G", "V"])
def compare_kernel(draft, lengths, own, flags, tokens, num_accepted, status,
                   G: tl.int32, V: tl.int32, GAMMA_BLOCK: tl.constexpr):  # fmt: skip
    """Accept row program_id(0)'s draft up to its first difference from own [B, G + 1], drawn with status flags.

    Nothing behind the first difference shows, in the tokens or in the status.
    """
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, GAMMA_BLOCK)
    x, length = read_ids(draft, lengths, row, i, G)
    drawn = tl.load(own + row * (G + 1) + i, mask=i <= G, other=-1)
    n = tl.min(tl.where((i < length) & (x == drawn), G, i), 0)
    bits = tl.load(flags + row * (G + 1) + i, mask=i <= n, other=0)
    bits |= tl.where((i <= n) & (i < length) & ((x < 0) | (x >= V)), OUT_OF_RANGE, 0)
    tl.store(tokens + row * (G + 1) + i, tl.where(i <= n, drawn, -1), mask=i <= G)
    tl.store(num_accepted + row, n.to(tl.int64))
    tl.store(status + row, tl.reduce_or(bits, 0))
