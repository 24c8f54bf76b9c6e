"""The tokenizer stage: training to the same bytes, the files that transformers loads, the figures."""

import base64
import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pydoc_data import topics

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, write_tokenizer_to
from tokenizers import models
from tokenizers.trainers import UnigramTrainer
from tpulm.core.errors import UserError
from tpulm.corpus.documents import read_lengths, read_texts
from tpulm.tokenization import folder, pipeline, sample, words
from tpulm.tokenization.encoding import Encoder
from tpulm.tokenization.pipeline import Recipe
from tpulm.tokenization.sample import Sample
from tpulm.tokenization.training import train
from tpulm.tokenization.writing import by_script

pytestmark = pytest.mark.unit

MODELS = ("unigram", "bpe", "wordpiece")
FAR = {"[CLS]": 0, "[SEP]": 1, "<unk>": 2, "<pad>": 3, "[MASK]": 4, "far": 4_000_000_000}  # ids


@pytest.fixture(scope="module")
def texts() -> list[str]:
    paragraphs = [p for topic in sorted(topics.topics) for p in topics.topics[topic].split("\n\n")]
    return [" ".join(p.split()) for p in paragraphs if len(p) > 40][:2000]


@pytest.fixture(scope="module")
def trained(texts):
    return {kind: train([texts[:1800]], Recipe(kind, 1000))[0] for kind in MODELS}


@pytest.fixture(scope="module", params=sorted(MODELS))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def saved(trained, kind, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    trained[kind].save(str(path / "tokenizer.json"))
    folder.write_settings(trained[kind], path / "tokenizer_config.json", path / "special_tokens_map.json")
    return path


def tokens_of(tokenizer, texts):
    return sum(len(e.ids) for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False))


TRAIN = """
import sys, json, hashlib
from tpulm.tokenization.pipeline import Recipe
from tpulm.tokenization.training import train
texts = json.load(open(sys.argv[1]))
recipes = [Recipe(model, 500) for model in ("unigram", "bpe", "wordpiece", "byte-level-bpe")]
rare = {"character_coverage": 0.99, "whitespace": "runs", "byte_fallback": True, "normalization": "nfkc"}
recipes += [Recipe(model, 700, **rare) for model in ("unigram", "bpe")]
for recipe in recipes:
    print(hashlib.sha256(train([texts], recipe)[0].to_str().encode()).hexdigest())
"""


def test_threads_and_hash_seeds_do_not_matter(texts, tmp_path):
    (tmp_path / "texts.json").write_text(json.dumps(texts[:250]))
    printed = [
        subprocess.run(
            [sys.executable, "-c", TRAIN, tmp_path / "texts.json"], capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")} | settings,
        ).stdout
        for settings in (
            {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "1"},
            {"RAYON_NUM_THREADS": "3", "OMP_NUM_THREADS": "3", "PYTHONHASHSEED": "2"},
        )
    ]  # fmt: skip
    assert printed[0] == printed[1]


def test_unigram_cuts_as_well_as_the_library(texts, trained):
    reference = pipeline.tokenizer_around(models.Unigram(), Recipe("unigram", 1000))
    trainer = UnigramTrainer(vocab_size=1000, unk_token="<unk>", special_tokens=pipeline.SPECIALS, show_progress=False)
    reference.train_from_iterator(texts[:1800], trainer=trainer)
    assert tokens_of(trained["unigram"], texts[1800:]) < 1.01 * tokens_of(reference, texts[1800:])


