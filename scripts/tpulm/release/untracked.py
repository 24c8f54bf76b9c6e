"""Find and delete files below results/ that no job of the config makes."""

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import CHECKPOINT_FILES, KEPT_FOLDERS, PRUNED, SNAPSHOTS


def summary(arguments: dict, targets: list[str]) -> list[dict[str, str]]:
    """Return the rows of `snakemake TARGETS --summary`: output_file, status, plan and more, for each output.

    arguments  snakefile, options (those of the running Snakemake), profile (workflow profile)

    Raises UserError if Snakemake fails.
    """
    command = [sys.executable, "-m", "snakemake", *targets, "--summary", "--snakefile", arguments["snakefile"]]
    command += ["--workflow-profile", arguments["profile"]]
    command += arguments["options"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = process.stdout.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("output_file\t")), None)
    if process.returncode or start is None:
        raise UserError(f"Snakemake could not list what the config needs: {(process.stderr.strip() or '?')[-300:]}")
    return list(csv.DictReader(lines[start:], delimiter="\t"))


def leftovers(recipe: dict) -> list[Path]:
    """Return the sorted files below results/ that no job of the config makes.

    recipe  arguments of `summary`; targets (all of the config), results (folder)

    Raises UserError if Snakemake fails, or results are in a bucket.
    """
    if bucket.remote(recipe["results"]):
        raise UserError(
            f"results are in {recipe['results']}, and only a local folder can be cleaned; "
            "to list and delete files there: gcloud storage ls -r, gcloud storage rm."
        )
    needed = {row["output_file"] for row in summary(recipe, recipe["targets"])}
    if not needed:
        raise UserError("Snakemake lists no output of this config, so nothing is listed or deleted.")
    unneeded = []
    for path in sorted(Path(recipe["results"]).rglob("*"), key=lambda path: (path.parent, path.name)):
        if path.is_dir() and not path.is_symlink():
            continue
        if path.name == PRUNED and str(path.with_name(CHECKPOINT_FILES["state"])) in needed:
            continue  # the mark of a pruned checkpoint, even if the config would now keep it
        relative = path.relative_to(recipe["results"])
        if relative.parts[0] in KEPT_FOLDERS or snapshot_of_use(path, needed):
            continue
        checkpoint = checkpoint_of_score(relative)
        if checkpoint and str(Path(recipe["results"]) / checkpoint) in needed:
            continue  # a pruned checkpoint could not be scored again
        if not any(str(part) in needed for part in (path, *path.parents)):
            unneeded.append(path)
    return unneeded


def snapshot_of_use(path: Path, needed: set[str]) -> bool:
    """Return whether a file is part of a snapshot, RUN/snapshots/STEP/*, of a needed segment without checkpoint."""
    run, step = path.parents[1].parent, path.parent.name
    state = run / "checkpoints" / step / CHECKPOINT_FILES["state"]
    return path.parents[1].name == SNAPSHOTS and str(state) in needed and not state.exists()


def checkpoint_of_score(relative: Path) -> Path | None:
    """Return the state of the checkpoint that a file scores, None for other files; paths are relative to results/.

    Scores on text are in evaluation/STAGE/RUN/STEP/, those on a task in evaluation/KIND/TASK/STAGE/RUN/STEP/.
    """
    folders = relative.parent.parts
    if folders[:1] != ("evaluation",) or len(folders) not in (4, 6):
        return None
    stage, run, step = folders[-3:]
    return Path(stage, run, "checkpoints", step, CHECKPOINT_FILES["state"])


def report(paths: list[Path], say: Callable[[str], None]) -> None:
    """Log the files and their sizes by folder, and the total."""
    total = 0
    for folder, folder_paths in groupby(paths, key=lambda path: path.parent):
        files = list(folder_paths)
        size = sum(file.lstat().st_size for file in files)
        total += size
        names = files[0].name if len(files) == 1 else f"{len(files)} files"
        say(f"{folder}/  {names}, {megabytes(size)}")
    say(f"{len(paths)} files that no run of the config needs, {megabytes(total)}")


def megabytes(size: int) -> str:
    """Return a number of bytes in megabytes."""
    return f"{size / 1e6:,.1f} MB"


def delete(paths: list[Path], results: Path) -> None:
    """Delete files, and folders below `results` that become empty."""
    for path in paths:
        path.unlink()
    for folder in sorted({parent for path in paths for parent in path.parents if parent != results}, reverse=True):
        if results in folder.parents and not os.listdir(folder):
            folder.rmdir()
