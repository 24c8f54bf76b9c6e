"""What a place says of the jobs that it would get, before the first of them runs.

A profile names a line of sh with the resource `preflight`, in which {python} is the Python of Snakemake. It reads from
standard input what the jobs ask for, one of each kind, as a JSON list of `rule`, `where`, `log`, `threads` and
`resources`. Where it ends with an error, the last line that it wrote is the sentence, and nothing runs.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable

from lib.errors import UserError


def requests(jobs: Iterable, where: Callable[[object], str]) -> list[dict]:
    """Return what jobs of Snakemake's that run elsewhere ask for, one of each kind, in the order of the jobs.

    where  how to name a job for the user, such as lora.runs.python
    """
    kinds = {}
    for job in jobs:
        if job.is_local:
            continue
        # What only a finished input decides is no number yet.
        resources = {name: value for name, value in job.resources.items() if type(value) in (int, str)}
        found = {"rule": job.rule.name, "where": where(job), "threads": job.threads, "resources": resources}
        kinds.setdefault(json.dumps(found), found | {"log": [*job.log]})
    return list(kinds.values())


def preflight(asked: list[dict]) -> None:
    """Let the commands that the profile named look at what is asked for. Raises UserError with their sentence."""
    for command in {request["resources"]["preflight"] for request in asked if "preflight" in request["resources"]}:
        line = command.replace("{python}", shlex.quote(sys.executable))
        done = subprocess.run(["sh", "-c", line], input=json.dumps(asked), text=True, stderr=subprocess.PIPE)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"`{line}` ended with {done.returncode}."]
            raise UserError(said[-1].removeprefix("error: "))
