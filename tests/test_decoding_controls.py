"""Processors, stops and streams, token by token: everything equals plain decoding, and sees only what is emitted."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tiny_models import ScriptedDrafter, tiny
from transformers import (
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StopStringCriteria,
    TextStreamer,
)

import specnb
from specnb import Sampling, SpecnbError
from specnb.decoding.choosing import Chooser
from specnb.drafters import EarlyExitDrafter, ModelDrafter, NGramDrafter, PromptLookupDrafter

PROMPTS = [[3], [5, 2], [1, 2, 3, 4, 5], [7] * 6]
DRAFTERS = [
    ModelDrafter(tiny(seed=1)), ModelDrafter(tiny()), PromptLookupDrafter(), EarlyExitDrafter(1),
    NGramDrafter.train([1, 2, 3, 4, 5, 1, 2]),
]  # fmt: skip
NEW = 14


def decoded(drafter, prompts=PROMPTS, **options):
    run = specnb.generate(tiny(), drafter, prompts, **{"max_new_tokens": NEW, "gamma": 4, "seed": 3} | options)
    return [run.tokens(row) for row in range(len(run.sequences))]


class Moody(LogitsProcessor):
    """Keeps a state: every call shifts the scores by how often it was called, and notes the text it was shown."""

    def __init__(self):
        self.calls, self.seen = 0, []

    def __call__(self, input_ids, scores):
        """Roll the bias on by one id with each call."""
        self.calls += 1
        self.seen.append(tuple(input_ids[0].tolist()))
        bias = torch.zeros_like(scores)
        bias[:, self.calls % scores.shape[1]] = 3.0
        return scores + bias


PROCESSORS = {
    "repetition": lambda: [RepetitionPenaltyLogitsProcessor(1.7)],
    "no repeat": lambda: [NoRepeatNGramLogitsProcessor(2)],
    "bad words": lambda: [NoBadWordsLogitsProcessor([[11], [10, 10], [0, 10], [7]], eos_token_id=9)],
    "minimum": lambda: [MinNewTokensLengthLogitsProcessor(1, 9, 9)],
    "forced end": lambda: [ForcedEOSTokenLogitsProcessor(11, 9)],
    "prefix": lambda: [PrefixConstrainedLogitsProcessor(
        lambda row, text: [row, (int(text[-1]) + 1) % 12, (len(text) * 5) % 12], 1)],
    "stateful": lambda: [Moody()],
    "several": lambda: [Moody(), RepetitionPenaltyLogitsProcessor(0.6), NoRepeatNGramLogitsProcessor(3)],
}  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", PROCESSORS)
def test_processed_decoding_equals_plain_decoding(name, temperature):
    options = {"sampling": Sampling(temperature), "rule": "coupled", "eos_token_id": [9]}
    plain = decoded(None, logits_processor=PROCESSORS[name](), **options)
    assert plain != decoded(None, **options)
    for drafter in DRAFTERS if temperature else DRAFTERS[:1]:
        assert decoded(drafter, logits_processor=PROCESSORS[name](), **options) == plain
    assert decoded(DRAFTERS[0], PROMPTS[:1], logits_processor=PROCESSORS[name](), **options) == plain[:1]


@pytest.mark.parametrize("name", ["repetition", "no repeat", "bad words"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_greedy_with_processors_equals_generate(name, rule):
    target, expected = tiny(), []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        run = target.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, pad_token_id=0,
            logits_processor=PROCESSORS[name](),
        )  # fmt: skip
        expected.append(run[0, len(prompt) :].tolist())
    for drafter in DRAFTERS[1:3]:
        options = {"sampling": Sampling(0), "rule": rule, "logits_processor": PROCESSORS[name]()}
        assert decoded(drafter, **options) == expected


@pytest.mark.parametrize("rule", ["token", "match", "coupled"])
@pytest.mark.parametrize(
    "drafter", [DRAFTERS[0], DRAFTERS[2], ScriptedDrafter([2], 12)], ids=lambda d: type(d).__name__
)
def test_a_processor_is_called_for_what_is_emitted_in_order_and_for_nothing_else(drafter, rule):
    moody, prompt = Moody(), [1, 2, 3]
    run = specnb.generate(
        tiny(), drafter, [prompt], max_new_tokens=40, gamma=4, seed=3, rule=rule, logits_processor=[moody],
        eos_token_id=[8],
    )  # fmt: skip
    text = run.sequences[0].tolist()
    assert moody.seen == [tuple(text[:n]) for n in range(len(prompt), len(text))]
    assert run.stats.drafted.sum() > 0


def test_processors_called_for_all_drafts_at_once_are_caught(monkeypatch):
    monkeypatch.setattr("specnb.decoding.processing.STATELESS", (Moody,))
    options = {"rule": "coupled", "sampling": Sampling(1.0), "logits_processor": [Moody()]}
    plain = decoded(None, **options | {"logits_processor": [Moody()]})
    assert decoded(DRAFTERS[0], **options) != plain


def test_the_processors_of_a_batch_are_copied_and_a_rule_that_looks_ahead_is_refused():
    moody = Moody()
    decoded(DRAFTERS[0], logits_processor=[moody])
    assert moody.calls == 0
    with pytest.raises(SpecnbError, match="rule block reads positions behind a rejection, and the logits processors"):
        decoded(DRAFTERS[0], logits_processor=[moody], rule="block")
    with pytest.raises(SpecnbError, match="Stuck may keep a state, so each of the 4 requests needs a copy"):
        decoded(DRAFTERS[0], logits_processor=[Stuck()])
    with pytest.raises(SpecnbError, match="logits_processor has 3; expected"):
        decoded(DRAFTERS[0], logits_processor=[3])


class Stuck(Moody):
    """A processor that can't be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("no copies")


