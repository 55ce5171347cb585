"""Whatever comes as an argument, the answer is a `SpecnbError`, and it comes before a model has run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tiny_models import tiny
from transformers import DynamicCache, LogitsProcessor

import specnb
from specnb import SpecnbError
from specnb.drafters import (
    AdaptiveGamma,
    CrossVocabularyDrafter,
    EarlyExitDrafter,
    HeadsDrafter,
    ModelDrafter,
    NGramDrafter,
    PromptLookupDrafter,
    SequentialHead,
    save_heads,
    shared_vocabulary,
)

TARGET, DRAFT = tiny(), tiny(seed=1)
TOKENIZER = specnb.load_pair()[2]
FLAT = NGramDrafter.train([1, 2, 3])


class Strange:
    """Something that no argument is."""

    def __repr__(self):
        return "Strange()"


LEGACY = tuple((torch.zeros(1, 4, 2, 4), torch.zeros(1, 4, 2, 4)) for _ in range(2))
THINGS = {
    "int": 3, "negative": -2, "huge": 2**70, "float": 1.5, "NaN": float("nan"), "infinity": float("inf"),
    "complex": 1j, "bool": True, "string": "xyz", "bytes": b"ab", "list of strings": ["a"], "list of None": [None],
    "lists": [[1], [2]], "ragged": [[1], [2, 3]], "dict": {"a": 1}, "set": {1, 2}, "object": Strange(),
    "objects": [Strange()], "class": Strange, "classes": [Strange], "function": lambda *_: None,
    "NumPy integer": np.int64(-1), "NumPy float": np.float32(0.5), "NumPy bool": np.bool_(True),
    "0-d array": np.array(-1), "matrix": np.zeros((2, 2)), "array of objects": np.array([Strange(), 2], object),
    "array of strings": np.array(["a"]), "unsigned": np.array([2**63], np.uint64), "tensor": torch.tensor(-1),
    "tensor of a float": torch.tensor(0.5), "tensor of a bool": torch.tensor(True), "empty tensor": torch.zeros(0),
    "complex tensor": torch.tensor([1j]), "tensor without values": torch.zeros(1, 2, device="meta"),
    "sparse tensor": torch.eye(2).to_sparse(), "dtype": torch.float32, "date": np.datetime64("2020"),
    "legacy cache": LEGACY, "large ids": [10**6], "negative ids": [-5], "a file": Path(__file__), "model": DRAFT,
    "sampling": specnb.Sampling(), "tokenizer": TOKENIZER, "drafter": PromptLookupDrafter(),
}  # fmt: skip


def generate(**changes):
    arguments = {"target": TARGET, "drafter": ModelDrafter(DRAFT), "input_ids": [[1, 2]]} | changes
    options = {"max_new_tokens": 3, "gamma": 2, "seed": 0} | arguments
    return specnb.generate(options.pop("target"), options.pop("drafter"), options.pop("input_ids"), **options)


def drafted(drafter):
    return generate(drafter=drafter)


def doorway(**changes):
    arguments = {"drafter": ModelDrafter(DRAFT), "gamma": 2} | changes
    method = specnb.custom_generate(arguments.pop("drafter"), **arguments)
    ids = torch.tensor([[1, 2, 3]])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 3, "pad_token_id": 0, "do_sample": True}
    return TARGET.generate(ids, custom_generate=method, **options)


def costs(**changes):
    return specnb.measure.costs(TARGET, DRAFT, gammas=[1], batches=[1], context=4, repeats=1, forwards=1, **changes)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Return a run with a trace, after which both models have been checked."""
    return generate(trace=tmp_path_factory.mktemp("run") / "trace")


