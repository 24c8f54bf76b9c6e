"""Verdicts on models: what they are better and worse than, and what to do next."""

import json
import re
from dataclasses import asdict

import pytest
from tpulm.report.sources import Sources
from tpulm.report.standing import LITTLE
from tpulm.report.verdicts import verdicts
from tpulm.specs.scores import Score, token_scores

pytestmark = pytest.mark.unit


def score(metric, on, value, width, baselines, group="text", higher=False, items=100):
    """Return a score with an interval of this width to both sides."""
    limits = {"low": value - width, "high": value + width, "higher_is_better": higher, "items": items}
    of = {"set": on.split()[0], "on": on, "split": "test"}
    return Score(group=group, metric=metric, value=value, **of, **limits, baselines=baselines)


def loss(value, baselines, text="corpus", split="test"):
    figures = {"loss": value, "accuracy": 0.5, "predictions": 1000}
    return token_scores(text, split, "all", figures, {name: {"loss": own} for name, own in baselines.items()})[0]


@pytest.fixture
def judged(tmp_path):
    """Return a function that gives the sentence on a run, and whether it is a warning."""

    def judge(stage, tokens, scores=(), losses=(5.0, 4.0), train=4.0, characters=1_000_000, made_of=(), kept=()):
        files = {"corpus/corpus.json": {"splits": {"train": {"characters": characters}}}}
        files |= {f"history/{stage}/one.json": kept} if kept else {}
        for number, loss in enumerate(losses, start=1):
            state = {"step": 100 * number, "stopped_at": None, "evaluation": {"loss": loss}}
            files[f"{stage}/one/checkpoints/{100 * number:08d}/state.json"] = state
        sources = Sources({name: tmp_path / name for name in files})
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(json.dumps(content))
        history = {"step": [float(step) for step in range(1, 100 * len(losses) + 1)]}
        history["loss"] = [9.0] * 100 * (len(losses) - 1) + [train] * 100
        history["held_out_loss"] = [1.0] * 100 * len(losses)  # between checkpoints
        sources.read[f"{stage}/one/history.csv"] = history
        named = {"stage": stage, "label": f"{stage}/one", "key": f"{stage}.one", "folder": f"{stage}/one"}
        run = named | {"base": "base/a", "learning_rate": 0.003, "figures": {"epochs": 12.0}}
        run["losses"] = tokens
        scores = [{"model": f"{stage}/one", "score": one} for one in scores]
        *before, verdict = verdicts([*made_of, run], scores, sources)
        assert len(before) == len(made_of)
        judge.before = [one.sentence for one in before]
        return verdict.sentence, verdict.warning

    return judge


def masked(value):
    return [loss(value, {"token frequencies": 6.25})]


def tuned(before, after, corpus=4.0):
    base = {"base model": before}
    return [loss(after, base, "finetune-text"), loss(corpus, {"base model": 4.0}, "corpus", "validation")]


@pytest.mark.parametrize("items", [1000, 999])
def test_a_verdict_has_the_score_and_the_keys_of_the_run_before(judged, items):
    recipes = {"alpha": None, "schedule": {"warmup_steps": 2}, "steps": 9}, {"alpha": 4.0, "schedule": {}, "steps": 9}
    before = asdict(loss(6.01, {})) | {"items": items}
    kept = [{"recipe": recipe, "metrics": {"scores": [before]}, "scores": []} for recipe in recipes]
    said, _ = judged("mlm", masked(5.81), kept=kept)
    assert (" Before, with alpha: none and another schedule, it had 6.01. " in said) == (items == 1000)
    assert "Before" not in judged("mlm", masked(5.81), kept=kept[1:])[0]


def test_a_masked_model_stands_beside_token_frequencies(judged):
    said, warning = judged("mlm", masked(5.81))
    assert said.startswith("Better than token frequencies: a loss of 5.81") and "6.25" in said and not warning
    said, warning = judged("mlm", masked(6.3), losses=(6.3, 6.29))
    assert said.startswith("No better than token frequencies") and warning and "learning_rate" in said


def test_the_course_of_training_says_what_to_do_next(judged):
    said = judged("mlm", masked(4.0))[0]
    assert "still falling, by 20.0%" in said and said.endswith("mlm.one.steps: 400 instead of 200.")
    said = judged("mlm", masked(4.0), losses=(5.0, 4.0, 4.3))[0]
    assert "risen from 4.00 at step 200 to 4.30, after 12 passes" in said and "reduce mlm.one.steps" in said
    assert "levelled off" in judged("mlm", masked(4.0), losses=(4.01, 4.0))[0]
    assert "loss 2.00 in training, 4.00 in validation" in judged("mlm", masked(4.0), losses=(4.01, 4.0), train=2.0)[0]
    assert "checkpoint_every" in judged("mlm", masked(4.0), losses=(4.0,))[0]


