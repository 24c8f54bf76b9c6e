"""Compose model and dataset cards (README.md): hub metadata in YAML, usage, data, training, scores.

Parameters that several functions share:
recipe  from tpulm.config.publications.card_recipe
facts   contents of the files that tpulm.config.publications.card_inputs names, such as metrics, corpus and manifest
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tpulm.core.devices import devices_in_words
from tpulm.core.files import read_json
from tpulm.report.sources import source_of
from tpulm.report.standing import standing
from tpulm.specs.scores import WHOLE, Score, find_scores, scores_in
from tpulm.training.checkpoint import trained_for

# Code that loads an artifact, by its kind. `{source}` and the other fields are keys of the recipe.
USES = {
    "tokenizer": """\
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{source}")
print(tokenizer.tokenize("A sentence."))""",
    "records": """\
import tensorflow as tf

records = tf.data.TFRecordDataset(tf.io.gfile.glob("train/*.tfrecord"))
features = {{"input_ids": tf.io.RaggedFeature(tf.int64)}}
examples = records.map(lambda record: tf.io.parse_single_example(record, features))""",
    "mlm": """\
from transformers import pipeline

fill = pipeline("fill-mask", model="{source}")
print(fill(f"A sentence with one {{fill.tokenizer.mask_token}}."))""",
    "checkpoint": """\
from transformers import AutoModelForMaskedLM, AutoTokenizer

model = AutoModelForMaskedLM.from_pretrained("{source}", revision="{revision}", subfolder="{subfolder}")
tokenizer = AutoTokenizer.from_pretrained("{source}", revision="{revision}", subfolder="{subfolder}")""",
    "preset": """\
import keras_hub

model = keras_hub.models.CausalLM.from_preset("{source}")
print(model.generate("The beginning of a text", max_length=64))""",
    "adapter": """\
import json

import keras_hub

model = keras_hub.models.CausalLM.from_preset("{base[preset]}")
model.backbone.enable_lora(**json.load(open("{folder}adapter.lora.json")))
model.backbone.load_lora_weights("{folder}adapter.lora.h5")""",
    "peft": """\
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("{base[transformers]}")
model = PeftModel.from_pretrained(base, "{source}")""",
    "peft with base": """\
from peft import PeftModel

model = PeftModel.from_pretrained(base, "{source}")""",
    "transformers": """\
from transformers import pipeline

generate = pipeline("text-generation", model="{source}")
print(generate("The beginning of a text", max_new_tokens=64))""",
}
LIBRARIES = {"adapter": "peft", "preset": "keras-hub"}  # the hub's names; transformers loads the other kinds
TAGS = {"tokenizer": ["tokenizer"], "records": ["tfrecord"], "adapter": ["lora", "keras"]}
FRAMEWORKS = {"tensorflow": "transformers and TensorFlow", "jax": "Keras and JAX"}
ELSEWHERE = {"source": "TFRecord files"}  # replaces the corpus of external records


def read_facts(files: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of each fact: of its JSON or CSV file, or a list for a list of files."""

    def read(path: str) -> Any:
        if Path(path).suffix == ".json":
            return read_json(path)
        with open(path, encoding="utf-8") as file:
            return list(csv.DictReader(file))

    return {name: read(paths) if isinstance(paths, str) else [*map(read, paths)] for name, paths in files.items()}


def card(recipe: Mapping, facts: Mapping) -> str:
    """Return the card of an artifact as Markdown with YAML metadata."""
    facts = {"corpus": ELSEWHERE, **facts}
    describe = {"tokenizer": tokenizer, "records": records, "checkpoint": checkpoint}.get(recipe["kind"], model)
    title, description, figures = describe(recipe, facts)
    parts = {
        title: description,
        "How to use": use(recipe),
        "Data": data(facts["corpus"]),
        "Training": procedure(recipe) if "training" in recipe else "",
        "Figures": figures,
        "Checkpoints": checkpoints(facts) if "states" in facts else "",
        "Hardware": hardware(facts.get("timings", [])),
        "Framework versions": versions(facts.get("timings", [])),
    }
    sections = [f"## {title}\n\n{text.strip()}\n" for title, text in parts.items() if text]
    return f"---\n{metadata(recipe, facts)}\n---\n\n# {recipe['name']}\n\n" + "\n".join(sections)


