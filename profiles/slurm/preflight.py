"""Ask Slurm whether it could ever run what the jobs ask for: what it would refuse ends in one sentence, here.

Reads the jobs from standard input, as scripts/tpulm/workflow/checks.py writes them. Where it cannot tell, it
lets them pass.
"""

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string
from snakemake_executor_plugin_slurm.validation import validate_or_get_slurm_job_id
from snakemake_interface_common.exceptions import WorkflowError

# Reasons to wait that only another partition, or other settings of it, would end.
NEVER = ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit")
# Answers that say nothing of the job: it may well run, or be submitted later.
PASSES = ("timed out", "Job violates accounting/QOS policy", "Slurm temporarily unable to accept job")


class Resources(dict):
    """A job's resources, read by key or by attribute, as Slurm's executor does."""

    __getattr__ = dict.__getitem__


def command(request: dict, settings: SimpleNamespace) -> list[str]:
    """Return how the executor would submit such a job, with nothing to do."""
    resources = Resources(request["resources"])
    job = SimpleNamespace(resources=resources, threads=request["threads"])
    account = re.split(r"[,\s]+", str(resources.get("slurm_account") or "").strip())[0]  # each may be charged
    partition = resources.get("slurm_partition")
    options = {
        "account": f"-A {shlex.quote(account)}" if account else "",
        "partition": f"-p {shlex.quote(str(partition))}" if partition else "",
    }
    names = {"run_uuid": "preflight", "slurm_logfile": "/dev/null", "comment_str": "preflight", "workdir": None}
    line = get_submit_command(job, names | options, settings) + set_gres_string(job)
    return [*shlex.split(line), "--wrap", "true"]


def words(request: dict) -> str:
    """Return what a job asks for, in the words of config.yaml."""
    resources = request["resources"]
    asked = {
        "accelerator": resources.get("accelerator"),
        "hosts": resources.get("hosts"),
        "mem_gb": f"{resources['mem_mb'] / 1000:g}" if "mem_mb" in resources else None,
        "runtime": resources.get("runtime"),
        "CPUs": request["threads"] if request["threads"] > 1 else None,
    }
    return ", ".join(f"{name}: {value}" for name, value in asked.items() if value) or "nothing"


def refusal(request: dict, line: list[str], partition: dict[str, str]) -> str | None:
    """Return why Slurm would not run such a job; None where it would, be it later."""
    limit = minutes(partition.get("MaxTime", ""))
    if float(request["resources"].get("runtime") or 0) > limit:
        return f"its partition allows at most {limit:g} minutes"
    if not run(*line, "--test-only").returncode:
        return None
    # That refuses, too, what only has to wait, such as for nodes that are down today. A job that does nothing tells
    # the two apart; one that is held would not.
    done, job = run(*line), None
    try:
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["sbatch gave no reason"]
            if any(reason in done.stderr for reason in PASSES):
                return None
            return said[-1].removeprefix("sbatch: error: ").removeprefix("Batch job submission failed: ").rstrip(".")
        job = validate_or_get_slurm_job_id(done.stdout.strip(), done.stdout)
        reason = run("squeue", "--noheader", f"--jobs={job}", "--format=%r").stdout.strip()
        return f"it would wait forever ({reason})" if reason in NEVER else None
    finally:
        if job:
            run("scancel", job)


def partitions() -> dict[str, dict[str, str]]:
    """Return what Slurm says of each partition, of the default one also under the name of ""."""
    found = {}
    for line in run("scontrol", "--oneliner", "show", "partition").stdout.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        found[fields["PartitionName"]] = fields
        if fields.get("Default") == "YES":
            found[""] = fields
    return found


def minutes(limit: str) -> float:
    """Return a time limit of a partition, such as 1-00:00:00, in minutes; infinity where there is none."""
    parts = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):\d+", limit)
    if not parts:
        return math.inf
    days, hours, rest = (int(part or 0) for part in parts.groups())
    return (days * 24 + hours) * 60 + rest


def run(*line: str) -> subprocess.CompletedProcess:
    """Run a command."""
    return subprocess.run(line, capture_output=True, text=True)


def check_slurm() -> None:
    """End with a sentence where this machine has no Slurm, or Slurm does not answer."""
    if not shutil.which("sbatch"):
        sys.exit("error: sbatch is not on PATH; log in to a node from which Slurm jobs can be submitted.")
    answer = run("scontrol", "ping")
    if answer.returncode:
        said = (answer.stdout + answer.stderr).strip().splitlines() or ["scontrol ping failed"]
        sys.exit(f"error: Slurm does not answer: {said[0].rstrip('.')}.")


def note_cancelling(partition: dict[str, str]) -> None:
    """Print a note on a partition that cancels jobs that it preempts."""
    if "CANCEL" in partition.get("PreemptMode", ""):
        print(
            f"note: the partition {partition['PartitionName']} cancels jobs that it preempts (PreemptMode=CANCEL), and "
            "Snakemake waits for such a job forever: press Ctrl-C and run the command again.",
            file=sys.stderr,
        )


def main() -> None:
    """Ask about each kind of job once; end with a sentence at the first that is refused."""
    asked = json.load(sys.stdin)
    settings = SimpleNamespace(**asked["executor"])
    check_slurm()
    # Which partition, and which cluster, the executor finds out by itself where these are given.
    if settings.partition_config or os.environ.get("SNAKEMAKE_SLURM_PARTITIONS"):
        return
    jobs = [job for job in asked["jobs"] if not {"cluster", "clusters", "slurm_cluster"} & set(job["resources"])]
    known = partitions()
    used = [known.get(str(job["resources"].get("slurm_partition") or ""), {}) for job in jobs]
    for name in dict.fromkeys(partition.get("PartitionName") for partition in used):
        note_cancelling(known.get(name, {}))
    seen = []
    for request, partition in zip(jobs, used, strict=True):
        try:
            line = command(request, settings)
            why = None if line in seen else refusal(request, line, partition)
            seen.append(line)
        except WorkflowError as error:
            why = str(error).rstrip(".")
        if why:
            sys.exit(
                f"error: {request['where']} requests {words(request)}, but Slurm refuses it: {why}. "
                "`sinfo -o '%P %l %c %m %G'` lists what each partition has."
            )


main()
