"""Tokenizer folders: the files that transformers' AutoTokenizer loads, their special ids, and figures of tokenizers."""

import json
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpulm.core.errors import UserError, first_line
from tpulm.core.files import read_json, write_json
from tpulm.core.foreign_folders import NO_CODE, check_folder
from tpulm.specs.artifacts import TOKENIZER_FILES

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# [CLS] opens and [SEP] ends a text, so they are what causal models call bos and eos.
ROLES = {
    "bos_token": "[CLS]",
    "eos_token": "[SEP]",
    "unk_token": "<unk>",
    "sep_token": "[SEP]",
    "pad_token": "<pad>",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
REQUIRED = ("cls_token", "sep_token", "pad_token", "mask_token")
# transformers' mark for "no limit of length".
NO_LIMIT = int(1e30)
LARGEST_VOCABULARY = 10_000_000  # rows of an embedding
PROBE = "A text, with 2 signs: é."  # that a tokenizer must encode
# Pieces and words that are shown as examples, their largest length, and the largest number of tokens that is counted.
EXAMPLES, LONGEST, WORD_TOKENS = 40, 60, 12


def write_settings(tokenizer: "Tokenizer", config: str, special_tokens_map: str) -> None:
    """Write AutoTokenizer's files next to tokenizer.json, for a tokenizer with the special tokens of ROLES."""
    settings = {
        "added_tokens_decoder": {
            str(index): {
                "content": token.content,
                "lstrip": token.lstrip,
                "normalized": token.normalized,
                "rstrip": token.rstrip,
                "single_word": token.single_word,
                "special": token.special,
            }
            for index, token in sorted(tokenizer.get_added_tokens_decoder().items())
        },
        # True would delete the spaces before punctuation: texts would not round-trip.
        "clean_up_tokenization_spaces": False,
        "model_max_length": NO_LIMIT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        **ROLES,
    }
    write_json(config, dict(sorted(settings.items())))
    write_json(special_tokens_map, ROLES)


def special_tokens(path: str | Path) -> dict[str, str]:
    """Return the tokens that special_tokens_map.json names, such as {"mask_token": "[MASK]"}."""
    tokens = read_json(path)
    return {
        role: token if isinstance(token, str) else token["content"]
        for role, token in tokens.items()
        if isinstance(token, (str, dict))
    }


def special_ids(tokenizer: "Tokenizer", special_tokens_map: str | Path) -> dict[str, int]:
    """Return the ids of those of bos, cls, eos, mask, pad, sep and unk that the tokenizer has.

    By default bos is cls, eos is sep, and unk is the vocabulary's piece for unknown characters.
    """
    tokens = special_tokens(special_tokens_map)
    for role, instead in (("bos_token", "cls_token"), ("eos_token", "sep_token")):
        if instead in tokens:
            tokens.setdefault(role, tokens[instead])
    if "unk_token" not in tokens:
        model = json.loads(tokenizer.to_str())["model"]
        named, number = model.get("unk_token"), model.get("unk_id")
        unknown = named if number is None else tokenizer.id_to_token(number)
        if unknown is not None and tokenizer.token_to_id(unknown) is not None:
            tokens["unk_token"] = unknown
    roles = sorted(set(ROLES) & set(tokens))
    return {role.removesuffix("_token"): tokenizer.token_to_id(tokens[role]) for role in roles}


def vocabulary_size(tokenizer: "Tokenizer") -> int:
    """Return the number of rows of an embedding: the highest id + 1, since some vocabularies have holes."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def load(path: str | Path) -> "Tokenizer":
    """Load tokenizer.json as a `tokenizers.Tokenizer` that neither truncates nor pads."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@dataclass
class TextCounts:
    """Counts of tokens, words and characters in documents, without [CLS] and [SEP] around each.

    counts      occurrences of each id, int64 [vocab_size]
    words       occurrences of each word, between white space
    characters  of all documents
    """

    counts: np.ndarray
    words: Counter[str]
    characters: int

    def figures(self) -> dict[str, int | float]:
        """Return counts of tokens, words (between white space) and characters, and their ratios."""
        tokens, words = int(self.counts.sum()), self.words.total()
        counted = {"tokens": tokens, "words": words, "characters": self.characters}
        return counted | {"tokens_per_word": tokens / words, "characters_per_token": self.characters / tokens}


def sum_counts(parts: Iterable[TextCounts]) -> TextCounts:
    """Return the sum of one or more counts."""
    first, *others = parts
    total = TextCounts(first.counts.copy(), Counter(first.words), first.characters)
    for part in others:
        total.counts += part.counts
        total.words.update(part.words)
        total.characters += part.characters
    return total


def count_text(tokenizer: "Tokenizer", batches: Iterable[list[str]]) -> TextCounts:
    """Return the counts of batches of documents."""
    total = TextCounts(np.zeros(vocabulary_size(tokenizer), np.int64), Counter(), 0)
    for texts in batches:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = np.concatenate([np.array(e.ids, np.int64) for e in encodings])
        total.counts += np.bincount(ids, minlength=len(total.counts))
        for text in texts:
            total.words.update(text.split())
        total.characters += sum(map(len, texts))
    return total


def tokenizer_metrics(tokenizer: "Tokenizer", ids: dict[str, int], totals: TextCounts) -> dict[str, int | float]:
    """Return the metrics of a tokenizer on documents; ids  as `special_ids` returns them.

    vocab_size          rows of an embedding
    tokens, words, characters, tokens_per_word, characters_per_token    see `TextCounts.figures`
    vocabulary_used     share of the ordinary pieces that occur
    unknown_rate        share of tokens that are unk
    unknown_written     share of tokens that are unk because the text spells the unknown token
    whitespace_rate     share of tokens that stand for white space only
    unigram_entropy     -sum p ln p over the tokens' shares p, nats per token (Shannon 1948)
    """
    counts, tokens = totals.counts, int(totals.counts.sum())
    special = sorted(set(ids.values()))
    shares = counts[counts > 0] / tokens
    texts = tokenizer.decode_batch([[number] for number in range(len(counts))], skip_special_tokens=False)
    blank = [number for number, text in enumerate(texts) if not text.strip()]
    unknown = tokenizer.id_to_token(ids["unk"]) if ids.get("unk") in tokenizer.get_added_tokens_decoder() else ""
    written = sum(times * word.count(unknown) for word, times in totals.words.items()) if unknown else 0
    return {
        "vocab_size": len(counts),
        **totals.figures(),
        "vocabulary_used": int((np.delete(counts, special) > 0).sum()) / (tokenizer.get_vocab_size() - len(special)),
        "unknown_rate": int(counts[ids["unk"]]) / tokens if "unk" in ids else 0.0,
        "unknown_written": written / tokens,
        "whitespace_rate": int(counts[blank].sum()) / tokens,
        "unigram_entropy": round(float(-(shares * np.log(shares)).sum()), 9),
    }


def as_within_text(tokenizer: "Tokenizer", words: list[str]) -> list[str]:
    """Return words as they stand within a text: after a space, unless the tokenizer adds one."""
    single, double = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("a", "a a"))
    return words if double == [*single, *single] else [f" {word}" for word in words]


