"""Score the responses that a finetuned model generates to held-out prompts, by exact match with those of the text."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tpulm.evaluation.item_means import Scored, mean_score
from tpulm.evaluation.material import Item, Passage
from tpulm.specs.artifacts import OF_RESPONSES, TEST
from tpulm.specs.scores import BASE, RESPONSES
from tpulm.tokenization.tokenizer import TextTokenizer, completion_mask

LONGEST = 32  # tokens of a short response; longer ones are not expected word for word
MARKS = 2  # most tokens that mark the ends of a text


T = TypeVar("T")


class Question(NamedTuple):
    """An item's name, its prompt, and the text's response to it; is_short  whether exact match can be expected."""

    item: str
    prompt: str
    response: str
    is_short: bool


def questions_of(items: Sequence[Item], tokenizer: TextTokenizer, characters: int, length: int) -> Iterator[Question]:
    """Yield a question for each document that ends with a response.

    characters  length that documents are cut at; documents that reach it are left out
    length      most tokens of a document

    A response begins with its first token, as in training, which may include the space before it.
    """
    for item in items:
        (passage,) = item.passages
        if passage.is_whole or len(passage.text) >= characters:
            continue
        response = passage.scored[-1]
        (places,) = tokenizer.places([passage.text])
        first, last = span_of(passage, places)
        if response[1] == len(passage.text) and first and len(places) + MARKS <= length:
            start = places[first][0]
            yield Question(item.item, passage.text[:start], passage.text[start:], last - first <= LONGEST)


def span_of(passage: Passage, places: list[tuple[int, int]]) -> tuple[int, int]:
    """Return start and stop of the last response of a passage, as token indices; (0, 0) without tokens."""
    inside = np.flatnonzero(completion_mask(passage.text, places, [passage.scored[-1]])[1:-1])
    return (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)


def most_tokens(questions: Sequence[Question], sampling: Mapping[str, Any]) -> int:
    """Return the limit of new tokens: at least that of `sampling` where some responses are long, which are read."""
    limit = sampling["max_new_tokens" if "max_new_tokens" in sampling else "max_length"]
    return LONGEST + MARKS if all(question.is_short for question in questions) else max(LONGEST + MARKS, limit)


def generated(generate: Callable[[list[str]], list[list[T]]], prompts: Sequence[str], size: int) -> list[T]:
    """Return the only continuation of each prompt; `generate` gets batches of exactly `size` prompts."""
    filled = [*prompts, *[prompts[-1]] * (-len(prompts) % size)]
    batches = (filled[start : start + size] for start in range(0, len(filled), size))
    return [found for batch in batches for (found,) in generate(batch)][: len(prompts)]


def exact_match(text: str, questions: Sequence[Question], before: Sequence[str], after: Sequence[str]) -> Scored:
    """Return the share of responses equal to those of the text, apart from white space at the ends.

    text           name of the text whose test split has the questions
    before, after  responses of the base model and of the finetuned model

    Baselines are the base model and the most frequent response of the questions.
    """
    wanted = [question.response.strip() for question in questions]

    def right(responses: Sequence[str]) -> np.ndarray:
        return np.array([a.strip() == b for a, b in zip(responses, wanted, strict=True)], np.float64)

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
