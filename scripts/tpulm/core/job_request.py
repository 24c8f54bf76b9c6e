"""The request of a job: how executors and profiles read it from the resources of its rule.

Snakemake passes resources to executors as names with numbers or strings: an executor plugin reads them from the job's
`resources`, a script of the cluster-generic executor as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping


def job_name(resources: Mapping, rule: str) -> str:
    """Return what to call a job where its user reads it: as the config calls its run, or else its rule.

    resources  the job's; `run_key`, which the rules of runs set, is a key of the config such as finetune.runs.python
    """
    return resources.get("run_key") or f"rule {rule}"


def run_hosts(resources: Mapping) -> int:
    """Return how many hosts the run of a job trains on, also where the job itself, an evaluation, takes one of them."""
    return resources.get("run_hosts") or resources.get("hosts") or 1
