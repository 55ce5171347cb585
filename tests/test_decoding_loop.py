"""What the loop promises besides the law: budgets, ends, batches, seeds, prefixes, statistics, interrupts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import PrefixModel, ScriptedDrafter, tiny

import specnb
from specnb import Sampling
from specnb.decoding.cache import RowLayer
from specnb.decoding.support import check_model
from specnb.drafters import ModelDrafter

GREEDY = Sampling(temperature=0)
PROMPTS = [[3], [5, 2], [1, 2, 3, 4, 5], list(range(12))]


@pytest.fixture(scope="module")
def pair():
    return tiny(), tiny(seed=1)


def emitted(run):
    return [run.tokens(row) for row in range(len(run.sequences))]


def greedy(model, prompt, tokens):
    """Return what transformers emits; without a mask it would take the id 0 in a prompt for padding."""
    ids = torch.tensor([prompt])
    sequence = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, pad_token_id=0
    )
    return sequence[0, len(prompt) :].tolist()


@pytest.mark.parametrize("model", ["llama sdpa", "mistral sdpa", "gpt2 eager"])
def test_greedy_equals_generate_token_for_token(model):
    kind, attention = model.split()
    target = tiny(kind, attention=attention)
    expected = [greedy(target, prompt, 17) for prompt in PROMPTS]
    options = {"max_new_tokens": 17, "sampling": GREEDY, "seed": 0}
    assert emitted(specnb.generate(target, None, PROMPTS, **options)) == expected
    for drafter in (ModelDrafter(target), ModelDrafter(tiny(kind, seed=1))):
        for gamma in (0, 1, 3, 7):
            assert emitted(specnb.generate(target, drafter, PROMPTS, gamma=gamma, **options)) == expected
    for row, prompt in enumerate(PROMPTS):
        for gamma in (1, 3, 7):
            assert specnb.generate(target, drafter, [prompt], gamma=gamma, **options).tokens() == expected[row]


def test_a_budget_is_met_exactly_and_never_drafted_past(pair):
    gamma = 4
    for budget in range(gamma + 3):
        run = specnb.generate(pair[0], ModelDrafter(pair[0]), PROMPTS, max_new_tokens=budget, gamma=gamma, seed=1)
        assert run.stats.emitted.tolist() == [budget] * 4
        assert run.lengths.tolist() == [len(p) + budget for p in PROMPTS]
        drafted = {0: 0, 1: 0, 6: 4}.get(budget, budget - 1)  # after a block of 5, one token is left
        assert run.stats.drafted.tolist() == [drafted] * 4
        assert run.stats.draft_calls == drafted
    assert run.sequences.shape == (4, 12 + gamma + 2)


def test_gamma_given_is_gamma_drafted(pair):
    run = specnb.generate(pair[0], ModelDrafter(pair[1]), [[1, 2]], max_new_tokens=40, gamma=3, seed=0)
    left = [2 + 40 - round_.position for round_ in run.rounds]
    assert [len(round_.draft) for round_ in run.rounds] == [min(3, n - 1) for n in left]
    assert len(run.rounds) > 10


def cut(tokens, stops):
    at = [i for i, token in enumerate(tokens) if token in stops]
    return tokens[: at[0] + 1] if at else tokens


def test_an_end_of_text_anywhere_in_a_block_ends_the_row_there(pair):
    """The same seeds with and without stops: a row is the longer one, cut behind its first stop."""
    options = {"max_new_tokens": 30, "gamma": 3, "seed": [1, 2, 3, 4]}
    whole = specnb.generate(pair[0], ModelDrafter(pair[1]), PROMPTS, eos_token_id=None, **options)
    last_kinds = set()
    for stops in [[i] for i in range(12)] + [[3, 7], [0, 5, 9]]:
        eos = stops[0] if len(stops) == 1 else stops
        run = specnb.generate(pair[0], ModelDrafter(pair[1]), PROMPTS, eos_token_id=eos, **options)
        for row, tokens in enumerate(emitted(whole)):
            assert run.tokens(row) == cut(tokens, stops)
            trace = run.trace(row)[len(PROMPTS[row]) :]
            assert [token for token, kind in trace if kind != "rejected"] == run.tokens(row)
            assert run.stats.accepted[row] == sum(kind == "accepted" for _, kind in trace)
            assert run.stats.emitted[row] == len(run.tokens(row))
            assert (run.sequences[row, run.lengths[row] :] == 0).all()
            if run.tokens(row)[-1] in stops:
                last_kinds.add(trace[-1][1])
    assert last_kinds == {"accepted", "correction", "bonus"}


def test_statistics_stop_at_an_end_of_text_inside_a_block():
    """Token 10 is drafted second of four, and all four would be accepted: only two count."""
    target, drafter = tiny(), ScriptedDrafter([4], vocabulary=12)
    run = specnb.generate(target, drafter, [[1, 2]], max_new_tokens=9, gamma=4, seed=0, eos_token_id=11)
    assert run.tokens() == [10, 11]
    stats = run.stats
    assert (stats.drafted[0], stats.accepted[0], stats.emitted[0], stats.rounds[0]) == (2, 2, 2, 1)
    assert stats.reached[0].tolist() == stats.accepted_at[0].tolist() == [1, 1, 0, 0]
    assert run.rounds[0].accepted == 4
    assert run.trace()[2:] == [(10, "accepted"), (11, "accepted")]


def test_by_default_the_targets_own_end_of_text_stops():
    target, plain = tiny(), {"max_new_tokens": 60, "seed": 8}
    whole = specnb.generate(target, None, PROMPTS, **plain)
    assert whole.stats.emitted.tolist() == [60] * 4
    for where in (target.config, target.generation_config):  # the generation config wins
        where.eos_token_id = [1, 8] if where is target.config else [3, 7]
        run = specnb.generate(target, None, PROMPTS, **plain)
        assert emitted(run) == [cut(tokens, where.eos_token_id) for tokens in emitted(whole)]
        assert run.stats.emitted.max() < 60
    assert specnb.generate(target, None, PROMPTS, eos_token_id=None, **plain).stats.emitted.tolist() == [60] * 4


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_rows_that_accept_0_2_and_all_equal_their_own_runs(attention):
    target, gamma = tiny(attention=attention), 4
    prompts, accepted, seeds = [[3], [1, 2, 3, 4, 5], [9, 8, 7]], [0, 2, gamma], [5, 6, 7]
    options = {"max_new_tokens": 25, "gamma": gamma}
    batch = specnb.generate(target, ScriptedDrafter(accepted, 12), prompts, seed=seeds, **options)
    for row in range(3):
        alone = specnb.generate(
            target, ScriptedDrafter(accepted[row : row + 1], 12), prompts[row : row + 1], seed=seeds[row : row + 1],
            **options,
        )  # fmt: skip
        assert batch.tokens(row) == alone.tokens()
        for name in ("drafted", "accepted", "emitted", "rounds", "reached", "accepted_at"):
            assert (getattr(batch.stats, name)[row] == getattr(alone.stats, name)[0]).all()
        full = [round_ for round_ in batch.rounds if round_.row == row and len(round_.draft) == gamma]
        assert {round_.accepted for round_ in full} == {accepted[row]}


def prefixes_fed(model, drafter, prompts, **options):
    """Return the prefixes that each column of each target forward saw, and those that it should have seen."""
    check_model("target", model, 100)
    model.seen.clear()
    run = specnb.generate(model, drafter, prompts, eos_token_id=None, **options)
    seen = [prefix for call in model.seen for row in call for prefix in row]
    expected = []
    for round_ in run.rounds:
        committed = tuple(run.sequences[round_.row, : round_.position].tolist())
        expected += [committed + round_.draft[:i] for i in range(len(round_.draft) + 1)]
    return seen, expected


@pytest.mark.parametrize("prompts", [[[3]], [[3], [1, 2, 3, 4], [5, 5]]])
def test_the_target_sees_exactly_the_committed_prefix_and_the_drafts(prompts):
    """Budgets of one batch end at different rounds, where shorter drafts are padded: those columns don't count."""
    model = PrefixModel(vocabulary=6)
    seen, expected = prefixes_fed(
        model, ModelDrafter(tiny(vocabulary=6, seed=1)), prompts, max_new_tokens=20, gamma=3, seed=3
    )
    assert len(expected) > 20
    if len(prompts) == 1:
        assert seen == expected
    assert set(expected) <= set(seen)


