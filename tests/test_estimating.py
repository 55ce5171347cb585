"""An estimating chooser decides what an exact one does: for every rule, sampling and drafter, and in whole runs."""

import numpy as np
import pytest
import torch
from tiny_models import tiny

import specnb
from specnb import rules
from specnb.backends import bounds, numpy_estimates
from specnb.decoding import estimating, plan
from specnb.decoding.choosing import Chooser, Proposal
from specnb.decoding.estimating import Estimating
from specnb.drafters.drawing import Path
from specnb.sampling import Sampling


def choosers(rule, seed, rows, temperature=1.0, **more):
    """Return an exact and an estimating chooser for some rows of a batch of 6."""
    T = np.resize(temperature, 6) if np.ndim(temperature) else temperature
    arguments = ("numpy", torch.device("cpu"), seed, Sampling(temperature=T, **more), 6)
    made = [kind(*arguments, np.arange(6), rules.get(rule)) for kind in (Chooser, Estimating)]
    for one in made:
        one.keep(rows)
    return made


def round_of(chooser, z, y, position, limits, onehot):
    """Draft and judge once by a chooser; return everything that came of it as lists."""
    if onehot:
        draft = y[:, :, 0].argsort(1)[:, :3].numpy() % z.shape[2]
        proposal = Proposal(draft, None, limits)
    else:
        drafts = [chooser.draft(y[:, i], position, i, 3) for i in range(y.shape[1])]
        proposal = Proposal(np.stack(drafts, 1), chooser.drafted(y.shape[1]), limits)
    decision = chooser.judge(proposal, z, position)[1]
    return [a.tolist() for a in (proposal.tokens, decision.tokens, decision.accepted, decision.status)]


@pytest.fixture(autouse=True)
def any_length(monkeypatch):
    """Estimate short rows as well, since they have the edges."""
    monkeypatch.setattr(estimating, "LONG", 1)


@pytest.mark.parametrize("rule", ["token", "match", "block", "coupled"])
@pytest.mark.parametrize("seed", [2**62 + 977, np.arange(6) * 2**59 + 3])
@pytest.mark.parametrize("onehot", [False, True])
def test_estimating_choosers_decide_what_exact_ones_do(rule, seed, onehot):
    rng = np.random.default_rng(5)
    for trial in range(40):
        V = (3, 129, 1500)[trial % 3]
        rows = np.arange(6) if trial % 2 else np.array([1, 3, 4])
        z = torch.from_numpy((rng.normal(size=(len(rows), 4, V)) * 3).astype(np.float32))
        y = z[:, :3] + 0.5 * torch.from_numpy(rng.normal(size=(len(rows), 3, V)).astype(np.float32))
        position, limits = rng.integers(0, 2**40, len(rows)), rng.integers(0, 4, len(rows))
        exact, estimated = choosers(rule, seed, rows, temperature=np.array([0.2, 1.0, 3.0]))
        assert round_of(exact, z, y, position, limits, onehot) == round_of(estimated, z, y, position, limits, onehot)


@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_what_is_in_doubt_is_decided_exactly(rule, monkeypatch):
    monkeypatch.setattr(numpy_estimates, "error", lambda V: 10.0)
    monkeypatch.setattr(bounds, "MASS_ERROR", 10.0)
    test_estimating_choosers_decide_what_exact_ones_do(rule, 5, False)
    test_estimating_choosers_decide_what_exact_ones_do(rule, np.arange(6), False)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["draft", "target"])
def test_rows_that_are_no_distribution_are_reported_as_before(bad, where):
    rng, rows = np.random.default_rng(1), np.arange(6)
    z = torch.from_numpy(rng.normal(size=(6, 4, 50)).astype(np.float32))
    y = z[:, :3].clone()
    (y if where == "draft" else z)[2, 1] = bad
    exact, estimated = choosers("token", 5, rows)
    position, limits = np.zeros(6, np.int64), np.full(6, 3)
    found = round_of(exact, z, y, position, limits, False)
    assert found == round_of(estimated, z, y, position, limits, False)
    assert found[3][2] != 0 or found[0][2][1] == -1


SAMPLINGS = [
    {"top_k": 5}, {"temperature": np.array([0.0, 1.0])}, {"min_p": 0.1, "top_p": 0.7}, {"temperature": 0.0},
    {"top_k": np.array([0, 3]), "temperature": np.array([0.0, 1.0, 0.4])}, {"top_p": np.array([1.0, 0.5, 0.9])},
]  # fmt: skip


@pytest.mark.parametrize("more", SAMPLINGS)
@pytest.mark.parametrize("rule", ["token", "match", "block", "coupled"])
def test_every_sampling_is_estimated(rule, more):
    rng, rows = np.random.default_rng(1), np.arange(6)
    more = {name: np.resize(value, 6) if np.ndim(value) else value for name, value in more.items()}
    for V in (50, 1500):
        z = torch.from_numpy(3 * rng.normal(size=(6, 4, V)).astype(np.float32))
        y = z[:, :3] + 0.5 * torch.from_numpy(rng.normal(size=(6, 3, V)).astype(np.float32))
        position, limits = rng.integers(0, 99, 6), np.full(6, 3)
        exact, estimated = choosers(rule, 5, rows, **more)
        assert round_of(exact, z, y, position, limits, False) == round_of(estimated, z, y, position, limits, False)
        own = estimated.with_sampling(Sampling(0.7, top_k=4))  # a drafter with another sampling
        both = [chooser.with_sampling(Sampling(0.7, top_k=4)) for chooser in (exact, own)]
        drafts = []
        for drafter, judge in zip(both, (exact, estimated), strict=True):
            tokens = np.stack([drafter.draft(y[:, i], position, i, 3) for i in range(3)], 1)
            decision = judge.judge(Proposal(tokens, drafter.drafted(3), limits), z, position)[1]
            drafts.append([tokens.tolist(), decision.tokens.tolist(), decision.status.tolist()])
        assert drafts[0] == drafts[1]


