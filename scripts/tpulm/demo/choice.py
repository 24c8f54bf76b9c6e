"""What there is to type into: models, checkpoints of unfinished runs, models of tasks, and tokenizers.

Nothing is opened here, so that a page appears at once.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from tpulm.config import finished_models
from tpulm.config.finished_models import Folders, folders_of
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.specs.artifacts import CHECKPOINT_FILES, TASKS
from tpulm.specs.causal_vocabularies import vocabulary_in, vocabulary_of
from tpulm.specs.classification_heads import PRETRAINED
from tpulm.specs.masked_sizes import KINDS, opens

Prompt = str | list  # a text; two texts; or the messages of a conversation
Settings = Mapping[str, Any]  # length, temperature, top_p, seed, adapter
Tell = Callable[[dict], bool]  # of a part of an answer; returns whether somebody still reads
STEP = re.compile(r"(.+?)(?:/checkpoints)?/(\d+)")  # of a checkpoint
EXAMPLES = 5


class Answers(Protocol):
    """What is open."""

    def answer(self, prompt: Prompt, settings: Settings, tell: Tell) -> None:
        """Send the answer to a prompt. Raises UserError for what it does not take."""


@dataclass
class Choice:
    """One of those that there are.

    kinds    masked, causal, chat (conversations), labels, tokens: by what it takes
    opening  opens it; needs tpulm.training.runtime.start first
    adapter  whether it has one, whose strength can be set
    texts    how many it takes at once; examples  of them
    """

    kinds: tuple[str, ...]
    opening: Callable[[], Answers]
    adapter: bool = False
    texts: int = 1
    examples: list[list[str]] = field(default_factory=list)

    @cached_property
    def opened(self) -> Answers:
        """What is open from the first prompt on."""
        return self.opening()


@dataclass
class Choices:
    """All of them by name; the places that they are from, with their configs; why others were left out, by name.

    owners  the place whose names need no place before them
    """

    named: dict[str, Choice] = field(default_factory=dict)
    places: dict[Path, Mapping] = field(default_factory=dict)
    left_out: dict[str, UserError] = field(default_factory=dict)
    owners: dict[str, Path] = field(default_factory=dict)

    def add(self, place: Path, config: Mapping, found: Mapping[str, Choice]) -> None:
        """Add those of a place, with the place where the name is taken."""
        self.places[place] = config
        for name, choice in found.items():
            if self.owners.setdefault(name, place) == place:
                self.named[name] = choice
            else:
                self.named[f"{place}: {name}"] = choice


def choices(asked: list[str], configfile: list[Path] | None, results: Path | None) -> Choices:
    """Return the models that a person names, with their tasks and tokenizers; without names, all that there are.

    asked  RUN, STAGE/RUN, the key of the config or a folder; behind it /STEP for a checkpoint. Of a run that has not
           finished, it is the newest one

    Raises UserError where there are none.
    """
    found = Choices()
    shared: dict[Path, list] = {}
    for place, config, run, step in places_of(asked, configfile, results):
        found.places[place] = config
        if not run:  # no model, but maybe tokenizers
            continue
        try:
            there = finished_models.models(place) if step is None else list(finished_models.begun(place))
            stage, name = finished_models.choose_model(run, there, place)
            if step is None:
                model = of_model(stage, folders_of(stage, name, place, config), shared)
                tasks = of_tasks(place, name) if stage == "mlm" else {}
                found.add(place, config, {f"{stage}/{name}": model} | tasks)
            else:
                checkpoint = of_checkpoint(place, stage, name, step, config)
                found.add(place, config, {f"{stage}/{name}/{step}": checkpoint})
        except UserError as error:
            found.left_out[run if step is None else f"{run}/{step}"] = error
    if asked and not found.named:
        raise next(iter(found.left_out.values()))
    for place, config in list(found.places.items()):
        found.add(place, config, of_tokenizers(place))
    if not found.named:
        raise next(iter(found.left_out.values()), None) or UserError(
            f"there is nothing to type into in {', '.join(map(str, found.places))}."
        )
    return found


def places_of(
    asked: list[str], configfile: list[Path] | None, results: Path | None
) -> Iterator[tuple[Path, Mapping, str, int | None]]:
    """Yield of each model that is asked for its results, their config, its run, and its step if it is a checkpoint.

    Without names, of all finished models, and of the last checkpoint of each run that has not finished.
    """
    for name in asked:
        name = name.rstrip("/")
        place, run, config = finished_models.place_of(name, configfile, results)
        found = STEP.fullmatch(name)
        if found and run not in (*finished_models.models(place), *finished_models.begun(place)):  # names may be numbers
            place, run, config = finished_models.place_of(found[1], configfile, results)
        else:
            found = None
        step = int(found[2]) if found else None
        yield place, config, run, step if step is not None else unfinished(run, place)
    if not asked:
        place, config = finished_models.results_and_config(configfile, results)
        finished = finished_models.models(place)
        running = {run: step for run, step in finished_models.begun(place).items() if run not in finished}
        both: dict[str, int | None] = dict.fromkeys(finished) | running
        yield from ((place, config, run, step) for run, step in (both or {"": None}).items())


def unfinished(run: str, place: Path) -> int | None:
    """Return the step of the last checkpoint of a run that a person names, where it has not finished."""
    name, finished = finished_models.short_name(run), finished_models.models(place)
    steps = {
        model: step for model, step in finished_models.begun(place).items() if name in (model, model.partition("/")[2])
    }
    return [*steps.values()][0] if len(steps) == 1 and not steps.keys() & set(finished) else None


def of_model(stage: str, folders: Folders, shared: dict[Path, list]) -> Choice:
    """Return a finished model; shared  open causal models by their folders. Raises UserError for what JAX cannot."""
    if stage == "mlm":
        if not opens(read_json(folders.model / "config.json")):
            raise UserError(f"{folders.model} opens in TensorFlow only; allowed here: models that JAX opens.")
        return Choice(("masked",), partial(masked, folders.model))
    return Choice(kinds_of(folders.chat), partial(causal, folders, shared), adapter=folders.adapter is not None)


def of_checkpoint(place: Path, stage: str, name: str, step: int, config: Mapping) -> Choice:
    """Return a model as it was at a checkpoint. Raises UserError where that is not there."""
    folder = place / stage / name
    steps = finished_models.complete_steps(folder)
    if step not in steps:
        raise UserError(f"{folder} has no checkpoint of step {step}; allowed: {', '.join(map(str, steps))}.")
    checkpoint = folder / "checkpoints" / f"{step:08d}"
    if not (checkpoint / CHECKPOINT_FILES["weights"]).is_file():
        raise UserError(f"the weights of {checkpoint} are deleted (keep_checkpoints); allowed: other checkpoints.")
    if stage == "mlm":
        model = read_json(checkpoint / CHECKPOINT_FILES["state"])["recipe"].get("model")
        if model is None:
            raise UserError(f"the run of {checkpoint} starts from another model; allowed: the model that it ends with.")
        if model["architecture"] not in KINDS:
            raise UserError(f"{checkpoint} opens in TensorFlow only; allowed here: models that JAX opens.")
        return Choice(("masked",), partial(masked, place / "tokenizer", checkpoint))
    # Of a finetuned model the base that it starts from: adapters may have been merged since.
    base = place / "base" / finished_models.base_of(name, place, config) / "preset" if stage == "finetune" else None
    made = config.get("base", {}).get(name, {}) if stage == "base" else {}
    asked = place / vocabulary_of(name, made) if "tokenizer" in made else None
    vocabulary = asked if asked and asked.is_file() else vocabulary_in(folder)
    folders = Folders(base or vocabulary, chat=finished_models.template_of(stage, place))
    return Choice(kinds_of(folders.chat), partial(causal, folders, {}, checkpoint))


def kinds_of(chat: Path | None) -> tuple[str, ...]:
    """Return the kinds of a causal model with a chat template, or without."""
    return ("causal", "chat") if chat else ("causal",)


def of_tasks(place: Path, name: str) -> dict[str, Choice]:
    """Return by name the models of tasks that were made of a masked model: the first of those that were scored."""
    import pyarrow.parquet as pq

    found = {}
    for chains in sorted((place / TASKS).glob(f"*/mlm/{name}/chains.csv")):
        with open(chains, encoding="utf-8") as file:
            scored = [row for row in csv.DictReader(file) if row["weights"] == PRETRAINED and row["selected"] == "True"]
        chain = chains.parent / f"{PRETRAINED}-rate-{float(scored[0]['rate']):g}-seed-{scored[0]['seed']}"
        steps = finished_models.complete_steps(chain)
        if not steps:
            continue
        best = chain / "checkpoints" / f"{steps[-1]:08d}" / CHECKPOINT_FILES["best"]
        task = chains.parents[2]
        file = pq.ParquetFile(task / "test.parquet")
        columns = [name for name in ("text", "text_pair") if name in file.schema_arrow.names]
        examples = [list(row.values()) for row in next(file.iter_batches(EXAMPLES, columns=columns)).to_pylist()]
        found[f"{task.name}: mlm/{name}"] = Choice(
            ("labels",),
            partial(labels, place / "mlm" / name / "model", task, best, len(columns)),
            texts=len(columns),
            examples=examples,
        )
    return found


def of_tokenizers(place: Path) -> dict[str, Choice]:
    """Return by name the tokenizer of masked models, those that it is compared with, and those of base models."""
    own = {"tokenizer of masked models": place / "tokenizer"}
    own |= {path.name: path for path in sorted((place / "tokenizer/compared").glob("*"))}
    found = {name: path / "tokenizer.json" for name, path in own.items() if (path / "tokenizer.json").is_file()}
    bases = (model for model in finished_models.models(place) if model.startswith("base/"))
    found |= {f"vocabulary of {model}": place / model / "preset" for model in bases}
    return {name: Choice(("tokens",), partial(tokens, path)) for name, path in found.items()}


# What follows imports libraries that take seconds.


def masked(folder: Path, checkpoint: Path | None = None) -> Answers:
    """Open a masked model: of a folder, or of a checkpoint and a folder with the tokenizer."""
    from tpulm.demo.checkpoints import open_masked
    from tpulm.demo.masked import Masked

    return Masked(folder, open_masked(checkpoint, folder.parent) if checkpoint else None)


def causal(folders: Folders, shared: dict[Path, list], checkpoint: Path | None = None) -> Answers:
    """Open a causal model: of its folders, or of a checkpoint."""
    from tpulm.demo.causal import Causal
    from tpulm.demo.checkpoints import open_causal

    return Causal(folders, shared, open_causal(checkpoint, folders.model) if checkpoint else None)


def labels(folder: Path, task: Path, best: Path, texts: int) -> Answers:
    """Open the model of a task, see `Labels`."""
    from tpulm.demo.labels import Labels

    return Labels(folder, task, best, texts)


def tokens(path: Path) -> Answers:
    """Open a tokenizer, see `Tokens`."""
    from tpulm.demo.tokens import Tokens

    return Tokens(path)
