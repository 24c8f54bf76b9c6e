"""Choose prompts from a text."""

import math
import re
import unicodedata
from collections import Counter

from tpulm.corpus.rows import MARKER

from newconfig.sample import Text

MARKUP = set("[]`<>|")
ENDS = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？।])\s*")


def prompts_of(text: Text) -> tuple[list[str], list[str]]:
    """Return two typical sentences or lines with a word masked, and the beginnings of two others, or two prompts."""
    glue, times = (" ", 1) if text.words else ("", 3)  # without words, characters: three times as many
    documents = [MARKER.sub("\n", document[:4000]) for document in text.sample[:: max(1, len(text.sample) // 2000)]]
    whole = [part for document in documents for part in ENDS.split(glue.join(document.split()))]
    lines = [line for document in documents for line in re.split(r"\n" if text.words else r"\s", document)]
    for parts in ([part for part in whole if re.search(r"[.!?…。！？।]$", part)], lines):
        # Marks, such as vowels in Thai, belong to the letter before them.
        divided = (part.split() if text.words else re.findall(r"\w[^\w\s]*|\W", part) for part in filter(fits, parts))
        occurring = Counter(tuple(units) for units in divided if 5 <= len(units) <= 15 * times)
        once = [units for units, number in occurring.items() if number == 1] or list(occurring)
        if len(once) > 9:
            break
    frequency = Counter(unit for units in once for unit in units)
    once.sort(key=lambda units: sum(math.log(frequency[unit]) for unit in units) / len(units))
    chosen = [once[int(len(once) * place)] for place in (0.55, 0.65, 0.75, 0.85) if once]
    masked = []
    for units in chosen[:2]:
        places = [place for place, unit in enumerate(units) if place and all(map(in_word, unit))]
        places = [place for place in places if len(units[place]) > 3] or places
        for place in sorted(places, key=lambda place: abs(place - len(units) // 2))[:1]:
            masked.append(glue.join([*units[:place], "[MASK]", *units[place + 1 :]]))
    prompts = sorted(set(text.prompts), key=len)
    prompts = sorted(prompt for prompt in prompts if len(prompt) < 100) or prompts[:2]
    return masked, prompts[:: max(1, len(prompts) // 2)][:2] or [glue.join(units[: 3 * times]) for units in chosen[2:]]


def fits(part: str) -> bool:
    """Return whether a part of a text begins with a letter, is mostly letters and has no markup."""
    prose = sum(map(in_word, part)) > 0.75 * len(part) and not MARKUP & set(part)
    return bool(part) and in_word(part[0]) and prose


def in_word(character: str) -> bool:
    """Return whether a character is a letter, or a mark on one."""
    return unicodedata.category(character)[0] in "LM"