def test_a_narrower_draft_is_judged_exactly():
    rng, rows = np.random.default_rng(1), np.arange(6)
    z = torch.from_numpy(rng.normal(size=(6, 4, 50)).astype(np.float32))
    position, limits = np.zeros(6, np.int64), np.full(6, 3)
    exact, estimated = choosers("token", 5, rows)
    assert round_of(exact, z, z[:, :3, :40], position, limits, False) == round_of(
        estimated, z, z[:, :3, :40], position, limits, False
    )


class OwnDrafter:
    """A drafter of somebody else's, which draws from scripted logits in a way of its own."""

    def __init__(self, way):
        self.way = way

    def start(self, batch, chooser, gamma, target):
        return OwnRun(self.way, chooser, gamma)


class OwnRun:
    calls = 0

    def __init__(self, way, chooser, gamma):
        self.way, self.chooser, self.rng = way, chooser, np.random.default_rng(0)
        self.path = Path(chooser if way == "the chooser it was given" else chooser.with_sampling(None), gamma)
        self.buffer = torch.empty(1, 12)

    def logits(self, i, last):
        self.buffer.copy_(torch.from_numpy(self.rng.normal(size=(1, 12)).astype(np.float32)))
        if self.way == "another width":
            return self.buffer[:, :9]
        return self.buffer if self.way == "one buffer" else self.buffer.clone()

    def propose(self, batch, limits):
        if not limits.any():
            return self.chooser.nothing()
        proposal = self.path.draw(batch.live_lengths, limits, self.logits)
        if self.way == "a proposal cut short":
            return Proposal(proposal.tokens[:, :1], proposal.q[:, :1], np.minimum(limits, 1))
        if self.way == "an array of its own":
            return Proposal(proposal.tokens, np.array(proposal.q), limits)
        return proposal if self.way != "no length" else Proposal(proposal.tokens, proposal.q, limits * 0 - 1)

    def rollback(self, lengths):
        pass

    def keep(self, index):
        self.path.keep(index)


WAYS = [
    "the chooser it was given", "one buffer", "another width", "a proposal cut short", "an array of its own",
    "no length",
]  # fmt: skip


@pytest.mark.parametrize("rule", ["token", "match", "block", "coupled"])
@pytest.mark.parametrize("way", WAYS)
def test_drafters_of_ones_own_get_the_same_tokens(way, rule, monkeypatch):
    def decoded():
        return specnb.generate(
            tiny(vocabulary=12), OwnDrafter(way), [[1, 2]], max_new_tokens=40, gamma=3, rule=rule, seed=11,
            eos_token_id=None,
        )  # fmt: skip

    estimated = decoded()
    monkeypatch.setattr(plan, "Estimating", Chooser)
    exact = decoded()
    assert (estimated.sequences.tolist(), estimated.rounds) == (exact.sequences.tolist(), exact.rounds)


def test_a_draft_of_probability_0_is_reported():
    z = torch.zeros(6, 4, 50)
    y = z[:, :3].clone()
    y[:, 0, 7] = -torch.inf
    position, limits = np.zeros(6, np.int64), np.full(6, 3)
    for chooser in choosers("token", 5, np.arange(6)):
        drafts = np.stack([chooser.draft(y[:, i], position, i, 3) for i in range(3)], 1)
        drafts[:, 0] = 7
        decision = chooser.judge(Proposal(drafts, chooser.drafted(3), limits), z, position)[1]
        assert (decision.status == int(specnb.Status.IMPOSSIBLE)).all()


@pytest.mark.filterwarnings("error")
def test_logits_beyond_float32_are_infinite_without_a_warning():
    z = torch.zeros(6, 4, 50, dtype=torch.float64)
    z[:, :, 9:] = torch.finfo(torch.float64).min
    position, limits = np.zeros(6, np.int64), np.full(6, 3)
    exact, estimated = choosers("token", 5, np.arange(6))
    with np.errstate(all="raise"):
        found = round_of(estimated, z, z[:, :3], position, limits, False)
    assert found == round_of(exact, z, z[:, :3], position, limits, False)


def test_decoding_estimates_unless_somebody_asks_for_the_rows(monkeypatch):
    target, draft, tokenizer = specnb.load_pair()
    prompt, used = tokenizer("What is it?", return_tensors="pt").input_ids, []
    plain = Estimating.judge
    monkeypatch.setattr(Estimating, "judge", lambda *a: used.append(1) or plain(*a))
    asked, exact = [], Chooser.verify
    monkeypatch.setattr(Chooser, "verify", lambda *a: asked.append(1) or exact(*a))
    drafter = specnb.drafters.ModelDrafter(draft)
    run = specnb.generate(target, drafter, prompt, max_new_tokens=60, seed=3, eos_token_id=None)
    rounds = len(used)
    assert rounds > 10
    assert len(asked) <= rounds // 4
    again = specnb.generate(target, drafter, prompt, max_new_tokens=60, seed=3, eos_token_id=None, record=True)
    assert len(used) == rounds
    assert torch.equal(run.sequences, again.sequences)
    assert run.rounds == again.rounds
    assert run.replay(2).verdict.tokens.tolist()
    assert len(used) == rounds
