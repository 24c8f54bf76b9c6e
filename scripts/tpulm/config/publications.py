"""Publications: the artifacts that can be published or archived, their files, targets and cards.

A name, such as mlm/tiny, stands for an artifact in publish.artifacts, in receipts, and, with `-` for `/`, in the names
of repositories.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tpulm.config.evaluations import Evaluations
from tpulm.config.outline import Outline, Run, checkpoint_period, period_of
from tpulm.config.record_sets import RecordSet
from tpulm.core.errors import UserError, describe
from tpulm.specs.artifacts import (
    ADAPTER_FILES,
    CARD,
    CHECKPOINT_FILES,
    MANIFEST,
    MODEL_FILES,
    SEGMENT_FILES,
    TOKENIZER_FILES,
)
from tpulm.specs.recipes import LORA_KEYS

LONGEST = 96  # characters of a repository's name on the hub
CHECKPOINTS = "checkpoints"  # folder of a run's checkpoints, and their branch next to main
ARCHIVE = "archive"  # published if publish.artifacts names it


@dataclass(frozen=True)
class Publication:
    """An artifact that can be published.

    name        such as mlm/tiny; of a checkpoint, such as checkpoints/mlm/tiny/00000750
    kind        tokenizer, records, mlm, preset, adapter, transformers (a folder of it), checkpoint or archive
    files       paths below results/ by path at the target; "" stands for the top of the target, and CARD for the card,
                which the archive and checkpoints that do not open as models lack
    changed_by  file, with <results>, that changes with a folder or a checkpoint; "" if all files are named
    run         training run that made it; records  set of records that it is; step  of a checkpoint
    """

    name: str
    kind: str
    files: Mapping[str, str]
    changed_by: str = ""
    run: Run | None = None
    records: RecordSet | None = None
    step: int | None = None

    @property
    def type(self) -> str:
        """The type of the repository on the hub: dataset or model."""
        return "dataset" if self.kind in ("records", "archive") else "model"

    @property
    def slug(self) -> str:
        """Its part in the names of repositories and of folders in buckets; a checkpoint has that of its run."""
        return (self.run.path if self.step and self.run else self.name).replace("/", "-")

    @property
    def card(self) -> str:
        """The folder below results/ of its card; "" without a card."""
        return next((path.removesuffix(f"/{CARD}") for path in self.files.values() if path.endswith(f"/{CARD}")), "")

    @property
    def opens(self) -> bool:
        """Whether it is a checkpoint that from_pretrained opens: one of a masked model."""
        return bool(self.step and self.card)


def publications_of(outline: Outline) -> dict[str, Publication]:
    """Return the publications of a config by name, without checkpoints and the archive."""
    publications = []
    if "tokenizer" in outline.config:
        files = files_with_card("tokenizer", TOKENIZER_FILES.values())
        publications.append(Publication("tokenizer", "tokenizer", files))
    for records in outline.records.values():
        files = files_with_card(records.folder, (*records.files, MANIFEST))
        publications.append(Publication(records.folder, "records", files, records=records))
    publications += [publication for run in outline.runs.values() for publication in publications_of_run(run)]
    return {publication.name: publication for publication in publications}


def files_with_card(folder: str, names: Iterable[str]) -> dict[str, str]:
    """Return files of a folder below results/, and its card, as `Publication.files` has them."""
    return {name: f"{folder}/{name}" for name in (*names, CARD)}


def publications_of_run(run: Run) -> list[Publication]:
    """Return the publications of a run: a model, an adapter, or an adapter and the merged model."""
    name = run.path
    if run.stage == "mlm":
        return [Publication(name, "mlm", files_with_card(f"{name}/model", MODEL_FILES), run=run)]
    files = {"": f"transformers/{name}", CARD: f"{name}/transformers/{CARD}"}
    transformers_folder = Publication(files[""], "transformers", files, f"<results>/{files['']}.json", run)
    if run.stage == "base":
        files = {"": f"{name}/preset", CARD: f"{name}/{CARD}"}
        return [Publication(name, "preset", files, f"{run.folder}/preset.json", run), transformers_folder]
    whole = {"": f"{name}/model", CARD: f"{name}/{CARD}"}
    if run.recipe["method"] == "full":
        return [Publication(name, "preset", whole, f"{run.folder}/model.json", run), transformers_folder]
    # As PEFT reads it: both of its files at the top.
    files = {file.removeprefix("adapter/"): f"{name}/{file}" for file in (*ADAPTER_FILES, f"adapter/{CARD}")}
    adapter = Publication(name, "adapter", files, run=run)
    merged = [Publication(f"{name}/merged", "preset", whole, f"{run.folder}/model.json", run), transformers_folder]
    return [adapter, *(merged if run.recipe["merge"] else [])]


def checkpoints_of(run: Run, period: int) -> list[Publication]:
    """Return every `period`th checkpoint of a run, and the last; for a masked model, with the files that open it."""
    publications = []
    for number, step in enumerate(run.segment_ends, start=1):
        if number % period and step != run.segment_ends[-1]:
            continue
        here = checkpoint_folder(step)
        files = {f"{here}/{file}": f"{run.path}/{here}/{file}" for file in (CHECKPOINT_FILES | SEGMENT_FILES).values()}
        if run.stage == "mlm":
            exported = [file.removeprefix("<results>/") for file in run.at(step).files]
            files |= {f"{here}/{file}": path for file, path in zip(MODEL_FILES, exported, strict=True)}
            files[f"{here}/{CARD}"] = f"publish/cards/{run.path}/{step:08d}/{CARD}"
        name, state = f"{CHECKPOINTS}/{run.path}/{step:08d}", run.checkpoint(step)["state"]
        publications.append(Publication(name, "checkpoint", files, state, run, step=step))
    return publications


def checkpoint_folder(step: int) -> str:
    """Return the folder of a checkpoint, relative to its run or its repository."""
    return f"{CHECKPOINTS}/{step:08d}"


def selected_publications(outline: Outline) -> dict[str, Publication]:
    """Return the publications that publish.artifacts and publish.sync select, by name.

    An entry of publish.artifacts is a name, or the beginning of names up to a slash: mlm stands for all masked models.
    """
    section = outline.config.get("publish")
    if section is None:
        return {}
    selected = {
        name: publication
        for name, publication in publications_of(outline).items()
        if "artifacts" not in section or any(f"{name}/".startswith(f"{part}/") for part in section["artifacts"])
    }
    if ARCHIVE in section.get("artifacts", ()):
        path = archive_of(outline.config).removeprefix("<results>/")
        files = {f"{path}{end}".removeprefix("archive/"): f"{path}{end}" for end in ("", ".sha256")}
        selected[ARCHIVE] = Publication(ARCHIVE, ARCHIVE, files)
    if section["sync"]:
        runs = {publication.run.key: publication.run for publication in selected.values() if publication.run}
        period = period_of(section["sync"])
        selected |= {checkpoint.name: checkpoint for run in runs.values() for checkpoint in checkpoints_of(run, period)}
    return selected


def hub_recipe(section: Mapping, publication: Publication) -> dict[str, Any]:
    """Return the recipe of the rule publish_to_hub, see tpulm.release.publishing.

    newest  makes a checkpoint the model of its branch until the final model is published: branch; files, the name in
            the repository of each file at the top; model, the name of the final model. None for a final model, and for
            what from_pretrained does not open
    """
    run, step, newest = publication.run, publication.step, None
    if run and step and publication.opens and step != run.segment_ends[-1]:
        files = {file: f"{checkpoint_folder(step)}/{file}" for file in (*MODEL_FILES, CARD)}
        newest = {"branch": section["branch"], "files": files, "model": run.path}
    return {
        **common_recipe(publication),
        "repository": repository_name(section, publication),
        "type": publication.type,
        "branch": branch_of(section, publication),
        "private": section["private"],
        "newest": newest,
    }


def bucket_recipe(section: Mapping, publication: Publication) -> dict[str, Any]:
    """Return the recipe of the rule publish_to_bucket."""
    return common_recipe(publication) | {"folder": f"{section['gcs']}/{publication.slug}"}


def common_recipe(publication: Publication) -> dict[str, Any]:
    """Return the keys that both recipes have."""
    return {"name": publication.name, "names": list(publication.files)}


def repository_name(section: Mapping, publication: Publication) -> str:
    """Return the name of a publication's repository on the hub."""
    return f"{section['hub']}-{publication.slug}"


