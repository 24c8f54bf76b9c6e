"""Choose prompts from a text."""

import re

from newconfig.sample import Text

SENTENCE = re.compile(r"(?:^|(?<=[.!?] )|(?<=[。！？]))[^\W\d_][\w ,;'’、「」-]{12,44}[.!?。！？]")


def prompts_of(text: Text) -> tuple[list[str], list[str]]:
    """Return sentences of the text with a word masked, or a character where there are no words; and beginnings."""
    glue, found = " " if text.words else "", []
    for document in text.sample[:: max(1, len(text.sample) // 2000)]:
        for sentence in SENTENCE.findall(" ".join(document[:4000].split()))[:1]:
            found.append(sentence.split() if glue else list(sentence))
    found = [list(units) for units in dict.fromkeys(map(tuple, found)) if len(units) > 4]
    masked, apart = [], max(1, len(found) // 2)
    for units in found[::apart][:2]:
        places = [place for place, unit in enumerate(units) if place and unit.isalpha() and len(unit) > 3 * bool(glue)]
        for place in places[len(places) // 2 :][:1]:
            masked.append(glue.join([*units[:place], "[MASK]", *units[place + 1 :]]))
    return masked, [glue.join(units[: 3 if glue else 6]) for units in found[apart // 2 :: apart][:2]]
