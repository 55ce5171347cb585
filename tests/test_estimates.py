"""Estimates decide what the contract decides, and leave what is on the knife's edge to it."""

import numpy as np
import pytest

from specnb.backends import bounds, numpy_estimated_filters, numpy_estimates
from specnb.backends import numpy as reference
from specnb.backends.numpy_logits import exp2, processed
from specnb.backends.numpy_mass import pick, residual, weights

U = 2.0**-24
VOCABULARIES = (1, 2, 3, 129, 1024, 1025, 5000)
TEMPERATURES = (1e-3, 0.3, 1.0, 7.0, 1e3)


def guess(z, temperature, filters=(None, None, None)):
    """Return the estimate and the contract's probabilities of logits [R, k, V]."""
    T = np.full(len(z), temperature)
    parameters = T, *(None if one is None else np.full(len(z), one) for one in filters)
    how = numpy_estimates.Parameters.of(*parameters)
    return numpy_estimates.estimate(z, how, np.empty_like(z)), processed(z, parameters)


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
        told = [bounds.drawn(mass, word) for word in words]
        assert all(token in (None, one) for token, one in zip(told, right, strict=True))
        together = bounds.all_drawn(np.broadcast_to(mass, (len(words), V)), words)
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
            told = numpy_estimates.token_verdict(0, [x], [q_found], p_found, (a, f))
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
                told = numpy_estimates.block_verdict(
                    0, draft[0].tolist(), [found for found, _ in pairs], p_found, words
                )
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
    monkeypatch.setattr(bounds, "MASS_ERROR", 0.0)
    with pytest.raises(AssertionError):
        test_a_draw_on_the_border_is_right_or_in_doubt(V)


FILTERS = [(5, None, None), (None, 0.8, None), (None, None, 0.05), (40, 0.95, 1e-3), (0, 1.0, 0.0), (1, 1e-6, 0.9)]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 7.0])
@pytest.mark.parametrize("V", [2, 129, 1025])
def test_filters_drop_what_the_contract_drops_or_leave_a_doubt(V, temperature, filters):
    z = logits(np.random.default_rng(V), V, rows=60)
    found, exact = guess(z, temperature, filters)
    doubt = np.isnan(found.total[:, 0])
    assert doubt.mean() < 0.3  # equal logits and saturated ones
    for r in np.flatnonzero(~doubt):
        row = found.row(r, 0)
        assert (np.abs(row - exact[r, 0]) <= numpy_estimates.error(V) * row + numpy_estimates.NEGLIGIBLE).all()


def test_a_threshold_on_the_border_is_right_or_in_doubt():
    """top_p is the mass above a token, or a step beside it; min_p the share of one."""
    z = logits(np.random.default_rng(3), 129, rows=1)
    whole = processed(z, (np.ones(1), None, None, None))[0, 0].astype(np.float64)
    doubts = 0
    for mass in np.sort(whole)[::-1].cumsum()[:60]:
        for top_p in np.clip([mass - 2.0**-26, mass, mass + 2.0**-26], 1e-9, 1 - 2.0**-53):
            found, exact = guess(z, 1.0, (None, float(top_p), None))
            doubts += np.isnan(found.total).any()
            assert np.isnan(found.total).any() or ((found.mass > 0) == (exact > 0)).all()
    shares = exp2(((z - z.max()) * np.float32(np.log2(np.e))).astype(np.float32))[0, 0]
    for share in shares:
        for min_p in (np.nextafter(share, np.float32(0)), share, np.nextafter(share, np.float32(1))):
            found, exact = guess(z, 1.0, (None, None, float(min_p)))
            doubts += np.isnan(found.total).any()
            assert np.isnan(found.total).any() or ((found.mass > 0) == (exact > 0)).all()
    assert doubts > 200


def test_a_wrong_bound_of_thresholds_is_caught(monkeypatch):
    for name in ("MASS_ERROR", "TRUNCATION", "NEGLIGIBLE"):
        monkeypatch.setattr(numpy_estimated_filters, name, 0.0)
    with pytest.raises(AssertionError):
        test_a_threshold_on_the_border_is_right_or_in_doubt()
