"""What is planned, and time, cost and disk space of the steps that are still to be trained."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tpulm.config.evaluations import checkpoints_named
from tpulm.config.runs import Run, checkpoint_period, runs_of
from tpulm.config.tasks import Task, labelled_tasks
from tpulm.core import bucket
from tpulm.core.accelerators import is_tpu, topology
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import CHECKPOINT_FILES


@dataclass(frozen=True)
class Planned:
    """What one plan is of.

    name     its folder below results/plan/: STAGE/RUN, or tasks/TASK/ and the path of the model
    chains   what trains with the planned step, each a run of its own: the run alone, or all chains of a model on a task
    task     the task; None for a run
    """

    name: str
    chains: list[Run]
    task: str | None = None

    @property
    def run(self) -> Run:
        """The run, or the first of the chains."""
        return self.chains[0]

    @property
    def recipe(self) -> dict:
        """What the plan takes of them, see `Run.plan`; of a task, also how many chains there are."""
        return self.run.plan() | ({"chains": len(self.chains)} if self.task else {})


def planned_of(config: Mapping) -> dict[str, Planned]:
    """Return what is planned of a completed config, by name."""
    found = [Planned(run.path, [run]) for run in runs_of(config)]
    found += [
        Planned(f"tasks/{task.name}/{model.path}", chains_on(task, model), task.name)
        for task in labelled_tasks(config)
        for model in task.models
    ]
    return {planned.name: planned for planned in found}


def chains_on(task: Task, model: Run) -> list[Run]:
    """Return the chains of a model on a task, with those of its checkpoints where it is trained here."""
    steps = [] if "pretrained" in model.recipe else checkpoints_named(task.recipe["checkpoints"], model)
    chains = [chain for at in (None, *steps) for chain in task.chains(model, at)]
    return list({chain.folder: chain for chain in chains}.values())


# What of a plan's recipe leaves the step as it is.
OTHER = (
    "where", "steps", "seed", "optimizer", "price_per_hour", "alternatives", "host_device_count", "checkpoint_every",
    "resources", "chains",
)  # fmt: skip


def unfinished(runs: list[dict], summary: list[dict[str, str]]) -> Counter:
    """Return how many segments of each run there are to train, by its key.

    runs     as `Start.planned` lists them
    summary  as tpulm.release.untracked has it
    """
    todo = [f"/{row['output_file']}" for row in summary if row["plan"] == "update pending"]
    states = [path for path in todo if path.endswith(f"/{CHECKPOINT_FILES['state']}")]
    return Counter(run["key"] for run in runs for path in states if f"/{run['folder']}/checkpoints/" in path)


def pending(runs: list[dict], segments: Mapping[str, int]) -> list[dict]:
    """Return the runs with something to train: each of `runs`, with how many steps, and checkpoints at once on disk.

    runs      as `Start.planned` lists them
    segments  how many of each there are to train, by its key
    """
    return [
        run | {"steps": todo * run["checkpoint_every"], "checkpoints": most_at_once(run, todo)}
        for run in runs
        if (todo := segments.get(run["key"]))
    ]


def most_at_once(run: dict, todo: int) -> int:
    """Return how many checkpoints of a run's last `todo` segments are on the disk at once, at the most.

    Those that `keep_checkpoints` keeps, and the one before that which is written last.
    """
    last = run["segments"]
    every = checkpoint_period(run["keep_checkpoints"], last)
    stay = sum(number % every == 0 or number == last for number in range(last - todo + 1, last + 1))
    return min(todo, stay + 1)


def plan_of(run: dict, name: str) -> dict | None:
    """Return the plan of a run on a slice; None where there is none, or one of another step.

    run  recipe, and the folder `plans`: as `pending` returns them
    """
    try:
        (plan,) = map(json.loads, bucket.contents([f"{run['plans']}/{name}.json"]))
        same = step_of(plan["recipe"]) == step_of(run["recipe"])
    except (ValueError, LookupError, TypeError):  # not there, or damaged
        return None
    return plan if same else None


def step_of(recipe: dict) -> dict:
    """Return what of a plan's recipe decides the step that was compiled."""
    kept = {key: value for key, value in recipe.items() if key not in OTHER}
    return kept | {"clips": recipe.get("optimizer", {}).get("global_clipnorm") is not None}


