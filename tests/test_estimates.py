"""Estimates decide what the contract decides, and leave what is on the knife's edge to it."""

import numpy as np
import pytest
import torch

import specnb
from specnb import rules
from specnb.backends import numpy as reference
from specnb.backends import numpy_estimates
from specnb.backends.numpy_logits import LOG2_E, exp2, processed
from specnb.backends.numpy_mass import pick, residual, weights
from specnb.decoding import estimating
from specnb.decoding.choosing import Chooser, Proposal
from specnb.decoding.estimating import Estimating
from specnb.sampling import Sampling

U = 2.0**-24
VOCABULARIES = (1, 2, 3, 129, 1024, 1025, 5000)
TEMPERATURES = (1e-3, 0.3, 1.0, 7.0, 1e3)


def guess(z, temperature):
    """Return the estimate and the contract's probabilities of logits [R, k, V]."""
    T = np.full(len(z), temperature)
    scale = (LOG2_E / T).astype(np.float32)[:, None, None]
    return numpy_estimates.estimate(z, scale, np.empty_like(z)), processed(z, (T, None, None, None))


def logits(rng, V, rows=12):
    """Return logits [rows, 1, V]: plain, saturated, flat, far apart, mostly −inf, tied."""
    z = (rng.normal(size=(rows, 1, V)) * 3).astype(np.float32)
    z[1::6] *= 10
    z[2::6] *= 1e-3
    z[3::6] *= 1e30
    z[4::6, 0, rng.random(V) < 0.9] = -np.inf
    z[4::6, 0, 0] = 0
    z[5::6] = np.round(z[5::6])
    return z