def piece_statistics(tokenizer: "Tokenizer", ids: dict[str, int], totals: TextCounts) -> dict[str, Any]:
    """Return statistics of the pieces of a vocabulary, and the words with the most tokens.

    ids  special ids, as `special_ids` returns them, which are left out

    lengths   used and unused pieces by their length in characters, as the vocabulary writes them
    unused    number of pieces that do not occur; examples: the first EXAMPLES of them, by their ids
    words     occurrences of words by their number of tokens, WORD_TOKENS for that many or more; see `as_within_text`
    hardest   the EXAMPLES words that occur at least twice and have the most tokens: word, times, pieces
    """
    special = set(ids.values())
    vocabulary = sorted((number, piece) for piece, number in tokenizer.get_vocab().items() if number not in special)
    lengths: dict[int, Counter[str]] = {}
    unused = [piece for number, piece in vocabulary if not totals.counts[number]]
    for number, piece in vocabulary:
        lengths.setdefault(len(piece), Counter())["used" if totals.counts[number] else "unused"] += 1
    words = sorted(totals.words)
    encodings = tokenizer.encode_batch_fast(as_within_text(tokenizer, words), add_special_tokens=False)
    tokens: Counter[int] = Counter()
    for word, encoding in zip(words, encodings, strict=True):
        tokens[min(len(encoding.ids), WORD_TOKENS)] += totals.words[word]
    hard = sorted(
        (-len(encoding.ids), -totals.words[word], word)
        for word, encoding in zip(words, encodings, strict=True)
        if totals.words[word] > 1 and len(word) <= LONGEST
    )[:EXAMPLES]
    return {
        "lengths": [
            {"characters": length, "used": counts["used"], "unused": counts["unused"]}
            for length, counts in sorted(lengths.items())
        ],
        "unused": len(unused),
        "examples": unused[:EXAMPLES],
        "words": [{"tokens": number, "words": count} for number, count in sorted(tokens.items())],
        "hardest": [
            {"word": word, "times": -times, "pieces": tokenizer.encode(text, add_special_tokens=False).tokens}
            for (_, times, word), text in zip(hard, as_within_text(tokenizer, [word for *_, word in hard]), strict=True)
        ],
    }