# The trainer of the `tokenizers` library panics on it.
PANIC = (
    ">>> ids = tf.ragged.constant([[0, 1, 2], [5, 3]]) >>> tokenizer.detokenize(ids) <tf.Tensor: shape=(2,), "
    "dtype=string, ... numpy=array([b'I have a', b'I have a dream'], dtype=object)>"
)
CONTROLS = "".join(map(chr, range(33))) * 5 + "\x7f\x85\u2028\ufeff\ufffd\u2585\u2581 a b"
# By name: a text, and the size of a vocabulary for it.
TEXTS = {
    "what the library panics on": (PANIC, 65),
    "Japanese": ("東京は日本の首都です。東京の人口は日本で一番多いです。日本の首都は東京です。" * 4, 55),
    "emoji": ("👩‍👩‍👧‍👦 🎉🎉 😀 👍🏽 text 🎉🎉 👩‍👩‍👧‍👦 😀" * 3, 35),
    "code": ("def f(x):\n\treturn x  # same\r\n\nfor i in range(3):\n    print(f(i), '#' * 300)\n" * 3, 80),
    "headings": ("#" * 301 + " ## a ##b #c# " + "#" * 250, 16),
    "base64": (base64.b64encode(bytes(range(256)) * 9).decode(), 150),
    "a long word": ("abcd" * 25_000, 18),
    "one letter": ("a" * 100_000, 9),
    "control characters": (CONTROLS, 90),
    "reserved names": ('"<UNK>" <s> </s> <unk ⁇ <0x0A> <s> </s> <pad unk\t1 ## ##s ' * 5, 50),
}


@pytest.mark.parametrize("name", TEXTS)
def test_any_text_is_learned_and_comes_back(name, kind):
    text, size = TEXTS[name]
    if kind == "wordpiece":  # a character has a piece at the start of words and another inside of them
        size = 2 * size
    try:
        tokenizer, _ = train([[text]], Recipe(kind, size, character_coverage=1.0))
    except UserError as error:  # with the size that it allows
        size = int(str(error).split("allowed: ")[1].split()[0])
        tokenizer, _ = train([[text]], Recipe(kind, size, character_coverage=1.0))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.get_vocab_size() == size
    assert tokenizer.token_to_id("<unk>") not in ids
    # The first space is the mark of the first word.
    assert tokenizer.decode(ids).lstrip(" ") == text.replace("▁", " ").lstrip(" ")


def test_no_pieces_are_made_of_a_long_word(texts, kind):
    """But of text without spaces, such as Japanese, or where most of the text is such words."""
    some, line = texts[:300], base64.b64encode(np.random.default_rng(3).bytes(1000) * 20).decode()
    tokenizer, record = train([[*some, line]], Recipe(kind, 600))
    if kind == "wordpiece":  # its words are cut
        assert "long_word_characters" not in record
        return
    assert record["long_word_characters"] == len(line)
    only = train([some], Recipe(kind, 600))[0]
    assert len(set(tokenizer.get_vocab()) - set(only.get_vocab())) < 40  # characters
    assert "long_word_characters" not in train([["東京は日本の首都です。" * 99, *some]], Recipe(kind, 600))[1]
    assert "long_word_characters" not in train([[line]], Recipe(kind, 80))[1]


# Parts that a tokenizer may change or lose, beside TEXTS: white space, rare, unnormalized and other characters.
HARD = [
    *(text for text, _ in TEXTS.values()),
    "| a  |   b |\n|----|-----|\n|  1 | 2.5 |\n\n\n   a  b   ",
    "\u3000全角ＡＢＣ１２３ \ue000 \U0010ffff \u2029 [MASK <unk Ġ Ċ",
    "\u0627\u0644\u0633\u0651\u0644\u0627\u0645\u064f \u0639\u0644\u064a\u0643\u0645\u200f\u061f",
    "e\u0301 a\u0308\u0323 \u0301 \ufb01 \u212b ▁ ▁▁",
]


