"""Measured acceptance is decoding's own, times add up on a clock that the test moves, and Ctrl-C loses nothing."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from tiny_models import ScriptedDrafter, tiny

from specnb import generate, measure, measure_plots, plots, rules, theory
from specnb.decoding.bare import Bare
from specnb.decoding.run import Run
from specnb.drafters import ModelDrafter
from specnb.errors import SpecnbError
from specnb.measure import Acceptance, Measurement, speeds, timing
from specnb.measure.reports import STAGES
from specnb.pair import data_path
from specnb.sampling import Sampling

PROMPTS = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
ROUNDING = 1e-5
"""Above float32's: the draft that is the target has an exact acceptance of 1 − 1e-7."""
DRAFT, WIDER, LOOP = 0.2, 0.1, 0.3
"""In plain target forwards: a draft forward, each further token of a target forward, and what a verdict takes."""
SECONDS = 2.0
"""What a plain target forward takes on the test's clock."""


class Clock:
    """A clock that stands still unless it is moved; `stop_at` interrupts instead, as Ctrl-C does."""

    def __init__(self):
        self.time, self.moves, self.stop_at, self.unit = 0.0, 0, None, SECONDS

    def __call__(self):
        return self.time

    def move(self, forwards):
        """Let the time of so many plain target forwards pass."""
        self.moves += 1
        if self.moves == self.stop_at:
            raise KeyboardInterrupt
        self.time += forwards * self.unit


@pytest.fixture
def clock(monkeypatch):
    """Put a clock in the place of the real one, which each verdict moves."""
    clock, judge = Clock(), Run._judge

    def slowly(self, *arguments):
        clock.move(LOOP)
        return judge(self, *arguments)

    monkeypatch.setattr(timing, "clock", clock)
    monkeypatch.setattr(Run, "_judge", slowly)
    return clock


def models(clock, draft_seed=0):
    """Return a target and a draft whose forwards take time by their width."""
    target, draft = tiny(), tiny(seed=draft_seed)

    def width(kwargs, output):
        return kwargs["input_ids"].shape[1]

    hook = {"with_kwargs": True}
    target.register_forward_hook(lambda m, a, k, o: clock.move(1 + WIDER * (width(k, o) - 1)), **hook)
    draft.register_forward_hook(lambda m, a, k, o: clock.move(DRAFT), **hook)
    return target, draft


def speed(target, drafter, **changes):
    options = {"max_new_tokens": 20, "gamma": 4, "repeats": 2, "forwards": 2, "progress": False} | changes
    return measure.speed(target, drafter, PROMPTS, **options)


def costs(target, drafter, **changes):
    return measure.costs(target, drafter, **({"context": 64, "progress": False} | changes))


OPTIONS = {"gamma": 3, "max_new_tokens": 25, "seed": 5}


class TestAcceptance:
    def test_it_is_what_decoding_counted(self):
        target, drafter = tiny(), ModelDrafter(tiny(seed=1))
        found = measure.acceptance(target, drafter, PROMPTS, progress=False, **OPTIONS)
        run = generate(target, drafter, PROMPTS, eos_token_id=None, record=True, **OPTIONS)
        assert found.alpha.tolist() == run.stats.acceptance.tolist()
        assert found.exact.tolist() == run.stats.expected_acceptance.tolist()
        assert found.tokens_per_round == run.stats.tokens_per_round
        frame = found.to_frame()
        assert frame["judged"].tolist() == run.stats.reached.sum(0).tolist()
        low, high = plots.wilson(frame["accepted"], frame["judged"])
        assert abs(frame["low"] - low).max() < ROUNDING
        assert abs(frame["high"] - high).max() < ROUNDING
        assert found.requests()["emitted"].tolist() == [25, 25, 25]
        assert found.requests()["accepted"].sum() == frame["accepted"].sum()

    def test_scripted_drafts_are_accepted_as_scripted(self):
        found = measure.acceptance(tiny(), ScriptedDrafter([0, 2, 3], 12), PROMPTS, progress=False, **OPTIONS)
        assert found.by_request.tolist() == [0, 2 / 3, 1]
        assert found.dispersion > 2
        assert found.judged[0, 1:].sum() == 0
        assert found.pooled == found.accepted.sum() / found.judged.sum()

    def test_rules_without_a_known_chance_are_measured(self):
        found = measure.acceptance(tiny(), ModelDrafter(tiny(seed=1)), PROMPTS, rule="block", progress=False, **OPTIONS)
        assert np.isnan(found.exact).all()
        assert found.profile.tolist() == np.nan_to_num(found.alpha).tolist()
        lossy = measure.acceptance(
            tiny(), ModelDrafter(tiny(seed=1)), PROMPTS, rule=rules.lenient(0.5), progress=False, **OPTIONS
        )
        assert "lenient" in repr(lossy)

    def test_what_was_never_judged_is_nan_and_counts_as_zero(self):
        nothing = Acceptance(*np.zeros((2, 1, 2), int), np.zeros((1, 2)), np.array([3]), np.array([3]))
        assert np.isnan([*nothing.alpha, *nothing.exact, nothing.pooled, nothing.dispersion]).all()
        assert np.isnan(nothing.interval()).all()
        assert nothing.profile.tolist() == [0, 0]

    def test_an_interrupted_run_keeps_what_was_judged(self):
        drafter = ScriptedDrafter([1, 1, 1], 12, interrupt_at=3)
        found = measure.acceptance(tiny(), drafter, PROMPTS, progress=False, **OPTIONS)
        assert found.interrupted
        assert found.rounds.tolist() == [3, 3, 3]

    def test_dispersion_is_one_if_requests_are_alike(self):
        """Binomial counts of one acceptance: χ² per degree of freedom is 1, give or take √(2/999) times 4."""
        judged = np.full((1000, 1), 50)
        accepted = np.random.default_rng(0).binomial(judged, 0.7)
        found = Acceptance(judged, accepted, None, judged[:, 0], judged[:, 0])
        assert found.dispersion == pytest.approx(1, abs=4 * (2 / 999) ** 0.5)


