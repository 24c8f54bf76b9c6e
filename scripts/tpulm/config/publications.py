"""What can be published and archived: of each artifact, its files, where they go, and its card.

A name, such as mlm/tiny, stands for an artifact in publish.artifacts, in receipts, and, with `-` for `/`, in the names
of repositories.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tpulm.config.evaluations import Evaluations
from tpulm.config.outline import Outline, Run, checkpoint_period
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
CHECKPOINTS = "checkpoints"  # folder, and branch beside main, of the checkpoints of a run
ARCHIVE = "archive"  # published where publish.artifacts names it


@dataclass(frozen=True)
class Publication:
    """An artifact that can be published.

    name        such as mlm/tiny; of a checkpoint, such as checkpoints/mlm/tiny/00000750
    kind        tokenizer, records, mlm, preset, adapter, transformers (a folder of it), checkpoint or archive
    files       paths at the place that it goes to, and below results/; "" is a folder whose files go there, and CARD is
                the card of all but the archive and checkpoints that do not open as models
    changed_by  the file that tells whether a folder or a checkpoint has changed; "" of what is named file by file
    run         the training run that made it
    records     the set of records that it is
    step        of a checkpoint
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
        """What the repository is called by the hub: a dataset or a model."""
        return "dataset" if self.kind in ("records", "archive") else "model"

    @property
    def slug(self) -> str:
        """How repositories and folders of buckets are named after it; a checkpoint goes to that of its run."""
        return (self.run.path if self.step and self.run else self.name).replace("/", "-")

    @property
    def card(self) -> str:
        """The folder below results/ that has its card; "" where it has none."""
        return next((path.removesuffix(f"/{CARD}") for path in self.files.values() if path.endswith(f"/{CARD}")), "")

    @property
    def opens(self) -> bool:
        """Whether it is a checkpoint that is also a folder that from_pretrained opens: one of a masked model."""
        return bool(self.step and self.card)


def publications_of(outline: Outline) -> dict[str, Publication]:
    """Return the publications with a card by name: all that a config can publish but checkpoints and the archive."""
    found = []
    if "tokenizer" in outline.config:
        files = within("tokenizer", TOKENIZER_FILES.values())
        found.append(Publication("tokenizer", "tokenizer", files))
    for records in outline.records.values():
        files = within(records.folder, (*records.files, MANIFEST))
        found.append(Publication(records.folder, "records", files, records=records))
    found += [publication for run in outline.runs.values() for publication in publications_of_run(run)]
    return {publication.name: publication for publication in found}


def within(folder: str, names: Iterable[str]) -> dict[str, str]:
    """Return files of a folder below results/, and its card, as those of a publication."""
    return {name: f"{folder}/{name}" for name in (*names, CARD)}


def publications_of_run(run: Run) -> list[Publication]:
    """Return the publications of a run: a model, an adapter, or an adapter and the merged model."""
    name, state = run.path, run.checkpoint()["state"]
    if run.stage == "mlm":
        return [Publication(name, "mlm", within(f"{name}/model", MODEL_FILES), run=run)]
    # The causal model as the folder that transformers loads.
    files = {"": f"transformers/{name}", CARD: f"{name}/transformers/{CARD}"}
    other = Publication(files[""], "transformers", files, state, run)
    if run.stage == "base":
        files = {"": f"{name}/preset", CARD: f"{name}/{CARD}"}
        return [Publication(name, "preset", files, f"{run.folder}/preset.json", run), other]
    whole = {"": f"{name}/model", CARD: f"{name}/{CARD}"}
    if run.recipe["method"] == "full":
        return [Publication(name, "preset", whole, state, run), other]
    # As PEFT reads it: both of its files at the top.
    files = {file.removeprefix("adapter/"): f"{name}/{file}" for file in (*ADAPTER_FILES, f"adapter/{CARD}")}
    adapter = Publication(name, "adapter", files, run=run)
    merged = [Publication(f"{name}/merged", "preset", whole, state, run), other]
    return [adapter, *(merged if run.recipe["merge"] else [])]


def checkpoints_of(run: Run, period: int) -> list[Publication]:
    """Return every `period`th checkpoint of a run, and the last; of a masked model, also as the folder that opens."""
    found = []
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
        found.append(Publication(name, "checkpoint", files, state, run, step=step))
    return found


