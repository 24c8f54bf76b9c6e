"""What models are scored on, the models that count, and what becomes of the scores: nothing that runs a network."""

import gzip
import itertools
import json
import math
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_causal import prose
from tokenizers import Tokenizer, models, processors
from tpulm.core.errors import UserError
from tpulm.core.files import write_json
from tpulm.corpus.documents import RESPONSES
from tpulm.corpus.sources import pair_sources
from tpulm.evaluation import item_means
from tpulm.evaluation.exact_match import exact_match, generated, most_tokens, questions_of
from tpulm.evaluation.item_means import write_scored
from tpulm.evaluation.material import Item, Passage, draw, read_items, write_items
from tpulm.evaluation.minimal_pairs import fetch_pairs
from tpulm.evaluation.ngram_model import ORDER, KneserNey, Unigram
from tpulm.evaluation.overlap import count_in_training, find_overlap, items_in_training
from tpulm.evaluation.rows import batched, causal_rows, costs_of, encode_passages, fitting, masked_rows, sum_by_text
from tpulm.evaluation.text_scores import Material
from tpulm.specs.scores import read_scores
from tpulm.tokenization import folder
from tpulm.tokenization.folder import load
from tpulm.tokenization.pipeline import Recipe
from tpulm.tokenization.tokenizer import TextTokenizer
from tpulm.tokenization.training import train

pytestmark = pytest.mark.unit


def numbered(texts, known=None):
    known = {} if known is None else known
    return [[known.setdefault(word, len(known)) for word in text.split()] for text in texts], known


def test_kneser_ney_is_that_of_nltk():
    from nltk.lm import KneserNeyInterpolated

    def grams(words):
        own = ["<s>"] * (ORDER - 1) + list(map(str, words))
        return [tuple(own[i - n + 1 : i + 1]) for i in range(ORDER - 1, len(own)) for n in range(1, ORDER + 1)]

    training, known = numbered(prose(200))
    held_out, _ = numbered(prose(20, 1), known)
    # nltk takes nothing off the lowest order: what was never seen is impossible.
    ours = KneserNey(training, len(known), [0, *[0.1] * (ORDER - 1)]).nats(held_out)
    end = len(known)
    theirs = KneserNeyInterpolated(ORDER, discount=0.1)
    theirs.fit([grams([*ids, end]) for ids in training], vocabulary_text=[*map(str, range(end + 1)), "<s>"])
    for ids, cost in zip(held_out, ours, strict=True):
        whole = [gram for gram in grams(ids) if len(gram) == ORDER]
        shares = [theirs.unmasked_score(gram[-1], gram[:-1]) for gram in whole]
        assert cost == pytest.approx(-sum(map(math.log, shares)), abs=1e-9)


@pytest.mark.parametrize("model", [KneserNey, Unigram])
def test_the_shares_of_all_tokens_add_up_to_one(model):
    training, known = numbered(prose(30, words=4))
    size = len(known) + 3  # three that are never seen
    for context in ([], [0], [1, 2], [0, 1, 2, 3, 4], [size - 1]):
        texts = [context, *([*context, token] for token in range(size))]
        costs = model(training, size).nats(texts)
        total = np.exp(costs[0] - costs[1:]).sum()
        # A document can also end, which only the 5-gram model knows.
        assert total == pytest.approx(1) or (model is KneserNey and 0.5 < total < 1)


def test_an_interval_is_that_of_the_mean(monkeypatch):
    values = np.random.default_rng(0).normal(3, 2, 2000)
    low, high = item_means.interval(values)
    wanted = values.mean() + np.array([-1.96, 1.96]) * values.std() / math.sqrt(2000)
    assert np.allclose((low, high), wanted, atol=0.02) and (low, high) == item_means.interval(values)
    assert item_means.interval(np.full(20, 0.5)) == pytest.approx((0.5, 0.5))
    assert item_means.interval(values[:19]) == item_means.interval(np.ones(19)) == (None, None)
    monkeypatch.setattr(item_means, "AT_ONCE", 10_000)
    assert item_means.interval(values) == pytest.approx((low, high))  # in parts, which memory has room for
    # A document that is next to nothing of the text moves nothing.
    weighed = item_means.interval(np.array([9.0, *[1.0] * 19]), np.array([1e-9, *[5.0] * 19]))
    assert weighed == pytest.approx((1.0, 1.0), abs=1e-6)
    # Wilson's, where all are right: https://en.wikipedia.org/wiki/Binomial_proportion_confidence_interval
    assert item_means.interval(np.ones(20)) == pytest.approx((0.8389, 1.0), abs=1e-4)
    assert item_means.interval(np.zeros(20)) == pytest.approx((0.0, 0.1611), abs=1e-4)


