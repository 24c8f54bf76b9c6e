"""How often text has each token: the baseline of models, which knows nothing of the context.

A baseline is fitted on training text and measured on held-out text, as a model is. Counts of the held-out text itself
would know that text, and the shorter it is, the more.
"""

import numpy as np

from tpulm.records.causal_batches import arrays
from tpulm.records.masked_batches import EVALUATION_MASKING, ordinary_ids
from tpulm.records.order import BLOCK
from tpulm.records.reader import Records
from tpulm.specs.record_arrays import predicted_tokens

TOKENS = 10_000_000  # of a split that are counted, at most, about


def count_tokens(records: Records) -> np.ndarray:
    """Return how often each id is one that a model predicts, int64 [vocab_size].

    All blocks of tpulm.records.order are counted, or of a long split those of about TOKENS, evenly spread.
    """
    size, width = records.manifest["vocab_size"], records.manifest["tokens_per_record"]
    number = -(-len(records) // BLOCK)
    blocks = np.unique(np.linspace(0, number - 1, min(number, -(-TOKENS // (BLOCK * width)))).astype(np.int64))
    counts = np.zeros(size, np.int64)
    for place, block in enumerate(blocks):
        indices, upcoming = np.arange(block * BLOCK, min(len(records), (block + 1) * BLOCK)), blocks[place : place + 2]
        if width > records.sequence_length:  # of a causal model, which predicts the token after the last that it reads
            batch = arrays(records, indices, upcoming.tolist)
            ids = batch["tokens"][:, 1:][predicted_tokens(batch)]
        else:
            ids = records.read(indices, upcoming.tolist).ravel()
        counts += np.bincount(ids, minlength=size)
    if width == records.sequence_length:  # no mask hides a special token
        counts[sorted(set(records.manifest["special_ids"].values()))] = 0
    return counts


def loss_of_frequencies(records: Records, trained: np.ndarray) -> float:
    """Return the held-out loss, nats per token, of a model that predicts by the frequencies of training text alone.

    records  of a held-out split; trained  counts of training text, as `count_tokens` returns them
    """
    held_out = count_tokens(records)
    if records.manifest["tokens_per_record"] > records.sequence_length:
        return float(held_out / held_out.sum() @ -np.log(laplace(trained)))
    ordinary = ordinary_ids(len(trained), tuple(sorted(set(records.manifest["special_ids"].values()))))
    return masked_loss(held_out[ordinary], trained[ordinary], EVALUATION_MASKING)


def laplace(counts: np.ndarray) -> np.ndarray:
    """Return probabilities by counts plus one, which leave some for what training text does not have (Laplace)."""
    return (counts + 1) / (counts + 1).sum()


def masked_loss(held_out: np.ndarray, trained: np.ndarray, masking: dict) -> float:
    """Return the expected loss, nats per masked token, of predictions by the frequencies p of training text.

    held_out, trained  counts of each ordinary id, int64 [ids]; masking  as `mask_batch` takes it

    Over the frequencies q of the held-out text, a token that is hidden costs -sum q ln p. One that is seen is either
    the true one, in a share k of all, or one of n ids at random, in a share r: to the model, the true one is then y
    with the probability (k p(x) [x = y] + r p(y) / n) / (k p(x) + r / n), by Bayes. The model would seem better than it
    is beside a baseline that cannot see them.
    """
    truth, model = held_out / held_out.sum(), laplace(trained)
    hidden, random = masking["mask_replace_prob"], masking["random_replace_prob"] / len(model)
    kept = 1 - masking["mask_replace_prob"] - masking["random_replace_prob"]
    loss = -hidden * np.log(model)
    seen = kept * model + random  # the probability of each id where one is seen
    if kept + random > 0:
        loss -= (kept + random) * np.log((kept + random) * model / seen)
    if random:  # another one than the true one is seen
        loss -= random * ((len(model) - 1) * np.log(random * model) - (np.log(seen).sum() - np.log(seen)))
    return float(truth @ loss)
