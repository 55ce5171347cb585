"""Predictions of the roofline: the printed numbers, counts against transformers' own models, limits, and refusals."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from specnb import roofline_plots, theory
from specnb.errors import SpecnbError
from specnb.pair import data_path
from specnb.roofline import Chip, ModelShape, Precision, Speculation, Work

H100 = Chip.named("H100 SXM")
TARGET, DRAFT = ModelShape.named("Llama-3.1-8B"), ModelShape.named("Llama-3.2-1B")
TINY = ModelShape(hidden=4, layers=2, heads=2, kv_heads=1, head_dim=3, intermediate=5, vocabulary=7)
PAIR = Speculation(H100, TARGET, DRAFT)

# A few roundings of float64.
ROUNDING = 1e-12
# Norms and biases, which shapes don't count, as a share of the parameters of a model of 0.1 billion or more.
UNCOUNTED = 1e-3


class TestPrintedNumbers:
    def test_ridge_of_the_h100(self):
        assert H100.peak() == 989.4e12
        assert H100.bandwidth == 3.35e12
        assert round(H100.ridge()) == 295
        assert round(H100.ridge("fp8")) == 591

    def test_decoding_does_one_operation_per_byte(self):
        total = TARGET.forward(1, 1, context=1024).total
        assert total.intensity == pytest.approx(1, abs=0.05)
        assert total.flops / H100.seconds(TARGET.forward(1, 1, 1024)) / H100.peak() < 0.005
        weights = TARGET.forward(1, 1, context=1024).weights
        assert weights.intensity == 1
        assert weights.intensity / H100.ridge() < 0.005

    def test_crossover_at_gamma_3(self):
        assert round(H100.crossover_batch(3)) == 74
        assert H100.crossover_batch(3, Precision("fp8")) == pytest.approx(H100.crossover_batch(3), rel=1e-4)
        assert H100.crossover_batch(3, Precision(weights="int8")) == H100.crossover_batch(3) / 2
        assert H100.crossover_batch(3, Precision(weights="int4")) == H100.crossover_batch(3) / 4

    @pytest.mark.parametrize(
        "precision", [Precision(), Precision("fp8"), Precision(weights="int8"), Precision(weights="int4")]
    )
    def test_the_crossover_is_where_the_weights_reach_the_ridge(self, precision):
        batch = H100.crossover_batch(3, precision)
        intensity = TARGET.forward(batch, 4, 0, precision).weights.intensity
        assert intensity == pytest.approx(H100.ridge(precision.compute), rel=ROUNDING)
        per_token = {Precision(): 1, Precision("fp8"): 2, Precision(weights="int8"): 2, Precision(weights="int4"): 4}
        assert intensity == pytest.approx(per_token[precision] * batch * 4, rel=ROUNDING)


class TestCounts:
    def test_a_tiny_forward_by_hand(self):
        # q 4×6, k and v 4×3 each, o 6×4, gate, up and down 4×5 each, twice; the head 4×7.
        assert TINY.linear == 2 * (24 + 12 + 12 + 24 + 3 * 20) + 28 == 292
        assert TINY.parameters == 292 + 28
        assert replace(TINY, tied=True).parameters == 292
        assert TINY.cache_size() == 2 * 2 * 1 * 3 * 2
        forward = TINY.forward(batch=3, tokens=2, context=5)
        assert forward.weights == Work(2 * 292 * 3 * 2, 292 * 2)
        entries = 2 * (10 + 7 + 7 + 10 + 3 * 9) + 4 + 7
        assert forward.activations == Work(0, entries * 6 * 2)
        # The first new token sees 6 tokens, the second 7; 2 heads of 3, twice (keys and values), 2 layers.
        assert forward.cache == Work(3 * (6 + 7) * 2 * 2 * 2 * 3 * 2, 24 * 3 * 7)
        assert forward.total == Work(3504 + 1872, 584 + 1596 + 504)

    @pytest.mark.parametrize(
        ("name", "billions"),
        [
            ("Llama-3.1-70B", 70.55),
            ("Llama-3.1-8B", 8.03),
            ("Llama-3.2-3B", 3.21),
            ("Llama-3.2-1B", 1.24),
            ("Qwen2.5-7B", 7.62),
            ("Qwen2.5-0.5B", 0.49),
            ("Mistral-7B-v0.3", 7.25),
        ],
    )
    def test_parameters_as_the_model_cards_say(self, name, billions):
        assert round(ModelShape.named(name).parameters / 1e9, 2) == billions

    def test_every_bundled_shape_is_tested(self):
        marks = [mark for mark in self.test_parameters_as_the_model_cards_say.pytestmark if mark.name == "parametrize"]
        assert {name for name, _ in marks[0].args[1]} == set(json.loads(data_path("models.json").read_text()))

    @pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "GPTNeoX", "Phi", "Starcoder2"])
    def test_parameters_are_those_of_the_model(self, kind):
        import torch
        import transformers

        sizes = {"hidden_size": 1024, "num_hidden_layers": 3, "intermediate_size": 3000, "vocab_size": 20_000}
        if kind != "GPTNeoX":
            sizes["num_key_value_heads"] = 2
        config = getattr(transformers, f"{kind}Config")(**sizes, num_attention_heads=8)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        counted = sum(weight.numel() for weight in model.parameters())
        assert ModelShape.from_config(config).parameters == pytest.approx(counted, rel=UNCOUNTED)
        assert ModelShape.from_config(config.to_dict()) == ModelShape.from_config(config)

    def test_the_bundled_pair(self):
        import torch

        import specnb

        target, _, _ = specnb.load_pair()
        shape = ModelShape.from_config(target.config)
        matrices = sum(weight.numel() for weight in target.parameters() if weight.ndim == 2)
        assert shape.parameters == matrices
        assert shape.cache_size(Precision("fp32")) == 6 * 2 * 256 * torch.float32.itemsize

    def test_grouped_queries_shrink_the_cache_and_nothing_else(self):
        grouped, each = (replace(TARGET, kv_heads=heads).forward(1, 4, 1024).cache for heads in (8, 32))
        assert each.bytes == 4 * grouped.bytes
        assert each.flops == grouped.flops

    def test_a_config_without_the_newer_fields(self):
        config = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 9}
        shape = ModelShape.from_config(config | {"vocab_size": 10, "head_dim": None})
        assert (shape.kv_heads, shape.head_dim, shape.tied, shape.gated) == (2, 4, False, True)


class TestVerificationCost:
    def test_no_draft_costs_nothing(self):
        assert H100.verification_cost(64, 0, TARGET) == 1

    def test_limits(self):
        """Where the weights are all that is moved v is 1; where arithmetic limits everything it is γ + 1."""
        wide = replace(TARGET, layers=1, heads=1, kv_heads=1, vocabulary=2**18)
        assert H100.verification_cost(1, 4, TARGET, 0) == pytest.approx(1, abs=0.002)
        assert H100.verification_cost(4096, 4, wide, 0) == pytest.approx(5, abs=0.02)

    def test_context_keeps_v_low_at_large_batches(self):
        costs = [H100.verification_cost(256, 3, TARGET, context) for context in (0, 1024, 32768)]
        assert [round(float(cost), 2) for cost in costs] == [3.17, 1.70, 1.03]

    def test_arrays_are_elementwise(self):
        batches, gammas = np.array([1, 64, 256]), np.array([[1], [3]])
        costs = H100.verification_cost(batches, gammas, TARGET)
        assert costs.shape == (2, 3)
        for i, gamma in enumerate((1, 3)):
            for j, batch in enumerate((1, 64, 256)):
                assert costs[i, j] == H100.verification_cost(batch, gamma, TARGET)

    def test_it_grows_with_gamma_and_batch(self):
        batches, gammas = 2 ** np.arange(9), np.arange(9)[:, None]
        costs = H100.verification_cost(batches, gammas, TARGET)
        assert (np.diff(costs, axis=0) > 0).all()
        assert (np.diff(costs[1:], axis=1) > 0).all()
        assert (costs <= gammas + 1 + ROUNDING).all()

    def test_seconds_are_the_slower_of_each_part(self):
        """On this chip the tiny matrices wait for memory and its attention for arithmetic; the sum is neither alone."""
        chip = Chip("made up", bandwidth=10, memory=None, peaks={"bf16": 20})
        assert chip.seconds(TINY.forward(batch=3, tokens=2, context=5)) == (584 + 1596) / 10 + 1872 / 20

    def test_the_roof(self):
        assert H100.attainable(1) == H100.bandwidth
        assert H100.attainable(np.array([1e3, H100.ridge()])).tolist() == [H100.peak(), H100.peak()]


class TestSpeculation:
    def test_cost_of_a_draft_is_near_the_ratio_of_the_weights(self):
        assert PAIR.draft_cost(1) == pytest.approx(DRAFT.linear / TARGET.linear, rel=0.01)

    def test_speedup_is_the_theory_s(self):
        c, v = PAIR.draft_cost(8), PAIR.verification_cost(8, 4)
        assert PAIR.speedup(0.8, 8, 4) == pytest.approx((1 - 0.8**5) / 0.2 / (4 * c + v), rel=ROUNDING)
        assert PAIR.speedup(0.8, 8, 4) == theory.speedup(0.8, 4, c, v)

    def test_best_gamma_is_the_best_of_all(self):
        batches = np.array([1, 64, 512])
        gammas, speedups = PAIR.best_gamma(0.8, batches, max_gamma=9)
        for batch, gamma, speedup in zip(batches, gammas, speedups, strict=True):
            every = [1.0, *(float(PAIR.speedup(0.8, batch, g)) for g in range(1, 10))]
            assert speedup == max(every)
            assert gamma == every.index(max(every))

    def test_with_v_of_1_it_is_the_theory_s_best_gamma(self):
        gamma, _ = PAIR.best_gamma(0.8, 1, max_gamma=16)
        assert gamma == theory.optimal_gamma(0.8, PAIR.draft_cost(1))

    def test_a_hopeless_draft_isn_t_used(self):
        assert PAIR.best_gamma(0.05, 1) == (0, 1.0)
        assert PAIR.best_gamma(0.9, 1, max_gamma=0) == (0, 1.0)

    def test_the_step_has_every_term_and_the_draft_gamma_times(self):
        step = PAIR.step(8, 3)
        assert list(step) == ["weights", "activations", "cache", "draft"]
        one = DRAFT.forward(8, 1, 1024).total
        assert step["draft"] == Work(3 * one.flops, 3 * one.bytes)
        assert step["weights"] == TARGET.forward(8, 4, 1024).weights
        assert PAIR.step(8, 0)["draft"] == Work(0, 0)


class TestMemory:
    def test_budget_by_hand(self):
        memory = Speculation(H100, TINY, TINY, context=10, precision=Precision(weights="int4")).memory(3, 2)
        assert memory == {
            "target weights": 160, "draft weights": 160, "target cache": 24 * 3 * 13, "draft cache": 24 * 3 * 13,
        }  # fmt: skip

    def test_largest_batch_fits_and_one_more_does_not(self):
        batch = PAIR.largest_batch(gamma=4)
        # 72 GB less 18.53 GB of weights, over 1029 tokens of 131,072 and 32,768 bytes.
        assert batch == int((72e9 - 2 * (TARGET.parameters + DRAFT.parameters)) / (1029 * 163_840)) == 317
        assert PAIR.fits(batch, 4)
        assert not PAIR.fits(batch + 1, 4)

    def test_a_target_that_is_too_large(self):
        large = replace(PAIR, target=ModelShape.named("Llama-3.1-70B"))
        assert large.largest_batch(4) == 0
        assert not large.fits(1, 4)
        assert replace(large, chip=Chip.named("H200"), precision=Precision("fp8")).largest_batch(4) > 0

    def test_contexts_may_be_an_array(self):
        batches = replace(PAIR, context=np.array([1024, 32768])).largest_batch(4)
        assert batches.tolist() == [317, replace(PAIR, context=32768).largest_batch(4)]


class TestTable:
    def test_the_chips(self):
        names = ["H100 SXM", "H100 PCIe", "H200", "B200", "A100", "L40S", "MI300X", "RTX 4090", "Xeon 8480+"]
        assert [chip.name for chip in Chip.all()] == names

    def test_every_figure_has_a_source_and_a_year(self):
        for chip in Chip.all():
            assert chip.source
            assert 2020 <= int(chip.date) <= 2026

    def test_peaks_are_dense(self):
        """A peak of narrower numbers is at least that of wider ones; one printed with sparsity would be too high."""
        sparse = {"H100 SXM": 1979e12, "H200": 1979e12, "A100": 624e12, "MI300X": 2614.9e12, "B200": 4500e12}
        for name, peak in sparse.items():
            assert Chip.named(name).peak() == pytest.approx(peak / 2, rel=1e-3)
        for chip in Chip.all():
            assert chip.peaks["fp32"] < chip.peaks["bf16"] < chip.peaks["int8"]
            assert chip.peaks.get("fp16", chip.peaks["bf16"]) == chip.peaks["bf16"]

    def test_the_cpu_s_peaks_are_cores_times_clock_times_operations(self):
        cpu = Chip.named("Xeon 8480+")
        assert cpu.peaks == {
            dtype: pytest.approx(56 * 2e9 * operations, rel=1e-3)
            for dtype, operations in {"fp32": 64, "bf16": 1024, "int8": 2048}.items()
        }
        assert cpu.bandwidth == pytest.approx(8 * 4800e6 * 8)

    def test_columns_are_all_read(self):
        with data_path("chips.csv").open(encoding="utf-8", newline="") as file:
            columns = csv.DictReader(file).fieldnames
        peaks = ["fp32", "fp16", "bf16", "fp8", "int8", "int4", "fp4"]
        assert columns == ["name", "bandwidth_tb_per_s", "memory_gb", *peaks, "source", "date", "note"]


class TestPictures:
    ROOF = roofline_plots.roof_data(H100, TARGET, gammas=[0, 3], batches=[1, 256])
    COSTS = roofline_plots.verification_cost_data(H100, TARGET, 3, batches=[1, 256], contexts=[0, 1024])
    SPEEDUPS = roofline_plots.speedup_data(PAIR, alphas=[0.6, 0.9], batches=[1, 256], contexts=[1024])

    def test_data(self):
        assert (self.ROOF["rate"] <= H100.attainable(self.ROOF["intensity"]) * (1 + ROUNDING)).all()
        assert self.ROOF["intensity"].tolist() == [
            TARGET.forward(batch, tokens, 1024).total.intensity for tokens in (1, 4) for batch in (1, 256)
        ]
        assert self.COSTS["v"].round(2).tolist() == [1.00, 3.17, 1.00, 1.70]
        gammas, speedups = PAIR.best_gamma(0.9, np.array([1, 256]))
        assert self.SPEEDUPS.query("alpha == 0.9")["gamma"].tolist() == gammas.tolist()
        assert self.SPEEDUPS.query("alpha == 0.9")["speedup"].tolist() == speedups.tolist()

    def test_axes_carry_what_they_measure_and_titles_the_answer(self):
        figures = [
            roofline_plots.roof(H100, self.ROOF),
            roofline_plots.verification_cost(self.COSTS),
            roofline_plots.best_speedup(self.SPEEDUPS),
        ]
        assert plt.get_fignums() == []
        assert [(f.axes[0].get_xlabel(), f.axes[0].get_ylabel()) for f in figures] == [
            ("intensity (FLOP per byte)", "rate (TFLOP/s)"),
            ("batch (requests decoded together)", "predicted v (plain forwards)"),
            ("batch (requests decoded together)", "predicted speedup"),
        ]
        assert [f.axes[0].get_title(loc="left") for f in figures] == [
            "Decoding at batch 1 reaches 0.35 % of the H100 SXM's peak",
            "A forward of 4 tokens costs 1.0 plain ones at batch 1, 1.7 to 3.2 at 256",
            "Circles: the best γ. The best speedup falls from 2.6 at batch 1 to 1.4 at 256",
        ]

    def test_lines_differ_without_colour(self):
        lines = roofline_plots.best_speedup(self.SPEEDUPS).axes[0].get_lines()
        assert len({line.get_linestyle() for line in lines}) == len(lines) == 3


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: Chip.named("H100"), "there is no chip 'H100'; expected one of H100 SXM, H100 PCIe, H200, .*RTX 4090"),
        (lambda: ModelShape.named("Llama"), "there is no shape 'Llama'; expected one of Llama-3.1-70B, "),
        (lambda: Chip.named("A100").ridge("fp8"), "A100 has no fp8 peak; expected one of fp32, fp16, bf16, int8, int4"),
        (lambda: H100.verification_cost(1, 3, TARGET, 0, Precision("int4")), "H100 SXM has no int4 peak"),
        (lambda: Precision("float16"), "dtype is 'float16'; expected one of fp32, fp16"),
        (lambda: Precision(weights="nf4"), "dtype is 'nf4'"),
        (lambda: H100.crossover_batch(-1), "gamma is -1; expected finite numbers >= 0"),
        (lambda: H100.verification_cost(0, 3, TARGET), "batch is 0; expected finite numbers >= 1"),
        (lambda: H100.verification_cost(np.array([1, 0]), 3, TARGET), r"batch is array\(\[1, 0\]\)"),
        (lambda: H100.verification_cost(1, 3, TARGET, -1), "context is -1"),
        (lambda: H100.verification_cost(float("nan"), 3, TARGET), "batch is nan"),
        (lambda: H100.verification_cost("1", 3, TARGET), "batch is '1'"),
        (lambda: PAIR.memory(0, 4), "batch is 0"),
        (lambda: PAIR.fits(1, 4, usable=1.5), "usable is 1.5; expected a share"),
        (lambda: replace(PAIR, chip=Chip.named("Xeon 8480+")).largest_batch(4), "Xeon 8480.* has no memory of its own"),
        (lambda: ModelShape.from_config({"hidden_size": 8}), "the configuration has no num_attention_heads"),
        (lambda: ModelShape.from_config({"num_local_experts": 8}), "num_local_experts = 8; expected a dense decoder"),
        (lambda: replace(TINY, layers=0), "layers is 0; expected an integer of at least 1"),
        (lambda: replace(TINY, hidden=[4, 8]), r"hidden is \[4, 8\]; expected an integer"),
        (lambda: replace(TINY, kv_heads=3), "2 heads don't share 3 kv_heads"),
    ],
)
def test_refusals_say_what_came_and_what_is_expected(ask, sentence):
    with pytest.raises(SpecnbError, match=sentence):
        ask()