def test_the_draft_sees_exactly_the_committed_prefix_too():
    model = PrefixModel(vocabulary=6)
    check_model("draft", model, 100)
    model.seen.clear()
    run = specnb.generate(tiny(vocabulary=6), ModelDrafter(model), [[3, 1]], max_new_tokens=30, gamma=3, seed=3)
    expected = []
    for round_ in run.rounds:
        committed = tuple(run.sequences[0, : round_.position].tolist())
        expected += [committed + round_.draft[:i] for i in range(len(round_.draft))]
    assert [prefix for call in model.seen for row in call for prefix in row] == expected
    assert {round_.accepted for round_ in run.rounds} == {0, 1, 2, 3}


def test_a_cache_that_keeps_rejected_tokens_is_caught(monkeypatch):
    """The mutant never overwrites a slot: what a rejected draft wrote stays."""
    update, written = RowLayer.update, {}

    def stubborn(self, keys, values, *args, **kwargs):
        before = self.keys.clone() if self.is_initialized else None
        result = update(self, keys, values, *args, **kwargs)
        filled = written.get(id(self), 0)
        if before is not None:
            self.keys[:, :, :filled] = before[:, :, :filled]
        written[id(self)] = max(filled, self.step.end)
        return result

    monkeypatch.setattr(RowLayer, "update", stubborn)
    monkeypatch.setattr("specnb.decoding.support.self_check", lambda model: "")
    seen, expected = prefixes_fed(
        PrefixModel(vocabulary=6), ModelDrafter(tiny(vocabulary=6, seed=1)), [[3]], max_new_tokens=20, gamma=3, seed=3
    )
    assert not set(expected) <= set(seen)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_request_keeps_its_stream_when_others_leave_the_batch(pair, backend):
    """One seed for the batch: row b uses stream b also after rows before it have ended."""
    options = {"max_new_tokens": 30, "gamma": 3, "seed": 6, "backend": backend}
    whole = specnb.generate(pair[0], ModelDrafter(pair[1]), PROMPTS * 3, eos_token_id=None, **options)
    run = specnb.generate(pair[0], ModelDrafter(pair[1]), PROMPTS * 3, eos_token_id=[0, 4], **options)
    assert emitted(run) == [cut(tokens, [0, 4]) for tokens in emitted(whole)]
    assert len(set(run.lengths.tolist())) > 4
    assert len({tuple(tokens) for tokens in emitted(whole)}) == 12
    first = specnb.generate(pair[0], ModelDrafter(pair[1]), PROMPTS[:1], eos_token_id=None, **options)
    assert first.tokens() == whole.tokens(0)


