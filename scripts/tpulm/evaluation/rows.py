"""The rows that a model reads to score texts: token ids, what a vocabulary cannot say, batches of few shapes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tpulm.core.files import read_json
from tpulm.evaluation.material import Passage
from tpulm.specs.masked_architectures import ARCHITECTURES, JAX_ONLY
from tpulm.tokenization.tokenizer import TextTokenizer, completion_mask


@dataclass(frozen=True)
class Encoded:
    """A text as tokens, without special ones.

    ids      of its tokens
    words    the number of the word of each token, or None; of no use for causal models
    unknown  bytes of UTF-8 that stand behind tokens for unknown characters
    scored   1 for each token that is scored, 0 for others, int32 [tokens]; None where all are
    """

    ids: list[int]
    words: list[int | None]
    unknown: int = 0
    scored: np.ndarray | None = None


def encode_passages(tokenizer: TextTokenizer, passages: Sequence[Passage]) -> list[Encoded]:
    """Return the tokens of passages."""
    found, unknown = [], tokenizer.special.get("unk")
    encodings = tokenizer.encodings([passage.text for passage in passages]) if passages else []
    for passage, one in zip(passages, encodings, strict=True):
        spans = [
            passage.text[slice(*span)] for token, span in zip(one.ids, one.offsets, strict=True) if token == unknown
        ]
        scored = completion_mask(passage.text, one.offsets, list(passage.scored))[1:-1]
        lost = sum(len(span.encode()) for span in spans)
        found.append(Encoded(one.ids, one.word_ids, lost, None if passage.is_whole else scored))
    return found


def unknown_nats(encoded: Sequence[Encoded]) -> np.ndarray:
    """Return the cost of the unknown characters of texts, nats, float64 [texts]: ln 256 for each byte.

    Without that, a vocabulary that knows fewer characters would make text cheaper.
    """
    return np.array([one.unknown for one in encoded]) * np.log(256)


def costs_of(texts: Sequence[Passage], encoded: Sequence[Encoded], nats: np.ndarray) -> dict[Passage, float]:
    """Return the cost of each text with its unknown characters, nats; nats  of its tokens, float64 [texts]."""
    return dict(zip(texts, (nats + unknown_nats(encoded)).tolist(), strict=True))


def fitting(length: int, folder: Path) -> int:
    """Return how many tokens a masked model of a Hugging Face folder reads at once: `length`, or as many as it can."""
    config = read_json(folder / "config.json")
    known = (ARCHITECTURES | JAX_ONLY).get(config["model_type"])
    unused = config["pad_token_id"] + 1 if known and known.after_pad else 0
    return min(length, (config.get("max_position_embeddings") or length + unused) - unused)


SHORTEST = 32  # tokens of a batch's rows; those of longer rows are twice that, four times, and so on
Arrays = dict[str, np.ndarray]
# The arrays that are as wide as a row, and the mask that tells them from their padding.
MASKS = {"input_ids": "attention_mask", "tokens": "mask"}
PADDED = (*MASKS, *MASKS.values(), "loss_mask")


class Row(NamedTuple):
    """What a model reads at once of a text: the number of the text, and arrays of one dimension, by name."""

    text: int
    arrays: Arrays


class Batch(NamedTuple):
    """Rows together: the text of each, int64 [rows], -1 for those that fill it up; arrays of shape [rows, ...]."""

    texts: np.ndarray
    arrays: Arrays


def masked_rows(encoded: Sequence[Encoded], tokenizer: TextTokenizer, length: int) -> Iterator[Row]:
    """Yield the rows by which a masked model scores texts: one for each token, which it predicts.

    length  tokens that the model reads at most; a longer text is read in pieces, one after another

    Masked are the token and those of its word to the right of it, `within_word_l2r` of Kauf and Ivanova (2023): if the
    token were alone, the rest of a rare word would give it away.
    Arrays: input_ids int32 [tokens]; positions, labels int32 and weights float32 [1]; attention_mask int32 [tokens].
    """
    before, after, mask = tokenizer.before, tokenizer.after, tokenizer.special["mask"]
    room = length - len(before) - len(after)
    for number, one in enumerate(encoded):
        for start in range(0, len(one.ids), room):
            ids = np.array([*before, *one.ids[start : start + room], *after], np.int32)
            words = np.array([-1 if word is None else word for word in one.words[start : start + room]])
            weights, whole = np.ones(1, np.float32), np.ones_like(ids)
            for place, word in enumerate(words):
                hidden = (words == word) & (word >= 0)
                hidden[:place], hidden[place] = False, True
                position = len(before) + place
                read = ids.copy()
                read[len(before) : len(before) + len(words)][hidden] = mask
                where = np.array([position], np.int32)
                arrays = {"input_ids": read, "positions": where, "labels": ids[where], "weights": weights}
                yield Row(number, arrays | {"attention_mask": whole})


def causal_rows(encoded: Sequence[Encoded], tokenizer: TextTokenizer, length: int) -> Iterator[Row]:
    """Yield the rows by which a causal model scores texts: each token is predicted once, the end of a text is not.

    Of a text whose responses are scored, tokens before them are read, and those of the responses are predicted.

    length  tokens that the model reads at most. A longer text is read in windows, as lm-evaluation-harness does it:
            each predicts what follows the one before, and the last one begins so early that it is as long as others

    Arrays of shape [tokens + 1]: tokens int32; mask bool; loss_mask int32, 1 for each token that is predicted.
    """
    # As the harness does it: what has no beginning of a text has its end before it.
    prefix = tokenizer.special["eos" if tokenizer.special["bos"] is None else "bos"]
    for number, one in enumerate(encoded):
        tokens = np.array([prefix, *one.ids], np.int32)
        done = 1
        while done < len(tokens):
            end = min(done + length, len(tokens))
            start = max(0, end - length - 1)
            predicted = (np.arange(start, end) >= done).astype(np.int32)
            if one.scored is not None:
                predicted[done - start :] &= one.scored[done - 1 : end - 1]
            if predicted.any():
                yield Row(number, {"tokens": tokens[start:end], "mask": predicted >= 0, "loss_mask": predicted})
            done = end


def batched(rows: Iterable[Row], tokens: int, longest: int, replicas: int = 1) -> Iterator[Batch]:
    """Yield rows in batches that are padded to few shapes, which take time to compile.

    tokens    of a batch, about; longest  tokens of a row, at most
    replicas  over which the rows of a batch are divided
    """
    waiting: dict[tuple[int, bool], list[Row]] = {}
    for row in rows:
        more = "tokens" in row.arrays  # the last of which a model does not read
        needed = len(row.arrays["tokens" if more else "input_ids"]) - more
        width = min(max(SHORTEST, 1 << (needed - 1).bit_length()), longest)
        own = waiting.setdefault((width, more), [])
        own.append(row)
        size = -(-max(1, tokens // width) // replicas) * replicas
        if len(own) == size:
            yield stacked(own, width + more, size)
            own.clear()
    for (width, more), own in waiting.items():
        if own:
            yield stacked(own, width + more, -(-max(1, tokens // width) // replicas) * replicas)


def stacked(rows: Sequence[Row], width: int, size: int) -> Batch:
    """Return rows as a batch of `size` rows of this width; rows of zeros, which weigh nothing, fill it up."""
    texts = np.full(size, -1, np.int64)
    texts[: len(rows)] = [row.text for row in rows]
    arrays = {}
    for name, first in rows[0].arrays.items():
        array = np.zeros((size, width if name in PADDED else len(first)), first.dtype)
        for place, row in enumerate(rows):
            array[place, : len(row.arrays[name])] = row.arrays[name]
        arrays[name] = array
    return Batch(texts, arrays)


def sum_by_text(batches: Iterable[tuple[Batch, np.ndarray]], texts: int) -> np.ndarray:
    """Return the sum of what the rows of each text cost, float64 [texts].

    batches  each with what its rows cost, float [rows]
    """
    totals = np.zeros(texts)
    for batch, costs in batches:
        real = batch.texts >= 0
        np.add.at(totals, batch.texts[real], costs[real].astype(np.float64))
    return totals
