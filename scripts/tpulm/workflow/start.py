"""Check a run when Snakemake starts: while it reads the Snakefile, and before the first job."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tpulm.compat.snakemake import (
    carries_sources,
    executor_settings,
    jobs_before,
    jobs_here,
    pending_jobs,
    rule_name,
    until,
)
from tpulm.config.evaluations import Evaluations
from tpulm.config.model_sizes import checkpoint_bytes
from tpulm.core import bucket, folder_lock, ledger
from tpulm.core.accelerators import ANY_DEVICES, is_tpu
from tpulm.core.devices import gpu_here, tpu_here
from tpulm.core.errors import UserError
from tpulm.workflow import disk, tracking, upgrade
from tpulm.workflow.budget import PendingRun, RunToPlan, check_budget, pending, plan_recipe
from tpulm.workflow.checks import check_folders, check_shards, preflight, requests
from tpulm.workflow.paths import Paths
from tpulm.workflow.trackers import absent, check_installed

Result = TypeVar("Result")
UNKNOWN = (
    "{}/ has no .snakemake/metadata beside it, so Snakemake cannot say which files another config or code made; bring "
    "that folder along, move the files away, or take them as they are: snakemake --touch, with the options of this "
    "command."
)


def or_exit(function: Callable[..., Result], *arguments: object) -> Result:
    """Return the result of a function; a UserError ends Snakemake with its sentence."""
    try:
        return function(*arguments)
    except UserError as error:
        sys.exit(f"error: {error}")


def say(text: str) -> None:
    """Print a note on standard error."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def tell_of_cpus(todo: Iterable[PendingRun]) -> None:
    """Print a note on runs that request no accelerator, though jobs run elsewhere."""
    keys = list(dict.fromkeys(run["recipe"]["where"] for run in todo if run["accelerator"] is None))
    if keys:
        which = requesting(keys)
        say(f"{which} no accelerator and will train on CPUs; to request one, set resources.accelerator, such as v5e-8.")


def requesting(keys: list[str]) -> str:
    """Return the beginning of a sentence on what runs request."""
    return f"{', '.join(keys[:-1])} and {keys[-1]} request" if keys[1:] else f"{keys[0]} requests"


def lacking(accelerator: str | None) -> str | None:
    """Return TPU or GPU if an accelerator of this kind is requested and this machine has none, else None."""
    if not accelerator or os.environ.get(ANY_DEVICES) or (tpu_here() if is_tpu(accelerator) else gpu_here()):
        return None
    return "TPU" if is_tpu(accelerator) else "GPU"


def check_this_machine(todo: Iterable[RunToPlan]) -> None:
    """Raise UserError for a run that this machine trains and that requests a kind of accelerator it does not have."""
    for run in todo:
        if kind := lacking(run["requested"]):
            raise UserError(
                f"{run['recipe']['where']}.resources.accelerator is {run['requested']}, but this machine has no "
                f"{kind}. Use a profile that runs jobs on a machine with this accelerator, or remove the key. "
                f"{ANY_DEVICES}=1 in the environment trains on any devices."
            )


def check_token(jobs: Iterable) -> None:
    """Raise UserError if a job publishes on the hub and there is no token."""
    if any(job.output.get("hub_receipt") for job in jobs) and not os.environ.get("HF_TOKEN"):
        raise UserError("HF_TOKEN is not set; publish.hub needs it: a token of the Hugging Face Hub with write access.")


def check_until(before: Callable[[Any], Iterable], jobs: Collection, rules: Collection[str]) -> None:
    """Raise UserError if --until names a rule whose jobs need each other: Snakemake would end after the first."""
    for job in jobs:
        if job.rule.name in rules and any(maker.rule.name == job.rule.name and maker in jobs for maker in before(job)):
            raise UserError(
                f"--until is {job.rule.name}, whose jobs need each other, so Snakemake would end after the first; name "
                f"a target instead, such as {next(iter(job.output))}."
            )


