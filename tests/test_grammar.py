"""A constraint under speculation is the constraint of plain decoding: the same texts, the same law, the same errors."""

from __future__ import annotations

import csv
import functools
import json
import sys

import numpy as np
import pytest
import torch
from goodness import LEVEL, detectable, g_test
from tiny_models import randomised, tiny, uncached
from tiny_tokenizers import tiny_tokenizer
from tokenizers import decoders
from transformers import LogitsProcessor

import specnb
from specnb import Grammar, Sampling, SpecnbError, cli
from specnb.decoding.constrained import Drafting, Parser
from specnb.decoding.constrained_bench import FREE, PLAIN, SPECULATIVE
from specnb.decoding.grammar import GrammarMatcher
from specnb.drafters import (
    CrossVocabularyDrafter,
    EarlyExitDrafter,
    HeadsDrafter,
    ModelDrafter,
    NGramDrafter,
    PromptLookupDrafter,
    SequentialHead,
)

TOKENS = ["a", "b", "c", "d", "bc", "</s>"]
V, END = 7, 5  # the models have one id more than the tokenizer
TOKENIZER = tiny_tokenizer(TOKENS, decoders.ByteLevel(), eos_token="</s>")
LONG = "(a|bc|cd?b){4,9}d?"
model = functools.cache(functools.partial(tiny, vocabulary=V))  # each new one would be checked again
PROMPTS = [[3], [0, 2], [1, 2, 3, 1, 2], [0, 1, 0, 2, 2, 1, 3, 0]]
DRAFTERS = {
    "model": lambda: ModelDrafter(model(seed=1)),
    "hotter model": lambda: ModelDrafter(model(seed=1), Sampling(1.5)),
    "target": lambda: ModelDrafter(model()),
    "lookup": lambda: PromptLookupDrafter(),
    "bigram": lambda: NGramDrafter.train([0, 1, 2, 4, 0, 3, 1, 5, 1, 2, 3, 1, 4, 4, 0], order=2),
    "early exit": lambda: EarlyExitDrafter(1),
    "heads": lambda: HeadsDrafter(randomised(SequentialHead(16, 24))),
    "other tokenizer": lambda: CrossVocabularyDrafter(
        tiny(vocabulary=4, seed=1), tiny_tokenizer(["d", "b", "a", "x"]), TOKENIZER
    ),
}


@functools.cache
def regex(pattern):
    return Grammar.regex(pattern, TOKENIZER)


def decoded(drafter, constraint=None, **options):
    options = {"max_new_tokens": 24, "seed": [3, 2**60, 0, 7], "eos_token_id": END} | options
    run = specnb.generate(model(), drafter, PROMPTS, constraint=constraint or regex(LONG), **options)
    return run, [run.tokens(row) for row in range(len(run.sequences))]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("temperature", [0, 0.5, 1.0])
def test_coupled_equals_constrained_plain_decoding_token_for_token(name, temperature):
    options = {"sampling": Sampling(temperature), "rule": "coupled"}
    run, tokens = decoded(DRAFTERS[name](), gamma=4, **options)
    assert tokens == decoded(None, **options)[1]
    assert run.stats.drafted.sum() > 0


@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_greedy_equals_constrained_plain_decoding(rule):
    greedy = {"sampling": Sampling(0), "max_new_tokens": 40}
    _, plain = decoded(None, **greedy)
    assert any(END in tokens for tokens in plain)
    for name in ("model", "lookup", "early exit"):
        assert decoded(DRAFTERS[name](), gamma=3, rule=rule, **greedy)[1] == plain


def test_what_is_decoded_matches_and_so_does_what_is_drafted_by_a_law():
    run, texts = decoded(DRAFTERS["model"](), gamma=4, max_new_tokens=60)
    for row, tokens in enumerate(texts):
        matcher = regex(LONG).matcher()
        assert all(map(matcher.consume, tokens))
        assert tokens[-1] == END
        for round_ in run.rounds_of(row):
            matcher = regex(LONG).matcher()
            emitted = run.sequences[row, run.prompt_lengths[row] : round_.position].tolist()
            draft = list(round_.draft)
            draft = draft[: draft.index(END) + 1] if END in draft else draft
            assert all(map(matcher.consume, emitted + draft))
    assert run.stats.accepted.sum() < run.stats.drafted.sum()


