"""The GPU script's control flow, walked through in Triton's interpreter; a closed gate; a clock that has run out."""

from __future__ import annotations

import csv
import json
import os

import pytest
import torch

pytest.importorskip("triton")
from specnb_kernels import bench, bench_gate
from specnb_kernels.bench_inputs import Size
from specnb_kernels.bench_timing import predicted, quantiles

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="a dry run is interpreted"),
]


def test_a_dry_run_walks_through_every_section(tmp_path, capsys):
    assert bench.main(["--dry-run", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "kernels_dry_run.json").read_text(encoding="utf-8"))
    assert found["device"] == "CPU, interpreted"
    assert found["gate"] == {"equality": "every case", "soak": "every replay", "sanitizer": "dry run", "failed": []}
    assert found["skipped for time"] == []
    with (tmp_path / "kernels_dry_run.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    ways = {line["way"]: line for line in lines}
    assert set(ways) == {"specnb kernels", "specnb torch, eager", "transformers, row loop", "FlashInfer, chain",
                         "vLLM, rejection sampler"}  # fmt: skip
    for name in ("specnb kernels", "specnb torch, eager", "transformers, row loop"):
        assert {(line["source"], line["outcome"], line["buffers"]) for line in lines if line["way"] == name} == {
            (source, outcome, buffers) for source in ("logits", "probabilities") for outcome in ("mixed", "rejected")
            for buffers in ("cold", "hot")
        }  # fmt: skip
        assert all(float(line["p20_us"]) <= float(line["median_us"]) for line in lines if line["way"] == name)
    assert ways["FlashInfer, chain"]["note"].startswith("ModuleNotFoundError")
    assert "a copy moves" in capsys.readouterr().out


def test_a_wrong_bit_closes_the_gate(tmp_path, monkeypatch):
    """No time is told then, and the status is 1."""
    decide = bench_gate.decide

    def wrong(source, b, *more):
        tokens, n, status = decide(source, b, *more)
        return tokens.clone().index_put_((torch.tensor(0), torch.tensor(0)), tokens[0, 0] + 1), n, status

    monkeypatch.setattr(bench_gate, "decide", wrong)
    for other in ("adversarial", "huge_strides"):
        monkeypatch.setattr(bench_gate, other, lambda *_, **__: {})
    assert bench.main(["--dry-run", "--out", str(tmp_path)]) == 1
    assert not (tmp_path / "kernels_dry_run.csv").exists()
    failed = json.loads((tmp_path / "kernels_dry_run.json").read_text(encoding="utf-8"))["gate"]["failed"]
    assert "random logits 5, rule token" in failed
    assert "filters" in failed


def test_what_finds_no_time_is_told():
    size = Size(1, 1, 9, "probabilities", "mixed")
    shared = {"device": "none", "cache": 0, "copy_bandwidth": 1.0}
    lines = list(bench.latencies(size, torch.device("cpu"), None, shared, True, lambda: -1.0))
    assert [line["note"] for line in lines] == ["no time left"]


def test_sizes_and_predictions():
    sizes = list(bench.sizes(False))
    assert len(sizes) == 3 * 4 * 2 * 2
    assert sizes[0] == Size(1, 4, 128256, "logits", "mixed")
    # The model that kernels/README.md tells, in microseconds.
    told = {("probabilities", 1): 5.4, ("probabilities", 256): 96, ("logits", 1): 8.9, ("logits", 64): 70}
    for (source, batch), microseconds in told.items():
        assert predicted(Size(batch, 4, 128256, source, "rejected")) == pytest.approx(microseconds, rel=0.08)
    assert quantiles([3.0, 1.0, 2.0, 5.0, 4.0])[:3] == (3.0, 2.0, 5.0)
