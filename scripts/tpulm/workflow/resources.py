"""What the jobs of a run request, as `resources` of their rules: what, never where."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpulm.config.runs import Run
from tpulm.config.texts import sources_of
from tpulm.core.accelerators import gres
from tpulm.corpus.sources import Part
from tpulm.workflow.memory import mem_mb


def resources_of(run_of: Callable[[Any], Run], job: str, prefix: str, hosts: bool = False) -> dict[str, Callable]:
    """Return the resources of a rule that runs a model.

    run_of  returns by the wildcards of a job which run says what the model asks for
    job     the rule, see `tpulm.workflow.memory.JOBS`
    prefix  of a module's paths, which tells its runs from those of another one
    hosts   whether the rule trains, on all hosts of a run

    run_key      what to call the run, such as mlm.runs.tiny
    accelerator  as the config names it; gres  a host's share of it, in the notation of schedulers
    hosts        processes that train together; nodes, tasks  the same for schedulers, of which Slurm's executor would
                 take `tasks` for those of each GPU without tasks_per_gpu
    run_hosts    for what is no trainer, and runs on one host of a run that trains on several: how many those are
    mem_mb       of each host; runtime  minutes, of one attempt
    """

    def asked(wildcards: Any) -> dict:
        return run_of(wildcards).recipe["resources"]

    def several(wildcards: Any) -> int | None:
        found = asked(wildcards)["hosts"]
        return found if found > 1 else None

    # Snakemake does not ask for a resource that is None.
    found: dict[str, Callable] = {
        "run_key": lambda wildcards: f"{prefix}{run_of(wildcards).key}",
        "accelerator": lambda wildcards: asked(wildcards).get("accelerator"),
        "gres": lambda wildcards: gres(asked(wildcards).get("accelerator"), asked(wildcards)["hosts"]),
        "mem_mb": lambda wildcards: mem_mb(run_of(wildcards), job),
        # A segment that ran out of time has twice, then three times as much.
        "runtime": lambda wildcards, attempt: attempt * asked(wildcards)["runtime"],
        "tasks_per_gpu": lambda wildcards: 0 if several(wildcards) else None,
    }
    return found | dict.fromkeys(("hosts", "nodes", "tasks") if hosts else ("run_hosts",), several)


def snapshots_of(run_of: Callable[[Any], Run], located: Callable[[str], str]) -> dict[str, Callable]:
    """Return what a rule that trains says of snapshots and profiles; see tpulm.training.

    run_of   returns which run a job trains
    located  returns where an artifact is, in the working folder or in a bucket

    snapshots  their folder; snapshot_every  minutes; profile  steps to trace, such as 10-20
    """
    return {
        "snapshots": lambda wildcards: located(run_of(wildcards).snapshots(int(wildcards.step))),
        "snapshot_every": lambda wildcards: run_of(wildcards).recipe["resources"]["snapshot_every"],
        "profile": lambda wildcards: "-".join(map(str, run_of(wildcards).recipe["profile"].get("steps", []))) or None,
    }


def tokenizer_threads(text: Mapping, parts: Sequence[Part]) -> int:
    """Return the threads of the job that trains the tokenizer.

    One where the training split is a single part of a text that is not on a hub, so that the job of a small text need
    not wait beside a training until two are free. Of a single file that is compressed or in columns, such a part may be
    large: the second thread saves little there. Unigram's trainer has two threads even then, since its bytes depend on
    their number; they share one processor.
    text, parts  the corpus and its parts
    """
    known = all(recipe["source"] != "hub" for _, recipe in sources_of("", text).values())
    return 1 if known and sum(part.split == "train" for part in parts) == 1 else 2
