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
    return decide(lambda some, i: p[some, i], p.shape[2], draft, lengths, seed, position)


def decide(rows_of, V, draft, lengths, seed, position):
    """Return what `verify` does. rows_of(some, i): row i of p, [b, V], of the requests that an index or slice names."""
    (B, G), device = draft.shape, draft.device
    counted = torch.arange(G + 1, device=device) < effective_lengths(draft, lengths)[:, None]
    draft = pad(draft, (0, 1), value=-1)
    outside = counted & ((draft < 0) | (draft >= V))
    tokens, status, n = torch.full_like(draft, -1), torch.zeros_like(draft[:, 0]), torch.zeros_like(draft[:, 0])
    going = torch.ones_like(n, dtype=torch.bool)
    for i in range(G + 1):
        word = words(seed, (position & 0xFFFFFFFF) + i, [(0, OWN)], B, device)[:, 0]
        whole = not torch_words.on_cpu(device) or bool(going.all())
        some = slice(None) if whole else going.nonzero()[:, 0]
        rows, flags = masses(rows_of(some, i))
        own, more_flags = pick(rows, word[some])
        flags |= more_flags | outside[some, i] * int(Status.OUT_OF_RANGE)
        status[some] |= flags.masked_fill_(~going[some], 0)
        tokens[some, i] = own.masked_fill(~going[some], -1)
        going = going & counted[:, i] & (draft[:, i] == tokens[:, i])
        n += going
        if torch_words.on_cpu(device) and not bool(going.any()):
            break
    return tokens, n, status.int()
