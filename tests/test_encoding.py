"""Documents to ids in bulk: always exactly what the tokenizer's own `encode` gives."""

import json
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from conftest import ROOT
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from tpulm.tokenization.encoding import Encoder, splits_at_spaces, tokenize
from tpulm.tokenization.pipeline import Recipe
from tpulm.tokenization.training import train

pytestmark = pytest.mark.unit

TEXT = [line for line in (ROOT / "README.md").read_text().split("\n") if line.strip()]
SPECIALS = ["<s>", "</s>", "<unk>", "<pad>", "[MASK]"]
BYTES = pre_tokenizers.ByteLevel.alphabet()


def roberta() -> Tokenizer:
    """Return a byte-level BPE tokenizer, as GPT-2 and RoBERTa have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIALS, initial_alphabet=BYTES, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return tokenizer


def bert() -> Tokenizer:
    """Return a WordPiece tokenizer, as BERT has it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=500, special_tokens=SPECIALS))
    tokenizer.post_processor = processors.BertProcessing(("</s>", 1), ("<s>", 0))
    return tokenizer


def composed() -> Tokenizer:
    """Return a BPE tokenizer that splits at white space and digits, after normalizers that look at characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.NFD(), normalizers.StripAccents()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Digits()])
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIALS))
    return tokenizer


# Characters of README that are rare, so that every text may have unknown ones.
SOME = {"character_coverage": 0.99}
RECIPES = {
    "unigram": Recipe("unigram", 400),
    "unigram, runs": Recipe("unigram", 400, normalization="none", whitespace="runs", **SOME),
    "unigram, bytes": Recipe("unigram", 600, normalization="nfkc", byte_fallback=True, **SOME),
    "unigram, fold": Recipe("unigram", 400, whitespace="fold", **SOME),
    "bpe, runs, bytes": Recipe("bpe", 600, whitespace="runs", byte_fallback=True, normalization="nfkc", **SOME),
    "wordpiece": Recipe("wordpiece", 400, normalization="none", **SOME),
    "gpt2": Recipe("byte-level-bpe", 500),
    "llama3": Recipe("byte-level-bpe", 500, pre_tokenizer="llama3", normalization="nfkc"),
}
TOKENIZERS = {
    **{name: train([TEXT], recipe)[0] for name, recipe in RECIPES.items()},
    "roberta": roberta(),
    "bert": bert(),
    "composed": composed(),
}
# Where words begin and end: white space of all kinds, marks that combine, special tokens, the published replacements.
PARTS = [*" \n\t\0\x1c\x85\u00a0\u1680\u2003\u3000\u0301▁aéΣ1“😀", "  ", "\r\n", "``", "''", "'s", "the", "shard"]
PARTS += [*"\uffe3\u02d8\ufe49\u0384\u037a", "e\u0301", "42", "日本", "[MASK]", "<pad>", "<s>", "x" * 300]
TEXTS = st.lists(st.lists(st.sampled_from(PARTS) | st.text(max_size=4), max_size=8).map("".join), max_size=5)


def separate(encoded) -> list[list[int]]:
    """Return the ids of each document."""
    ids, lengths = encoded
    assert ids.dtype == np.int32 and lengths.dtype == np.int64 and lengths.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] if len(lengths) else []


@cache
def encoder_of(name: str) -> Encoder:
    """Return the encoder of a tokenizer, which knows the words of all examples."""
    return Encoder(TOKENIZERS[name])


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts=TEXTS)
@example(texts=[])
@example(texts=["", " ", ""])
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_ids_are_those_of_encode(name, texts):
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    tokenizer, encoder = TOKENIZERS[name], encoder_of(name)
    assert encoder.by_words
    expected = [tokenizer.encode(text).ids for text in texts]
    assert separate(encoder.encode(pa.array(texts, pa.string()))) == expected
    # A slice of a larger array, as a shard's documents are.
    assert separate(encoder.encode(pa.array(["a  b", *texts, "c"], pa.string()).slice(1, len(texts)))) == expected


@pytest.mark.parametrize("name", TOKENIZERS)
def test_batches_do_not_matter(name, monkeypatch):
    tokenizer = TOKENIZERS[name]
    expected = [tokenizer.encode(text).ids for text in TEXT]
    monkeypatch.setattr("tpulm.tokenization.encoding.BATCH_CHARACTERS", 1000)
    monkeypatch.setattr("tpulm.tokenization.word_ids.WORDS_AT_ONCE", 7)
    monkeypatch.setattr("tpulm.tokenization.word_ids.WORDS_OF_A_TEXT", 3)
    monkeypatch.setattr("tpulm.tokenization.word_ids.KNOWN_WORDS", 100)
    batches = list(tokenize(tokenizer, (pa.array(TEXT[start : start + 9]) for start in range(0, len(TEXT), 9))))
    assert len(batches) > 3
    assert [ids for batch in batches for ids in separate(batch)] == expected


SCORES = st.sampled_from([-1.0, -1.1, -2.0, -2.2, -3.3, -0.1, 0.0])
PIECES = st.dictionaries(st.text("ab▁é", min_size=1, max_size=4), SCORES, max_size=12)
RUNS = {"▁": -1.0, "a": -1.0, "aa": -1.1, "aaa": -1.2}  # of which many cuts of a row of letters are equally likely


@given(pieces=PIECES, unknown=st.sampled_from(["<unk>", "b", "▁"]), texts=st.lists(st.text("ab é", max_size=80)))
@example(pieces=RUNS, unknown="<unk>", texts=["a" * length for length in range(99)])
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_unigram_vocabulary_cuts_as_the_library_does(pieces, unknown, texts):
    """Equally likely cuts, characters that are no piece, long words, a piece that stands for what is unknown."""
    vocabulary = [*({unknown: -5.0} | pieces).items()]
    number = [piece for piece, _ in vocabulary].index(unknown)
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=number, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    expected = [tokenizer.encode(text).ids for text in texts]
    assert separate(Encoder(tokenizer).encode(pa.array(texts, pa.string()))) == expected


def changed(**parts) -> Tokenizer:
    """Return the trained Unigram tokenizer with other parts."""
    tokenizer = Tokenizer.from_str(TOKENIZERS["unigram"].to_str())
    for part, value in parts.items():
        setattr(tokenizer, part, value)
    return tokenizer


# What looks beyond a word: the tokenizer encodes whole documents.
WHOLE = {
    "no split": changed(pre_tokenizer=pre_tokenizers.Metaspace(split=False)),
    "strip": changed(normalizer=normalizers.Strip()),
    "replace two spaces": changed(normalizer=normalizers.Replace("  ", " ")),
    "dropout": changed(model=models.BPE({"a": 0}, [], dropout=0.5)),
}
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
for label, steps in {
    "marks, then spaces": [pre_tokenizers.Metaspace(split=False), pre_tokenizers.WhitespaceSplit()],
    "digits, then bytes": [pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL],
}.items():
    WHOLE[label] = changed(pre_tokenizer=pre_tokenizers.Sequence(steps))
WHOLE["accents, then bytes"] = changed(normalizer=normalizers.StripAccents(), pre_tokenizer=BYTE_LEVEL)
WHOLE["nothing, then bytes"] = changed(normalizer=normalizers.Replace("x", ""), pre_tokenizer=BYTE_LEVEL)
WHOLE["nfkc, then fold"], _ = train([TEXT], Recipe("bpe", 400, normalization="nfkc", whitespace="fold"))
WHOLE["a token in normalized text"] = changed()
WHOLE["a token in normalized text"].add_tokens([AddedToken("“shard”", normalized=True)])


@pytest.mark.parametrize("name", WHOLE)
def test_a_tokenizer_that_looks_beyond_words_encodes_whole_documents(name):
    tokenizer = WHOLE[name]
    assert not splits_at_spaces(json.loads(tokenizer.to_str()))
    texts = ["a  b", " ``shard'' ", "aa a", "a  \u0301 b", "a  x b", "a  1", "a\tb", "a \uffe3b", "  "]
    if name != "dropout":
        assert separate(Encoder(tokenizer).encode(pa.array(texts))) == [tokenizer.encode(t).ids for t in texts]
