"""Disk that jobs are going to need for their results: checkpoints as they are kept, models, records.

Snakemake deletes what a job wrote before when it starts the job again: that is free again.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpulm.config.exported_models import masked_models
from tpulm.config.model_sizes import (
    FLOAT32,
    STORED,
    assumed,
    assumed_base,
    base_size,
    is_built,
    model_size,
    optimizer_bytes,
    weight_bytes,
)  # fmt: skip
from tpulm.config.runs import Run
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import GGUF_KINDS

# Bytes of records and of documents (Parquet, compressed, in parts and in splits) for a character of text, at the most:
# four characters or more make a token, of which an id takes two or three bytes in a TFRecord.
RECORDS_PER_CHARACTER, DOCUMENTS_PER_CHARACTER = 0.75, 1.0
# The weights of a checkpoint of a model on a task; the group is the model.
TASK_WEIGHTS = r"<results>/evaluation/tasks/[^/]+/([^/]+/[^/]+)/(?:\d{8,9}/)?[^/]+/checkpoints/\d+/weights\.safetensors"
UNPACKED = 4  # characters of a byte of a compressed file, about


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


def fetched_bytes(base: Mapping) -> int:
    """Return the bytes of a base model that is fetched; most presets of Keras are published in bfloat16."""
    return (FLOAT32 if is_built(base) else STORED["bfloat16"]) * base_size(base).parameters


def checkpoints(run: Run, planned: Mapping) -> Need:
    """Return what the checkpoints that a run is going to write take at the most, and a snapshot.

    planned  of the run, see `tpulm.workflow.budget.pending`
    """
    number, one = planned["checkpoints"], planned["checkpoint_bytes"]
    snapshot = weight_bytes(run) + optimizer_bytes(run)
    kept = run.recipe["keep_checkpoints"]
    said = f"{number} of {run.key} ({gigabytes(one)} each, keep_checkpoints: {kept}) {gigabytes(number * one)}"
    return Need(number * one + snapshot, said, assumed(run))


def models(run: Run) -> dict[str, int]:
    """Return the bytes of the models that are saved of a run, by their paths."""
    size = model_size(run)
    whole = FLOAT32 * size.parameters
    if run.stage == "mlm":
        return {f"{run.folder}/model/model.safetensors": whole}
    files = {
        f"<results>/gguf/{run.path}-{kind}.gguf": int(bytes_ * size.parameters) for kind, bytes_ in GGUF_KINDS.items()
    }
    if run.stage == "base":
        return files | {f"<results>/base/{run.name}/preset": whole, f"<results>/transformers/base/{run.name}": whole}
    # The formats of Keras and of PEFT, which has a B for each head.
    files |= {f"{run.folder}/adapter.lora.h5": 3 * FLOAT32 * size.adapters}
    return files | {f"{run.folder}/model": whole, f"<results>/transformers/finetune/{run.name}": whole}


def needs_of(jobs: Iterable[Any], runs: Iterable[Run], config: Mapping, planned: Iterable[Mapping]) -> list[Need]:
    """Return what the results of jobs of Snakemake's are going to take.

    runs, config  of the workflow; planned  of the runs with something to train, see `tpulm.workflow.budget.pending`
    """
    made = {name: job for job in jobs for path in job.output if (name := below(str(path)))}
    by_key = {run.key: run for run in runs}
    found = [checkpoints(by_key[run["key"]], run) for run in planned if run["key"] in by_key]
    saved = {path: (size, assumed(run)) for run in by_key.values() for path, size in models(run).items()}
    fetched = {
        name: (fetched_bytes(base), assumed_base(base)) for name, base in config["base"].items() if "preset" in base
    }
    masked = masked_models(config)
    copies = [run for run in masked.values() if run.origin]
    saved |= {
        f"<results>/{run.fetched}/model.safetensors": (FLOAT32 * model_size(run).parameters, assumed(run))
        for run in copies
    }
    for name, size in fetched.items():
        saved |= {f"<results>/base/{name}/preset": size, f"<results>/transformers/base/{name}": size}
    found += grouped("models", (saved[path] for path in saved if path in made))
    return [*found, *chains_of_tasks(made, by_key.values()), *texts(made)]


def grouped(what: str, sizes: Iterable[tuple[int, str | None]]) -> list[Need]:
    """Return what models take whose sizes are known, and those that are taken to be as large as another."""
    totals: dict[str | None, int] = {}
    for size, like in sizes:
        totals[like] = totals.get(like, 0) + size
    return [Need(size, f"{what} {gigabytes(size)}", like) for like, size in totals.items()]


def chains_of_tasks(made: Iterable[str], runs: Iterable[Run]) -> list[Need]:
    """Return what the checkpoints of models that are finetuned on tasks take: weights, best ones, optimizer's state."""
    sizes = {run.path: (4 * FLOAT32 * model_size(run).parameters, assumed(run)) for run in runs}
    matches = (re.match(TASK_WEIGHTS, path) for path in made)
    return grouped("checkpoints of tasks", (sizes[match[1]] for match in matches if match and match[1] in sizes))


