"""What an archive holds, gathered from a working folder."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tpulm.archive.artifacts import artifacts_of, outside_of
from tpulm.archive.crate import crate_of
from tpulm.archive.data_sheet import data_sheet
from tpulm.archive.provenance import JOBS
from tpulm.archive.rebuild import minors_of
from tpulm.archive.records import ancestors, jobs_of
from tpulm.archive.source import source_files, version_of
from tpulm.archive.verify import signature_command
from tpulm.core.errors import UserError

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

- Is it whole? `python3 {file}`, which runs verify.py in it.
- Is it what its owner signed? Not for the program in here to say: who changed the archive can have changed that, too.
  With a public key that you have from elsewhere, and `pip install model-signing pyopenssl`:
  `python {check}`
- Make it again: `{python} {file} --rebuild FOLDER`, in an empty folder. It installs the locked environment, for
  which it needs a package index; it runs the workflow and compares every artifact.
- How did a file come to be? Unpack the archive, then `python3 source/tools/provenance.py FILE`.

| | |
| --- | --- |
| `results/` | artifacts, those of at most {largest} bytes |
| `manifest.json` | size and SHA-256 of every artifact, also of the larger ones, and of each file in here |
| `jobs.json` | every job: rule, params, inputs and outputs with SHA-256, when, where, with what software, attempts |
| `ro-crate-metadata.json` | the same as a Provenance Run Crate (https://w3id.org/ro/wfrun/provenance/0.5) |
| `data_sheet.md` | the text that models were trained on: sources, filters, counts |
| `config/` | the config as it was given, and completed |
| `source/` | the workflow{commit}, with the locks of its environments in `source/envs` |
| `verify.py` | checks this archive, and rebuilds; it needs Python 3.11 or later only |

{kept} of {all} artifacts are in here. The others lay in `results/` of the folder where the workflow ran.
{changed}"""


def contents(
    recipe: Mapping[str, Any], targets: Iterable[str], root: Path
) -> tuple[dict[str, bytes | Path], dict[str, Any]]:
    """Return the files of an archive by their names in it, and the manifest without them.

    recipe   name, version, largest_file_mb; title, license; given, path and text of the config's files by their names
             in the archive; overrides, what --config gave; completed, the config; target, the archive's path
    targets  the artifacts that are archived, with everything that they followed from
    root     folder of the workflow's source

    Raises UserError where a job is not known, or an artifact is not the one that its job made.
    """
    jobs = ancestors(list(targets), jobs_of(Path()))
    if not jobs:
        raise UserError("no record of the jobs that made the results is there: neither .snakemake/metadata nor logs/.")
    largest = int(recipe["largest_file_mb"] * 1e6)
    source = source_files(root)
    own = {os.path.relpath(path): f"source/{name}" for name, path in source.items()}
    artifacts, outside = artifacts_of(jobs, largest), outside_of(jobs, own)
    with_sums(jobs, artifacts)
    version, diff = version_of(root)
    manifest = {"format": 1, "artifacts": artifacts, "outside": outside, "source": version}
    manifest |= {key: recipe[key] for key in ("name", "version", "overrides", "target")}
    manifest["configfiles"] = {name: given["path"] for name, given in recipe["given"].items()}
    files: dict[str, bytes | Path] = {path: Path(path) for path, facts in artifacts.items() if facts["included"]}
    files |= {f"source/{name}": path for name, path in source.items()}
    files |= {name: given["text"].encode() for name, given in recipe["given"].items()}
    files["config/completed.json"] = as_json(recipe["completed"])
    files |= {"source.diff": diff.encode("utf-8", "surrogateescape")} if diff else {}
    corpora = {path: read(path) for path in artifacts if Path(path).match("results/*/corpus.json")}
    tasks = {path: read(path) for path in artifacts if Path(path).match("results/evaluation/tasks/*/task.json")}
    files["data_sheet.md"] = data_sheet(recipe, corpora, tasks, outside).encode()
    files[JOBS] = as_json(jobs)
    files |= {"verify.py": Path(__file__).with_name("verify.py"), "__main__.py": PROGRAM.encode()}
    files["README.md"] = readme(recipe, manifest, largest, minors_of(jobs)).encode()
    files["ro-crate-metadata.json"] = as_json(crate_of(recipe, jobs, manifest, own, sorted(files)))
    return files, manifest


def with_sums(jobs: list[dict[str, Any]], artifacts: Mapping[str, Mapping[str, Any]]) -> None:
    """Give the jobs the checksums of their outputs, and of those inputs whose checksum was not taken when they ran."""
    for job in jobs:
        made = {path: facts["sha256"] for path, facts in artifacts.items() if facts["job"] == job["id"]}
        job["outputs"] = made
        for path, digest in job["inputs"].items():
            if digest is None and path in artifacts:
                job["inputs"][path] = artifacts[path]["sha256"]


def readme(recipe: Mapping[str, Any], manifest: Mapping[str, Any], largest: int, pythons: list[str]) -> str:
    """Return what a person reads first; pythons, the versions that the run had."""
    version, artifacts = manifest["source"], manifest["artifacts"]
    file = Path(recipe["target"]).name
    commit = f" at commit {version['commit']}" if version["commit"] else ""
    changed = (
        f"\n{len(version['untracked'])} files of the source are not in the commit; `source.diff` has what differs.\n"
    )
    return README.format(
        name=recipe["name"],
        version=recipe["version"],
        file=file,
        python=f"python{pythons[0] if pythons else 3}",
        check=" ".join(signature_command(file, "KEY.pub")),
        largest=f"{largest:,}",
        commit=commit + (" and changed since" if version["changed"] else ""),
        kept=sum(facts["included"] for facts in artifacts.values()),
        all=len(artifacts),
        changed=changed if version["changed"] else "",
    )


def as_json(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n"


def read(path: str) -> Any:
    """Return what a JSON file holds."""
    return json.loads(Path(path).read_bytes())