@pytest.mark.parametrize("rule", ["gpt2", "llama3"])
def test_bytes_bring_every_text_back(texts, rule):
    tokenizer, record = train([texts[:200]], Recipe("byte-level-bpe", 600, pre_tokenizer=rule))
    assert tokenizer.get_vocab_size() == 600 and not record
    assert Encoder(tokenizer).by_words
    for text in HARD:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_rare_characters_are_bytes(texts, kind):
    recipe = Recipe(kind, 1000, byte_fallback=True, normalization="none", whitespace="runs", character_coverage=0.999)
    tokenizer, record = train([texts], recipe)
    assert tokenizer.get_vocab_size() == 1000
    assert record["rare_characters"] > 0 and 0.999 <= record["character_coverage"] < 1
    for text in HARD:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.token_to_id("<unk>") not in ids
        # A space at the beginning is the mark of the first word, and the mark itself is a space.
        assert tokenizer.decode(ids) == text.replace("▁", " ").removeprefix(" ")


def test_characters_beyond_the_coverage_are_unknown(kind):
    # Of 3,000 characters, 2,000 occur once. The text has a mark before each document, too.
    common, rare = "".join(map(chr, range(0x4E00, 0x4E00 + 1000))), "".join(map(chr, range(0x5400, 0x5400 + 2000)))
    documents = [common[start : start + 50] for start in range(0, 1000, 50)] * 98
    documents += [rare[start : start + 50] for start in range(0, 2000, 50)]
    size, coverage = 2100 if kind == "wordpiece" else 1010, 1 - 2000 / (98_000 + 2_000 + 98 * 20 + 40)
    with pytest.raises(UserError, match=r"^tokenizer\.vocab_size is 1010; allowed: 30\d\d or more"):
        train([documents], Recipe(kind, 1010, character_coverage=1.0))
    tokenizer, record = train([documents], Recipe(kind, size, character_coverage=coverage))
    assert record == {
        "characters_known": 1001, "rare_characters": 2000, "character_coverage": pytest.approx(coverage, abs=1e-8)
    }  # fmt: skip
    unknown = tokenizer.token_to_id("<unk>")
    text = f"{common[:20]}{rare[7]}{common[30:50]}"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids.count(unknown) == 1 and unknown not in tokenizer.encode(common[100:150]).ids
    # No more is lost than the character.
    assert tokenizer.decode([i for i in ids if i != unknown]) == f"{common[:20]}{common[30:50]}"


def test_an_indentation_is_a_token(texts, kind):
    code = [f"def {name}(x):\n        return {name}" for name in ("one", "two", "six") for _ in range(99)]
    code += texts[:300]
    for choice, blank in {"keep": ["▁"] * 7, "runs": ["▁" * 7], "fold": []}.items():
        tokens = train([code], Recipe(kind, 500, whitespace=choice))[0].encode(code[7]).tokens
        assert [token.strip("#") for token in tokens if not token.strip("▁#")] == blank


@pytest.mark.parametrize("batches", [[], [[]], [[""]]])
def test_no_words(batches, kind):
    with pytest.raises(UserError, match="^corpus: "):
        train(batches, Recipe(kind, 100))


def test_pipeline_is_the_published_one(trained, kind):
    form = json.loads(trained[kind].to_str())
    replaced = {one["pattern"]["String"]: one["content"] for one in form["normalizer"]["normalizers"]}
    assert replaced == {"``": '"', "''": '"'}
    assert form["model"]["type"].lower() == kind and form["model"].get("unk_token", "<unk>") == "<unk>"
    if kind != "wordpiece":
        assert form["pre_tokenizer"]["type"] == form["decoder"]["type"] == "Metaspace"
    assert trained[kind].encode("A module", "A class").type_ids[0] == 0
    assert trained[kind].encode("A module", "A class").type_ids[-1] == 1
    assert [trained[kind].token_to_id(token) for token in pipeline.SPECIALS] == [0, 1, 2, 3, 4]


WORDS = ["a b", "a  b", " a", "a ", "", "  ", "``x'' y", "▁▁a b", "\n a\n b", "a▁b", "''' '", "#a ##b" + "c#" * 99]