def test_a_causal_model_stands_beside_models_that_count(judged):
    def of(value, characters=1_000_000, ngram=1.5):
        scores = [score("bits_per_byte", "corpus test", value, 0.05, {"unigram": 2.5, "5-gram": ngram})]
        return judged("base", masked(4.0), scores, characters=characters)

    assert of(2.48)[0].startswith("No better than token frequencies") and of(2.48)[1]
    said, warning = of(2.0)
    assert said.startswith("Better than token frequencies, worse than a 5-gram") and "expected" in said and not warning
    # From 5 to 4 in twice the steps: by a power of -0.32, so 4 / 3 takes 2.4 times the steps, and 4.8 more than 100.
    assert "base.one.steps: 600 instead of 200" in said
    assert "base.one.steps: 400 instead of 200." in of(2.4, ngram=0.5)[0]
    said, warning = of(2.0, characters=LITTLE + 1)
    assert "should be better" in said and warning
    assert of(1.52)[0].startswith("As good as a 5-gram") and of(1.2)[0].startswith("Better than a 5-gram")


def test_a_score_of_few_documents_is_compared_with_nothing(judged):
    """Such as of two test documents: an interval of them means nothing, whatever it says."""
    for stage, on in (("base", "corpus test"), ("finetune", "finetune-text test")):
        beside = {"unigram": 1.4, "5-gram": 1.4, "base model": 1.4}
        few = score("bits_per_byte", on, 1.557, 0.03, beside, items=2)
        said, warning = judged(stage, [*tuned(3.0, 4.0), *masked(4.0)], [few])
        assert "1.56 bits per byte" in said and "2 documents" in said and "a smaller sample_by" in said
        assert not warning and "orse than" not in said and "No better" not in said
    for value in (0.1, 0.9):
        assert score("accuracy", "pairs", value, 0.1, {"chance": 0.5}, items=19).verdict_against(0.5) == "too few items"


def test_a_finetuned_model_stands_beside_its_base_model(judged):
    said, warning = judged("finetune", tuned(7.1, 2.8))
    assert said.startswith("Better than its base model on the finetuning text: 2.80 nats") and not warning
    said, warning = judged("finetune", tuned(7.1, 7.2, 5.0), losses=(7.2, 7.2))
    assert said.startswith("No better than its base model") and warning and "loss there rose by 25%" in said
    # More rate, more steps, or less rate, by what was learned and what was forgotten.
    for losses, after, wanted in (
        ((7.2, 7.2), tuned(7.1, 7.2, 9.0), "finetune.one.learning_rate: 0.0003, a tenth of today's"),
        ((8.0, 7.2), tuned(7.1, 7.2, 9.0), "finetune.one.steps: 2000 instead of 200."),
        ((7.2,), tuned(7.1, 7.2), "finetune.one.steps: 1000 instead of 100, with finetune.one.checkpoint_every: 100."),
        ((2.81, 2.8), tuned(7.1, 2.8, 9.0), "finetune.one.learning_rate: 0.001, a third of today's"),
    ):
        assert wanted in judged("finetune", after, losses=losses)[0]
    for losses, corpus, forgotten in (((5.0, 4.0), 9.0, False), ((2.8,), 9.0, True), ((2.81, 2.8), 4.2, False)):
        said = judged("finetune", tuned(7.1, 2.8, corpus), losses=losses)[0]
        assert ("keep more" in said) == forgotten  # where it still learns, it has to learn first
    ngram = score("bits_per_byte", "finetune-text test", 2.4, 0.1, {"base model": 3.5, "5-gram": 1.26})
    said = judged("finetune", tuned(7.1, 2.8), [ngram])[0]
    assert "but worse than a 5-gram model of it: 2.40 bits per byte, " in said


def test_responses_are_counted_where_they_have_one_answer(judged):
    text = score("bits_per_byte", "finetune-text test, responses", 1.6, 0.1, {"base model": 6.5})

    def answered(share):
        beside = {"base model": 0.0, "most frequent response": 0.05}
        exact = score("exact_match", "finetune-text test, responses", share, 0.04, beside, "responses", higher=True)
        harness = score("exact_match", "gsm8k", 0.5, 0.1, {}, "harness", higher=True)
        return judged("finetune", tuned(7.1, 2.8), [text, harness, exact], losses=(3.0, 2.0))

    said, warning = answered(0.92)
    assert "1.60 bits per byte, where that has 6.50" in said and "92% of its responses to 100" in said and not warning
    assert "still falling" in said and answered(0.996)[0].endswith("nothing is left to do.")
    said, warning = answered(0.06)
    assert said.startswith("6% of its responses") and "most frequent response" in said and warning


