"""`model.generate(..., custom_generate=specnb.custom_generate(drafter))` does what `model.generate` does, faster."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from goodness import LEVEL, cells, enumerated_law, g_test
from tiny_models import tiny
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria, TextStreamer
from transformers.generation import logits_process as theirs

import specnb
from specnb import SpecnbError
from specnb.decoding.warpers import as_sampling
from specnb.drafters import ModelDrafter, PromptLookupDrafter

LEFT = torch.tensor([[0, 0, 0, 0, 3], [0, 0, 0, 5, 2], [1, 2, 3, 4, 5], [0, 7, 7, 7, 7]])
MASK = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1], [1] * 5, [0, 1, 1, 1, 1]])
SETTINGS = {
    "nothing": {},
    "several ends": {"eos_token_id": [4, 9]},
    "repetition": {"repetition_penalty": 1.6, "eos_token_id": 9},
    "no repeat": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[11], [10, 10], [7]], "eos_token_id": 9},
    "minimum": {"min_new_tokens": 9, "eos_token_id": [4, 9, 10]},
    "forced end": {"forced_eos_token_id": 9, "eos_token_id": 9},
    "bias and suppression": {"sequence_bias": [[[2], 1.5], [[10, 3], -4.0]], "suppress_tokens": [11]},
    "length penalty": {"exponential_decay_length_penalty": (4, 1.4), "eos_token_id": 9},
}


def both(drafter, target=None, inputs=LEFT, mask=MASK, **options):
    """Return what transformers returns and what it returns by way of specnb."""
    options = {"do_sample": False, "max_new_tokens": 14, "pad_token_id": 0} | options
    method = specnb.custom_generate(drafter, gamma=4)
    return [
        (target or tiny()).generate(inputs, attention_mask=mask, **options, **extra)
        for extra in ({}, {"custom_generate": method})
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_generation_is_the_same_with_every_setting(name):
    for drafter in (ModelDrafter(tiny()), PromptLookupDrafter()):
        theirs, ours = both(drafter, **SETTINGS[name])
        assert ours.tolist() == theirs.tolist()


class Third(StoppingCriteria):
    """Ends where a text ends with this pair."""

    def __init__(self, *pair):
        self.pair = torch.tensor(pair)

    def __call__(self, input_ids, scores, **kwargs):
        """Compare the last two."""
        return (input_ids[:, -2:] == self.pair).all(1)


class Rolling(LogitsProcessor):
    """Counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        """Add to one id, the next with each call."""
        self.calls += 1
        bias = torch.zeros_like(scores)
        bias[:, self.calls % 12] = 2.0
        return scores + bias


def test_custom_processors_and_criteria_are_honoured():
    for prompt in ([[3]], [[1, 2, 3, 4, 5]]):
        ids = torch.tensor(prompt)
        for extra in (
            {"logits_processor": lambda: [Rolling()]}, {"stopping_criteria": lambda: [Third(10, 8)]},
            {"prefix_allowed_tokens_fn": lambda: lambda row, text: [int(text[-1] + 1) % 12, 3 * len(text) % 12]},
        ):  # fmt: skip
            results = [
                tiny().generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=14, pad_token_id=0,
                    **{name: make() for name, make in extra.items()}, **way,
                )
                for way in ({}, {"custom_generate": specnb.custom_generate(ModelDrafter(tiny()), gamma=4)})
            ]  # fmt: skip
            assert results[0].tolist() == results[1].tolist()


def test_stop_strings_streamers_and_the_dict_come_through(capsys):
    target, draft, tokenizer = specnb.load_pair()
    inputs = tokenizer("ROMEO.\n", return_tensors="pt")
    method = specnb.custom_generate(ModelDrafter(draft), gamma=4)
    options = {"do_sample": False, "max_new_tokens": 24, "return_dict_in_generate": True, "eos_token_id": None}
    expected = target.generate(**inputs, **options, streamer=TextStreamer(tokenizer))
    printed = capsys.readouterr().out
    output = target.generate(**inputs, **options, streamer=TextStreamer(tokenizer), custom_generate=method)
    assert capsys.readouterr().out == printed
    assert output.sequences.tolist() == expected.sequences.tolist()
    assert output["sequences"] is output.sequences
    assert output.generation.stats is output.stats
    assert output.stats.accepted[0] > 0
    assert output.stats.emitted[0] == 24
    word = tokenizer.decode(output.generation.tokens()[:12]).split()[-1]
    stop = {"stop_strings": [word], "tokenizer": tokenizer}
    criteria = {"stopping_criteria": [theirs_stop_string(tokenizer, word)]}
    short = target.generate(**inputs, **options, **stop)
    assert target.generate(**inputs, **options, **criteria, custom_generate=method).sequences.tolist() == (
        short.sequences.tolist()
    )
    assert short.sequences.shape[1] < expected.sequences.shape[1]


