"""Check before the first job for deleted files that jobs read, and for requests that the profile refuses.

Jobs that read records depend only on their manifest, so Snakemake does not notice a deleted shard. It writes the shard
again for a target that consists of the shards themselves: `tfrecords`.

A profile sets the resource `preflight` to a shell command, in which {python} is Snakemake's Python. It runs in the
workflow's folder and reads a JSON object from standard input: `executor`, its settings, and `jobs`, the requests, one
of each kind, with `rule`, `where`, `log`, `threads` and `resources`. If it exits with an error, no job runs, and the
last line that it wrote to standard error is shown after "error: ".
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from tpulm.config.record_sets import RecordSet
from tpulm.core import bucket, ledger
from tpulm.core.accelerators import job_name
from tpulm.core.errors import UserError


def absent_files(folder: str, files: Iterable[str]) -> list[str]:
    """Return those of `files` that are not in `folder`, a path or the URL of one in a bucket."""
    if bucket.remote(folder):
        present = set(bucket.sizes(folder))
        return [file for file in files if file not in present]
    listings: dict[str, set[str]] = {}
    absent = []
    for file in files:
        parent, name = os.path.split(file)
        if parent not in listings:
            path = os.path.join(folder, parent)
            listings[parent] = set(os.listdir(path)) if os.path.isdir(path) else set()
        if name not in listings[parent]:
            absent.append(file)
    return absent


def check_shards(
    before: Callable[[Any], Iterable],
    jobs: list,
    record_sets: Mapping[str, RecordSet],
    located: Callable[[str], str],
    target: str,
) -> None:
    """Raise UserError for deleted shards that one of the jobs reads and no earlier job writes.

    before       returns the jobs that make the inputs of a job
    jobs         Snakemake's, that are going to run
    record_sets  by their folders below results/; located  returns the path or URL of a folder
    target       name of the target that writes shards again
    """
    readers, running = [job for job in jobs if job.input.get("records")], set(jobs)
    manifests = [job for reader in readers for job in before(reader) if job.output.get("manifest")]
    for manifest in dict.fromkeys(manifests):
        # A reader waits for the jobs that write shards only through the job of the manifest.
        writers = running.intersection(before(manifest)) if manifest in running else ()
        shards = [job.wildcards for job in writers if job.output.get("sidecar")]
        written = {f"{shard.split}/{shard.shard}-of-{shard.shards}" for shard in shards}
        records = record_sets[manifest.wildcards.records]
        folder = located(f"<results>/{records.folder}")
        gone = [file for file in absent_files(folder, records.files) if file.rpartition(".")[0] not in written]
        if gone:
            more, were, them = (f" and {len(gone) - 1} more", "were", "them") if gone[1:] else ("", "was", "it")
            # Snakemake compares objects by their dates alone.
            then = f"; models trained on {them} are then trained again" if bucket.remote(folder) else ""
            raise UserError(
                f"{gone[0]}{more} of {folder} {were} deleted, and jobs of this run read {them}; "
                f"snakemake {target}, with the options of this command, writes {them} again with the same bytes{then}."
            )


def check_folders(before: Callable[[Any], Iterable], jobs: list) -> None:
    """Raise UserError for a deleted file in a folder that one of the jobs reads and no earlier job writes.

    Snakemake knows only the folder; the record of its job has the files. before, jobs  as for `check_shards`
    """
    running = set(jobs)
    makers = {maker: None for job in jobs for maker in before(job) if maker not in running and maker.log}
    for maker in makers:
        folders = [str(output) for output in maker.output if os.path.isdir(output)]
        record = ledger.last_success(ledger.path_of(maker.log[0])) if folders else None
        files = record["outputs"] if record else {}
        for folder in folders:
            gone = next((file for file in files if file.startswith(f"{folder}/") and not os.path.exists(file)), None)
            if gone:
                raise UserError(
                    f"{gone} was deleted, and jobs of this run read {folder}; snakemake --force {folder}, with the "
                    "options of this command, writes it again with the same bytes."
                )


def requests(jobs: Iterable) -> list[dict]:
    """Return the requests of jobs that do not run on this machine, one of each kind, those with accelerators first.

    `where` names a job for the user: the key of its run, such as finetune.runs.python, or else its rule.
    """
    kinds: dict[str, dict] = {}
    for job in jobs:
        if job.is_local:
            continue
        # Without Snakemake's marks for resources that depend on a finished input.
        resources = {name: value for name, value in job.resources.items() if type(value) in (bool, int, str)}
        where = job_name(resources, job.rule.name)
        request = {"rule": job.rule.name, "where": where, "threads": job.threads, "resources": resources}
        kinds.setdefault(json.dumps(request), request | {"log": [*job.log]})
    return sorted(
        kinds.values(),
        key=lambda request: ("accelerator" not in request["resources"], request["where"], request["rule"]),
    )


def preflight(job_requests: list[dict], executor: object, folder: str) -> None:
    """Run the preflight commands of a profile on requests of jobs. Raises UserError with the sentence of a failure.

    executor  settings of the executor, a dataclass or None
    folder    of the workflow
    """
    settings = asdict(executor) if is_dataclass(executor) and not isinstance(executor, type) else {}
    payload = json.dumps({"executor": settings, "jobs": job_requests}, default=str)
    resources = [request["resources"] for request in job_requests]
    for command in {requested["preflight"] for requested in resources if "preflight" in requested}:
        line = command.replace("{python}", shlex.quote(sys.executable))
        done = subprocess.run(["sh", "-c", line], cwd=folder, input=payload, text=True, stderr=subprocess.PIPE)
        if not done.returncode:
            sys.stderr.write(done.stderr)
        else:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            sentence = last.removeprefix("error: ")
            raise UserError(sentence if sentence != last else f"`{line}` ended with {done.returncode}: {last}")