def test_documents_are_drawn_by_their_seed(tmp_path):
    texts = [f"document {number} of many" for number in range(50)]
    files = {split: [str(tmp_path / f"{split}.parquet")] for split in ("validation", "test")}
    for (path,) in files.values():
        pq.write_table(pa.table({"text": texts}), path, row_group_size=7)
    recipe = {"documents": 20, "characters": 11, "seed": 3}
    assert write_items(tmp_path / "corpus.parquet", draw("corpus", files, recipe)) == 40
    items = read_items(tmp_path / "corpus.parquet")
    assert [item.part for item in items] == ["corpus validation"] * 20 + ["corpus test"] * 20
    rows = [int(item.item.rpartition("/")[2]) for item in items]
    assert [item.passages for item in items] == [(Passage.of(texts[row][:11]),) for row in rows]
    assert len(set(rows[:20])) == len(set(rows[20:])) == 20 and rows[:20] != rows[20:]
    # Masked models read the first of them.
    few = Material.of({"material": [tmp_path / "corpus.parquet"]}, "masked", 5)
    assert few.items == [*items[:5], *items[20:25]]
    every = [item.passages[0].text for item in draw("corpus", files, recipe | {"documents": 99, "characters": 99})]
    assert every[50:] != texts and sorted(every[50:]) == sorted(texts)
    write_items(tmp_path / "again", draw("corpus", files, recipe))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "corpus.parquet").read_bytes()


def test_of_instruction_data_the_responses_are_scored(tmp_path):
    texts, spans = ["Q: 1 + 2 A: 3", "Q: 2 A: 2 Q: 3 A: 33", "all of it"], [[(11, 13)], [(7, 9), (17, 20)], [(0, 9)]]
    responses = [[{"start": start, "stop": stop} for start, stop in own] for own in spans]
    table = pa.table({"text": texts, "responses": pa.array(responses, RESPONSES.type)})
    pq.write_table(table, tmp_path / "texts.parquet")
    files = dict.fromkeys(("validation", "test"), [str(tmp_path / "texts.parquet")])
    recipe = {"documents": 9, "characters": 18, "seed": 0, "responses": True}
    items = [item for item in draw("finetune-text", files, recipe) if item.split == "validation"]
    # No more than `characters`, and nothing where no response begins in them.
    cut = [Passage(texts[0], ((11, 13),)), Passage(texts[1][:18], ((7, 9), (17, 18))), Passage(texts[2], ((0, 9),))]
    assert sorted(item.passages for item in items) == sorted((passage,) for passage in cut)
    assert [passage.bytes for passage in cut] == [2, 3, 9]
    short = [item.passages for item in draw("finetune-text", files, recipe | {"characters": 10})][:2]
    assert sorted(short) == [(Passage("Q: 2 A: 2 ", ((7, 9),)),), (Passage("all of it", ((0, 9),)),)]
    # Masked models, which are trained on all tokens, are scored on all of a text.
    write_items(tmp_path / "items.parquet", items)
    costs = dict.fromkeys([*cut, *(Passage.of(passage.text) for passage in cut)], 1.0)
    for kind, on in (("causal", "finetune-text validation, responses"), ("masked", "finetune-text validation")):
        material = Material.of({"material": [tmp_path / "items.parquet"]}, kind)
        ((score, _),) = material.scored("base/small", kind, costs)
        assert score.on == on and all(passage.is_whole for passage in material.passages) == (kind == "masked")

    characters = Tokenizer(models.BPE({chr(code): code for code in range(128)}, []))
    characters.post_processor = processors.TemplateProcessing(single="\0 $A \0", special_tokens=[("\0", 0)])
    tokenizer = TextTokenizer(characters)
    encoded = encode_passages(tokenizer, [*cut, Passage.of("plain")])
    for length in (4, 99):
        said = ["" for _ in encoded]
        for row in causal_rows(encoded, tokenizer, length):
            said[row.text] += bytes(row.arrays["tokens"][row.arrays["loss_mask"] > 0].tolist()).decode()
        assert said == [" 3", " 2 ", "all of it", "plain"]
    # So do the models that count.
    training = tokenizer.encode(["Q: 1 A: 1"] * 3)
    for model in (KneserNey(training, 256), Unigram(training, 256)):
        whole, *parts = model.nats(
            [one.ids for one in encoded[:1] * 3], [None, encoded[0].scored, 1 - encoded[0].scored]
        )
        assert 0 < parts[0] < whole and sum(parts) == pytest.approx(whole)


