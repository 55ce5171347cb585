"""Every mistake of the catalogue, planted in the decoding loop, is caught by the G-test that passes without it."""

from __future__ import annotations

import numpy as np
import pytest
from goodness import LEVEL, cells, enumerated_law, g_test
from tiny_models import tiny

import specnb
from specnb import Sampling, laws, mistakes, rules
from specnb.backends import numpy as reference
from specnb.decoding.choosing import Chooser
from specnb.drafters import ModelDrafter

ROWS, LENGTH, V = 20_000, 4, 3
PROMPT = [2, 1, 0, 1]
HALF = Sampling(temperature=0.5)


def probabilities(sampling):
    return lambda logits: specnb.probabilities(logits, sampling)


def p_value(rule="token", sampling=None, gamma=2):
    """Return the p-value of LENGTH tokens, decoded ROWS times with seeds of their own, under the target's law."""
    sampling = sampling or Sampling()
    target, drafter = tiny(vocabulary=V), ModelDrafter(tiny(vocabulary=V, seed=39), Sampling())
    law = enumerated_law(target, PROMPT, LENGTH, probabilities(sampling))
    run = specnb.generate(
        target, drafter, [PROMPT] * ROWS, seed=np.arange(ROWS), max_new_tokens=LENGTH, gamma=gamma, rule=rule,
        sampling=sampling, eos_token_id=None,
    )  # fmt: skip
    return g_test(cells(run.sequences[:, len(PROMPT) :].numpy(), V), law)


def draws_the_arg_max(patch):
    patch.setattr(Chooser, "draw", lambda self, probs, position, index: probs.argmax(1))


def draws_from_the_top_2(patch):
    def draw(self, probs, position, index):
        kept = np.where(probs >= np.sort(probs, 1)[:, -2:-1], probs, 0)
        return self.module.draw(kept, self.live_seed, position, index)

    patch.setattr(Chooser, "draw", draw)


def verifies_the_raw_target(patch):
    post_init = Chooser.__post_init__

    def without_sampling(self):
        self.sampling = Sampling()
        post_init(self)

    patch.setattr(Chooser, "__post_init__", without_sampling)


def draws_the_bonus_from_the_draft(patch):
    verify = Chooser.verify

    def wrong(self, proposal, p, position):
        if proposal.q is not None and proposal.q.shape[1]:
            p = p.copy()
            p[np.arange(len(p)), proposal.lengths] = proposal.q[np.arange(len(p)), np.maximum(proposal.lengths, 1) - 1]
        return verify(self, proposal, p, position)

    patch.setattr(Chooser, "verify", wrong)


def changes_the_uniforms(change):
    def plant(patch):
        randomness = reference.randomness

        def wrong(seed, position, uniforms, B, G):
            return change(randomness, seed, position, uniforms, B, G)

        patch.setattr(reference, "randomness", wrong)

    return plant


def one_for_all(randomness, seed, position, uniforms, B, G):
    u, word, bad = randomness(seed, position, uniforms, B, G)
    return np.repeat(u[:, :1], G, axis=1), word, bad


def the_same_every_step(randomness, seed, position, uniforms, B, G):
    return randomness(seed, 0 * position, uniforms, B, G)


PLANTED = {
    "arg-max draft, soft q": draws_the_arg_max,
    "raw q after top-k": draws_from_the_top_2,
    "raw target": verifies_the_raw_target,
    "bonus from the draft": draws_the_bonus_from_the_draft,
    "one shared uniform": changes_the_uniforms(one_for_all),
    "uniforms reused across steps": changes_the_uniforms(the_same_every_step),
}
"""Scenarios, as one change to the loop or its backend each; rules are planted as what they are."""

TOO_SMALL = {"epsilon floor", "block with the token residual"}
"""Of total variation 1e-5, and on these models 0.008: no sample of this size shows them. `laws.falsify` does, and
tests/test_agreement.py plants both in a backend."""


def test_all_mistakes_are_planted():
    scenarios = {m.name for m in mistakes.CATALOGUE if not isinstance(m.use, rules.Rule)}
    assert set(PLANTED) == scenarios


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_harness_passes_what_is_right(rule):
    assert p_value(rule) > LEVEL
    assert p_value(rule, HALF) > LEVEL


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_scenario_is_caught(name, monkeypatch):
    PLANTED[name](monkeypatch)
    assert p_value(sampling=HALF if name == "raw target" else None, gamma=1 if "reused" in name else 2) < LEVEL


AS_RULES = [m for m in mistakes.CATALOGUE if m.name not in PLANTED and m.name not in TOO_SMALL]


@pytest.mark.parametrize("mistake", AS_RULES, ids=lambda m: m.name)
def test_a_planted_rule_is_caught(mistake):
    assert p_value(mistake.use) < LEVEL


@pytest.mark.parametrize("rule", [rules.lenient(0.5), rules.ensemble(0.5), rules.typical()], ids=lambda r: r.label)
def test_a_lossy_rule_decodes_its_own_law_and_says_so(rule):
    target, draft = tiny(vocabulary=V), tiny(vocabulary=V, seed=39)
    run = specnb.generate(
        target, ModelDrafter(draft), [PROMPT] * ROWS, seed=np.arange(ROWS), max_new_tokens=2, gamma=1, rule=rule,
        eos_token_id=None,
    )  # fmt: skip
    p, q = (rows_of(model) for model in (target, draft))
    expected = laws.joint_law(rule, p=p, q=q, gamma=1).reshape(-1)
    counts = cells(run.sequences[:, len(PROMPT) :].numpy(), V)
    assert g_test(counts, expected) > LEVEL > g_test(counts, laws.target_law(p, 2).reshape(-1))
    assert (run.rule, run.lossless) == (rule.label, False)
    assert "(lossy)" in repr(run)


def rows_of(model):
    """Return the function from a continuation to the model's next row."""
    from tiny_models import uncached

    def row(prefix):
        row = specnb.probabilities(uncached(model, [*PROMPT, *prefix])[-1].numpy()).astype(np.float64)
        return row / row.sum()

    return row
