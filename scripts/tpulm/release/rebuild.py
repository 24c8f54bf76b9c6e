"""Make again, in an empty folder, what an archive describes, and compare every artifact with what it says.

Only with the standard library: it runs from within the archive, before anything is installed.
"""

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpulm.core.files import sha256
from tpulm.release.verify import inside

# On another kind of processor, floating-point sums differ in their last digits, and training amplifies that. Losses,
# accuracies and the like that differ by less than this, or by so little, agree.
RELATIVE, ABSOLUTE = 0.05, 0.02
# The files of which the numbers are compared there: what was measured of models.
PROCESSOR = ("machine", "processor", "vectors")
EVALUATED_MODELS = ("metrics.json", "scores.json")
GIVEN = "config/given/"  # the files of the config, in the archive and in the folder


def rebuild(archive: Path, manifest: Mapping[str, Any], folder: Path, environment: str, cores: str) -> str | None:
    """Make everything again in `folder`; print how it compares. Return a sentence where it differs, or cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            return f"error: --rebuild is {folder}, which is not empty."
    except OSError as error:
        return f"error: --rebuild is {folder}, which cannot be created or read: {error.strerror}."
    with zipfile.ZipFile(archive) as kept:
        jobs = json.loads(kept.read("jobs.json"))
        here, made = f"{sys.version_info[0]}.{sys.version_info[1]}", minors_of(jobs)
        if made and here not in made:
            return f"error: this is Python {here}; a rebuild needs that of the archive, {' or '.join(made)}."
        missing = unpack(kept, manifest, folder)
        if missing:
            return f"error: {missing}"
        print(f"installing the environment {environment}, from the package index of pip")
        if run(folder, [sys.executable, "envs/setup.py", environment, "--python", sys.executable]):
            return f"error: the environment could not be installed in {folder}; it needs a package index."
        print("running the workflow")
        if run(folder, command_of(manifest, cores)):
            return f"error: the workflow failed; see {folder}/logs."
        return compare(kept, manifest, jobs, folder)


def unpack(archive: zipfile.ZipFile, manifest: Mapping[str, Any], folder: Path) -> str | None:
    """Write source, config and the files that the run read into an empty folder; return what cannot be had.

    Nothing is written outside of the folder, whatever the names in the archive are: a file that the run read from there
    has to be there.
    """
    for name in manifest["files"]:
        if name.startswith(("source/", GIVEN)):
            if not inside(name):
                return f"{name} in the archive is outside {folder}; nothing more is unpacked."
            target = folder / name.removeprefix("source/")
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as file, open(target, "wb") as copy:
                    shutil.copyfileobj(file, copy)
            except OSError as error:  # also where a name is another's folder
                return f"{name} in the archive cannot be written in {folder} ({error.strerror})."
    for path, digest in manifest["outside"].items():
        target = folder / path
        copied = below(target, folder)
        here = Path(path) if copied else target.resolve()
        if not here.is_file():
            place = "in the current folder" if copied else f"at {here.resolve()}"
            return f"{path}, which the run read, is neither in the archive nor {place}; copy it there."
        if digest and sha256(here) != digest:
            return f"{path} is not the file that the run read: the SHA-256 of {here.resolve()} differs."
        if copied:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(here, target)
    return None


def below(path: Path, folder: Path) -> bool:
    """Return whether a path, its links followed, is below a folder."""
    return path.resolve().is_relative_to(folder.resolve()) and path.resolve() != folder.resolve()


def command_of(manifest: Mapping[str, Any], cores: str) -> list[str]:
    """Return the command that makes the archive again, and with it everything else."""
    command = [".venv/bin/snakemake", manifest["target"], "--cores", cores]
    command += ["--configfile", *manifest["configfiles"]]
    if manifest["overrides"]:
        command += ["--config", *(f"{key}={json.dumps(value)}" for key, value in manifest["overrides"].items())]
    return command


def run(folder: Path, command: list[str]) -> int:
    """Run a command in a folder; return its exit code."""
    print(f"  {shlex.join(command)}", flush=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    # The programs of the environment come first, such as Snakemake's python.
    kept["PATH"] = f"{folder.resolve()}/.venv/bin{os.pathsep}{kept.get('PATH', '')}"
    return subprocess.run(command, cwd=folder, env=kept, check=False).returncode


def compare(
    archive: zipfile.ZipFile, manifest: Mapping[str, Any], jobs: list[Mapping[str, Any]], folder: Path
) -> str | None:
    """Compare every artifact of a folder with the archive; print what was found; return what to say of a difference."""
    with zipfile.ZipFile(folder / manifest["target"]) as made:
        again, there = json.loads(made.read("manifest.json")), json.loads(made.read("jobs.json"))
    same = processors_of(jobs) == processors_of(there)
    if not same:
        print(
            f"made on {processors_of(jobs)}, and again on {processors_of(there)}: numbers of models are compared with "
            f"a tolerance of {RELATIVE:.0%} or {ABSOLUTE}."
        )
    found: Counter = Counter()
    first = None
    for job in jobs:
        for path in sorted(job["outputs"]):
            verdict = verdict_on(path, manifest["artifacts"][path], again["artifacts"].get(path), archive, folder, same)
            found[verdict.partition(":")[0]] += 1
            if verdict.startswith("different") and first is None:
                first = f"{path}, made by {job['rule']} ({job['log']}){verdict.removeprefix('different')}"
    print("; ".join(f"{count} {name}" for name, count in sorted(found.items())))
    if first is None:
        return None
    if python_of(jobs) != python_of(there):
        first += f"; it was made with Python {python_of(jobs)}, and again with {python_of(there)}"
    return f"error: {found['different']} artifacts differ; the first: {first}"


def verdict_on(
    path: str,
    before: Mapping[str, Any],
    now: Mapping[str, Any] | None,
    archive: zipfile.ZipFile,
    folder: Path,
    same: bool,
) -> str:
    """Return how an artifact compares: the same bytes, within tolerance, not compared, different (and where).

    before, now  what the manifests say of it
    same         whether both were made on the same kind of processor
    """
    if before["compare"] == "time":
        return "depend on time"
    if now is None:
        return "different: it was not made again"
    if before["sha256"] == now["sha256"]:
        return "the same bytes"
    if same or before["compare"] == "bytes":
        return "different: other bytes"
    if Path(path).name not in EVALUATED_MODELS or not before["included"]:
        return "not compared on another CPU"
    numbers = dict(numbers_of(json.loads(archive.read(path)), "")), dict(numbers_of(read_json_file(folder / path), ""))
    for key in sorted(numbers[0].keys() | numbers[1].keys()):
        one, other = numbers[0].get(key, math.nan), numbers[1].get(key, math.nan)
        if not math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            return f"different: {key} was {one}, and is {other}"
    return "within tolerance"


def read_json_file(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_bytes())


def numbers_of(value: Any, key: str) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a JSON value by their dotted keys."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from numbers_of(item, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from numbers_of(item, f"{key}[{number}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, float(value)


def processors_of(jobs: list[Mapping[str, Any]]) -> str:
    """Return the kinds of processors that jobs ran on: what floating-point sums depend on."""
    hosts = [(job["host"], job["accelerators"]) for job in jobs if job["host"]]
    kinds = {" ".join([host[key] for key in PROCESSOR] + sorted(devices)) for host, devices in hosts}
    return ", ".join(sorted(kinds)) or "an unknown CPU"


def minors_of(jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the minor versions of Python that jobs ran with, such as 3.11: with another, some bytes are others."""
    return sorted({".".join(job["host"]["python"].split(".")[:2]) for job in jobs if job["host"]})


def python_of(jobs: list[Mapping[str, Any]]) -> str:
    """Return the versions of Python that jobs ran with."""
    return ", ".join(sorted({job["host"]["python"] for job in jobs if job["host"]})) or "?"
