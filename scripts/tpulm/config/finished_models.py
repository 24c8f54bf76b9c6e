"""Finished models in a folder of results: which there are, which one a user means, and where its folders are."""

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpulm.config.outline import LIMITS, sampling_of
from tpulm.config.reading import complete, read_config
from tpulm.core.errors import UserError, suggestion
from tpulm.core.experiments import CONFIG, directory_option, from_workflow
from tpulm.core.files import read_json, sha256
from tpulm.specs.artifacts import CHECKPOINT_FILES, TOKENIZER_FILES, TRAINED_ON

# Files below STAGE/RUN by stage; a finished model has one of them.
WHOLE = {
    "mlm": ["model/model.safetensors"],
    "base": ["preset/config.json"],
    "finetune": ["model/config.json", "adapter.lora.h5"],
}


def models(results: Path) -> list[str]:
    """Return every finished model of a folder of results, as STAGE/RUN."""
    names = [
        f"{stage}/{folder.name}"
        for stage, files in WHOLE.items()
        for folder in (results / stage).glob("*")
        if any((folder / file).is_file() for file in files)
    ]
    return sorted(names)


def complete_steps(run: Path) -> list[int]:
    """Return the steps of a run's complete checkpoints in order, up to the first that does not follow from the others.

    Checkpoints of an earlier recipe may lie at steps that the run has not reached again.
    """
    states = [
        state for state in run.glob(f"checkpoints/*/{CHECKPOINT_FILES['state']}") if state.parent.name.isdecimal()
    ]
    steps: list[int] = []
    before = None
    for state in sorted(states, key=lambda state: int(state.parent.name)):
        if steps and read_json(state).get("previous_sha256") != before:
            break
        steps.append(int(state.parent.name))
        before = sha256(state)
    return steps


def begun(results: Path) -> dict[str, int]:
    """Return the step of the last complete checkpoint of each run that has one, by STAGE/RUN."""
    runs = [run for stage in WHOLE for run in sorted((results / stage).glob("*"))]
    return {f"{run.parent.name}/{run.name}": steps[-1] for run in runs if (steps := complete_steps(run))}


def short_name(run: str) -> str:
    """Return the name of a run, or its key in the config, as RUN or STAGE/RUN."""
    return run.replace(".runs.", "/").replace(".", "/").strip("/")


def choose_model(run: str, available: Collection[str], results: Path) -> tuple[str, str]:
    """Return stage and name of the model that the user means by RUN, STAGE/RUN or the key of the config.

    available  the models of the results, as STAGE/RUN. Raises UserError.
    """
    name = short_name(run)
    matches = [model for model in available if model == name or model.partition("/")[2] == name]
    if len(matches) == 1:
        stage, _, name = matches[0].partition("/")
        return stage, name
    problem = "which is ambiguous" if matches else "which is not a trained model"
    command = f"snakemake {directory_option()}".rstrip()
    more = f"; allowed: {', '.join(matches)}." if matches else suggestion(name, available, "allowed")
    more = more if available else f"; no model there is finished yet: run `{command}`."
    folders = {f"{stage}/{folder.name}" for stage in WHOLE for folder in (results / stage).glob("*")}
    unfinished = [
        folder.partition("/")[0]
        for folder in sorted(folders.difference(models(results)))
        if name in (folder, folder.partition("/")[2])
    ]
    if unfinished and not matches:
        problem, more = "which is not finished", f"; run `snakemake {directory_option()}{unfinished[0]}`."
    raise UserError(f"the run is {run}, {problem} in {from_workflow(results)}{more}")


def place_of(run: str, configfile: list[Path] | None, results: Path | None) -> tuple[Path, str, Mapping]:
    """Return the folder of results, the run as STAGE/RUN or as given, and the config, empty if it is not known.

    run  a name, or the folder of a run. Raises UserError.
    """
    folder = Path(os.path.abspath(run))
    if folder.is_dir() and folder.parent.name in WHOLE:
        config = read_config(configfile, {}) if configfile else {}
        if not config and CONFIG.is_file():
            with contextlib.suppress(UserError):
                here = read_config([CONFIG], {})
                config = here if Path("results").resolve() == folder.parents[1].resolve() else {}
        return Path(os.path.relpath(folder.parents[1])), f"{folder.parent.name}/{folder.name}", config
    place, known_config = results_and_config(configfile, results)
    return place, run, known_config


def results_and_config(configfile: list[Path] | None, results: Path | None) -> tuple[Path, Mapping]:
    """Return the folder of results and its config, empty if it is not known.

    Raises UserError if the default folder has no model, checkpoint or tokenizer.
    """
    config = read_config(configfile or [CONFIG], {}) if configfile or CONFIG.is_file() else {}
    place = Path(os.path.relpath(results or "results"))
    anything = models(place) or begun(place) or (place / "tokenizer" / TOKENIZER_FILES["tokenizer"]).is_file()
    if not anything and results is None and configfile is None:
        if CONFIG.is_file() and (option := directory_option()):
            raise UserError(f"there is no trained model in {from_workflow(place)}; run `snakemake {option.rstrip()}`.")
        raise UserError(
            f"there is no trained model in {place}; run `snakemake`, or name an experiment (-d) or config "
            "(--configfile)."
        )
    return place, config


def base_of(name: str, results: Path, config: Mapping) -> str:
    """Return the name of the base model of an adapter, from the config or else from the history of the run."""
    if name in config.get("finetune", {}).get("runs", {}):
        return str(config["finetune"]["runs"][name]["base"])
    history = results / "history" / "finetune" / f"{name}.json"
    if not history.is_file():
        raise UserError(f"the base model of {results}/finetune/{name} is not known; name its config with --configfile.")
    return str(read_json(history)[-1]["recipe"]["base"])


@dataclass(frozen=True)
class Folders:
    """The folders of a finished model.

    model    the Hugging Face folder of a masked model, otherwise a preset folder, for an adapter its base model's
    adapter  the folder with LoRA weights; None without LoRA
    chat     the chat template of its training text, as rule fetch_chat_template writes it; None without conversations
    """

    model: Path
    adapter: Path | None = None
    chat: Path | None = None


def folders_of(stage: str, name: str, results: Path, config: Mapping) -> Folders:
    """Return the folders of a finished model. Raises UserError if the base model of an adapter is not known."""
    folder = results / stage / name
    chat = template_of(stage, results) if (folder / "history.csv").is_file() else None  # trained here
    if stage == "base":
        return Folders(folder / "preset", chat=chat)
    if stage == "mlm" or (folder / "model").is_dir():
        return Folders(folder / "model", chat=chat)
    return Folders(results / "base" / base_of(name, results, config) / "preset", folder, chat)


def template_of(stage: str, results: Path) -> Path | None:
    """Return the file with the chat template of the training text of a stage; None without one."""
    template = results / TRAINED_ON[stage] / "chat_template.json"
    return template if template.is_file() else None


def sampling_in(config: Mapping, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling keys of a config, see `sampling_of`; the defaults for an empty config.

    given  keys of generation that take the place of the config's; a limit replaces the other one, too
    """
    section = (config or complete({"corpus": {"source": "python-docs"}}, "config.yaml"))["generation"]
    kept = {key: value for key, value in section.items() if not (key in LIMITS and {*LIMITS} & {*given})}
    return sampling_of({"generation": {**kept, **given}})
