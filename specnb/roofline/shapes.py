"""How many operations a forward does and how many bytes it moves, from the shape of the model alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specnb.errors import SpecnbError
from specnb.pair import data_path

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "int4": 0.5, "fp4": 0.5}
"""Bytes per number; the scales of a quantized format, a few per cent, aren't counted."""
UNGATED = frozenset({"gpt_neox", "nemotron", "persimmon", "phi", "starcoder2"})
"""Values of `model_type` whose MLP is two matrices; it is three (gate, up, down) everywhere else."""
SPARSE = ("num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank")
"""Fields of models that these formulas don't fit: mixtures of experts, and compressed caches."""


@dataclass(frozen=True)
class Precision:
    """The types of a forward's arithmetic, its weights and its KV cache; by default all are one.

    `Precision("fp8")` is native 8-bit: arithmetic and bytes. `Precision(weights="int8")` is weight-only: 8-bit
    weights are read and then multiplied in bfloat16.
    """

    compute: str = "bf16"
    weights: str | None = None
    cache: str | None = None

    def __post_init__(self) -> None:
        for dtype in (self.compute, self.weights, self.cache):
            if dtype is not None and dtype not in BYTES:
                raise SpecnbError(f"dtype is {dtype!r}; expected one of {', '.join(BYTES)}")

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of one weight."""
        return BYTES[self.weights or self.compute]

    @property
    def cache_bytes(self) -> float:
        """Return the bytes of one number of the KV cache."""
        return BYTES[self.cache or self.compute]

    @property
    def activation_bytes(self) -> float:
        """Return the bytes of one activation."""
        return BYTES[self.compute]


BF16 = Precision()


@dataclass(frozen=True)
class Work:
    """Operations, a multiplication and an addition being two, and bytes moved: numbers or arrays."""

    flops: Any
    bytes: Any

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __rmul__(self, times: Any) -> Work:
        return Work(times * self.flops, times * self.bytes)

    @property
    def intensity(self) -> Any:
        """Return operations per byte."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class Forward:
    """The work of one forward by its terms.

    weights: every matrix is read once and multiplied with every token. activations: what enters and leaves the
    matrices. cache: attention, which reads the keys and values of each request, and writes the new ones.
    """

    weights: Work
    activations: Work
    cache: Work

    @property
    def total(self) -> Work:
        """Return the sum of the terms."""
        return self.weights + self.activations + self.cache