class EndsWith(StoppingCriteria):
    """Ends a request at a pair of tokens; notes what it was asked about."""

    def __init__(self, *last):
        self.last, self.seen = last, []

    def __call__(self, input_ids, scores, **kwargs):
        """Say whether each text ends with the pair."""
        self.seen.append(tuple(input_ids[0].tolist()))
        return torch.tensor([tuple(row[-len(self.last) :].tolist()) == self.last for row in input_ids])


def cut_behind(prompt, tokens, *last):
    """Return the tokens up to the first with which the text, prompt included, ends with these."""
    for k in range(1, len(tokens) + 1):
        if tuple((prompt + tokens[:k])[-len(last) :]) == last:
            return tokens[:k]
    return tokens


@pytest.mark.parametrize("rule", ["token", "coupled"])
def test_a_criterion_in_the_middle_of_a_block_ends_the_request_there(rule):
    whole, ended = decoded(DRAFTERS[1], rule=rule), 0
    for first, second in {(tokens[k], tokens[k + 1]) for tokens in whole for k in range(0, 10, 2)}:
        run = decoded(DRAFTERS[1], rule=rule, stopping_criteria=[EndsWith(first, second)])
        assert run == [cut_behind(*pair, first, second) for pair in zip(PROMPTS, whole, strict=True)]
        ended += sum(len(tokens) < NEW for tokens in run)
    assert ended > 10


def test_a_criterion_on_the_second_token_of_an_accepted_block():
    """All four drafts pass; the second is the end, and the rest of the block leaves no trace."""
    criterion = EndsWith(11)
    run = specnb.generate(
        tiny(), ScriptedDrafter([4], 12), [[1, 2]], max_new_tokens=9, gamma=4, seed=0, stopping_criteria=[criterion]
    )
    assert run.tokens() == [10, 11]
    assert criterion.seen == [(1, 2, 10), (1, 2, 10, 11)]
    assert (run.stats.accepted[0], run.stats.emitted[0], run.stats.committed[0]) == (2, 2, 4)
    both = specnb.generate(
        tiny(), ScriptedDrafter([4], 12), [[1, 2]], max_new_tokens=9, gamma=4, seed=0,
        stopping_criteria=[EndsWith(11)], logits_processor=[moody := Moody()],
    )  # fmt: skip
    assert both.tokens() == [10, 11]
    assert moody.seen == [(1, 2), (1, 2, 10)]