WORDS = ["a", "ab", "abc", "bca", "cb", "dd", "d"]
"""A finite language; "abc" and "bca" are written with two or with three tokens."""


def admitted(text):
    """Return which tokens may follow a text, from the list of words alone."""
    allowed = {i for i, token in enumerate(TOKENS[:END]) if any(word.startswith(text + token) for word in WORDS)}
    return sorted(allowed | ({END} if text in WORDS else set()))


def enumerated(target, prompt, sampling):
    """Return the law of constrained texts as {tokens: probability}, from uncached forwards over every prefix."""
    law, open_ = {}, {(): 1.0}
    while open_:
        path, chance = open_.popitem()
        logits = uncached(target, [*prompt, *path])[-1:]
        allowed = admitted("".join(TOKENS[i] for i in path))
        masked = torch.full_like(logits, -torch.inf)
        masked[:, allowed] = logits[:, allowed]
        p = np.asarray(specnb.probabilities(masked, sampling), np.float64)[0]
        for i in np.flatnonzero(p):
            (law if i == END else open_)[(*path, int(i))] = chance * p[i] / p.sum()
    return law


ROWS = 2_500


def p_value(drafter, rule="token", sampling=None):
    target, prompt, sampling = model(), [1, 2, 0], sampling or Sampling()
    law = enumerated(target, prompt, sampling)
    run = specnb.generate(
        target, drafter, [prompt] * ROWS, seed=np.arange(ROWS), max_new_tokens=6, gamma=2, rule=rule,
        sampling=sampling, eos_token_id=END, constraint=regex("|".join(WORDS)),
    )  # fmt: skip
    assert 0 < run.stats.accepted.sum() < run.stats.drafted.sum()
    index = {path: i for i, path in enumerate(law)}
    counts = np.bincount([index[tuple(run.tokens(row))] for row in range(ROWS)], minlength=len(law))
    return g_test(counts, np.array(list(law.values())))


def test_the_g_tests_are_as_powerful_as_they_say():
    assert detectable(ROWS, 12) < 0.08


@pytest.mark.parametrize(("name", "rule"), [
    ("model", "token"), ("model", "block"), ("lookup", "token"), ("other tokenizer", "token"), ("bigram", "match"),
])  # fmt: skip
def test_the_law_is_the_enumerated_law_of_constrained_texts(name, rule):
    assert p_value(DRAFTERS[name](), rule, Sampling(0.8, top_k=3) if name == "bigram" else None) > LEVEL


def test_a_mask_of_q_that_is_not_declared_is_caught(monkeypatch):
    """The mutant draws from the masked law and declares the one without a mask."""
    masked, raw = Drafting.probabilities, []

    def drawn(self, logits):
        raw.append(super(Drafting, self).probabilities(logits))
        return masked(self, logits)

    honest = ModelDrafter.start

    class Declared:
        def __init__(self, run):
            self.run = run

        def __getattr__(self, name):
            return getattr(self.run, name)

        def propose(self, batch, limits):
            raw.clear()
            proposal = self.run.propose(batch, limits)
            proposal.q = np.concatenate(raw, 1) if raw else None
            return proposal

    monkeypatch.setattr(Drafting, "probabilities", drawn)
    monkeypatch.setattr(ModelDrafter, "start", lambda self, *arguments: Declared(honest(self, *arguments)))
    assert p_value(DRAFTERS["model"]()) < LEVEL


def test_every_rejection_leaves_the_parser_where_plain_decoding_has_it(monkeypatch):
    """After each round it stands where a fresh parser stands that only ever read what was committed."""
    read, rejections, commit = {}, [], Parser.commit

    def compared(self, tokens):
        rejections.append(self.path[: len(tokens)] != tokens)
        assert commit(self, tokens)
        fresh = regex(LONG).matcher()
        read[self] = read.get(self, []) + tokens
        assert all(map(fresh.consume, read[self]))
        assert self.matcher.mask().tolist() == fresh.mask().tolist()
        assert self.matcher.tokens == read[self]
        return True

    monkeypatch.setattr(Parser, "commit", compared)
    decoded(DRAFTERS["model"](), gamma=4)
    assert sum(rejections) > 10


