"""Baselines that predict tokens by their frequencies, without the context.

They are fitted on training text and measured on held-out text, as models are. Counts of the held-out text would already
know it, the more the shorter it is.
"""

from collections.abc import Callable, Iterable

import numpy as np

from tpulm.records.order import BLOCK
from tpulm.records.reader import Records

TOKENS = 10_000_000  # tokens of a split that are counted, at most, about


def count_tokens(records: Records, ids_of: Callable) -> np.ndarray:
    """Return how often a model predicts each id, int64 [vocab_size].

    All blocks of tpulm.records.order are counted; in a long split, evenly spread blocks of about TOKENS.

    ids_of  returns the predicted ids of records, with the arguments of `maskable_ids`
    """
    number, width = -(-len(records) // BLOCK), records.manifest["tokens_per_record"]
    blocks = np.unique(np.linspace(0, number - 1, min(number, -(-TOKENS // (BLOCK * width)))).astype(np.int64))
    counts = np.zeros(records.manifest["vocab_size"], np.int64)
    for place, block in enumerate(blocks):
        indices = np.arange(block * BLOCK, min(len(records), (block + 1) * BLOCK))
        counts += np.bincount(ids_of(records, indices, blocks[place : place + 2].tolist), minlength=len(counts))
    return counts


def maskable_ids(records: Records, indices: np.ndarray, upcoming: Callable[[], Iterable[int]]) -> np.ndarray:
    """Return the ids of records that can be masked, all but special tokens: int32 [tokens]."""
    ids = records.read(indices, upcoming).ravel()
    return ids[~np.isin(ids, list(records.manifest["special_ids"].values()))]


def loss_of_frequencies(held_out: np.ndarray, trained: np.ndarray) -> float:
    """Return the loss, nats per token, of a model that predicts by the frequencies of training text alone.

    held_out, trained  counts of each id, as `count_tokens` returns them
    """
    return float(held_out / held_out.sum() @ -np.log(laplace(trained)))


def laplace(counts: np.ndarray) -> np.ndarray:
    """Return probabilities by counts plus one (Laplace), so that unseen tokens have some."""
    return (counts + 1) / (counts + 1).sum()


def masked_loss(held_out: np.ndarray, trained: np.ndarray, masking: dict) -> float:
    """Return the loss of frequencies as a masked model, in nats per masked token.

    held_out, trained  counts of each id that is not special, int64 [ids]
    masking            as `mask_batch` takes it, with a share of random tokens

    With frequencies q of the held-out text and p of training text, a masked token costs -sum q ln p. A visible token x
    is either the true one, in a share k of all, or one of n ids at random, in a share r: by Bayes, the true one is y
    with the probability (k p(x) [x = y] + r p(y) / n) / (k p(x) + r / n). Compared with a baseline that ignores visible
    tokens, a model would seem better than it is.
    """
    truth, model = held_out / held_out.sum(), laplace(trained)
    hidden, random = masking["mask_replace_prob"], masking["random_replace_prob"] / len(model)
    unchanged = 1 - masking["mask_replace_prob"] - masking["random_replace_prob"]
    seen = unchanged * model + random  # the probability of each visible id
    loss = -hidden * np.log(model) - (unchanged + random) * np.log((unchanged + random) * model / seen)
    # Visible tokens that are not the true ones.
    loss -= random * ((len(model) - 1) * np.log(random * model) - (np.log(seen).sum() - np.log(seen)))
    return float(truth @ loss)
