"""Figures of a tokenizer for each script (Latin, Arabic, ...) of a text."""

import unicodedata
from collections import Counter
from functools import cache
from typing import Any

from tokenizers import Tokenizer

from tpulm.tokenization.folder import as_within_text
from tpulm.tokenization.pipeline import BYTES

CATEGORIES = {"N": "digits", "P": "punctuation", "S": "symbols", "M": "marks"}
FORMS = {"FULLWIDTH", "HALFWIDTH", "MODIFIER", "MATHEMATICAL"}  # words before the script in a Unicode name


@cache
def script_of(character: str) -> str:
    """Return the script of a letter, from its Unicode name, or the kind of another character."""
    kind = unicodedata.category(character)[0]
    if kind != "L":
        return CATEGORIES.get(kind, "other")
    name = [word for word in unicodedata.name(character, "other").split() if word not in FORMS]
    return name[0].split("-")[0].lower()


def by_script(tokenizer: Tokenizer, unknown: int | None, words: Counter[str]) -> list[dict[str, Any]]:
    """Return counts and ratios for each script, summed over the words with most letters in it; largest script first.

    unknown  id of the unknown token; words  occurrences of each, see `folder.as_within_text`

    Each entry: script, words, characters, tokens, uncovered (characters that are unknown, or bytes), and `ratios`.
    """
    sums_of: dict[str, Counter[str]] = {}
    poor = {unknown, *(tokenizer.token_to_id(piece) for piece in BYTES)} - {None}
    spelled = tokenizer.id_to_token(unknown) if unknown is not None else ""
    order = sorted(words)
    texts = as_within_text(tokenizer, order)
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    for word, text, encoding in zip(order, texts, encodings, strict=True):
        letters = [character for character in word if character.isalpha()]
        script = Counter(map(script_of, letters or word)).most_common(1)[0][0]
        sums, times = sums_of.setdefault(script, Counter()), words[word]
        sums.update(words=times, characters=times * len(word), tokens=times * len(encoding.ids))
        if not poor.isdisjoint(encoding.ids):
            alone = tokenizer.encode(text, add_special_tokens=False)
            spans = {span for number, span in zip(alone.ids, alone.offsets, strict=True) if number in poor}
            sums["uncovered"] += times * sum(stop - start for start, stop in spans if text[start:stop] != spelled)
    keys = ("words", "characters", "tokens", "uncovered")
    by_size = sorted(sums_of, key=lambda script: (-sums_of[script]["characters"], script))
    return [
        {"script": script, **{key: sums_of[script][key] for key in keys}, **ratios(sums_of[script])}
        for script in by_size
    ]


def ratios(sums: Counter[str]) -> dict[str, float]:
    """Return tokens per word, characters per token and the share of uncovered characters."""
    return {
        "tokens_per_word": sums["tokens"] / sums["words"],
        "characters_per_token": sums["characters"] / max(1, sums["tokens"]),
        "uncovered_rate": sums["uncovered"] / sums["characters"],
    }