def checkpoint_folder(step: int) -> str:
    """Return the folder of a checkpoint, in that of its run and in a repository."""
    return f"{CHECKPOINTS}/{step:08d}"


def selected_publications(outline: Outline) -> dict[str, Publication]:
    """Return the publications of publish.artifacts by name, with checkpoints where the config has them published.

    An artifact is named by its name, or the beginning of it up to a slash: mlm stands for all masked models.
    """
    section = outline.config.get("publish")
    if section is None:
        return {}
    found = {
        name: publication
        for name, publication in publications_of(outline).items()
        if "artifacts" not in section or any(f"{name}/".startswith(f"{part}/") for part in section["artifacts"])
    }
    if ARCHIVE in section.get("artifacts", ()):
        path = archive_of(outline.config).removeprefix("<results>/")
        files = {f"{path}{end}".removeprefix("archive/"): f"{path}{end}" for end in ("", ".sha256")}
        found[ARCHIVE] = Publication(ARCHIVE, ARCHIVE, files)
    if section["sync"]:
        runs = {publication.run.key: publication.run for publication in found.values() if publication.run}
        period = period_of(section["sync"])
        found |= {made.name: made for run in runs.values() for made in checkpoints_of(run, period)}
    return found


def period_of(sync: str) -> int:
    """Return N of `every N`."""
    return int(sync.removeprefix("every "))


def to_hub(section: Mapping, publication: Publication) -> dict[str, Any]:
    """Return the recipe for publishing an artifact on the hub, see tpulm.release.publishing.

    newest  of a checkpoint what the branch of the models holds until the run was published: branch; files, what each
            file that is at its top is called in the repository; model, the name of what the run ends with, which stays
            there once it was published. None where from_pretrained does not open it, or the run ends with it
    """
    run, step, newest = publication.run, publication.step, None
    if run and step and publication.opens and step != run.segment_ends[-1]:
        files = {file: f"{checkpoint_folder(step)}/{file}" for file in (*MODEL_FILES, CARD)}
        newest = {"branch": section["branch"], "files": files, "model": run.path}
    return {
        **what_is_published(publication),
        "repository": repository_name(section, publication),
        "type": publication.type,
        "branch": branch_of(section, publication),
        "private": section["private"],
        "newest": newest,
    }


def to_bucket(section: Mapping, publication: Publication) -> dict[str, Any]:
    """Return the recipe for publishing an artifact in a bucket."""
    return what_is_published(publication) | {"folder": f"{section['gcs']}/{publication.slug}"}


def what_is_published(publication: Publication) -> dict[str, Any]:
    """Return the part of a recipe that the hub and buckets have in common."""
    return {"name": publication.name, "names": list(publication.files)}


def repository_name(section: Mapping, publication: Publication) -> str:
    """Return the name of a publication's repository on the hub: publish.hub, and what it is."""
    return f"{section['hub']}-{publication.slug}"


def branch_of(section: Mapping, publication: Publication) -> str:
    """Return the branch that takes a publication: checkpoints have one of their own, beside that of the models."""
    branch = section["branch"]
    if not publication.step:
        return branch
    return CHECKPOINTS if branch == "main" else f"{branch}-{CHECKPOINTS}"


def published_before(publication: Publication, published: Mapping[str, Publication]) -> list[str]:
    """Return the name of what has to be on the hub before an artifact.

    Checkpoints that open as models go there in order, and the model that the run ends with comes last.

    published  all that is published, by name
    """
    step = publication.step
    earlier = [
        made.name
        for made in published.values()
        if made.opens and made.slug == publication.slug and (not step or (made.step or 0) < step)
    ]
    return earlier[-1:]


def check_publish(outline: Outline) -> None:
    """Check names of artifacts and repositories, and that checkpoints are there to be published. Raises UserError."""
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
    """Check that a run has the checkpoints that are published while it trains. Raises UserError."""
    keep = run.recipe["keep_checkpoints"]
    kept = checkpoint_period(keep, len(run.segment_ends))
    if period_of(sync) % kept and period_of(sync) < len(run.segment_ends):
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