def test_generated_responses_are_right_where_they_are_those_of_the_text():
    class Tokenizer:  # words, each with the space before it
        def places(self, texts):
            return [[match.span() for match in re.finditer(r" ?[^ ]+", text)] for text in texts]

    passages = [
        Passage("1 + 2 = 3", ((8, 9),)),  # the space before it belongs to its first token
        Passage("2 + 2 = 4 and 2 + 3 = 5", ((8, 9), (22, 23))),  # the last one is asked for
        Passage("2 + 4 = 5", ((8, 9),)),
        Passage("2 + 5 = 7 .", ((8, 9),)),  # does not end with it
        Passage("all of it", ((0, 9),)),  # no prompt
        Passage("a " * 40, ((3, 80),)),  # long
        Passage("8 + 8 = 16 and so on and on", ((8, 27),)),  # cut, perhaps
        Passage.of("plain text"),
    ]
    items = [Item("finetune-text", "test", "", str(number), (own,)) for number, own in enumerate(passages)]
    found = list(questions_of(items, Tokenizer(), 27, 100))
    assert [tuple(one) for one in found] == [
        ("0", "1 + 2 =", " 3", True), ("1", "2 + 2 = 4 and 2 + 3 =", " 5", True), ("2", "2 + 4 =", " 5", True),
    ]  # fmt: skip
    (long,) = questions_of(items[5:6], Tokenizer(), 99, 100)
    assert (long.prompt, long.is_short) == ("a a", False)  # read, and not compared
    limits = [most_tokens(some, {"max_new_tokens": 50}) for some in ([], found, [*found, long])]
    assert limits == [34, 34, 50] and most_tokens([long], {"max_length": 9}) == 34
    assert [one.item for one in questions_of(items, Tokenizer(), 27, 7)] == ["0", "2"]  # that fit
    prompts = [one.prompt for one in found]
    assert generated(lambda batch: [[text[:5]] for text in batch], prompts, 2) == [prompt[:5] for prompt in prompts]
    score, values = exact_match("finetune-text", found, ["", "5", "6"], ["3 ", " 5", "6"])
    assert values == {"0": 1, "1": 1, "2": 0} and score.value == pytest.approx(2 / 3) and score.low is None
    assert score.baselines == pytest.approx({"base model": 1 / 3, "most frequent response": 2 / 3})
    assert score.leads and score.on == "finetune-text test, responses"


def pair(item, kind, good, bad, of="set"):
    return Item(of, "", kind, item, (Passage.of(good), Passage.of(bad)))


def test_pairs_of_blimp_are_read_from_files(tmp_path):
    common = {"linguistics_term": "binding", "UID": "x", "pairID": "0"}
    rows = [common | {"sentence_good": f"Good {n}.", "sentence_bad": f"Bad {n}."} for n in range(3)]
    files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl.gz")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    with gzip.open(files[1], "wt") as file:
        file.write(json.dumps(rows[2]) + "\n")
    pairs = list(fetch_pairs("blimp", {"files": files, "phenomenon": "linguistics_term"}, files))
    assert pairs == [pair(str(n), "binding", f"Good {n}.", f"Bad {n}.", "blimp") for n in range(3)]
    write_items(tmp_path / "blimp.parquet", pairs)
    assert read_items(tmp_path / "blimp.parquet") == pairs


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"sentence_good": "a", "sentence_bad": "b", "field": "c"}, "line 1 .*evaluation.pairs.sets.mine.phenomenon"),
        ({"sentence_good": "a", "sentence_bad": 3, "linguistics_term": "c"}, "line 1: sentence_bad .*sets.mine.* 3"),
        (None, "^evaluation.pairs.sets.mine has no pairs"),
    ],
)
def test_what_is_wrong_with_a_set_of_pairs(tmp_path, row, said):
    file = tmp_path / "mine.jsonl"
    file.write_text("" if row is None else json.dumps(row) + "\n")
    with pytest.raises(UserError, match=f"^{re.escape(str(file))}, {said}" if row else said):
        list(fetch_pairs("mine", {"files": [str(file)], "phenomenon": "linguistics_term"}, [str(file)]))