class TestCosts:
    def test_c_and_v_are_ratios_to_a_bare_forward(self, clock):
        target, draft = models(clock)
        found = costs(target, ModelDrafter(draft), gammas=[4, 1], batches=[1, 3], repeats=3, forwards=2)
        assert found.c(3) == pytest.approx(DRAFT)
        assert [found.v(1, gamma) for gamma in (1, 4)] == pytest.approx([1 + WIDER, 1 + 4 * WIDER])
        frame = found.to_frame()
        assert frame["quantity"].tolist() == ["c", "v", "v"] * 2
        assert frame["value"].tolist() == pytest.approx([DRAFT, 1 + WIDER, 1 + 4 * WIDER] * 2)
        assert frame[["low", "high"]].to_numpy() == pytest.approx(frame[["value"]].to_numpy().repeat(2, axis=1))

    def test_a_timed_forward_leaves_the_cache_as_it_was(self):
        bare = Bare(tiny(), 2, 3, context=5)
        before = bare.cache.get_seq_length()
        bare.seconds()
        assert bare.cache.get_seq_length() == before == 5

    def test_between_the_batches_seconds_are_linear(self):
        one = np.array([[1.0, 3.0]])
        found = measure.Costs((1, 5), (2,), 8, one, one, one[..., None])
        assert [found.seconds("plain", rows)[0] for rows in (1, 3, 5)] == [1, 2, 3]
        assert found.seconds("verification", 2, 2).tolist() == [1.5]

    def test_a_drafter_without_a_model_has_no_c(self, clock):
        found = costs(models(clock)[0], None, gammas=[2], repeats=1, forwards=1)
        assert np.isnan(found.c())
        assert found.v(gamma=2) == pytest.approx(1 + 2 * WIDER)

    def test_complete_repeats_survive_an_interruption(self, clock):
        target, draft = models(clock)
        clock.stop_at = 2 * 3 + 2 * 3 + 2  # three prompts with a first forward each, two ticks of three, and then
        found = costs(target, draft, gammas=[4], repeats=9, forwards=1)
        assert found.interrupted
        assert len(found.plain) == 2
        assert found.c() == pytest.approx(DRAFT)

    def test_nothing_measured_is_nan(self, clock):
        clock.stop_at = 1
        found = costs(models(clock)[0], None)
        assert found.interrupted
        assert np.isnan([found.c(), found.v()]).all()
        assert found.to_frame()["value"].isna().all()


