"""Text to measure with: the docstrings of installed packages, a paragraph per line.

The packages are of fixed versions (envs/), so that the text is the same everywhere. Beyond what there is, the
paragraphs come again with seeded edits that bring new words at the rate of the text itself: the number of distinct
words of a text of n words grows as K n^b (Heaps 1978), with K and b fitted to the paragraphs.
"""

import ast
import hashlib
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

PACKAGES = [
    "transformers", "tensorflow", "scipy", "pandas", "jax", "tf_keras", "numpy", "keras", "keras_hub",
    "google", "sqlalchemy", "huggingface_hub", "datasets", "kubernetes",
]  # fmt: skip
SHORTEST = 40  # characters of a paragraph
SWAPPED = 0.05  # share of the words of a repeated paragraph that others of the text take the place of


@cache
def paragraphs() -> list[str]:
    """Return the distinct paragraphs of all docstrings, in random order, without line breaks."""
    found: dict[str, None] = {}
    for package in PACKAGES:
        for file in sorted(Path(sysconfig.get_paths()["purelib"], package).rglob("*.py")):
            for docstring in docstrings(file):
                for paragraph in docstring.split("\n\n"):
                    text = " ".join(paragraph.encode("utf-8", "replace").decode().split())
                    if len(text) >= SHORTEST:
                        found.setdefault(text)
    ordered = list(found)
    return [ordered[number] for number in np.random.default_rng(0).permutation(len(ordered))]


def docstrings(file: Path) -> Iterator[str]:
    """Yield the docstrings of a file of Python; of one that is no Python, none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield text


def growth(words: np.ndarray) -> tuple[float, float]:
    """Return K and b of Heaps' law for a text.

    words  number of each word in turn, integers of shape [words], counted up from 0 by first occurrence
    """
    distinct = np.maximum.accumulate(words) + 1
    half, whole = len(words) // 2 - 1, len(words) - 1
    exponent = float(np.log(distinct[whole] / distinct[half]) / np.log((whole + 1) / (half + 1)))
    return float(distinct[whole] / (whole + 1) ** exponent), exponent


def edited(texts: list[str]) -> Iterator[str]:
    """Yield the paragraphs without end: as they are, then again and again with other words in them."""
    yield from texts
    numbers: dict[str, int] = {}
    counted = [[numbers.setdefault(word, len(numbers)) for word in text.split(" ")] for text in texts]
    flat = np.array([number for text in counted for number in text])
    bounds = np.cumsum([0, *map(len, counted)]).tolist()
    vocabulary = list(numbers)
    factor, exponent = growth(flat)
    random = np.random.default_rng(1)
    seen = len(flat)
    new = len(vocabulary)
    while True:
        wanted = factor * (seen + len(flat)) ** exponent
        words = np.where(random.random(len(flat)) < SWAPPED, random.choice(flat, len(flat)), flat)
        fresh = np.flatnonzero(random.random(len(flat)) < (wanted - new) / len(flat))
        new += len(fresh)
        seen += len(flat)
        chosen = [vocabulary[number] for number in words.tolist()]
        for place in fresh.tolist():  # halves of two words: new, and of the characters that words are made of
            one, other = (vocabulary[number] for number in random.integers(0, len(vocabulary), 2))
            chosen[place] = f"{one[: len(one) // 2 + 1]}{other[len(other) // 2 :]}{new - place % 97}"
        for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
            yield " ".join(chosen[start:stop])


def write(path: Path, megabytes: float) -> str:
    """Write so much text to a file (10^6 characters each), and return the SHA-256 of its bytes."""
    left, digest = megabytes * 1e6, hashlib.sha256()
    with open(path, "wb") as file:
        for text in edited(paragraphs()):
            line = f"{text}\n".encode()
            digest.update(line)
            file.write(line)
            left -= len(text)
            if left <= 0:
                return digest.hexdigest()
    raise AssertionError("edited() never ends")
