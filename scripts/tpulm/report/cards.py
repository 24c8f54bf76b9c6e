"""Cards of artifacts, README.md: metadata of the Hugging Face Hub in YAML, then how to use them and what was measured.

`recipe` is what tpulm.config.publications.card_recipe takes of the config.

The metadata are written by huggingface_hub, whose classes name the fields that the hub knows.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from tpulm.report.sources import source_of
from tpulm.training.checkpoint import trained_for


def adapter_use(recipe: Mapping) -> str:
    """Return how an adapter is loaded: by Keras, and by PEFT where its base is on the hub."""
    base = recipe["base"]
    folder = recipe["source"].removesuffix("adapter") if "/results/" in f"/{recipe['source']}" else ""
    text = code(
        "import json\n\nimport keras_hub\n\n"
        f'model = keras_hub.models.CausalLM.from_preset("{base["preset"]}")\n'
        f'model.backbone.enable_lora(**json.load(open("{folder}adapter.lora.json")))\n'
        f'model.backbone.load_lora_weights("{folder}adapter.lora.h5")'
    )
    peft = f'model = PeftModel.from_pretrained(base, "{recipe["source"]}")'
    if base["transformers"]:
        load = f'base = AutoModelForCausalLM.from_pretrained("{base["transformers"]}")'
        imports = "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM"
        return f"{text}\n\nWith PEFT:\n\n" + code(f"{imports}\n\n{load}\n{peft}")
    if not base["hub"]:
        return text
    return f"{text}\n\nWith PEFT, with the same base model in transformers (`base`):\n\n" + code(
        f"from peft import PeftModel\n\n{peft}"
    )


def fill_mask_use(recipe: Mapping) -> str:
    """Return how a masked model is loaded."""
    return code(
        "from transformers import pipeline\n\n"
        f'fill = pipeline("fill-mask", model="{recipe["source"]}")\n'
        'print(fill(f"A sentence with one {fill.tokenizer.mask_token}."))'
    )


def checkpoint_use(recipe: Mapping) -> str:
    """Return how a checkpoint of a masked model is loaded from its branch."""
    place = f'"{recipe["source"]}", revision="{recipe["revision"]}", subfolder="{recipe["subfolder"]}"'
    return code(
        "from transformers import AutoModelForMaskedLM, AutoTokenizer\n\n"
        f"model = AutoModelForMaskedLM.from_pretrained({place})\n"
        f"tokenizer = AutoTokenizer.from_pretrained({place})"
    )


def keras_use(recipe: Mapping) -> str:
    """Return how a preset is loaded."""
    return code(
        "import keras_hub\n\n"
        f'model = keras_hub.models.CausalLM.from_preset("{recipe["source"]}")\n'
        'print(model.generate("The beginning of a text", max_length=64))'
    )


def transformers_use(recipe: Mapping) -> str:
    """Return how a causal model is loaded by transformers."""
    return code(
        "from transformers import pipeline\n\n"
        f'generate = pipeline("text-generation", model="{recipe["source"]}")\n'
        'print(generate("The beginning of a text", max_new_tokens=64))'
    )


def code(text: str) -> str:
    """Return a block of Python."""
    return f"```python\n{text}\n```"


# Of causal models by kind: the library that loads them, as the hub calls it, and how it does.
LIBRARIES = {"base": "keras-hub", "adapter": "peft", "model": "keras-hub", "transformers": "transformers"}
USES = {"base": keras_use, "adapter": adapter_use, "model": keras_use, "transformers": transformers_use}


FRAMEWORKS = {"tensorflow": "transformers and TensorFlow", "jax": "Keras and JAX"}
CAUSAL = "Loss in nats per token, on held-out text."
FREQUENCIES = "By token frequencies: the loss of a model that knows nothing else."
SPLITS = ("validation", "test")
ELSEWHERE = {"source": "TFRecord files"}  # in the place of a corpus, of records that were made elsewhere


def card(recipe: Mapping, facts: Mapping) -> str:
    """Return the card of an artifact.

    recipe  name, kind, source and more, see tpulm.config.publications.card_recipe; license, or None
    facts   the content of metrics, corpus, manifest, state, states, history and timings, those that there are
    """
    head, parts = KINDS[recipe["kind"]](recipe, {"corpus": ELSEWHERE, **facts})
    sections = [f"## {title}\n\n{text.strip()}\n" for title, text in parts.items() if text]
    return f"---\n{head}\n---\n\n# {recipe['name']}\n\n" + "\n".join(sections)


def metadata(recipe: Mapping, facts: Mapping, **fields: Any) -> str:
    """Return the head of a model's card as YAML; `fields` are those of ModelCardData."""
    from huggingface_hub import ModelCardData

    license, datasets = recipe["license"], hub_datasets(facts["corpus"]) or None
    return ModelCardData(license=license, datasets=datasets, model_name=recipe["name"], **fields).to_yaml()


