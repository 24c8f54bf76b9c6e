"""What can be published, archived and signed: of each artifact, its files, where they go, and its card.

A name, such as mlm/tiny, stands for an artifact in publish.artifacts, in receipts, and, with `-` for `/`, in the names
of repositories.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpulm.config.exported_models import Model
from tpulm.config.record_sets import RecordSet
from tpulm.config.runs import LORA_KEYS, Run, checkpoint_period, pick, record_sets_of, runs_of
from tpulm.core.errors import UserError, describe
from tpulm.specs.artifacts import (
    ADAPTER_FILES,
    CHECKPOINT_FILES,
    MANIFEST,
    MODEL_FILES,
    SEGMENT_FILES,
    TOKENIZER_FILES,
    experiment_folder,
)

LONGEST = 96  # characters of a repository's name on the hub
CHECKPOINTS = "checkpoints"  # folder, and branch beside main, of the checkpoints of a run
CROISSANT = "croissant.json"
ARCHIVE = "archive"  # published where publish.artifacts names it
CARD = "README.md"
# Below results/: cards of checkpoints that open as models.
CHECKPOINT_CARDS = "publish/cards"


@dataclass(frozen=True)
class Publication:
    """An artifact that can be published.

    name        such as mlm/tiny; of a checkpoint, such as checkpoints/mlm/tiny/00000750
    kind        tokenizer, records, mlm, base, adapter, model (a preset), transformers (a folder of it), checkpoint or
                archive
    repository  the name of the artifact whose repository takes it: of a checkpoint, that of its run
    files       of what rules name file by file: path in the repository, and below results/
    folder      of what rules name as a folder: its path below results/; else ""
    card        the folder below results/ that has the card, README.md; "" of a checkpoint; a masked model's has its
                card in `files`
    run         the training run that made it
    records     the set of records that it is
    """

    name: str
    kind: str
    repository: str
    files: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    card: str = ""
    run: Run | None = None
    records: RecordSet | None = None

    @property
    def type(self) -> str:
        """What the repository is called by the hub: a dataset or a model."""
        return "dataset" if self.kind in ("records", "archive") else "model"

    @property
    def step(self) -> int:
        """The step of a checkpoint."""
        return int(self.name.rpartition("/")[2])

    @property
    def ends(self) -> bool:
        """Whether it is the checkpoint that its run ends with."""
        return self.kind == "checkpoint" and self.run is not None and self.step == self.run.segment_ends[-1]

    @property
    def opens(self) -> bool:
        """Whether it is a checkpoint that is also a folder that from_pretrained opens: one of a masked model."""
        return self.kind == "checkpoint" and self.run is not None and self.run.stage == "mlm"


def publications_of(config: Mapping) -> dict[str, Publication]:
    """Return what a completed config can publish, by name, without checkpoints and the archive: what has a card."""
    runs = runs_of(config)
    found = [tokenizer_of_masked_models()] if "tokenizer" in config else []
    found += map(publication_of_records, record_sets_of(config, runs).values())
    found += [publication for run in runs for publication in publications_of_run(run)]
    return {publication.name: publication for publication in found}


def tokenizer_of_masked_models() -> Publication:
    """Return the tokenizer."""
    files = {file: f"tokenizer/{file}" for file in TOKENIZER_FILES.values()}
    return Publication("tokenizer", "tokenizer", "tokenizer", files=files, card="tokenizer")


def publication_of_records(records: RecordSet) -> Publication:
    """Return a set of records: shards, manifest and Croissant metadata."""
    folder = records.folder
    files = {file: f"{folder}/{file}" for file in (*records.files, MANIFEST, CROISSANT)}
    return Publication(folder, "records", folder, files=files, card=folder, records=records)


def publication_of_archive(config: Mapping) -> Publication:
    """Return the archive of the run, with its checksum, and its signature if there is one; it describes itself."""
    section = config["archive"]
    name = f"{section['name']}-{section['version']}.zip"
    names = [name, f"{name}.sha256", *([f"{name}.sig"] if section["sign"] else [])]
    return Publication(ARCHIVE, ARCHIVE, ARCHIVE, files={file: f"archive/{file}" for file in names})


def publications_of_run(run: Run) -> list[Publication]:
    """Return what a run makes: a model, an adapter, or an adapter and the model that it is merged into."""
    name = f"{run.stage}/{run.name}"
    if run.stage == "mlm":
        folder = f"{name}/model"
        files = {file: f"{folder}/{file}" for file in MODEL_FILES}
        return [Publication(name, "mlm", name, files=files, card=folder, run=run)]
    if run.stage == "base":
        preset = Publication(name, "base", name, folder=f"{name}/preset", card=name, run=run)
        return [preset, for_transformers(run, name)]

    def model(called: str) -> Publication:
        return Publication(called, "model", called, {}, f"{name}/model", name, run)

    if run.recipe["method"] == "full":
        return [model(name), for_transformers(run, name)]
    # As PEFT reads it: both of its files at the top.
    files = {file.removeprefix("adapter/"): f"{name}/{file}" for file in ADAPTER_FILES}
    adapter = Publication(name, "adapter", name, files, "", f"{name}/adapter", run)
    merged = [model(f"{name}/merged"), for_transformers(run, name)] if run.recipe["merge"] else []
    return [adapter, *merged]


def for_transformers(run: Run, beside: str) -> Publication:
    """Return the causal model of a run as the folder that transformers loads; `beside`, where its card has a folder."""
    model = f"{run.stage}/{run.name}"
    name = f"transformers/{model}"
    return Publication(name, "transformers", name, {}, name, f"{beside}/transformers", run)


def checkpoints_of(run: Run, period: int) -> list[Publication]:
    """Return every `period`th checkpoint of a run, and the last; of a masked model, also as the folder that opens."""
    name, chain = f"{run.stage}/{run.name}", run.path
    found = []
    for number, step in enumerate(run.segment_ends, start=1):
        if number % period and step != run.segment_ends[-1]:
            continue
        here = f"{CHECKPOINTS}/{step:08d}"
        files = {f"{here}/{file}": f"{chain}/{here}/{file}" for file in (CHECKPOINT_FILES | SEGMENT_FILES).values()}
        if run.stage == "mlm":
            exported = [file.removeprefix("<results>/") for file in Model(run, step).files]
            files |= {f"{here}/{file}": path for file, path in zip(MODEL_FILES, exported, strict=True)}
            files[f"{here}/{CARD}"] = f"{CHECKPOINT_CARDS}/{name}/{step:08d}/{CARD}"
        full = f"{CHECKPOINTS}/{name}/{step:08d}"
        found.append(Publication(full, "checkpoint", name, files=files, run=run))
    return found


def chosen(config: Mapping) -> dict[str, Publication]:
    """Return what a completed config publishes, by name: what publish.artifacts names, with checkpoints if asked for.

    An artifact is named by its name, or the beginning of it up to a slash: mlm stands for all masked models.
    """
    section = config.get("publish")
    if section is None:
        return {}
    found = {
        name: publication
        for name, publication in publications_of(config).items()
        if "artifacts" not in section or any(f"{name}/".startswith(f"{part}/") for part in section["artifacts"])
    }
    if ARCHIVE in section.get("artifacts", ()):
        found[ARCHIVE] = publication_of_archive(config)
    if section["sync"]:
        runs = {publication.run.key: publication.run for publication in found.values() if publication.run}
        period = period_of(section["sync"])
        found |= {made.name: made for run in runs.values() for made in checkpoints_of(run, period)}
    return found


def newest_of(section: Mapping, publication: Publication) -> dict[str, Any] | None:
    """Return what of a checkpoint the branch of the models holds until the run was published, as its newest model.

    branch; files: what each file that is at its top is called in the repository; model: the name of what the run ends
    with, which stays there once it was published. None where there is none: from_pretrained does not open the
    checkpoint, or the run ends with it.
    """
    if not publication.opens or publication.ends:
        return None
    files = {file: f"{folder_of(publication)}/{file}" for file in (*MODEL_FILES, CARD)}
    return {"branch": section["branch"], "files": files, "model": publication.repository}


def folder_of(publication: Publication) -> str:
    """Return the folder of a checkpoint in the repository of its run."""
    return f"{CHECKPOINTS}/{publication.step:08d}"


def period_of(sync: str) -> int:
    """Return N of `every N`."""
    return int(sync.removeprefix("every "))


def repository_name(section: Mapping, publication: Publication) -> str:
    """Return the name of a publication's repository on the hub: publish.hub, and what it is."""
    return f"{section['hub']}-{folder_name(publication)}"


