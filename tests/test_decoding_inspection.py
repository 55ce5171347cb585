"""What can be asked of a run afterwards: frames, strips, replays, traces, and what other rules would have kept."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from tiny_models import ScriptedDrafter, tiny, uncached
from transformers import LogitsProcessor, RepetitionPenaltyLogitsProcessor

import specnb
from specnb import Sampling, SpecnbError
from specnb.backends import numpy as reference
from specnb.decoding import trace as tracing
from specnb.drafters import AdaptiveGamma, EarlyExitDrafter, ModelDrafter, NGramDrafter, PromptLookupDrafter

PROMPTS = [[3], [5, 2], [1, 2, 3, 1, 2], [7] * 6]
DRAFTERS = {
    "model": lambda: ModelDrafter(tiny(seed=1), Sampling(1.3)),
    "lookup": lambda: PromptLookupDrafter(),
    "bigram": lambda: NGramDrafter.train([1, 2, 3, 1, 4, 5, 1]),
    "early exit": lambda: EarlyExitDrafter(1),
}


def decoded(drafter, **options):
    return specnb.generate(tiny(), drafter, PROMPTS, **{"max_new_tokens": 20, "gamma": 3, "seed": 2} | options)


def same(a, b):
    assert (a is None) == (b is None)
    if a is not None:
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


SEEDS = {"one": 6, "each": [2**62 + 1, 4, 0, 9]}
REPLAYED = [
    ("model", "token", "one"), ("model", "block", "each"), ("model", "match", "one"), ("model", "coupled", "each"),
    ("lookup", "token", "each"), ("lookup", "coupled", "one"), ("bigram", "block", "one"),
    ("early exit", "token", "one"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rule", "seed"), REPLAYED)
def test_a_replayed_round_is_the_round(name, rule, seed, tmp_path):
    seed = SEEDS[seed]
    run = decoded(DRAFTERS[name](), rule=rule, seed=seed, eos_token_id=[9], trace=tmp_path / "trace")
    untraced = decoded(DRAFTERS[name](), rule=rule, seed=seed, eos_token_id=[9])
    assert untraced.sequences.tolist() == run.sequences.tolist()
    for index in range(0, len(run.rounds), 5):
        round_, stored, again = run.rounds[index], run.replay(index), untraced.replay(index)
        assert stored.round == round_ == again.round
        assert stored.draft.tolist() == list(round_.draft)
        emitted = stored.verdict.tokens[0][: stored.round.accepted + 1].tolist()
        assert emitted[: len(round_.tokens)] == list(round_.tokens)
        assert int(stored.verdict.num_accepted[0]) == round_.accepted
        same(stored.p, again.p)
        same(stored.q, again.q)
        for name_, words in stored.words.items():
            same(words, again.words[name_])
        if stored.q is not None and len(round_.draft):
            weights = reference.weights(stored.q.astype(np.float64))
            assert reference.pick(weights, stored.words["drafting"])[0].tolist() == list(round_.draft)
        lengths, _ = stored.law()
        assert lengths[round_.accepted] > 0


def test_a_round_that_is_not_there_and_a_run_that_cannot_be_made_again():
    run = decoded(ModelDrafter(tiny(seed=1)))
    for wrong in (-1, len(run.rounds), "first"):
        with pytest.raises(SpecnbError, match="expected 0 … "):
            run.replay(wrong)

    class Stateful(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return scores

    run = decoded(ModelDrafter(tiny(seed=1)), logits_processor=[Stateful()])
    with pytest.raises(SpecnbError, match="the run can't be made again, because a logits processor"):
        run.replay(0)
    with pytest.raises(SpecnbError, match="which logits processors that may keep a state aren't shown"):
        decoded(ModelDrafter(tiny(seed=1)), logits_processor=[Stateful()], trace="nowhere")
    draft = tiny(seed=1)
    run = decoded(ModelDrafter(draft))
    with torch.no_grad():
        draft.lm_head.weight.mul_(-1)
    with pytest.raises(SpecnbError, match="the run came out differently when it was made again"):
        run.replay(2)


def test_a_pickled_run_leaves_the_models_behind():
    run = decoded(ModelDrafter(tiny(seed=1)))
    travelled = pickle.loads(pickle.dumps(run))
    assert travelled.sequences.tolist() == run.sequences.tolist()
    assert travelled.rounds == run.rounds
    assert run.replay(0).round == run.rounds[0]
    with pytest.raises(SpecnbError, match="this run was pickled, and left its models and seed behind"):
        travelled.replay(0)


def test_a_replay_with_processors_has_the_processed_rows(tmp_path):
    options = {"logits_processor": [RepetitionPenaltyLogitsProcessor(1.5)]}
    run = decoded(ModelDrafter(tiny(seed=1)), trace=tmp_path / "trace", **options)
    again = decoded(ModelDrafter(tiny(seed=1)), **options)
    plain = decoded(ModelDrafter(tiny(seed=1)))
    same(run.replay(6).p, again.replay(6).p)
    assert run.replay(0).p.tolist() != plain.replay(0).p.tolist()


def test_frames_count_what_the_statistics_count():
    run = decoded(ModelDrafter(tiny(seed=1)), eos_token_id=[9], record=True)
    rounds, requests, positions = (run.to_frame(by) for by in ("round", "request", "position"))
    assert len(rounds) == len(run.rounds)
    assert rounds.groupby("request").emitted.sum().tolist() == requests.emitted.tolist() == run.stats.emitted.tolist()
    assert rounds.groupby("request")["round"].max().add(1).tolist() == requests.rounds.tolist()
    assert rounds.groupby("request").committed.max().tolist() == requests.committed.tolist() == run.lengths.tolist()
    assert (rounds.emitted <= rounds.accepted + 1).all()
    np.testing.assert_array_equal(positions.acceptance, run.stats.acceptance)
    assert list(positions.columns) == ["position", "reached", "accepted", "acceptance", "expected"]
    assert run.gammas(2) == rounds[rounds.request == 2].drafted.tolist()
    with pytest.raises(SpecnbError, match="by is 'day'; expected one of round, request, position"):
        run.to_frame("day")


def test_seconds_are_those_of_the_models_and_less_than_the_whole():
    stats = decoded(ModelDrafter(tiny(seed=1))).stats
    assert 0 < stats.draft_seconds + stats.target_seconds < stats.seconds
    assert stats.committed.tolist() == [len(prompt) + 20 for prompt in PROMPTS]


def test_strips_show_each_round_with_what_became_of_its_tokens():
    run = specnb.generate(tiny(), ScriptedDrafter([2], 12), [[1, 2]], max_new_tokens=4, gamma=3, seed=0)
    strips = run.strips()
    assert len(strips.strips) == len(run.rounds)
    for round_, shown in zip(run.rounds, strips.strips, strict=True):
        assert list(zip(map(int, shown.tokens), shown.kinds, strict=True)) == round_.kinds
    html = strips._repr_html_()
    assert html.count("<tr>") == 1 + len(run.rounds)
    assert "line-through" in html
    assert repr(strips).splitlines()[0].startswith("    2  10 11 [-12 -]{+")
    _, _, tokenizer = specnb.load_pair()
    assert tokenizer.decode([10]) in run.strips(tokenizer=tokenizer).strips[0].tokens


def test_a_trace_can_be_read_after_an_interrupt_and_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "FILE_BYTES", 2_000)
    drafter = ScriptedDrafter([1, 2], 12, interrupt_at=5)
    run = specnb.generate(tiny(), drafter, PROMPTS[:2], max_new_tokens=20, gamma=3, seed=1, trace=tmp_path / "a")
    assert run.interrupted
    stored = list(tracing.read(tmp_path / "a"))
    assert [(t.step, t.row, t.position, t.accepted, t.emitted) for t in stored] == [
        (r.step, r.row, r.position, r.accepted, len(r.tokens)) for r in run.rounds
    ]
    assert len(list((tmp_path / "a").glob("*.safetensors"))) > 2
    assert not list((tmp_path / "a").glob("*.part"))
    failing = ScriptedDrafter([1, 2], 12, interrupt_at=5, exception=RuntimeError("gone"))
    with pytest.raises(RuntimeError, match="gone"):
        specnb.generate(tiny(), failing, PROMPTS[:2], max_new_tokens=20, gamma=3, seed=1, trace=tmp_path / "b")
    assert len(list(tracing.read(tmp_path / "b"))) == len(stored)
    assert specnb.rescore(tmp_path / "b").rounds == len(stored)
    with pytest.raises(SpecnbError, match="where something is already; expected a new or empty folder"):
        decoded(None, trace=tmp_path / "a")
    with pytest.raises(SpecnbError, match=r"there is no trace at .*; expected a folder"):
        specnb.rescore(tmp_path / "none")
    with pytest.raises(SpecnbError, match="this run has no trace"):
        specnb.rescore(decoded(None))


@pytest.mark.parametrize(("name", "rule"), [
    ("model", "token"), ("model", "block"), ("model", "match"), ("model", "coupled"), ("lookup", "token")])  # fmt: skip
def test_a_trace_rescored_is_the_mean_law_of_its_rounds(name, rule, tmp_path):
    run = decoded(DRAFTERS[name](), trace=tmp_path / "trace")
    for gamma in (None, 1, 2):
        scored = specnb.rescore(run, rule=rule, gamma=gamma)
        expected = []
        for index, round_ in enumerate(run.rounds):
            again = run.replay(index)
            G = min(len(round_.draft), gamma or 3)
            q = None if again.q is None else again.q[:G]
            lengths, _ = specnb.law(again.draft[:G], q, again.p[: G + 1], rule=rule) if G else ([1.0], None)
            expected.append(float(np.dot(lengths, np.arange(G + 1))))
        assert scored.accepted == pytest.approx(np.mean(expected), abs=1e-12)
        assert scored.observed == np.mean([round_.accepted for round_ in run.rounds])
        assert (scored.requests, scored.rounds) == (4, len(run.rounds))
        assert 0 <= scored.low < scored.accepted < scored.high <= (gamma or 3)
        assert f"rule {rule} keeps per round" in scored.estimand
        assert "given the drafts and the rows of the rounds that were run (rule token, γ = 3)" in scored.estimand


def test_block_keeps_at_least_what_token_keeps_and_a_lossy_rule_is_labelled(tmp_path):
    run = decoded(DRAFTERS["model"](), trace=tmp_path / "trace")
    token, block = (specnb.rescore(run, rule=rule) for rule in ("token", "block"))
    lenient = specnb.rescore(tmp_path / "trace", rule=specnb.rules.lenient(0.5))
    assert token.accepted < lenient.accepted
    assert (lenient.lossless, lenient.rule) == (False, specnb.rules.lenient(0.5).label)
    assert block.accepted > 0
    assert token.tokens_per_round == token.accepted + 1
    with pytest.raises(SpecnbError, match="gamma is 4, but the trace's rounds drafted 3 tokens"):
        specnb.rescore(run, gamma=4)
    with pytest.raises(SpecnbError, match="level is 2; expected a number between 0 and 1"):
        specnb.rescore(run, level=2)


def test_intervals_cover_what_they_are_for_as_often_as_they_say(tmp_path):
    """A budget of two: a round keeps one draft with probability α, and after a rejection one more round drafts none.

    Expected drafts kept per round are then α/(2 − α), which of 40 intervals at 95 % fewer than 34 miss with
    probability 0.01.
    """
    models, prompt, covered = (tiny(vocabulary=5), tiny(vocabulary=5, seed=1)), [3, 1, 4, 1], 0
    p, q = (specnb.probabilities(uncached(model, prompt)[-1].numpy()).astype(np.float64) for model in models)
    alpha = float(np.minimum(p, q).sum())
    for trial in range(40):
        run = specnb.generate(
            models[0], ModelDrafter(models[1]), [prompt] * 40, max_new_tokens=2, gamma=1, trace=tmp_path / str(trial),
            seed=np.arange(40) + 1000 * trial, eos_token_id=None,
        )  # fmt: skip
        scored = specnb.rescore(run, gamma=1)
        covered += scored.low <= alpha / (2 - alpha) <= scored.high
    assert covered >= 34
    assert scored.high - scored.low < 0.3


def test_an_adaptive_run_can_be_traced_and_replayed(tmp_path):
    run = decoded(ModelDrafter(tiny(seed=1)), gamma=AdaptiveGamma(largest=4), trace=tmp_path / "trace")
    assert specnb.rescore(run).gamma == 4
    assert run.gamma == 4
    assert len(set(run.gammas(0))) > 1
    assert run.replay(len(run.rounds) - 1).round == run.rounds[-1]
