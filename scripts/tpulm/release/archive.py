"""What an archive holds, gathered from a working folder, as a zip of which every byte is determined by what is in it.

Times, owners and order are fixed. manifest.json, the last entry, has the sha256 of each other entry; the file
NAME-VERSION.zip.sha256 beside the archive has that of the whole. tpulm.release.verify compares them.
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
from tpulm.release.crate import crate_of
from tpulm.release.provenance import JOBS
from tpulm.release.rebuild import minors_of
from tpulm.release.verify import MANIFEST, damages_of
from tpulm.specs.artifacts import CHECKPOINT_FILES

# How an artifact made again is compared: `bytes`, the same on every machine; `numbers`, it follows from floating-point
# sums, and has the same bytes on the same kind of processor only; `time`, it tells of time or of other runs, and
# differs in each.
BYTES, NUMBERS, TIME = "bytes", "numbers", "time"
TIMINGS, REPORT = "timings.csv", "results/report.html"
# Paths of what tells of when jobs ran, or of the runs before, whatever it was made of.
OF_THIS_RUN = (f"/{TIMINGS}", REPORT, "results/history/")


def artifacts_of(jobs: Sequence[dict[str, Any]], largest: int) -> dict[str, dict[str, Any]]:
    """Return every artifact of the jobs by path: bytes, sha256, job, compare, included; `bytes` is None if it has gone.

    jobs     in an order in which each stands behind those that it follows from
    largest  bytes of a file up to which the archive holds it
    """
    kinds = comparisons(jobs)
    found = {}
    for job in jobs:
        for path, digest in job["outputs"].items():
            size = os.path.getsize(path) if os.path.isfile(path) else None
            compare = TIME if any(part in path for part in OF_THIS_RUN) else kinds[job["id"]]
            included = size is not None and (size <= largest or path.endswith(REPORT))
            found[path] = {"bytes": size, "sha256": digest, "job": job["id"], "compare": compare, "included": included}
    return dict(sorted(found.items()))


def comparisons(jobs: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return how the outputs of each job compare with those of another run, by the id of the job."""
    made = makers(list(jobs))
    found: dict[str, str] = {}
    for job in jobs:
        kinds = [NUMBERS] if any(Path(path).name == CHECKPOINT_FILES["state"] for path in job["outputs"]) else []
        for path in job["inputs"]:
            before = maker_of(path, made)
            if Path(path).name == TIMINGS and job["rule"] != "collect_history":
                kinds.append(TIME)
            elif before and before["id"] in found:
                kinds.append(found[before["id"]])
        found[job["id"]] = next((kind for kind in (TIME, NUMBERS) if kind in kinds), BYTES)
    return found


def outside_of(jobs: list[dict[str, Any]], own: Container[str]) -> dict[str, str | None]:
    """Return the files that jobs read and no job made, the user's text above all: sha256 by path.

    own  paths of the workflow's own source, such as the templates of the report, which are left out
    """
    made = makers(jobs)
    read = {path: digest for job in jobs for path, digest in job["inputs"].items()}
    return {path: digest for path, digest in sorted(read.items()) if path not in own and maker_of(path, made) is None}