def folder_name(publication: Publication) -> str:
    """Return the name of a publication's folder in a bucket."""
    return publication.repository.replace("/", "-")


def branch_of(section: Mapping, publication: Publication) -> str:
    """Return the branch that takes a publication: checkpoints have one of their own, beside that of the models."""
    branch = section["branch"]
    if publication.kind != "checkpoint":
        return branch
    return CHECKPOINTS if branch == "main" else f"{branch}-{CHECKPOINTS}"


def check_publish(config: Mapping) -> None:
    """Check names of artifacts and repositories, and that checkpoints are there to be published. Raises UserError."""
    section = config.get("publish")
    if section is None:
        return
    names = [*publications_of(config), ARCHIVE]
    for index, part in enumerate(section.get("artifacts", ())):
        if not any(f"{name}/".startswith(f"{part}/") for name in names):
            raise UserError(
                f"publish.artifacts[{index}] is {describe(part)}; allowed: {', '.join(names)}, or a prefix of one "
                "that ends before a slash."
            )
    for publication in chosen(config).values():
        check_repository(section, publication)
        if publication.kind == "checkpoint":
            check_kept(section["sync"], publication.run)
        if publication.opens and publication.run and publication.run.recipe["patience"]:
            raise UserError(
                f"publish.sync is {section['sync']}, but {publication.run.key} has patience, and checkpoints after an "
                "early stop have no weights of their own; allowed: null."
            )