def test_stop_strings_end_a_request_where_transformers_ends_it():
    target, draft, tokenizer = specnb.load_pair()
    prompts = tokenizer(["ROMEO.\n", "HAMLET.\nTo"]).input_ids
    options = {"max_new_tokens": 40, "sampling": Sampling(0), "seed": 0, "eos_token_id": None}
    plain = specnb.generate(target, None, prompts, **options)
    words = [plain.text(tokenizer, prompt=False)[0].split()[2], ","]
    for stop in words:
        run = specnb.generate(
            target, ModelDrafter(draft), prompts, stop_strings=stop, tokenizer=tokenizer, gamma=4, **options
        )
        for row, prompt in enumerate(prompts):
            expected = target.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=40,
                eos_token_id=None, pad_token_id=0, stop_strings=stop, tokenizer=tokenizer,
            )  # fmt: skip
            assert run.tokens(row) == expected[0, len(prompt) :].tolist()
    assert run.stats.emitted.min() < 40
    with pytest.raises(SpecnbError, match="stop_strings are 'x', but no tokenizer came"):
        specnb.generate(target, None, prompts, stop_strings="x", **options)
    assert isinstance(StopStringCriteria, type)


def test_several_sequences_of_a_prompt_are_requests_of_their_own():
    twice = [prompt for prompt in PROMPTS for _ in range(2)]
    run = decoded(DRAFTERS[0], num_return_sequences=2)
    assert run == decoded(DRAFTERS[0], twice)
    assert run[0] != run[1]
    with pytest.raises(SpecnbError, match="num_return_sequences is 0; expected an integer >= 1"):
        decoded(None, num_return_sequences=0)


class Recorder:
    """A streamer that keeps what it got."""

    def __init__(self):
        self.got, self.ended = [], 0

    def put(self, value):
        """Keep it."""
        self.got.append(value.tolist())

    def end(self):
        """Count it."""
        self.ended += 1


def test_each_streamer_gets_its_prompt_its_tokens_one_by_one_and_one_end():
    streamers = [Recorder() for _ in PROMPTS]
    tokens = decoded(DRAFTERS[1], eos_token_id=[4], streamer=streamers)
    for streamer, prompt, emitted in zip(streamers, PROMPTS, tokens, strict=True):
        assert streamer.got == [[prompt], *([token] for token in emitted)]
        assert streamer.ended == 1
    with pytest.raises(SpecnbError, match="one streamer came for 4 requests, which emit at different times"):
        decoded(None, streamer=Recorder())


def test_a_streamer_is_ended_when_a_run_fails():
    streamer = Recorder()
    drafter = ScriptedDrafter([1], 12, interrupt_at=2, exception=RuntimeError("in the middle"))
    with pytest.raises(RuntimeError, match="in the middle"):
        specnb.generate(tiny(), drafter, [[1, 2]], max_new_tokens=9, gamma=2, seed=0, streamer=streamer)
    assert streamer.ended == 1
    assert len(streamer.got) == 5


def test_transformers_own_streamer_prints_the_text(capsys):
    target, draft, tokenizer = specnb.load_pair()
    prompt = tokenizer("ROMEO.\n", return_tensors="pt").input_ids
    run = specnb.generate(
        target, ModelDrafter(draft), prompt, max_new_tokens=20, gamma=4, seed=0,
        streamer=TextStreamer(tokenizer, skip_prompt=True),
    )  # fmt: skip
    assert capsys.readouterr().out.strip() == tokenizer.decode(run.tokens()).strip()


def prefilled(model, ids, mask=None):
    """Return transformers' own cache after a forward of these tokens."""
    positions = None if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        output = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True)
    return output.cache if hasattr(output, "cache") else output.past_key_values


@pytest.mark.parametrize("kind", ["llama", "qwen2", "window", "hybrid"])
def test_a_prefilled_cache_gives_what_a_fresh_one_gives(kind):
    target = tiny(kind)
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 2], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]])
    options = {"max_new_tokens": 12, "gamma": 3, "seed": 4}
    fresh = specnb.generate(target, ModelDrafter(tiny(kind, seed=1)), ids, **options)
    for known in (1, 4, 11, *([12] if kind in ("llama", "qwen2") else [])):
        cache = prefilled(target, ids[:, :known])
        before = copy.deepcopy(cache)
        for drafter in (ModelDrafter(tiny(kind, seed=1)), EarlyExitDrafter(1)):
            run = specnb.generate(target, drafter, ids, cache=cache, **options)
            whole = specnb.generate(target, drafter, ids, **options)
            assert run.sequences.tolist() == whole.sequences.tolist()
        assert all(torch.equal(a.keys, b.keys) for a, b in zip(cache.layers, before.layers, strict=True))
    assert fresh.stats.accepted.sum() > 0


