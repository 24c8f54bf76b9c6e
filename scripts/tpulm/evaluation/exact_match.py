"""Responses that a finetuned model generates to held-out prompts, compared with those of the text."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tpulm.core.scores import Score
from tpulm.evaluation.documents import Answered, TextSet
from tpulm.evaluation.intervals import interval
from tpulm.specs.artifacts import OF_RESPONSES

LONGEST = 32  # tokens of a response: nobody expects longer ones word for word


class Question(NamedTuple):
    """A prompt and the response that the text has, without the space around it; item  its name."""

    item: str
    prompt: str
    response: str


def questions_of(texts: TextSet, characters: int) -> Iterator[Question]:
    """Yield the questions of documents that end with a response, as whole documents do.

    characters  that a document is cut at
    """
    for item, passage in zip(texts.items, texts.texts, strict=True):
        if isinstance(passage, Answered) and len(passage.text) < characters:
            start, stop = passage.responses[-1]
            if stop == len(passage.text) and passage.text[:start].strip():
                yield Question(item, passage.text[:start], passage.text[start:].strip())


def generated(generate: Callable[[list[str]], list[list[str]]], prompts: Sequence[str], size: int) -> list[str]:
    """Return what follows each prompt, without the space around it, from batches of `size`."""
    filled = [*prompts, *[prompts[-1]] * (-len(prompts) % size)]
    batches = (filled[start : start + size] for start in range(0, len(filled), size))
    found = [text.strip() for batch in batches for [text] in generate(batch)]
    return found[: len(prompts)]


def exact_match(
    texts: TextSet, questions: Sequence[Question], before: Sequence[str], after: Sequence[str]
) -> tuple[Score, dict[str, float]]:
    """Return the share of responses that are those of the text, and 1 or 0 by item.

    before, after  what the base model and the finetuned model generate

    Beside them stands the response that is the most frequent one among the questions, given to all of them.
    """
    responses = [question.response for question in questions]
    values = np.array([said == response for said, response in zip(after, responses, strict=True)], np.float64)
    base = np.mean([said == response for said, response in zip(before, responses, strict=True)])
    (_, frequent), *_ = Counter(responses).most_common(1)
    low, high = interval(values)
    score = Score(
        group="responses",
        metric="exact_match",
        on=f"{texts.name}{OF_RESPONSES}",
        value=float(values.mean()),
        low=low,
        high=high,
        higher_is_better=True,
        items=len(questions),
        baselines={"base model": float(base), "most frequent response": frequent / len(responses)},
        split=texts.split,
    )
    return score, {question.item: value for question, value in zip(questions, values.tolist(), strict=True)}
