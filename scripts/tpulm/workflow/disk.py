"""Compare the disk space that jobs need for checkpoints and models with what is free.

The earlier outputs of a job count as free, since Snakemake deletes them when it starts the job again.
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
    is_converted,
    model_size,
    optimizer_bytes,
    weight_bytes,
)
from tpulm.config.outline import Model, Outline, Run
from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import GGUF_TYPES
from tpulm.workflow.budget import PendingRun


@dataclass(frozen=True)
class Need:
    """A need of disk space: bytes, and in words what for.

    assumed  published model whose size is taken for one that only a hub knows, see `tpulm.config.model_sizes`
    """

    bytes: int
    what: str
    assumed: str | None = None

    @property
    def said(self) -> str:
        """The need in words."""
        return f"{self.what}, if as large as {self.assumed}" if self.assumed else self.what


def fetched_bytes(model: Model) -> int:
    """Return the bytes of a base model that is fetched."""
    # Most presets of Keras are published in bfloat16.
    return (FLOAT32 if is_converted(model) else STORED["bfloat16"]) * model_size(model).parameters


def saved(model: Model) -> dict[str, int]:
    """Return the bytes of each file and folder that is saved of a model, by its path."""
    parameters, transformers = model_size(model).parameters, f"<results>/transformers/{model.path}"
    if "preset" in model.recipe:
        return dict.fromkeys((model.preset, transformers), fetched_bytes(model))
    paths = [f"<results>/{model.fetch_folder}/model.safetensors"] if model.origin else []
    if model.weights:
        masked = model.stage == "mlm"
        paths += [f"{model.export_folder}/model.safetensors"] if masked else [model.export_folder, transformers]
    ggufs = {f"<results>/gguf/{model.path}-{kind}.gguf": int(size * parameters) for kind, size in GGUF_TYPES.items()}
    return ggufs | dict.fromkeys(paths, FLOAT32 * parameters)


def needs_of(
    jobs: Iterable[Any], outline: Outline, all_runs: Mapping[str, Run], to_train: Iterable[PendingRun]
) -> list[Need]:
    """Return the needs of disk space of the results of jobs.

    all_runs  by path, also of models on tasks
    """
    outputs = {from_results(str(path)) for job in jobs for path in job.output}
    trained = [(all_runs[todo["path"]], todo) for todo in to_train]
    needs = [checkpoints(run, todo) for run, todo in trained if not run.task]
    needs += grouped(
        "checkpoints of tasks",
        ((todo["checkpoints"] * todo["checkpoint_bytes"], assumed(run)) for run, todo in trained if run.task),
    )
    models = [(model, path, size) for model in outline.models.values() for path, size in saved(model).items()]
    return needs + grouped("models", ((size, assumed(model)) for model, path, size in models if path in outputs))


def checkpoints(run: Run, todo: PendingRun) -> Need:
    """Return the most space that the checkpoints and a snapshot of a run need at once."""
    number, size = todo["checkpoints"], todo["checkpoint_bytes"]
    snapshot = weight_bytes(run) + optimizer_bytes(run)
    keep = run.recipe["keep_checkpoints"]
    what = f"{number} of {run.key} ({gigabytes(size)} each, keep_checkpoints: {keep}) {gigabytes(number * size)}"
    return Need(number * size + snapshot, what, assumed(run))


def grouped(what: str, sizes: Iterable[tuple[int, str | None]]) -> list[Need]:
    """Return the sums of sizes, each with its assumed model or None, as a need per assumed model."""
    totals: dict[str | None, int] = {}
    for size, like in sizes:
        totals[like] = totals.get(like, 0) + size
    return [Need(size, f"{what} {gigabytes(size)}", like) for like, size in totals.items()]


def from_results(path: str) -> str:
    """Return the path of an output from <results>/ on, without what a module, experiment or bucket has before it."""
    _, separator, name = f"/{path}".partition("/results/")
    return f"<results>/{name}" if separator else ""


def bytes_of(path: str) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 if it does not exist."""
    root = Path(path)
    files = root.rglob("*") if root.is_dir() else [root]
    return sum(file.stat().st_size for file in files if file.is_file())


def check_space(needs: Iterable[Need], jobs: Iterable[Any], folder: str, say: Callable[[str], None]) -> None:
    """Say what space jobs need in `folder`, that of the results. Raises UserError if less is free.

    Models of unknown size are no reason to refuse: their jobs end with an error if the disk is full. A bucket has no
    limit.
    """
    largest_first = sorted((need for need in needs if need.bytes), key=lambda need: -need.bytes)
    total = sum(need.bytes for need in largest_first)
    if not total:
        return
    needed = f"{gigabytes(total)} of disk in {folder}/ ({'; '.join(need.said for need in largest_first)})"
    if bucket.remote(folder):
        say(f"checkpoints and models will need up to {needed}.")
        return
    free = shutil.disk_usage(folder).free + sum(bytes_of(str(path)) for job in jobs for path in job.output)
    if sum(need.bytes for need in largest_first if not need.assumed) > free:
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
    """Return a number of bytes in words, in GB or MB."""
    return f"{number / 1e9:,.1f} GB" if number >= 1e8 else f"{max(number, 1e4) / 1e6:,.2f} MB"