def kept_of(run: Run) -> dict[str, Any]:
    """Return the keys of a run's config that the history keeps: those that decide the training."""
    keys = ("base", "steps", "learning_rate", "schedule", *run.step_keys)
    recipe = {key: run.recipe[key] for key in keys if key in run.recipe}
    return {"stage": run.stage, "name": run.name, "recipe": recipe}


# What a card says of how a model was trained, where its run has the key.
TRAINING_KEYS = (
    *("backend", "method", *LORA_KEYS, "steps", "batch_size", "sequence_length", "packing", "learning_rate"),
    *("schedule", "optimizer", "masking", "precision", "mesh", "seed"),
)


def facts_of(publication: Publication, evaluations: Evaluations) -> dict[str, str | list[str]]:
    """Return the files that a card is made of, by name."""
    if publication.kind == "tokenizer":
        return {"metrics": "<results>/tokenizer/metrics.json", "corpus": "<results>/corpus/corpus.json"}
    run = publication.run
    records = run.records if run else publication.records
    assert records is not None
    found: dict[str, str | list[str]] = {"manifest": records.manifest}
    if not records.external_files:
        found["corpus"] = f"<results>/{records.collection}/corpus.json"
    if run and publication.step:
        found["state"] = run.checkpoint(publication.step)["state"]
    elif run:
        found |= {name: f"{run.folder}/{file}" for name, file in SEGMENT_FILES.items()}
        found |= {"metrics": f"{run.folder}/metrics.json", "state": run.state}
        found["states"] = run.in_every_checkpoint(CHECKPOINT_FILES["state"])
        found["scores"] = evaluations.of_model(run.path)
    return found


def card_recipe(publication: Publication, outline: Outline) -> dict:
    """Return the recipe of a card.

    name, kind, license (or None); source, where the artifact is to be loaded from: its repository, or its folder; of a
    tokenizer, where it is from; of a model, its sizes or the one that it starts from, and how it was trained; of a
    tuned one, its base; of a checkpoint on the hub, revision and subfolder
    """
    config, run = outline.config, publication.run
    section = config.get("publish", {})
    kept: dict = {"name": publication.name, "kind": publication.kind, "source": source_of(publication, config)}
    kept["license"] = section.get("license")
    if publication.kind == "tokenizer":
        return kept | {"tokenizer": {key: value for key, value in config["tokenizer"].items() if key != "compare_with"}}
    if run is None:
        return kept
    if publication.step and "hub" in section:
        kept |= {"revision": branch_of(section, publication), "subfolder": checkpoint_folder(publication.step)}
    unused = () if run.backend == "jax" else ("mesh",)
    kept["training"] = {key: run.recipe[key] for key in TRAINING_KEYS if key in run.recipe and key not in unused}
    if run.stage == "finetune":
        return kept | {"base": base_of(run, outline)}
    return kept | {key: run.recipe[key] for key in ("model", "init") if key in run.recipe}


def base_of(run: Run, outline: Outline) -> dict:
    """Return the base of a tuned model: its name, what keras-hub and transformers load it by, its name on the hub.

    The last two are None where they are not known.
    """
    name = run.recipe["base"]
    if "preset" in run.base:
        hub = hub_base(run)["hub_name"]
        return {"name": name, "preset": run.base["preset"], "transformers": None, "hub": hub}
    known, config = publications_of(outline), outline.config
    keras, transformers = (source_of(known[f"{kind}base/{name}"], config) for kind in ("", "transformers/"))
    hub = transformers if "hub" in config.get("publish", {}) else None
    return {"name": name, "preset": keras, "transformers": transformers, "hub": hub}


def hub_base(run: Run) -> dict:
    """Return name and revision on the hub of a run's base model; the name is None for one from elsewhere."""
    preset = run.base.get("preset", "")
    name = preset.removeprefix("hf://") if preset.startswith("hf://") else None
    return {"hub_name": name, "hub_revision": run.base.get("revision")}


def source_of(publication: Publication, config: Mapping) -> str:
    """Return the name by which libraries load an artifact: its repository, or its folder."""
    section = config.get("publish", {})
    if "hub" not in section:
        return f"results/{publication.files.get('', publication.card)}"
    return f"{'hf://' if publication.kind == 'preset' else ''}{repository_name(section, publication)}"
