"""`specnb.laws.certify`: a rule's joint law against the target's, on rows that depend on the prefix."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from specnb.arithmetic import FLOAT64
from specnb.errors import SpecnbError
from specnb.laws.certificates import Certificate, Coverage, Example
from specnb.laws.comparing import Comparison, NotExact, in_floats, in_fractions
from specnb.laws.examples import KINDS, exactly, trees
from specnb.laws.joint import Tree, accepted_laws, changed
from specnb.laws.joint import promised as promised_rows
from specnb.laws.optimum import most_accepted
from specnb.laws.rows import as_count
from specnb.laws.scenarios import Scenario, as_scenario
from specnb.rules import Rule

Size = tuple[int, int, int]
"""V, γ and the number of steps."""

SIZES: tuple[Size, ...] = (
    (2, 1, 1), (2, 2, 1), (2, 3, 1), (3, 1, 1), (3, 2, 1), (3, 3, 1), (4, 2, 1), (5, 2, 1), (9, 1, 1),
    (2, 1, 2), (2, 2, 2), (3, 1, 2),
)  # fmt: skip
REUSED_SIZES: tuple[Size, ...] = ((2, 1, 2),)
"""What steps share shows in two of them; the cells of their uniforms cost about 0.1 s for each example."""

EXACT_ENTRIES = 64
"""Joint laws of at most this many entries are compared in Fractions unless asked otherwise, about 10 ms for each."""


def certify(
    rule: str | Rule | Scenario, *, sizes: Sequence[Size] | None = None, examples: int = 5,
    exact: bool | None = None, seed: int = 0,
) -> Certificate:  # fmt: skip
    """Return what the joint laws of a rule or scenario say of its losslessness, on random and adversarial rows.

    sizes: the (V, γ, steps) to cover. examples: for each size and each kind in `KINDS`, as many tables with rows of
    their own after every prefix. exact: True compares all of them in Fractions, False none, None small ones. seed:
    of the tables.

    The certificate is NOT LOSSLESS if a joint law isn't what is promised, INCONCLUSIVE if nothing was verified (no
    example, no draft to judge, no law in Fractions under exact=True), else LOSSLESS: by these examples, which is
    evidence and no proof. Raises `SpecnbError` for a law that returns what are no laws.

    >>> certify("token", sizes=[(2, 1, 1)], exact=True).verdict
    'LOSSLESS'
    """
    use, examples, seed = as_scenario(rule), as_count("examples", examples, 0), as_count("seed", seed, 0)
    if exact not in (None, True, False):
        raise SpecnbError(f"exact is {exact!r}; expected True, False or None")
    if sizes is None:
        sizes = REUSED_SIZES if use.uniforms == "reused" else SIZES
    try:
        covered = itertools.product(_once_each(sizes), KINDS if examples else ())
        found = [_cover(use, kind, *size, examples, exact, seed) for size, kind in covered]
    except NotExact as error:
        return Certificate(use.label, seed, (), obstacle=str(error))
    wrong = [example for coverage, example in found if coverage.differs]
    worst = max(wrong, key=lambda example: example.distance, default=None)
    return Certificate(use.label, seed, tuple(coverage for coverage, _ in found), worst)


def _once_each(sizes: Sequence[Size]) -> list[Size]:
    if not isinstance(sizes, Sequence) or not all(isinstance(size, Sequence) and len(size) == 3 for size in sizes):
        raise SpecnbError(f"sizes is {sizes!r}; expected a list of (V, gamma, steps)")
    counts = ((as_count("V", V, 1), as_count("gamma", gamma, 0), as_count("steps", n, 1)) for V, gamma, n in sizes)
    return list(dict.fromkeys(counts))


def _cover(
    use: Scenario, kind: str, V: int, gamma: int, steps: int, examples: int, exact: bool | None, seed: int
) -> tuple[Coverage, Example]:
    """Return what examples of one kind and size show, and the worst of them."""
    target, drafted = trees(kind, vocabulary=V, gamma=gamma, steps=steps, examples=examples, seed=seed)
    compared, exact = _compared(use, target, drafted, gamma, steps, exact)
    accepted, best = _acceptance(use, target, drafted, gamma)
    at = int(compared.distances.argmax())
    coverage = Coverage(
        kind, V, gamma, steps, examples, exact, compared.distance(at),
        float(accepted.mean()), float(best.mean()), float((best - accepted).max()),
    )  # fmt: skip
    p, q = (_by_prefix(exactly(tree) if exact else tree, at) for tree in (target, drafted))
    tokens, emitted, promised = compared.most_apart(at)
    return coverage, Example(kind, V, gamma, steps, at, p, q, compared.distance(at), tokens, emitted, promised)


def _compared(
    use: Scenario, target: Tree, drafted: Tree, gamma: int, steps: int, exact: bool | None
) -> tuple[Comparison, bool]:
    """Return the comparison in Fractions where asked or cheap, and whether it is; floats go first, to judge the law."""
    compared = in_floats(use, target, drafted, gamma, steps)
    cheap = use.uniforms != "reused" and compared.emitted[0].size <= EXACT_ENTRIES
    if exact or (exact is None and cheap):
        try:
            return in_fractions(use, exactly(target), exactly(drafted), gamma, steps), True
        except NotExact:
            if exact:
                raise
    return compared, False


def _acceptance(use: Scenario, target: Tree, drafted: Tree, gamma: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected accepted drafts [N] of a step, and the most that a lossless rule has on these drafts."""
    accepted = accepted_laws(use, target, drafted, gamma, FLOAT64) @ np.arange(gamma + 1)
    drawn = [changed("drafting", use.drafting, rows, FLOAT64) for rows in drafted]
    return accepted, most_accepted([promised_rows(use, rows, FLOAT64) for rows in target], drawn, gamma)


def _by_prefix(tree: Tree, example: int) -> dict[tuple[int, ...], list]:
    """Return an example's rows by their prefix."""
    V = tree[0].shape[-1]
    return {
        tuple(map(int, prefix)): rows[example, i].tolist()
        for k, rows in enumerate(tree)
        for i, prefix in enumerate(np.ndindex(*(V,) * k))
    }
