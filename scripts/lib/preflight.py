"""What a place says of the jobs that it would get, before the first of them runs.

A profile names a line of sh with the resource `preflight`, in which {python} is the Python of Snakemake. It runs in
the workflow's folder and reads from standard input a JSON object: `executor`, its settings, and `jobs`, what they ask
for, one of each kind, as `rule`, `where`, `log`, `threads` and `resources`. Where it ends with an error, nothing runs;
the last line that it wrote to standard error is the sentence, after "error: ".
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, is_dataclass

from lib.errors import UserError


def requests(jobs: Iterable, where: Callable[[object], str]) -> list[dict]:
    """Return what jobs of Snakemake's that run elsewhere ask for, one of each kind, those with accelerators first.

    where  how to name a job for the user, such as lora.runs.python
    """
    kinds = {}
    for job in jobs:
        if job.is_local:
            continue
        # Not Snakemake's marks for what only a finished input decides.
        resources = {name: value for name, value in job.resources.items() if type(value) in (bool, int, str)}
        found = {"rule": job.rule.name, "where": where(job), "threads": job.threads, "resources": resources}
        kinds.setdefault(json.dumps(found), found | {"log": [*job.log]})
    return sorted(
        kinds.values(), key=lambda found: ("accelerator" not in found["resources"], found["where"], found["rule"])
    )


def preflight(asked: list[dict], executor: object, folder: str) -> None:
    """Let the command that the profile named look at what is asked for. Raises UserError with its sentence.

    executor  its settings, a dataclass or None
    folder    the workflow's
    """
    settings = asdict(executor) if is_dataclass(executor) else {}
    settings = {name: str(value) if value not in (None, True, False) else value for name, value in settings.items()}
    told = json.dumps({"executor": settings, "jobs": asked})
    for command in {request["resources"]["preflight"] for request in asked if "preflight" in request["resources"]}:
        line = command.replace("{python}", shlex.quote(sys.executable))
        done = subprocess.run(["sh", "-c", line], cwd=folder, input=told, text=True, stderr=subprocess.PIPE)
        if not done.returncode:
            sys.stderr.write(done.stderr)
        else:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            sentence = last.removeprefix("error: ")
            raise UserError(sentence if sentence != last else f"`{line}` ended with {done.returncode}: {last}")