@pytest.mark.parametrize("V", VOCABULARIES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_an_estimate_is_within_its_bound(V, temperature):
    z = logits(np.random.default_rng(V), V)
    found, exact = guess(z, temperature)
    for r in range(len(z)):
        row = found.row(r, 0)
        slack = numpy_estimates.error(V) * row + numpy_estimates.NEGLIGIBLE
        assert (np.abs(row - exact[r, 0]) <= slack).all()
        np.testing.assert_allclose([found.at(r, 0, x) for x in range(V)], row, rtol=1e-15)


def test_both_ways_to_2_to_the_t_are_as_close_as_the_bounds_take_them_to_be():
    t = -np.random.default_rng(6).exponential(8, 10**6).astype(np.float32)
    t = np.concatenate([t, -np.arange(0, 100, 2.0**-12, np.float32), -(2.0 ** -np.arange(1, 26, dtype=np.float32))])
    true = np.exp2(t.astype(np.float64))
    assert (np.abs(exp2(t) - true) <= 1.8 * U * true + numpy_estimates.NEGLIGIBLE).all()
    assert (np.abs(np.exp2(t) - true) <= 4 * U * true + numpy_estimates.NEGLIGIBLE).all()


def borders(w):
    """Return words at which one token of integer masses [V] ends and the next begins, and one beside them."""
    cumulative, whole = w.cumsum().tolist(), int(w.sum())
    at = [-(-c * 2**64 // whole) for c in cumulative[:-1]]
    return [word for a in at for word in (a - 1, a) if 0 <= word < 2**64]


@pytest.mark.parametrize("V", [2, 3, 129, 1025])
def test_a_draw_on_the_border_is_right_or_in_doubt(V):
    z = logits(np.random.default_rng(V), V)
    found, exact = guess(z, 1.0)
    doubts = 0
    for mass, p in zip(found.mass[:, 0], exact[:, 0], strict=True):
        w = weights(p.astype(np.float64))
        words = borders(w)
        right = pick(np.broadcast_to(w, (len(words), V)), np.array(words, np.uint64))[0].tolist()
        told = [numpy_estimates.drawn(mass, word) for word in words]
        assert all(token in (None, one) for token, one in zip(told, right, strict=True))
        together = numpy_estimates.all_drawn(np.broadcast_to(mass, (len(words), V)), words)
        assert together.tolist() == [-1 if token is None else token for token in told]
        doubts += told.count(None)
    assert doubts > 0


def knife(rng, V):
    """Return estimates and probabilities of a draft's row and of two of the target's, a token and words to judge by.

    The words are at the border of acceptance, of acceptance with one step more or less, and of the correction's tokens.
    """
    z = (rng.normal(size=(1, 2, V)) * 2).astype(np.float32)
    p_found, p = guess(z, 1.0)
    q_found, q = guess(z[:, :1] + rng.normal(size=(1, 1, V)).astype(np.float32), 1.0)
    x = int(rng.integers(0, V))
    ratio = min(float(p[0, 0, x]) / float(q[0, 0, x]), 1.0)
    accepting = [int(np.clip(int(ratio * 2**53) + step, 0, 2**53 - 1)) << 11 for step in (-1, 0, 1)]
    final = borders(residual(p[:, 0].astype(np.float64), q[:, 0].astype(np.float64), np.ones(1))[0])
    return (p_found, q_found), (p, q), x, [(a, f) for a in (*accepting, 2**64 - 1) for f in final[:40]]


def decided():
    """Return how many of the knife's verdicts are in doubt, and how many are wrong."""
    doubt = mistakes = 0
    for seed in range(12):
        (p_found, q_found), (p, q), x, words = knife(np.random.default_rng(seed), 9)
        u = np.array([[(a >> 11) * 2.0**-53, 0.0] for a, _ in words])
        for (a, f), u_b in zip(words, u, strict=True):
            w = residual(p[:, 0].astype(np.float64), q[:, 0].astype(np.float64), np.ones(1))
            accepted = bool(u_b[0] * float(q[0, 0, x]) < float(p[0, 0, x]))
            w = weights(p[:, 1].astype(np.float64)) if accepted else w
            right = int(accepted), int(pick(w, np.array([f], np.uint64))[0][0])
            told = numpy_estimates.judged(0, [x], [q_found], p_found, (a, f))
            doubt += told[1] is None
            mistakes += told[1] is not None and told != right
    return doubt, mistakes


def test_a_verdict_on_the_border_is_right_or_in_doubt():
    doubt, mistakes = decided()
    assert doubt > 100
    assert mistakes == 0


LAST = 2**53 - 1


def block_decided():
    """Return how many verdicts of the rule block on the border of acceptance are in doubt, and how many are wrong."""
    doubt = mistakes = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        z = (rng.normal(size=(1, 3, 9)) * 2).astype(np.float32)
        p_found, p = guess(z, 1.0)
        pairs = [guess(z[:, i : i + 1] + rng.normal(size=(1, 1, 9)).astype(np.float32), 1.0) for i in range(2)]
        draft, q = rng.integers(0, 9, (1, 2)), np.concatenate([exact for _, exact in pairs], 1)

        def right(steps, draft=draft, q=q, p=p):
            uniforms = np.array([[*steps, 2**52 + 12345]]) * 2.0**-53
            return reference.verify_block(draft, q, p, None, None, None, 0, uniforms)

        for i in range(2):
            low, high = 0, LAST  # the first that isn't accepted, while the other never is
            while low < high:
                middle = (low + high) // 2
                accepted = right([middle if k == i else LAST for k in range(2)])[1][0] > i
                low, high = (middle + 1, high) if accepted else (low, middle)
            for step in (max(low - 1, 0), low, min(low + 1, LAST)):
                steps = [step if k == i else LAST for k in range(2)]
                tokens, n, _ = right(steps)
                words = [one << 11 for one in (*steps, 2**52 + 12345)]
                told = numpy_estimates.block(0, draft[0].tolist(), [found for found, _ in pairs], p_found, words)
                doubt += told[1] is None
                mistakes += told[1] is not None and told != (n[0], tokens[0, n[0]])
    return doubt, mistakes


def test_a_block_on_the_border_is_right_or_in_doubt():
    doubt, mistakes = block_decided()
    assert doubt > 60
    assert mistakes == 0


def test_a_wrong_bound_of_probabilities_is_caught(monkeypatch):
    monkeypatch.setattr(numpy_estimates, "error", lambda V: 0.0)
    assert decided()[1] > 0
    assert block_decided()[1] > 0


@pytest.mark.parametrize("V", [129, 1025])
def test_a_wrong_bound_of_masses_is_caught(V, monkeypatch):
    monkeypatch.setattr(numpy_estimates, "MASS_ERROR", 0.0)
    with pytest.raises(AssertionError):
        test_a_draw_on_the_border_is_right_or_in_doubt(V)


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
    monkeypatch.setattr(numpy_estimates, "MASS_ERROR", 10.0)
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


@pytest.mark.parametrize("more", [{"top_k": 5}, {"temperature": np.array([0.0, 1.0])}, {"min_p": 0.1, "top_p": 0.7}])
def test_filters_and_greedy_rows_are_exact(more):
    rng, rows = np.random.default_rng(1), np.arange(6)
    z = torch.from_numpy(rng.normal(size=(6, 4, 50)).astype(np.float32))
    exact, estimated = choosers("token", 5, rows, **more)
    position, limits = np.zeros(6, np.int64), np.full(6, 3)
    assert not estimated.simple
    assert round_of(exact, z, z[:, :3], position, limits, False) == round_of(
        estimated, z, z[:, :3], position, limits, False
    )
    mixed = choosers("token", 5, rows)[1].with_sampling(estimated.sampling)  # a drafter with filters of its own
    judge = choosers("token", 5, rows)
    drafts = np.stack([mixed.draft(z[:, i], position, i, 3) for i in range(3)], 1)
    proposal = Proposal(drafts, mixed.drafted(3), limits)
    one, other = (chooser.judge(proposal, z, position)[1] for chooser in judge)
    assert one.tokens.tolist() == other.tokens.tolist()


def test_a_narrower_draft_is_judged_exactly():
    rng, rows = np.random.default_rng(1), np.arange(6)
    z = torch.from_numpy(rng.normal(size=(6, 4, 50)).astype(np.float32))
    position, limits = np.zeros(6, np.int64), np.full(6, 3)
    exact, estimated = choosers("token", 5, rows)
    assert round_of(exact, z, z[:, :3, :40], position, limits, False) == round_of(
        estimated, z, z[:, :3, :40], position, limits, False
    )


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
