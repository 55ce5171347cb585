"""Which row of logits a program of launch 1 works on: requests, splits of the vocabulary, and places of their rows."""

import triton
import triton.language as tl

from specnb_kernels.drafts import read_ids


@triton.jit
def row_here(draft, lengths, onehot, y, G, GAMMA_BLOCK: tl.constexpr):
    """Return which row of logits this program works on.

    request : program_id(0), whose rows program_id(2) counts as z_0, y_0, z_1, ..., z_G, or without y z_0 ... z_G
    x, length : its draft, and how much of it counts
    position, of_z : the row is z's at this position, or y's
    row : the row's number, in the order z_0 ... z_G, y_0 ... of forms and of everything else that is kept per row
    used : whether it is read: no row is behind the draft's end, and none of y for a one-hot draft
    soft : whether the draft at this position has a row of y
    """
    request = tl.program_id(0).to(tl.int64)
    place = tl.program_id(2)
    x, length = read_ids(draft, lengths, request, tl.arange(0, GAMMA_BLOCK), G)
    if y is None:
        position = place
        of_z = place >= 0
        soft = place < 0
        used = place <= length
    else:
        position = place // 2
        of_z = place % 2 == 0
        soft = position < length
        if onehot is not None:
            soft &= tl.load(onehot + request) == 0
        used = tl.where(of_z, position <= length, soft)
    row = request * tl.num_programs(2) + tl.where(of_z, position, G + 1 + position)
    return request, x, length, position, row, of_z, used, soft
