"""Heads on the target's hidden states: lossless with any weights, and read from the right state.

That drafts come from the right state can't show in the law, which the target alone decides. So the rows q of every
round are compared with those made anew from uncached forwards.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from goodness import LEVEL, cells, detectable, enumerated_law, g_test
from tiny_models import PrefixModel, ScriptedDrafter, randomised, tiny

import specnb
from specnb import Sampling, SpecnbError
from specnb.decoding.cache import CachedModel
from specnb.decoding.heads_bench import MODEL, PLAIN, compare_heads
from specnb.decoding.states import States
from specnb.drafters import AdaptiveGamma, HeadsDrafter, IndependentHeads, SequentialHead, save_heads
from specnb.drafters.heads_modules import read_heads

DATA = Path(__file__).resolve().parent.parent / "data"
WIDTH = 16
KINDS = {"sequential": lambda: SequentialHead(WIDTH, 24), "independent": lambda: IndependentHeads(WIDTH, 3)}
PROMPTS = [[3], [5, 2], [1, 2, 3, 1, 2], list(range(12))]
NOISE = 1e-5
"""Probabilities from a cached and an uncached float32 forward of the same tiny model: 1e-6 was seen."""


def drafter(kind, sampling=None):
    return HeadsDrafter(randomised(KINDS[kind](), seed=7), sampling)


def decoded(target, drafter, **options):
    run = specnb.generate(target, drafter, PROMPTS, **{"max_new_tokens": 24, "seed": 0, "eos_token_id": None} | options)
    return run, [run.tokens(row) for row in range(len(PROMPTS))]


@pytest.mark.parametrize("model", ["llama sdpa", "qwen2 eager", "gpt2 sdpa", "hybrid sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_plain_decoding(kind, model):
    name, attention = model.split()
    target = tiny(name, attention=attention)
    greedy = {"sampling": Sampling(0), "eos_token_id": [4]}
    _, plain = decoded(target, None, **greedy)
    for gamma in (0, 1, 4, AdaptiveGamma(largest=4, least=0)):
        run, tokens = decoded(target, drafter(kind), gamma=gamma, **greedy)
        assert tokens == plain
        assert (run.stats.drafted.sum() > 0) == (gamma != 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.4, 1.0])
def test_coupled_equals_plain_decoding_token_for_token(kind, temperature):
    options = {"sampling": Sampling(temperature), "eos_token_id": [4], "rule": "coupled", "seed": [3, 2**60, 0, 7]}
    _, plain = decoded(tiny(), None, **options)
    run, tokens = decoded(tiny(), drafter(kind), **options)
    assert tokens == plain
    assert 0 < run.stats.accepted.sum() < run.stats.drafted.sum()


ROWS, LENGTH, V, PROMPT = 10_000, 4, 4, [2, 1, 3, 1, 2]


@pytest.mark.parametrize(("kind", "rule", "sampling"), [
    ("sequential", "token", Sampling()),
    ("sequential", "block", Sampling(0.8, top_k=3)),
    ("independent", "token", Sampling()),
    ("independent", "block", Sampling(1.3, top_p=0.9)),
])  # fmt: skip
def test_the_law_is_the_targets_in_batches(kind, rule, sampling):
    assert detectable(ROWS, V**LENGTH) < 0.07
    target = tiny(vocabulary=V)
    law = enumerated_law(target, PROMPT, LENGTH, lambda logits: specnb.probabilities(logits, sampling))
    run = specnb.generate(
        target, drafter(kind), [PROMPT] * ROWS, seed=np.arange(ROWS), max_new_tokens=LENGTH, gamma=2, rule=rule,
        sampling=sampling, eos_token_id=None,
    )  # fmt: skip
    assert 0 < run.stats.accepted.sum() < run.stats.drafted.sum()
    assert g_test(cells(run.sequences[:, len(PROMPT) :].numpy(), V), law) > LEVEL


def rows_anew(target, heads, round_, sequence):
    """Return q [G, V] of a round from an uncached forward over the text before it and teacher-forced heads."""
    ids = torch.cat([sequence[: round_.position], torch.tensor(round_.draft, dtype=torch.int64)])[None]
    with torch.no_grad():
        states, embedded = target.base_model(ids).last_hidden_state, target.get_input_embeddings()(ids)
        drafted = heads.along(states, embedded, len(round_.draft))
        logits = torch.stack([target.lm_head(state)[0, round_.position - 2] for state in drafted])
    return logits.softmax(-1).numpy()


def furthest(run, target, heads):
    """Return the largest difference of any q of a run from what it should be, and how many rows there were."""
    rounds = [round_ for round_ in run.rounds if round_.draft]
    found = [
        np.abs(run.replay(round_).q - rows_anew(target, heads, round_, run.sequences[round_.row])).max()
        for round_ in rounds
    ]
    return max(found), len(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_drafts_continue_the_last_state_of_the_accepted_prefix(kind, model):
    """Over prompts of different lengths, rejections, full acceptance, and rows that end early."""
    target, heads = tiny(model, vocabulary=5), drafter(kind)
    several = [[3], [1, 2, 3, 1, 2], [4, 0]]
    run = specnb.generate(target, heads, several, max_new_tokens=14, gamma=2, seed=[4, 5, 6], eos_token_id=0)
    accepted = {round_.accepted for round_ in run.rounds if len(round_.draft) == 2}
    assert accepted >= {0, 2}
    assert len(set(run.lengths.tolist())) > 1
    difference, rounds = furthest(run, target, heads.heads)
    assert difference < NOISE
    assert rounds > 6


def test_states_of_rejected_drafts_would_be_noticed(monkeypatch):
    """The mutant continues the last state of the whole block, whatever was accepted of it."""
    target, heads = tiny(vocabulary=5), drafter("sequential")
    honest = States.at
    monkeypatch.setattr(States, "at", lambda self, positions: honest(self, self.ends - 1))
    run = specnb.generate(target, heads, [[1, 2, 3]], max_new_tokens=12, gamma=2, seed=4, eos_token_id=None)
    assert furthest(run, target, heads.heads)[0] > 0.05


def test_the_first_round_drafts_nothing_and_the_prompt_is_read_once():
    widths, target = [], tiny()
    run = specnb.generate(target, drafter("sequential"), [[1, 2, 3]], max_new_tokens=1, gamma=2, seed=0)
    hook = target.model.register_forward_pre_hook(lambda _, args, kwargs: widths.append(kwargs), with_kwargs=True)
    run = specnb.generate(target, drafter("sequential"), [[1, 2, 3]], max_new_tokens=12, gamma=2, seed=0)
    hook.remove()
    fed = [(kwargs["input_ids"] if "input_ids" in kwargs else kwargs["inputs_embeds"]).shape[1] for kwargs in widths]
    drafts = [len(round_.draft) for round_ in run.rounds]
    assert drafts[0] == 0
    assert fed == [3] + [1 + n for n in drafts[1:]]
    assert run.stats.draft_calls == sum(drafts)


def test_independent_heads_run_once_a_round_and_draft_no_more_than_there_are():
    run, _ = decoded(tiny(), drafter("independent"), gamma=8)
    assert max(len(round_.draft) for round_ in run.rounds) == 3
    assert run.stats.draft_calls == len({round_.step for round_ in run.rounds if round_.draft})


def test_drafts_have_their_own_sampling_and_a_declared_q():
    run, _ = decoded(tiny(), drafter("sequential", Sampling(0.5, top_k=2)), gamma=2)
    q = run.replay(next(round_ for round_ in run.rounds if round_.draft)).q
    assert ((q > 0).sum(1) <= 2).all()


def test_a_request_does_not_depend_on_its_neighbours():
    _, together = decoded(tiny(), drafter("sequential"), seed=[1, 2, 3, 4], gamma=3)
    for row, prompt in enumerate(PROMPTS):
        alone = specnb.generate(
            tiny(), drafter("sequential"), [prompt], max_new_tokens=24, seed=[row + 1], gamma=3, eos_token_id=None
        )
        assert alone.tokens() == together[row]


def test_a_prefilled_cache_and_the_doorway_decode_the_same():
    target, ids = tiny(), torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        cache = target(input_ids=ids[:, :3], use_cache=True).past_key_values
    options = {"max_new_tokens": 12, "gamma": 3, "seed": 5, "sampling": Sampling(0)}
    with_cache = specnb.generate(target, drafter("sequential"), ids, cache=cache, **options)
    without = specnb.generate(target, None, ids, **options)
    assert with_cache.sequences.tolist() == without.sequences.tolist()
    method = specnb.custom_generate(drafter("independent"), gamma=3)
    greedy = {"do_sample": False, "max_new_tokens": 12}
    assert target.generate(ids, custom_generate=method, **greedy).tolist() == target.generate(ids, **greedy).tolist()


def test_a_paged_view_of_a_run_is_its_per_row_cache():
    run, _ = decoded(tiny(), drafter("sequential"), gamma=2)
    assert specnb.paged(run, block_size=4).moved == 0


def hooks_of(model):
    """Return the attributes and the hooks of every module of a model."""
    return {
        name: (sorted(module.__dict__), len(module._forward_hooks), len(module._forward_pre_hooks))
        for name, module in model.named_modules()
    }


class Failing(ScriptedDrafter):
    """Reads states as heads do, and fails."""

    def start(self, batch, chooser, gamma, target):
        target.states = States()
        return super().start(batch, chooser, gamma, target)


def test_models_heads_and_hooks_are_left_as_they_were():
    target, heads = tiny(), drafter("sequential")
    before, weights = hooks_of(target), [weight.clone() for weight in heads.heads.parameters()]
    config = target.config.to_dict()
    decoded(target, heads)
    with pytest.raises(RuntimeError, match="in the middle"):
        decoded(target, Failing([1] * 4, 12, interrupt_at=2, exception=RuntimeError("in the middle")))
    spoilt = target.model.layers[0].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        decoded(target, heads)  # in the forward, while the states are being taken
    spoilt.remove()
    assert hooks_of(target) == before
    assert target.config.to_dict() == config
    assert all(torch.equal(a, b) for a, b in zip(weights, heads.heads.parameters(), strict=True))


def test_a_target_in_sixteen_bits_gets_a_copy_of_the_heads():
    target, heads = tiny().to(torch.bfloat16), drafter("sequential")
    options = {"sampling": Sampling(1.0), "rule": "coupled", "gamma": 3}
    run, tokens = decoded(target, heads, **options)
    assert run.stats.drafted.sum() > 0
    assert len(tokens[0]) == 24
    assert {weight.dtype for weight in heads.heads.parameters()} == {torch.float32}


def test_nobody_who_takes_no_states_pays_for_them():
    cached = CachedModel(tiny(), 1, 8)
    cached.logits(torch.tensor([[1, 2]]), np.array([2]), keep=1)
    assert cached.states is None


def test_heads_come_back_from_their_file(tmp_path):
    for kind in KINDS:
        heads = drafter(kind).heads
        save_heads(heads, tmp_path / "heads.safetensors")
        again = HeadsDrafter.load(tmp_path / "heads.safetensors", Sampling(0.5))
        assert type(again.heads) is type(heads)
        assert again.heads.sizes == heads.sizes
        for name, weight in heads.state_dict().items():
            torch.testing.assert_close(again.heads.state_dict()[name], weight, rtol=1e-3, atol=1e-6)  # float16


def spoilt_heads():
    heads = drafter("sequential")
    torch.nn.init.constant_(heads.heads.scale, float("nan"))
    return heads


@pytest.mark.parametrize(("message", "make"), {
    "kind is 'medusa'; expected one of 'sequential', 'independent'": lambda: HeadsDrafter.bundled("medusa"),
    "kind is \\[\\]; expected one of": lambda: HeadsDrafter.bundled([]),
    "wide is 0; expected an integer >= 1": lambda: SequentialHead(16, 0),
    "heads is 1.5; expected an integer >= 1": lambda: IndependentHeads(16, 1.5),
    "states of width 256, and LlamaForCausalLM has an LM head of width 16; expected the model that they were":
        lambda: decoded(tiny(), HeadsDrafter.bundled()),
    "heads are LlamaForCausalLM; expected SequentialHead or IndependentHeads": lambda: HeadsDrafter(tiny()),
    "heads are the class SequentialHead; expected": lambda: HeadsDrafter(SequentialHead),
    "sampling is 3; expected a specnb.Sampling": lambda: HeadsDrafter.bundled(sampling=3),
    "heads are int; expected SequentialHead or IndependentHeads": lambda: save_heads(3, "heads.safetensors"),
    "path is 3; expected a file to write": lambda: save_heads(SequentialHead(4, 4), 3),
    r"heads can't be written to '.*/heads' \(": lambda: save_heads(SequentialHead(4, 4), DATA / "absent" / "heads"),
    "PrefixModel has no base model that its forward calls": lambda: decoded(PrefixModel(12), drafter("sequential")),
    r"request 0, position 3: the draft's row has nothing to draw":
        lambda: specnb.generate(tiny(), spoilt_heads(), [[1, 2]], max_new_tokens=9, gamma=2, seed=0),
    r"missing can't be read as heads \(FileNotFoundError": lambda: read_heads("missing"),
    r"chips.csv can't be read as heads \(SafetensorError": lambda: read_heads(DATA / "chips.csv"),
    r"model.safetensors can't be read as heads \(KeyError":
        lambda: read_heads(DATA / "pair" / "draft" / "model.safetensors"),
}.items(), ids=lambda value: None)  # fmt: skip
def test_what_cannot_draft_says_why(message, make):
    with pytest.raises(SpecnbError, match=message):
        make()


@pytest.mark.parametrize("batch", [1, 2])
def test_the_comparison_measures_every_way_on_the_same_prompts(batch):
    heads = {kind: drafter(kind) for kind in KINDS}
    rows = compare_heads(
        tiny(), tiny(seed=1), heads, torch.ones(batch, 3, dtype=torch.int64), gamma=2, max_new_tokens=6, repeats=2,
        spread=torch.arange(9).view(3, 3),
    )  # fmt: skip
    assert [row["method"] for row in rows] == [PLAIN, MODEL, *heads]
    for row in rows:
        assert 0 < row["low"] <= row["tokens_per_second"] <= row["high"]
        assert (row["batch"], row["gamma"]) == (batch, 2)
        assert 1 <= row["tokens_per_round"] <= 3
        if row["method"] == PLAIN:
            assert (row["c"], row["alpha_1"], row["accepted_2"]) == (None, None, None)
        else:
            assert row["c"] > 0
            assert 0 < row["alpha_1"] < 1
            assert 0 <= row["accepted_1"] <= 1