def branch_of(section: Mapping, publication: Publication) -> str:
    """Return the branch of a publication; that of checkpoints is not the branch of models."""
    branch = section["branch"]
    if not publication.step:
        return branch
    return CHECKPOINTS if branch == "main" else f"{branch}-{CHECKPOINTS}"


def published_before(publication: Publication, published: Mapping[str, Publication]) -> list[str]:
    """Return the name of the checkpoint that must be on the hub before a publication, in a list; [] for none.

    Checkpoints that open as models are published in order, and the final model last.

    published  all publications by name
    """
    step = publication.step
    earlier = [
        candidate.name
        for candidate in published.values()
        if candidate.opens and candidate.slug == publication.slug and (not step or (candidate.step or 0) < step)
    ]
    return earlier[-1:]


def check_publish(outline: Outline) -> None:
    """Check names of artifacts and repositories, and that published checkpoints are kept. Raises UserError."""
    section = outline.config.get("publish")
    if section is None:
        return
    names = [*publications_of(outline), ARCHIVE]
    for index, part in enumerate(section.get("artifacts", ())):
        if not any(f"{name}/".startswith(f"{part}/") for name in names):
            raise UserError(
                f"publish.artifacts[{index}] is {describe(part)}; allowed: {', '.join(names)}, or a prefix of one "
                "that ends before a slash."
            )
    for publication in selected_publications(outline).values():
        name = repository_name(section, publication).rpartition("/")[2] if "hub" in section else ""
        if len(name) > LONGEST or re.search(r"--|\.\.|[-.]\Z", name):
            raise UserError(
                f"publish.hub names a repository {describe(name)}; allowed: at most {LONGEST} characters, without -- "
                "and .., ending in a letter, a digit or _."
            )
        if publication.step and publication.run:
            check_sync(section["sync"], publication.run)


