"""Gather the files of an archive from a working folder, and write them as a deterministic zip.

Times, owners and order are fixed. manifest.json, the last entry, has the SHA-256 of each other entry, the file
NAME-VERSION.zip.sha256 next to the archive that of the whole. tpulm.release.verify checks both.
"""

import hashlib
import json
import os
import subprocess
import zipfile
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpulm.core import job_record, ledger
from tpulm.core.errors import UserError
from tpulm.core.ledger import ancestors, maker_of, makers
from tpulm.core.secrets import find_secret
from tpulm.release.crate import Crate
from tpulm.release.provenance import JOBS
from tpulm.release.rebuild import minors_of
from tpulm.release.verify import MANIFEST, damages_of
from tpulm.specs.artifacts import CHECKPOINT_FILES

# How a rebuilt artifact is compared. `bytes`: it is the same on every machine. `numbers`: it depends on floating-point
# sums, so its bytes are the same only on the same kind of processor. `time`: it depends on time or on other runs.
BYTES, NUMBERS, TIME = "bytes", "numbers", "time"
TIMINGS, REPORT = "timings.csv", "results/report.html"
# Parts of the paths of artifacts that depend on time or on other runs, whatever their inputs are.
OF_THIS_RUN = (f"/{TIMINGS}", REPORT, "results/history/")


def artifacts_of(jobs: Sequence[dict[str, Any]], largest: int) -> dict[str, dict[str, Any]]:
    """Return every artifact of the jobs by path: bytes (None for a missing file), sha256, job, compare, included."""
    kinds = comparisons(jobs)
    files = {}
    for job in jobs:
        for path, digest in job["outputs"].items():
            size = os.path.getsize(path) if os.path.isfile(path) else None
            compare = TIME if any(part in path for part in OF_THIS_RUN) else kinds[job["id"]]
            included = size is not None and (size <= largest or path.endswith(REPORT))
            files[path] = {"bytes": size, "sha256": digest, "job": job["id"], "compare": compare, "included": included}
    return dict(sorted(files.items()))


