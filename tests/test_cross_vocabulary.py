"""A draft with another tokenizer: what is shared, what it reads, what it draws from, and that nothing else changes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from goodness import LEVEL, cells, detectable, enumerated_law, g_test
from tiny_models import tiny, uncached
from tiny_tokenizers import tiny_tokenizer
from tokenizers import decoders

import specnb
from specnb import Sampling, SpecnbError
from specnb.decoding.cache import CachedModel
from specnb.drafters import CrossVocabularyDrafter, ModelDrafter, shared_vocabulary
from specnb.drafters.cross_vocabulary import CrossVocabularyRun
from specnb.drafters.vocabularies import Translator, surfaces

LETTERS = ["a", "b", "c", "d"]
CASES = {  # the target's tokens, its model's vocabulary, the draft's tokens, its model's vocabulary
    "permuted": (LETTERS, 4, ["d", "a", "c", "b"], 4),
    "padded draft": (LETTERS, 4, ["b", "d", "c", "a"], 9),
    "padded target": (LETTERS, 5, ["d", "a", "c", "b"], 4),
    "few shared": (LETTERS, 4, ["x", "c", "y", "z", "a", "u"], 6),
    "one shared": (LETTERS, 4, ["x", "c"], 2),
    "longer in the draft's ids": (["a", "b", "ab", "aba"], 4, ["b", "a", "d"], 3),
    "written otherwise by the draft": (["a", "b", "c", "ca"], 4, ["b", "a", "bc", "ab", "c", "aba"], 6),
}


def pair(name, **options):
    """Return a target, a drafter and both tokenizers."""
    tokens, size, theirs, their_size = CASES[name]
    target_tokenizer, tokenizer = tiny_tokenizer(tokens), tiny_tokenizer(theirs)
    drafter = CrossVocabularyDrafter(tiny(vocabulary=their_size, seed=1), tokenizer, target_tokenizer, **options)
    return tiny(vocabulary=size), drafter


PROMPTS = [[3], [0, 2], [1, 2, 3, 1, 2], [0, 1, 0, 2, 2, 1, 3, 0]]


def decoded(target, drafter, prompts=PROMPTS, **options):
    run = specnb.generate(target, drafter, prompts, **{"max_new_tokens": 24, "seed": 0, "eos_token_id": None} | options)
    return run, [run.tokens(row) for row in range(len(prompts))]


@pytest.mark.parametrize("name", CASES)
def test_greedy_equals_plain_decoding(name):
    target, drafter = pair(name)
    for gamma in (1, 4):
        run, tokens = decoded(target, drafter, gamma=gamma, sampling=Sampling(0))
        assert tokens == decoded(target, None, sampling=Sampling(0))[1]
        assert run.stats.drafted.sum() > 0


@pytest.mark.parametrize("name", CASES)
def test_coupled_equals_plain_decoding_at_any_temperature(name):
    target, drafter = pair(name)
    for temperature in (0.4, 1.0):
        options = {"sampling": Sampling(temperature), "rule": "coupled", "seed": [3, 2**60, 0, 7], "eos_token_id": [1]}
        run, tokens = decoded(target, drafter, gamma=3, **options)
        assert tokens == decoded(target, None, **options)[1]
        assert run.stats.accepted.sum() > 0


ROWS, LENGTH = 6_000, 3
PROMPT = [2, 1, 3, 1, 2]


def p_value(name, rule="token", sampling=None, **options):
    target, drafter = pair(name, **options)
    V, sampling = target.config.vocab_size, sampling or Sampling()
    law = enumerated_law(target, PROMPT, LENGTH, lambda logits: specnb.probabilities(logits, sampling))
    run, _ = decoded(
        target, drafter, [PROMPT] * ROWS, seed=np.arange(ROWS), max_new_tokens=LENGTH, gamma=2, rule=rule,
        sampling=sampling,
    )  # fmt: skip
    assert 0 < run.stats.accepted.sum() < run.stats.drafted.sum()
    return g_test(cells(run.sequences[:, len(PROMPT) :].numpy(), V), law)


def test_the_g_tests_are_as_powerful_as_they_say():
    assert detectable(ROWS, 5**LENGTH) < 0.075


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("one shared", "longer in the draft's ids")])
def test_the_law_is_the_targets_in_batches(name):
    assert p_value(name) > LEVEL


@pytest.mark.parametrize("rule", ["block", "match"])
def test_the_law_is_the_targets_by_other_rules_and_samplings(rule):
    assert p_value("written otherwise by the draft", rule, Sampling(0.8, top_p=0.9)) > LEVEL


def test_rows_that_are_not_normalised_on_the_shared_tokens_are_caught(monkeypatch):
    """The mutant declares the draft's own probabilities of the shared tokens, here half of what was drawn from."""
    honest = CrossVocabularyRun.propose

    def declared(self, batch, limits):
        proposal = honest(self, batch, limits)
        proposal.q = None if proposal.q is None else proposal.q / 2
        return proposal

    monkeypatch.setattr(CrossVocabularyRun, "propose", declared)
    assert p_value("few shared") < LEVEL


