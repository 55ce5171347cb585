"""The G-test that decoded text is compared with an enumerated law by: its level, its power, its cells."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from scipy import optimize, stats

LEVEL = 1e-4
"""Chance that a right implementation fails, over seeds; seeds are fixed, so a test that passed keeps passing."""

POWER = 0.99
"""Chance that a law as far off as `detectable` says is caught."""

FEWEST = 5.0
"""Cells expected fewer times are pooled into one: below, G isn't χ² distributed."""


def g_test(counts, law):
    """Return the p-value of counts [cells] under the probabilities law [cells]."""
    expected = counts.sum() * law
    rare = expected < FEWEST
    pooled = [np.append(x[~rare], x[rare].sum()) for x in (counts, expected)]
    observed, expected = (x[pooled[1] > 0] for x in pooled)
    if counts[law == 0].any():
        return 0.0
    terms = np.where(observed > 0, observed * np.log(np.maximum(observed, 1) / expected), 0.0)
    return float(stats.chi2.sf(2 * terms.sum(), len(expected) - 1))


def detectable(samples, cells):
    """Return a total variation from which on any wrong law is caught with probability POWER.

    By Pinsker's inequality a law at distance t has 2·samples·KL >= 4·samples·t², the noncentrality of G.
    """
    threshold = stats.chi2.isf(LEVEL, cells - 1)
    needed = optimize.brentq(lambda x: stats.ncx2.sf(threshold, cells - 1, x) - POWER, 1e-3, 1e4)
    return float(np.sqrt(needed / (4 * samples)))


def enumerated_law(model, prompt, length, probabilities):
    """Return the law [V^length] of the next tokens after a prompt, from uncached forwards over every prefix."""
    V = model.config.vocab_size
    paths = torch.tensor(list(itertools.product(range(V), repeat=length)))
    ids = torch.cat([torch.tensor(prompt).expand(len(paths), -1), paths], 1)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[:, len(prompt) - 1 : -1]
    rows = torch.as_tensor(probabilities(logits)).double()
    rows = rows / rows.sum(-1, keepdim=True)
    return rows.gather(2, paths[:, :, None])[:, :, 0].prod(1).numpy()


def cells(tokens, vocabulary):
    """Return how often each path occurs: counts [V^length] of tokens [N, length]."""
    index = np.ravel_multi_index(tokens.T, (vocabulary,) * tokens.shape[1])
    return np.bincount(index, minlength=vocabulary ** tokens.shape[1])
