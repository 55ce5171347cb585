"""The inputs that catch distinct bugs, as named regimes, and what a backend answers on them.

A regime makes one batch of keyword arguments of a backend's `verify`, or any other of its verdicts, as NumPy arrays.
`disagreements` compares two implementations on a list of batches: equality of tokens, counts and status, without any
tolerance.
"""

from __future__ import annotations

import numpy as np

from specnb.arrays import to_numpy, to_torch
from specnb.backends.numpy import ACCEPTING, OWN, draw, words

VOCABULARIES = (1, 2, 3, 127, 128, 129, 255, 257, 999, 1024, 4097, 8193)
"""Around powers of two, around one tile of 1,024 ids, and not multiples of any block."""

FUNCTIONS = ("verify", "verify_block", "verify_coupled")
"""What every backend decides by arithmetic of its own; token and match are one function."""


def softmax(z):
    """Return rows of float32 masses."""
    e = np.exp(z - z.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(np.float32)


def batch(rng, B, G, V, spread=1.0):
    """Return a plain batch: q near p by `spread`, drafts from q, one key and position per request."""
    z = rng.normal(size=(B, G + 1, V)) * 2
    q = softmax(z[:, :G] + spread * rng.normal(size=(B, G, V)))
    pick = (q.cumsum(-1) < rng.random((B, G, 1)) * q.sum(-1, keepdims=True)).sum(-1)
    return {
        "draft": np.minimum(pick, V - 1).astype(np.int64),
        "q": q,
        "p": softmax(z),
        "lengths": None,
        "onehot": None,
        "seed": rng.integers(0, 2**63 - 1, B),
        "position": rng.integers(0, 2**40, B),
        "uniforms": None,
    }


def near(rng, V):
    """Drafts that mostly pass."""
    return batch(rng, 4, 4, V, 0.3)


def far(rng, V):
    """Drafts that mostly fail, one key for the batch."""
    return batch(rng, 4, 3, V, 4.0) | {"seed": 2**62 + 12345, "position": 17}


def same(rng, V):
    """Identical rows: nothing is rejected, every residual is empty."""
    b = batch(rng, 3, 4, V)
    return b | {"q": b["p"][:, :4].copy()}


def shifted(rng, V):
    """Rows that differ by rounding only: a rejection then falls back to p, or picks from a mass of 1e-8."""
    b = batch(rng, 6, 2, V)
    u = np.full((6, 3), 1 - 2.0**-53)
    return b | {"q": np.nextafter(b["p"][:, :2], np.float32(2)), "seed": None, "uniforms": u}


def sparse(rng, V):
    """Rows with many zeros, among them the drafted token's."""
    b = batch(rng, 6, 3, V)
    p, q = (np.where(rng.random(b[k].shape) < 0.6, 0, b[k]).astype(np.float32) for k in "pq")
    return b | {"p": p, "q": q}


def match(rng, V):
    """All drafts one-hot."""
    return batch(rng, 4, 3, V) | {"q": None}


def mixed(rng, V):
    """One-hot and soft drafts in one batch, ragged, some rows ended by an id −1."""
    b = batch(rng, 8, 4, V, 0.5)
    draft = np.where(rng.random((8, 4)) < 0.15, -1, b["draft"])
    return b | {"draft": draft, "onehot": rng.random(8) < 0.5, "lengths": rng.integers(0, 5, 8)}


def ragged(rng, V):
    """Rows that end early, by their length or by an id −1, with nothing but NaN behind."""
    b = batch(rng, 8, 3, V, 0.5)
    length, p, q = rng.integers(0, 4, 8), b["p"].copy(), b["q"].copy()
    columns = np.arange(4)
    p[columns > length[:, None]], q[columns[:3] >= length[:, None]] = np.nan, np.nan
    draft = np.where((columns[:3] == length[:, None]) & (np.arange(8) % 2 == 0)[:, None], -1, b["draft"])
    return b | {"p": p, "q": q, "draft": draft, "lengths": np.where(np.arange(8) % 2, length, 3)}


def foreign(rng, V):
    """Ids outside the vocabulary, on both sides and far away."""
    b = batch(rng, 8, 3, V, 0.2)
    wrong = rng.choice([-2, V, V + 1, -(2**40), 2**40], (8, 3))
    draft = np.where(rng.random((8, 3)) < 0.4, wrong, b["draft"])
    return b | {"draft": draft, "onehot": np.arange(8) % 2 == 0}


def padded(rng, V):
    """Vocabularies padded differently: q wider than p for the seed's parity, else narrower."""
    b = batch(rng, 4, 3, V + 5, 0.5)
    name = "p" if rng.random() < 0.5 else "q"
    return b | {name: b[name][..., :V].copy()}


def broken(rng, V):
    """NaN, infinities, negative values, dead rows, and whole rows far too heavy."""
    b = batch(rng, 12, 2, V, 0.5)
    p, q = b["p"], b["q"]
    for row, value in enumerate((np.nan, np.inf, -np.inf, -0.25, 2.0, 0.0)):
        p[row, rng.integers(3), rng.integers(V)] = value
        q[row, rng.integers(2), rng.integers(V)] = value
    p[6:8] = 0
    p[8], q[9], p[10] = np.nan, np.nan, 1.5
    q[11] = 0
    return b


def logits(rng, V):
    """Raw logits passed for probabilities."""
    b = batch(rng, 3, 2, V)
    return b | {"p": rng.normal(size=(3, 3, V)).astype(np.float32)}


def edges(rng, V):
    """Uniforms on the acceptance boundary, one step of the grid on either side, and outside [0, 1)."""
    b = batch(rng, 9, 2, V)
    p, q, draft = b["p"].astype(np.float64), b["q"].astype(np.float64), b["draft"]
    rows, columns = np.arange(9)[:, None], np.arange(2)
    ratio = p[rows, columns, draft] / q[rows, columns, draft]
    step = np.tile([-1.0, 0.0, 1.0], 3)[:, None] * 2.0**-53
    u = np.column_stack([np.clip(ratio + step, 0, 1 - 2.0**-53), rng.random(9)])
    u[6, 0], u[7, 2], u[8] = 0.0, 1.0, (np.nan, -1.0, 1 - 2.0**-53)
    p32 = b["p"].copy()
    p32[6, 0, draft[6, 0]] = 0.0
    return b | {"p": p32, "seed": None, "uniforms": u}


def knife(rng, V):
    """One-hot drafts in float64 whose p(x) is their own seeded uniform, or one rounding above it."""
    b = batch(rng, 8, 1, V) | {"q": None}
    u = (words(b["seed"], b["position"], [(0, ACCEPTING)], 8)[:, 0] >> np.uint64(11)) * 2.0**-53
    p = b["p"].astype(np.float64)
    p[np.arange(8), 0, b["draft"][:, 0]] = np.where(np.arange(8) % 2, np.nextafter(u, 2), u)
    return b | {"p": p}


def dyadic(rng, V):
    """Masses and uniforms in 1,024ths: the final token's threshold falls exactly between two tokens."""
    p = rng.multinomial(1024, np.full(V, 1 / V), (16, 1)) / 1024
    u = rng.integers(0, 1024, (16, 1)) / 1024
    return batch(rng, 16, 0, V) | {"p": p, "seed": None, "uniforms": u}


def hairline(rng, V):
    """float64 rows with a residual of 2^-30 on token 0 that float32 would lose."""
    p, q = np.zeros((2, 2, V + 2)), np.zeros((2, 1, V + 2))
    p[..., :3], q[..., :3] = (0.5 + 2.0**-30, 0.25, 0.25 - 2.0**-30), (0.5, 0.25, 0.25)
    u = np.array([[1 - 2.0**-53, 0.9], [0.25, 0.9]])
    draft = np.full((2, 1), 2)
    return batch(rng, 2, 1, 3) | {"draft": draft, "q": q, "p": p, "seed": None, "uniforms": u}


def wrapping(rng, V):
    """Rows that are no distributions, whose residual weights sum to exactly 2^64, or to 2^64 and a little."""
    p, q = np.zeros((2, 2, V + 5)), np.zeros((2, 1, V + 5))
    p[..., :5], q[..., :5] = (1.0, 2.5, 2.5, 2.5, 2.5), (1.9, 1.5, 1.5, 1.5, 1.5)
    p[1, 0, 4] += 0.25
    u = np.array([[0.999, 0.5], [0.999, 0.5]])
    return batch(rng, 2, 1, 3) | {"draft": np.zeros((2, 1), np.int64), "q": q, "p": p, "seed": None, "uniforms": u}


def tiny(rng, V):
    """Subnormal values on either side, in float32."""
    b = batch(rng, 4, 2, V, 0.5)
    for name in "pq":
        b[name][:2, :, :] = np.where(rng.random(V) < 0.7, np.float32(1e-41), b[name][:2])
    return b | {"seed": None, "uniforms": np.where(rng.random((4, 3)) < 0.5, 0.0, 0.5)}


def points(rng, V):
    """One-hot and soft drafts of rows that are no distributions: 0.9, 2.4 or infinitely more at drafted tokens."""
    b = batch(rng, 6, 3, V, 0.5)
    p, rows = b["p"].copy(), np.arange(6)[:, None]
    p[rows, np.arange(3), b["draft"]] += rng.choice([0.0, 0.9, 2.4, np.inf], (6, 3)).astype(np.float32)
    return b | {"p": p, "onehot": np.arange(6) % 3 > 0}


def heavy(rng, V):
    """One request alone, with a row behind its first draft that is far too heavy, be its own draft's p 0 or not."""
    b = batch(rng, 1, 2, V)
    p = b["p"].copy()
    p[0, 1] += 1
    p[0, 1, b["draft"][0, 1]] *= rng.integers(2)
    return b | {"p": p}


def brink(rng, V):
    """float64 rows and uniforms on the boundary of the block rule's last test, or one step of the grid beside it."""
    b = batch(rng, 6, 3, V)
    p, q = (b[k].astype(np.float64) for k in "pq")
    rows, a = np.arange(6), np.ones(6)
    for i in range(3):
        a = np.minimum(1, a * p[rows, i, b["draft"][:, i]] / q[rows, i, b["draft"][:, i]])
    u = rng.random((6, 4))
    u[:, 2] = np.clip(a + np.tile([-1.0, 0.0, 1.0], 2) * 2.0**-53, 0, 1 - 2.0**-53)
    return b | {"p": p, "q": q, "seed": None, "uniforms": u}


def coupled(rng, V):
    """Drafts drawn by the words of their own positions, as the drafter of rule `coupled` does; positions wrap."""
    b = batch(rng, 8, 3, V, 0.5)
    start = rng.choice([2**32, 2**40, 2**63 - 1], 8) - rng.integers(1, 5, 8)
    return b | {"position": start, "lengths": rng.integers(0, 4, 8), "draft": own_draws(b | {"position": start})}


def own_draws(b):
    """Return drafts [B, G] drawn from a batch's q by the words that rule `coupled` shares with the target's draws."""
    starts = b["position"] & 0xFFFFFFFF
    drawn = [draw(b["q"][:, i], b["seed"], starts + i, 0, OWN) for i in range(b["draft"].shape[1])]
    return np.stack(drawn, 1) if drawn else b["draft"]


def no_drafts(rng, V):
    """G = 0: one token of p."""
    return batch(rng, 5, 0, V)


def doubles(rng, V):
    """float64 rows next to float16 ones."""
    b = batch(rng, 4, 3, V)
    return b | {"p": b["p"].astype(np.float64), "q": b["q"].astype(np.float16)}


def strided(rng, V):
    """Make views with every axis transposed or stepped."""
    b = batch(rng, 4, 3, V)
    p = np.ascontiguousarray(b["p"].transpose(2, 0, 1)).transpose(1, 2, 0)
    q = np.repeat(b["q"], 2, axis=2)[..., ::2]
    return b | {"p": p, "q": q, "draft": np.repeat(b["draft"], 3, axis=1)[:, ::3]}


ALL = (near, far, same, shifted, sparse, match, mixed, ragged, foreign, padded, broken, logits, edges, knife, dyadic,
       hairline, wrapping, tiny, points, heavy, brink, coupled, no_drafts, doubles, strided)  # fmt: skip


def batches(regime, vocabularies, seed=0):
    """Return one batch of a regime per vocabulary."""
    return [regime(np.random.default_rng([seed, V]), V) for V in vocabularies]


def arguments_of(function, b):
    """Return a batch as arguments of a backend's function: rule `coupled` takes seeds in place of uniforms."""
    if function != "verify_coupled" or b["uniforms"] is None:
        return b
    return b | {"uniforms": None, "seed": np.arange(len(b["draft"])) + 2**40}


def tensors(b):
    """Return a batch with tensors for arrays."""
    return {k: to_torch(v) if isinstance(v, np.ndarray) else v for k, v in b.items()}


def answers(module, b, function="verify", **more):
    """Return (tokens, num_accepted, status) of a backend's function on a batch and more arguments, as lists."""
    b = arguments_of(function, b)
    b = b if module.__name__.endswith("numpy") else tensors(b)
    return [to_numpy(a).tolist() for a in getattr(module, function)(**b, **more)]


def disagreements(reference, candidate, cases, function="verify", **more):
    """Return, for each batch on which two backends differ, its index and both answers."""
    pairs = (tuple(answers(module, b, function, **more) for module in (reference, candidate)) for b in cases)
    return [(i, ours, theirs) for i, (ours, theirs) in enumerate(pairs) if ours != theirs]
