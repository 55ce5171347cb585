"""Launches kernel A as the custom operator specnb::triton_verify, and keeps its workspace."""

from __future__ import annotations

import contextlib
import warnings

import torch
import triton

from specnb_kernels.verify import PARTIALS, verify_kernel

WARPS = 4
THREADS = 32 * WARPS
STRETCH = 16  # how much larger a tile is in the interpreter, whose time goes by operations, not by elements
MAX_SPLITS = 64
MIN_SPLITS = 16  # fewer would make the second look at one split a large part of all reads
PROGRAMS = 4096  # enough to keep every multiprocessor of a large GPU busy

_WORKSPACES: dict[tuple, torch.Tensor] = {}


def default_splits(batch: int, tiles: int) -> int:
    """Return how many programs share a row of so many tiles: a power of two, so that the ticket may wrap around."""
    wanted = max(MIN_SPLITS, PROGRAMS // max(batch, 1))
    return min(MAX_SPLITS, triton.next_power_of_2(tiles), 1 << (wanted.bit_length() - 1))


def arrivals(rows: int, splits: int, device: torch.device) -> torch.Tensor:
    """Return the rows' arrival counters, int32 multiples of `splits` (0 when new).

    A count returns to a multiple of `splits` with every launch, so counters are kept per (device, stream, splits)
    and never reset. A captured launch gets its own, cleared by the graph: graphs captured on one stream may be
    replayed side by side. So does a launch on the CPU, which an exception can stop half way.
    """
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return torch.zeros(rows, dtype=torch.int32, device=device)
    key = (device, torch.cuda.current_stream(device).cuda_stream, splits)
    if key not in _WORKSPACES or _WORKSPACES[key].numel() < rows:
        _WORKSPACES[key] = torch.zeros(triton.next_power_of_2(rows), dtype=torch.int32, device=device)
    return _WORKSPACES[key]


def alignment(rows: torch.Tensor | None) -> int:
    """Return how many elements 16 bytes hold if every row starts on such a boundary with unit stride, else 1."""
    if rows is None:
        return 1
    per_vector = 16 // rows.element_size()
    unit = rows.stride(2) == 1 and rows.data_ptr() % 16 == 0
    return per_vector if unit and rows.stride(0) % per_vector == rows.stride(1) % per_vector == 0 else 1


def register_cap(p: torch.Tensor, q: torch.Tensor | None) -> int | None:
    """Return how many registers a thread may have.

    Found by compiling: with these no Triton from 3.6 to 3.9 spills, where ptxas, left alone, spills one or two to
    round their number down. Strided ids need more than a cap that is good for the rest.
    """
    rows = [p] if q is None else [p, q]
    if any(x.stride(2) != 1 for x in rows):
        return None
    narrow, wide = min(x.element_size() for x in rows), max(x.element_size() for x in rows)
    return 64 if narrow > 2 else 96 if wide > 4 else 80


def arguments(draft, q, p, lengths, onehot, seeds, positions, uniforms, seed, position, index, purpose,
              *, stretch: int = 1, splits: int | None = None) -> tuple[dict, tuple[int, int], dict]:  # fmt: skip
    """Return (kernel arguments, grid, compiler options) of one launch, outputs and workspace included.

    stretch makes a program's tiles larger and splits, a power of two, is how many programs share a row; neither
    changes a result.
    """
    batch, gamma = draft.shape
    if q is not None and q.shape[2] == 0:
        q = q.new_zeros(batch, gamma, 1)  # width 0 is how the kernel knows that there is no q
    q_width = 0 if q is None else q.shape[2]
    vocabulary = max(q_width, p.shape[2])
    vector = 16 // min(p.element_size(), 8 if q is None else q.element_size())
    tile = vector * THREADS * stretch  # one 16-byte load per thread, row and step, of the narrower type
    tiles = triton.cdiv(vocabulary, tile)
    splits = splits or default_splits(batch, tiles)
    new = {"dtype": torch.int64, "device": p.device}
    small = {"draft": draft, "lengths": lengths, "onehot": onehot, "seeds": seeds, "positions": positions,
             "uniforms": uniforms}  # fmt: skip
    kernel_arguments = {name: None if x is None else x.contiguous() for name, x in small.items()} | {
        "q": q, "p": p,
        "tokens": torch.empty(batch, gamma + 1, **new), "num_accepted": torch.empty(batch, **new),
        "status": torch.empty(batch, dtype=torch.int32, device=p.device),
        "partials": torch.empty(batch, PARTIALS.value, splits, **new),
        "arrivals": arrivals(batch, splits, p.device),
        "seed": seed, "position": position, "G": gamma, "V": vocabulary, "p_width": p.shape[2], "q_width": q_width,
        "p_row": p.stride(0), "p_pos": p.stride(1), "p_id": p.stride(2),
        "q_row": 0 if q is None else q.stride(0), "q_pos": 0 if q is None else q.stride(1),
        "q_id": 1 if q is None else q.stride(2),
        "splits": splits, "tiles_per_split": triton.cdiv(tiles, splits), "index": index, "purpose": purpose,
        "GAMMA_BLOCK": max(8, triton.next_power_of_2(gamma + 1)), "SPLIT_BLOCK": max(MAX_SPLITS, splits),
        "TILE": tile, "VECTOR": vector, "P_ALIGN": alignment(p), "Q_ALIGN": alignment(q),
    }  # fmt: skip
    # A fused multiply-add would round once where the contract rounds twice. One stage: the loads of a streaming
    # loop overlap across programs, and a copy through shared memory would only add to them.
    options = {"num_warps": WARPS, "num_stages": 1, "enable_fp_fusion": False, "maxnreg": register_cap(p, q)}
    return kernel_arguments, (batch, splits), options


@contextlib.contextmanager
def _on(device: torch.device):
    """Make a CUDA device current; on the CPU silence NumPy, the interpreter's engine, which warns at inf - inf."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield


def launch(*inputs, **shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the kernel once on inputs as `arguments` takes them; returns tokens, num_accepted, status."""
    p = inputs[2]
    kernel_arguments, grid, options = arguments(*inputs, **{"stretch": STRETCH if p.is_cpu else 1} | shape)
    if grid[0] > 0:
        with _on(p.device):
            verify_kernel[grid](**kernel_arguments, **options)
    return kernel_arguments["tokens"], kernel_arguments["num_accepted"], kernel_arguments["status"]


SCHEMA = (
    "(Tensor draft, Tensor? q, Tensor p, Tensor? lengths, Tensor? onehot, Tensor? seeds, Tensor? positions, "
    "Tensor? uniforms, int seed, int position, int index, int purpose) -> (Tensor, Tensor, Tensor)"
)
triton_verify = torch.library.custom_op("specnb::triton_verify", launch, mutates_args=(), schema=SCHEMA)


@triton_verify.register_fake
def _(draft, q, p, lengths, onehot, seeds, positions, uniforms, seed, position, index, purpose):
    batch, gamma = draft.shape
    tokens = p.new_empty((batch, gamma + 1), dtype=torch.int64)
    return tokens, p.new_empty(batch, dtype=torch.int64), p.new_empty(batch, dtype=torch.int32)


def _split(value) -> tuple[torch.Tensor | None, int]:
    return (value, 0) if isinstance(value, torch.Tensor) else (None, 0 if value is None else int(value))


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
    tokens int64 [B, G + 1] padded with -1, num_accepted int64 [B], status int32 [B] (the bits of verify.py).
    """
    (seeds, seed), (positions, position) = _split(seed), _split(position)
    return triton_verify(draft, q, p, lengths, onehot, seeds, positions, uniforms, seed, position, 0, 2)


def draw(probs, seed, position, index=0, purpose=0):
    """Draw one token per row of probs, float [B, V], with the words (position, index, purpose); int64 [B]."""
    (seeds, seed), (positions, position) = _split(seed), _split(position)
    draft = torch.empty(len(probs), 0, dtype=torch.int64, device=probs.device)
    return triton_verify(draft, None, probs[:, None], None, None, seeds, positions, None, seed, position, index,
                         purpose)[0][:, 0]  # fmt: skip