@pytest.mark.parametrize("text", WORDS)
@pytest.mark.parametrize("whitespace", ["keep", "runs", "fold"])
@pytest.mark.parametrize("model", ["unigram", "wordpiece"])
def test_words_are_those_of_the_pre_tokenizer(text, model, whitespace, monkeypatch):
    monkeypatch.setattr(words, "SLICE", 3)
    recipe = Recipe(model, 100, whitespace=whitespace)
    tokenizer = pipeline.tokenizer_around(models.Unigram(), recipe)
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
    counted = words.count_words([[text], ["z"]], recipe)
    assert Counter(counted.counts) == Counter([piece for piece, _ in pieces] + ["▁z"])
    assert Counter(counted.characters) == Counter("".join(piece for piece, _ in pieces) + "▁z")
    assert counted.first == {word[0] for word in counted.counts}
    assert counted.other == set("".join(word[1:] for word in counted.counts))


def test_distinct_words_are_bounded(texts, monkeypatch):
    texts = texts[:800]
    recipe = Recipe("unigram", 400, character_coverage=1.0)
    whole = words.count_words([texts], recipe)
    monkeypatch.setattr(words, "LIMIT", 10_000)
    monkeypatch.setattr(words, "SLICE", 5_000)
    kept = words.count_words([texts], recipe)
    assert 9_700 < sum(len(word) + words.WORD for word in kept.counts) <= 10_000
    assert (kept.first, kept.other, kept.characters) == (whole.first, whole.other, whole.characters)
    frequent = sorted(whole.counts, key=whole.counts.get)[-200:]
    assert set(frequent) <= set(kept.counts)
    assert kept == words.count_words([[text] for text in texts], recipe)
    # Characters of words that were dropped are in the vocabulary nevertheless.
    for model in MODELS:
        tokenizer, _ = train([texts], replace(recipe, model=model))
        assert not [text for text in texts if 2 in tokenizer.encode(text).ids]


def test_special_tokens_in_the_text_are_no_pieces(texts, kind):
    tokenizer, _ = train([[f"{text} [MASK] <unk>[SEP]" for text in texts[:500]]], Recipe(kind, 500))
    assert tokenizer.get_vocab_size() == 500
    assert not [piece for piece in tokenizer.get_vocab() if "MAS" in piece and piece != "[MASK]"]


@pytest.mark.parametrize("size", [10, 5000])
def test_a_vocabulary_size_that_cannot_be(kind, size):
    """Too small for the characters, too large for what repeats: the message has the size that can be."""
    text = ["to be or not to be, to see or not to see"]
    with pytest.raises(UserError, match=rf"^tokenizer\.vocab_size is {size}; allowed: \d+ or ") as error:
        train([text], Recipe(kind, size))
    limit = int(str(error.value).split("allowed: ")[1].split()[0])
    assert train([text], Recipe(kind, limit))[0].get_vocab_size() == limit
    with pytest.raises(UserError):
        train([text], Recipe(kind, limit - 1 if size == 10 else limit + 1))