@dataclass(frozen=True)
class ModelShape:
    """The shape of a dense decoder with grouped-query attention over the whole context.

    Embedded tokens, norms, biases and rotations move less than 0.1 % of the bytes and aren't counted.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    gated: bool = True

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocabulary"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SpecnbError(f"{name} is {value!r}; expected an integer of at least 1")
        if self.heads % self.kv_heads:
            raise SpecnbError(f"{self.heads} heads don't share {self.kv_heads} kv_heads; expected a multiple")

    @classmethod
    def from_config(cls, config: Any) -> ModelShape:
        """Read the shape from a configuration of transformers.

        Parameters
        ----------
        config : an object with the fields of `LlamaConfig`, or a dict of them as in config.json. Without
            num_key_value_heads each head has its own keys; without head_dim the heads share the hidden size.

        Raises
        ------
        SpecnbError : a field is missing, or the model is no dense decoder.

        Examples
        --------
        >>> from transformers import MistralConfig
        >>> ModelShape.from_config(MistralConfig(vocab_size=32768)) == ModelShape.named("Mistral-7B-v0.3")
        True
        """
        field = config.get if isinstance(config, Mapping) else lambda name: getattr(config, name, None)
        sparse = [name for name in SPARSE if field(name)]
        if sparse:
            raise SpecnbError(f"the configuration has {sparse[0]} = {field(sparse[0])!r}; expected a dense decoder")
        hidden, heads = _needed(field, "hidden_size"), _needed(field, "num_attention_heads")
        return cls(
            hidden=hidden,
            layers=_needed(field, "num_hidden_layers"),
            heads=heads,
            kv_heads=field("num_key_value_heads") or heads,
            head_dim=field("head_dim") or hidden // heads,
            intermediate=_needed(field, "intermediate_size"),
            vocabulary=_needed(field, "vocab_size"),
            tied=bool(field("tie_word_embeddings")),
            gated=field("model_type") not in UNGATED,
        )

    @classmethod
    def named(cls, name: str) -> ModelShape:
        """Return a shape that travels with the package.

        Raises
        ------
        SpecnbError : there is none of this name; the message lists the names.

        Examples
        --------
        >>> f"{ModelShape.named('Llama-3.1-8B').parameters / 1e9:.2f} billion"
        '8.03 billion'
        """
        configs = _configs()
        if name not in configs:
            raise SpecnbError(f"there is no shape {name!r}; expected one of {', '.join(configs)}, or from_config")
        return cls.from_config(configs[name])

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the shapes that travel with the package.

        Examples
        --------
        >>> "Llama-3.1-8B" in ModelShape.names()
        True
        """
        return list(_configs())

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """Return inputs and outputs of every matrix of one layer: q, k, v, o and the MLP."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = [(self.hidden, queries), (self.hidden, keys), (self.hidden, keys), (queries, self.hidden)]
        up = [(self.hidden, self.intermediate)] * (2 if self.gated else 1)
        return [*attention, *up, (self.intermediate, self.hidden)]

    @property
    def linear(self) -> int:
        """Return the weights that every forward reads: those of all layers and of the head."""
        return self.layers * sum(n * m for n, m in self.matrices) + self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        """Return the weights that lie in memory: `linear`, and the embedding unless it is the head."""
        return self.linear + (0 if self.tied else self.hidden * self.vocabulary)

    def cache_size(self, precision: Precision = BF16) -> float:
        """Return the bytes of KV cache that a token takes in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * precision.cache_bytes

    def forward(self, batch: Any, tokens: Any, context: Any, precision: Precision = BF16) -> Forward:
        """Count the work of a forward.

        Parameters
        ----------
        batch : requests, at least 1. batch, tokens and context may be arrays that broadcast.
        tokens : new tokens per request, at least 1: 1 in decoding, γ + 1 in verification.
        context : tokens per request already in the cache, at least 0.

        Examples
        --------
        Decoding one request does about one operation per byte, in bfloat16, whatever the model:

        >>> round(ModelShape.named("Llama-3.1-8B").forward(1, 1, context=1024).total.intensity, 2)
        1.03
        """
        for name, value, least in (("batch", batch, 1), ("tokens", tokens, 1), ("context", context, 0)):
            at_least(name, value, least)
        fed = batch * tokens
        moved = self.layers * sum(n + m for n, m in self.matrices) + self.hidden + self.vocabulary
        # New token i of a request sees the context and the new tokens up to itself: one product with the keys, one
        # with the values, for every head. The keys and values are read once for all new tokens and heads that share.
        seen = batch * (tokens * context + tokens * (tokens + 1) / 2)
        return Forward(
            weights=Work(2 * self.linear * fed, self.linear * precision.weight_bytes),
            activations=Work(0, moved * fed * precision.activation_bytes),
            cache=Work(
                4 * self.layers * self.heads * self.head_dim * seen,
                self.cache_size(precision) * batch * (context + tokens),
            ),
        )


def _configs() -> dict[str, Any]:
    return json.loads(data_path("models.json").read_text(encoding="utf-8"))


def at_least(name: str, value: Any, least: float) -> None:
    """Raise unless a number, or every entry of an array, is finite and at least so much."""
    entries = np.asarray(value)
    if entries.dtype.kind not in "iuf" or not (np.isfinite(entries) & (entries >= least)).all():
        raise SpecnbError(f"{name} is {value!r}; expected finite numbers >= {least:g}")


def _needed(field: Any, name: str) -> int:
    value = field(name)
    if value is None:
        raise SpecnbError(f"the configuration has no {name}; expected the fields of a decoder as LlamaConfig has them")
    return value
