"""What is planned: each run that trains, and each model on each task, whose chains have one compiled step."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpulm.config.model import Model
from tpulm.config.runs import Run, runs_of
from tpulm.config.selection import checkpoints_named
from tpulm.config.task_chains import TaskChain
from tpulm.config.tasks import Task, labelled_tasks


@dataclass(frozen=True)
class Planned:
    """What one plan is of.

    name     its folder below results/plan/: STAGE/RUN, or tasks/TASK/ and the path of the model
    chains   what trains with the planned step, each a run of its own: the run alone, or all chains of a model on a task
    """

    name: str
    chains: list[Run]

    @property
    def run(self) -> Run:
        """The run, or the first of the chains."""
        return self.chains[0]

    @property
    def key(self) -> str:
        """How the config names it; of a model on a task, also the model."""
        return f"{self.run.key}, {Model(self.run.model_run).path}" if isinstance(self.run, TaskChain) else self.run.key

    @property
    def task(self) -> str | None:
        """The task; None for a run."""
        return self.run.task if isinstance(self.run, TaskChain) else None

    @property
    def recipe(self) -> dict:
        """What the plan takes of them, see `Run.plan`; of a task, also how many chains there are."""
        return self.run.plan() | ({"chains": len(self.chains)} if self.task else {})

    @property
    def described(self) -> list[str]:
        """The config.json of the model that it starts from, where that says what the config does not."""
        return self.run.described if isinstance(self.run, TaskChain) else self.run.init_files[:1]


def planned_of(config: Mapping) -> dict[str, Planned]:
    """Return what is planned of a completed config, by name."""
    runs = runs_of(config)
    found = [Planned(f"{run.stage}/{run.name}", [run]) for run in runs]
    trained = {Model(run).path for run in runs}
    found += [
        Planned(f"tasks/{task.name}/{path}", chains_on(task, model, path in trained))
        for task in labelled_tasks(config)
        for path, model in {Model(run).path: run for run in task.models}.items()
    ]
    return {planned.name: planned for planned in found}


def chains_on(task: Task, model: Run, trained: bool) -> list[Run]:
    """Return the chains of a model on a task, with those of its checkpoints where it is trained here."""
    steps = checkpoints_named(task.recipe["checkpoints"], model) if trained else []
    chains = [chain for at in (None, *steps) for chain in task.chains(model, at)]
    return list({chain.folder: chain for chain in chains}.values())
