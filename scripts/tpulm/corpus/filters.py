"""Filters of documents that need no model: quality and repetition as for Gopher, and those of C4.

Gopher: Rae et al. 2021 (arXiv 2112.11446), appendix A and table A1, without the stop words, which are English. C4:
Raffel et al. 2020 (arXiv 1910.10683), section 2.2, with the limits of the published code; without the list of bad
words, which is English, too. A word is a run of characters between white space. Each rule has a name, by which drops
are counted.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

BULLETS = ("•", "-", "*", "‣", "◦")
ELLIPSES = ("...", "…")
END_MARKS = (".", "?", "!", '"', "”")
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
SENTENCE_END = re.compile(r"[.?!][\"”')\]]*(?=\s|$)")


def apply_filters(text: str, filters: dict, removed: Counter) -> tuple[str, str]:
    """Return the filtered document, and the name of the rule that drops it; "" if it is kept.

    filters  limits of the active filters by name
    removed  counts the removed lines by rule
    """
    if "c4" in filters:
        text, rule = filter_c4(text, filters["c4"], removed)
        if rule:
            return text, f"c4_{rule}"
    words = text.split()
    checks: dict[str, Callable[[str, list[str], dict], str]]
    checks = {"gopher_quality": check_quality, "gopher_repetition": check_repetition}
    for name, check in checks.items():
        if name in filters and (rule := check(text, words, filters[name])):
            return text, f"{name}_{rule}"
    return text, ""


def check_quality(text: str, words: list[str], limits: dict) -> str:
    """Return the first of Gopher's rules of quality that a document breaks; "" without any."""
    count = len(words)
    if not limits["min_words"] <= count <= limits["max_words"]:
        return "words"
    if not count:
        return ""
    if not limits["min_mean_word_length"] <= sum(map(len, words)) / count <= limits["max_mean_word_length"]:
        return "mean_word_length"
    if max(text.count("#"), sum(map(text.count, ELLIPSES))) / count > limits["max_symbol_word_ratio"]:
        return "symbols"
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if sum(line.startswith(BULLETS) for line in lines) / len(lines) > limits["max_bullet_lines"]:
        return "bullet_lines"
    if sum(line.endswith(ELLIPSES) for line in lines) / len(lines) > limits["max_ellipsis_lines"]:
        return "ellipsis_lines"
    if sum(any(map(str.isalpha, word)) for word in words) / count < limits["min_alphabetic_words"]:
        return "alphabetic_words"
    return ""


def check_repetition(text: str, words: list[str], limits: dict) -> str:
    """Return the first of Gopher's rules of repetition that a document breaks; "" without any."""
    paragraphs = [part.strip() for part in re.split(r"\n{2,}", text) if part.strip()]
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    for name, parts in (("line", lines), ("paragraph", paragraphs)):
        repeats = list(seen_before(parts))
        if len(repeats) > limits[f"max_duplicate_{name}s"] * len(parts):
            return f"duplicate_{name}s"
        if sum(map(len, repeats)) > limits[f"max_duplicate_{name}_characters"] * sum(map(len, parts)):
            return f"duplicate_{name}_characters"
    lengths = list(map(len, words))
    characters = sum(lengths)
    for n, most in enumerate(limits["max_top_ngram_characters"], start=2):
        if top_ngram_characters(words, n) > most * characters:
            return f"top_{n}gram"
    for n, most in enumerate(limits["max_duplicate_ngram_characters"], start=5):
        covered = duplicate_ngram_characters(words, lengths, n)
        if covered > most * characters:
            return f"duplicate_{n}grams"
        if not covered:  # then no longer n-gram repeats
            break
    return ""


def seen_before(parts: Iterable[str]) -> Iterator[str]:
    """Yield the parts that repeat an earlier one."""
    seen: set[str] = set()
    for part in parts:
        if part in seen:
            yield part
        seen.add(part)


def ngrams(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    """Yield the n-grams of words in their order."""
    return zip(*(islice(words, start, None) for start in range(n)), strict=False)


def top_ngram_characters(words: Sequence[str], n: int) -> int:
    """Return the characters of words in the most frequent n-gram, all occurrences together; 0 if none repeats."""
    counts = Counter(ngrams(words, n))
    most = max(counts.values(), default=0)
    if most < 2:
        return 0
    return most * max(sum(map(len, ngram)) for ngram, count in counts.items() if count == most)


def duplicate_ngram_characters(words: Sequence[str], lengths: Sequence[int], n: int) -> int:
    """Return the characters of words in n-grams that repeat, each word counted once."""
    counts = Counter(ngrams(words, n))
    if len(counts) == max(0, len(words) - n + 1):
        return 0
    covered = total = 0
    for start, ngram in enumerate(ngrams(words, n)):
        if counts[ngram] > 1:
            total += sum(lengths[max(start, covered) : start + n])
            covered = start + n
    return total


def filter_c4(text: str, limits: dict, removed: Counter) -> tuple[str, str]:
    """Return a document without the lines that C4 removes, and the rule that drops it; "" if it is kept."""
    lowered = text.lower()
    if limits["lorem_ipsum"] and "lorem ipsum" in lowered:
        return text, "lorem_ipsum"
    if limits["curly_brackets"] and "{" in text:
        return text, "curly_brackets"
    kept_lines = []
    for line in text.split("\n"):
        rule = line_rule(line.strip(), limits)
        if rule:
            removed[rule] += 1
        else:
            kept_lines.append(line)
    text = "\n".join(kept_lines)
    if len(SENTENCE_END.findall(text)) < limits["min_sentences"]:
        return text, "sentences"
    return text, ""


def line_rule(line: str, limits: dict) -> str:
    """Return the rule by which C4 removes a line; "" if it stays, as empty lines do."""
    if not line:
        return ""
    if limits["end_marks"] and (not line.endswith(END_MARKS) or line.endswith(ELLIPSES)):
        return "end_marks"
    if len(line.split()) < limits["min_words_per_line"]:
        return "words_per_line"
    lowered = line.lower()
    if limits["javascript"] and "javascript" in lowered:
        return "javascript"
    if limits["policies"] and any(policy in lowered for policy in POLICIES):
        return "policies"
    return ""