# What of the workflow's folder is its source; other files there, such as texts, are the user's.
PARTS = (
    *("Snakefile", "config.yaml", "rules", "scripts", "schemas", "envs", "profiles", "report", "recipes", "tools"),
    *("tests", "benchmarks", ".ci", "Makefile", "pyproject.toml", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"),
    *("docs", "CHANGELOG.md", "CITATION.cff", "LICENSE", "SECURITY.md"),
)
ENDINGS = (".pyc", ".pyo", ".partial")
GENERATED = ("docs/_build/", "docs/reference/")  # by `make docs`


def source_files(root: Path) -> dict[str, Path]:
    """Return the files of the workflow's source by their paths in its folder, sorted; in a repository, without ignored.

    Raises UserError where a file is not to be given away: a secret, or a link to what is not in the folder.
    """
    names = listed(root, "--cached", "--others", "--exclude-standard")
    if "Snakefile" not in listed(root, "--cached"):
        places = [root / part for part in PARTS]
        paths = [path for place in places for path in ([place] if place.is_file() else place.rglob("*"))]
        names = [path.relative_to(root).as_posix() for path in paths]
        names = [name for name in names if not name.startswith(GENERATED)]
    found = {}
    for name in sorted(set(names)):
        path = root / name
        if not name.endswith(ENDINGS) and (path.is_symlink() or path.is_file()):
            check_file(name, path, root)
            found[name] = path
    return found


def check_file(name: str, path: Path, root: Path) -> None:
    """Refuse a file that cannot be in an archive, or must not be. Raises UserError."""
    if not name.isprintable() or "\\" in name:  # as undecodable bytes, too
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
    """Raise UserError where a file has what looks like a secret, or one of this environment."""
    if found := find_secret(content):
        what, place = found
        line = content.count(b"\n", 0, place) + 1
        raise UserError(
            f"{name} has {what}, in line {line}, which an archive would publish; nothing is archived. {TAKE_IT_OUT}"
        )


def listed(root: Path, *which: str) -> list[str]:
    """Return the files of the source that git lists; none where the folder is in no repository."""
    return [name for name in (git(root, "ls-files", "-z", *which, "--", *PARTS) or "").split("\0") if name]


def git(root: Path, *arguments: str) -> str | None:
    """Return the output of git in a folder; None where it fails."""
    # Neither the user's settings nor a lock: this only reads. But what the user ignores everywhere is ignored here.
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    if "--exclude-standard" not in arguments:
        environment["GIT_CONFIG_GLOBAL"] = os.devnull
    try:
        command = ["git", "-c", "safe.directory=*", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
    except OSError:
        return None
    return None if done.returncode else done.stdout.decode("utf-8", "surrogateescape")


def version_of(root: Path) -> tuple[dict[str, Any], str]:
    """Return commit (None where the folder is in no repository of its own) and untracked files; and the diff to it."""
    tracked = listed(root, "--cached")
    if "Snakefile" not in tracked:
        return {"commit": None, "changed": None, "untracked": []}, ""
    commit = (git(root, "rev-parse", "HEAD") or "").strip() or None
    diff = git(root, "diff", "--no-color", "--no-ext-diff", "--binary", "--no-renames", "HEAD", "--", *PARTS) or ""
    untracked = sorted(source_files(root).keys() - set(tracked))
    return {"commit": commit, "changed": bool(diff or untracked), "untracked": untracked}, diff


EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of every entry


def write_zip(path: Path, files: Mapping[str, bytes | Path], manifest: Mapping[str, Any]) -> None:
    """Write files by their names in the archive, and a manifest that has these keys and `files`.

    Raises UserError where what was written is none that tpulm.release.verify finds whole.
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
    """Add an entry, of which no byte depends on when or where it is added."""
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system, entry.external_attr = 3, 0o100644 << 16  # as Unix does, on any system
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
    """Return the files of an archive by their names in it, and the manifest without them.

    recipe   name, version, largest_file_mb; title, license; given, path and text of the config's files by their names
             in the archive; overrides, what --config gave; completed, the config; target, the archive's path
    targets  the artifacts that are archived, with everything that they followed from
    root     folder of the workflow's source

    Raises UserError where a job is not known, an artifact is not the one that its job made, or a file has a secret.
    """
    jobs = ancestors(list(targets), job_record.known_jobs())
    if not jobs:
        raise UserError("results/jobs has no records of the jobs that made the results; nothing is archived.")
    ledger.refuse_changed(makers(jobs), jobs)
    largest = int(recipe["largest_file_mb"] * 1e6)
    source = source_files(root)
    own = {os.path.relpath(path): f"source/{name}" for name, path in source.items()}
    artifacts, outside = artifacts_of(jobs, largest), outside_of(jobs, own)
    version, diff = version_of(root)
    manifest = {"format": 1, "artifacts": artifacts, "outside": outside, "source": version}
    manifest |= {key: recipe[key] for key in ("name", "version", "overrides", "target")}
    for given in recipe["given"].values():
        refuse_secrets(given["path"], given["text"].encode())
    manifest["configfiles"] = {name: given["path"] for name, given in recipe["given"].items()}
    files: dict[str, bytes | Path] = {path: Path(path) for path, facts in artifacts.items() if facts["included"]}
    files |= {f"source/{name}": path for name, path in source.items()}
    files |= {name: given["text"].encode() for name, given in recipe["given"].items()}
    files["config/completed.json"] = as_json(recipe["completed"])
    files |= {"source.diff": diff.encode("utf-8", "surrogateescape")} if diff else {}
    # The software of a job says which of its packages it used.
    files[JOBS] = as_json([{key: value for key, value in job.items() if key != "packages"} for job in jobs])
    files |= {"verify.py": Path(__file__).with_name("verify.py"), "__main__.py": PROGRAM.encode()}
    files["README.md"] = readme(recipe, manifest, largest, minors_of(jobs)).encode()
    files["ro-crate-metadata.json"] = as_json(crate_of(recipe, jobs, manifest, own, sorted(files)))
    return files, manifest


def readme(recipe: Mapping[str, Any], manifest: Mapping[str, Any], largest: int, pythons: list[str]) -> str:
    """Return the README of an archive; pythons  the versions of Python that the run had."""
    version, artifacts = manifest["source"], manifest["artifacts"]
    commit = f" at commit {version['commit']}" if version["commit"] else ""
    changed = (
        f"\n{len(version['untracked'])} files of the source are not in the commit; `source.diff` has what differs.\n"
    )
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
        changed=changed if version["changed"] else "",
    )


def as_json(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n"
