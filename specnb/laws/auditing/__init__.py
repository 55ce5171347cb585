"""`specnb.laws.audit`: somebody's sampler on rows that show the faults of samplers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from specnb.errors import SpecnbError
from specnb.laws.auditing.calls import Sampler, name_of, quiet, takes_uniforms
from specnb.laws.auditing.cells import RESOLUTION
from specnb.laws.auditing.findings import Audit, Finding
from specnb.laws.auditing.gtests import LEVEL, POWER, count, g_test
from specnb.laws.auditing.midpoints import measure
from specnb.laws.auditing.probes import PROBES, probe
from specnb.laws.auditing.trials import TRIALS, Trial
from specnb.laws.joint import expected_accepted, target_law
from specnb.laws.rows import as_count


def audit(
    sampler: Sampler,
    *,
    trials: Sequence[Trial] = TRIALS,
    ratio: bool = True,
    injectable: bool | None = None,
    resolution: Fraction = RESOLUTION,
    samples: int = 5_000,
    seed: int = 0,
) -> Audit:
    """Return what a sampler's decisions say of its losslessness, and what it does at the boundaries.

    Drafts are drawn from q, as they should be. If its uniforms can be chosen, its joint law is found exactly, by
    cells that are tried in the middle and near every corner; else it is counted and compared by G-tests.
    INCONCLUSIVE if nothing was verified.

    Parameters
    ----------
    sampler : a function (draft int64 [G], q float64 [G, V], p float64 [G+1, V], uniforms float64 [G+1]) → the
        emitted tokens, a list or an array that may be padded with −1; or of (draft, q, p) if it draws for itself. With
        an attribute `batch`, the same function for uniforms [B, G+1], it is called less often.
    trials : the rows to try it on.
    ratio : whether it should keep a draft with probability min(1, p/q), as the rules `token` and `block` do at one
        draft; False leaves out the boundary probes that take this for granted.
    injectable : whether it takes uniforms; None reads its signature.
    resolution : changes of its mind are located to this; faults that are finer stay unseen, as may those on a few
        per cent of the uniforms that keep away from the corners of all cells. So a law that is off by less than that
        may be one that was not wholly seen: of a sampler that shuffles its uniforms, say. A sampler that computes in
        float32 needs about 2^-18.
    samples, seed : runs per trial of a sampler that draws for itself, and the seed of its drafts.

    >>> def always_the_draft(draft, q, p, uniforms):
    ...     return [*draft, 0]
    >>> audit(always_the_draft).verdict
    'NOT LOSSLESS'
    """
    injectable = takes_uniforms(sampler) if injectable is None else injectable
    samples, seed = as_count("samples", samples, 1), as_count("seed", seed, 0)
    if not 0 < resolution < 1:
        raise SpecnbError(f"resolution is {resolution!r}; expected a number between 0 and 1")
    with quiet():
        if injectable:
            findings = [_measured(sampler, trial, Fraction(resolution)) for trial in trials]
            method = f"exact law, from midpoints of cells of its uniforms; changes located to {float(resolution):.0e}"
        else:
            findings = [_counted(sampler, trial, samples, seed, LEVEL / len(trials)) for trial in trials]
            method = f"G-tests of {samples} runs per trial, of level {LEVEL:g} in all and power {POWER:g}"
        probes = [each for each in PROBES if ratio or not each.ratio]
        return Audit(name_of(sampler), method, tuple(findings), probe(sampler, probes, injectable))


def _measured(sampler: Sampler, trial: Trial, resolution: Fraction) -> Finding:
    """Return the exact finding of a trial."""
    rows = {"p": trial.p, "q": trial.q, "gamma": trial.gamma}
    measured = measure(sampler, **rows, steps=trial.steps, resolution=resolution)
    return Finding(trial, measured, target_law(trial.p, measured.law.ndim), expected_accepted("block", **rows))


def _counted(sampler: Sampler, trial: Trial, samples: int, seed: int, level: float) -> Finding:
    """Return the finding of a trial by a G-test."""
    measured = count(sampler, trial, samples, seed)
    target = target_law(trial.p, measured.law.ndim)
    best = expected_accepted("block", p=trial.p, q=trial.q, gamma=trial.gamma)
    return Finding(trial, measured, target, best, g_test(measured.law, target, samples, level))
