"""Responses that a finetuned model generates to held-out prompts, compared with those of the text."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tpulm.core.scores import BASE, RESPONSES, Score
from tpulm.evaluation.documents import Answered, TextSet
from tpulm.evaluation.intervals import interval
from tpulm.specs.artifacts import OF_RESPONSES
from tpulm.tokenization.causal import CausalTokenizer, completion_mask

LONGEST = 32  # tokens of a response: nobody expects longer ones word for word
MARKS = 2  # tokens that begin and end a text, at most


class Question(NamedTuple):
    """A prompt, and the response that the text has to it; item  its name."""

    item: str
    prompt: str
    response: str


def questions_of(texts: TextSet, tokenizer: CausalTokenizer, characters: int, length: int) -> Iterator[Question]:
    """Yield the questions of documents that end with a response of at most LONGEST tokens.

    characters  that documents are cut at: those that have as many do not count
    length      tokens of a document, at most

    A response begins where its first token does, as in training: a space before it may belong to that token.
    """
    for item, passage in zip(texts.items, texts.texts, strict=True):
        if isinstance(passage, str) or len(passage.text) >= characters:
            continue
        response = passage.responses[-1]
        (places,) = tokenizer.places([passage.text])
        first, last = span_of(passage, places)
        short = last - first <= LONGEST and len(places) + MARKS <= length
        if response[1] == len(passage.text) and first and short:
            start = places[first][0]
            yield Question(item, passage.text[:start], passage.text[start:])


def span_of(passage: Answered, places: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the first token of the last response of a passage, and the one after its last token."""
    inside = np.flatnonzero(completion_mask(passage.text, places, [passage.responses[-1]])[1:-1])
    return (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)


def generated(generate: Callable[[list[str]], list[str]], prompts: Sequence[str], size: int) -> list[str]:
    """Return what follows each prompt, from batches of `size`."""
    filled = [*prompts, *[prompts[-1]] * (-len(prompts) % size)]
    batches = (filled[start : start + size] for start in range(0, len(filled), size))
    return [text for batch in batches for text in generate(batch)][: len(prompts)]


def exact_match(
    texts: TextSet, questions: Sequence[Question], before: Sequence[str], after: Sequence[str]
) -> tuple[Score, dict[str, float]]:
    """Return the share of responses that are those of the text, but for the space around them, and 1 or 0 by item.

    before, after  what the base model and the finetuned model generate

    Beside them stands the response that is the most frequent one among the questions, given to all of them.
    """
    wanted = [question.response.strip() for question in questions]

    def right(said: Sequence[str]) -> np.ndarray:
        return np.array([one.strip() == other for one, other in zip(said, wanted, strict=True)], np.float64)

    values = right(after)
    (_, frequent), *_ = Counter(wanted).most_common(1)
    low, high = interval(values)
    score = Score(
        group=RESPONSES,
        metric="exact_match",
        on=f"{texts.name}{OF_RESPONSES}",
        value=float(values.mean()),
        low=low,
        high=high,
        higher_is_better=True,
        items=len(questions),
        baselines={BASE: float(right(before).mean()), "most frequent response": frequent / len(wanted)},
        split=texts.split,
    )
    return score, {question.item: value for question, value in zip(questions, values.tolist(), strict=True)}
