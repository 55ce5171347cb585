"""Every drafter decodes the target's law: greedy and coupled equality, G-tests in batches, and what it drafts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from goodness import LEVEL, cells, detectable, enumerated_law, g_test
from tiny_models import tiny, uncached

import specnb
from specnb import Sampling, SpecnbError
from specnb.decoding.cache import RowLayer
from specnb.decoding.choosing import Chooser
from specnb.drafters import EarlyExitDrafter, ModelDrafter, NGramDrafter, PromptLookupDrafter
from specnb.drafters.early_exit import first_layers

TEXT = np.random.default_rng(0).integers(0, 12, 400).tolist()
DRAFTERS = {
    "lookup": lambda: PromptLookupDrafter(),
    "unigram": lambda: NGramDrafter.train(TEXT, order=1),
    "bigram": lambda: NGramDrafter.train(TEXT, order=2),
    "trigram": lambda: NGramDrafter.train(TEXT, order=3, sampling=Sampling(0.7)),
    "early exit": lambda: EarlyExitDrafter(1),
    "all layers": lambda: EarlyExitDrafter(2),
    "model": lambda: ModelDrafter(tiny(seed=1)),
}
PROMPTS = [[3], [5, 2], [1, 2, 3, 1, 2], list(range(12))]
RANGE = "layers is {}; expected 1 … 2, the layers of LlamaForCausalLM"


def decoded(target, drafter, **options):
    run = specnb.generate(target, drafter, PROMPTS, **{"max_new_tokens": 24, "seed": 0, "eos_token_id": None} | options)
    return run, [run.tokens(row) for row in range(len(PROMPTS))]


@pytest.mark.parametrize("kind", ["llama sdpa", "qwen2 eager", "gpt2 sdpa"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_equals_plain_decoding(name, kind):
    kind, attention = kind.split()
    target = tiny(kind, attention=attention)
    greedy = {"sampling": Sampling(0), "eos_token_id": [4]}
    _, plain = decoded(target, None, **greedy)
    for gamma in (1, 4) if kind == "llama" else (3,):
        assert decoded(target, DRAFTERS[name](), gamma=gamma, **greedy)[1] == plain


@pytest.mark.parametrize("name", DRAFTERS)
def test_coupled_equals_plain_decoding_at_any_temperature(name):
    for temperature in (0.4, 1.0):
        options = {"sampling": Sampling(temperature), "eos_token_id": [4], "rule": "coupled", "seed": [3, 2**60, 0, 7]}
        _, plain = decoded(tiny(), None, **options)
        run, tokens = decoded(tiny(), DRAFTERS[name](), **options)
        assert tokens == plain
        assert run.stats.drafted.sum() > 0


ROWS, LENGTH, V = 10_000, 3, 4
PROMPT = [2, 1, 3, 1, 2]
SMALL = {
    "lookup": lambda: PromptLookupDrafter(),
    "lookup of pairs": lambda: PromptLookupDrafter(shortest=2),
    "unigram": lambda: NGramDrafter.train([0, 1, 1, 2, 3, 3, 3], order=1),
    "bigram": lambda: NGramDrafter.train([0, 1, 1, 2, 3, 3, 0, 2, 1, 3], order=2),
    "early exit": lambda: EarlyExitDrafter(1),
}


def p_value(drafter, rule="token", sampling=None):
    target, sampling = tiny(vocabulary=V), sampling or Sampling()
    law = enumerated_law(target, PROMPT, LENGTH, lambda logits: specnb.probabilities(logits, sampling))
    run = specnb.generate(
        target, drafter, [PROMPT] * ROWS, seed=np.arange(ROWS), max_new_tokens=LENGTH, gamma=2, rule=rule,
        sampling=sampling, eos_token_id=None,
    )  # fmt: skip
    assert 0 < run.stats.accepted.sum() < run.stats.drafted.sum()
    return g_test(cells(run.sequences[:, len(PROMPT) :].numpy(), V), law)


def test_the_g_tests_are_as_powerful_as_they_say():
    assert detectable(ROWS, V**LENGTH) < 0.05


@pytest.mark.parametrize("name", SMALL)
def test_the_law_is_the_targets_in_batches(name):
    assert p_value(SMALL[name]()) > LEVEL


@pytest.mark.parametrize(("name", "rule"), [("lookup", "match"), ("bigram", "block")])
def test_the_law_is_the_targets_by_other_rules(name, rule):
    assert p_value(SMALL[name](), rule, Sampling(0.8, top_k=3)) > LEVEL


def test_a_draft_that_declares_another_q_is_caught(monkeypatch):
    """The mutant declares the counts of a text that it doesn't draw from."""
    honest = NGramDrafter.row
    state = iter(range(10**9))
    monkeypatch.setattr(NGramDrafter, "row", lambda self, context: honest(self, context)[::-1] + next(state) % 2)
    assert p_value(SMALL["bigram"]()) > LEVEL  # what is drawn from is declared, whatever it is

    def declared(self, drafts):
        return np.full((len(self.rows), drafts, V), 1 / V, np.float32)

    monkeypatch.setattr(Chooser, "drafted", declared)
    assert p_value(SMALL["bigram"]()) < LEVEL


def test_lookup_drafts_the_continuation_of_the_longest_match_beside_rows_that_found_nothing():
    prompts = [[7, 8, 9, 1, 7, 8, 5, 9, 7, 8, 9], [1, 2, 3], [4, 4, 4]]
    run = specnb.generate(tiny(), PromptLookupDrafter(), prompts, max_new_tokens=5, gamma=3, seed=0)
    first = {round_.row: round_.draft for round_ in run.rounds[:3]}
    assert first == {0: (1, 7, 8), 1: (), 2: (4, 4, 4)}
    pairs = specnb.generate(tiny(), PromptLookupDrafter(2), [[3, 9, 1, 9]], max_new_tokens=2, gamma=1, seed=0)
    assert pairs.rounds[0].draft == ()
    assert run.stats.draft_calls == 0