def results(name: str, task: str, corpus: Mapping, figures: Mapping) -> list:
    """Return loss, perplexity and accuracy of each split as the hub knows the results of evaluations.

    name     of the text
    figures  of each split, with these keys
    """
    from huggingface_hub import EvalResult

    kind = (hub_datasets(corpus) or [corpus.get("source", "several sources")])[0]
    return [
        EvalResult(task, kind, name, metric, round(figures[split][metric], 4), dataset_split=split)
        for split in SPLITS
        for metric in ("loss", "perplexity", "accuracy")
    ]


def tokenizer_card(recipe: Mapping, facts: Mapping) -> tuple[str, dict[str, str]]:
    """Return head and sections of the card of a tokenizer."""
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
    sections = {
        "Tokenizer": origin,
        "How to use": code(
            "from transformers import AutoTokenizer\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained("{recipe["source"]}")\n'
            'print(tokenizer.tokenize("A sentence."))'
        ),
        "Data": data(facts["corpus"]),
        "Figures": table(["on the validation split", ""], rows),
    }
    return metadata(recipe, facts, library_name="transformers", tags=["tokenizer"]), sections


def records_card(recipe: Mapping, facts: Mapping) -> tuple[str, dict[str, str]]:
    """Return head and sections of the card of a set of records."""
    from huggingface_hub import DatasetCardData

    manifest = facts["manifest"]
    head = DatasetCardData(
        license=recipe["license"],
        pretty_name=recipe["name"],
        source_datasets=hub_datasets(facts["corpus"]) or ["original"],
        tags=["tfrecord", "croissant"],
    ).to_yaml()
    splits = manifest["splits"].values()
    counts = [key for key in ("documents", "records", "tokens", "bytes") if all(key in entry for entry in splits)]
    rows = [
        [split, len(entry["shards"]), *(entry[key] for key in counts)] for split, entry in manifest["splits"].items()
    ]
    sections = {
        "Records": f"TFRecord files of `tf.train.Example`, each with {manifest['tokens_per_record']:,} token ids "
        f"(`input_ids`, int64). Packing of documents into records: {manifest['packing']}. The vocabulary has "
        f"{manifest['vocab_size']:,} tokens; the SHA-256 of its file is `{manifest['tokenizer_sha256']}`. "
        "`manifest.json` has the SHA-256 of every shard; an `.index` has the offset of each of its records, as "
        "64-bit numbers; `croissant.json` describes the files as MLCommons Croissant metadata.",
        "How to use": code(
            "import tensorflow as tf\n\n"
            'records = tf.data.TFRecordDataset(tf.io.gfile.glob("train/*.tfrecord"))\n'
            'features = {"input_ids": tf.io.RaggedFeature(tf.int64)}\n'
            "examples = records.map(lambda record: tf.io.parse_single_example(record, features))"
        ),
        "Splits": table(["split", "shards", *counts], rows),
        "Data": data(facts["corpus"]),
    }
    return head, sections


def masked_card(recipe: Mapping, facts: Mapping) -> tuple[str, dict[str, str]]:
    """Return head and sections of the card of a masked language model."""
    metrics = facts["metrics"]
    found = results(f"{recipe['name']} text", "fill-mask", facts["corpus"], metrics)
    # A run that starts from another model takes its architecture from there.
    kind = [recipe["model"]["architecture"]] if "model" in recipe else []
    described = ", ".join([*kind, f"{metrics['parameters']:,} parameters"])
    start = "from scratch" if kind else f"from {recipe['init']['pretrained']}"
    head = metadata(
        recipe, facts, library_name="transformers", pipeline_tag="fill-mask", tags=kind, eval_results=found,
    )  # fmt: skip
    rows = [
        [split, *(metrics[split][key] for key in ("loss", "frequency_loss", "perplexity", "accuracy", "predictions"))]
        for split in SPLITS
    ]
    sections = {
        "Model": f"A masked language model ({described}), "
        f"trained {start} on sequences of {facts['manifest']['sequence_length']:,} tokens. {best(facts['state'])}",
        "How to use": fill_mask_use(recipe),
        "Data": data(facts["corpus"]),
        "Training": procedure(recipe),
        "Figures": f"{metrics['verdict']}\n\nLoss in nats per masked token; by token frequencies, the "
        "loss of a model that knows nothing else, and sees what masking leaves in place or replaces. The checkpoint "
        "was selected on validation; test is only reported.\n\n"
        + table(["split", "loss", "by token frequencies", "perplexity", "accuracy", "predictions"], rows),
        "Checkpoints": checkpoints(facts),
        "Hardware": hardware(facts["timings"]),
        "Framework versions": versions(facts["timings"]),
    }
    return head, sections


