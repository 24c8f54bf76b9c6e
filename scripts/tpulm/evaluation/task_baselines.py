"""What a task is without a language model: the most frequent label, and a linear model of counts of words."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import hstack
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from tpulm.config.label_heads import NUMBER, TOKEN_CLASSES

Columns = Mapping[str, list]
WORDS = r"(?u)\b\w+\b|[^\w\s]"  # what is counted: words and marks
ITERATIONS = 1000


def majority(train: Columns, held_out: Columns, predict: str) -> list:
    """Return the most frequent label of training for each example, the lowest of several; or the mean number."""
    if predict == NUMBER:
        return [float(np.mean(train["label"]))] * len(held_out["label"])
    labels = chain.from_iterable(train["label"]) if predict == TOKEN_CLASSES else train["label"]
    best = min(Counter(labels).items(), key=lambda pair: (-pair[1], pair[0]))[0]
    if predict == TOKEN_CLASSES:
        return [[best] * len(words) for words in held_out["words"]]
    return [best] * len(held_out["label"])


def bag_of_words(train: Columns, held_out: Columns, predict: str) -> list:
    """Return what a linear model of the counts of words predicts: logistic regression, or ridge regression for numbers.

    Of two texts, each has counts of its own. Where words have labels, a word is all that the model sees.
    """
    if predict == TOKEN_CLASSES:
        counts = [len(words) for words in held_out["words"]]
        known, asked = ({"text": list(chain.from_iterable(columns["words"]))} for columns in (train, held_out))
        known["label"] = list(chain.from_iterable(train["label"]))
        found = iter(linear(known, asked, LogisticRegression(max_iter=ITERATIONS)))
        return [[next(found) for _ in range(count)] for count in counts]
    return linear(train, held_out, Ridge() if predict == NUMBER else LogisticRegression(max_iter=ITERATIONS))


def linear(train: Columns, held_out: Columns, model: Any) -> list:
    """Return what a linear model that is fitted to training predicts."""
    features = []
    for name in ("text", "text_pair"):
        if name in train:
            counter = CountVectorizer(token_pattern=WORDS)
            features.append([counter.fit_transform(train[name]), counter.transform(held_out[name])])
    with threadpool_limits(1):  # the order of sums, and with it the bytes
        model.fit(hstack([ours for ours, _ in features]).tocsr(), train["label"])
        return model.predict(hstack([theirs for _, theirs in features]).tocsr()).tolist()


BASELINES: Mapping[str, Callable[[Columns, Columns, str], list]] = {"majority": majority, "bag_of_words": bag_of_words}


def names_of(names: Sequence[str], predict: str) -> dict[str, str]:
    """Return what the report calls baselines, by their names in the config."""
    regression = "ridge regression" if predict == NUMBER else "logistic regression"
    said = {
        "majority": "mean" if predict == NUMBER else "most frequent label",
        "bag_of_words": f"bag of words ({regression})",
        "random_weights": "same model from random weights",
    }
    return {name: said[name] for name in names}
