"""How often drafts are accepted, by position and by request, beside the exact chance of the rows that were judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from specnb import rules
from specnb.decoding.arguments import check_count, check_drafter
from specnb.decoding.choosing import OVERLAPS
from specnb.decoding.loop import generate
from specnb.errors import SpecnbError
from specnb.rules import Rule
from specnb.sampling import Sampling

if TYPE_CHECKING:
    import pandas as pd

    from specnb.decoding.generation import Generation


@dataclass(frozen=True, eq=False, repr=False)
class Acceptance:
    """What a run of B requests judged and accepted, with gamma drafts per round.

    judged, accepted: int64 [B, gamma], rounds in which draft i was judged, because all before it were accepted, and
    in which it was accepted. overlap: float64 [B, gamma], the exact chance to accept summed over the judged rows
    (rule token: Σ min(p, q) = 1 − TV), or None where the rule's chance isn't known. emitted, rounds: int64 [B].
    rule: its label. interrupted: True if the run was stopped from the keyboard.
    """

    judged: np.ndarray
    accepted: np.ndarray
    overlap: np.ndarray | None
    emitted: np.ndarray
    rounds: np.ndarray
    rule: str = "token"
    interrupted: bool = False

    @classmethod
    def of(cls, run: Generation) -> Acceptance:
        """Return what a generation accepted; with its exact chances if it was made with record=True."""
        s = run.stats
        counts = (s.reached, s.accepted_at, s.overlap_at, s.emitted, s.rounds)
        return cls(*counts, run.rule, run.interrupted)

    @property
    def gamma(self) -> int:
        """Drafts per round."""
        return self.judged.shape[1]

    @property
    def alpha(self) -> np.ndarray:
        """Acceptance at each position given that it was judged, float64 [gamma]; NaN where nothing was."""
        return _ratio(self.accepted.sum(0), self.judged.sum(0))

    @property
    def exact(self) -> np.ndarray:
        """What `alpha` estimates, float64 [gamma]: the mean of 1 − TV over the same rows; NaN if not recorded."""
        total = np.full(self.gamma, np.nan) if self.overlap is None else self.overlap.sum(0)
        return _ratio(total, self.judged.sum(0))

    @property
    def profile(self) -> np.ndarray:
        """The best estimate of the acceptance at each position: `exact`, else `alpha`, and 0 where never judged."""
        return np.nan_to_num(np.where(np.isnan(self.exact), self.alpha, self.exact))

    @property
    def pooled(self) -> float:
        """The one acceptance of all positions: accepted over judged drafts."""
        return float(_ratio(self.accepted.sum(), self.judged.sum()))

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of Wilson's score intervals of `alpha` (by SciPy), float64 [gamma] each.

        Judged rows differ in their chance to accept, which makes counts vary less than binomial ones: for the mean
        of those chances the intervals are, if anything, too wide. Raises `SpecnbError` unless 0 < level < 1.
        """
        if isinstance(level, bool) or not isinstance(level, (int, float, np.number)) or not 0 < level < 1:
            raise SpecnbError(f"level is {level!r}; expected a probability between 0 and 1, such as 0.95")
        counts = zip(self.accepted.sum(0).tolist(), self.judged.sum(0).tolist(), strict=True)
        ends = [
            stats.binomtest(k, n).proportion_ci(level, method="wilson") if n else (np.nan, np.nan) for k, n in counts
        ]
        low, high = np.array(ends).reshape(-1, 2).T
        return low, high

    @property
    def by_request(self) -> np.ndarray:
        """The acceptance of each request over all its positions, float64 [B]."""
        return _ratio(self.accepted.sum(1), self.judged.sum(1))

    @property
    def dispersion(self) -> float:
        """How much more requests differ than one α for all would let them: Pearson's χ² per degree of freedom.

        About 1 if every request has the same acceptance; NaN for fewer than two requests.
        """
        n, k, share = self.judged.sum(1), self.accepted.sum(1), self.pooled
        some, variance = n > 0, share * (1 - share)
        if some.sum() < 2 or not variance > 0:
            return float("nan")
        return float((((k - n * share) ** 2)[some] / (n[some] * variance)).sum() / (some.sum() - 1))

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per round of a request."""
        return float(_ratio(self.emitted.sum(), self.rounds.sum()))

    def to_frame(self, level: float = 0.95) -> pd.DataFrame:
        """Return one row per position: position (from 1), judged, accepted, alpha, low, high, exact."""
        import pandas as pd

        low, high = self.interval(level)
        counts = {"judged": self.judged.sum(0), "accepted": self.accepted.sum(0)}
        shares = {"alpha": self.alpha, "low": low, "high": high, "exact": self.exact}
        return pd.DataFrame({"position": np.arange(1, self.gamma + 1)} | counts | shares)

    def requests(self) -> pd.DataFrame:
        """Return one row per request: request, rounds, emitted, judged, accepted, alpha, tokens_per_round."""
        import pandas as pd

        counts = {"rounds": self.rounds, "emitted": self.emitted, "judged": self.judged.sum(1)}
        shares = {"alpha": self.by_request, "tokens_per_round": _ratio(self.emitted, self.rounds)}
        frame = pd.DataFrame(counts | {"accepted": self.accepted.sum(1)} | shares)
        return frame.rename_axis("request").reset_index()

    def __repr__(self) -> str:
        shares = ", ".join(f"{share:.3f}" for share in self.alpha)
        requests = f"{len(self.judged)} requests{', interrupted' if self.interrupted else ''}"
        return f"Acceptance(alpha=[{shares}], rule={self.rule!r}, {requests})"


def acceptance(
    target: Any,
    drafter: Any,
    input_ids: Any,
    *,
    gamma: int = 4,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    rule: str | Rule = "token",
    seed: Any = 0,
    attention_mask: Any = None,
    backend: str | None = None,
    progress: bool = True,
) -> Acceptance:
    """Decode all prompts in one batch and return what was accepted at each position, beside the exact chance.

    Parameters
    ----------
    target, drafter, input_ids, attention_mask, sampling, rule, seed, backend : as in `specnb.generate`. No request
        stops at an end-of-text.
    gamma : drafts per round, at least 1.
    max_new_tokens : tokens that each request emits, more than gamma.
    progress : show a bar on stderr. After Ctrl-C, what had been judged comes back.

    Returns
    -------
    Acceptance : with exact chances for the rules token, match and coupled.

    Raises
    ------
    SpecnbError : as `specnb.generate` does, or no round could draft gamma tokens.

    Examples
    --------
    >>> import specnb
    >>> target, draft, tokenizer = specnb.load_pair()
    >>> prompts = [tokenizer(text).input_ids for text in ("ROMEO.", "[Enter the King.")]
    >>> found = acceptance(target, specnb.drafters.ModelDrafter(draft), prompts, gamma=3, progress=False)
    >>> found.judged.shape, bool((found.accepted <= found.judged).all())
    ((2, 3), True)
    """
    gamma, max_new_tokens = check_drafting(drafter, gamma, max_new_tokens)
    rule = rules.get(rule)
    run = generate(
        target, drafter, input_ids, attention_mask=attention_mask, max_new_tokens=max_new_tokens, gamma=gamma,
        sampling=sampling, rule=rule, seed=seed, eos_token_id=None, backend=backend, progress=progress,
        record=rule.name in OVERLAPS and rules.RULES[rule.name] is rule,
    )  # fmt: skip
    return Acceptance.of(run)


def check_drafting(drafter: Any, gamma: Any, max_new_tokens: Any) -> tuple[int, int]:
    """Return gamma and max_new_tokens, or raise unless there is a drafter and at least one round of gamma drafts."""
    check_drafter(drafter)
    if drafter is None:
        raise SpecnbError("drafter is None; expected one of specnb.drafters, whose drafts are accepted or not")
    gamma = check_count("gamma", gamma, least=1)
    max_new_tokens = check_count("max_new_tokens", max_new_tokens)
    if max_new_tokens <= gamma:
        raise SpecnbError(f"max_new_tokens is {max_new_tokens}; expected more than gamma, {gamma}")
    return gamma, max_new_tokens


def _ratio(numerator: Any, denominator: Any) -> np.ndarray:
    """Return a ratio, NaN where nothing was counted."""
    denominator = np.asarray(denominator, float)
    out = np.full(denominator.shape, np.nan)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)
