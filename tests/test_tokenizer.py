"""The tokenizer stage: training to the same bytes, the files that transformers loads, the figures."""

import hashlib
import json
import math
from pydoc_data import topics

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tpulm.core.errors import UserError
from tpulm.corpus.reader import read_lengths, read_texts
from tpulm.tokenization import folder, unigram
from tpulm.tokenization.pretrained import save_pretrained


@pytest.fixture(scope="module")
def texts() -> list[str]:
    paragraphs = [p for topic in sorted(topics.topics) for p in topics.topics[topic].split("\n\n")]
    return [" ".join(p.split()) for p in paragraphs if len(p) > 40][:2000]


def batches(texts):
    return lambda: (texts[start : start + 100] for start in range(0, len(texts), 100))


@pytest.fixture(scope="module")
def trained(texts):
    return unigram.train(batches(texts[:1800]), 1000)


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    trained.save(str(path / "tokenizer.json"))
    folder.write_settings(trained, path / "tokenizer_config.json", path / "special_tokens_map.json")
    return path


def test_ten_trainings_give_the_same_bytes(texts):
    digests = {hashlib.sha256(unigram.train(batches(texts), 1000).to_str().encode()).hexdigest() for _ in range(10)}
    assert len(digests) == 1


@pytest.mark.unit
def test_pieces_are_those_of_the_library_and_cut_as_well(texts, trained):
    reference = unigram.untrained()
    trainer = unigram.UnigramTrainer(
        vocab_size=1000, unk_token="<unk>", special_tokens=unigram.SPECIALS, show_progress=False
    )
    reference.train_from_iterator(texts[:1800], trainer=trainer)
    assert set(reference.get_vocab()) == set(trained.get_vocab())
    held_out = texts[1800:]
    tokens = [
        sum(len(e.ids) for e in t.encode_batch_fast(held_out, add_special_tokens=False)) for t in (reference, trained)
    ]
    assert tokens[1] == pytest.approx(tokens[0], rel=0.01)


@pytest.mark.unit
def test_vocabulary_is_ordered(trained):
    vocabulary = [tuple(entry) for entry in json.loads(trained.to_str())["model"]["vocab"]]
    assert [piece for piece, _ in vocabulary[:5]] == ["[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]"]
    assert vocabulary[5:] == sorted(vocabulary[5:], key=lambda entry: (-entry[1], entry[0]))
    assert all(-30 < score < 0 for _, score in vocabulary[5:])
    assert len(vocabulary) == trained.get_vocab_size() == 1000


@pytest.mark.unit
def test_pipeline_is_the_published_one(trained):
    form = json.loads(trained.to_str())
    assert [(n["pattern"]["String"], n["content"]) for n in form["normalizer"]["normalizers"]] == [
        ("``", '"'),
        ("''", '"'),
    ]
    assert form["pre_tokenizer"]["type"] == form["decoder"]["type"] == "Metaspace"
    assert form["model"]["unk_id"] == 2
    assert trained.encode("A module", "A class").type_ids[0] == 0
    assert trained.encode("A module", "A class").type_ids[-1] == 1


@pytest.mark.unit
def test_expectation_is_that_of_enumeration():
    counts = {"▁aba": 3, "▁ab": 2, "▁": 1, "b" * 300: 1}
    pieces = sorted({"▁", "a", "b", "ab", "▁a", "aba", "bb"})
    scores = dict(zip(pieces, np.log(np.arange(1, len(pieces) + 1) / 30), strict=True))

    def cuts(word):
        if not word:
            yield []
        for stop in range(1, len(word) + 1):
            if word[:stop] in scores:
                for rest in cuts(word[stop:]):
                    yield [word[:stop], *rest]

    short = {word: count for word, count in counts.items() if len(word) < 10}
    expected = dict.fromkeys(pieces, 0.0)
    for word, count in short.items():
        ways = [(cut, math.exp(sum(scores[piece] for piece in cut))) for cut in cuts(word)]
        total = sum(weight for _, weight in ways)
        for cut, weight in ways:
            for piece in cut:
                expected[piece] += count * weight / total
    lattice = unigram.Lattice(sorted(short.items()), {piece: i for i, piece in enumerate(pieces)})
    np.testing.assert_allclose(lattice.expectation(np.array(list(scores.values()))), list(expected.values()))
    # A long word underflows without logarithms.
    assert all(map(math.isfinite, unigram.estimate_scores(counts, pieces).values()))


@pytest.mark.unit
def test_chunks_of_words_do_not_matter(texts, monkeypatch):
    counts = unigram.count_words([texts[:300]])
    pieces = sorted(set().union(*counts) | {"th", "▁the", "ing", "er"})
    whole = unigram.estimate_scores(counts, pieces)
    monkeypatch.setattr(unigram, "CHUNK", 100)
    assert unigram.estimate_scores(counts, pieces) == pytest.approx(whole, abs=2e-6)


@pytest.mark.parametrize("text", ["a b", "a  b", " a", "a ", "", "  ", "``x'' y", "▁▁a b", "\n a\n b", "a▁b", "''' '"])
@pytest.mark.unit
def test_words_are_those_of_the_pre_tokenizer(text):
    tokenizer = unigram.untrained()
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
    assert unigram.words(text) == [piece for piece, _ in pieces]