def check_sync(sync: str, run: Run) -> None:
    """Check that a run keeps the checkpoints that are published while it trains. Raises UserError."""
    keep = run.recipe["keep_checkpoints"]
    kept_period = checkpoint_period(keep, len(run.segment_ends))
    if period_of(sync) % kept_period and period_of(sync) < len(run.segment_ends):
        raise UserError(
            f"publish.sync is {sync}, but {run.key}.keep_checkpoints is {keep}, which deletes some of these "
            "checkpoints; allowed: every Nth checkpoint that is kept."
        )
    if run.stage == "mlm" and run.recipe["patience"]:
        raise UserError(
            f"publish.sync is {sync}, but {run.key} has patience, and checkpoints after an early stop have no weights "
            "of their own; allowed: null."
        )


def archive_of(config: Mapping) -> str:
    """Return the path of the archive."""
    section = config["archive"]
    return f"<results>/archive/{section['name']}-{section['version']}.zip"


def history_entry(run: Run) -> dict[str, Any]:
    """Return the entry of a run in the history: stage, name, and the keys of its recipe that decide the training."""
    keys = ("base", "init", "steps", "learning_rate", "schedule", "phases", *run.step_keys)
    recipe = {key: run.recipe[key] for key in keys if key in run.recipe}
    return {"stage": run.stage, "name": run.name, "recipe": recipe}