class TestSpeed:
    @pytest.mark.parametrize("batch", [1, 3])
    def test_where_drafts_are_all_kept_the_prediction_is_exact(self, clock, batch):
        target, draft = models(clock)
        found = speed(target, ModelDrafter(draft), batch=batch)
        assert (found.c, found.v) == pytest.approx((DRAFT, 1 + 4 * WIDER))
        assert found.overhead == pytest.approx((LOOP, LOOP))
        assert found.acceptance.pooled == 1
        step, prompt = 4 * DRAFT + found.v + LOOP, 2 * WIDER  # a prompt of 3 tokens
        bare, in_all = 5 / (found.v + 4 * DRAFT), (20 * (1 + LOOP) + prompt) / (4 * step + prompt)
        expected = [5 / (1 + 4 * DRAFT), bare, bare, bare, in_all, in_all, in_all, in_all]
        assert found.stages[0].tolist() == pytest.approx(expected, rel=ROUNDING)
        assert found.error == pytest.approx(0, abs=ROUNDING)

    def test_what_is_left_of_a_poor_draft_is_explained(self, clock):
        target, draft = models(clock, draft_seed=1)
        found = speed(target, ModelDrafter(draft), max_new_tokens=60, repeats=4)
        table = found.explained()
        assert table["with"].tolist() == list(STAGES)
        assert table["speedup"].iloc[-1] == found.achieved
        multiplied = table["speedup"].iloc[0] * table["factor"].iloc[1:].cumprod()
        assert multiplied.tolist() == pytest.approx(table["speedup"].iloc[1:].tolist())
        assert found.error == pytest.approx(found.predicted / found.achieved - 1)
        # Only the last rounds, which draft less, are left: 4 tokens of 60.
        assert table["factor"].iloc[-1] == pytest.approx(1, abs=4 / 60)
        assert found.predicted == pytest.approx(found.achieved, rel=0.15)
        profile = found.acceptance.profile
        assert found.stages[0, 2] == pytest.approx(theory.speedup(profile, None, DRAFT, 1 + 4 * WIDER))

    def test_a_slower_loop_is_named_and_moves_the_prediction(self, clock, monkeypatch):
        target, draft = models(clock)
        judge = Run._judge
        monkeypatch.setattr(Run, "_judge", lambda *arguments: (clock.move(1), judge(*arguments))[1])
        found = speed(target, ModelDrafter(draft))
        assert found.overhead == pytest.approx((1 + LOOP, 1 + LOOP))
        assert found.error == pytest.approx(0, abs=ROUNDING)

    def test_forwards_that_are_slower_in_the_loop_are_a_cause_of_their_own(self, clock, monkeypatch):
        target, draft = models(clock)
        from specnb.decoding.cache import CachedModel

        logits = CachedModel.logits

        def inside(self, *arguments, **options):
            hook = self.model.register_forward_hook(lambda *_: clock.move(0.5))
            try:
                return logits(self, *arguments, **options)
            finally:
                hook.remove()

        monkeypatch.setattr(CachedModel, "logits", inside)
        found = speed(target, ModelDrafter(draft))
        assert found.c == pytest.approx(DRAFT)
        step, prompt = 4 * (DRAFT + 0.5) + 1 + 4 * WIDER + 0.5 + LOOP, 2 * WIDER
        assert found.stages[0, -3] == pytest.approx((20 * (1.5 + LOOP) + prompt) / (4 * step + prompt))
        assert found.stages[0, -1] == pytest.approx(found.stages[0, -3])

    def test_proposals_of_a_drafter_that_is_no_model_are_timed(self, clock):
        class Slow(ScriptedDrafter):
            def propose(self, batch, limits):
                clock.move(0.4)
                return super().propose(batch, limits)

        found = speed(models(clock)[0], Slow([4, 4, 4], 12), rule="block")  # of token, a script's chance is false
        assert np.isnan(found.costs.c())
        assert found.c == pytest.approx(0.1)
        assert found.error == pytest.approx(0, abs=ROUNDING)

    def test_the_rounds_are_those_until_the_slowest_request_ends(self):
        """Two tokens each, two requests, one draft with α = 1/2: a request takes 1 or 2 rounds, a batch 7/4."""
        judged = np.full((1, 1), 10)
        found = Acceptance(judged, judged // 2, None, judged[0], judged[0])
        one, two = (Measurement(found, None, batch, 1, 2, ())._rounds() for batch in (1, 2))
        assert one == pytest.approx((1.5, 1))
        assert two == pytest.approx((1.75, 2 * 1.5 / 1.75))

    def test_the_first_repeat_does_not_count(self, clock, monkeypatch):
        repeat, seen = speeds._repeat, []

        def slow_at_first(*arguments):
            clock.unit = SECONDS if seen else 10 * SECONDS
            seen.append(repeat(*arguments))
            return seen[-1]

        monkeypatch.setattr(speeds, "_repeat", slow_at_first)
        target, draft = models(clock)
        found = speed(target, ModelDrafter(draft))
        assert len(seen) == 3
        assert found.costs.plain.tolist() == pytest.approx(np.full((2, 1), SECONDS))
        assert list(found.repeats) == seen[1:]

    def test_an_interruption_keeps_the_complete_repeats(self, clock):
        target, draft = models(clock)
        whole = speed(target, ModelDrafter(draft), repeats=1)
        clock.stop_at = 2 * clock.moves - 5
        clock.moves = 0
        target, draft = models(clock)
        found = speed(target, ModelDrafter(draft), repeats=9)
        assert found.interrupted
        assert 1 <= len(found.repeats) == len(found.costs.plain) < 9
        assert found.predicted == pytest.approx(whole.predicted)
        assert "interrupted" in repr(found)

    def test_interrupted_at_once_it_still_has_its_tables(self, clock):
        target, draft = models(clock)
        measure.acceptance(target, ModelDrafter(draft), PROMPTS, progress=False)  # decoding checks a model only once
        clock.stop_at = clock.moves + 5
        found = speed(target, ModelDrafter(draft))
        assert found.interrupted
        assert found.acceptance.interrupted
        assert found.repeats == ()
        assert np.isnan([found.predicted, found.achieved, found.error, found.c, found.v, *found.overhead]).all()
        assert found.explained()["speedup"].isna().all()
        assert set(found.to_frame()["quantity"]) >= {"alpha", "c", "v"}
        with pytest.raises(SpecnbError, match="no complete repeat"):
            measure_plots.page(found)

    def test_models_are_left_without_hooks(self):
        target, draft = tiny(), tiny(seed=1)
        speed(target, ModelDrafter(draft), repeats=1, forwards=1)
        for model in (target, draft):
            assert not model._forward_hooks
            assert not model._forward_pre_hooks

    def test_a_target_that_drafts_for_itself_is_timed_apart(self, clock):
        target, _ = models(clock)
        found = speed(target, ModelDrafter(target))
        assert found.c == pytest.approx(1)
        assert found.acceptance.pooled == 1

    def test_the_frame_survives_its_csv(self, clock, tmp_path):
        target, draft = models(clock)
        found = speed(target, ModelDrafter(draft), gammas=[1], batch=2)
        found.to_csv(tmp_path / "speed.csv")
        back, frame = pd.read_csv(tmp_path / "speed.csv"), found.to_frame()
        assert list(back) == ["quantity", "batch", "gamma", "position", "value", "low", "high"]
        assert back["value"].to_numpy() == pytest.approx(frame["value"].to_numpy(), nan_ok=True)
        v = frame.query("quantity == 'v' and batch == 2").set_index("gamma")["value"]
        assert v.to_dict() == pytest.approx({1: 1 + WIDER, 4: 1 + 4 * WIDER})
        speedups = frame[frame["quantity"].str.startswith("speedup")]
        assert speedups["value"].iloc[-1] == found.achieved

    def test_the_page_says_what_was_predicted_and_achieved(self, clock):
        target, draft = models(clock)
        figure = measure_plots.page(speed(target, ModelDrafter(draft)))
        assert plt.get_fignums() == []
        assert figure.get_suptitle() == "Predicted speedup 2.57, achieved 2.57 (batch 1, γ = 4, rule token)"
        titles = [axes.get_title(loc="left") for axes in figure.axes]
        assert titles[2] == "What does a round cost? c = 0.20, v = 1.40"
        assert all(axes.get_xlabel() for axes in figure.axes)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: speed(tiny(), None), "drafter is None; expected one of"),
        (lambda: speed(tiny(), ModelDrafter(tiny()), gamma=0), "^gamma is 0; expected an integer >= 1$"),
        (lambda: speed(tiny(), ModelDrafter(tiny()), max_new_tokens=4), "max_new_tokens is 4; expected more"),
        (lambda: speed(tiny(), ModelDrafter(tiny()), batch=0), "batch is 0; expected an integer >= 1"),
        (lambda: measure.speed(tiny(), ModelDrafter(tiny()), []), "input_ids hold no prompt"),
        (lambda: costs(tiny(), None, gammas=[]), r"gammas is \[\]"),
        (lambda: costs(tiny(), None, context=0), "context is 0; expected an integer >= 1"),
        (lambda: costs(tiny(), None, context=100_000), "knows 128 positions .* 100009; lower context or gammas"),
        (lambda: costs(tiny(), tiny(), context=128, gammas=[1]), "knows 128 positions"),
        (lambda: costs(tiny(), "x"), "drafter is str; expected one of specnb.drafters"),
        (lambda: costs("x", None), "target is str; expected a transformers model"),
        (lambda: costs(tiny(), None, gammas=5), "gammas is 5; expected a list"),
        (lambda: costs(tiny(), None, batches=[1, True]), r"batches\[1\] is True; expected an integer"),
        (lambda: costs(tiny(), None, repeats=0), "repeats is 0; expected an integer >= 1"),
        (lambda: Acceptance(*np.ones((2, 1, 2), int), None, np.ones(1), np.ones(1)).interval(2), "level is 2"),
        (lambda: costs(tiny(), None, repeats=1).v(2), "batch 2 wasn't timed"),
    ],
)
def test_refusals_say_what_came_and_what_is_expected(ask, sentence):
    with pytest.raises(SpecnbError, match=sentence):
        ask()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gammas": 5}, "gammas is 5; expected a list of integers"),
        ({"gammas": [1, 2.5]}, r"gammas\[1\] is 2.5"),
        ({"gammas": [500]}, "knows 128 positions"),
        ({"repeats": 1.5}, "repeats is 1.5; expected an integer >= 1"),
        ({"repeats": -1}, "repeats is -1; expected an integer >= 1"),
        ({"forwards": 0}, "forwards is 0; expected an integer >= 1"),
        ({"seed": [0, 1, 2]}, r"seed is \[0, 1, 2\]; expected an integer >= 0"),
        ({"seed": 2**63 - 1}, "expected room for 6 more below"),
        ({"batch": True}, "batch is True; expected an integer"),
        ({"gamma": "2"}, "gamma is '2'; expected an integer"),
        ({"max_new_tokens": None}, "max_new_tokens is None; expected an integer"),
        ({"sampling": Sampling(temperature=[1.0, 0.5])}, r"float64 \[2\] for 3 rows"),
        ({"drafter": ModelDrafter(tiny(), Sampling(top_k=[1, 2, 3]))}, "the drafter's sampling has a top_k for each"),
        ({"drafter": tiny()}, "wrap it: specnb.drafters.ModelDrafter"),
    ],
)
def test_speed_refuses_before_it_decodes(monkeypatch, changes, sentence):
    monkeypatch.setattr("specnb.measure.accepting.generate", lambda *_, **__: pytest.fail("it decoded"))
    with pytest.raises(SpecnbError, match=sentence):
        speed(tiny(), **({"drafter": ModelDrafter(tiny())} | changes))


