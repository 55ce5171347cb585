"""The rule `coupled` in PyTorch: drafts are kept while they equal the target's own draws."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from specnb.backends import torch_words
from specnb.backends.torch_drafts import effective_lengths
from specnb.backends.torch_mass import masses, pick
from specnb.backends.torch_words import words
from specnb.verdict import Status

OWN = 3


def verify(draft, q, p, lengths, onehot, seed, position, uniforms):
    """Accept drafts while they equal the target's own draws, each by the word of its own position; q is not read."""
    (B, G), V = draft.shape, p.shape[2]
    counted = torch.arange(G + 1, device=p.device) < effective_lengths(draft, lengths)[:, None]
    draft = pad(draft, (0, 1), value=-1)
    outside = counted & ((draft < 0) | (draft >= V))
    tokens, status, n = torch.full_like(draft, -1), torch.zeros_like(draft[:, 0]), torch.zeros_like(draft[:, 0])
    going = torch.ones_like(n, dtype=torch.bool)
    for i in range(G + 1):
        word = words(seed, (position & 0xFFFFFFFF) + i, [(0, OWN)], B, p.device)[:, 0]
        rows, flags = masses(p[:, i])
        own, more_flags = pick(rows, word)
        flags |= more_flags | outside[:, i] * int(Status.OUT_OF_RANGE)
        status |= flags.masked_fill_(~going, 0)
        tokens[:, i] = own.masked_fill(~going, -1)
        going = going & counted[:, i] & (draft[:, i] == own)
        n += going
        if torch_words.on_cpu(p.device) and not bool(going.any()):
            break
    return tokens, n, status.int()
