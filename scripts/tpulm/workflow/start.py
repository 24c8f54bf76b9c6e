"""Additional checks at the start of Snakemake: while it reads the Snakefile, and before the first job."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tpulm.config.model_sizes import checkpoint_bytes
from tpulm.config.planned import planned_of
from tpulm.config.record_sets import RecordSet
from tpulm.config.runs import Run, record_sets_of
from tpulm.core import bucket, folder_lock
from tpulm.core.errors import UserError
from tpulm.core.local_devices import tpu_here
from tpulm.tracking.trackers import absent, check_installed
from tpulm.workflow import disk
from tpulm.workflow.budget import check, pending
from tpulm.workflow.place import Place
from tpulm.workflow.preflight import preflight, requests
from tpulm.workflow.shards import PHASE, listed, missing
from tpulm.workflow.staleness import first_stale, note
from tpulm.workflow.trackers import Beside, specification

Result = TypeVar("Result")


def or_exit(function: Callable[..., Result], *arguments: object) -> Result:
    """Return what a function returns; a UserError ends Snakemake with its sentence."""
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
        which = f"{', '.join(keys[:-1])} and {keys[-1]} ask" if keys[1:] else f"{keys[0]} asks"
        say(f"{which} for no accelerator and will train on CPUs; resources.accelerator, such as v5e-8, asks for one.")


def restart(rundir: str) -> NoReturn:
    """Start this Snakemake again in the folder in which it was started: what there is to do has changed since."""
    os.chdir(rundir)  # the arguments are relative to it
    os.execv(sys.executable, same_command())


def started_in(workflow: Any) -> str:
    """Return the folder in which this Snakemake was started, which --directory leaves."""
    return workflow.rundir if workflow.overwrite_workdir else os.getcwd()


def same_command(*options: str) -> list[str]:
    """Return the command that started this Snakemake, with more options."""
    command = [sys.executable, *sys.orig_argv[1:]]
    end = command.index("--") if "--" in command else len(command)  # after it, there are targets only
    return [*command[:end], *options, *command[end:]]


def check_token(jobs: Iterable) -> None:
    """Refuse to publish on the hub without a token. Raises UserError."""
    if any(job.output.get("hub_receipt") for job in jobs) and not os.environ.get("HF_TOKEN"):
        raise UserError(
            "HF_TOKEN is not in the environment; publish.hub needs it: a token of the Hugging Face Hub that may write."
        )


class Start:
    """The checks of a workflow, or of a module in another one."""

    def __init__(self, workflow: Any, config: Mapping, runs: list[Run], place: Place):
        """Look at the working folder, while Snakemake reads the Snakefile.

        Raises UserError in a job whose workflow is gone.
        """
        self.workflow, self.config, self.runs, self.place = workflow, config, runs, place
        self.record_sets = record_sets_of(config, runs)
        self.phase = os.environ.pop(PHASE, None)
        self.trackers = Beside()
        if workflow.is_main_process:
            self.seen = folder_lock.last_start()
            # A module's checks run only where the outer workflow calls its `onstart`.
            os.environ[folder_lock.AWAITED] = "1"
        else:
            folder_lock.join()
            folder_lock.check_start()

    def notes(self) -> list[str]:
        """Return what to tell before jobs start.

        Which runs train again and why, which shards are written again, and whether results/ is writable.
        """
        results = self.place.located("results")
        found = [note(run, self.place.located(run.folder)) for run in self.runs]
        found += map(self.deleted, self.record_sets.values())
        return [text for text in (*found, *folder_lock.unwritable(results)) if text]

    def missing(self, records: RecordSet) -> list[str]:
        """Return the files of a set's shards that are not there."""
        return missing(self.place.located(f"results/{records.folder}"), records.files)

    def deleted(self, records: RecordSet) -> str | None:
        """Return a sentence where shards are missing that a run is going to read, as far as recipes tell."""
        listing, absent = self.place.located(records.listing), self.missing(records)
        if not absent or not bucket.exists(listing):  # they are still to be written
            return None
        known = listed(listing)  # other shards, of another number of them, have never been there
        absent = [name for name in absent if name.rpartition(".")[0] in known]
        if not absent or not any(self.unfinished(run) for run in self.runs if records in run.record_sets):
            return None
        more, were = (f" and {len(absent) - 1} more", "were") if len(absent) > 1 else ("", "was")
        return f"{absent[0]}{more} of results/{records.folder} {were} deleted; list_shards writes them again first."

    def unfinished(self, run: Run) -> bool:
        """Return whether a run is to be trained or measured, as far as its artifacts tell."""
        folder = self.place.located(run.folder)
        return not bucket.exists(f"{folder}/metrics.json") or first_stale(run, folder) is not None

    def before_jobs(self, sources: Iterable[Path]) -> None:
        """Take the folder, and refuse what cannot or must not run.

        sources  files that Snakemake tells by their dates to be newer than results

        Raises UserError: an unwritable folder, another workflow at work, a budget that is too small, a disk that is
        too full, a place that cannot run the jobs, no token to publish with, dates in the future.
        """
        workflow, results = self.workflow, self.place.located("results")
        check_installed(self.config["trackers"])
        if bucket.remote(results):
            bucket.check_writable(results)
            bucket.claim(self.place.located(".belongs-to"), folder_lock.identity())
        else:
            folder_lock.check_writable(results)
        if not workflow.local_exec and folder_lock.wait_for_jobs(say):
            restart(started_in(workflow))  # to see what those jobs have made
        rules = set() if self.phase or workflow.touch else self.list_first()
        if rules:
            done = subprocess.run(
                same_command("--forcerun", *rules, "--until", *rules),
                cwd=started_in(workflow),
                env=os.environ | {PHASE: "1"},
            )
            if done.returncode:
                sys.exit(done.returncode)
            os.environ[PHASE] = "2"
            restart(started_in(workflow))
        folder_lock.enter(self.seen)
        if workflow.touch:
            return
        jobs = list(workflow.dag.needrun_jobs())
        check_token(jobs)
        todo = self.to_train(jobs)
        plan = self.config["plan"]
        check(todo, plan["spending_limit"], plan["prices"])
        if not workflow.local_exec:
            tell_of_cpus(todo)
        needs = disk.needs_of(jobs, self.runs, self.config, todo)
        disk.check(needs, jobs, results, say, disk.uncounted(jobs))
        if not workflow.local_exec:
            preflight(requests(jobs), workflow.executor_settings, str(self.place.root))
        folder_lock.check_clock(sources, results)
        if any(job.output.get("state") for job in jobs):
            self.track()

    def track(self) -> None:
        """Pass the metrics of what trains from here on to the trackers."""
        if "tensorboard" in absent(self.config["trackers"]):
            say("tensorboard is not installed here, so there will be no event files; after pip install tensorboard, "
                "`snakemake track` writes them.")  # fmt: skip
        self.trackers.start(specification(self.config, self.runs, self.place, replay=False))

    def after_jobs(self) -> None:
        """Let the trackers have the rest."""
        self.trackers.end()

    def list_first(self) -> set[str]:
        """Return the rule that has to list the shards before Snakemake can tell what else there is to do.

        Because jobs read shards of which some are missing, and none writes them. Or because they are listed anyway: of
        what depends on a job that runs, Snakemake does not look for other reasons to run, and an input that is
        `ancient` is none.
        """
        dag = self.workflow.dag
        jobs = list(dag.needrun_jobs())
        made = {str(job.output.manifest) for job in jobs if job.output.get("manifest")}
        found = [job for job in jobs if job.output.get("listing")]
        for reader in jobs:
            lists = (job for job in dag.job_dependencies(reader) if job.output.get("listing"))
            found += [job for job in lists if self.missing(self.record_sets[job.wildcards.records])]
        # Where a manifest is made anew, that is a reason to run.
        return {job.rule.name for job in found if str(job.input.manifest) not in made}

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
        """Return what plans and the budget need to know of every run, and of every chain of a task.

        key, of the config, for a chain also its folder; stage, name; folder; segments, and what of the recipe says how
        long they are and which checkpoints stay; recipe and folder of its plans; accelerator
        """
        here = self.workflow.local_exec and not tpu_here()
        return [
            {
                "key": f"{run.key} {run.folder.removeprefix('results/')}" if planned.task else run.key,
                "stage": run.stage,
                "name": run.name,
                "folder": self.place.prefixed(run.folder),
                "segments": len(run.segment_ends),
                "checkpoint_every": run.recipe["checkpoint_every"],
                "keep_checkpoints": run.recipe["keep_checkpoints"],
                "checkpoint_bytes": checkpoint_bytes(run),
                "recipe": planned.recipe,
                # None where it is this machine, without a TPU, that trains.
                "accelerator": None if here else run.recipe["resources"].get("accelerator"),
                "plans": self.place.located(f"results/plan/{planned.name}"),
            }
            for planned in planned_of(self.config).values()
            for run in planned.chains
        ]
