"""What cards are made of: the files that they read, and what they take of the config."""

from collections.abc import Mapping

from tpulm.config.artifacts import MANIFEST
from tpulm.config.publications import Publication, publications_of, repository_name
from tpulm.config.runs import LORA_KEYS, pick

# What a card says of how a model was trained, where its run has the key.
TRAINING_KEYS = (
    *("backend", "method", *LORA_KEYS, "steps", "batch_size", "sequence_length", "packing", "learning_rate"),
    *("schedule", "optimizer", "masking", "precision", "mesh", "seed"),
)


def facts_of(publication: Publication) -> dict[str, list[str]]:
    """Return the files that a card is made of, by name, below results/."""
    if publication.kind == "tokenizer":
        return {"metrics": ["tokenizer/metrics.json"], "corpus": ["corpus/corpus.json"]}
    records = publication.records or (publication.run.records if publication.run else None)
    if records is None:
        return {}
    data = {"manifest": [f"{records.folder}/{MANIFEST}"]}
    if not records.made_elsewhere:
        data["corpus"] = [f"{records.collection}/corpus.json"]
    if publication.run is None:
        return data
    folder = publication.run.folder.removeprefix("results/")
    state = publication.run.state.removeprefix("results/")
    return data | {"metrics": [f"{folder}/metrics.json"], "timings": [f"{folder}/timings.csv"], "state": [state]}


def described(publication: Publication, config: Mapping) -> dict:
    """Return what a card takes of the config.

    name, kind; source, where the artifact is to be loaded from: its repository, or its folder; of a tokenizer, where
    it is from; of a model, its sizes and how it was trained; of a tuned one, its base
    """
    kept: dict = {"name": publication.name, "kind": publication.kind, "source": source_of(publication, config)}
    if publication.kind == "tokenizer":
        return kept | {"tokenizer": config["tokenizer"]}
    if publication.run is None:
        return kept
    run = publication.run
    unused = () if run.backend == "jax" else ("mesh",)
    kept["training"] = {key: run.recipe[key] for key in TRAINING_KEYS if key in run.recipe and key not in unused}
    if run.stage != "finetune":
        return kept | pick(run.recipe, "model")
    return kept | {"base": base_of_tuned(publication, config)}


def base_of_tuned(publication: Publication, config: Mapping) -> dict:
    """Return the base of a tuned model: its name, what keras-hub and transformers load it by, its name on the hub.

    The last two are None where they are not known.
    """
    run = publication.run
    assert run is not None
    name = run.recipe["base"]
    if "preset" in run.base:
        return {"name": name, "preset": run.base["preset"], "transformers": None, "hub": run.hub_base["hub_name"]}
    known = publications_of(config)
    keras, transformers = (source_of(known[f"{kind}base/{name}"], config) for kind in ("", "transformers/"))
    hub = transformers if "hub" in config.get("publish", {}) else None
    return {"name": name, "preset": keras, "transformers": transformers, "hub": hub}


def source_of(publication: Publication, config: Mapping) -> str:
    """Return what libraries load an artifact by: the name of its repository, or its folder."""
    section = config.get("publish", {})
    if "hub" not in section:
        return f"results/{publication.folder or publication.card}"
    name = repository_name(section, publication)
    return f"hf://{name}" if publication.kind in ("base", "model") else name


def croissant_of(publication: Publication, config: Mapping) -> dict:
    """Return what the metadata of a set of records takes of the config: its name, and the name of its repository."""
    section = config.get("publish", {})
    name = repository_name(section, publication) if "hub" in section else None
    return {"name": publication.name.replace("/", "-"), "repository": name}
