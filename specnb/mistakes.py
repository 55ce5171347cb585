"""What real speculative decoders got wrong, kept as exact laws: rules, and right rules in wrong use.

Each is caught by `specnb.laws.falsify`, and its law is a number to assert. Boundary faults, which no law over the
reals shows, are samplers in `specnb.samplers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from specnb import rules
from specnb.errors import SpecnbError
from specnb.laws import Counterexample, Scenario, falsify
from specnb.rules import Rule, acceptance, draft_by_draft, normalised, residual


@dataclass(frozen=True)
class Mistake:
    """A rule or a scenario that isn't lossless: its name, what goes wrong, and where it was seen."""

    name: str
    use: Rule | Scenario
    story: str
    seen: str

    @cached_property
    def smallest(self) -> Counterexample:
        """Return the first counterexample of `specnb.laws.falsify`."""
        found = falsify(self.use)
        assert found is not None, f"{self.name} is no mistake on the default grid"
        return found

    @property
    def missed_by(self) -> tuple[str, ...]:
        """Return the tests, of a law that they measure exactly, which see nothing wrong on those rows."""
        return tuple(test for test, distance in self.smallest.seen_by().items() if distance == 0)


def arg_max(rows: Any, xp: Any) -> Any:
    """Return one-hot rows at the arg-max, lowest id first."""
    entries = [rows[..., v : v + 1] for v in range(rows.shape[-1])]
    top = entries[0]
    for entry in entries[1:]:
        top = xp.max(top, entry)
    taken, hits = 0 * entries[0], []
    for entry in entries:
        hits.append(xp.where(top - entry, 0, 1) * (1 - taken))
        taken = taken + hits[-1]
    return xp.join(hits, -1)


def top_k(k: int) -> Callable[[Any, Any], Any]:
    """Return the change of rows to their k largest entries, normalised; entries that tie with the last stay."""

    def keep(rows: Any, xp: Any) -> Any:
        larger = xp.sum(xp.where(rows[..., None, :] - rows[..., :, None], 1, 0))[..., 0]
        return normalised(xp.where(k - larger, rows, 0), xp)

    return keep


def sharpened(rows: Any, xp: Any) -> Any:
    """Return rows squared and normalised: the temperature 1/2."""
    return normalised(rows * rows, xp)


def _arg_max_everywhere(draft, q, p, xp):
    lengths, correction = rules.token(draft, q, p, xp)
    return lengths, arg_max(correction, xp)


def _threshold(draft, q, p, xp):
    drafted = p[..., : draft.shape[-1], :]
    accept = 1 - xp.where(xp.number(Fraction(1, 4)) - xp.at(drafted, draft), 1, 0)
    return draft_by_draft(accept, residual(q, drafted, xp), p, xp)


def _resample_from_p(draft, q, p, xp):
    return rules.token(draft, q, p, xp)[0], normalised(p, xp)


def _swapped_ratio(draft, q, p, xp):
    drafted = p[..., : draft.shape[-1], :]
    accept = acceptance(xp.at(drafted, draft), xp.at(q, draft), xp)
    return draft_by_draft(accept, residual(q, drafted, xp), p, xp)


def _epsilon_floor(draft, q, p, xp):
    drafted = p[..., : draft.shape[-1], :]
    accept = acceptance(xp.at(q, draft), xp.at(drafted, draft), xp)
    floored = xp.max(drafted - q, xp.number(Fraction(1, 2**16)))
    return draft_by_draft(accept, normalised(floored, xp), p, xp)


def _block_with_token_residual(draft, q, p, xp):
    return rules.block(draft, q, p, xp)[0], rules.token(draft, q, p, xp)[1]


