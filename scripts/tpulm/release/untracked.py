"""Files under results/ that are not an output of any job of the config."""

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

    arguments  snakefile; options, as given to this Snakemake; profile, what makes a job stale;
               results, where they are
    Raises UserError when Snakemake cannot say.
    """
    command = [sys.executable, "-m", "snakemake", *targets, "--summary", "--snakefile", arguments["snakefile"]]
    command += ["--workflow-profile", arguments["profile"]]
    command += arguments["options"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("output_file\t")), None)
    if done.returncode or start is None:
        raise UserError(f"Snakemake could not list what the config needs: {(done.stderr.strip() or '?')[-300:]}")
    return list(csv.DictReader(lines[start:], delimiter="\t"))


def leftovers(recipe: dict) -> list[Path]:
    """Return the files under results/ that no job of the config makes, sorted.

    recipe  what `summary` needs to know; targets, all that the config names; results, where they are

    Raises UserError when Snakemake cannot say, or results are in a bucket.
    """
    if bucket.remote(recipe["results"]):
        raise UserError(
            f"results are in {recipe['results']}, and only a local folder can be cleaned; "
            "to list and delete files there: gcloud storage ls -r, gcloud storage rm."
        )
    needed = {row["output_file"] for row in summary(recipe, recipe["targets"])}
    if not needed:
        raise UserError("Snakemake lists no output of this config, so nothing is listed or deleted.")
    found = []
    for path in sorted(Path(recipe["results"]).rglob("*"), key=lambda path: (path.parent, path.name)):
        if path.is_dir() and not path.is_symlink():
            continue
        if path.name == PRUNED and str(path.with_name(CHECKPOINT_FILES["state"])) in needed:
            continue  # the mark of what was let go, also where the config would now keep it
        place = path.relative_to(recipe["results"])
        if place.parts[0] in KEPT_FOLDERS or snapshot_of_use(path, needed):
            continue
        checkpoint = checkpoint_of_score(place)
        if checkpoint and str(Path(recipe["results"]) / checkpoint) in needed:
            continue  # nothing could score it again where its weights were let go
        if not any(str(part) in needed for part in (path, *path.parents)):
            found.append(path)
    return found


def snapshot_of_use(path: Path, needed: set[str]) -> bool:
    """Return whether a file is part of a snapshot, RUN/snapshots/STEP/*, of a segment that is still to be trained."""
    run, step = path.parents[1].parent, path.parent.name
    state = run / "checkpoints" / step / CHECKPOINT_FILES["state"]
    return path.parents[1].name == SNAPSHOTS and str(state) in needed and not state.exists()


def checkpoint_of_score(place: Path) -> Path | None:
    """Return the state of the checkpoint that a file below results/ would score; None for other files.

    Scores on text are in evaluation/STAGE/RUN/STEP/, those on a task in evaluation/KIND/TASK/STAGE/RUN/STEP/.
    """
    folders = place.parent.parts
    if folders[:1] != ("evaluation",) or len(folders) not in (4, 6):
        return None
    stage, run, step = folders[-3:]
    return Path(stage, run, "checkpoints", step, CHECKPOINT_FILES["state"])


def report(found: list[Path], say: Callable[[str], None]) -> None:
    """Say folder by folder what was found."""
    total = 0
    for folder, paths in groupby(found, key=lambda path: path.parent):
        files = list(paths)
        size = sum(file.lstat().st_size for file in files)
        total += size
        names = files[0].name if len(files) == 1 else f"{len(files)} files"
        say(f"{folder}/  {names}, {megabytes(size)}")
    say(f"{len(found)} files that no run of the config needs, {megabytes(total)}")


def megabytes(size: int) -> str:
    """Return a number of bytes in megabytes."""
    return f"{size / 1e6:,.1f} MB"


def delete(found: list[Path], results: Path) -> None:
    """Delete files, and the folders below `results` that they leave empty."""
    for path in found:
        path.unlink()
    for folder in sorted({parent for path in found for parent in path.parents if parent != results}, reverse=True):
        if results in folder.parents and not os.listdir(folder):
            folder.rmdir()
