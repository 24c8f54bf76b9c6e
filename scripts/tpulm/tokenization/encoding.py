"""Encode documents in bulk: where a tokenizer allows it, each distinct word is encoded once.

A tokenizer of the `tokenizers` library splits a text into words, and its model (Unigram, BPE or WordPiece) cuts each
word by itself. If no word begins before a space and ends after it, a document's ids are those of its parts between
spaces, one after another. Text repeats its words: 36 MB of it have 6 million of them, 0.3 million distinct.
"""

import json
import re
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from tpulm.specs.byte_level import RULES
from tpulm.tokenization.pipeline import BLANKS, FOLD, MARK, RUNS
from tpulm.tokenization.viterbi import Ids, flat, interleaved
from tpulm.tokenization.word_ids import AnyWords, KnownWords, MarkedWords

SPACE = 0x20
# Bytes after a space at which a text is not cut: white space, and the first bytes of white space beyond ASCII.
# A run of white space can be one word, up to its last character.
NOT_AFTER_SPACE = np.zeros(256, bool)
NOT_AFTER_SPACE[[*range(0x09, 0x0E), *range(0x1C, 0x21), 0xC2, 0xE1, 0xE2, 0xE3]] = True
# First bytes of other characters, which NFKC and NFKD write as a space and a mark.
MADE_SPACE = np.zeros(256, bool)
MADE_SPACE[[0xCB, 0xCD, 0xCE, 0xEF]] = True
FOLD_STEPS = [{"type": "Replace", "pattern": {"Regex": pattern}, "content": content} for pattern, content in FOLD]
# Normalizers and pre-tokenizers that treat the parts of a text between spaces one by one.
NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"}
# Normalizers that remove no character; KEEPING ones make no space either.
KEEPING = {"NFC", "NFD", "Lowercase"}
UNMARKING = KEEPING | {"NFKC", "NFKD"}
PRE_TOKENIZERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits"}
# Pre-tokenizers that treat each word of those before them by itself.
SPLITTERS = {"Split", "FixedLength", "ByteLevel"}
BATCH_CHARACTERS = 1 << 23  # bytes of documents that are encoded together, at least; more are slower, by their memory


class Encoder:
    """Encodes documents with a tokenizer, its special tokens around each; exactly as `tokenizer.encode` does."""

    def __init__(self, tokenizer: Tokenizer):
        """Analyse `tokenizer`, which must neither truncate nor pad."""
        self.tokenizer = tokenizer
        spec = json.loads(tokenizer.to_str())
        steps = members(spec["normalizer"], "normalizers")
        self.by_words = splits_at_spaces(spec)
        self.folds = self.by_words and steps[-len(FOLD_STEPS) :] == FOLD_STEPS
        if self.folds:  # documents are folded before they are cut into parts
            spec["normalizer"] = {"type": "Sequence", "normalizers": steps[: -len(FOLD_STEPS)]}
            tokenizer = Tokenizer.from_str(json.dumps(spec))
        kinds = {step["type"] for step in steps}
        self.no_cut = NOT_AFTER_SPACE | MADE_SPACE if kinds & {"NFKC", "NFKD"} else NOT_AFTER_SPACE
        marked = marking(spec)
        self.known = KnownWords((MarkedWords(tokenizer, *marked, spec) if marked else AnyWords(tokenizer)).encode)
        self.added = "|".join(re.escape(token["content"]) for token in spec["added_tokens"])
        self.before, self.after = template(tokenizer)

    def encode(self, texts: pa.StringArray) -> Ids:
        """Return the ids of documents, one after another, int32 [tokens], and the tokens of each, int64 [documents]."""
        if not self.by_words:
            return self.encode_whole(texts)
        if not self.added:
            return self.encode_words(texts)
        # An added token is found before the text is split into words.
        whole = pc.match_substring_regex(texts, self.added).to_numpy(zero_copy_only=False)
        if not whole.any():
            return self.encode_words(texts)
        whole_ids = self.encode_whole(texts.filter(pa.array(whole)))
        return interleaved(whole, whole_ids, self.encode_words(texts.filter(pa.array(~whole))))

    def encode_whole(self, texts: pa.StringArray) -> Ids:
        """Return the ids of documents, each encoded by itself; see `encode`."""
        return flat(self.tokenizer.encode_batch_fast(texts.to_pylist()))

    def encode_words(self, texts: pa.StringArray) -> Ids:
        """Return the ids of documents without added tokens; see `encode`."""
        words, first = split_at_spaces(folded(texts) if self.folds else texts, self.no_cut)
        coded = words.dictionary_encode()
        which = self.known.look_up(coded.dictionary)[coded.indices.to_numpy()]
        lengths = np.diff(self.known.starts)[which]
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        # int32 where it holds the numbers: most of the time goes into moving these bytes.
        small = np.int32 if max(bounds[-1], len(self.known.ids)) < 1 << 31 else np.int64
        place = np.repeat((self.known.starts[which] - bounds[:-1]).astype(small), lengths)
        place += np.arange(len(place), dtype=small)
        bounds = bounds[first]
        stream = surround(self.known.ids[place], bounds, self.before, self.after)
        return stream, np.diff(bounds) + len(self.before) + len(self.after)