def by_hand(run, target, drafter):
    """Return Σ over the judged drafts of Σ min(p, q/q(shared)), from uncached forwards on texts encoded whole."""
    shared = drafter.shared
    of = dict(zip(shared.target_ids.tolist(), shared.draft_ids.tolist(), strict=True))
    total = 0.0
    for round_ in run.rounds:
        committed = run.sequences[round_.row, : round_.position].tolist()
        text = drafter.tokenizer(drafter.target_tokenizer.decode(committed)).input_ids or [0]
        for i in range(min(len(round_.draft), round_.accepted + 1)):
            p = uncached(target, [*committed, *round_.draft[:i]])[-1].softmax(-1).double().numpy()
            row = uncached(drafter.model, [*text, *(of[x] for x in round_.draft[:i])])[-1]
            q = shared.restrict(row.softmax(-1))
            total += np.minimum(p[: len(q)], q).sum()
    return total


@pytest.mark.parametrize("name", CASES)
def test_alpha_is_the_overlap_with_the_restricted_row(name):
    """It is exact only if the cache holds the text as the draft's tokenizer writes it, after every rejection."""
    target, drafter = pair(name)
    run, _ = decoded(target, drafter, gamma=3, record=True)
    np.testing.assert_allclose(run.stats.overlap_at.sum(), by_hand(run, target, drafter), atol=1e-4)
    assert run.stats.accepted.sum() < run.stats.drafted.sum()


def test_a_draft_that_keeps_what_was_rewritten_is_noticed(monkeypatch):
    """The mutant believes that all it ever fed is still the text."""
    target, drafter = pair("written otherwise by the draft")
    monkeypatch.setattr("specnb.drafters.cross_vocabulary._common", lambda one, other: min(len(one), len(other)))
    run, _ = decoded(target, drafter, gamma=3, record=True)
    assert abs(run.stats.overlap_at.sum() - by_hand(run, target, drafter)) > 0.1


def test_a_draft_with_permuted_ids_drafts_what_the_original_does():
    order = [2, 0, 3, 1]  # the permuted draft's id i is the original's id order[i]
    original, permuted = tiny(vocabulary=4, seed=1), tiny(vocabulary=4, seed=1)
    with torch.no_grad():
        for layer in (permuted.model.embed_tokens, permuted.lm_head):
            layer.weight.copy_(layer.weight[order])
    tokenizers = tiny_tokenizer([LETTERS[i] for i in order]), tiny_tokenizer(LETTERS)
    run, tokens = decoded(tiny(vocabulary=4), CrossVocabularyDrafter(permuted, *tokenizers))
    same, expected = decoded(tiny(vocabulary=4), ModelDrafter(original))
    assert tokens == expected
    assert [r.draft for r in run.rounds] == [r.draft for r in same.rounds]


def test_the_cache_grows_with_a_text_that_is_longer_in_the_drafts_ids(monkeypatch):
    sizes, honest = [], CachedModel.__init__
    target, drafter = pair("longer in the draft's ids")
    decoded(target, drafter, [[3]], max_new_tokens=4)  # both models are checked once
    monkeypatch.setattr(
        CachedModel, "__init__", lambda self, model, rows, size: sizes.append(size) or honest(self, model, rows, size)
    )
    decoded(target, drafter, [[3, 3, 3]], gamma=2, max_new_tokens=60)
    run_sizes = sizes[1:]  # behind the target's
    assert run_sizes[0] == 0
    assert len(run_sizes) < 6
    assert all(b >= min(2 * a, 129) for a, b in itertools.pairwise(run_sizes))  # the draft has 128 positions


def test_beyond_the_drafts_positions_nothing_is_drafted():
    target, drafter = pair("permuted")
    short = CrossVocabularyDrafter(
        tiny("gpt2", vocabulary=4, seed=1, max_position_embeddings=12), drafter.tokenizer, drafter.target_tokenizer
    )
    run, tokens = decoded(target, short, gamma=3, rule="coupled")
    assert tokens == decoded(target, None)[1]
    for round_ in run.rounds:
        assert len(round_.draft) == 0 or round_.position + 3 <= 12
    assert run.stats.drafted.sum() > 8


