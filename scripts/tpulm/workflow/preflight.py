"""The preflight check: ask the profile, before the first job runs, whether the jobs can run there.

A profile sets the resource `preflight` to a shell command, in which {python} is Snakemake's Python. It runs in the
workflow's folder and reads a JSON object from standard input: `executor`, its settings, and `jobs`, the requests, one
of each kind, with `rule`, `where`, `log`, `threads` and `resources`. If it exits with an error, no job runs, and the
last line that it wrote to standard error is shown after "error: ".
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass

from tpulm.core.errors import UserError
from tpulm.core.job_request import job_name


def requests(jobs: Iterable) -> list[dict]:
    """Return what jobs of Snakemake's that run elsewhere ask for, one of each kind, those with accelerators first.

    `where` is how to name a job for the user: the key of its run, such as finetune.runs.python, or else its rule.
    """
    kinds: dict[str, dict] = {}
    for job in jobs:
        if job.is_local:
            continue
        # Not Snakemake's marks for what only a finished input decides.
        resources = {name: value for name, value in job.resources.items() if type(value) in (bool, int, str)}
        where = job_name(resources, job.rule.name)
        found = {"rule": job.rule.name, "where": where, "threads": job.threads, "resources": resources}
        kinds.setdefault(json.dumps(found), found | {"log": [*job.log]})
    return sorted(
        kinds.values(), key=lambda found: ("accelerator" not in found["resources"], found["where"], found["rule"])
    )


def preflight(asked: list[dict], executor: object, folder: str) -> None:
    """Let the command that the profile named look at what is asked for. Raises UserError with its sentence.

    executor  its settings, a dataclass or None
    folder    the workflow's
    """
    settings = asdict(executor) if is_dataclass(executor) and not isinstance(executor, type) else {}
    told = json.dumps({"executor": settings, "jobs": asked}, default=str)
    for command in {request["resources"]["preflight"] for request in asked if "preflight" in request["resources"]}:
        line = command.replace("{python}", shlex.quote(sys.executable))
        done = subprocess.run(["sh", "-c", line], cwd=folder, input=told, text=True, stderr=subprocess.PIPE)
        if not done.returncode:
            sys.stderr.write(done.stderr)
        else:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            sentence = last.removeprefix("error: ")
            raise UserError(sentence if sentence != last else f"`{line}` ended with {done.returncode}: {last}")