def theirs_stop_string(tokenizer, text):
    from transformers import StopStringCriteria

    return StopStringCriteria(tokenizer=tokenizer, stop_strings=[text])


def test_sampling_follows_the_law_of_generation_config():
    """G-test: temperature, top-k and a repetition penalty, by settings of `generate` alone."""
    V, rows, prompt = 4, 8_000, [3, 1, 2]
    target = tiny(vocabulary=V)
    method = specnb.custom_generate(ModelDrafter(tiny(vocabulary=V, seed=1)), gamma=2)
    torch.manual_seed(0)
    ids = target.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, 3), do_sample=True, temperature=0.7, top_k=3,
        num_return_sequences=rows, max_new_tokens=3, pad_token_id=0, custom_generate=method,
    )  # fmt: skip
    law = enumerated_law(target, prompt, 3, lambda logits: specnb.probabilities(logits, specnb.Sampling(0.7, top_k=3)))
    assert g_test(cells(ids[:, 3:].numpy(), V), law) > LEVEL
    raw = enumerated_law(target, prompt, 3, specnb.probabilities)
    assert g_test(cells(ids[:, 3:].numpy(), V), raw) < LEVEL


def test_sampling_with_a_draft_that_is_the_target_accepts_everything():
    """transformers' own assisted generation accepts 0.65 at T = 0.5: it warps the draft twice."""
    target = tiny()
    output = target.generate(
        LEFT, attention_mask=MASK, do_sample=True, temperature=0.5, top_p=0.9, max_new_tokens=40, pad_token_id=0,
        return_dict_in_generate=True, custom_generate=specnb.custom_generate(ModelDrafter(target), gamma=4, seed=1),
    )  # fmt: skip
    assert output.stats.accepted.sum() == output.stats.drafted.sum() > 50


def test_manual_seed_fixes_what_is_sampled():
    options = {"do_sample": True, "max_new_tokens": 12, "pad_token_id": 0, "attention_mask": MASK}
    method = specnb.custom_generate(ModelDrafter(tiny(seed=1)))
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(tiny().generate(LEFT, custom_generate=method, **options).tolist())
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("kind", ["llama", "hybrid"])
def test_a_prefilled_cache_is_used_and_left_alone(kind):
    target, ids = tiny(kind), torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
    with torch.no_grad():
        output = target(input_ids=ids[:, :7], use_cache=True)
    cache = output.cache if hasattr(output, "cache") else output.past_key_values
    name = "cache" if hasattr(output, "cache") else "past_key_values"
    theirs, ours = both(ModelDrafter(tiny(kind, seed=1)), target, ids, torch.ones_like(ids))
    filled = target.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=14, pad_token_id=0,
        custom_generate=specnb.custom_generate(ModelDrafter(tiny(kind, seed=1)), gamma=4), **{name: cache},
    )  # fmt: skip
    assert filled.tolist() == ours.tolist() == theirs.tolist()
    assert cache.get_seq_length() == 7


@pytest.mark.parametrize(("message", "options"), {
    "num_beams is 2; expected 1": {"num_beams": 2},
    "penalty_alpha or dola_layers came": {"penalty_alpha": 0.6, "top_k": 4},
    "penalty_alpha or dola_layers came; expected neither": {"dola_layers": "low"},
    "assistant_model or prompt_lookup_num_tokens came": {"prompt_lookup_num_tokens": 2},
    "assistant_model or prompt_lookup_num_tokens came with": {"assistant_model": tiny(seed=1)},
    "output_scores came; expected none": {"output_scores": True, "return_dict_in_generate": True},
}.items(), ids=lambda value: None)  # fmt: skip
def test_what_it_does_not_do_is_refused(message, options):
    ids = torch.tensor([[1, 2]])
    with pytest.raises(SpecnbError, match=message):
        tiny().generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, pad_token_id=0,
            custom_generate=specnb.custom_generate(ModelDrafter(tiny())), **options,
        )  # fmt: skip


