"""Byte-level BPE of causal models: trained here, and as keras-hub opens it."""

import random
import unicodedata

import pytest
import test_causal
from test_causal import prose
from test_transformers import OF_BYTES, preset_of
from tpulm.core.errors import UserError
from tpulm.specs.causal_families import FAMILIES
from tpulm.tokenization.causal import KerasHub, OfBytes, load_tokenizer
from tpulm.tokenization.training import train_byte_level

jax_backend = test_causal.jax_backend
SIZE = "base.small.vocab_size"
TEXTS = [
    "12345 and 1234567, 2026", "    return x\n\n\n\treturn  y", "don't IT'S", "a\r\nb\x00c",
    "漢字 العربية 👩\u200d👩\u200d👧",
    "e\u0301", "\ue000\u2028 ", " ", "",
]  # fmt: skip
SPELLED = "no <|end_of_text|> here, <|im_end|> and <|endoftext|>"


def documents():
    """Return documents with numbers and indented code."""
    draw = random.Random(0)
    return [*prose(200), *(f"def f({n}):\n    return {draw.randrange(10**n)}\n" for n in range(1, 200))]


def trained(name, folder, size=330):
    path = folder / f"{name}.json"
    train_byte_level([documents()], FAMILIES[name].byte_level, size, SIZE).save(str(path))
    return OfBytes(path)


@pytest.mark.unit
@pytest.mark.parametrize(("name", "digits"), [("llama3", 3), ("qwen2", 1), ("qwen3", 1)])
def test_words_are_those_that_are_published(tmp_path, name, digits):
    """Pieces are of one word: so many digits; all spaces but the one before a letter."""
    tokenizer = trained(name, tmp_path)
    for number in ("1234", "987654321", "1000000"):
        starts = {start for start, _ in tokenizer.places([number])[0]}
        assert starts >= set(range(0, len(number), digits))
    [ids] = tokenizer.encode(["    return"])
    assert [tokenizer.piece(token) for token in ids] == ["ĠĠĠ", "Ġreturn"]


@pytest.mark.unit
@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3"])
def test_a_text_comes_back_as_it_was(tmp_path, name):
    tokenizer = trained(name, tmp_path)
    for text, ids, places in zip(TEXTS, tokenizer.encode(TEXTS), tokenizer.places(TEXTS), strict=True):
        composed = unicodedata.normalize("NFC", text) if name != "llama3" else text
        assert tokenizer.decode(ids) == composed and len(ids) == len(places)
    special = {"bos": 2 if name == "llama3" else None, "eos": 1, "pad": 0}
    assert tokenizer.special == special and tokenizer.size == 330


@pytest.mark.unit
def test_the_same_text_gives_the_same_bytes(tmp_path):
    vocabulary = FAMILIES["llama3"].byte_level
    texts = documents()
    found = {train_byte_level([texts[:n], texts[n:]], vocabulary, 330, SIZE).to_str() for n in (1, 7, 100, 150)}
    assert len(found) == 1


@pytest.mark.unit
def test_a_size_that_cannot_be_names_the_key():
    vocabulary = FAMILIES["llama3"].byte_level
    with pytest.raises(UserError, match=f"^{SIZE} is 261; allowed: 262 or more"):
        train_byte_level([documents()], vocabulary, 261, SIZE)
    with pytest.raises(UserError, match=rf"^{SIZE} is 90000; the text has pieces for at most \d+"):
        train_byte_level([documents()], vocabulary, 90_000, SIZE)


@pytest.mark.parametrize("name", OF_BYTES)
def test_a_preset_has_the_ids_of_its_vocabulary(jax_backend, tmp_path, name):
    """Opened by keras-hub, which merges across words; and what its model generates from is cut so, too."""
    from tpulm.models.causal import load_preset

    vocabulary, preset = preset_of(name, tmp_path)
    ours, theirs = (load_tokenizer(str(path), lambda: None) for path in (vocabulary, preset))
    assert isinstance(ours, OfBytes) and isinstance(theirs, KerasHub)
    texts = [*TEXTS, SPELLED, *documents()]
    assert ours.encode(texts) == theirs.encode(texts) and ours.places(texts) == theirs.places(texts)
    assert (ours.special, ours.size) == (theirs.special, theirs.size)
    cut = load_preset(preset).preprocessor.tokenizer
    assert [list(map(int, cut(text))) for text in texts] == ours.encode(texts)