def metadata(recipe: Mapping, facts: Mapping) -> str:
    """Return the metadata of a card as YAML; classes of huggingface_hub name the fields that the hub knows."""
    from huggingface_hub import DatasetCardData, EvalResult, ModelCardData

    name, kind, datasets = recipe["name"], recipe["kind"], hub_datasets(facts["corpus"])
    architecture = [recipe["model"]["architecture"]] if "model" in recipe else None
    fields = {"license": recipe["license"], "tags": TAGS.get(kind, architecture)}
    if kind == "records":
        return DatasetCardData(pretty_name=name, source_datasets=datasets or ["original"], **fields).to_yaml()
    if kind != "tokenizer":
        fields["pipeline_tag"] = "fill-mask" if kind in ("mlm", "checkpoint") else "text-generation"
    if "states" in facts:
        text = (datasets or [facts["corpus"].get("source", "several sources")])[0]
        fields["eval_results"] = [
            EvalResult(
                fields["pipeline_tag"], text, f"{name} text", score.metric, round(score.value, 4),
                dataset_split=score.split,
            )
            for score in trained_on(scores_in(facts["metrics"]))
        ]  # fmt: skip
    fields |= {"base_model": recipe["base"]["hub"]} if "base" in recipe else {}
    library = LIBRARIES.get(kind, "transformers")
    return ModelCardData(model_name=name, library_name=library, datasets=datasets or None, **fields).to_yaml()


def trained_on(scores: Sequence[Score]) -> list[Score]:
    """Return the scores on the text that the model was trained on, which comes first."""
    return list(find_scores(scores, set=scores[0].set))


def use(recipe: Mapping) -> str:
    """Return code that loads an artifact; empty for a checkpoint that is not on the hub."""
    if recipe["kind"] == "adapter":
        return adapter_use(recipe)
    if recipe["kind"] == "checkpoint" and "revision" not in recipe:
        return ""
    return code(USES[recipe["kind"]].format(**recipe))


def adapter_use(recipe: Mapping) -> str:
    """Return code that loads an adapter with Keras, and with PEFT if its base is on the hub."""
    folder = recipe["source"].removesuffix("adapter") if "/results/" in f"/{recipe['source']}" else ""
    text = code(USES["adapter"].format(**recipe, folder=folder))
    if recipe["base"]["transformers"]:
        return f"{text}\n\nWith PEFT:\n\n{code(USES['peft'].format(**recipe))}"
    if not recipe["base"]["hub"]:
        return text
    peft = code(USES["peft with base"].format(**recipe))
    return f"{text}\n\nWith PEFT, with the same base model in transformers (`base`):\n\n{peft}"


def code(text: str) -> str:
    """Return text as a Markdown block of Python."""
    return f"```python\n{text}\n```"


def tokenizer(recipe: Mapping, facts: Mapping) -> tuple[str, str, str]:
    """Return title, description and table of metrics of a tokenizer."""
    settings, figures = recipe["tokenizer"], facts["metrics"]
    if "pretrained" in settings:
        revision = f" at revision {settings['revision']}" if settings.get("revision") else ""
        origin = f"The unchanged tokenizer of {settings['pretrained']}{revision}."
    else:
        origin = (
            f"A vocabulary of {settings['vocab_size']:,} pieces ({figures['model']}), trained on "
            f"{figures['training_documents']:,} documents of {figures['training_characters']:,} characters."
        )
    keys = ("tokens_per_word", "characters_per_token", "vocabulary_used", "unknown_rate", "whitespace_rate",
            "unigram_entropy")  # fmt: skip
    rows = [[key.replace("_", " "), figures[key]] for key in keys if key in figures]
    return "Tokenizer", origin, table(["on the validation split", ""], rows)