# Keys of a run that its card shows.
TRAINING_KEYS = (
    *("backend", "method", *LORA_KEYS, "steps", "batch_size", "sequence_length", "packing", "learning_rate"),
    *("schedule", "phases", "optimizer", "masking", "precision", "mesh", "seed"),
)


def card_inputs(publication: Publication, evaluations: Evaluations) -> dict[str, str | list[str]]:
    """Return the inputs of the rule write_card by name."""
    if publication.kind == "tokenizer":
        return {"metrics": "<results>/tokenizer/metrics.json", "corpus": "<results>/corpus/corpus.json"}
    run = publication.run
    records = run.records if run else publication.records
    assert records is not None
    files: dict[str, str | list[str]] = {"manifest": records.manifest}
    if not records.external_files:
        files["corpus"] = f"<results>/{records.collection}/corpus.json"
    if run and publication.step:
        files["state"] = run.checkpoint(publication.step)["state"]
    elif run:
        files |= {name: f"{run.folder}/{file}" for name, file in SEGMENT_FILES.items()}
        files |= {"metrics": f"{run.folder}/metrics.json", "state": run.state}
        files["states"] = run.in_every_checkpoint(CHECKPOINT_FILES["state"])
        files["scores"] = evaluations.of_model(run.path)
    return files


def card_recipe(publication: Publication, outline: Outline) -> dict:
    """Return the recipe of the rule write_card.

    name, kind, license (or None); source, the repository or folder from which the artifact is loaded; for a tokenizer,
    its section; for a model, training, and model or init; for a finetuned model, base; for a checkpoint on the hub,
    revision and subfolder
    """
    config, run = outline.config, publication.run
    section = config.get("publish", {})
    recipe: dict = {"name": publication.name, "kind": publication.kind, "source": source_of(publication, config)}
    recipe["license"] = section.get("license")
    if publication.kind == "tokenizer":
        return recipe | {
            "tokenizer": {key: value for key, value in config["tokenizer"].items() if key != "compare_with"}
        }
    if run is None:
        return recipe
    if publication.step and "hub" in section:
        recipe |= {"revision": branch_of(section, publication), "subfolder": checkpoint_folder(publication.step)}
    unused = () if run.backend == "jax" else ("mesh",)
    recipe["training"] = {key: run.recipe[key] for key in TRAINING_KEYS if key in run.recipe and key not in unused}
    if run.stage == "finetune":
        return recipe | {"base": base_of(run, outline)}
    described = run.recipe_at(publication.step or run.recipe["steps"])
    return recipe | {key: described[key] for key in ("model", "init") if key in described}


def base_of(run: Run, outline: Outline) -> dict:
    """Return the base of a finetuned model: name; preset, for keras-hub; transformers and hub, None if not known."""
    name = run.recipe["base"]
    if "preset" in run.base:
        hub = hub_base(run)["hub_name"]
        return {"name": name, "preset": run.base["preset"], "transformers": None, "hub": hub}
    known, config = publications_of(outline), outline.config
    keras, transformers = (source_of(known[f"{kind}base/{name}"], config) for kind in ("", "transformers/"))
    hub = transformers if "hub" in config.get("publish", {}) else None
    return {"name": name, "preset": keras, "transformers": transformers, "hub": hub}


def hub_base(run: Run) -> dict:
    """Return name and revision on the hub of a run's base model; the name is None for a model that is not there."""
    preset = run.base.get("preset", "")
    name = preset.removeprefix("hf://") if preset.startswith("hf://") else None
    return {"hub_name": name, "hub_revision": run.base.get("revision")}


def source_of(publication: Publication, config: Mapping) -> str:
    """Return the repository or the folder from which libraries load an artifact."""
    section = config.get("publish", {})
    if "hub" not in section:
        return f"results/{publication.files.get('', publication.card)}"
    return f"{'hf://' if publication.kind == 'preset' else ''}{repository_name(section, publication)}"