# For each argument: a call with it, and which of the things it may be, the others being refused.
SEEDS = {"int", "large ids"}
GENERATE = {
    "target": {"model"}, "drafter": {"drafter"}, "input_ids": {"lists", "ragged"}, "attention_mask": set(),
    "max_new_tokens": {"int"}, "gamma": {"int", "huge"}, "sampling": {"sampling"}, "rule": set(), "seed": SEEDS,
    "eos_token_id": {"int", "set", "empty tensor"}, "backend": set(), "num_return_sequences": {"int"},
    "logits_processor": {"empty tensor"}, "stopping_criteria": {"empty tensor"}, "streamer": set(), "cache": set(),
    "constraint": set(), "progress": {"bool", "NumPy bool"}, "record": {"bool", "NumPy bool"},
}  # fmt: skip
CALLS = {f"generate {name}": (lambda v, n=name: generate(**{n: v}), fine) for name, fine in GENERATE.items()} | {
    "generate attention_mask": (lambda v: generate(input_ids=torch.tensor([[1, 2]]), attention_mask=v), set()),
    "generate stop_strings": (
        lambda v: generate(stop_strings=v, tokenizer=TOKENIZER),
        {"string", "list of strings", "dict", "array of strings", "empty tensor"},
    ),
    "generate tokenizer": (lambda v: generate(stop_strings="x", tokenizer=v), {"tokenizer"}),
    "custom_generate drafter": (lambda v: doorway(drafter=v), {"drafter"}),
    "custom_generate gamma": (lambda v: doorway(gamma=v), {"int", "huge"}),
    "custom_generate rule": (lambda v: doorway(rule=v), set()),
    "custom_generate seed": (lambda v: doorway(seed=v), SEEDS),
    "custom_generate backend": (lambda v: specnb.custom_generate(None, backend=v), set()),
    "custom_generate record": (lambda v: doorway(record=v), {"bool", "NumPy bool"}),
    "custom_generate constraint": (lambda v: specnb.custom_generate(None, constraint=v), set()),
    "model": (ModelDrafter, {"model"}),
    "sampling of a model": (lambda v: ModelDrafter(DRAFT, v), {"sampling"}),
    "heads": (HeadsDrafter, set()),
    "sampling of heads": (lambda v: HeadsDrafter(SequentialHead(4, 4), v), {"sampling"}),
    "heads to save": (lambda v: save_heads(v, "never"), set()),
    "shortest": (lambda v: drafted(PromptLookupDrafter(shortest=v)), {"int"}),
    "longest": (lambda v: drafted(PromptLookupDrafter(longest=v)), {"int", "huge"}),
    "text": (NGramDrafter.train, {"lists", "ragged", "large ids"}),
    "text to tokenize": (
        lambda v: NGramDrafter.train(v, tokenizer=TOKENIZER),
        {"string", "list of strings", "lists", "ragged", "large ids"},
    ),
    "order": (lambda v: NGramDrafter.train([1, 2, 3], order=v), {"int", "huge"}),
    "tokenizer of a text": (lambda v: NGramDrafter.train("to be", tokenizer=v), {"tokenizer"}),
    "sampling of n-grams": (lambda v: NGramDrafter.train([1, 2], sampling=v), {"sampling"}),
    "tables": (lambda v: drafted(NGramDrafter(v, 4)), set()),
    "vocabulary": (lambda v: drafted(NGramDrafter(FLAT.tables, v)), set()),
    "context": (FLAT.row, {"bytes", "set", "empty tensor", "unsigned", "large ids", "negative ids"}),
    "layers": (lambda v: drafted(EarlyExitDrafter(v)), set()),
    "kind of layers": (EarlyExitDrafter, {"int", "huge"}),
    "sampling of early exit": (lambda v: EarlyExitDrafter(1, v), {"sampling"}),
    "draft of another vocabulary": (lambda v: CrossVocabularyDrafter(v, TOKENIZER, TOKENIZER), {"model"}),
    "draft's tokenizer": (lambda v: CrossVocabularyDrafter(DRAFT, v, TOKENIZER), {"tokenizer"}),
    "target's tokenizer": (lambda v: CrossVocabularyDrafter(DRAFT, TOKENIZER, v), {"tokenizer"}),
    "sampling of another vocabulary": (lambda v: CrossVocabularyDrafter(DRAFT, TOKENIZER, TOKENIZER, v), {"sampling"}),
    "a tokenizer to share with": (lambda v: shared_vocabulary(TOKENIZER, v), {"tokenizer"}),
    "largest": (lambda v: AdaptiveGamma(largest=v), {"int", "huge"}),
    "least": (lambda v: AdaptiveGamma(least=v), {"int"}),
    "c": (lambda v: AdaptiveGamma(c=v), {"int", "huge", "float", "NumPy float"}),
    "v": (lambda v: AdaptiveGamma(v=v), {"int", "huge", "float", "NumPy float"}),
    "expected": (lambda v: AdaptiveGamma(expected=v), {"NumPy float"}),
    "prior": (lambda v: AdaptiveGamma(prior=v), {"int", "huge", "float", "NumPy float"}),
    "accepted": (lambda v: AdaptiveGamma()(v, 3), {"int"}),
    "progress of a sweep": (lambda v: specnb.sweep(abs, [], progress=v), {"bool", "NumPy bool"}),
    "progress of costs": (lambda v: costs(progress=v), {"bool", "NumPy bool"}),
}