ENDS = {"eos_token": "</s>", "pad_token": "<pad>"}


def test_ends_of_text_are_shared_by_what_they_are():
    target_tokenizer = tiny_tokenizer(["</s>", "a", "b", "<pad>"], **ENDS)
    tokenizer = tiny_tokenizer(["b", "<end>", "a"], eos_token="<end>", bos_token="<end>")
    shared = shared_vocabulary(target_tokenizer, tokenizer)
    assert dict(zip(shared.target_ids, shared.draft_ids, strict=True)) == {0: 1, 1: 2, 2: 0}
    target, draft = tiny(vocabulary=4), tiny(vocabulary=3, seed=1)
    drafter = CrossVocabularyDrafter(draft, tokenizer, target_tokenizer)
    run, tokens = decoded(target, drafter, [[0, 1, 2]] * 20, rule="coupled", eos_token_id=0, seed=np.arange(20))
    assert tokens == decoded(target, None, [[0, 1, 2]] * 20, eos_token_id=0, seed=np.arange(20))[1]
    assert any(0 in round_.draft[: round_.accepted] for round_ in run.rounds), "an end was drafted and accepted"


def test_special_tokens_of_the_prompt_become_the_drafts_own():
    roles = {"eos_token": "<2>", "bos_token": "<1>", "additional_special_tokens": ["<turn>", "<other>"]}
    target_tokenizer = tiny_tokenizer(["<1>", "<2>", "<turn>", "<other>", "a", "b"], **roles)
    tokenizer = tiny_tokenizer(
        ["b", "a", "<s>", "<e>", "<turn>"], bos_token="<s>", eos_token="<e>", additional_special_tokens=["<turn>"]
    )
    translate = Translator(target_tokenizer, tokenizer)
    assert translate(np.array([0, 4, 5, 2, 3, 5, 1])).tolist() == [2, 1, 0, 4, 0, 3]
    assert translate(np.array([3])).tolist() == [3]  # something has to be fed


def test_tokens_are_shared_whatever_sign_stands_for_a_space():
    _, _, byte_level = specnb.load_pair()
    sentencepiece = tiny_tokenizer(["<0x41>", "▁t", "A", "t", "▁", "q", "▁q"], decoders.Metaspace())
    shared = shared_vocabulary(byte_level, sentencepiece)
    found = {
        byte_level.convert_ids_to_tokens(int(t)): sentencepiece.convert_ids_to_tokens(int(d))
        for t, d in zip(shared.target_ids, shared.draft_ids, strict=True)
    }
    assert found == {"Ġt": "▁t", "A": "A", "t": "t", "q": "q", "Ġ": "▁"}
    assert not any("\ufffd" in text for text in surfaces(byte_level))


def test_the_bundled_pair_drafts_across_its_own_vocabulary():
    target, draft, tokenizer = specnb.load_pair()
    prompts = [tokenizer("ROMEO.\nWhat light is this").input_ids]
    options = {"max_new_tokens": 60, "gamma": 4}
    run, _ = decoded(target, CrossVocabularyDrafter(draft, tokenizer, tokenizer), prompts, **options)
    direct, _ = decoded(target, ModelDrafter(draft), prompts, **options)
    assert run.stats.accepted.sum() > 0.8 * direct.stats.accepted.sum()


def test_nothing_of_the_draft_changes():
    target, drafter = pair("few shared")
    model, tokenizer = drafter.model, drafter.tokenizer
    before = (model.config.to_dict(), {k: v.clone() for k, v in model.state_dict().items()}, tokenizer.get_vocab())
    decoded(target, drafter)
    assert model.config.to_dict() == before[0]
    assert all(torch.equal(v, before[1][k]) for k, v in model.state_dict().items())
    assert tokenizer.get_vocab() == before[2]


def test_vocabularies_without_a_common_token_are_an_error():
    target, _ = pair("permuted")
    drafter = CrossVocabularyDrafter(tiny(vocabulary=2), tiny_tokenizer(["x", "y"]), tiny_tokenizer(LETTERS))
    with pytest.raises(SpecnbError, match="shares no token with the target's; expected some"):
        decoded(target, drafter)


def test_rows_without_shared_mass_cannot_be_restricted():
    _, drafter = pair("one shared")
    assert repr(drafter.shared) == "SharedVocabulary(1 tokens)"
    with pytest.raises(SpecnbError, match="no mass on the shared tokens"):
        drafter.shared.restrict([1.0, 0.0])