@pytest.mark.unit
def test_special_tokens_in_the_text_are_no_pieces(texts):
    tokenizer = unigram.train(batches([f"{text} [MASK] <unk>[SEP]" for text in texts[:500]]), 500)
    assert tokenizer.get_vocab_size() == 500
    assert not [piece for piece in tokenizer.get_vocab() if "MAS" in piece and piece != "[MASK]"]


@pytest.mark.unit
def test_vocabulary_too_small_for_the_characters(texts):
    alphabet = set("▁" + "".join(texts).replace(" ", "▁"))
    with pytest.raises(UserError) as error:
        unigram.train(batches(texts), 16)
    assert str(error.value) == (
        f"tokenizer.vocab_size is 16; allowed: {len(alphabet) + 5} or more, since the text has {len(alphabet)} "
        "different characters and there are 5 special tokens."
    )


@pytest.mark.unit
def test_vocabulary_too_large_for_the_text():
    with pytest.raises(UserError) as error:
        unigram.train(batches(["to be or not to be"]), 5000)
    most = int(str(error.value).split("allowed: ")[1].split()[0])
    assert str(error.value) == (
        f"tokenizer.vocab_size is 5000; allowed: {most} or less, since the text has no more pieces that repeat."
    )
    assert unigram.train(batches(["to be or not to be"]), most).get_vocab_size() == most


@pytest.mark.unit
def test_auto_tokenizer_loads_and_round_trips(saved, texts):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(saved)
    assert len(tokenizer) == 1000
    assert (
        (tokenizer.cls_token, tokenizer.sep_token) == (tokenizer.bos_token, tokenizer.eos_token) == ("[CLS]", "[SEP]")
    )
    assert [tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.unk_token_id] == [0, 1, 2]
    assert [tokenizer.pad_token_id, tokenizer.mask_token_id] == [3, 4]
    plain = [text for text in texts if "''" not in text and "``" not in text]
    assert len(plain) > 1000
    for text in plain:
        ids = tokenizer(text)["input_ids"]
        assert ids[0] == 0 and ids[-1] == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    ids = tokenizer("The value of [MASK] changes")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids)[-3] != "▁" and 4 in ids


@pytest.mark.unit
def test_pretrained_folder_is_taken_as_it_is(saved, tmp_path, texts):
    assert save_pretrained(str(saved), None, str(tmp_path)) == 1000
    first, second = folder.load(saved / "tokenizer.json"), folder.load(tmp_path / "tokenizer.json")
    assert [e.ids for e in first.encode_batch(texts)] == [e.ids for e in second.encode_batch(texts)]
    ids = folder.special_ids(second, tmp_path / "special_tokens_map.json")
    assert ids == {"bos": 0, "cls": 0, "eos": 1, "mask": 4, "pad": 3, "sep": 1, "unk": 2}
    assert str(saved) not in "".join(file.read_text() for file in tmp_path.iterdir())


@pytest.mark.unit
def test_pretrained_without_mask_is_refused(saved, tmp_path):
    tokens = json.loads((saved / "tokenizer_config.json").read_text())
    del tokens["mask_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokens))
    (tmp_path / "tokenizer.json").write_text((saved / "tokenizer.json").read_text())
    with pytest.raises(UserError) as error:
        save_pretrained(str(tmp_path), None, str(tmp_path / "out"))
    assert str(error.value) == (
        f"tokenizer.pretrained is {tmp_path}, which has no mask_token; allowed: a tokenizer with cls_token, sep_token, "
        "pad_token, mask_token."
    )


@pytest.mark.unit
def test_pretrained_folder_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(UserError, match=f"^tokenizer.pretrained is {tmp_path}, which cannot be loaded"):
        save_pretrained(str(tmp_path), None, str(tmp_path / "out"))


@pytest.mark.unit
def test_figures(trained, saved, texts):
    held_out = texts[1800:]
    ids = folder.special_ids(trained, saved / "special_tokens_map.json")
    figures = folder.measure(trained, ids, [held_out[:50], held_out[50:]])
    tokens = [i for text in held_out for i in trained.encode(text, add_special_tokens=False).ids]
    shares = np.bincount(tokens) / len(tokens)
    assert figures["tokens"] == len(tokens)
    assert figures["words"] == sum(len(text.split()) for text in held_out)
    assert figures["tokens_per_word"] == len(tokens) / figures["words"]
    assert figures["characters_per_token"] == sum(map(len, held_out)) / len(tokens)
    assert figures["vocabulary_used"] == len(set(tokens) - set(range(5))) / 995
    assert figures["unknown_rate"] == tokens.count(2) / len(tokens)
    assert figures["unigram_entropy"] == pytest.approx(-sum(p * math.log(p) for p in shares if p))


@pytest.mark.unit
def test_documents_are_read_by_range(tmp_path, texts):
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"text": texts}), path, row_group_size=300)
    for start, stop in ((0, None), (0, 1), (299, 301), (10, 950), (600, 600)):
        found = list(read_texts(path, start, stop, size=128))
        assert all(1 <= len(batch) <= 128 for batch in found)
        assert sum(found, []) == texts[start:stop]
    assert read_lengths(path).to_pylist() == [len(text) for text in texts]