def check_repository(section: Mapping, publication: Publication) -> None:
    """Check that the hub can have a repository of this name. Raises UserError."""
    if "hub" not in section:
        return
    name = repository_name(section, publication).rpartition("/")[2]
    if len(name) > LONGEST or re.search(r"--|\.\.|[-.]\Z", name):
        raise UserError(
            f"publish.hub names a repository {describe(name)}; allowed: at most {LONGEST} characters, without -- and "
            ".., ending in a letter, a digit or _."
        )


def check_kept(sync: str, run: Run | None) -> None:
    """Check that a run keeps the checkpoints that are published while it trains. Raises UserError."""
    if run is None:
        return
    keep = run.recipe["keep_checkpoints"]
    kept = checkpoint_period(keep, len(run.segment_ends))
    if period_of(sync) % kept and period_of(sync) < len(run.segment_ends):
        raise UserError(
            f"publish.sync is {sync}, but {run.key}.keep_checkpoints is {keep}, which deletes some of these "
            "checkpoints; allowed: every Nth checkpoint that is kept."
        )


def archive_of(config: Mapping) -> str:
    """Return the path of the archive."""
    section = config["archive"]
    return f"<results>/archive/{section['name']}-{section['version']}.zip"


def signatures_of(config: Mapping) -> dict[str, dict[str, Any]]:
    """Return the signature of every model by its path: files, what the rule reads; folder, and names of files in it."""
    found = {}
    for name, publication in publications_of(config).items():
        if publication.kind not in ("mlm", "base", "adapter", "model", "transformers"):
            continue
        files = [f"<results>/{file}" for file in publication.files.values()]
        folder = f"<results>/{publication.folder}" if publication.folder else files[0].rpartition("/")[0]
        # Its card, too, where that lies beside it: the programs that check a signature allow no other files.
        files += [f"{folder}/README.md"] if files and f"<results>/{publication.card}" == folder else []
        names = [file.removeprefix(f"{folder}/") for file in files]
        found[f"<results>/archive/models/{name.replace('/', '-')}.sig"] = {
            "files": files or [folder],
            "folder": folder,
            "names": names,
        }
    return found


def kept_of(run: Run) -> dict[str, Any]:
    """Return what the history keeps of a run's config: the keys that decide what is trained."""
    keys = ("base", "steps", "learning_rate", "schedule", *run.step_keys)
    recipe = {key: run.recipe[key] for key in keys if key in run.recipe}
    return {"stage": run.stage, "name": run.name, "recipe": recipe}


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
    run, folder = publication.run, publication.run.path
    below = len("<results>/")
    if publication.kind == "checkpoint":
        return data | {"state": [run.checkpoint(publication.step)["state"][below:]]}
    return data | {
        **{name: [f"{folder}/{file}"] for name, file in SEGMENT_FILES.items()},
        "metrics": [f"{folder}/metrics.json"],
        "state": [run.state[below:]],
        "states": [path[below:] for path in run.in_every_checkpoint(CHECKPOINT_FILES["state"])],
    }


def card_recipe(publication: Publication, config: Mapping) -> dict:
    """Return what a card takes of the config.

    name, kind; source, where the artifact is to be loaded from: its repository, or its folder; of a tokenizer, where
    it is from; of a model, its sizes and how it was trained; of a tuned one, its base
    """
    kept: dict = {"name": publication.name, "kind": publication.kind, "source": source_of(publication, config)}
    if publication.kind == "tokenizer":
        own = {key: value for key, value in config["tokenizer"].items() if key != "compare_with"}
        return kept | {"tokenizer": own}
    if publication.run is None:
        return kept
    if publication.kind == "checkpoint" and "hub" in config.get("publish", {}):
        kept |= {"revision": branch_of(config["publish"], publication), "subfolder": folder_of(publication)}
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
        return f"{experiment_folder(config)}results/{publication.folder or publication.card}"
    name = repository_name(section, publication)
    return f"hf://{name}" if publication.kind in ("base", "model") else name


def croissant_of(publication: Publication, config: Mapping) -> dict:
    """Return what the metadata of a set of records takes of the config: its name, and the name of its repository."""
    section = config.get("publish", {})
    name = repository_name(section, publication) if "hub" in section else None
    return {"name": publication.name.replace("/", "-"), "repository": name}
