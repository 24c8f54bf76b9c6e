"""Models of a folder of results, as somebody names them who runs them beside the workflow."""

import contextlib
import difflib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpulm.config.outline import sampling_of
from tpulm.config.reading import complete, read_config
from tpulm.core.errors import UserError
from tpulm.core.experiments import CONFIG, directory_option, from_workflow
from tpulm.core.files import read_json, sha256
from tpulm.specs.artifacts import CHECKPOINT_FILES, TOKENIZER_FILES, TRAINED_ON

# A file that a finished model of each stage has, below the folder of the stage and of the run.
WHOLE = {
    "mlm": ["model/model.safetensors"],
    "base": ["preset/config.json"],
    "finetune": ["model/config.json", "adapter.lora.h5"],
}


def models(results: Path) -> list[str]:
    """Return every finished model of a folder of results, as STAGE/RUN."""
    found = [
        f"{stage}/{folder.name}"
        for stage, files in WHOLE.items()
        for folder in (results / stage).glob("*")
        if any((folder / file).is_file() for file in files)
    ]
    return sorted(found)


def complete_steps(run: Path) -> list[int]:
    """Return the steps of the complete checkpoints of a run's folder that follow from each other, in order.

    Those of an earlier recipe may lie behind them, of steps that the run has not come to again.
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
    """Return every run that has a complete checkpoint, as STAGE/RUN, with the step of its last one."""
    runs = [run for stage in WHOLE for run in sorted((results / stage).glob("*"))]
    return {f"{run.parent.name}/{run.name}": steps[-1] for run in runs if (steps := complete_steps(run))}


def short_name(run: str) -> str:
    """Return a name of a run, which may be the key of the config, as RUN or STAGE/RUN."""
    return run.replace(".runs.", "/").replace(".", "/").strip("/")


def choose_model(run: str, there: Collection[str], results: Path) -> tuple[str, str]:
    """Return stage and name of the model that the user means by RUN, STAGE/RUN or the key of the config.

    there  the models of the results that it can be, as STAGE/RUN. Raises UserError.
    """
    name = short_name(run)
    found = [model for model in there if model == name or model.partition("/")[2] == name]
    if len(found) == 1:
        stage, _, name = found[0].partition("/")
        return stage, name
    said = "which is ambiguous" if found else "which is not a trained model"
    near = [] if found else difflib.get_close_matches(name, there, n=1)
    more = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(found or there)}."
    more = more if there else "no model there is finished yet."
    raise UserError(f"the run is {run}, {said} in {from_workflow(results)}; {more}")


def place_of(run: str, configfile: list[Path] | None, results: Path | None) -> tuple[Path, str, Mapping]:
    """Return the results that have the run, the run, which the user may give as a folder, and its config.

    The config is empty where it is not known. Raises UserError.
    """
    folder = Path(os.path.abspath(run))
    if folder.is_dir() and folder.parent.name in WHOLE:
        config = read_config(configfile, {}) if configfile else {}
        if not config and CONFIG.is_file():
            with contextlib.suppress(UserError):
                here = read_config([CONFIG], {})
                config = here if Path("results").resolve() == folder.parents[1].resolve() else {}
        return Path(os.path.relpath(folder.parents[1])), f"{folder.parent.name}/{folder.name}", config
    place, of_place = results_and_config(configfile, results)
    return place, run, of_place


def results_and_config(configfile: list[Path] | None, results: Path | None) -> tuple[Path, Mapping]:
    """Return a folder of results with models or checkpoints, and its config, empty where it is not known.

    Raises UserError where there are none, and nobody has said where.
    """
    config = read_config(configfile or [CONFIG], {}) if configfile or CONFIG.is_file() else {}
    place = Path(os.path.relpath(results or "results"))
    anything = models(place) or begun(place) or (place / "tokenizer" / TOKENIZER_FILES["tokenizer"]).is_file()
    if not anything and results is None and configfile is None:
        if CONFIG.is_file() and (option := directory_option()):
            raise UserError(f"there is no trained model in {from_workflow(place)}; snakemake {option}trains them.")
        raise UserError(f"there is no trained model in {place}; an experiment needs -d, another config --configfile.")
    return place, config


def base_of(name: str, results: Path, config: Mapping) -> str:
    """Return the base model of an adapter: by its config, or else by what `snakemake` has kept of the run."""
    if name in config.get("finetune", {}).get("runs", {}):
        return str(config["finetune"]["runs"][name]["base"])
    kept = results / "history" / "finetune" / f"{name}.json"
    if not kept.is_file():
        raise UserError(f"the base model of {results}/finetune/{name} is not known; name its config with --configfile.")
    return str(read_json(kept)[-1]["recipe"]["base"])


@dataclass(frozen=True)
class Folders:
    """Where a finished model is.

    model    the Hugging Face folder of a masked one, else the preset folder, of an adapter that of its base
    adapter  the folder with LoRA weights that belong to it; None without any
    chat     the chat template of the text that it was trained on, as rule fetch_chat_template describes it; None where
             that has no conversations
    """

    model: Path
    adapter: Path | None = None
    chat: Path | None = None


def folders_of(stage: str, name: str, results: Path, config: Mapping) -> Folders:
    """Return where a finished model is. Raises UserError where the base model of an adapter is not known."""
    folder = results / stage / name
    chat = template_of(stage, results) if (folder / "history.csv").is_file() else None  # trained here
    if stage == "base":
        return Folders(folder / "preset", chat=chat)
    if stage == "mlm" or (folder / "model").is_dir():
        return Folders(folder / "model", chat=chat)
    return Folders(results / "base" / base_of(name, results, config) / "preset", folder, chat)


def template_of(stage: str, results: Path) -> Path | None:
    """Return the chat template of the text that the runs of a stage are trained on, see `Folders`."""
    template = results / TRAINED_ON[stage] / "chat_template.json"
    return template if template.is_file() else None


def sampling_in(config: Mapping) -> dict[str, Any]:
    """Return how a config samples, by `sampling_of`; the defaults where it is not known."""
    return sampling_of(config or complete({"corpus": {"source": "python-docs"}}, "config.yaml"))