def _block_without_rescue(draft, q, p, xp):
    """Judge by the block rule's tests, but stop at the first that fails."""
    G = draft.shape[-1]
    a, tests = xp.ones(p), []
    ratio = xp.divide(xp.at(p[..., :G, :], draft), xp.at(q, draft))
    for i in range(G):
        a = xp.min(1, a * ratio[..., i : i + 1])
        if i + 1 < G:
            S = xp.sum(xp.max(a[..., None] * p[..., i + 1 : i + 2, :] - q[..., i + 1 : i + 2, :], 0))[..., 0]
            tests.append(xp.where(S + (1 - a), xp.divide(S, S + (1 - a)), 1))
        else:
            tests.append(a)
    correction = rules.block(draft, q, p, xp)[1]
    if not G:
        return xp.ones(p), correction
    return draft_by_draft(xp.join(tests, -1), correction[..., :G, :], p, xp)[0], correction


def _rule(name: str, law: Callable, story: str, seen: str) -> Mistake:
    return Mistake(name, Rule(name, law, "specnb.mistakes", lossless=False), story, seen)


def _use(name: str, story: str, seen: str, **of_token: Any) -> Mistake:
    return Mistake(name, Scenario("token", name=name, **of_token), story, seen)


CATALOGUE = (
    _rule("arg-max correction", _arg_max_everywhere,
          "The correction and the bonus are the likeliest token of their law, not a draw from it.",
          "a reference implementation in a published teardown"),
    _rule("threshold on p", _threshold,
          "A draft is kept iff p(x) is at least a threshold (here 1/4), whatever q was.",
          "typical acceptance, taken for lossless"),
    _rule("resample from p", _resample_from_p,
          "After a rejection the token comes from p, not from (p - q)+.", "many first implementations"),
    _rule("swapped ratio", _swapped_ratio,
          "A draft is kept with probability min(1, q/p).", "papers that call the target q"),
    _rule("epsilon floor", _epsilon_floor,
          "The residual is floored at 2^-16 before it is normalised, so impossible tokens come out.",
          "vllm-ascend 13933, naive-speculate"),
    _rule("block with the token residual", _block_with_token_residual,
          "Block acceptance, corrected from (p - q)+ in place of (a p - q)+.", "block verification, half adopted"),
    _rule("block without rescue", _block_without_rescue,
          "Block acceptance that stops at the first failed test.", "block verification, half adopted"),
    _use("arg-max draft, soft q", "The draft is greedy, and verified as if it had been drawn from q.",
         "greedy drafters", drafting=arg_max),
    _use("raw q after top-k", "The draft is drawn from the top 2 of q, and verified against q itself.",
         "transformers 47932, 32867", drafting=top_k(2)),
    _use("raw target", "A temperature of 1/2 is promised, and p is verified without it.",
         "processors skipped in verification", promised=sharpened),
    _use("bonus from the draft", "After full acceptance the bonus is drawn from the draft's next row.",
         "off by one model", bonus="draft"),
    _use("one shared uniform", "One uniform judges every draft of a step.", "FlashInfer 424", uniforms="shared"),
    _use("uniforms reused across steps", "Every step judges by the same uniforms.",
         "vLLM 47386, LLMSpeculativeSampling", uniforms="reused", steps=2),
)  # fmt: skip


def get(name: str) -> Mistake:
    """Return the mistake of that name.

    >>> get("resample from p").use.lossless
    False
    """
    for mistake in CATALOGUE:
        if mistake.name == name:
            return mistake
    raise SpecnbError(f"mistake {name!r} is unknown; expected one of {', '.join(m.name for m in CATALOGUE)}")


def table() -> list[dict[str, Any]]:
    """Return the catalogue as rows for a data frame: each mistake's smallest counterexample and who misses it."""
    return [
        {
            "mistake": mistake.name, "gamma": found.gamma, "p": _row(found.p), "q": _row(found.q),
            "total variation": found.distance, "first token": found.first_token,
            "missed by": ", ".join(mistake.missed_by) or "no test", "seen": mistake.seen,
        }
        for mistake in CATALOGUE for found in [mistake.smallest]
    ]  # fmt: skip


def _row(row: list[Any]) -> str:
    return f"({', '.join(map(str, row))})"