def test_a_parser_that_is_not_rolled_back_is_caught(monkeypatch):
    """The mutant keeps the state that rejected drafts left."""
    monkeypatch.setattr(GrammarMatcher, "rollback", lambda self, count: None)
    with pytest.raises(SpecnbError, match=r"request \d emitted .* which its constraint doesn't admit"):
        decoded(DRAFTERS["model"](), gamma=4, rule="coupled")


def test_a_mask_is_computed_once_for_drafting_and_verification(monkeypatch):
    asked, mask = [], GrammarMatcher.mask
    monkeypatch.setattr(GrammarMatcher, "mask", lambda self: asked.append(1) or mask(self))
    run, _ = decoded(DRAFTERS["model"](), gamma=4, eos_token_id=None)
    assert len(asked) <= run.stats.drafted.sum() + len(run.rounds) + run.stats.emitted.sum() / 2


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_one_seed_for_a_batch_and_requests_that_end_earlier(backend):
    options = {"seed": 5, "rule": "coupled", "max_new_tokens": 50, "backend": backend}
    _, tokens = decoded(DRAFTERS["model"](), gamma=3, **options)
    assert tokens == decoded(None, **options)[1]
    assert len({len(text) for text in tokens}) > 1


def test_a_round_can_be_replayed_and_its_rows_are_the_masked_ones():
    run, _ = decoded(DRAFTERS["model"](), gamma=3)
    replayed = run.replay(run.rounds_of(2)[1])
    matcher = regex(LONG).matcher()
    assert all(map(matcher.consume, run.tokens(2)[: replayed.round.position - len(PROMPTS[2])]))
    for row in (replayed.p[0], replayed.q[0]):
        assert (row > 0).tolist()[: END + 1] == matcher.mask().tolist()
        assert row[END + 1 :].sum() == 0


class Counting(LogitsProcessor):
    """A processor with a state: it discourages what it was last called with."""

    calls = 0

    def __call__(self, ids, scores):
        self.calls += 1
        scores = scores.clone()
        scores[:, ids[0, -1]] -= self.calls % 3
        return scores


def test_processors_that_keep_a_state_go_with_a_constraint():
    options = {"rule": "coupled", "logits_processor": [Counting()]}
    assert decoded(DRAFTERS["model"](), gamma=4, **options)[1] == decoded(None, **options)[1]


def test_behind_its_end_a_text_that_goes_on_has_ends_only():
    _, tokens = decoded(DRAFTERS["model"](), regex("ab?"), eos_token_id=None, max_new_tokens=8, gamma=5)
    assert all(text[text.index(END) :] == [END] * (8 - text.index(END)) for text in tokens)
    assert all(text.index(END) <= 2 for text in tokens)


class Alternating:
    """A constraint of one's own: a and b in turn, then an end."""

    def matcher(self):
        self = Alternating()
        self.read = []
        return self

    def mask(self):
        allowed = [END] if len(self.read) > 4 else [len(self.read) % 2]
        return np.isin(np.arange(V), allowed)

    def consume(self, token):
        admitted = bool(self.mask()[token])
        self.read += [token] * admitted
        return admitted

    def rollback(self, count):
        del self.read[len(self.read) - count :]


def test_any_object_with_a_matcher_is_a_constraint():
    _, tokens = decoded(DRAFTERS["lookup"](), Alternating(), gamma=3)
    assert tokens == [[0, 1, 0, 1, 0, END]] * 4


NOTHING = "request {}, position {}: the constraint admits no token that has probability"


def test_a_constraint_that_admits_nothing_names_the_request_and_the_position():
    with pytest.raises(SpecnbError, match=NOTHING.format(0, 1)):
        decoded(None, regex("z"))
    with pytest.raises(SpecnbError, match=NOTHING.format(0, 2)):
        decoded(DRAFTERS["model"](), regex("az"))


def outcome(drafter, constraint, seed, **options):
    try:
        run = specnb.generate(
            model(), drafter, [PROMPTS[2]], max_new_tokens=9, seed=seed, rule="coupled", eos_token_id=END,
            constraint=constraint, **options,
        )  # fmt: skip
        return run.tokens()
    except SpecnbError as error:
        return str(error)