def write_tokenizer(folder: Path, targets: Sequence[str], source: str, required: Collection[str] = REQUIRED) -> int:
    """Write the tokenizer of a folder as TOKENIZER_FILES of specs.artifacts; return its size.

    folder    of an external tokenizer or model; targets  files to write, in the order of TOKENIZER_FILES
    source    beginning of messages: the config key, and its value
    required  names of special tokens that it must have

    Raises UserError if it cannot be loaded, is no tokenizer of the `tokenizers` library, or lacks a special token.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if folder.parent.name != "snapshots":  # a repository of the hub may have the code of a model, which is not run
        check_folder(folder, source)
    if not folder.is_dir() or not any(folder.iterdir()):
        raise UserError(f"{source}, an empty folder; allowed: a folder with tokenizer.json.")
    # AutoTokenizer needs the type of the model, which is not in tokenizer.json.
    bare = not any((folder / file).exists() for file in ("config.json", TOKENIZER_FILES["config"]))
    try:
        config = folder / TOKENIZER_FILES["config"]
        settings = read_json(config) if config.exists() else {}
        extra = settings.get("extra_special_tokens")
        # transformers 5 has another name for the class, and a list where transformers 4 has a mapping.
        plain = bare or settings.get("tokenizer_class") == "TokenizersBackend"
        renamed = {"extra_special_tokens": {}, "additional_special_tokens": extra} if isinstance(extra, list) else {}
        kind = PreTrainedTokenizerFast if plain else AutoTokenizer
        tokenizer = kind.from_pretrained(str(folder), use_fast=True, trust_remote_code=False, **renamed)
        tokenizer.decode(tokenizer(PROBE)["input_ids"])
    except BaseException as error:  # the libraries raise OSError, ValueError, KeyError and plain Exception alike
        if not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):  # that of Rust
            raise
        reason = first_line(error).partition(". ")[0]  # a list of all models can follow
        raise UserError(
            f"{source}, which cannot be loaded ({reason}); allowed: a folder with tokenizer.json, or a name on the "
            "Hugging Face Hub."
        ) from None
    if tokenizer.init_kwargs.get("auto_map"):
        raise UserError(f"{source}, which requires custom code (auto_map); {NO_CODE}.")
    if not tokenizer.is_fast:
        raise UserError(f"{source}, which has no tokenizer.json; allowed: a tokenizer with this file.")
    if (size := vocabulary_size(tokenizer.backend_tokenizer)) > LARGEST_VOCABULARY:
        raise UserError(f"{source}, which has the id {size - 1}; allowed: ids below {LARGEST_VOCABULARY}.")
    missing = [role for role in required if not getattr(tokenizer, role)]
    if missing:
        raise UserError(f"{source}, which has no {missing[0]}; allowed: a tokenizer with {', '.join(required)}.")
    # transformers writes both into tokenizer.json, but documents are packed whole.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    # The path of its origin must not change its bytes.
    tokenizer.init_kwargs.pop("name_or_path", None)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer.save_pretrained(scratch)
        try:
            load(f"{scratch}/{TOKENIZER_FILES['tokenizer']}")
        except Exception as error:  # whatever the library raises
            raise UserError(f"{source}, which cannot be loaded when it is saved ({first_line(error)}).") from None
        for file, target in zip(TOKENIZER_FILES.values(), targets, strict=True):
            write_json(target, read_json(f"{scratch}/{file}"))
    return len(tokenizer)