def test_a_sample_is_seeded_and_of_the_asked_size(monkeypatch):
    documents = [f"document {number}" for number in range(5000)]

    def chosen(sample):
        return [text for texts in sample for text in texts]

    def read(rows):
        return ([documents[row]] for row in rows)

    total = sum(map(len, documents))
    lengths = [np.array(list(map(len, some))) for some in (documents[:3000], documents[3000:])]
    whole = Sample(read, lengths, total, 0)
    assert chosen(whole) == documents
    of_corpus = {"corpus_documents": 5000, "corpus_characters": total}
    assert whole.record() == of_corpus | {"training_documents": 5000, "training_characters": total}
    part = Sample(read, lengths, total // 5, 0)
    some = chosen(part)
    assert part.characters == sum(map(len, some)) == pytest.approx(total / 5, rel=0.1)
    assert part.documents == len(some) and part.corpus_characters == total
    # Neither a second reading nor how many are drawn at once matters; another seed does.
    monkeypatch.setattr(sample, "DRAWS", 7)
    again, other = (Sample(read, lengths, total // 5, seed) for seed in (0, 1))
    assert some == chosen(part) == chosen(again) != chosen(other)
    assert len(chosen(Sample(read, lengths, 1, 0))) == 1


def test_auto_tokenizer_loads_and_round_trips(saved, texts):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(saved)
    assert len(tokenizer) == 1000
    ids = {"bos": 0, "cls": 0, "eos": 1, "mask": 4, "pad": 3, "sep": 1, "unk": 2}
    assert {name: getattr(tokenizer, f"{name}_token_id") for name in ids} == ids
    plain = [text for text in texts[:1800] if "''" not in text and "``" not in text]
    assert len(plain) > 1000
    for text in plain:
        ids = tokenizer(text)["input_ids"]
        assert ids[0] == 0 and ids[-1] == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    ids = tokenizer("The value of [MASK] changes")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids)[-3] != "▁" and 4 in ids


def test_pretrained_folder_is_taken_as_it_is(saved, tmp_path, texts):
    assert write_tokenizer_to(tmp_path, saved) == 1000
    first, second = folder.load(saved / "tokenizer.json"), folder.load(tmp_path / "tokenizer.json")
    assert [e.ids for e in first.encode_batch(texts)] == [e.ids for e in second.encode_batch(texts)]
    ids = folder.special_ids(second, tmp_path / "special_tokens_map.json")
    assert ids == {"bos": 0, "cls": 0, "eos": 1, "mask": 4, "pad": 3, "sep": 1, "unk": 2}
    assert str(saved) not in "".join(file.read_text() for file in tmp_path.iterdir())


def test_pretrained_without_a_tokenizer_or_mask_is_refused(saved, tmp_path):
    with pytest.raises(UserError, match=f"^tokenizer.pretrained is {tmp_path}, "):
        write_tokenizer_to(tmp_path / "out", tmp_path)
    tokens = json.loads((saved / "tokenizer_config.json").read_text())
    del tokens["mask_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokens))
    (tmp_path / "tokenizer.json").write_text((saved / "tokenizer.json").read_text())
    with pytest.raises(UserError, match=f"^tokenizer.pretrained is {tmp_path}, .* no mask_token"):
        write_tokenizer_to(tmp_path / "out", tmp_path)


def changed_copy(saved, path, file, **values):
    """Return a copy of a tokenizer's folder with keys of a file replaced."""
    shutil.copytree(saved, path)
    (path / file).write_text(json.dumps(json.loads((path / file).read_text()) | values))
    return path


@pytest.mark.parametrize(
    "values",
    [  # the library panics when it loads, or when it encodes; it lists all ids that are missing
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        {"model": {"type": "WordLevel", "vocab": FAR, "unk_token": "<unk>"}},
    ],
    ids=lambda values: next(iter(values)),
)
def test_a_tokenizer_on_which_its_library_fails_is_refused(saved, tmp_path, values):
    source = changed_copy(saved, tmp_path / "source", "tokenizer.json", **values)
    with pytest.raises(UserError, match=f"^tokenizer.pretrained is {source}, which "):
        write_tokenizer_to(tmp_path / "out", source)


def test_a_tokenizer_that_transformers_5_saved_is_taken(saved, tmp_path):
    of_5 = {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["[SEP]"]}
    source = changed_copy(saved, tmp_path / "source", "tokenizer_config.json", **of_5)
    (source / "special_tokens_map.json").unlink()
    assert write_tokenizer_to(tmp_path / "out", source) == 1000
    written = json.loads((tmp_path / "out/tokenizer.json").read_text())
    assert written["model"] == json.loads((saved / "tokenizer.json").read_text())["model"]
    assert folder.special_tokens(tmp_path / "out/special_tokens_map.json")["mask_token"] == "[MASK]"


def test_figures(trained, kind, saved, texts):
    trained = trained[kind]
    held_out = [*texts[1800:], "a (<unk>, b", "<unk>"]
    ids = folder.special_ids(trained, saved / "special_tokens_map.json")
    parts = [folder.count_text(trained, [held_out[:50]]), folder.count_text(trained, [held_out[50:]])]
    figures = folder.tokenizer_metrics(trained, ids, folder.sum_counts(parts))
    tokens = [i for text in held_out for i in trained.encode(text, add_special_tokens=False).ids]
    shares = np.bincount(tokens) / len(tokens)
    assert figures["tokens"] == len(tokens)
    assert figures["words"] == sum(len(text.split()) for text in held_out)
    assert figures["tokens_per_word"] == len(tokens) / figures["words"]
    assert figures["characters_per_token"] == sum(map(len, held_out)) / len(tokens)
    assert figures["vocabulary_used"] == len(set(tokens) - set(range(5))) / 995
    assert figures["unknown_rate"] == tokens.count(2) / len(tokens)
    blank = [number for number in set(tokens) if number > 4 and not trained.decode([number]).strip()]
    assert figures["unknown_written"] == 2 / len(tokens) <= figures["unknown_rate"]
    assert figures["whitespace_rate"] == sum(map(tokens.count, blank)) / len(tokens)
    assert figures["unigram_entropy"] == pytest.approx(-sum(p * math.log(p) for p in shares if p))


def test_scripts(texts):
    documents = [*texts[:300], "Привет мир", "東京は日本の首都です。"]
    tokenizer, _ = train([documents], Recipe("bpe", 600, character_coverage=0.9995))
    unknown = tokenizer.token_to_id("<unk>")
    words = Counter({"Привет": 2, "東京は": 1, "module": 5, "мир": 1, "12": 1, "<unk>": 3, "♥": 1})
    rows = {row["script"]: row for row in by_script(tokenizer, unknown, words)}
    expected = {"script": "cyrillic", "words": 3, "characters": 15, "tokens": 6, "uncovered": 15}
    expected |= {"tokens_per_word": 2, "characters_per_token": 2.5, "uncovered_rate": 1}
    assert rows["cyrillic"] == expected
    assert rows["cjk"]["uncovered"] == 3 and rows["latin"]["uncovered"] == 0 and rows["digits"]["words"] == 1
    assert rows["symbols"]["uncovered"] == 1
    bytes_, _ = train([documents], Recipe("bpe", 600, character_coverage=0.9995, byte_fallback=True))
    rows = {row["script"]: row for row in by_script(bytes_, bytes_.token_to_id("<unk>"), words)}
    assert (rows["cyrillic"]["tokens"], rows["cyrillic"]["uncovered"]) == (33, 15)


def test_documents_are_read_by_range(tmp_path, texts):
    path, *several = (str(tmp_path / f"{number}.parquet") for number in range(4))
    pq.write_table(pa.table({"text": texts}), path, row_group_size=300)
    for file, own in zip(several, (texts[:0], texts[:450], texts[450:]), strict=True):
        pq.write_table(pa.table({"text": pa.array(own, pa.string())}), file, row_group_size=300)
    rows = np.array([0, 299, 300, 449, 450, 800])
    for files in (path, several):
        for start, stop in ((0, None), (0, 1), (299, 301), (10, 850), (600, 600)):
            found = list(read_texts(files, slice(start, stop), size=128))
            assert all(1 <= len(batch) <= 128 for batch in found)
            assert sum(found, []) == texts[start:stop]
        assert sum(read_texts(files, rows, size=2), []) == [texts[row] for row in rows]
    lengths = [len(text) for text in texts]
    for name, own in (("a.npy", lengths[:10]), ("b.npy", lengths[10:])):
        np.save(tmp_path / name, np.array(own, np.int32))
    found = read_lengths([str(tmp_path / "a.npy"), str(tmp_path / "b.npy")])
    assert [own.tolist() for own in found] == [lengths[:10], lengths[10:]]
