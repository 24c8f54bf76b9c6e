"""Disk that jobs are going to need for checkpoints, as they are kept, and for models.

Snakemake deletes what a job wrote before when it starts the job again: that is free again.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpulm.config.model_sizes import (
    FLOAT32,
    STORED,
    assumed,
    is_built,
    model_size,
    optimizer_bytes,
    weight_bytes,
)
from tpulm.config.outline import Model, Outline, Run
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import GGUF_KINDS


@dataclass(frozen=True)
class Need:
    """What something takes: bytes, and how to say what it is.

    assumed  the model whose size was taken because only a hub knows the right one, see `tpulm.config.model_sizes`
    """

    bytes: int
    what: str
    assumed: str | None = None

    @property
    def said(self) -> str:
        """How to say it."""
        return f"{self.what}, if as large as {self.assumed}" if self.assumed else self.what


def fetched_bytes(model: Model) -> int:
    """Return the bytes of a base model that is fetched; most presets of Keras are published in bfloat16."""
    return (FLOAT32 if is_built(model) else STORED["bfloat16"]) * model_size(model).parameters


def saved(model: Model) -> dict[str, int]:
    """Return the bytes of what is saved of a model, by its path."""
    parameters, transformers = model_size(model).parameters, f"<results>/transformers/{model.path}"
    if "preset" in model.recipe:
        return dict.fromkeys((model.preset, transformers), fetched_bytes(model))
    paths = [f"<results>/{model.fetched}/model.safetensors"] if model.origin else []
    if model.weights:
        masked = model.stage == "mlm"
        paths += [f"{model.exported}/model.safetensors"] if masked else [model.exported, transformers]
    ggufs = {f"<results>/gguf/{model.path}-{kind}.gguf": int(size * parameters) for kind, size in GGUF_KINDS.items()}
    return ggufs | dict.fromkeys(paths, FLOAT32 * parameters)


def needs_of(
    jobs: Iterable[Any], outline: Outline, chains: Mapping[str, Run], planned: Iterable[Mapping]
) -> list[Need]:
    """Return the disk space that the results of jobs need.

    chains  of checkpoints by path; planned  those with something to train, see `tpulm.workflow.budget.pending`
    """
    made = {below(str(path)) for job in jobs for path in job.output}
    trained = [(chains[todo["path"]], todo) for todo in planned]
    found = [checkpoints(run, todo) for run, todo in trained if not run.task]
    found += grouped(
        "checkpoints of tasks",
        ((todo["checkpoints"] * todo["checkpoint_bytes"], assumed(run)) for run, todo in trained if run.task),
    )
    models = [(model, path, size) for model in outline.models.values() for path, size in saved(model).items()]
    return found + grouped("models", ((size, assumed(model)) for model, path, size in models if path in made))


def checkpoints(run: Run, planned: Mapping) -> Need:
    """Return the most bytes that the checkpoints of a run, and a snapshot, need.

    planned  of the run, see `tpulm.workflow.budget.pending`
    """
    number, one = planned["checkpoints"], planned["checkpoint_bytes"]
    snapshot = weight_bytes(run) + optimizer_bytes(run)
    kept = run.recipe["keep_checkpoints"]
    said = f"{number} of {run.key} ({gigabytes(one)} each, keep_checkpoints: {kept}) {gigabytes(number * one)}"
    return Need(number * one + snapshot, said, assumed(run))


def grouped(what: str, sizes: Iterable[tuple[int, str | None]]) -> list[Need]:
    """Return what those take whose sizes are known, and those that are taken to be as large as another model."""
    totals: dict[str | None, int] = {}
    for size, like in sizes:
        totals[like] = totals.get(like, 0) + size
    return [Need(size, f"{what} {gigabytes(size)}", like) for like, size in totals.items()]


def below(path: str) -> str:
    """Return the path of an output from <results>/ on.

    A module has a prefix before it, an experiment its folder, a bucket the copy's folder.
    """
    _, found, name = f"/{path}".partition("/results/")
    return f"<results>/{name}" if found else ""


def bytes_of(path: str) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 where there is none."""
    found = Path(path)
    files = found.rglob("*") if found.is_dir() else [found]
    return sum(file.stat().st_size for file in files if file.is_file())


def check_space(needs: Iterable[Need], jobs: Iterable[Any], folder: str, say: Callable[[str], None]) -> None:
    """Say what jobs are going to need in `folder`, the results', and refuse where there is less. Raises UserError.

    Nothing is refused for the sake of models whose size is not known: their jobs end in a sentence if the disk is full.
    A bucket has no limit.
    """
    found = sorted((need for need in needs if need.bytes), key=lambda need: -need.bytes)
    total = sum(need.bytes for need in found)
    if not total:
        return
    needed = f"{gigabytes(total)} of disk in {folder}/ ({'; '.join(need.said for need in found)})"
    if "://" in folder:
        say(f"checkpoints and models will need up to {needed}.")
        return
    free = shutil.disk_usage(folder).free + sum(bytes_of(str(path)) for job in jobs for path in job.output)
    if sum(need.bytes for need in found if not need.assumed) > free:
        raise UserError(
            f"checkpoints and models need up to {needed}, but {gigabytes(free)} are free there; free disk space, or "
            "keep fewer checkpoints with keep_checkpoints: last, or every N."
        )
    if total > free:
        say(
            f"checkpoints and models may need up to {needed}, and {gigabytes(free)} are free; the size of a model on "
            "a hub is an assumption."
        )
        return
    say(f"checkpoints and models will need up to {needed}; {gigabytes(free)} are free.")


def gigabytes(number: float) -> str:
    """Return bytes as a user reads them."""
    return f"{number / 1e9:,.1f} GB" if number >= 1e8 else f"{max(number, 1e4) / 1e6:,.2f} MB"