def test_embeddings_are_refused_and_configs_stay():
    target = tiny()
    before = target.generation_config.to_dict(), target.config.to_dict()
    method = specnb.custom_generate(ModelDrafter(tiny(seed=1)))
    with pytest.raises(SpecnbError, match="the model's arguments inputs_embeds came"):
        target.generate(inputs_embeds=torch.zeros(1, 2, 16), max_new_tokens=3, pad_token_id=0, custom_generate=method)
    config = GenerationConfig(max_new_tokens=3, pad_token_id=0, do_sample=True, top_k=2)
    target.generate(torch.tensor([[1, 2]]), generation_config=config, custom_generate=method)
    assert (target.generation_config.to_dict(), target.config.to_dict()) == before
    assert (config.top_k, config.max_new_tokens) == (2, 3)


def test_warpers_become_a_sampling_only_where_it_means_the_same():
    T, K, P = theirs.TemperatureLogitsWarper(0.5), theirs.TopKLogitsWarper(3), theirs.TopPLogitsWarper(0.9)
    typical = theirs.TypicalLogitsWarper(0.9)
    sampling, rest = as_sampling([theirs.MinLengthLogitsProcessor(3, 1), T, K, P, theirs.LogitNormalization()], True)
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 3, 0.9)
    assert [type(p) for p in rest] == [theirs.MinLengthLogitsProcessor]
    for kept in ([P, T], [T, typical], [T, K, typical, P], [K, K]):
        sampling, rest = as_sampling(kept, True)
        assert rest == kept
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, None, None)
    sampling, rest = as_sampling([K], False)
    assert sampling.temperature == 0
    assert np.array(rest).tolist() == [K]


def test_a_constraint_holds_as_it_does_in_specnb_generate():
    """On inputs with padding: the tokens of `specnb.generate`, and by the rule coupled those of plain decoding."""
    target, draft, tokenizer = specnb.load_pair()
    constraint = specnb.Grammar.regex("(Good|Sweet) [a-z]{3,8}, good (night|morrow)", tokenizer)
    tokenizer.padding_side = "left"
    inputs = tokenizer(["ROMEO.\n", "[Enter the King and JULIET.]\n"], return_tensors="pt", padding=True)
    options = {"max_new_tokens": 40, "rule": "coupled", "seed": 5, "constraint": constraint}
    expected = specnb.generate(target, None, **inputs, **options)

    del options["max_new_tokens"]
    for drafter in (ModelDrafter(draft), None):
        method = specnb.custom_generate(drafter, gamma=4, **options)
        output = target.generate(
            **inputs, do_sample=True, top_k=0, max_new_tokens=40, return_dict_in_generate=True, custom_generate=method
        )
        assert [output.generation.tokens(row) for row in range(2)] == [expected.tokens(row) for row in range(2)]
    texts = expected.text(tokenizer, prompt=False)
    assert all(re.fullmatch("(Good|Sweet) [a-z]{3,8}, good (night|morrow)", text) for text in texts)


def test_what_is_no_constraint_or_backend_is_said_at_once():
    with pytest.raises(SpecnbError, match=r"constraint is '\[ab\]'; expected one from specnb.Grammar"):
        specnb.custom_generate(None, constraint="[ab]")
    with pytest.raises(SpecnbError, match="constraint is the class Grammar; expected one from"):
        specnb.custom_generate(None, constraint=specnb.Grammar)
    with pytest.raises(SpecnbError, match="backend 'foo' is unknown; expected one of"):
        specnb.custom_generate(None, backend="foo")


@pytest.mark.parametrize("mask", [[[1, 1, 1], [1, 1, 1]], [[0, 1, 1], [1, 1, 1]], [[1, 1, 1], [1, 1, 0]]], ids=str)
def test_positions_are_those_of_the_mask_or_refused(mask):
    target, ids, mask = tiny(), torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor(mask)
    method = specnb.custom_generate(ModelDrafter(tiny(seed=1)), gamma=2)
    options = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    expected = target.generate(ids, custom_generate=method, **options).tolist()
    own = (mask.cumsum(1) - 1).clamp(min=0)
    assert target.generate(ids, custom_generate=method, position_ids=own, **options).tolist() == expected
    for other in (own + 1, own + torch.tensor([[0, 0, 5]]), own[:1] * 0, own[:, 1:], torch.zeros(0)):
        with pytest.raises(SpecnbError, match="position_ids came that the attention_mask doesn't give"):
            target.generate(ids, custom_generate=method, position_ids=other, **options)


def test_behind_padding_on_the_right_a_request_goes_on_with_its_own_text():
    target, ids, mask = tiny(), torch.tensor([[1, 2, 0], [4, 5, 6]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    method = specnb.custom_generate(ModelDrafter(tiny(seed=1)), gamma=2)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "custom_generate": method}
    both = target.generate(ids, attention_mask=mask, **options)
    alone = target.generate(ids[:1, :2], **options)
    assert both[0, 3:].tolist() == alone[0, 2:].tolist()