def tokenize(tokenizer: Tokenizer, batches: Iterable[pa.StringArray]) -> Iterator[Ids]:
    """Yield the ids of documents, each with the tokenizer's special tokens around it, in batches.

    Each batch is a result of `Encoder.encode`: ids int32 [tokens], and the tokens of each document, int64 [documents].
    """
    encoder = Encoder(tokenizer)
    waiting: list[pa.StringArray] = []
    characters = 0
    for batch in batches:
        waiting.append(batch)
        characters += batch.nbytes
        if characters >= BATCH_CHARACTERS:
            yield encoder.encode(pa.concat_arrays(waiting))
            waiting, characters = [], 0
    if waiting:
        yield encoder.encode(pa.concat_arrays(waiting))


def splits_at_spaces(spec: dict) -> bool:
    """Return whether no word of a tokenizer spans a space, False if in doubt; spec  tokenizer.json."""
    normalizers = members(spec["normalizer"], "normalizers")
    pre_tokenizers = members(spec["pre_tokenizer"], "pretokenizers")
    if spec["model"].get("dropout") or (normalizers and any(token["normalized"] for token in spec["added_tokens"])):
        return False
    if normalizers[-len(FOLD_STEPS) :] == FOLD_STEPS:
        normalizers = normalizers[: -len(FOLD_STEPS)]
        if any(step["type"] not in KEEPING and not is_local_replace(step) for step in normalizers):
            return False
    at_spaces = False  # whether words end there already, so that what follows splits words
    for index, step in enumerate(pre_tokenizers):
        before = pre_tokenizers[:index]
        marks = step["type"] == "Metaspace" and any(map(is_runs, pre_tokenizers[index + 1 : index + 2]))
        splits_here = splits(step, before)
        if not (splits_here or marks or step["type"] in PRE_TOKENIZERS or (at_spaces and step["type"] in SPLITTERS)):
            return False
        at_spaces |= splits_here
        # Several spaces are one word, and none may appear or vanish where it begins or ends.
        joins = splits_here and (step["type"] in {"Split", "ByteLevel"})
        if joins and not all(step["type"] in UNMARKING or is_local_replace(step) for step in normalizers):
            return False
    return at_spaces and all(step["type"] in NORMALIZERS or is_local_replace(step) for step in normalizers)