def test_lookup_accepts_a_text_that_repeats_itself():
    """A target that copies: greedy, it goes round in a loop, and the loop is drafted."""
    run, _ = decoded(tiny(), PromptLookupDrafter(), sampling=Sampling(0), gamma=4, max_new_tokens=80)
    assert run.stats.accepted.sum() / run.stats.drafted.sum() > 0.4  # by chance, 1 of 12


def test_ngram_counts_are_those_of_the_text_and_back_off():
    drafter = NGramDrafter.train([[0, 1, 2], [0, 1, 3], [5]], order=3)
    assert drafter.row([9, 0, 1]).tolist() == [0, 0, 1, 1, 0, 0]
    assert drafter.row([9, 9, 1]).tolist() == [0, 0, 1, 1, 0, 0]
    assert drafter.row([0, 2]).tolist() == [2, 2, 1, 1, 0, 1]  # nothing followed 2: no n-gram crosses texts
    assert drafter.row([]).tolist() == [2, 2, 1, 1, 0, 1]
    tensor = NGramDrafter.train(torch.tensor([[0, 1, 2], [0, 1, 3]]), order=2)
    assert tensor.row([1]).tolist() == [0, 0, 1, 1]
    assert (tensor.order, tensor.vocabulary) == (2, 4)


def test_ngram_q_is_the_distribution_of_the_counts():
    drafter = NGramDrafter.train([1, 2, 1, 3, 1, 2], order=2)
    run = specnb.generate(tiny(), drafter, [[1]] * 400, max_new_tokens=2, gamma=1, seed=3)
    drafted = np.bincount([round_.draft[0] for round_ in run.rounds if round_.draft], minlength=4)
    assert set(np.flatnonzero(drafted)) == {2, 3}
    assert abs(drafted[2] / drafted.sum() - 2 / 3) < 0.1


def test_ngram_trains_on_text_with_a_tokenizer():
    _, _, tokenizer = specnb.load_pair()
    texts = ["To be, or not to be", "that is the question"]
    drafter = NGramDrafter.train(texts, tokenizer=tokenizer)
    ids = tokenizer(texts[0]).input_ids
    assert drafter.row(ids[:1])[ids[1]] >= 1


@pytest.mark.parametrize(("message", "make"), {
    "order is 0; expected an integer >= 1": lambda: NGramDrafter.train([1], order=0),
    "the training text has no token": lambda: NGramDrafter.train([]),
    "is a string; expected a tokenizer": lambda: NGramDrafter.train("text"),
    "holds float64; expected integer ids": lambda: NGramDrafter.train([0.5]),
    "has negative ids": lambda: NGramDrafter.train([[1], [-1]]),
    "shortest is 3 and longest 2; expected": lambda: PromptLookupDrafter(3, 2),
    "layers is 0; expected an integer >= 1": lambda: EarlyExitDrafter(0),
    RANGE.format(3): lambda: decoded(tiny(), EarlyExitDrafter(3)),
    "trained on ids up to 20; expected at most 11": lambda: decoded(tiny(), NGramDrafter.train([20])),
}.items(), ids=lambda value: None)  # fmt: skip
def test_what_cannot_draft_says_why(message, make):
    with pytest.raises(SpecnbError, match=message):
        make()


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_early_exit_draws_from_its_layers_alone(kind):
    """Its q is that of a model with the first layers only, from an uncached forward."""
    target = tiny(kind, num_hidden_layers=3)
    alone = first_layers(target, 2)
    run, _ = decoded(target, EarlyExitDrafter(2), gamma=3, record=True)
    whole, _ = decoded(target, ModelDrafter(alone), gamma=3, record=True)
    assert run.sequences.tolist() == whole.sequences.tolist()
    np.testing.assert_allclose(run.stats.overlap_at, whole.stats.overlap_at, atol=1e-4)
    other = uncached(target, [1, 2, 3]) - uncached(alone, [1, 2, 3])
    assert float(other.abs().max()) > 0.1


def test_early_exit_with_all_layers_is_always_accepted():
    run, _ = decoded(tiny(), EarlyExitDrafter(2), gamma=4, max_new_tokens=30)
    assert run.stats.accepted.sum() == run.stats.drafted.sum() > 80


def test_early_exit_shares_the_cache_and_feeds_one_token_a_draft(monkeypatch):
    target, widths, allocations = tiny(num_hidden_layers=3), [], []
    allocate = RowLayer.lazy_initialization
    monkeypatch.setattr(
        RowLayer, "lazy_initialization", lambda self, *states: allocations.append(1) or allocate(self, *states)
    )
    hook = target.model.layers[0].register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    specnb.generate(target, EarlyExitDrafter(1), [[1, 2, 3]], max_new_tokens=20, gamma=2, seed=0)  # checks the target
    allocations.clear()
    widths.clear()
    run = specnb.generate(target, EarlyExitDrafter(1), [[1, 2, 3]], max_new_tokens=20, gamma=2, seed=0)
    hook.remove()
    assert len(allocations) == 3
    drafts = [len(round_.draft) for round_ in run.rounds]
    expected = []
    for i, n in enumerate(drafts):
        expected += [3 if i == 0 and k == 0 else 1 for k in range(n)] + [(3 if i == 0 else 1) + n]
    assert widths == expected


def test_early_exit_leaves_the_target_as_it_was():
    target = tiny(num_hidden_layers=3)
    layers, config = list(target.model.layers), target.config.to_dict()
    decoded(target, EarlyExitDrafter(1))
    assert list(target.model.layers) == layers
    assert target.config.to_dict() == config