@pytest.fixture
def forwards(traced):
    """Return a list that grows with every forward."""
    found = []
    hooks = [model.register_forward_pre_hook(lambda *_: found.append(1)) for model in (TARGET, DRAFT)]
    yield found
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("argument", CALLS)
def test_a_wrong_argument_is_refused_before_the_first_forward(argument, forwards):
    call, fine = CALLS[argument]
    assert fine <= set(THINGS)
    for name, thing in THINGS.items():
        if name in fine:
            call(thing)
            continue
        forwards.clear()
        with pytest.raises(SpecnbError, match=r"expected|unknown|can't be|no array") as caught:
            call(thing)
        assert not forwards, (name, caught.value)


def test_numpy_numbers_are_numbers():
    one, two = np.int64(1), np.int32(2)
    drafters = [PromptLookupDrafter(one, two), EarlyExitDrafter(one), NGramDrafter.train([1, 2, 3], order=two)]
    same = [PromptLookupDrafter(1, 2), EarlyExitDrafter(1), NGramDrafter.train([1, 2, 3], order=2)]
    gammas = AdaptiveGamma(largest=two, least=one, c=np.float32(0.5)), AdaptiveGamma(largest=2, least=1, c=0.5)
    for theirs, ours in zip(drafters, same, strict=True):
        runs = [generate(drafter=d, max_new_tokens=m, gamma=g, seed=s).tokens() for d, m, g, s in (
            (theirs, two, gammas[0], one), (ours, 2, gammas[1], 1))]  # fmt: skip
        assert runs[0] == runs[1]
    assert repr(drafters[0]) == "PromptLookupDrafter(shortest=1, longest=2)"
    assert gammas[0] == gammas[1]


class Processor(LogitsProcessor):
    """Changes nothing."""

    def __call__(self, input_ids, scores):
        """Return the scores."""
        return scores


GRAMMAR = "the constraint is over 2048 ids, and the target has 12; expected one made with the target's tokenizer"


@pytest.mark.parametrize(("message", "call"), {
    "logits_processor is Processor; expected a list of transformers.LogitsProcessor": lambda: generate(
        logits_processor=Processor()),
    "logits_processor has the class Processor; expected": lambda: generate(logits_processor=[Processor]),
    "the cache is tuple; expected a transformers cache": lambda: generate(cache=LEGACY),
    "stop_strings is int; expected a list of strings": lambda: generate(stop_strings=3, tokenizer=TOKENIZER),
    "stop_strings have ''; expected strings that aren't empty": lambda: generate(stop_strings=["a", ""]),
    "trace is 3; expected a folder that generate": lambda: specnb.rescore(3),
    "level is '0.9'; expected a number between 0 and 1": lambda: specnb.rescore("absent", level="0.9"),
    "eos_token_id has 12; expected 0 … 11, the target's vocabulary": lambda: generate(eos_token_id=[3, 12]),
    "eos_token_id has -1; expected 0": lambda: generate(eos_token_id=-1),
    "seed is -2; expected 0 <= seed": lambda: specnb.custom_generate(None, seed=-2),
    r"seed\[1\] is -2; expected 0 <= seed": lambda: specnb.custom_generate(None, seed=[1, -2]),
    "record is 1; expected True or False": lambda: specnb.custom_generate(None, record=1),
    "streamer is int; expected an object with put and end": lambda: generate(streamer=3),
    "0 streamers came for 1 requests": lambda: generate(streamer=[]),
    "num_return_sequences is 1180591620717411303424; expected an integer >= 1 and <= 4294967296": lambda: generate(
        num_return_sequences=2**70),
    "input_ids are bytes; expected": lambda: generate(input_ids=b"ab"),
    GRAMMAR: lambda: generate(constraint=specnb.Grammar.regex("[a-z]+", TOKENIZER)),
    "pattern is 3; expected a regular expression": lambda: specnb.Grammar.regex(3, TOKENIZER),
    "the schema is no JSON: Object of type object": lambda: specnb.Grammar.json_schema(object(), TOKENIZER),
    "the training text is bytes; expected ids": lambda: NGramDrafter.train(b"ab"),
    "tables are tuple; expected those of NGramDrafter.train, whose ids are below vocabulary, 2": lambda: NGramDrafter(
        FLAT.tables, 2),
    "largest is True; expected an integer >= 1": lambda: AdaptiveGamma(largest=True),
    "least is 9; expected an integer >= 0 and <= 8": lambda: AdaptiveGamma(least=9),
    "c is inf; expected a number between 0 and inf, neither": lambda: AdaptiveGamma(c=float("inf")),
    "prior is 10+; expected a number between 0 and inf": lambda: AdaptiveGamma(prior=10**400),
    "judged is 2; expected an integer >= 3": lambda: AdaptiveGamma()(accepted=3, judged=2),
    "shortest is True; expected an integer >= 1": lambda: PromptLookupDrafter(True),
}.items(), ids=lambda value: None)  # fmt: skip
def test_what_came_is_said(message, call, forwards):
    with pytest.raises(SpecnbError, match=message):
        call()
    assert not forwards