def marking(spec: dict) -> tuple[str, str, list[tuple[str, str]]] | None:
    """Return the arguments of `MarkedWords` for a tokenizer that only marks words, otherwise None."""
    normalizers = members(spec["normalizer"], "normalizers")
    pre_tokenizers = members(spec["pre_tokenizer"], "pretokenizers")
    if [step["type"] for step in pre_tokenizers] not in (["Metaspace"], ["Metaspace", "Split"]):
        return None
    metaspace, *runs = pre_tokenizers
    mark, model = metaspace["replacement"], spec["model"]
    # Pieces may have the mark only where the text has it.
    affixes = [model.get(key) or "" for key in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix")]
    if isinstance(model.get("unk_id"), int):
        affixes.append(model["vocab"][model["unk_id"]][0])
    plain = all(map(is_local_replace, normalizers)) and mark not in "".join(affixes)
    if not plain or not splits(pre_tokenizers[-1], pre_tokenizers[:-1]) or metaspace["prepend_scheme"] != "always":
        return None
    return mark, "\r\n" if runs else "", [(step["pattern"]["String"], step["content"]) for step in normalizers]


def members(part: dict | None, key: str) -> list[dict]:
    """Return the normalizers or pre-tokenizers of a tokenizer as a flat list."""
    if part is None:
        return []
    return [step for member in part[key] for step in members(member, key)] if part["type"] == "Sequence" else [part]


def is_local_replace(normalizer: dict) -> bool:
    """Return whether a normalizer replaces a string by another one, both without white space and not empty."""
    pattern, content = normalizer.get("pattern", {}).get("String", ""), normalizer.get("content", "")
    return normalizer["type"] == "Replace" and bool(pattern and content) and not re.search(r"\s", pattern + content)


def splits(pre_tokenizer: dict, before: list[dict]) -> bool:
    """Return whether a pre-tokenizer, after `before`, begins a word at each space that another character follows."""
    kind, kinds = pre_tokenizer["type"], [step["type"] for step in before]
    words = {rules.words for rules in RULES.values()}
    if kind == "Split":
        marked = kinds == ["Metaspace"] and before[0]["replacement"] == MARK
        return is_runs(pre_tokenizer) if marked else pattern_of(pre_tokenizer) in words and not before
    if kind == "ByteLevel":  # which sees how many spaces there are
        return bool(pre_tokenizer.get("use_regex", True) and not before)
    if kind == "Metaspace":
        return bool(pre_tokenizer.get("split", True))
    return kind in {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"} and "Metaspace" not in kinds


def is_runs(pre_tokenizer: dict) -> bool:
    """Return whether a pre-tokenizer is that of `whitespace: runs`, after Metaspace."""
    return pre_tokenizer["type"] == "Split" and pattern_of(pre_tokenizer) == RUNS


def pattern_of(split: dict) -> str:
    """Return the regular expression whose matches are the words of a pre-tokenizer `Split`; "" for another one."""
    isolates = split["behavior"] == "Isolated" and not split["invert"]
    return split["pattern"].get("Regex", "") if isolates else ""


def template(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids of the special tokens that a tokenizer puts before a text and after it."""
    bare, dressed = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
    for start in range(len(dressed) - len(bare) + 1):
        if dressed[start : start + len(bare)] == bare:
            return dressed[:start], dressed[start + len(bare) :]
    return [], []


def folded(texts: pa.StringArray) -> pa.StringArray:
    """Return documents with single spaces for white space, and none at the ends: `whitespace: fold`."""
    return pc.utf8_trim(pc.replace_substring_regex(texts, BLANKS, " "), " ")


def split_at_spaces(texts: pa.StringArray, no_cut: np.ndarray = NOT_AFTER_SPACE) -> tuple[pa.StringArray, np.ndarray]:
    """Return the parts of documents, cut before each space that no byte of `no_cut`, bool [256], follows.

    Also returns the number of parts before each document and before the end, int64 of shape [documents + 1]. A document
    without text has no part.
    """
    large = texts.cast(pa.large_string())
    _, offsets, data = large.buffers()
    bounds = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(texts) + 1]
    content = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]] if data else np.empty(0, np.uint8)
    begins = np.zeros(len(content) + 1, bool)
    begins[bounds - bounds[0]] = True
    spaces = np.flatnonzero(content[:-1] == SPACE)
    begins[spaces[~no_cut[content[spaces + 1]] & ~begins[spaces + 1]]] = True
    cuts = np.flatnonzero(begins)
    first = np.searchsorted(cuts, bounds - bounds[0])
    buffers = [None, pa.py_buffer((cuts + bounds[0]).astype(np.int64)), data]
    return pa.Array.from_buffers(pa.large_string(), len(cuts) - 1, buffers), first


def surround(ids: np.ndarray, bounds: np.ndarray, before: list[int], after: list[int]) -> np.ndarray:
    """Return ids with special tokens around each document, int32.

    ids     int32 [tokens]
    bounds  where each document begins and the last one ends, int64 of shape [documents + 1]
    """
    extra = len(before) + len(after)
    starts = bounds[:-1] + extra * np.arange(len(bounds) - 1)
    stream = np.empty(len(ids) + extra * (len(bounds) - 1), np.int32)
    inside = np.ones(len(stream), bool)
    for number, special in enumerate(before):
        stream[starts + number] = special
        inside[starts + number] = False
    ends = starts + np.diff(bounds) + len(before)
    for number, special in enumerate(after):
        stream[ends + number] = special
        inside[ends + number] = False
    stream[inside] = ids
    return stream
