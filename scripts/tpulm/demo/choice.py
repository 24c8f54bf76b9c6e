"""Find the models, checkpoints of unfinished runs, models of tasks, and tokenizers of the demo.

A model is only opened at its first prompt, so that the page appears at once.
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
from tpulm.specs.masked_sizes import SIZE_TABLES, opens

Prompt = str | list  # a text; two texts; or the messages of a conversation
Settings = Mapping[str, Any]  # length, temperature, top_p, seed, adapter
Tell = Callable[[dict], bool]  # sends a part of an answer; returns whether the reader is still connected
STEP = re.compile(r"(.+?)(?:/checkpoints)?/(\d+)")  # name of a run, and step of a checkpoint
EXAMPLES = 5


class Answers(Protocol):
    """An open model or tokenizer."""

    def answer(self, prompt: Prompt, settings: Settings, tell: Tell) -> None:
        """Send the answer to a prompt. Raises UserError for an invalid prompt."""


@dataclass
class Choice:
    """A model or tokenizer that can be opened.

    kinds     kinds of prompts: masked, causal, chat (conversations), labels, tokens
    opening   opens it; needs tpulm.training.runtime.start first
    adapter   whether it has an adapter, whose strength can be set
    texts     number of texts of a prompt
    examples  example prompts
    """

    kinds: tuple[str, ...]
    opening: Callable[[], Answers]
    adapter: bool = False
    texts: int = 1
    examples: list[list[str]] = field(default_factory=list)

    @cached_property
    def opened(self) -> Answers:
        """The open model, which is opened at the first access."""
        return self.opening()


@dataclass
class Choices:
    """All choices.

    named     choices by name
    places    config of each folder of results
    left_out  error of each model that cannot be opened, by name
    owners    folder of results of each name without prefix
    """

    named: dict[str, Choice] = field(default_factory=dict)
    places: dict[Path, Mapping] = field(default_factory=dict)
    left_out: dict[str, UserError] = field(default_factory=dict)
    owners: dict[str, Path] = field(default_factory=dict)

    def add(self, place: Path, config: Mapping, choices: Mapping[str, Choice]) -> None:
        """Add the choices of a folder of results; a name that another folder has gets the folder as prefix."""
        self.places[place] = config
        for name, choice in choices.items():
            if self.owners.setdefault(name, place) == place:
                self.named[name] = choice
            else:
                self.named[f"{place}: {name}"] = choice


def choices(named_models: list[str], configfile: list[Path] | None, results: Path | None) -> Choices:
    """Return the named models with their tasks and tokenizers; without names, all of the results.

    named_models  RUN, STAGE/RUN, a config key or a folder, each with /STEP for a checkpoint; by default, an unfinished
                  run stands for its newest checkpoint

    Raises UserError if there are none.
    """
    selection = Choices()
    shared: dict[Path, list] = {}
    for place, config, run, step in places_of(named_models, configfile, results):
        selection.places[place] = config
        if not run:  # tokenizers only
            continue
        try:
            models = finished_models.models(place) if step is None else list(finished_models.begun(place))
            stage, name = finished_models.choose_model(run, models, place)
            if step is None:
                model = of_model(stage, folders_of(stage, name, place, config), shared)
                tasks = of_tasks(place, name) if stage == "mlm" else {}
                selection.add(place, config, {f"{stage}/{name}": model} | tasks)
            else:
                checkpoint = of_checkpoint(place, stage, name, step, config)
                selection.add(place, config, {f"{stage}/{name}/{step}": checkpoint})
        except UserError as error:
            selection.left_out[run if step is None else f"{run}/{step}"] = error
    if named_models and not selection.named:
        raise next(iter(selection.left_out.values()))
    for place, config in list(selection.places.items()):
        selection.add(place, config, of_tokenizers(place))
    if not selection.named:
        raise next(iter(selection.left_out.values()), None) or UserError(
            f"there is nothing to type into in {', '.join(map(str, selection.places))}."
        )
    return selection


def places_of(
    named_models: list[str], configfile: list[Path] | None, results: Path | None
) -> Iterator[tuple[Path, Mapping, str, int | None]]:
    """Yield folder of results, config, run and step (None if finished) of each model; without names, of all."""
    for name in named_models:
        name = name.rstrip("/")
        place, run, config = finished_models.place_of(name, configfile, results)
        checkpoint = STEP.fullmatch(name)
        # The last part of a run's name may be a number, too.
        if checkpoint and run not in (*finished_models.models(place), *finished_models.begun(place)):
            place, run, config = finished_models.place_of(checkpoint[1], configfile, results)
        else:
            checkpoint = None
        step = int(checkpoint[2]) if checkpoint else None
        yield place, config, run, step if step is not None else unfinished(run, place)
    if not named_models:
        place, config = finished_models.results_and_config(configfile, results)
        finished = finished_models.models(place)
        running = {run: step for run, step in finished_models.begun(place).items() if run not in finished}
        both: dict[str, int | None] = dict.fromkeys(finished) | running
        yield from ((place, config, run, step) for run, step in (both or {"": None}).items())


def unfinished(run: str, place: Path) -> int | None:
    """Return the step of the last checkpoint of a named run; None for a finished or ambiguous one."""
    name, finished = finished_models.short_name(run), finished_models.models(place)
    steps = {
        model: step for model, step in finished_models.begun(place).items() if name in (model, model.partition("/")[2])
    }
    return [*steps.values()][0] if len(steps) == 1 and not steps.keys() & set(finished) else None


def of_model(stage: str, folders: Folders, shared: dict[Path, list]) -> Choice:
    """Return a finished model; shared  open causal models by folder. Raises UserError if JAX cannot open it."""
    if stage == "mlm":
        if not opens(read_json(folders.model / "config.json")):
            raise UserError(f"{folders.model} opens in TensorFlow only; allowed here: models that JAX opens.")
        return Choice(("masked",), partial(masked, folders.model))
    return Choice(kinds_of(folders.chat), partial(causal, folders, shared), adapter=folders.adapter is not None)


def of_checkpoint(place: Path, stage: str, name: str, step: int, config: Mapping) -> Choice:
    """Return the model of a checkpoint. Raises UserError if the checkpoint is missing, or JAX cannot open it."""
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
        if model["architecture"] not in SIZE_TABLES:
            raise UserError(f"{checkpoint} opens in TensorFlow only; allowed here: models that JAX opens.")
        return Choice(("masked",), partial(masked, place / "tokenizer", checkpoint))
    # A finetuned model starts from its base, because the exported model may have merged adapters.
    base = place / "base" / finished_models.base_of(name, place, config) / "preset" if stage == "finetune" else None
    base_recipe = config.get("base", {}).get(name, {}) if stage == "base" else {}
    tokenizer = place / vocabulary_of(name, base_recipe) if "tokenizer" in base_recipe else None
    vocabulary = tokenizer if tokenizer and tokenizer.is_file() else vocabulary_in(folder)
    folders = Folders(base or vocabulary, chat=finished_models.template_of(stage, place))
    return Choice(kinds_of(folders.chat), partial(causal, folders, {}, checkpoint))


def kinds_of(chat: Path | None) -> tuple[str, ...]:
    """Return the kinds of prompts of a causal model; chat  its chat template, or None."""
    return ("causal", "chat") if chat else ("causal",)


def of_tasks(place: Path, name: str) -> dict[str, Choice]:
    """Return the task models of a masked model by name: for each task, the first chain that was selected."""
    import pyarrow.parquet as pq

    choices_by_name = {}
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
        choices_by_name[f"{task.name}: mlm/{name}"] = Choice(
            ("labels",),
            partial(labels, place / "mlm" / name / "model", task, best, len(columns)),
            texts=len(columns),
            examples=examples,
        )
    return choices_by_name


def of_tokenizers(place: Path) -> dict[str, Choice]:
    """Return by name the tokenizer of masked models, its compared tokenizers, and the vocabularies of base models."""
    folders = {"tokenizer of masked models": place / "tokenizer"}
    folders |= {path.name: path for path in sorted((place / "tokenizer/compared").glob("*"))}
    paths = {name: path / "tokenizer.json" for name, path in folders.items() if (path / "tokenizer.json").is_file()}
    bases = (model for model in finished_models.models(place) if model.startswith("base/"))
    paths |= {f"vocabulary of {model}": place / model / "preset" for model in bases}
    return {name: Choice(("tokens",), partial(tokens, path)) for name, path in paths.items()}


# These functions import libraries only when they are called, because that takes seconds.


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
