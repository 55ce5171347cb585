"""Small heads that continue a target's hidden state: one that is applied again and again, and one per position.

A hidden state here is what the target's own LM head reads: the output of its base model at one position. A head turns
it into the states of later positions, which the same LM head reads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from specnb.decoding.arguments import check_count, check_path, kind_of
from specnb.errors import SpecnbError

Rows = Callable[[int, torch.Tensor | None], torch.Tensor]
"""logits(i, last): the logits [R, V] of draft i; last is draft i − 1, int64 [R], None for the first."""


class SequentialHead(nn.Module):
    """One module that takes a state and the token behind it to the next state, as often as there are drafts.

    The state and the token's embedding are normed, joined and projected; a gated feed-forward layer with a residual
    and a norm follow. It looks at one state alone and so has no cache to roll back.

    width: of the target's hidden states. wide: of the feed-forward layer.

    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 2.2, with this layer in place of
    a transformer block, and one module for all depths.
    """

    kind = "sequential"
    most = 2**31
    """Drafts that it can make in a round: any number."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        width, wide = check_count("width", width, least=1), check_count("wide", wide, least=1)
        self.width, self.sizes = width, {"width": width, "wide": wide}
        self.combine = nn.Linear(2 * width, width, bias=False)
        self.up = nn.Linear(width, 2 * wide, bias=False)
        self.down = nn.Linear(wide, width, bias=False)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, state: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Return the next state [..., H] from a state [..., H] and the embedding of the token behind it."""
        size = (self.width,)
        both = torch.cat([functional.rms_norm(state, size), functional.rms_norm(embedded, size)], -1)
        x = self.combine(both)
        gate, up = self.up(functional.rms_norm(x, size)).chunk(2, -1)
        return self.scale * functional.rms_norm(x + self.down(functional.silu(gate) * up), size)

    def along(self, states: torch.Tensor, embedded: torch.Tensor, depth: int) -> list[torch.Tensor]:
        """Return the states of drafts 1 … depth where the text itself is drafted, for training and evaluation.

        states, embedded: [B, L, H], the target's states and the embeddings of a text. Entry d − 1 is [B, L − d, H];
        its column i is made from the target's state at i and tokens i + 1 … i + d, as the target's at i + d is.
        """
        found = [states]
        for d in range(1, depth + 1):
            found.append(self(found[-1][:, : states.shape[1] - d], embedded[:, d:]))
        return found[1:]

    def forwards(self, drafts: int) -> int:
        """Return how often it runs for so many drafts."""
        return drafts

    def rows(self, state: torch.Tensor, token: torch.Tensor, embed: Any, read: Any, drafts: int) -> Rows:
        """Return the rows of one round, from the last state [R, H] and the token [R] behind it."""
        states = [state]

        def logits(i: int, last: torch.Tensor | None) -> torch.Tensor:
            states.append(self(states[-1], embed(token if last is None else last)))
            return read(states[-1])

        return logits


class IndependentHeads(nn.Module):
    """A head for each position, all on the target's last state: none knows what was drawn behind it.

    Head k is a linear layer with a residual: s + SiLU(W_k s + b_k).

    width: of the target's hidden states. heads: how many, and so the most drafts of a round.

    Source: Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", ICML 2024,
    section 2.1.1, with the target's LM head in place of one per head, and one path instead of a tree.
    """

    kind = "independent"

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        width, heads = check_count("width", width, least=1), check_count("heads", heads, least=1)
        self.width, self.most, self.sizes = width, heads, {"width": width, "heads": heads}
        self.lift = nn.Linear(width, heads * width)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """Return the states [..., heads, H] of the next positions from a state [..., H]."""
        lifted = functional.silu(self.lift(state)).unflatten(-1, (self.most, self.width))
        return state.unsqueeze(-2) + lifted

    def along(self, states: torch.Tensor, embedded: torch.Tensor, depth: int) -> list[torch.Tensor]:
        """Return the states of drafts 1 … depth at each position of a text: see `SequentialHead.along`."""
        found = self(states)
        return [found[:, : states.shape[1] - d, d - 1] for d in range(1, depth + 1)]

    def forwards(self, drafts: int) -> int:
        """Return how often they run for so many drafts."""
        return 1

    def rows(self, state: torch.Tensor, token: torch.Tensor, embed: Any, read: Any, drafts: int) -> Rows:
        """Return the rows of one round from the last state [R, H], made all at once."""
        every = read(self(state)[:, :drafts])
        return lambda i, last: every[:, i]


Heads = SequentialHead | IndependentHeads
KINDS: dict[str, Any] = {kind.kind: kind for kind in (SequentialHead, IndependentHeads)}


def check_heads(heads: Any) -> None:
    """Raise `SpecnbError` unless they are heads."""
    if not isinstance(heads, tuple(KINDS.values())):
        raise SpecnbError(f"heads are {kind_of(heads)}; expected SequentialHead or IndependentHeads")


def save_heads(heads: Heads, path: str | Path) -> None:
    """Write heads as a float16 safetensors file that says their kind and sizes; `SpecnbError` where it can't be."""
    check_heads(heads)
    file = check_path("path", path, "a file to write")
    tensors = {name: weight.detach().half().contiguous() for name, weight in heads.state_dict().items()}
    sizes = {name: str(size) for name, size in heads.sizes.items()}
    try:
        save_file(tensors, file, metadata={"kind": heads.kind} | sizes)
    except (OSError, SafetensorError) as error:
        raise SpecnbError(f"heads can't be written to {str(file)!r} ({error}); expected a file to write") from error


def read_heads(path: str | Path) -> Heads:
    """Return the heads of a file that `save_heads` wrote, in float32 on the CPU.

    Raises
    ------
    SpecnbError : there is no such file, or it holds something else.
    """
    try:
        with safe_open(path, "pt") as file:
            said = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 - no dict
        heads = KINDS[said.pop("kind")](**{name: int(size) for name, size in said.items()})
        heads.load_state_dict(tensors)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise SpecnbError(
            f"{path} can't be read as heads ({type(error).__name__}: {first}); expected a file by save_heads"
        ) from error
    return heads.eval()