def test_a_model_comes_after_what_it_is_made_of(judged):
    losses, figures = [loss(2.8, {"base model": 7.1}, "finetune-text")], {"figures": {"epochs": 12.0}}
    base = {"stage": "base", "label": "base/a", "key": "base.a", "folder": "base/a", "losses": masked(4.0)} | figures
    assert "First" not in judged("finetune", losses, made_of=[base])[0]
    beside = {"base model": 0.0, "most frequent response": 0.05}
    for share, left in ((1.0, True), (0.5, False)):
        right = score("exact_match", "finetune-text test, responses", share, 0.0, beside, "responses", higher=True)
        judged("finetune", losses, [right], made_of=[base])
        assert ("Leave it as it is: finetune/one is made from it" in judged.before[0]) == left
    base |= {"stage": "mlm", "losses": masked(6.3)}  # what has a warning
    assert "First improve base/a, which it is made from. The val" in judged("finetune", losses, made_of=[base])[0]


def test_a_training_that_diverged_is_told_from_one_that_knows_its_text(judged):
    said = judged("mlm", masked(4.0), losses=(5.0, 4.0, 6.0), train=9.95)[0]  # the spans before have 9.0
    assert "losses have risen again, in training from 9.00 to 9.95" in said and "learning_rate" in said
    assert "still falling" in judged("mlm", masked(4.0), losses=(5.0, 4.0, 3.0), train=9.95)[0]  # noise
    assert "validation loss has risen" in judged("mlm", masked(4.0), losses=(5.0, 4.0, 6.0), train=9.8)[0]


USUAL = {
    "tokens": 16_854, "words": 10_303, "characters": 63_681, "tokens_per_word": 1.64, "vocabulary_used": 0.85,
    "unknown_rate": 0.0, "whitespace_rate": 0.01, "training_documents": 100, "corpus_documents": 100,
    "whitespace": "keep", "characters_known": 105,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said", "warning"),
    [
        ({}, None, False),
        ({"unknown_rate": 0.02}, "2.0% of the tokens are unknown.* Add text", True),
        ({"unknown_rate": 0.02, "training_documents": None}, r"characters\. Another tokenizer .*\.$", True),
        ({"unknown_rate": 0.02, "unknown_written": 0.02}, None, False),  # WikiText has this word
        ({"whitespace_rate": 0.46, "tokens_per_word": 3.0}, r"46% of the tokens are only white space.*: runs", False),
        ({"tokens_per_word": 3.0}, r"3\.0 tokens per word.*vocab_size", False),
        ({"tokens_per_word": 30.0, "words": 900}, None, False),  # a language without spaces
        ({"vocabulary_used": 0.3, "tokens": 30_000}, "Only 30% of its pieces", False),
        ({"vocabulary_used": 0.3}, None, False),  # too little text to tell
    ],
)
def test_an_unusual_tokenizer_is_told(changes, said, warning):
    figures = {key: value for key, value in (USUAL | changes).items() if value is not None}
    sources = Sources({})
    sources.read["tokenizer/metrics.json"] = figures
    sources.read["tokenizer/pieces.json"] = {"lengths": [{"characters": 3, "used": 1743, "unused": 300}]}
    found = verdicts([], [], sources)
    assert [verdict.label for verdict in found] == ([] if said is None else ["tokenizer"])
    assert all(re.search(said, verdict.sentence) and verdict.warning == warning for verdict in found)


def test_records_that_are_mostly_padding_are_told(tmp_path):
    def of(packing, tokens, dropped=0, **made):
        split = {"records": 100, "tokens": tokens, "dropped_tokens": dropped} | made
        manifest = {"packing": packing, "sequence_length": 64, "tokens_per_record": 65, "splits": {"train": split}}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        name = "tokens/small/finetune-text/pad-64/manifest.json"
        return [(one.label, one.sentence) for one in verdicts([], [], Sources({name: tmp_path / "manifest.json"}))]

    ((label, sentence),) = of("pad", 1625, documents=100)
    assert label == "tokens/small/finetune-text/pad-64" and "75% of the tokens of these records are padding" in sentence
    assert "sequence_length" in sentence and "packing: concat" in sentence
    assert not of("pad", 3300, documents=100) and not of("concat", 1600, documents=100)
    ((_, sentence),) = of("pad", 3300, dropped=1700, documents=100)
    assert "sequence_length" not in sentence  # a smaller one would drop more
    assert not of("pad", 1600)  # external