def test_a_prefilled_cache_with_padding_on_the_left():
    target, ids = tiny(), torch.tensor([[0, 0, 3, 4, 5, 6], [3, 1, 4, 1, 5, 9]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    options = {"max_new_tokens": 8, "gamma": 3, "seed": 4, "attention_mask": mask}
    fresh = specnb.generate(target, DRAFTERS[0], ids, **options)
    for known in (1, 3, 5):
        cache = prefilled(target, ids[:, :known], mask[:, :known])
        run = specnb.generate(target, DRAFTERS[0], ids, cache=cache, **options)
        assert run.sequences.tolist() == fresh.sequences.tolist()


def test_a_cache_that_is_ignored_or_wrong_is_noticed():
    """The logits of the first round depend on what the cache holds."""
    target, ids = tiny(), torch.tensor([[1, 2, 3, 4, 5, 6]])
    options = {"max_new_tokens": 12, "seed": 4}
    other = prefilled(target, torch.tensor([[9, 9, 9, 9]]))
    fresh = specnb.generate(target, None, ids, **options)
    assert specnb.generate(target, None, ids, cache=other, **options).tokens() != fresh.tokens()
    with pytest.raises(SpecnbError, match="the cache has 1 rows; expected 2"):
        specnb.generate(target, None, ids.repeat(2, 1), cache=other, **options)
    with pytest.raises(SpecnbError, match="the cache holds 4 tokens of row 0, whose prompt has 2"):
        specnb.generate(target, None, ids[:, :2], cache=other, **options)
    wide = copy.deepcopy(other)
    for layer in wide.layers:
        layer.keys, layer.values = layer.keys.repeat(1, 2, 1, 1), layer.values.repeat(1, 2, 1, 1)
    with pytest.raises(SpecnbError, match=r"the cache has \d heads of keys; expected the target's \d"):
        specnb.generate(target, None, ids, cache=wide, **options)
    del other.layers[-1]
    with pytest.raises(SpecnbError, match="the cache has 1 layers; expected the target's 2"):
        specnb.generate(target, None, ids, cache=other, **options)
    window = tiny("window")
    with pytest.raises(SpecnbError, match="begins at position 5 of row 0, but the next token looks back to 4"):
        specnb.generate(
            window, None, torch.arange(12)[None], cache=prefilled(window, torch.arange(12)[None]), **options
        )


def test_gamma_adapts_to_each_requests_own_history_and_to_nothing_else():
    gamma = specnb.drafters.AdaptiveGamma(largest=6, c=0.2)
    options = {"max_new_tokens": 40, "gamma": gamma, "eos_token_id": None}
    good, bad = ModelDrafter(tiny()), ModelDrafter(tiny(seed=1))
    seeds = [5, 6, 7, 8]
    for drafter, low, high in ((good, 4.5, 6), (bad, 1, 3)):
        whole = specnb.generate(tiny(), drafter, PROMPTS, seed=seeds, **options)
        assert low < np.mean(whole.gammas(0)) < high
        for row, prompt in enumerate(PROMPTS):
            alone = specnb.generate(tiny(), drafter, [prompt], seed=seeds[row : row + 1], **options)
            assert alone.tokens() == whole.tokens(row)
            assert alone.gammas() == whole.gammas(row)
    plain = specnb.generate(tiny(), None, PROMPTS, seed=seeds, **options)
    coupled = specnb.generate(tiny(), bad, PROMPTS, seed=seeds, rule="coupled", **options)
    assert coupled.sequences.tolist() == plain.sequences.tolist()
    for wrong in ({"largest": 0}, {"least": 9}, {"c": 0}, {"expected": 1.0}):
        with pytest.raises(SpecnbError, match="expected"):
            specnb.drafters.AdaptiveGamma(**wrong)


@pytest.mark.parametrize("accepted", [[0], [2], [4]])
def test_each_row_of_p_is_computed_once_where_drafts_are_judged_in_turn(accepted, monkeypatch):
    columns, compute = [], Chooser.probabilities

    def counted(self, logits, first=0):
        columns.append(logits.shape[1])
        return compute(self, logits, first)

    monkeypatch.setattr(Chooser, "probabilities", counted)
    run = specnb.generate(
        tiny(), ScriptedDrafter(accepted, 12), [[1, 2]], max_new_tokens=16, gamma=5, seed=0, logits_processor=[Moody()]
    )
    assert sum(columns) == sum(len(round_.draft) + 1 for round_ in run.rounds)