def test_only_a_dead_end_that_plain_decoding_meets_is_an_error():
    constraint, dead = regex("(bc|d){2,3}(az|c)"), []
    for seed in range(20):
        dead.append(outcome(None, constraint, seed))
        assert outcome(DRAFTERS["model"](), constraint, seed, gamma=4) == dead[-1]
    assert 3 < sum(isinstance(one, str) for one in dead) < 17


def test_a_processor_that_leaves_no_way_is_an_error(monkeypatch):
    from transformers import SuppressTokensLogitsProcessor

    with pytest.raises(SpecnbError, match="request 0, position 1: the constraint admits no token that has prob"):
        decoded(None, regex("[ab]+"), logits_processor=[SuppressTokensLogitsProcessor([0, 1])])


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Grammar.regex("[", TOKENIZER), "can't read the constraint: .*unclosed"),
    (lambda: Grammar.json_schema({"type": "objec"}, TOKENIZER), "can't read the constraint: Invalid type"),
    (lambda: Grammar.json_schema("{", TOKENIZER), "the schema is no JSON"),
    (lambda: Grammar.lark("start: other", TOKENIZER), "can't read the constraint"),
    (lambda: Grammar.regex("a", tiny_tokenizer(["a"], decoders.ByteLevel())), "the tokenizer has no end of text"),
    (lambda: Grammar.regex("a", tiny_tokenizer(["a", "<e>"], eos_token="<e>")), "can't read the tokenizer"),
    (lambda: decoded(None, "[ab]"), r"constraint is '\[ab\]'; expected one from specnb.Grammar"),
])  # fmt: skip
def test_what_is_no_constraint_says_why(make, message):
    with pytest.raises(SpecnbError, match=f"(?s){message}"):
        make()


def test_without_llguidance_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(SpecnbError, match=r"pip install 'specnb\[grammar\]'"):
        Grammar.regex("a", TOKENIZER)


def test_a_context_free_grammar_is_a_constraint():
    nested = Grammar.lark('start: "a" start "b" | "c"', TOKENIZER)
    run, tokens = decoded(DRAFTERS["model"](), nested, gamma=4, rule="coupled", max_new_tokens=60)
    assert tokens == decoded(None, nested, rule="coupled", max_new_tokens=60)[1]
    for text in run.text(TOKENIZER, prompt=False):
        depth = text.index("c")
        assert text == "a" * depth + "c" + "b" * depth


SCHEMA = {
    "type": "object",
    "properties": {
        "who": {"enum": ["ROMEO", "JULIET", "NURSE"]},
        "says": {"type": "string", "maxLength": 12},
        "act": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["who", "says", "act"],
    "additionalProperties": False,
}


def test_two_hundred_texts_of_the_bundled_pair_parse():
    target, draft, tokenizer = specnb.load_pair()
    prompts = [tokenizer("ROMEO.\n").input_ids, tokenizer("JULIET.\nWhat").input_ids] * 100
    run = specnb.generate(
        target, ModelDrafter(draft), prompts, max_new_tokens=64, gamma=4, seed=0,
        constraint=Grammar.json_schema(SCHEMA, tokenizer),
    )  # fmt: skip
    texts = run.text(tokenizer, prompt=False)
    for text in texts:
        value = json.loads(text)
        assert list(value) == ["who", "says", "act"]
        assert value["who"] in SCHEMA["properties"]["who"]["enum"]
        assert len(value["says"]) <= 12
        assert value["act"] in range(1, 6)
    assert len(set(texts)) > 150
    assert run.stats.accepted.sum() < run.stats.drafted.sum()


def test_the_bench_measures_constrained_decoding_in_turn(capsys, tmp_path):
    path = tmp_path / "constrained.csv"
    command = ["bench", "constrained", "--batch", "1", "--tokens", "12", "--repeats", "1", "--csv", str(path)]
    assert cli.main(command) == 0
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == [PLAIN, SPECULATIVE, FREE]
    assert [float(row["tokens_per_round"]) > 1 for row in rows] == [False, True, True]
    assert float(rows[0]["ratio"]) == 1
    assert capsys.readouterr().out.count("constrained, ") == 2
