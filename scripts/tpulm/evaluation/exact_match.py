"""Responses that a finetuned model generates to held-out prompts, compared with those of the text."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tpulm.evaluation.item_means import Scored, mean_score
from tpulm.evaluation.material import Item, Passage
from tpulm.specs.artifacts import OF_RESPONSES, TEST
from tpulm.specs.scores import BASE, RESPONSES
from tpulm.tokenization.tokenizer import TextTokenizer, completion_mask

LONGEST = 32  # tokens of a response: nobody expects longer ones word for word
MARKS = 2  # tokens that begin and end a text, at most


class Question(NamedTuple):
    """A prompt, and the response that the text has to it; item  its name."""

    item: str
    prompt: str
    response: str


def questions_of(items: Sequence[Item], tokenizer: TextTokenizer, characters: int, length: int) -> Iterator[Question]:
    """Yield the questions of documents that end with a response of at most LONGEST tokens.

    characters  that documents are cut at: those that have as many do not count
    length      tokens of a document, at most

    A response begins where its first token does, as in training: a space before it may belong to that token.
    """
    for item in items:
        (passage,) = item.passages
        if passage.is_whole or len(passage.text) >= characters:
            continue
        response = passage.scored[-1]
        (places,) = tokenizer.places([passage.text])
        first, last = span_of(passage, places)
        short = last - first <= LONGEST and len(places) + MARKS <= length
        if response[1] == len(passage.text) and first and short:
            start = places[first][0]
            yield Question(item.item, passage.text[:start], passage.text[start:])


def span_of(passage: Passage, places: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the first token of the last response of a passage, and the one after its last token."""
    inside = np.flatnonzero(completion_mask(passage.text, places, [passage.scored[-1]])[1:-1])
    return (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)


def generated(generate: Callable[[list[str]], list[str]], prompts: Sequence[str], size: int) -> list[str]:
    """Return the generated response to each prompt, from batches of `size`."""
    filled = [*prompts, *[prompts[-1]] * (-len(prompts) % size)]
    batches = (filled[start : start + size] for start in range(0, len(filled), size))
    return [text for batch in batches for text in generate(batch)][: len(prompts)]


def exact_match(text: str, questions: Sequence[Question], before: Sequence[str], after: Sequence[str]) -> Scored:
    """Return the share of responses that are those of the text, but for the space around them.

    text           whose test split the questions are of
    before, after  what the base model and the finetuned model generate

    Beside them stands the response that is the most frequent one among the questions, given to all of them.
    """
    wanted = [question.response.strip() for question in questions]

    def right(said: Sequence[str]) -> np.ndarray:
        return np.array([one.strip() == other for one, other in zip(said, wanted, strict=True)], np.float64)

    ((frequent, _),) = Counter(wanted).most_common(1)
    return mean_score(
        [question.item for question in questions],
        right(after),
        {BASE: right(before), "most frequent response": right([frequent] * len(wanted))},
        group=RESPONSES,
        metric="exact_match",
        set=text,
        on=f"{text} {TEST}{OF_RESPONSES}",
        higher_is_better=True,
        split=TEST,
    )
