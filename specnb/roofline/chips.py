"""Chips: peaks, bandwidth and memory from the vendors' sheets, and the time that work takes on them at least."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Any

import numpy as np

from specnb.errors import SpecnbError
from specnb.pair import data_path
from specnb.roofline.shapes import BF16, BYTES, Forward, ModelShape, Precision, Work, at_least


@dataclass(frozen=True)
class Chip:
    """One chip: bandwidth in bytes per second, memory in bytes, peaks in FLOP (or integer operations) per second.

    peaks: by type, dense: half of what a vendor prints with a star for sparsity. memory: None if it isn't the chip's.
    source, date: whose sheet the figures are from, and its year.
    """

    name: str
    bandwidth: float
    memory: float | None
    peaks: dict[str, float]
    source: str = ""
    date: str = ""

    @classmethod
    def named(cls, name: str) -> Chip:
        """Return a chip of data/chips.csv.

        Raises
        ------
        SpecnbError : there is none of this name; the message lists the names.

        Examples
        --------
        >>> chip = Chip.named("H100 SXM")
        >>> round(chip.ridge()), round(chip.ridge("fp8")), round(chip.crossover_batch(gamma=3))
        (295, 591, 74)
        """
        chips = {chip.name: chip for chip in cls.all()}
        if name not in chips:
            raise SpecnbError(f"there is no chip {name!r}; expected one of {', '.join(chips)}, or Chip(...)")
        return chips[name]

    @classmethod
    def all(cls) -> list[Chip]:
        """Return every chip of data/chips.csv, in its order."""
        with data_path("chips.csv").open(encoding="utf-8", newline="") as file:
            return [cls._read(row) for row in csv.DictReader(file)]

    @classmethod
    def _read(cls, row: dict[str, str]) -> Chip:
        return cls(
            name=row["name"],
            # Powers of ten as text: a product would round once more.
            bandwidth=float(row["bandwidth_tb_per_s"] + "e12"),
            memory=float(row["memory_gb"] + "e9") if row["memory_gb"] else None,
            peaks={dtype: float(row[dtype] + "e12") for dtype in BYTES if row[dtype]},
            source=row["source"],
            date=row["date"],
        )

    def peak(self, compute: str = "bf16") -> float:
        """Return the dense peak of a type, in operations per second.

        Raises
        ------
        SpecnbError : the chip has no peak for it.
        """
        if compute not in self.peaks:
            raise SpecnbError(f"{self.name} has no {compute} peak; expected one of {', '.join(self.peaks)}")
        return self.peaks[compute]

    def ridge(self, compute: str = "bf16") -> float:
        """Return peak over bandwidth: the operations per byte from which on the peak is the limit."""
        return self.peak(compute) / self.bandwidth

    def attainable(self, intensity: Any, compute: str = "bf16") -> Any:
        """Return the most operations per second at this intensity (operations per byte): the roof."""
        return np.minimum(self.peak(compute), intensity * self.bandwidth)

    def crossover_batch(self, gamma: Any, precision: Precision = BF16) -> Any:
        """Return the batch from which on the weights' matrices are limited by the peak.

        Verification does 2·B·(γ + 1) operations with each weight that it reads, so the crossover is at
        B = ridge · (bytes per weight) / (2 (γ + 1)). Native 8-bit arithmetic doubles the ridge and halves the bytes:
        the same batch. With weight-only 8 or 4 bits only the bytes shrink: half of it, a quarter.

        Parameters
        ----------
        gamma : drafts per request, at least 0: a number or an array; 0 is plain decoding.

        Examples
        --------
        >>> chip, kinds = Chip.named("H100 SXM"), (Precision(), Precision("fp8"), Precision(weights="int4"))
        >>> [round(chip.crossover_batch(3, precision)) for precision in kinds]
        [74, 74, 18]
        """
        at_least("gamma", gamma, 0)
        return self.ridge(precision.compute) * precision.weight_bytes / (2 * (gamma + 1))

    def seconds(self, forward: Forward, precision: Precision = BF16) -> Any:
        """Predict how long a forward takes at least: the sum of its parts."""
        return sum(self.parts(forward, precision).values())

    def parts(self, forward: Forward, precision: Precision = BF16) -> dict[str, Any]:
        """Predict the seconds of a forward's matrices and of its attention, each under the roof.

        They are kernels of their own: attention waits for the cache while the matrices wait for arithmetic.
        """
        works = {"matrices": forward.weights + forward.activations, "attention": forward.cache}
        return {name: self._seconds(work, precision.compute) for name, work in works.items()}

    def _seconds(self, work: Work, compute: str) -> Any:
        return np.maximum(work.flops / self.peak(compute), work.bytes / self.bandwidth)

    def verification_cost(
        self, batch: Any, gamma: Any, target: ModelShape, context: Any = 1024, precision: Precision = BF16
    ) -> Any:
        """Predict v: the time of a forward of γ + 1 tokens per request over that of one token.

        Parameters
        ----------
        batch, gamma, context : numbers or arrays that broadcast: requests, drafts and cached tokens per request.

        Returns
        -------
        From 1, where memory limits the forward, to γ + 1, where arithmetic does.

        Examples
        --------
        >>> chip, target = Chip.named("H100 SXM"), ModelShape.named("Llama-3.1-8B")
        >>> [round(float(chip.verification_cost(batch, 3, target)), 2) for batch in (1, 64, 256)]
        [1.0, 1.05, 1.7]
        """
        at_least("gamma", gamma, 0)
        verification, plain = (target.forward(batch, tokens, context, precision) for tokens in (gamma + 1, 1))
        return self.seconds(verification, precision) / self.seconds(plain, precision)