@pytest.mark.parametrize("values", [[0.7, 1.0, 2.0], torch.tensor([0.7, 1.0, 2.0])])
def test_a_sampling_by_prompt_goes_with_its_prompt(monkeypatch, values):
    seen, decode = [], speeds.decode

    def watched(target, drafter, prompts, **options):
        temperatures = np.broadcast_to(np.asarray(options["sampling"].temperature), len(prompts))
        seen.extend(zip([prompt.tolist() for prompt in prompts], temperatures.tolist(), strict=True))
        return decode(target, drafter, prompts, **options)

    monkeypatch.setattr(speeds, "decode", watched)
    for batch in (1, 2):
        speed(tiny(), ModelDrafter(tiny(seed=1)), batch=batch, sampling=Sampling(temperature=values), forwards=1)
    of = {1: 0.7, 4: 1.0, 7: 2.0}
    assert {prompt[0] for prompt, _ in seen} == set(of)
    assert [temperature for _, temperature in seen] == pytest.approx([of[prompt[0]] for prompt, _ in seen])


def test_the_stored_prediction_is_within_15_percent_of_what_was_achieved():
    """Medians of fifteen repeats with the pair, as `specnb bench speed` wrote them."""
    table = pd.read_csv(data_path("speed.csv")).pivot(index="batch", columns="with", values="speedup")
    assert abs(table["the loop's overhead"] / table["achieved"] - 1).max() < 0.15


def test_progress_is_shown_unless_it_is_not_wanted(capsys):
    costs(tiny(), None, gammas=[1], repeats=1, forwards=1, progress=True)
    assert "repeat" in capsys.readouterr().err
    costs(tiny(), None, gammas=[1], repeats=1, forwards=1)
    assert capsys.readouterr().err == ""