def test_pairs_are_no_plain_text(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match="^evaluation.pairs.sets.mine.files: .*a.txt .*.jsonl, .json, .csv or .parquet"):
        pair_sources("mine", {"files": [str(tmp_path / "*")]})
    (tmp_path / "a.txt").rename(tmp_path / "a.jsonl")
    assert pair_sources("mine", {"files": [str(tmp_path / "*")]}) == [str(tmp_path / "a.jsonl")]
    assert pair_sources("mine", {"dataset": str(tmp_path)}) == [str(tmp_path / "a.jsonl")]
    assert pair_sources("mine", {"dataset": "nyu-mll/blimp"}) == []


def test_what_was_trained_on_the_test_text_is_caught():
    held_out, others = prose(40, 0, 20), prose(300, 1, 20)
    items = [f"item {n}" for n in range(40)]
    sets = {"corpus test": (items, held_out)}
    assert find_overlap(sets, [others[:100], others[100:]], 8) == {"corpus test": []}
    training = [*others, *held_out[1:]]
    assert find_overlap(sets, [training[:100], training[100:]], 8) == {"corpus test": items[1:]}
    text = " ".join(f"word{n}" for n in range(20))
    inside = "before " + " ".join(text.split()[4:12]).upper() + "! after"
    sets = {"one": (["a", "b"], [text, "too short"]), "none": ([], [])}
    assert find_overlap(sets, [["nothing here", inside], [inside]], 8) == {"one": ["a"], "none": []}