def records(recipe: Mapping, facts: Mapping) -> tuple[str, str, str]:
    """Return title, description and table of splits of a set of records."""
    manifest = facts["manifest"]
    splits = manifest["splits"]
    counts = [
        key for key in ("documents", "records", "tokens", "bytes") if all(key in entry for entry in splits.values())
    ]
    rows = [[split, len(entry["shards"]), *(entry[key] for key in counts)] for split, entry in splits.items()]
    text = (
        f"TFRecord files of `tf.train.Example`, each with {manifest['tokens_per_record']:,} token ids "
        f"(`input_ids`, int64). Packing of documents into records: {manifest['packing']}. The vocabulary has "
        f"{manifest['vocab_size']:,} tokens; the SHA-256 of its file is `{manifest['tokenizer_sha256']}`. "
        "`manifest.json` has the SHA-256 of every shard; an `.index` has the offset of each of its records, as "
        "64-bit numbers."
    )
    return "Records", text, table(["split", "shards", *counts], rows)


def checkpoint(recipe: Mapping, facts: Mapping) -> tuple[str, str, str]:
    """Return title and description of a checkpoint, which has no table of scores."""
    state = facts["state"]
    text = (
        f"A masked language model after step {state['step']:,} of a training of {recipe['training']['steps']:,} "
        f"steps. Loss on the validation split: {state['evaluation']['loss']:.4f}. The card of the model at the end "
        "has all figures."
    )
    return "Model", text, ""


def model(recipe: Mapping, facts: Mapping) -> tuple[str, str, str]:
    """Return title, description and table of scores of a model or an adapter."""
    metrics = facts["metrics"]
    masked, tuned = recipe["kind"] == "mlm", "base" in recipe
    origin, note = origin_of_tuned(recipe, metrics) if tuned else origin_of_trained(recipe, metrics)
    last_phase = recipe["training"].get("phases", [{}])[-1]
    length = last_phase.get("sequence_length", facts["manifest"]["sequence_length"])
    text = f"A {origin} on sequences of {length:,} tokens. {best(facts['state'])}"
    scores = [score for content in (metrics, *facts["scores"]) for score in scores_in(content)]
    characters = facts["corpus"].get("splits", {}).get("train", {}).get("characters")
    claim, _ = standing("mlm" if masked else "finetune" if tuned else "base", scores, characters)
    unit = "masked token" if masked else "token, on held-out text"
    selected = "The checkpoint was selected on validation; test is only reported."
    notes = " ".join(filter(None, (f"Loss in nats per {unit}.", note, selected)))
    return "Model", text, f"{claim}\n\n{notes}\n\n{table_of_scores(scores)}"


def origin_of_tuned(recipe: Mapping, metrics: Mapping) -> tuple[str, str]:
    """Return what a finetuned model or its adapter is, and a note on its baselines."""
    kind = "LoRA adapter of" if recipe["kind"] == "adapter" else "causal language model, finetuned from"
    trained, total = metrics["trainable_parameters"], metrics["total_parameters"]
    base = recipe["base"]["hub"] or recipe["base"]["name"]
    forgets = any(find_scores(scores_in(metrics), set="corpus"))
    note = "The corpus is the text of the base model and shows what was forgotten." if forgets else ""
    return f"{kind} {base}: {trained:,} of {total:,} parameters were trained,", note


def origin_of_trained(recipe: Mapping, metrics: Mapping) -> tuple[str, str]:
    """Return what a masked or a base model is, and a note on its baselines."""
    masked = recipe["kind"] == "mlm"
    # A masked model that starts from another one takes its architecture from there.
    architecture = f"{recipe['model']['architecture']}, " if "model" in recipe else ""
    start = "from scratch" if architecture else f"from {recipe['init']['pretrained']}"
    kind = f"{'masked' if masked else 'causal'} language model"
    sees = ", and sees what masking leaves in place or replaces" if masked else ""
    note = f"Token frequencies are a model that knows nothing else{sees}."
    return f"{kind} ({architecture}{metrics['parameters']:,} parameters), trained {start}", note


def table_of_scores(scores: Iterable[Score]) -> str:
    """Return a table of the scores over all items of a set."""
    rows = []
    for score in (score for score in scores if score.part == WHOLE):
        baselines = ", ".join(f"{name} {format_cell(value)}" for name, value in score.compared_with.items())
        interval = "" if score.low is None else f"{format_cell(score.low)} to {format_cell(score.high)}"
        rows.append([score.on, score.metric.replace("_", " "), score.value, interval, baselines, score.items])
    return table(["measured on", "measure", "value", "95 % interval", "baselines", "items"], rows)