class Start:
    """The checks of a workflow, or of a module in another workflow."""

    def __init__(self, workflow: Any, evaluations: Evaluations, place: Paths):
        """Check the working folder, while Snakemake reads the Snakefile.

        Raises UserError in a job whose workflow has ended.
        """
        self.workflow, self.evaluations, self.place = workflow, evaluations, place
        self.outline = evaluations.outline
        self.config = self.outline.config
        # Names of the targets, also in a module.
        self.tfrecords, self.plan = rule_name(workflow, "tfrecords"), rule_name(workflow, "plan")
        self.follower: subprocess.Popen | None = None  # passes metrics on to trackers
        if workflow.is_main_process:
            self.seen = folder_lock.last_start()
            # A module's checks run only where the outer workflow calls its `onstart`.
            os.environ[folder_lock.AWAITED] = "1"
        else:
            folder_lock.join()
            folder_lock.check_start()

    def notes(self) -> list[str]:
        """Return the notes before the first job: faults in results/, and requests that this machine cannot meet."""
        results = self.place.located("<results>")
        notes = folder_lock.unwritable(results) + [UNKNOWN.format(results)] * self.unknown(results)
        if not jobs_here(self.workflow):
            return notes
        threads, cores = self.config["cpu_threads"], os.cpu_count() or 1
        if threads > cores:
            notes.append(f"cpu_threads is {threads}, but this machine has only {cores}; training here takes longer.")
        return notes + (self.not_trained_here() if self.workflow.output_settings.dryrun else [])

    def unknown(self, results: str) -> bool:
        """Return whether there are results, but no metadata of Snakemake."""
        files = (path for path in Path(results).glob("*/**/*") if path.is_file() and path.parts[1] != "jobs")
        metadata = Path(".snakemake/metadata").glob("*")
        return not self.workflow.touch and any(True for _ in files) and not any(True for _ in metadata)

    def not_trained_here(self) -> list[str]:
        """Return a sentence per kind of accelerator that runs request and this machine does not have."""
        keys: dict[str, dict[str, None]] = {}
        for run in (run for runs in self.evaluations.runs_by_plan.values() for run in runs):
            if kind := lacking(run.recipe["resources"].get("accelerator")):
                keys.setdefault(kind, {})[run.key] = None
        return [
            f"{requesting([*names])} a {kind}, but this machine has none; use a profile that runs jobs elsewhere."
            for kind, names in keys.items()
        ]

    def before_jobs(self) -> None:
        """Lock the folder, and check that the jobs can and may run.

        Raises UserError for sources of the workflow that jobs would not get, and for what the functions below check.
        """
        workflow, results = self.workflow, self.place.located("<results>")
        if carries_sources(workflow) and (folder := workflow.overwrite_workdir):
            raise UserError(
                f"the jobs of this profile get the files of the working folder, which is {folder}, but the workflow is "
                f"not in it; type, in place of -d {folder}: --configfile {folder}/config.yaml --default-storage-prefix "
                "PREFIX, with a prefix of this experiment and with paths in the config as they are from here."
            )
        # TensorBoard, the default, is optional: `track` prints a note without it.
        check_installed([name for name in self.config["trackers"] if name != "tensorboard"])
        if bucket.remote(results):
            bucket.check_writable(results)
            bucket.claim(self.place.located(".belongs-to"), folder_lock.identity())
        else:
            folder_lock.check_writable(results)
        folder_lock.enter(self.seen)
        upgrade.take_over(results)
        if workflow.touch:
            return
        jobs = pending_jobs(workflow)
        check_shards(partial(jobs_before, workflow), jobs, self.outline.records, self.place.located, self.tfrecords)
        check_folders(partial(jobs_before, workflow), jobs)
        check_until(partial(jobs_before, workflow), jobs, until(workflow))
        check_token(jobs)
        todo = self.to_train(jobs)
        plan = self.config["plan"]
        check_budget(todo, plan["spending_limit"], plan["prices"])
        if workflow.local_exec:
            check_this_machine(todo)
            if any(job.rule.name == self.plan for job in jobs):
                for text in self.not_trained_here():
                    say(text)
        else:
            tell_of_cpus(todo)
        needs = disk.needs_of(jobs, self.outline, self.evaluations.all_runs, todo)
        disk.check_space(needs, jobs, results, say)
        if not workflow.local_exec:
            preflight(requests(jobs), executor_settings(workflow), str(self.place.root))
        if any(job.output.get("state") for job in jobs):
            self.track()

    def track(self) -> None:
        """Start to pass the metrics of jobs that train to the trackers."""
        missing = absent(self.config["trackers"])
        if "tensorboard" in missing:
            say("tensorboard is not installed here, so no event files are written; after pip install tensorboard, "
                "`snakemake track` writes them.")  # fmt: skip
        specification = tracking.specification(self.outline, self.place, replay=False)
        specification["trackers"] = [name for name in specification["trackers"] if name not in missing]
        self.follower = tracking.start_trackers(specification, self.place)

    def after_jobs(self) -> None:
        """End the trackers, and combine the entries of jobs if results are in a bucket."""
        if self.follower:
            tracking.end_trackers(self.follower)
        if bucket.remote(records := self.place.located("<results>/jobs")):
            or_exit(ledger.combine, Path(ledger.COPIES, records.removeprefix(bucket.SCHEME)))

    def to_train(self, jobs: list) -> list[PendingRun]:
        """Return those of `runs_to_plan` that the jobs train."""
        keys = [
            " ".join(filter(None, (str(job.resources.get("run_key")), job.wildcards.get("chain"))))
            for job in jobs
            if job.output.get("state")
        ]
        segments = Counter(key.removeprefix(self.place.prefixed("")) for key in keys)
        return pending(self.runs_to_plan(), segments)

    def runs_to_plan(self) -> list[RunToPlan]:
        """Return every run, also of models on tasks."""
        here = self.workflow.local_exec and not tpu_here()
        return [
            {
                "key": f"{run.key} {run.path}" if run.task else run.key,
                "path": run.path,
                "folder": self.place.prefixed(run.folder),
                "segments": len(run.segment_ends),
                "checkpoint_every": run.recipe["checkpoint_every"],
                "evaluate_every": run.recipe.get("evaluate_every"),
                "keep_checkpoints": run.recipe["keep_checkpoints"],
                "checkpoint_bytes": checkpoint_bytes(run),
                "recipe": plan_recipe(runs),
                "accelerator": None if here else run.recipe["resources"].get("accelerator"),
                "requested": run.recipe["resources"].get("accelerator"),
                "plans": self.place.located(f"<results>/plan/{name}"),
            }
            for name, runs in self.evaluations.runs_by_plan.items()
            for run in runs
        ]