def take(run: dict, name: str, prices: Mapping[str, float]) -> dict | None:
    """Return what a run's pending steps take by its plan's estimate; None if unplanned.

    hours, at least and at most; cost, None without a price, and at most; bytes on disk. At least: the lower bound. At
    most: with the estimate's error.

    prices  of an hour on each slice, as the config says now: a plan may be older than its price
    """
    plan = plan_of(run, name)
    if plan is None or not plan["planned"] or plan["hours"] is None or "estimate_error" not in plan:
        return None
    share = run["steps"] / (plan["recipe"]["steps"] * plan["recipe"].get("chains", 1))
    price = prices.get(name)
    hours, longer = plan["hours"] * share, 1 + plan["estimate_error"]
    return {
        "hours": hours,
        "hours_at_least": plan["hours_lower_bound"] * share,
        "hours_at_most": hours * longer,
        "cost": None if price is None else hours * price,
        "cost_at_most": None if price is None else hours * longer * price,
        "bytes": run["checkpoint_bytes"] * run["checkpoints"],
    }


def totals(pending: list[dict], topologies: list[str], prices: Mapping[str, float]) -> list[str]:
    """Return a line per slice: what all pending steps take there, one run after another."""
    if not pending:
        return ["All runs of the config are trained: nothing is pending."]
    lines = []
    for name in topologies:
        found = [take(run, name, prices) for run in pending]
        known = [part for part in found if part]
        if not known:
            continue
        hours, least, most, disk = (
            sum(part[key] for part in known) for key in ("hours", "hours_at_least", "hours_at_most", "bytes")
        )
        costs, highest = ([part[key] for part in known] for key in ("cost", "cost_at_most"))
        money = (
            "no price given" if None in costs else f"{sum(costs):,.2f} at the given price, {sum(highest):,.2f} at most"
        )
        missing = len(found) - len(known)
        rest = f"; {missing} of {len(found)} pending runs are not planned there" if missing else ""
        kept = [run for run, part in zip(pending, found, strict=True) if part]
        as_on_jax = sum(run["recipe"].get("backend") == "tensorflow" for run in kept)
        rest += f"; {as_on_jax} with TensorFlow, by the step on JAX" if as_on_jax else ""
        lines.append(
            f"pending on {name}: {hours:,.2f} hours estimated ({least:,.2f} to {most:,.2f}), {money}, "
            f"{disk / 1e9:,.2f} GB of checkpoints{rest}"
        )
    return lines


def check_budget(pending: list[dict], limit: float | None, prices: Mapping[str, float]) -> None:
    """Refuse to start what cannot be on its slice, or may take more than `limit` by its plans: the estimates with
    their errors. Raises UserError.

    pending  with `accelerator`, the slice that the config asks for, None where none is taken
    """
    spent = estimated = 0.0
    for run in pending:
        name, where = run["accelerator"], run["recipe"]["where"]
        if name is None:
            continue
        plan = plan_of(run, name)
        why = unplannable(run, name)
        if plan and not why and (plan.get("sentence") or plan.get("reason")):
            raise UserError(plan.get("sentence") or f"{where} cannot be trained on {name}: {plan['reason']}")
        if limit is None:
            continue
        if why:
            raise UserError(
                f"plan.spending_limit is {limit:g}, but {where} on {name} cannot be planned: {why}; remove the "
                "limit to train it."
            )
        part = take(run, name, prices)
        if part is None or part["cost"] is None:
            what = "there is no plan of its cost" if part is None else f"plan.prices has no price for {name}"
            raise UserError(
                f"plan.spending_limit is {limit:g}, but for {where} on {name} {what}; "
                f"add {name} to plan.topologies and plan.prices and run: snakemake plan"
            )
        estimated += part["cost"]
        spent += part["cost_at_most"]
    if limit is not None and spent > limit:
        raise UserError(
            f"according to the plans, the pending steps may cost {spent:,.2f} ({estimated:,.2f} estimated, plus the "
            f"error of the estimate), more than plan.spending_limit, {limit:g}."
        )


def unplannable(run: dict, name: str) -> str | None:
    """Return why no plan can be made of a run on an accelerator of the config; None where one can."""
    if run["recipe"].get("backend") == "tensorflow":
        return "its plan is of the step on JAX, but it trains on TensorFlow"
    if not is_tpu(name):
        return "only TPUs are supported"
    try:
        topology(name)
    except UserError:
        return "slices of this size are not supported"
    return None
