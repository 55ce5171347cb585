"""What a text must match, a JSON schema, a regular expression or a grammar: read by llguidance."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from specnb.errors import SpecnbError

STUCK = "NoExtensionBias"
"""How llguidance's error begins at a text that no token continues."""


class Matcher(Protocol):
    """Where a text stands in a constraint."""

    def mask(self) -> np.ndarray:
        """Return which ids may follow, bool [V]; none if the constraint can't be met any more."""
        ...

    def consume(self, token: int) -> bool:
        """Go one token on, or return False and stay if the token isn't admitted."""
        ...

    def rollback(self, count: int) -> None:
        """Forget the last tokens."""
        ...


class Constraint(Protocol):
    """What `generate` asks of a constraint: a matcher at the beginning of a text, as often as it is asked."""

    def matcher(self) -> Matcher:
        """Return a matcher that has consumed nothing."""
        ...


@dataclass(frozen=True, eq=False)
class Grammar:
    """A constraint on what is emitted, for `generate(..., constraint=...)`; made by one of the class methods.

    The prompt isn't part of it. A text that is complete may, and one that can't go on must, end with the tokenizer's
    end of text. It needs the extra `grammar`, `pip install 'specnb[grammar]'`.

    source: the grammar as llguidance writes it. tokenizer: the target's, a fast transformers tokenizer.
    """

    source: str
    tokenizer: Any = field(repr=False)

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str, tokenizer: Any, *, whitespace: bool = False) -> Grammar:
        """Return the constraint to be JSON that a schema admits.

        whitespace: whether JSON may be written with spaces and line breaks between its signs; without, a text of
        bounded fields is bounded.

        Raises
        ------
        SpecnbError : no JSON schema, or one that llguidance can't read.

        Examples
        --------
        >>> import specnb
        >>> _, _, tokenizer = specnb.load_pair()
        >>> grammar = specnb.Grammar.json_schema({"enum": ["yes", "no"]}, tokenizer)
        >>> tokenizer.convert_ids_to_tokens(grammar.matcher().mask().nonzero()[0].tolist())
        ['"']
        """
        options: Any = {"whitespace_flexible": whitespace}
        try:
            text = schema if isinstance(schema, str) else json.dumps(schema)
            source = _llguidance().LLMatcher.grammar_from_json_schema(text, defaults=options)
        except (ValueError, TypeError) as error:
            raise SpecnbError(f"the schema is no JSON: {error}") from error
        return cls._checked(source, tokenizer)

    @classmethod
    def regex(cls, pattern: str, tokenizer: Any) -> Grammar:
        """Return the constraint to match a regular expression from beginning to end (Rust's syntax, no look-around).

        Raises
        ------
        SpecnbError : a pattern that llguidance can't read.

        Examples
        --------
        >>> import specnb
        >>> _, _, tokenizer = specnb.load_pair()
        >>> grammar = specnb.Grammar.regex("[A-Z]{1,3}", tokenizer)
        >>> tokenizer.convert_ids_to_tokens(grammar.matcher().mask().nonzero()[0].tolist())[:3]
        ['A', 'B', 'C']
        """
        _check_text("pattern", pattern, "a regular expression, such as '[a-z]+'")
        return cls._checked(_llguidance().LLMatcher.grammar_from_regex(pattern), tokenizer)

    @classmethod
    def lark(cls, grammar: str, tokenizer: Any) -> Grammar:
        """Return the constraint to be derived by a context-free grammar in Lark's notation.

        Raises
        ------
        SpecnbError : a grammar that llguidance can't read.
        """
        _check_text("grammar", grammar, "a grammar in Lark's notation, such as 'start: \"a\"+'")
        return cls._checked(_llguidance().LLMatcher.grammar_from_lark(grammar), tokenizer)

    def matcher(self) -> GrammarMatcher:
        """Return a matcher at the beginning of a text."""
        return GrammarMatcher(self._first, self._tokens.vocab_size, frozenset(self._tokens.eos_tokens))

    @classmethod
    def _checked(cls, source: str, tokenizer: Any) -> Grammar:
        grammar = cls(source, tokenizer)
        if problem := grammar._first.get_error():
            raise SpecnbError(f"llguidance can't read the constraint: {problem.strip()}")
        return grammar

    @functools.cached_property
    def _tokens(self) -> Any:
        _llguidance()
        from llguidance.hf import from_tokenizer

        if getattr(self.tokenizer, "eos_token_id", None) is None:
            raise SpecnbError("the tokenizer has no end of text; expected an eos_token, by which a match can end")
        try:
            return from_tokenizer(self.tokenizer)
        except ValueError as error:
            raise SpecnbError(f"llguidance can't read the tokenizer: {error}") from error

    @functools.cached_property
    def _first(self) -> Any:
        return _llguidance().LLMatcher(self._tokens, self.source, log_level=0)


class GrammarMatcher:
    """llguidance's matcher with ends of text that can be taken back, and texts that can't go on.

    llguidance neither counts an end that it consumes nor comes back from a text that no token continues.
    """

    def __init__(self, first: Any, vocabulary: int, ends: frozenset[int]) -> None:
        self.first, self.vocabulary, self.ends = first, vocabulary, ends
        self.parser = first.deep_copy()
        self.tokens: list[int] = []
        self.only_ends = np.isin(np.arange(vocabulary), list(ends))
        self.bits = np.zeros((1, (vocabulary + 31) // 32), np.int32)

    def mask(self) -> np.ndarray:
        """Return which ids may follow, bool [V]; none if nothing can, the end of text alone behind one."""
        if self._ended:
            return self.only_ends
        self.parser.unsafe_compute_mask_ptr(self.bits.ctypes.data, self.bits.nbytes)
        if self.parser.is_error():
            if not (error := self.parser.get_error()).startswith(STUCK):
                raise SpecnbError(f"llguidance gave up: {error.splitlines()[0]}")
            return np.zeros(self.vocabulary, bool)
        bits = np.unpackbits(self.bits.view(np.uint8)[0], bitorder="little")
        return bits[: self.vocabulary].astype(bool)

    def consume(self, token: int) -> bool:
        """Go one token on, or return False and stay."""
        if not 0 <= token < self.vocabulary:
            return False
        if token in self.ends:
            admitted = self._ended or (not self.parser.is_error() and self.parser.is_accepting())
        else:
            admitted = not self._ended and self.parser.try_consume_tokens([token]) == 1
        if admitted:
            self.tokens.append(token)
        return admitted

    def rollback(self, count: int) -> None:
        """Forget the last tokens, and that there was no going on behind them."""
        kept, gone = self.tokens[: len(self.tokens) - count], self.tokens[len(self.tokens) - count :]
        if self.parser.is_error():
            self.parser = self.first.deep_copy()
            self.parser.consume_tokens([token for token in kept if token not in self.ends])
        else:
            self.parser.rollback(sum(token not in self.ends for token in gone))
        self.tokens = kept

    @property
    def _ended(self) -> bool:
        return bool(self.tokens) and self.tokens[-1] in self.ends


def _check_text(name: str, text: Any, expected: str) -> None:
    if not isinstance(text, str):
        raise SpecnbError(f"{name} is {text!r}; expected {expected}")


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise SpecnbError("a grammar needs llguidance, which is missing: pip install 'specnb[grammar]'") from error
    return llguidance