def best(state: Mapping) -> str:
    """Return a sentence with the step and the validation loss of the best checkpoint."""
    best_checkpoint = state["best"]
    return (
        f"These are the weights of step {best_checkpoint['step']:,}, the best on the validation split: loss "
        f"{best_checkpoint['evaluation']['loss']:.4f}."
    )


def data(corpus: Mapping) -> str:
    """Return the sources of a corpus and the sizes of its splits."""
    if corpus is ELSEWHERE:
        return "Existing TFRecord files."
    lines = [source_of(dict(corpus))]
    for name, source in corpus.get("sources", {"": corpus}).items():
        if source.get("dataset"):
            version = ", ".join(filter(None, (source.get("name"), source.get("revision"))))
            lines.append(f"- {name + ': ' if name else ''}{source['dataset']}{f' ({version})' if version else ''}")
    keys = ("documents", "characters", "words")
    rows = [[split, *(figures[key] for key in keys)] for split, figures in corpus["splits"].items()]
    return "\n".join(lines) + "\n\n" + table(["split", *keys], rows)


def hub_datasets(corpus: Mapping) -> list[str]:
    """Return the sorted names of the hub's datasets that a corpus is from, without local folders."""
    sources = corpus.get("sources", {"": corpus}).values()
    names = [source["dataset"] for source in sources if source.get("dataset") and source.get("revision")]
    return sorted(set(names))


def procedure(recipe: Mapping) -> str:
    """Return the backend and a table of the config's keys of a training."""
    rows = [[key, format_setting(value)] for key, value in recipe["training"].items() if value is not None]
    rows += [[f"model.{key}", format_setting(value)] for key, value in recipe.get("model", {}).items()]
    backend = FRAMEWORKS[recipe["training"].get("backend", "jax")]
    return f"Trained with {backend} by a Snakemake workflow with these keys:\n\n" + table(["key", "value"], rows)


ROWS = 50  # approximate limit of the table of checkpoints


def checkpoints(facts: Mapping) -> str:
    """Return a table of a run's checkpoints: every nth of them and the last, about ROWS rows.

    The training loss is the mean over the steps since the previous row.
    """
    states = {trained_for(state, facts["manifest"])["steps"]: state for state in facts["states"]}
    every = -(-len(states) // ROWS)
    shown_steps = sorted({*list(states)[every - 1 :: every], max(states)})
    losses = {int(row["step"]): float(row["loss"]) for row in facts["history"]}
    rows = []
    for before, step in pairwise([0, *shown_steps]):
        state = states[step]
        trained, evaluation = trained_for(state, facts["manifest"]), state["evaluation"]
        train_losses = [loss for at, loss in losses.items() if before < at <= step]
        rows.append([trained["epochs"], step, fmean(train_losses), evaluation["loss"], evaluation["accuracy"]])
    return table(["epoch", "step", "train loss", "validation loss", "validation accuracy"], rows)


def versions(timings: Iterable[Mapping]) -> str:
    """Return the software versions of a training as Markdown lists, one for each set of versions in order of use."""
    software = dict.fromkeys(row["software"] for row in timings if row.get("software"))
    return "\n\nthen\n\n".join("\n".join(f"- {version}" for version in text.split("; ")) for text in software)


def hardware(timings: Iterable[Mapping]) -> str:
    """Return the devices of a training, and its median seconds per step and tokens per second; empty without rows."""
    rows = list(timings)
    if not rows:
        return ""
    devices = dict.fromkeys(devices_in_words(row["devices"]) for row in rows)
    seconds, speed = (median(float(row[key]) for row in rows) for key in ("seconds_per_step", "tokens_per_second"))
    return f"{', then '.join(devices) or 'Not recorded'}; {seconds:.3g} s per step, {speed:,.0f} tokens/s (medians)."


def format_setting(value: object) -> str:
    """Return a value of the config as one line of text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {format_setting(inner)}" for key, inner in value.items() if inner is not None)
    return ", ".join(map(format_setting, value)) if isinstance(value, list | tuple) else str(value)


def table(head: list[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as Markdown."""
    lines = [head, ["---"] * len(head), *([format_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_cell(value: object) -> str:
    """Return the text of a cell: integers with thousands separators, floats with four significant digits."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")
