"""Additional checks at the start of Snakemake: while it reads the Snakefile, and before the first job."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
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
from tpulm.workflow.budget import check_budget, pending, plan_recipe
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


def tell_of_cpus(todo: list[dict]) -> None:
    """Tell which runs are going to train on CPUs though jobs go to a place with accelerators: none was asked for.

    todo  as `Start.to_train` returns it
    """
    keys = list(dict.fromkeys(run["recipe"]["where"] for run in todo if run["accelerator"] is None))
    if keys:
        which = requesting(keys)
        say(f"{which} no accelerator and will train on CPUs; to request one, set resources.accelerator, such as v5e-8.")


def requesting(keys: list[str]) -> str:
    """Return the beginning of a sentence that says what runs request."""
    return f"{', '.join(keys[:-1])} and {keys[-1]} request" if keys[1:] else f"{keys[0]} requests"


def lacking(accelerator: str | None) -> str | None:
    """Return TPU or GPU, where an accelerator is requested of a kind that this machine has none of; otherwise None."""
    if not accelerator or os.environ.get(ANY_DEVICES) or (tpu_here() if is_tpu(accelerator) else gpu_here()):
        return None
    return "TPU" if is_tpu(accelerator) else "GPU"


def check_this_machine(todo: Iterable[Mapping]) -> None:
    """Raise UserError where a run requests an accelerator of a kind that this machine, which trains it, has none of."""
    for run in todo:
        if kind := lacking(run["requested"]):
            raise UserError(
                f"{run['recipe']['where']}.resources.accelerator is {run['requested']}, but this machine has no "
                f"{kind}; allowed: a profile whose jobs run elsewhere, or the config "
                f"without the key. {ANY_DEVICES}=1 in the environment trains on any devices."
            )


def check_token(jobs: Iterable) -> None:
    """Refuse to publish on the hub without a token. Raises UserError."""
    if any(job.output.get("hub_receipt") for job in jobs) and not os.environ.get("HF_TOKEN"):
        raise UserError("HF_TOKEN is not set; publish.hub needs it: a token of the Hugging Face Hub with write access.")


def check_until(before: Callable[[Any], Iterable], jobs: Collection, rules: Collection[str]) -> None:
    """Refuse --until with a rule whose jobs need each other: Snakemake ends after the first. Raises UserError.

    before  returns the jobs that make the inputs of one of Snakemake's
    jobs    those that are going to run; rules  that --until names
    """
    for job in jobs:
        if job.rule.name in rules and any(one.rule.name == job.rule.name and one in jobs for one in before(job)):
            raise UserError(
                f"--until is {job.rule.name}, whose jobs need each other, so Snakemake would end after the first; name "
                f"a target instead, such as {next(iter(job.output))}."
            )


class Start:
    """The checks of a workflow, or of a module in another one."""

    def __init__(self, workflow: Any, evaluations: Evaluations, place: Paths):
        """Look at the working folder, while Snakemake reads the Snakefile.

        Raises UserError in a job whose workflow is gone.
        """
        self.workflow, self.evaluations, self.place = workflow, evaluations, place
        self.outline = evaluations.outline
        self.config, self.runs = self.outline.config, list(self.outline.runs.values())
        # The targets, also of a module.
        self.tfrecords, self.plan = rule_name(workflow, "tfrecords"), rule_name(workflow, "plan")
        self.follower: subprocess.Popen | None = None  # what passes metrics on to trackers
        if workflow.is_main_process:
            self.seen = folder_lock.last_start()
            # A module's checks run only where the outer workflow calls its `onstart`.
            os.environ[folder_lock.AWAITED] = "1"
        else:
            folder_lock.join()
            folder_lock.check_start()

    def notes(self) -> list[str]:
        """Return the notes before the first job: faults in results/, and needs that this machine does not meet."""
        results = self.place.located("<results>")
        found = folder_lock.unwritable(results) + [UNKNOWN.format(results)] * self.unknown(results)
        if not jobs_here(self.workflow):
            return found
        threads, cores = self.config["cpu_threads"], os.cpu_count() or 1
        if threads > cores:
            found.append(f"cpu_threads is {threads}, but this machine has only {cores}; training here takes longer.")
        return found + (self.not_trained_here() if self.workflow.output_settings.dryrun else [])

    def unknown(self, results: str) -> bool:
        """Return whether there are results of which Snakemake has no metadata."""
        there = (path for path in Path(results).glob("*/**/*") if path.is_file() and path.parts[1] != "jobs")
        known = Path(".snakemake/metadata").glob("*")
        return not self.workflow.touch and any(True for _ in there) and not any(True for _ in known)

    def not_trained_here(self) -> list[str]:
        """Return which runs request an accelerator of a kind that this machine has none of, in a sentence a kind."""
        keys: dict[str, dict[str, None]] = {}
        for run in (run for chains in self.evaluations.planned.values() for run in chains):
            if kind := lacking(run.recipe["resources"].get("accelerator")):
                keys.setdefault(kind, {})[run.key] = None
        return [
            f"{requesting([*names])} a {kind}, but this machine has none; allowed: a profile whose jobs run elsewhere."
            for kind, names in keys.items()
        ]

    def before_jobs(self) -> None:
        """Take the folder, and refuse what cannot or must not run.

        Raises UserError: an unwritable folder, another workflow at work, shards that are gone, a budget that is too
        small, a disk that is too full, a place that cannot run the jobs, no token to publish with.
        """
        workflow, results = self.workflow, self.place.located("<results>")
        if carries_sources(workflow) and (given := workflow.overwrite_workdir):
            raise UserError(
                f"the jobs of this profile get the files of the working folder, which is {given}, but the workflow is "
                f"not in it; type, in place of -d {given}: --configfile {given}/config.yaml --default-storage-prefix "
                "PREFIX, with a prefix of this experiment and with paths in the config as they are from here."
            )
        # Without TensorBoard, which is the default, there is a note.
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
        needs = disk.needs_of(jobs, self.outline, self.evaluations.chains, todo)
        disk.check_space(needs, jobs, results, say)
        if not workflow.local_exec:
            preflight(requests(jobs), executor_settings(workflow), str(self.place.root))
        if any(job.output.get("state") for job in jobs):
            self.track()

    def track(self) -> None:
        """Pass the metrics of what trains from here on to the trackers."""
        missing = absent(self.config["trackers"])
        if "tensorboard" in missing:
            say("tensorboard is not installed here, so no event files are written; after pip install tensorboard, "
                "`snakemake track` writes them.")  # fmt: skip
        given = tracking.specification(self.config, self.runs, self.place, replay=False)
        given["trackers"] = [name for name in given["trackers"] if name not in missing]
        self.follower = tracking.start_trackers(given, self.place)

    def after_jobs(self) -> None:
        """Let the trackers have the rest, and this folder the records of jobs that ran elsewhere."""
        if self.follower:
            tracking.end_trackers(self.follower)
        if bucket.remote(records := self.place.located("<results>/jobs")):
            or_exit(ledger.combine, Path(ledger.COPIES, records.removeprefix(bucket.SCHEME)))

    def to_train(self, jobs: list) -> list[dict]:
        """Return the runs and chains of tasks with segments among the jobs that are to run, see `pending`."""
        keys = [
            " ".join(filter(None, (str(job.resources.get("run_key")), job.wildcards.get("chain"))))
            for job in jobs
            if job.output.get("state")
        ]
        segments = Counter(key.removeprefix(self.place.prefixed("")) for key in keys)
        return pending(self.planned(), segments)

    def planned(self) -> list[dict]:
        """Return the recipes of plans and of the budget, for every run and every chain of a task.

        key, of the config, for a chain also its path; path; folder; segments, and what of the recipe says how long they
        are and which checkpoints stay; recipe and folder of its plans; accelerator, and the one requested
        """
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
                "recipe": plan_recipe(chains),
                # None where it is this machine, without a TPU, that trains.
                "accelerator": None if here else run.recipe["resources"].get("accelerator"),
                "requested": run.recipe["resources"].get("accelerator"),
                "plans": self.place.located(f"<results>/plan/{name}"),
            }
            for name, chains in self.evaluations.planned.items()
            for run in chains
        ]