def checkpoint_card(recipe: Mapping, facts: Mapping) -> tuple[str, dict[str, str]]:
    """Return head and sections of the card of a checkpoint of a masked language model."""
    state = facts["state"]
    steps, last, evaluation = state["step"], recipe["training"]["steps"], state["evaluation"]
    sections = {
        "Model": f"A masked language model after step {steps:,} of a training of {last:,} steps. Loss on the "
        f"validation split: {evaluation['loss']:.4f}. The card of the model at the end has all figures.",
        "How to use": checkpoint_use(recipe) if "revision" in recipe else "",
        "Data": data(facts["corpus"]),
        "Training": procedure(recipe),
    }
    return metadata(recipe, facts, library_name="transformers", pipeline_tag="fill-mask"), sections


def base_card(recipe: Mapping, facts: Mapping) -> tuple[str, dict[str, str]]:
    """Return head and sections of the card of a base model that was trained here."""
    metrics, sizes = facts["metrics"], recipe["model"]
    head = metadata(
        recipe, facts, library_name=LIBRARIES[recipe["kind"]], pipeline_tag="text-generation",
        tags=[sizes["architecture"]],
        eval_results=results(f"{recipe['name']} text", "text-generation", facts["corpus"], metrics),
    )  # fmt: skip
    keys = ("loss", "frequency_loss", "perplexity", "accuracy", "predictions")
    rows = [[split, *(metrics[split][key] for key in keys)] for split in SPLITS]
    sections = {
        "Model": f"A causal language model ({sizes['architecture']}, {metrics['parameters']:,} parameters), trained "
        f"from scratch on sequences of {facts['manifest']['sequence_length']:,} tokens. {best(facts['state'])}",
        "How to use": USES[recipe["kind"]](recipe),
        "Data": data(facts["corpus"]),
        "Training": procedure(recipe),
        "Figures": f"{metrics['verdict']}\n\n{CAUSAL} {FREQUENCIES}\n\n"
        + table(["split", "loss", "by token frequencies", *keys[2:]], rows),
        "Checkpoints": checkpoints(facts),
        "Hardware": hardware(facts["timings"]),
        "Framework versions": versions(facts["timings"]),
    }
    return head, sections


def tuned_card(recipe: Mapping, facts: Mapping) -> tuple[str, dict[str, str]]:
    """Return head and sections of the card of an adapter, or of a model that was tuned as a whole or merged."""
    metrics, base, adapter = facts["metrics"], recipe["base"], recipe["kind"] == "adapter"
    texts = {split: metrics["loss"][f"finetune_{split}"]["after"] for split in SPLITS}
    head = metadata(
        recipe, facts, library_name=LIBRARIES[recipe["kind"]], pipeline_tag="text-generation",
        base_model=base["hub"], tags=["lora", "keras"] if adapter else None,
        eval_results=results(f"{recipe['name']} text", "text-generation", facts["corpus"], texts),
    )  # fmt: skip
    rows = [
        [name.replace("_", ", "), loss["predicted"], loss["before"]["loss"], loss["after"]["loss"]]
        + [loss["before"]["accuracy"], loss["after"]["accuracy"]]
        for name, loss in metrics["loss"].items()
    ]
    what = "LoRA adapter of" if adapter else "causal language model, finetuned from"
    columns = ["text", "tokens", "loss before", "loss after", "accuracy before", "accuracy after"]
    sections = {
        "Model": f"A {what} {base['hub'] or base['name']}: {metrics['trainable_parameters']:,} of "
        f"{metrics['total_parameters']:,} parameters were trained, on sequences of "
        f"{facts['manifest']['sequence_length']:,} tokens. {best(facts['state'])}",
        "How to use": USES[recipe["kind"]](recipe),
        "Data": data(facts["corpus"]),
        "Training": procedure(recipe),
        "Figures": f"{metrics['verdict']}\n\n{CAUSAL} The corpus is the text of the base model and "
        "shows what was forgotten.\n\n" + table(columns, rows),
        "Checkpoints": checkpoints(facts),
        "Hardware": hardware(facts["timings"]),
        "Framework versions": versions(facts["timings"]),
    }
    return head, sections


