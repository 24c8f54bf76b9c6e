"""Rebuild an archive's artifacts in an empty folder, and compare each with the archive.

It uses only the standard library, because it runs from within the archive before anything is installed.
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

# Tolerances of losses, accuracies and other numbers on another kind of processor, where floating-point sums differ in
# their last digits and training amplifies the difference.
RELATIVE, ABSOLUTE = 0.05, 0.02
PROCESSOR = ("machine", "processor", "vectors")  # keys of a host that identify its kind of processor
# Files whose numbers are compared with these tolerances.
EVALUATED_MODELS = ("metrics.json", "scores.json")
GIVEN = "config/given/"  # the files of the config, in the archive and in the folder


def rebuild(archive: Path, manifest: Mapping[str, Any], folder: Path, environment: str, cores: str) -> str | None:
    """Rebuild everything in `folder`, and print the comparison; return an error message, or None without one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            return f"error: --rebuild is {folder}, which is not empty."
    except OSError as error:
        return f"error: --rebuild is {folder}, which cannot be created or read: {error.strerror}."
    with zipfile.ZipFile(archive) as archived:
        jobs = json.loads(archived.read("jobs.json"))
        python, pythons = f"{sys.version_info[0]}.{sys.version_info[1]}", minors_of(jobs)
        if pythons and python not in pythons:
            return f"error: this is Python {python}; a rebuild needs that of the archive, {' or '.join(pythons)}."
        missing = unpack(archived, manifest, folder)
        if missing:
            return f"error: {missing}"
        print(f"installing the environment {environment}, from the package index of pip")
        if run(folder, [sys.executable, "envs/setup.py", environment, "--python", sys.executable]):
            return f"error: the environment could not be installed in {folder}; it needs a package index."
        print("running the workflow")
        if run(folder, command_of(manifest, cores)):
            return f"error: the workflow failed; see {folder}/logs."
        return compare(archived, manifest, jobs, folder)


def unpack(archive: zipfile.ZipFile, manifest: Mapping[str, Any], folder: Path) -> str | None:
    """Write source, config and the files that the run read, all inside the folder; return an error message, or None."""
    for name in manifest["files"]:
        if name.startswith(("source/", GIVEN)):
            if not inside(name):
                return f"{name} in the archive is outside {folder}; nothing more is unpacked."
            target = folder / name.removeprefix("source/")
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as file, open(target, "wb") as copy:
                    shutil.copyfileobj(file, copy)
            except OSError as error:  # also if one name is the folder of another
                return f"{name} in the archive cannot be written in {folder} ({error.strerror})."
    for path, digest in manifest["outside"].items():
        target = folder / path
        copied = below(target, folder)
        source = Path(path) if copied else target.resolve()
        if not source.is_file():
            place = "in the current folder" if copied else f"at {source.resolve()}"
            return f"{path}, which the run read, is neither in the archive nor {place}; copy it there."
        if digest and sha256(source) != digest:
            return f"{path} is not the file that the run read: the SHA-256 of {source.resolve()} differs."
        if copied:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return None


def below(path: Path, folder: Path) -> bool:
    """Return whether a path is below a folder after links are resolved."""
    return path.resolve().is_relative_to(folder.resolve()) and path.resolve() != folder.resolve()


def command_of(manifest: Mapping[str, Any], cores: str) -> list[str]:
    """Return the Snakemake command that makes the archive and everything that it holds."""
    command = [".venv/bin/snakemake", manifest["target"], "--cores", cores]
    command += ["--configfile", *manifest["configfiles"]]
    if manifest["overrides"]:
        command += ["--config", *(f"{key}={json.dumps(value)}" for key, value in manifest["overrides"].items())]
    return command


def run(folder: Path, command: list[str]) -> int:
    """Run a command in a folder with its environment first in PATH; return the exit code."""
    print(f"  {shlex.join(command)}", flush=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment["PATH"] = f"{folder.resolve()}/.venv/bin{os.pathsep}{environment.get('PATH', '')}"
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def compare(
    archive: zipfile.ZipFile, manifest: Mapping[str, Any], jobs: list[Mapping[str, Any]], folder: Path
) -> str | None:
    """Compare every artifact of a folder with the archive, print counts, and return an error message or None."""
    with zipfile.ZipFile(folder / manifest["target"]) as rebuilt:
        new_manifest = json.loads(rebuilt.read("manifest.json"))
        new_jobs = json.loads(rebuilt.read("jobs.json"))
    same_kind = processors_of(jobs) == processors_of(new_jobs)
    if not same_kind:
        print(
            f"made on {processors_of(jobs)}, and again on {processors_of(new_jobs)}: numbers of models are compared "
            f"with a tolerance of {RELATIVE:.0%} or {ABSOLUTE}."
        )
    counts: Counter = Counter()
    first = None
    for job in jobs:
        for path in sorted(job["outputs"]):
            before, now = manifest["artifacts"][path], new_manifest["artifacts"].get(path)
            verdict = verdict_on(path, before, now, archive, folder, same_kind)
            counts[verdict.partition(":")[0]] += 1
            if verdict.startswith("different") and first is None:
                first = f"{path}, made by {job['rule']} ({job['log']}){verdict.removeprefix('different')}"
    print("; ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    if first is None:
        return None
    if python_of(jobs) != python_of(new_jobs):
        first += f"; it was made with Python {python_of(jobs)}, and again with {python_of(new_jobs)}"
    return f"error: {counts['different']} artifacts differ; the first: {first}"


def verdict_on(
    path: str,
    before: Mapping[str, Any],
    now: Mapping[str, Any] | None,
    archive: zipfile.ZipFile,
    folder: Path,
    same_kind: bool,
) -> str:
    """Return how an artifact compares: the same bytes, within tolerance, not compared, or different (and where)."""
    if before["compare"] == "time":
        return "depend on time"
    if now is None:
        return "different: it was not made again"
    if before["sha256"] == now["sha256"]:
        return "the same bytes"
    if same_kind or before["compare"] == "bytes":
        return "different: other bytes"
    if Path(path).name not in EVALUATED_MODELS or not before["included"]:
        return "not compared on another CPU"
    contents = archive.read(path), (folder / path).read_bytes()
    numbers = [dict(numbers_of(json.loads(content), "")) for content in contents]
    for key in sorted(numbers[0].keys() | numbers[1].keys()):
        old, new = numbers[0].get(key, math.nan), numbers[1].get(key, math.nan)
        if not math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            return f"different: {key} was {old}, and is {new}"
    return "within tolerance"


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
    """Return the kinds of processors and accelerators of jobs, on which floating-point sums depend, in words."""
    hosts = [(job["host"], job["accelerators"]) for job in jobs if job["host"]]
    kinds = {" ".join([host[key] for key in PROCESSOR] + sorted(devices)) for host, devices in hosts}
    return ", ".join(sorted(kinds)) or "an unknown CPU"


def minors_of(jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the sorted minor versions of Python of jobs, such as 3.11, on which some bytes depend."""
    return sorted({".".join(job["host"]["python"].split(".")[:2]) for job in jobs if job["host"]})


def python_of(jobs: list[Mapping[str, Any]]) -> str:
    """Return the versions of Python of jobs in words; "?" if unknown."""
    return ", ".join(sorted({job["host"]["python"] for job in jobs if job["host"]})) or "?"
