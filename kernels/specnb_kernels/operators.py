"""The operator specnb::triton_verify, into which torch.compile doesn't look, and the functions that call it."""

from __future__ import annotations

import contextlib
import warnings

import torch

from specnb_kernels import rules
from specnb_kernels.launch import STRETCH, Launch

PLANS = {"token": rules.token, "block": rules.block, "coupled": rules.coupled}
FINAL, OWN = 2, 3  # Philox purposes: the token behind the accepted drafts, and one drawn at its own position


@contextlib.contextmanager
def on(device: torch.device):
    """Make a CUDA device current; on the CPU silence NumPy, the interpreter's engine, which warns at inf - inf."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield


def launches(draft, q, p, lengths, onehot, seeds, positions, uniforms, seed, position, index, purpose, rule="token",
             *, stretch: int = 1, splits: int | None = None) -> list[Launch]:  # fmt: skip
    """Return what a verdict launches, on inputs as the operator takes them, with outputs and workspace.

    stretch makes a program's tiles larger and splits, a power of two, is how many programs share a row; neither
    changes a result.
    """
    small = (draft, lengths, onehot, seeds, positions, uniforms)
    draft, lengths, onehot, seeds, positions, uniforms = (x if x is None else x.contiguous() for x in small)
    randomness = {"seeds": seeds, "positions": positions, "uniforms": uniforms,
                  "seed": seed, "position": position, "index": index, "purpose": purpose}  # fmt: skip
    return PLANS[rule](draft, q, p, lengths, onehot, randomness, stretch=stretch, splits=splits)


def launch(*inputs, **shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run a rule's kernels once, arguments as `launches`; returns tokens, num_accepted, status."""
    return run(launches, inputs, shape)


def run(plan, inputs, shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run what plan(*inputs, **shape) launches; inputs begin with the draft and the rows of q and p, or of logits."""
    rows = inputs[2]
    with on(rows.device):
        steps = plan(*inputs, **{"stretch": STRETCH if rows.is_cpu else 1} | shape)
        for step in steps:
            step.run()
    written = steps[-1].arguments
    return written["tokens"], written["num_accepted"], written["status"]


SCHEMA = (
    "(Tensor draft, Tensor? q, Tensor p, Tensor? lengths, Tensor? onehot, Tensor? seeds, Tensor? positions, "
    "Tensor? uniforms, int seed, int position, int index, int purpose, str rule='token') -> (Tensor, Tensor, Tensor)"
)
triton_verify = torch.library.custom_op("specnb::triton_verify", launch, mutates_args=(), schema=SCHEMA)


@triton_verify.register_fake
def _(draft, q, p, lengths, onehot, seeds, positions, uniforms, seed, position, index, purpose, rule="token"):
    batch, gamma = draft.shape
    return fake_verdict(p, batch, gamma)


def fake_verdict(rows, batch, gamma):
    """Return tokens, num_accepted and status as shapes."""
    tokens = rows.new_empty((batch, gamma + 1), dtype=torch.int64)
    return tokens, rows.new_empty(batch, dtype=torch.int64), rows.new_empty(batch, dtype=torch.int32)


def split(value) -> tuple[torch.Tensor | None, int]:
    """Return a seed or position per row and 0, or None and the one of all rows."""
    return (value, 0) if isinstance(value, torch.Tensor) else (None, 0 if value is None else int(value))


def _verify(rule, purpose, draft, q, p, lengths, onehot, seed, position, uniforms):
    (seeds, seed), (positions, position) = split(seed), split(position)
    return triton_verify(draft, q, p, lengths, onehot, seeds, positions, uniforms, seed, position, 0, purpose, rule)


def verify(draft, q, p, lengths=None, onehot=None, seed=None, position=0, uniforms=None):
    """Verify a batch of drafts from probabilities, rules token and match (no q: every draft is one-hot).

    Parameters
    ----------
    draft : int64 [B, G], ids 0 .. V - 1; -1 ends a row's draft.
    q : float [B, G, Vq] or None; V = max(Vq, Vp) <= 2^20, the narrower row has zeros beyond its end.
    p : float [B, G + 1, Vp]; 16, 32 or 64 bits and any strides, as q.
    lengths : int64 [B], how many drafts count, or None for G.
    onehot : bool [B], rows whose draft is one-hot whatever q holds, or None for no row.
    seed : int (stream = row) or int64 [B] (a key per row, stream 0), 0 <= seed < 2^63; None with uniforms.
    position : int or int64 [B], absolute position of the first draft.
    uniforms : float64 [B, G + 1] in [0, 1), the last column for the final token, or None.

    Returns
    -------
    tokens int64 [B, G + 1] padded with -1, num_accepted int64 [B], status int32 [B] (the bits of drafts.py).
    """
    return _verify("token", FINAL, draft, q, p, lengths, onehot, seed, position, uniforms)


def verify_block(draft, q, p, lengths=None, onehot=None, seed=None, position=0, uniforms=None):
    """Verify by the rule block (Sun et al. 2024), which accepts more; arguments and results as `verify`."""
    return _verify("block", FINAL, draft, q, p, lengths, onehot, seed, position, uniforms)


def verify_coupled(draft, q, p, lengths=None, onehot=None, seed=None, position=0, uniforms=None):
    """Verify by the rule coupled: accept drafts while they are the target's own draws, by their positions' words.

    Arguments and results as `verify`; q and onehot are not read. There must be a seed, and no uniforms.
    """
    if seed is None or uniforms is not None:
        raise ValueError("the rule coupled shares a word with each draft; expected a seed and uniforms=None")
    return _verify("coupled", OWN, draft, None, p, lengths, None, seed, position, None)


def draw(probs, seed, position, index=0, purpose=0):
    """Draw one token per row of probs, float [B, V], with the words (position, index, purpose); int64 [B]."""
    (seeds, seed), (positions, position) = split(seed), split(position)
    draft = torch.empty(len(probs), 0, dtype=torch.int64, device=probs.device)
    return triton_verify(draft, None, probs[:, None], None, None, seeds, positions, None, seed, position, index,
                         purpose)[0][:, 0]  # fmt: skip