def best(state: Mapping) -> str:
    """Return which step the weights are of."""
    found = state["best"]
    return (
        f"These are the weights of step {found['step']:,}, the best on the validation split: loss "
        f"{found['evaluation']['loss']:.4f}."
    )


def data(corpus: Mapping) -> str:
    """Return where a text is from, and how much of it each split has."""
    if corpus is ELSEWHERE:
        return "Existing TFRecord files."
    lines = [source_of(dict(corpus))]
    for name, source in corpus.get("sources", {"": corpus}).items():
        if source.get("dataset"):
            of = ", ".join(filter(None, (source.get("name"), source.get("revision"))))
            lines.append(f"- {name + ': ' if name else ''}{source['dataset']}{f' ({of})' if of else ''}")
    keys = ("documents", "characters", "words")
    rows = [[split, *(figures[key] for key in keys)] for split, figures in corpus["splits"].items()]
    return "\n".join(lines) + "\n\n" + table(["split", *keys], rows)


def hub_datasets(corpus: Mapping) -> list[str]:
    """Return the datasets of the hub that a text is from; a local folder is none."""
    sources = corpus.get("sources", {"": corpus}).values()
    names = [source["dataset"] for source in sources if source.get("dataset") and source.get("revision")]
    return sorted(set(names))


def procedure(recipe: Mapping) -> str:
    """Return how a model was trained, as a table of the keys of the config."""
    rows = [[key, written(value)] for key, value in recipe["training"].items() if value is not None]
    rows += [[f"model.{key}", written(value)] for key, value in recipe.get("model", {}).items()]
    backend = FRAMEWORKS[recipe["training"].get("backend", "jax")]
    return f"Trained with {backend} by a Snakemake workflow with these keys:\n\n" + table(["key", "value"], rows)


ROWS = 50  # of the table of checkpoints, about


def checkpoints(facts: Mapping) -> str:
    """Return a table of a run's checkpoints, or of every nth of many, and the last.

    The training loss is the mean over the steps since the row before, so that with checkpoints at the ends of epochs
    it is that of an epoch.
    """
    of_step = {trained_for(state, facts["manifest"])["steps"]: state for state in facts["states"]}
    every = -(-len(of_step) // ROWS)
    kept = sorted({*list(of_step)[every - 1 :: every], max(of_step)})
    losses = {int(row["step"]): float(row["loss"]) for row in facts["history"]}
    rows = []
    for before, step in pairwise([0, *kept]):
        state = of_step[step]
        trained, evaluation = trained_for(state, facts["manifest"]), state["evaluation"]
        since = [loss for at, loss in losses.items() if before < at <= step]
        rows.append([trained["epochs"], step, fmean(since), evaluation["loss"], evaluation["accuracy"]])
    return table(["epoch", "step", "train loss", "validation loss", "validation accuracy"], rows)


def versions(timings: Iterable[Mapping]) -> str:
    """Return what a model was trained with, as a list."""
    found = list(dict.fromkeys(row["software"] for row in timings if row.get("software")))
    return "\n\nthen\n\n".join("\n".join(f"- {each}" for each in text.split("; ")) for text in found)


def hardware(timings: Iterable[Mapping]) -> str:
    """Return on what a model was trained, and how fast: medians of the lines of progress."""
    rows = list(timings)
    devices = list(dict.fromkeys(row["devices"] for row in rows if row.get("devices")))
    if not rows:
        return ""
    seconds, speed = (median(float(row[key]) for row in rows) for key in ("seconds_per_step", "tokens_per_second"))
    return f"{', then '.join(devices) or 'Not recorded'}; {seconds:.3g} s per step, {speed:,.0f} tokens/s (medians)."


def written(value: object) -> str:
    """Return a value of the config in a line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {written(inner)}" for key, inner in value.items() if inner is not None)
    return ", ".join(map(written, value)) if isinstance(value, list | tuple) else str(value)


def table(head: list[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *([shown(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: object) -> str:
    """Return a cell: integers with separators, floats to four digits that count."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def transformers_card(recipe: Mapping, facts: Mapping) -> tuple[str, dict[str, str]]:
    """Return head and sections of the card of a causal model for transformers: a base model, or a tuned one."""
    return tuned_card(recipe, facts) if "base" in recipe else base_card(recipe, facts)


KINDS = {
    "tokenizer": tokenizer_card,
    "records": records_card,
    "mlm": masked_card,
    "checkpoint": checkpoint_card,
    "base": base_card,
    "adapter": tuned_card,
    "model": tuned_card,
    "transformers": transformers_card,
}
