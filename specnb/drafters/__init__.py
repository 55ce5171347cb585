"""Where drafts come from: a drafter proposes tokens with the q they were drawn from, and can roll back.

A drafter is anything with `start(batch, chooser, gamma, target)`, which returns the state of one run:
`propose(batch, limits) -> Proposal`, `rollback(lengths)` after each round, `keep(index)` when requests leave
the batch, and `calls`. The drafter itself holds no state, so one may serve several runs.
"""

from specnb.decoding.adaptive import AdaptiveGamma
from specnb.drafters.cross_vocabulary import CrossVocabularyDrafter
from specnb.drafters.early_exit import EarlyExitDrafter
from specnb.drafters.heads import HeadsDrafter
from specnb.drafters.heads_modules import IndependentHeads, SequentialHead, save_heads
from specnb.drafters.lookup import PromptLookupDrafter
from specnb.drafters.model import ModelDrafter, ModelRun
from specnb.drafters.ngram import NGramDrafter
from specnb.drafters.protocol import Drafter, DraftRun, NoDrafts
from specnb.drafters.vocabularies import SharedVocabulary, shared_vocabulary

__all__ = [
    "AdaptiveGamma",
    "CrossVocabularyDrafter",
    "DraftRun",
    "Drafter",
    "EarlyExitDrafter",
    "HeadsDrafter",
    "IndependentHeads",
    "ModelDrafter",
    "ModelRun",
    "NGramDrafter",
    "NoDrafts",
    "PromptLookupDrafter",
    "SequentialHead",
    "SharedVocabulary",
    "save_heads",
    "shared_vocabulary",
]