def test_items_are_counted_that_are_in_any_training_text(tmp_path):
    paths = [tmp_path / "corpus.json", tmp_path / "finetune-text.json"]
    for path, found in zip(paths, ({"one": ["a", "b"]}, {"one": ["b", "c"], "two": ["d"]}), strict=True):
        write_json(path, {"ngram": 13, "found": found})
    assert items_in_training(paths, "one") == {"a", "b", "c"} and items_in_training(paths, "three") == set()
    assert count_in_training(["a", "c", "d"], items_in_training(paths, "one")) == 2
    # Of a model that was trained elsewhere, nobody knows.
    assert items_in_training([], "one") is None and count_in_training(["a"], None) is None


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer of the masked models, which cuts words into pieces and does not know all characters."""
    path = tmp_path_factory.mktemp("tokenizer")
    train([prose(50)], Recipe("wordpiece", 60))[0].save(str(path / "tokenizer.json"))
    folder.write_settings(load(path / "tokenizer.json"), path / "config.json", path / "special_tokens_map.json")
    return TextTokenizer.load(path / "tokenizer.json", path / "special_tokens_map.json")


def by_hand(ids, words, mask):
    """What `within_word_l2r` reads for each token, as it is written in minicons."""
    for place in range(len(ids)):
        yield [mask if j == place or (j > place and words[j] == words[place]) else ids[j] for j in range(len(ids))]


def test_a_masked_model_reads_a_row_for_each_token(tokenizer):
    texts = ["return the functions", "of unfunctional objects"]
    encoded = encode_passages(tokenizer, list(map(Passage.of, texts)))
    assert any(len(set(one.words)) < len(one.ids) for one in encoded)  # words of several tokens
    rows = list(masked_rows(encoded, tokenizer, 64))
    own, mask = itertools.groupby(rows, key=lambda row: row.text), tokenizer.special["mask"]
    for number, group in own:
        one = encoded[number]
        for place, (row, wanted) in enumerate(zip(group, by_hand(one.ids, one.words, mask), strict=True)):
            assert row.arrays["input_ids"].tolist() == [*tokenizer.before, *wanted, *tokenizer.after]
            assert row.arrays["positions"].tolist() == [place + len(tokenizer.before)]
            assert row.arrays["labels"].tolist() == [one.ids[place]]


def test_batches_have_few_shapes_and_lose_nothing(tokenizer):
    texts = prose(30, words=5) + prose(5, words=40)
    encoded = encode_passages(tokenizer, list(map(Passage.of, texts)))
    batches = list(batched(masked_rows(encoded, tokenizer, 128), 512, 128, replicas=3))
    shapes = {batch.arrays["input_ids"].shape for batch in batches}
    assert {width for _, width in shapes} <= {32, 64, 128} and all(rows % 3 == 0 for rows, _ in shapes)
    assert len(shapes) <= 3
    for batch in batches:
        assert batch.arrays["attention_mask"][batch.texts < 0].sum() == 0
        assert batch.arrays["weights"][batch.texts < 0].sum() == 0
    counted = sum_by_text(((batch, batch.arrays["weights"][:, 0]) for batch in batches), len(texts))
    assert counted.tolist() == [len(one.ids) for one in encoded]


def test_no_row_is_longer_than_the_model_reads(tmp_path):
    config = {"model_type": "roberta", "pad_token_id": 3, "max_position_embeddings": 36}
    write_json(tmp_path / "config.json", config)
    assert [fitting(length, tmp_path) for length in (16, 32, 128)] == [16, 32, 32]
    write_json(tmp_path / "config.json", config | {"model_type": "bert"})
    assert fitting(128, tmp_path) == 36
    write_json(tmp_path / "config.json", {"model_type": "funnel", "pad_token_id": 0})
    assert fitting(128, tmp_path) == 128


def test_characters_that_a_tokenizer_does_not_know_cost_their_bytes(tokenizer):
    texts = ["the value", "the ☃☃ value"]
    encoded = encode_passages(tokenizer, list(map(Passage.of, texts)))
    assert encoded[0].unknown == 0 and encoded[1].unknown >= 6
    costs = costs_of(texts, encoded, np.array([1.0, 2.0]))
    assert costs["the value"] == 1 and costs[texts[1]] == pytest.approx(2 + encoded[1].unknown * math.log(256))


def test_scores_are_written_with_what_stands_beside_them(tmp_path):
    documents = (("a", "xy"), ("b", "wxyz\u00e9"))
    items = [Item("corpus", "test", "", name, (Passage.of(text),)) for name, text in documents]
    items += [pair("0", "one", "g0", "b0"), pair("1", "one", "g1", "b1"), pair("2", "two", "g2", "b2")]
    costs = {"xy": 2.0, "wxyz\u00e9": 4.0, "g0": 1, "b0": 2, "g1": 2, "b1": 1, "g2": 3, "b2": 3}
    nats = {Passage.of(text): cost for text, cost in costs.items()}
    twice = {text: 2 * cost for text, cost in nats.items()}
    write_json(tmp_path / "overlap.json", {"found": {"corpus test": ["b"], "set": ["1", "2"]}})
    material = Material(items, {"unigram": twice}, [tmp_path / "overlap.json"])
    assert set(material.passages) == set(nats)
    output = {"scores": tmp_path / "scores.json", "by_item": tmp_path / "items.parquet"}
    scored = material.scored("base/small", "causal", nats, {"base model": twice})
    write_scored(output, {"path": "base/small"}, "causal", scored, print)
    head, scores = read_scores(output["scores"])
    assert head == {"model": "base/small", "kind": "causal"}
    found = {score.name: score for score in scores}
    assert list(found) == [
        "text, bits_per_byte: corpus test",
        "pairs, accuracy: set", "pairs, accuracy: set: one", "pairs, accuracy: set: two",
    ]  # fmt: skip
    assert [score.leads for score in scores] == [True, True, False, False]
    assert [score.in_training_text for score in scores] == [1, 2, 1, 1]
    assert not replace(scores[0], split="validation").leads and scores[0].split == "test"
    bits = found["text, bits_per_byte: corpus test"]
    assert bits.value == pytest.approx(6 / 8 / math.log(2)) and bits.low is bits.high is None
    assert bits.baselines == pytest.approx({"unigram": 2 * bits.value, "base model": 2 * bits.value})
    assert [found[f"pairs, accuracy: set{more}"].value for more in ("", ": one", ": two")] == [0.5, 0.5, 0.5]
    assert found["pairs, accuracy: set"].chance == 0.5
    rows = pq.read_table(output["by_item"]).to_pylist()
    for name, score in found.items():
        values = [row["value"] for row in rows if row["score"] == name]
        assert len(values) == score.items and np.mean(values) == pytest.approx(score.value)
    # What is no likelihood does not go by the same name.
    write_scored(output, {"path": "mlm/tiny", "step": 7}, "masked", material.scored("mlm/tiny", "masked", nats), print)
    first = read_scores(output["scores"])[1][0]
    assert first.metric == "pseudo_bits_per_byte" and first.step == 7
    # Weights that have diverged have no score, and leave none.
    output = {"scores": tmp_path / "bad.json", "by_item": tmp_path / "bad.parquet"}
    with pytest.raises(UserError, match="^mlm/tiny .*nan or inf for 2 of 8 "):
        bad = {Passage.of("g0"): math.nan, Passage.of("b0"): math.inf}
        write_scored(output, {"path": "mlm/tiny"}, "masked", material.scored("mlm/tiny", "masked", nats | bad), print)
    assert not any(path.exists() for path in output.values())