def test_with_its_own_seed_a_request_does_not_depend_on_its_neighbours(pair):
    options = {"max_new_tokens": 15, "gamma": 3, "sampling": Sampling(temperature=1.2, top_k=6)}
    seeds = [9, 8, 7, 6]
    whole = specnb.generate(pair[0], ModelDrafter(pair[1]), PROMPTS, seed=seeds, **options)
    for order in ([2, 0, 3, 1], [1], [3, 3, 0]):
        prompts, own = [PROMPTS[i] for i in order], [seeds[i] for i in order]
        run = specnb.generate(pair[0], ModelDrafter(pair[1]), prompts, seed=own, **options)
        assert emitted(run) == [whole.tokens(i) for i in order]


def test_padding_on_either_side_a_list_and_numpy_are_the_same_prompts(pair):
    rows = [[1, 2, 3], [4], [5, 6]]
    left, right = (torch.full((3, 4), 9) for _ in range(2))
    for row, ids in enumerate(rows):
        left[row, 4 - len(ids) :] = torch.tensor(ids)
        right[row, : len(ids)] = torch.tensor(ids)
    ones = torch.tensor([[1] * len(ids) + [0] * (4 - len(ids)) for ids in rows])
    options = {"max_new_tokens": 7, "gamma": 2, "seed": [1, 2, 3]}
    runs = [
        specnb.generate(pair[0], ModelDrafter(pair[1]), ids, attention_mask=mask, **options)
        for ids, mask in (
            (rows, None), ([torch.tensor(ids) for ids in rows], None), (left, ones.flip(1)), (right, ones),
            (right.numpy().astype(np.int32), ones.numpy()),
        )
    ]  # fmt: skip
    assert all((run.sequences == runs[0].sequences).all() for run in runs)
    assert runs[0].sequences[1, :1].tolist() == [4]
    assert runs[0].prompt_lengths.tolist() == [3, 1, 2]


def test_settings_per_request_follow_it_through_the_batch(pair):
    sampling = Sampling(temperature=[0.0, 1.0, 0.5, 0.0], top_k=[0, 3, 0, 1])
    run = specnb.generate(
        pair[0], ModelDrafter(pair[1]), PROMPTS, max_new_tokens=20, gamma=3, sampling=sampling, seed=[1, 2, 3, 4],
        eos_token_id=[0, 4],
    )  # fmt: skip
    for row in range(4):
        alone = specnb.generate(
            pair[0], ModelDrafter(pair[1]), [PROMPTS[row]], max_new_tokens=20, gamma=3, seed=[row + 1],
            sampling=Sampling([0.0, 1.0, 0.5, 0.0][row], [0, 3, 0, 1][row]), eos_token_id=[0, 4],
        )  # fmt: skip
        assert alone.tokens() == run.tokens(row)


def test_a_token_that_only_one_model_knows_is_fed_without_an_error():
    for target_ids, draft_ids in ((16, 12), (12, 16)):
        target, draft = tiny(vocabulary=target_ids), tiny(vocabulary=draft_ids, seed=1)
        run = specnb.generate(target, ModelDrafter(draft), [[11], [3, 4]], max_new_tokens=60, gamma=3, seed=2)
        assert run.sequences.max() == target_ids - 1  # ids of the target's padding occur, and none beyond
        drafted = {token for round_ in run.rounds for token in round_.draft}
        assert max(drafted) == draft_ids - 1
