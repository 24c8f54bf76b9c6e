"""Ask Slurm whether it could ever run what the jobs ask for: what it would refuse ends in one sentence, here.

Reads the jobs from standard input, as scripts/lib/preflight.py writes them.
"""

import json
import shlex
import subprocess
import sys
from types import SimpleNamespace

from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string

# Reasons to wait that only another partition, or other settings of it, would end.
NEVER = ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit")


class Resources(dict):
    """A job's resources, read by key or by attribute, as Slurm's executor does."""

    __getattr__ = dict.__getitem__


def command(request: dict) -> str:
    """Return the line of sh with which the executor would submit such a job."""
    resources = Resources(request["resources"])
    job = SimpleNamespace(resources=resources, threads=request["threads"])
    places = {"account": ("-A", "slurm_account"), "partition": ("-p", "slurm_partition")}
    options = {
        name: f"{option} {shlex.quote(str(resources[key]))}" if resources.get(key) else ""
        for name, (option, key) in places.items()
    }
    names = {"run_uuid": "preflight", "slurm_logfile": "/dev/null", "comment_str": "preflight", "workdir": None}
    line = get_submit_command(job, names | options) + set_gres_string(job)
    return f"{line} --wrap true"


def words(request: dict) -> str:
    """Return what a job asks for, in the words of config.yaml."""
    resources = request["resources"]
    asked = {
        "accelerator": resources.get("accelerator"),
        "hosts": resources.get("hosts"),
        "memory_gb": f"{resources['mem_mb'] / 1000:g}" if "mem_mb" in resources else None,
        "minutes": resources.get("runtime"),
    }
    return ", ".join(f"{name}: {value}" for name, value in asked.items() if value)


def refusal(request: dict) -> str | None:
    """Return why Slurm would not run such a job; None where it would, be it later."""
    line = command(request)
    if not sh(f"{line} --test-only").returncode:
        return None
    # That refuses, too, what only has to wait, such as for nodes that are down today. A job that does nothing tells
    # the two apart; one that is held would not.
    done = sh(line)
    if not done.returncode:
        job = done.stdout.strip().partition(";")[0]
        reason = sh(f"squeue --noheader --jobs={job} --format=%r").stdout.strip()
        sh(f"scancel {job}")
        why = f"it would wait for ever ({reason})" if reason in NEVER else None
    else:
        said = done.stderr.strip().splitlines() or ["sbatch gave no reason"]
        why = said[-1].removeprefix("sbatch: error: ").removeprefix("Batch job submission failed: ").rstrip(".")
    return why and f"{request['where']} asks for {words(request)}, and Slurm refuses that: {why}."


def sh(line: str) -> subprocess.CompletedProcess:
    """Run a line of sh."""
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True)


for asked in json.load(sys.stdin):
    refused = refusal(asked)
    if refused:
        sys.exit(f"error: {refused} `sinfo -o '%P %l %m %G'` lists what each partition has.")
