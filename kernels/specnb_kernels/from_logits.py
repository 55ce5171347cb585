"""Kernel B: verdicts and probabilities from logits; the operators specnb::triton_verify_logits, _probabilities."""

from __future__ import annotations

import torch

from specnb_kernels.launch import STRETCH, THREADS, Launch
from specnb_kernels.logits import probabilities_kernel
from specnb_kernels.operators import FINAL, OWN, PLANS, fake_verdict, on, run, split
from specnb_kernels.processing import Parameters, forms

OFF = Parameters(None, None, None, None)


def launches(draft, y, z, lengths, onehot, seeds, positions, uniforms, y_parameters, z_parameters,
             seed, position, index, purpose, rule="token", *, stretch: int = 1, splits: int | None = None,
             tile_splits: int | None = None) -> list[Launch]:  # fmt: skip
    """Return what a verdict from logits launches: what forms their rows' probabilities, then the rule's own kernels.

    Arguments as operators.launches, with logits y and z for q and p; tile_splits is how many programs share a row
    before its form is known.
    """
    small = (draft, lengths, onehot, seeds, positions, uniforms)
    draft, lengths, onehot, seeds, positions, uniforms = (x if x is None else x.contiguous() for x in small)
    y_how, z_how = OFF if y is None else _parameters(y_parameters), _parameters(z_parameters)
    randomness = {"seeds": seeds, "positions": positions, "uniforms": uniforms,
                  "seed": seed, "position": position, "index": index, "purpose": purpose}  # fmt: skip
    alone = randomness if rule == "token" else None
    steps, rows = forms(draft, y, z, lengths, onehot, y_how, z_how, stretch, tile_splits, alone)
    return steps + PLANS[rule](draft, y, z, lengths, onehot, randomness, rows, stretch=stretch, splits=splits)


def _parameters(values) -> Parameters:
    return Parameters(*(x if x is None else x.contiguous() for x in values))


def launch(*inputs, **shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run a rule's kernels on logits once, arguments as `launches`; returns tokens, num_accepted, status."""
    return run(launches, inputs, shape)


SCHEMA = (
    "(Tensor draft, Tensor? y, Tensor z, Tensor? lengths, Tensor? onehot, Tensor? seeds, Tensor? positions, "
    "Tensor? uniforms, Tensor?[] y_parameters, Tensor?[] z_parameters, int seed, int position, int index, "
    "int purpose, str rule='token') -> (Tensor, Tensor, Tensor)"
)
triton_verify_logits = torch.library.custom_op("specnb::triton_verify_logits", launch, mutates_args=(), schema=SCHEMA)


@triton_verify_logits.register_fake
def _(draft, y, z, lengths, onehot, seeds, positions, uniforms, y_parameters, z_parameters, seed, position, index,
      purpose, rule="token"):  # fmt: skip
    return fake_verdict(z, *draft.shape)


def probability_launches(logits, parameters, *, stretch: int = 1, tile_splits: int | None = None) -> list[Launch]:
    """Return the launches that form probabilities of logits [B, V]: of a batch without drafts, all written down."""
    draft = torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    z = logits[:, None]
    steps, rows = forms(draft, None, z, None, None, OFF, _parameters(parameters), stretch, tile_splits)
    block = 8 * THREADS * stretch
    shape = {"logits": logits, "row": logits.stride(0), "id": logits.stride(1), "V": logits.shape[1], "BLOCK": block,
             "out": torch.empty(logits.shape, dtype=torch.float32, device=logits.device)}  # fmt: skip
    grid = (len(logits), -(-logits.shape[1] // block))
    arguments = shape | {"forms": rows["forms"], "FILTERED": rows["FILTERED"]}
    return [*steps, Launch(probabilities_kernel, grid, arguments, {"num_warps": 4, "enable_fp_fusion": False})]


@torch.library.custom_op(
    "specnb::triton_probabilities", mutates_args=(), schema="(Tensor logits, Tensor?[] parameters) -> Tensor"
)
def triton_probabilities(logits, parameters):
    """Run the kernels of `probability_launches` once."""
    with on(logits.device):
        steps = probability_launches(logits, parameters, stretch=STRETCH if logits.is_cpu else 1)
        for step in steps:
            step.run()
    return steps[-1].arguments["out"]


@triton_probabilities.register_fake
def _(logits, parameters):
    return logits.new_empty(logits.shape, dtype=torch.float32)


def probabilities(logits, temperature, top_k=None, top_p=None, min_p=None):
    """Return the processed distributions float32 [B, V] of logits float [B, V].

    temperature float64, top_k int64, top_p float64, min_p float64, each [B]; but for the temperature None is off.
    """
    return triton_probabilities(logits, [temperature, top_k, top_p, min_p])


def verify_logits(draft, y, z, y_parameters, z_parameters, lengths=None, onehot=None, seed=None, position=0,
                  uniforms=None, rule="token"):  # fmt: skip
    """Verify a batch of drafts from both models' logits; the verdict is that of their `probabilities`.

    Parameters
    ----------
    draft : int64 [B, G], ids 0 .. V - 1; -1 ends a row's draft.
    y : float [B, G, Vy], the draft's logits, or None (every draft is one-hot).
    z : float [B, G + 1, Vz], the target's; 16, 32 or 64 bits and any strides, as y. V = max(Vy, Vz) <= 2^18.
    y_parameters, z_parameters : temperature float64, top_k int64, top_p float64 and min_p float64, each [B]; None
        for one of the last three spares launches that a tensor of values that are off does not.
    lengths, onehot, seed, position, uniforms : as `operators.verify`.
    rule : "token", "block" or "coupled", which takes a seed and no uniforms.

    Returns
    -------
    tokens int64 [B, G + 1] padded with -1, num_accepted int64 [B], status int32 [B] (the bits of drafts.py).
    """
    coupled = rule == "coupled"
    if coupled and (seed is None or uniforms is not None):
        raise ValueError("the rule coupled shares a word with each draft; expected a seed and uniforms=None")
    (seeds, seed), (positions, position) = split(seed), split(position)
    y, onehot, purpose = (None, None, OWN) if coupled else (y, onehot, FINAL)
    return triton_verify_logits(draft, y, z, lengths, onehot, seeds, positions, uniforms, list(y_parameters),
                                list(z_parameters), seed, position, 0, purpose, rule)  # fmt: skip