def comparisons(jobs: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return how the outputs of each job are compared (BYTES, NUMBERS or TIME), by the id of the job."""
    made_by = makers(list(jobs))
    kind_by_job: dict[str, str] = {}
    for job in jobs:
        kinds = [NUMBERS] if any(Path(path).name == CHECKPOINT_FILES["state"] for path in job["outputs"]) else []
        for path in job["inputs"]:
            maker = maker_of(path, made_by)
            if Path(path).name == TIMINGS and job["rule"] != "collect_history":
                kinds.append(TIME)
            elif maker and maker["id"] in kind_by_job:
                kinds.append(kind_by_job[maker["id"]])
        kind_by_job[job["id"]] = next((kind for kind in (TIME, NUMBERS) if kind in kinds), BYTES)
    return kind_by_job


def outside_of(jobs: list[dict[str, Any]], source_paths: Container[str]) -> dict[str, str | None]:
    """Return the SHA-256 of files that jobs read and no job made, such as the user's text, by path."""
    made_by = makers(jobs)
    read = {path: digest for job in jobs for path, digest in job["inputs"].items()}
    outside = sorted(path for path in read if path not in source_paths and maker_of(path, made_by) is None)
    return {path: read[path] for path in outside}


# Source in the workflow's folder; other files there, such as texts, are the user's.
PARTS = (
    *("Snakefile", "config.yaml", "rules", "scripts", "schemas", "envs", "profiles", "report", "recipes", "tools"),
    *("tests", "benchmarks", ".ci", "Makefile", "pyproject.toml", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"),
    *("docs", "CHANGELOG.md", "CITATION.cff", "LICENSE", "SECURITY.md"),
)
ENDINGS = (".pyc", ".pyo", ".partial")
GENERATED = ("docs/_build/", "docs/reference/")  # folders that `make docs` writes


def source_files(root: Path) -> dict[str, Path]:
    """Return the files of the source by path, as git knows them. Raises UserError for secrets and links outside."""
    names = listed(root, "--cached", "--others", "--exclude-standard")
    if "Snakefile" not in listed(root, "--cached"):
        parts = [root / part for part in PARTS]
        paths = [path for part in parts for path in ([part] if part.is_file() else part.rglob("*"))]
        names = [path.relative_to(root).as_posix() for path in paths]
        names = [name for name in names if not name.startswith(GENERATED)]
    files = {}
    for name in sorted(set(names)):
        path = root / name
        if not name.endswith(ENDINGS) and (path.is_symlink() or path.is_file()):
            check_file(name, path, root)
            files[name] = path
    return files


def check_file(name: str, path: Path, root: Path) -> None:
    """Raise UserError for a file that cannot be in an archive, or must not be."""
    if not name.isprintable() or "\\" in name:  # undecodable bytes are not printable
        raise UserError(f"the workflow's folder has a file named {name!a}; nothing is archived. Rename it.")
    if not path.is_file() or not path.resolve().is_relative_to(root.resolve()):
        raise UserError(
            f"{name} of the workflow's folder is a link to {os.path.realpath(path)}; allowed: links to files in that "
            "folder. Nothing is archived."
        )
    if path.name == ".env":
        raise UserError(f"{name} of the workflow's folder has secrets; nothing is archived. {TAKE_IT_OUT}")
    refuse_secrets(f"{name} of the workflow's folder", path.read_bytes())


TAKE_IT_OUT = "Take it out, or add the file to .gitignore."


def refuse_secrets(name: str, content: bytes) -> None:
    """Raise UserError if content has what looks like a secret, or a secret of this environment."""
    if match := find_secret(content):
        kind, offset = match
        line = content.count(b"\n", 0, offset) + 1
        raise UserError(
            f"{name} has {kind}, in line {line}, which an archive would publish; nothing is archived. {TAKE_IT_OUT}"
        )


def listed(root: Path, *options: str) -> list[str]:
    """Return the source files that `git ls-files` lists with these options; empty outside a repository."""
    return [name for name in (git(root, "ls-files", "-z", *options, "--", *PARTS) or "").split("\0") if name]


def git(root: Path, *arguments: str) -> str | None:
    """Return the output of git in a folder; None if it fails."""
    # Reading needs neither the user's settings nor a lock. The user's global ignore file still applies.
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    if "--exclude-standard" not in arguments:
        environment["GIT_CONFIG_GLOBAL"] = os.devnull
    try:
        command = ["git", "-c", "safe.directory=*", "-C", str(root), *arguments]
        process = subprocess.run(command, capture_output=True, env=environment, check=False)
    except OSError:
        return None
    return None if process.returncode else process.stdout.decode("utf-8", "surrogateescape")


def version_of(root: Path) -> tuple[dict[str, Any], str]:
    """Return commit (None without a repository), whether the source has changed, untracked files; and the diff."""
    tracked = listed(root, "--cached")
    if "Snakefile" not in tracked:
        return {"commit": None, "changed": None, "untracked": []}, ""
    commit = (git(root, "rev-parse", "HEAD") or "").strip() or None
    diff = git(root, "diff", "--no-color", "--no-ext-diff", "--binary", "--no-renames", "HEAD", "--", *PARTS) or ""
    untracked = sorted(source_files(root).keys() - set(tracked))
    return {"commit": commit, "changed": bool(diff or untracked), "untracked": untracked}, diff


EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of every entry


def write_zip(path: Path, files: Mapping[str, bytes | Path], manifest: Mapping[str, Any]) -> None:
    """Write a zip of files by their names in it, and a manifest with the given keys and `files`.

    Raises UserError if tpulm.release.verify finds damage in the zip.
    """
    listed: dict[str, dict[str, Any]] = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            source = files[name]
            content = source if isinstance(source, bytes) else source.read_bytes()
            add(archive, name, content)
            listed[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        add(archive, MANIFEST, as_json({**manifest, "files": listed}))
    damages = damages_of(path)
    if damages:
        raise UserError(f"the archive was not written correctly and is not kept; the first error: {damages[0]}")


def add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add an entry whose bytes do not depend on time or machine."""
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system, entry.external_attr = 3, 0o100644 << 16  # those of Unix on any system
    archive.writestr(entry, content)


PROGRAM = """\
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

from verify import main

main(os.path.dirname(__file__))
"""
README = """\
# {name} {version}

How every number of this run came about: what was trained, on what, by which jobs, and what came out.

- Is it whole? `python3 {file}`, which runs verify.py in it; or `sha256sum -c {file}.sha256`.
- Is it what its owner made? The program in here cannot say: who changed the archive can have changed that, too.
  Compare the SHA-256 of the archive with the one that its owner gave you, or check the signature if there is one.
- Make it again: `{python} {file} --rebuild FOLDER`, in an empty folder. It installs the locked environment, for
  which it needs a package index; it runs the workflow and compares every artifact.
- How did a file come to be? Unpack the archive, then `python3 source/tools/provenance.py FILE`.

| | |
| --- | --- |
| `{results}/` | artifacts, those of at most {largest} bytes |
| `manifest.json` | size and SHA-256 of every artifact, also of the larger ones, and of each file in here |
| `jobs.json` | every job: rule, params, inputs and outputs with SHA-256, when, where, with what software, attempts |
| `ro-crate-metadata.json` | the same as a Provenance Run Crate (https://w3id.org/ro/wfrun/provenance/0.5) |
| `config/` | the config as it was given, and completed |
| `source/` | the workflow{commit}, with the locks of its environments in `source/envs` |
| `verify.py` | checks this archive, and rebuilds; it needs Python 3.11 or later only |

{kept} of {all} artifacts are in here. The others lay in `{results}/` of the folder where the workflow ran.
{changed}"""


def archive_files(
    recipe: Mapping[str, Any], targets: Iterable[str], root: Path
) -> tuple[dict[str, bytes | Path], dict[str, Any]]:
    """Return the files of an archive by their names in it, and the manifest without `files`.

    recipe   name, version, largest_file_mb, title, license; given (path and text of the config's files by their names
             in the archive), overrides (of --config), completed (the config), target (path of the archive)
    targets  artifacts to archive, with everything that they were made from
    root     folder of the workflow's source

    Raises UserError for an unknown job, an artifact that has changed since its job, or a file with a secret.
    """
    jobs = ancestors(list(targets), job_record.known_jobs())
    if not jobs:
        raise UserError("results/jobs has no entries of the jobs that made the results; nothing is archived.")
    ledger.refuse_changed(makers(jobs), jobs)
    largest = int(recipe["largest_file_mb"] * 1e6)
    source = source_files(root)
    source_names = {os.path.relpath(path): f"source/{name}" for name, path in source.items()}
    artifacts, outside = artifacts_of(jobs, largest), outside_of(jobs, source_names)
    version, diff = version_of(root)
    manifest = {"format": 1, "artifacts": artifacts, "outside": outside, "source": version}
    manifest |= {key: recipe[key] for key in ("name", "version", "overrides", "target")}
    for config_file in recipe["given"].values():
        refuse_secrets(config_file["path"], config_file["text"].encode())
    manifest["configfiles"] = {name: config_file["path"] for name, config_file in recipe["given"].items()}
    files: dict[str, bytes | Path] = {path: Path(path) for path, facts in artifacts.items() if facts["included"]}
    files |= {f"source/{name}": path for name, path in source.items()}
    files |= {name: config_file["text"].encode() for name, config_file in recipe["given"].items()}
    files["config/completed.json"] = as_json(recipe["completed"])
    files |= {"source.diff": diff.encode("utf-8", "surrogateescape")} if diff else {}
    # The software of a job names the packages that it used.
    files[JOBS] = as_json([{key: value for key, value in job.items() if key != "packages"} for job in jobs])
    files |= {"verify.py": Path(__file__).with_name("verify.py"), "__main__.py": PROGRAM.encode()}
    files["README.md"] = readme(recipe, manifest, largest, minors_of(jobs)).encode()
    files["ro-crate-metadata.json"] = as_json(Crate(recipe, jobs, manifest, source_names).described(sorted(files)))
    return files, manifest


def readme(recipe: Mapping[str, Any], manifest: Mapping[str, Any], largest: int, pythons: list[str]) -> str:
    """Return the README of an archive; largest  in bytes; pythons  the run's minor versions of Python."""
    version, artifacts = manifest["source"], manifest["artifacts"]
    commit = f" at commit {version['commit']}" if version["commit"] else ""
    note = f"\n{len(version['untracked'])} files of the source are not in the commit. "
    note += "If files of the commit have changed, `source.diff` has the changes.\n"
    return README.format(
        name=recipe["name"],
        version=recipe["version"],
        file=Path(recipe["target"]).name,
        python=f"python{pythons[0] if pythons else 3}",
        largest=f"{largest:,}",
        results="results",
        commit=commit + (" and changed since" if version["changed"] else ""),
        kept=sum(facts["included"] for facts in artifacts.values()),
        all=len(artifacts),
        changed=note if version["changed"] else "",
    )


def as_json(value: Any) -> bytes:
    """Return a value as indented JSON with sorted keys."""
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n"
