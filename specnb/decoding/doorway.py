"""The way in from transformers: `model.generate(..., custom_generate=specnb.custom_generate(drafter))`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers.generation import stopping_criteria as stopping
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specnb.backends import load as load_backend
from specnb.decoding.adaptive import AdaptiveGamma
from specnb.decoding.arguments import check_constraint, check_count, check_drafter, check_switch
from specnb.decoding.batch import left_padding, read_prompts
from specnb.decoding.choosing import choose_backend
from specnb.decoding.generation import Generation
from specnb.decoding.grammar import Constraint
from specnb.decoding.loop import decode
from specnb.decoding.plan import Plan, rule_of
from specnb.decoding.special import stop_ids
from specnb.decoding.statistics import Statistics
from specnb.decoding.support import check_model
from specnb.decoding.warpers import as_sampling
from specnb.drafters import Drafter
from specnb.errors import SpecnbError
from specnb.rules import Rule
from specnb.streams import check_seeds

READ = {"attention_mask", "cache", "past_key_values", "position_ids"}
"""What the models' arguments that `generate` prepares are read for."""

DERIVED = {"use_cache", "logits_to_keep"}
"""Arguments that follow from those, or say how a forward is to be made."""

UNSUPPORTED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """What `generate` returns with return_dict_in_generate, and besides `generation` with its statistics `stats`."""

    generation: Generation | None = None
    stats: Statistics | None = None


def custom_generate(
    drafter: Drafter | None,
    *,
    gamma: int | AdaptiveGamma = 5,
    rule: str | Rule = "token",
    seed: Any = None,
    backend: str | None = None,
    record: bool = False,
    constraint: Constraint | None = None,
) -> Callable[..., Any]:
    """Return a decoding method for transformers' `generate`, with the law of its own one.

    The generation config, logits processors, stopping criteria, prefilled cache and streamer are those that
    `generate` was called with. It returns what `generate` returns: sequences with the inputs as they came, or with
    return_dict_in_generate an output with `sequences`, `generation` and `stats`.

    Parameters
    ----------
    drafter, gamma, rule, backend, record, constraint : as in `specnb.generate`.
    seed : as in `specnb.generate`; None takes one from PyTorch's generator where do_sample is on, so that
        `torch.manual_seed` fixes it.

    Notes
    -----
    With padding on the right a request's law is that of its own text, as in `specnb.generate`, where transformers'
    methods decode behind the padding. transformers passes no tokenizer on, so stop strings come as a
    `StopStringCriteria` in stopping_criteria. A cache that the caller passes is read and stays as it was, and the
    returned dict has none.

    Raises
    ------
    SpecnbError : when `generate` is called: with beams, another decoding method, a second model, scores to be
        returned, arguments for the model that decoding doesn't know, or positions other than the mask's.

    Examples
    --------
    >>> import specnb
    >>> target, draft, tokenizer = specnb.load_pair()
    >>> inputs = tokenizer("ROMEO.", return_tensors="pt")
    >>> method = custom_generate(specnb.drafters.ModelDrafter(draft), gamma=4)
    >>> fast = target.generate(**inputs, max_new_tokens=20, do_sample=False, custom_generate=method)
    >>> bool((fast == target.generate(**inputs, max_new_tokens=20, do_sample=False)).all())
    True
    """
    check_drafter(drafter)
    gamma = gamma if isinstance(gamma, AdaptiveGamma) else check_count("gamma", gamma)
    if seed is not None:
        check_seeds(seed)
    if backend is not None:
        load_backend(backend)
    check_switch("record", record)
    check_constraint(constraint)
    way = _Way(drafter, 0 if drafter is None else gamma, rule_of(rule, drafter), seed, backend, record, constraint)

    def method(
        model: Any, input_ids: torch.Tensor, logits_processor: Any, stopping_criteria: Any, generation_config: Any,
        synced_gpus: bool = False, streamer: Any = None, **model_kwargs: Any,
    ) -> Any:  # fmt: skip
        caller = _caller()
        _check(generation_config, synced_gpus, caller.get("assistant_model"), model_kwargs)
        # transformers (5.17 to 5.24) calls put(prompt), and then forgets to pass the streamer to a callable.
        streamer = caller.get("streamer") if streamer is None else streamer
        plan = _plan(way, model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)
        run = decode(replace(plan, streamers=streamer, announce=False), device=input_ids.device)
        if run.interrupted:
            raise KeyboardInterrupt
        sequences: Any = _with_inputs(input_ids, run, generation_config)
        if not generation_config.return_dict_in_generate:
            return sequences
        return SpeculativeOutput(sequences, generation=run, stats=run.stats)

    return method


@dataclass(frozen=True)
class _Way:
    """The arguments of `custom_generate`."""

    drafter: Drafter | None
    gamma: int | AdaptiveGamma
    rule: Rule
    seed: Any
    backend: str | None
    record: bool
    constraint: Constraint | None