@pytest.mark.parametrize("name", ["trace", "level", "gamma", "rule"])
def test_rescore_refuses_what_it_cannot_read(name, traced):
    fine = {"trace": set(), "level": {"NumPy float"}, "gamma": set(), "rule": set()}[name]
    for thing, value in THINGS.items():
        if thing in fine or (name == "gamma" and thing == "int"):
            continue
        with pytest.raises(SpecnbError, match=r"expected|unknown"):
            specnb.rescore(**{"trace": traced} | {name: value})


def test_a_trace_that_cannot_be_made_or_read_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "below", "\0"):
        with pytest.raises(SpecnbError, match=r"trace is .* which can't be made"):
            generate(trace=place)
    run = generate(trace=tmp_path / "trace")
    about = (tmp_path / "trace" / "trace.json").read_text()
    for text, message in {
        "[]": "can't be read", about.replace("gamma", "delta"): "lacks the run's rule or gamma",
        about.replace('"rule"', '"role"'): "lacks the run's rule or gamma",
    }.items():  # fmt: skip
        (tmp_path / "trace" / "trace.json").write_text(text)
        with pytest.raises(SpecnbError, match=f"trace.json at .* {message}"):
            specnb.rescore(run)


@pytest.mark.parametrize("spoil", [
    lambda path, _: path.write_bytes(path.read_bytes()[:-9]),
    lambda path, _: path.write_bytes(b""),
    lambda path, arrays: save_file({k: v for k, v in arrays.items() if k != "drafted"}, path),
    lambda path, arrays: save_file({k: v for k, v in arrays.items() if k != "step"}, path),
    lambda path, arrays: save_file(arrays | {"p": arrays["p"][:-1]}, path),
    lambda path, arrays: save_file(arrays | {"q": arrays["q"][:-1]}, path),
], ids=["truncated", "empty", "no drafted", "no step", "short p", "short q"])  # fmt: skip
def test_a_spoilt_file_of_a_trace_is_told(spoil, tmp_path):
    run = generate(trace=tmp_path / "trace", max_new_tokens=6)
    (path,) = (tmp_path / "trace").glob("*.safetensors")
    spoil(path, load_file(path))
    for read in (specnb.rescore, lambda run: run.replay(run.rounds[0])):
        with pytest.raises(SpecnbError, match=r"rounds-000000.safetensors at .* can't be read \(.*; expected"):
            read(run)


def test_a_streamer_gets_nothing_of_a_run_that_is_refused(tmp_path):
    got = []
    streamer = type("Streamer", (), {"put": lambda self, value: got.append(value), "end": lambda self: None})()
    (tmp_path / "something").write_text("")
    with pytest.raises(SpecnbError, match="where something is already"):
        generate(streamer=streamer, trace=tmp_path)
    assert not got


def test_an_empty_cache_is_one():
    assert generate(cache=DynamicCache()).tokens() == generate().tokens()
