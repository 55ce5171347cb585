"""Tokenizers of a handful of tokens, whose ids are whatever order they are given in."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast


def tiny_tokenizer(tokens, decoder=None, **special):
    """Return a tokenizer that merges letters into the tokens given; special tokens come last, by role.

    A token of several letters is merged from its beginning and its last letter, both of which have to be tokens.
    """
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [(token[:-1], token[-1]) for token in tokens if len(token) > 1 and not token.startswith("<")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.decoder = decoder or decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)