def _plan(
    way: _Way, model: Any, input_ids: torch.Tensor, processors: Any, criteria: Any, config: Any, model_kwargs: Any
) -> Plan:
    """Return the plan that `generate` prepared, without its streamer."""
    mask = model_kwargs.get("attention_mask")
    mask = torch.ones_like(input_ids) if mask is None else mask
    prompts, padding = read_prompts(input_ids, mask), left_padding(mask, len(input_ids))
    _check_positions(model_kwargs.get("position_ids"), mask)
    budget = _budget(criteria, config, input_ids.shape[1])
    check_model("target", model, max(len(prompt) for prompt in prompts) + budget)
    sampling, processors = as_sampling(processors, config.do_sample)
    own = (stopping.MaxLengthCriteria, stopping.EosTokenCriteria)
    cache = model_kwargs.get("cache")
    return Plan(
        model, way.drafter, prompts, budget,
        gamma=way.gamma,
        sampling=sampling,
        rule=way.rule,
        seed=_seed(config) if way.seed is None else way.seed,
        backend=choose_backend(way.backend, model.device, way.rule),
        stops=_ends(criteria),
        padding=[row[:n].cpu().numpy() for row, n in zip(input_ids, padding.tolist(), strict=True)],
        processors=processors,
        criteria=[c for c in criteria if not isinstance(c, own)],
        cache=model_kwargs.get("past_key_values") if cache is None else cache,
        constraint=way.constraint,
        cache_padding=padding,
        record=way.record,
    )  # fmt: skip


def _budget(criteria: Any, config: Any, known: int) -> int:
    """Return how many tokens each request may emit; transformers counts the padding of its prompt as well."""
    limits = [c.max_length for c in criteria if isinstance(c, stopping.MaxLengthCriteria)]
    return max(0, min([config.max_length, *limits]) - known)


def _check(config: Any, synced_gpus: bool, assistant: Any, model_kwargs: dict[str, Any]) -> None:
    """Raise `SpecnbError` if `generate` was asked for what this method doesn't do."""
    if (config.num_beams or 1) > 1:
        raise SpecnbError(f"num_beams is {config.num_beams}; expected 1: speculative decoding samples, or is greedy")
    if assistant is not None or config.prompt_lookup_num_tokens:
        raise SpecnbError(
            "assistant_model or prompt_lookup_num_tokens came with custom_generate; expected the drafter in "
            "specnb.custom_generate(drafter) alone"
        )
    if config.penalty_alpha or config.dola_layers:
        raise SpecnbError("penalty_alpha or dola_layers came; expected neither: they are decoding methods of their own")
    if synced_gpus:
        raise SpecnbError("synced_gpus is on; expected a model on one device")
    if config.return_dict_in_generate and (asked := [name for name in UNSUPPORTED if getattr(config, name, None)]):
        raise SpecnbError(
            f"{', '.join(asked)} came; expected none: the output's generation has each round's rows, replay(round)"
        )
    given = {name for name, value in model_kwargs.items() if value is not None}
    if unknown := given - READ - DERIVED:
        names = ", ".join(sorted(unknown))
        raise SpecnbError(f"the model's arguments {names} came; expected input_ids and their attention_mask alone")


def _check_positions(positions: Any, mask: torch.Tensor) -> None:
    """Raise `SpecnbError` unless positions are those of each row's own tokens, 0, 1, …, as the mask gives them."""
    if positions is None:
        return
    expected = mask.long().cumsum(1) - 1
    try:
        same = bool(((positions[..., : mask.shape[1]].to(mask.device) == expected) | (mask == 0)).all())
    except (AttributeError, TypeError, IndexError, RuntimeError):  # no tensor, or of another shape
        same = False
    if not same:
        raise SpecnbError(
            "position_ids came that the attention_mask doesn't give; expected none: each request's tokens stand at "
            "0, 1, …"
        )


def _caller() -> dict[str, Any]:
    """Return the arguments of the call of `generate` that this method was called by, or nothing."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame and frame.f_back
    return dict(frame.f_locals) if frame and frame.f_code.co_name == "generate" else {}


def _seed(config: Any) -> int:
    return int(torch.randint(2**62, ())) if config.do_sample else 0


def _ends(criteria: Sequence[Any]) -> np.ndarray:
    """Return the ids that end a request, from the criteria that stand for them."""
    ids = [c.eos_token_id for c in criteria if isinstance(c, stopping.EosTokenCriteria)]
    return stop_ids(None, torch.cat([one.reshape(-1).cpu() for one in ids]) if ids else None)


def _with_inputs(input_ids: torch.Tensor, run: Generation, config: Any) -> torch.Tensor:
    """Return the inputs as they came, padding included, each followed by what its request emitted."""
    pad = getattr(config, "_pad_token_tensor", None)
    emitted = run.stats.emitted
    fill = 0 if pad is None else int(pad.reshape(-1)[0])
    new = np.full((len(emitted), int(emitted.max(initial=0))), fill, np.int64)
    for row, count in enumerate(emitted.tolist()):
        new[row, :count] = run.tokens(row)
    return torch.cat([input_ids, torch.from_numpy(new).to(input_ids.device)], 1)
