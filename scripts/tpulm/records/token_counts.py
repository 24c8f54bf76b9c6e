"""How often text has each token: the baseline of models, which knows nothing of the context.

A baseline is fitted on training text and measured on held-out text, as a model is. Counts of the held-out text itself
would know that text, and the shorter it is, the more.
"""

from collections.abc import Callable, Iterable

import numpy as np

from tpulm.records.order import BLOCK
from tpulm.records.reader import Records

TOKENS = 10_000_000  # of a split that are counted, at most, about


def count_tokens(records: Records, ids_of: Callable) -> np.ndarray:
    """Return how often each id is one that a model predicts, int64 [vocab_size].

    All blocks of tpulm.records.order are counted, or of a long split those of about TOKENS, evenly spread.

    ids_of  returns the ids that are predicted of some records, with the arguments of `maskable_ids`
    """
    number, width = -(-len(records) // BLOCK), records.manifest["tokens_per_record"]
    blocks = np.unique(np.linspace(0, number - 1, min(number, -(-TOKENS // (BLOCK * width)))).astype(np.int64))
    counts = np.zeros(records.manifest["vocab_size"], np.int64)
    for place, block in enumerate(blocks):
        indices = np.arange(block * BLOCK, min(len(records), (block + 1) * BLOCK))
        counts += np.bincount(ids_of(records, indices, blocks[place : place + 2].tolist), minlength=len(counts))
    return counts


def maskable_ids(records: Records, indices: np.ndarray, upcoming: Callable[[], Iterable[int]]) -> np.ndarray:
    """Return the ids of records that a mask can hide, all but special tokens: int32 [tokens]."""
    ids = records.read(indices, upcoming).ravel()
    return ids[~np.isin(ids, list(records.manifest["special_ids"].values()))]


def loss_of_frequencies(held_out: np.ndarray, trained: np.ndarray) -> float:
    """Return the loss, nats per token, of a model that predicts by the frequencies of training text alone.

    held_out, trained  counts of each id, as `count_tokens` returns them
    """
    return float(held_out / held_out.sum() @ -np.log(laplace(trained)))


def laplace(counts: np.ndarray) -> np.ndarray:
    """Return probabilities by counts plus one, which leave some for what training text does not have (Laplace)."""
    return (counts + 1) / (counts + 1).sum()


def masked_loss(held_out: np.ndarray, trained: np.ndarray, masking: dict) -> float:
    """Return the same loss of a masked model, nats per masked token.

    held_out, trained  counts of each id that is not special, int64 [ids]
    masking            as `mask_batch` takes it, with a share of random tokens

    With frequencies q of the held-out text and p of training text, a token that is hidden costs -sum q ln p. One that
    is seen is either the true one, in a share k of all, or one of n ids at random, in a share r: to the model, the true
    one is then y with the probability (k p(x) [x = y] + r p(y) / n) / (k p(x) + r / n), by Bayes. Beside a baseline
    that cannot see them, a model would seem better than it is.
    """
    truth, model = held_out / held_out.sum(), laplace(trained)
    hidden, random = masking["mask_replace_prob"], masking["random_replace_prob"] / len(model)
    kept = 1 - masking["mask_replace_prob"] - masking["random_replace_prob"]
    seen = kept * model + random  # the probability of each id where one is seen
    loss = -hidden * np.log(model) - (kept + random) * np.log((kept + random) * model / seen)
    # Another one than the true one is seen.
    loss -= random * ((len(model) - 1) * np.log(random * model) - (np.log(seen).sum() - np.log(seen)))
    return float(truth @ loss)
