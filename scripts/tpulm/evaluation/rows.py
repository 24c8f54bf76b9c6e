"""Encode texts, and cut them into the rows and batches that a model reads to score them."""

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
    """A text as tokens, without special tokens.

    ids      token ids
    words    word number of each token, or None; unused by causal models
    unknown  bytes of UTF-8 that became tokens for unknown characters
    scored   1 for each token that is scored, 0 for others, int32 [tokens]; None if all are
    """

    ids: list[int]
    words: list[int | None]
    unknown: int = 0
    scored: np.ndarray | None = None


def encode_passages(tokenizer: TextTokenizer, passages: Sequence[Passage]) -> list[Encoded]:
    """Return the tokens of passages."""
    encoded, unknown = [], tokenizer.special.get("unk")
    encodings = tokenizer.encodings([passage.text for passage in passages]) if passages else []
    for passage, encoding in zip(passages, encodings, strict=True):
        tokens = zip(encoding.ids, encoding.offsets, strict=True)
        spans = [passage.text[slice(*span)] for token, span in tokens if token == unknown]
        scored = completion_mask(passage.text, encoding.offsets, list(passage.scored))[1:-1]
        unknown_bytes = sum(len(span.encode()) for span in spans)
        encoded.append(Encoded(encoding.ids, encoding.word_ids, unknown_bytes, None if passage.is_whole else scored))
    return encoded


def unknown_nats(encoded: Sequence[Encoded]) -> np.ndarray:
    """Return the cost of the unknown characters of texts in nats, float64 [texts]: ln 256 for each byte.

    Without it, a vocabulary that knows fewer characters would make text cheaper.
    """
    return np.array([text.unknown for text in encoded]) * np.log(256)


def costs_of(texts: Sequence[Passage], encoded: Sequence[Encoded], nats: np.ndarray) -> dict[Passage, float]:
    """Return the cost of each text in nats, unknown characters included; nats  cost of the tokens, float64 [texts]."""
    return dict(zip(texts, (nats + unknown_nats(encoded)).tolist(), strict=True))


def fitting(length: int, folder: Path) -> int:
    """Return `length`, or the context length of the masked model in a Hugging Face folder if that is shorter."""
    config = read_json(folder / "config.json")
    architecture = (ARCHITECTURES | JAX_ONLY).get(config["model_type"])
    unused_positions = config["pad_token_id"] + 1 if architecture and architecture.after_pad else 0
    return min(length, (config.get("max_position_embeddings") or length + unused_positions) - unused_positions)


SHORTEST = 32  # tokens of the shortest rows of a batch; widths are this times a power of two
Arrays = dict[str, np.ndarray]
# Arrays that are as wide as a row, with the names of their padding masks.
MASKS = {"input_ids": "attention_mask", "tokens": "mask"}
PADDED = (*MASKS, *MASKS.values(), "loss_mask")


class Row(NamedTuple):
    """A row that a model reads: the number of its text, and arrays of one dimension, by name."""

    text: int
    arrays: Arrays


class Batch(NamedTuple):
    """Stacked rows: the number of each row's text, int64 [rows], -1 for filling; arrays [rows, ...] by name."""

    texts: np.ndarray
    arrays: Arrays


def masked_rows(encoded: Sequence[Encoded], tokenizer: TextTokenizer, length: int) -> Iterator[Row]:
    """Yield a row for each token of texts, which a masked model predicts.

    length  limit of a row in tokens; a longer text is cut into consecutive parts

    The token and those to its right in the word are masked (`within_word_l2r`; Kauf and Ivanova 2023), because the rest
    of a rare word would give it away.
    Arrays: input_ids int32 [tokens]; positions, labels int32 and weights float32 [1]; attention_mask int32 [tokens].
    """
    before, after, mask = tokenizer.before, tokenizer.after, tokenizer.special["mask"]
    room = length - len(before) - len(after)
    for number, text in enumerate(encoded):
        for start in range(0, len(text.ids), room):
            ids = np.array([*before, *text.ids[start : start + room], *after], np.int32)
            words = np.array([-1 if word is None else word for word in text.words[start : start + room]])
            weights, whole = np.ones(1, np.float32), np.ones_like(ids)
            for place, word in enumerate(words):
                hidden = (words == word) & (word >= 0)
                hidden[:place], hidden[place] = False, True
                position = len(before) + place
                read = ids.copy()
                read[len(before) : len(before) + len(words)][hidden] = mask
                positions = np.array([position], np.int32)
                arrays = {"input_ids": read, "positions": positions, "labels": ids[positions], "weights": weights}
                yield Row(number, arrays | {"attention_mask": whole})


def causal_rows(encoded: Sequence[Encoded], tokenizer: TextTokenizer, length: int) -> Iterator[Row]:
    """Yield the rows in which a causal model predicts each scored token of texts once, their ends excluded.

    length  limit of a row in tokens. A longer text has windows as in lm-evaluation-harness: each predicts the tokens
            after the window before it, and the last one begins early enough to be as long as the others

    Arrays of shape [tokens + 1]: tokens int32; mask bool; loss_mask int32, 1 for each token that is predicted.
    """
    # Without <bos>, <eos> comes before a text, as in the harness.
    prefix = tokenizer.special["eos" if tokenizer.special["bos"] is None else "bos"]
    for number, text in enumerate(encoded):
        tokens = np.array([prefix, *text.ids], np.int32)
        done = 1
        while done < len(tokens):
            end = min(done + length, len(tokens))
            start = max(0, end - length - 1)
            predicted = (np.arange(start, end) >= done).astype(np.int32)
            if text.scored is not None:
                predicted[done - start :] &= text.scored[done - 1 : end - 1]
            if predicted.any():
                yield Row(number, {"tokens": tokens[start:end], "mask": predicted >= 0, "loss_mask": predicted})
            done = end


def batched(rows: Iterable[Row], tokens: int, longest: int, replicas: int = 1) -> Iterator[Batch]:
    """Yield rows in batches of few shapes, because each shape is compiled.

    tokens    about so many in a batch
    longest   limit of a row, in tokens
    replicas  divides the number of rows of a batch
    """
    pending: dict[tuple[int, bool], list[Row]] = {}
    for row in rows:
        extra = "tokens" in row.arrays  # the last token is only predicted
        needed = len(row.arrays["tokens" if extra else "input_ids"]) - extra
        width = min(max(SHORTEST, 1 << (needed - 1).bit_length()), longest)
        pending_rows = pending.setdefault((width, extra), [])
        pending_rows.append(row)
        size = -(-max(1, tokens // width) // replicas) * replicas
        if len(pending_rows) == size:
            yield stacked(pending_rows, width + extra, size)
            pending_rows.clear()
    for (width, extra), pending_rows in pending.items():
        if pending_rows:
            yield stacked(pending_rows, width + extra, -(-max(1, tokens // width) // replicas) * replicas)


def stacked(rows: Sequence[Row], width: int, size: int) -> Batch:
    """Return rows as a batch of `size` rows, padded to `width` and filled with rows of zeros, which have no weight."""
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
    """Return the sum of the costs of each text's rows, float64 [texts].

    batches  with the costs of their rows, float [rows]
    """
    totals = np.zeros(texts)
    for batch, costs in batches:
        real = batch.texts >= 0
        np.add.at(totals, batch.texts[real], costs[real].astype(np.float64))
    return totals