def below(path: str) -> str:
    """Return the path of an output from <results>/ on.

    A module has a prefix before it, an experiment its folder, a bucket the copy's folder.
    """
    _, found, name = f"/{path}".partition("/results/")
    return f"<results>/{name}" if found else ""


def texts(made: Mapping[str, Any]) -> list[Need]:
    """Return what documents and records take; made  jobs by their outputs."""
    read: dict[str, set[str]] = {}
    shards: dict[str, list[Any]] = {}
    for path, job in made.items():
        if path == below(str(job.output.get("part", ""))):
            read.setdefault(path.split("/")[1], set()).update(map(str, job.input.get("files", [])))
        if path == below(str(job.output.get("records", ""))):
            shards.setdefault(path.rsplit("/", 2)[0], []).append(job)
    documents = {collection: DOCUMENTS_PER_CHARACTER * of_files(files) for collection, files in read.items()}
    # Of shards that are written, the documents are inputs: they exist, or are still to be read.
    records = 0.0
    for folder, writers in shards.items():
        copied = [str(job.input["source"]) for job in writers if "source" in job.input.keys()]
        if copied:
            records += sum(map(bytes_of, copied))
            continue
        collection = folder.split("/")[3] if folder.startswith("<results>/tokens/") else "corpus"
        known = characters(Path(str(next(iter(writers[0].input)))).parents, collection)
        records += RECORDS_PER_CHARACTER * max(known, of_files(read.get(collection, [])))
    sizes = {"documents": sum(documents.values()), "records": records}
    return [Need(int(size), f"{what} {gigabytes(size)}") for what, size in sizes.items()]


def texts_of_unknown_size(jobs: Iterable[Any]) -> list[str]:
    """Return the keys of the texts that jobs read from a hub, whose size nobody knows before they are read."""
    recipes = [job.params.get("recipe") for job in jobs if "part" in job.output.keys()]
    return sorted({recipe["key"] for recipe in recipes if recipe["source"] == "hub"})


def of_files(files: Iterable[str]) -> int:
    """Return the characters of files on this machine, about; nothing of what a hub has."""
    sizes = ((os.path.getsize(file), file) for file in set(files) if os.path.isfile(file))
    return sum(size * (UNPACKED if file.endswith((".gz", ".parquet")) else 1) for size, file in sizes)


def characters(folders: Iterable[Path], collection: str) -> int:
    """Return the characters of a text that is there, as its corpus.json says; 0 where it is not."""
    for folder in folders:
        if folder.name == collection:
            try:
                splits = json.loads((folder / "corpus.json").read_text())["splits"].values()
                return sum(split["characters"] for split in splits)
            except (OSError, ValueError, LookupError, TypeError):
                return 0
    return 0


def bytes_of(path: str) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 where there is none."""
    found = Path(path)
    files = found.rglob("*") if found.is_dir() else [found]
    return sum(file.stat().st_size for file in files if file.is_file())


def check(
    needs: Iterable[Need], jobs: Iterable[Any], folder: str, say: Callable[[str], None], unknown: Sequence[str] = ()
) -> None:
    """Say what jobs are going to need in `folder`, the results', and refuse where there is less. Raises UserError.

    Nothing is refused for the sake of models whose size is not known: their jobs end in a sentence if the disk is full.

    unknown  keys of texts that are not counted. A bucket has no limit.
    """
    found = sorted((need for need in needs if need.bytes), key=lambda need: -need.bytes)
    total = sum(need.bytes for need in found)
    if not total:
        return
    parts = "; ".join([need.said for need in found] + [f"{key}, from a hub, not counted" for key in unknown])
    needed = f"{gigabytes(total)} of disk in {folder}/ ({parts})"
    if "://" in folder:
        say(f"the jobs will need up to {needed}.")
        return
    free = shutil.disk_usage(folder).free + sum(bytes_of(str(path)) for job in jobs for path in job.output)
    if sum(need.bytes for need in found if not need.assumed) > free:
        raise UserError(
            f"the jobs need up to {needed}, but {gigabytes(free)} are free there; free disk space, or keep fewer "
            "checkpoints with keep_checkpoints: last, or every N."
        )
    if total > free:
        say(
            f"the jobs may need up to {needed}, and {gigabytes(free)} are free; the size of a model on a hub is "
            "an assumption."
        )
        return
    say(f"the jobs will need up to {needed}; {gigabytes(free)} are free.")


def gigabytes(number: float) -> str:
    """Return bytes as a user reads them."""
    return f"{number / 1e9:,.1f} GB" if number >= 1e8 else f"{max(number, 1e4) / 1e6:,.2f} MB"
