"""Compute time, cost and disk space of the steps that are still to be trained, by their plans."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from tpulm.config.outline import Run, checkpoint_period
from tpulm.core import bucket
from tpulm.core.accelerators import IDLE_MINUTES, is_tpu, topology
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import CHECKPOINT_FILES
from tpulm.specs.record_arrays import HELD_OUT_RECORDS


class RunToPlan(TypedDict):
    """A run, also of a model on a task: what plans, budget and disk checks need.

    key          of the config, for a run on a task also its path
    path, folder  of its results; folder with the prefix of a module, if this is one
    segments     how many there are in all; checkpoint_every, evaluate_every  in steps
    keep_checkpoints, checkpoint_bytes  which ones stay, and the size of one
    recipe       of its plans; plans  their folder
    accelerator  None if this machine trains, without a TPU; requested  that of the config
    """

    key: str
    path: str
    folder: str
    segments: int
    checkpoint_every: int
    evaluate_every: int | None
    keep_checkpoints: str
    checkpoint_bytes: int
    recipe: dict[str, Any]
    accelerator: str | None
    requested: str | None
    plans: str


class PendingRun(RunToPlan):
    """A run with something to train: the numbers of jobs, steps, and checkpoints on the disk at once."""

    jobs: int
    steps: int
    checkpoints: int


def plan_recipe(runs: Sequence[Run]) -> dict:
    """Return the recipe of a plan for one run, or for all runs of a model on a task."""
    return runs[0].plan_recipe() | ({"chains": len(runs)} if runs[0].task else {})


# Keys of a plan's recipe that do not change the step.
NOT_IN_STEP = (
    "where", "steps", "seed", "optimizer", "price_per_hour", "alternatives", "host_device_count", "checkpoint_every",
    "resources", "chains",
)  # fmt: skip


def unfinished(runs: list[RunToPlan], summary: list[dict[str, str]]) -> Counter:
    """Return the number of segments that each run has to train, by the key of the run.

    summary  as tpulm.release.untracked has it
    """
    todo = [f"/{row['output_file']}" for row in summary if row["plan"] == "update pending"]
    states = [path for path in todo if path.endswith(f"/{CHECKPOINT_FILES['state']}")]
    return Counter(run["key"] for run in runs for path in states if f"/{run['folder']}/checkpoints/" in path)


def pending(runs: list[RunToPlan], segments: Mapping[str, int]) -> list[PendingRun]:
    """Return the runs with something to train.

    segments  number of segments to train, by the key of the run
    """
    return [
        {**run, "jobs": todo, "steps": todo * run["checkpoint_every"], "checkpoints": most_at_once(run, todo)}
        for run in runs
        if (todo := segments.get(run["key"]))
    ]


def most_at_once(run: RunToPlan, todo: int) -> int:
    """Return the maximum number of checkpoints of a run's last `todo` segments on the disk at once."""
    last = run["segments"]
    every = checkpoint_period(run["keep_checkpoints"], last)
    stay = sum(number % every == 0 or number == last for number in range(last - todo + 1, last + 1))
    return min(todo, stay + 1)  # one more while the last is written


def plan_of(run: RunToPlan, name: str) -> dict | None:
    """Return the plan of a run on a slice; None without a plan of the same step."""
    try:
        (plan,) = map(json.loads, bucket.read_objects([f"{run['plans']}/{name}.json"]))
        is_current = step_of(plan["recipe"]) == step_of(run["recipe"])
    except (ValueError, LookupError, TypeError):  # not there, or damaged
        return None
    return plan if is_current else None


def step_of(recipe: dict) -> dict:
    """Return the keys of a plan's recipe that decide the compiled step."""
    deciding = {key: value for key, value in recipe.items() if key not in NOT_IN_STEP}
    if "phases" in recipe:
        deciding["phases"] = list(map(step_of, recipe["phases"]))
    optimizer = recipe.get("optimizer", {})
    return deciding | {"optimizer": optimizer.get("name"), "clips": optimizer.get("global_clipnorm") is not None}


# Assumed costs other than steps: minutes to set up a slice, and for each job to start, read weights, compile and write;
# jobs of a run that evaluate and sample; the time of a record in evaluation, as a share of that in training.
SET_UP, STARTED, OTHER_JOBS, FORWARD = 10, 3, 2, 1 / 3
# Uses of the hours of a slice, in the order of the table.
ITEMS = {
    "steps": "steps, estimated",
    "error": "error of the estimate",
    "set_up": f"slices: created and set up, {SET_UP} minutes",
    "started": f"jobs: start, compile, write, {STARTED} minutes",
    "evaluation": "evaluation",
    "idle": f"slices: idle until deleted, {IDLE_MINUTES} minutes",
}


def hours_by_item(run: PendingRun, name: str) -> dict[str, float] | None:
    """Return the hours that a run's pending steps take on a slice, by ITEMS; None without a plan.

    The slice is a TPU VM's, which is paid from its creation until it is deleted.
    """
    plan = plan_of(run, name)
    if plan is None or not plan["planned"] or plan["hours"] is None or "estimate_error" not in plan:
        return None
    step = hours_of_last(plan, run["steps"]) / run["steps"]
    # Those in training, and of each further job one of the validation and one of the test split.
    evaluations = run["steps"] / (run["evaluate_every"] or run["checkpoint_every"]) + 2 * OTHER_JOBS
    batches, hours = HELD_OUT_RECORDS / plan["recipe"]["batch_size"], run["steps"] * step
    return {
        "steps": hours,
        "error": hours * plan["estimate_error"],
        "set_up": SET_UP / 60,
        "started": (run["jobs"] + OTHER_JOBS) * STARTED / 60,
        "evaluation": evaluations * batches * step * FORWARD,
        "idle": IDLE_MINUTES / 60,
    }


def hours_of_last(plan: dict, steps: int) -> float:
    """Return the hours of the last `steps` steps of a plan, each in its phase."""
    if "phases" not in plan:
        return steps * plan["hours"] / (plan["recipe"]["steps"] * plan["recipe"].get("chains", 1))
    begin, hours = plan["recipe"]["steps"] - steps, 0.0
    for phase in plan["phases"]:
        pending_share = (phase["until"] - max(begin, phase["first"])) / (phase["until"] - phase["first"])
        hours += phase["hours"] * max(pending_share, 0.0)
    return hours


def totals(to_train: list[PendingRun], topologies: list[str], prices: Mapping[str, float]) -> list[str]:
    """Return the lines of a table per slice: hours and cost of all pending steps there, one run after another.

    prices  per hour of each slice, of the current config: a plan may be older than its price
    """
    if not to_train:
        return ["All runs of the config are trained: nothing is pending."]
    lines = []
    for name in topologies:
        known = [(run, hours) for run in to_train if (hours := hours_by_item(run, name))]
        if not known:
            continue
        price = prices.get(name)
        rows = {words: sum(hours[item] for _, hours in known) for item, words in ITEMS.items()}
        rows["sum, if all run there"] = sum(rows.values())
        lines.append(f"{f'pending on {name}':<48}{'hours':>10}{'no price' if price is None else 'cost':>12}")
        lines += [
            f"  {words:<46}{hours:>10,.2f}{'' if price is None else f' {hours * price:>11,.2f}'}"
            for words, hours in rows.items()
        ]
        disk = sum(run["checkpoint_bytes"] * run["checkpoints"] for run, _ in known)
        missing = len(to_train) - len(known)
        rest = f"; {missing} of {len(to_train)} pending runs are not planned there" if missing else ""
        as_on_jax = sum(run["recipe"].get("backend") == "tensorflow" for run, _ in known)
        rest += f"; {as_on_jax} with TensorFlow, by the step on JAX" if as_on_jax else ""
        lines.append(f"  {disk / 1e9:,.2f} GB of checkpoints{rest}")
    return lines


def check_budget(to_train: list[PendingRun], limit: float | None, prices: Mapping[str, float]) -> None:
    """Raise UserError if a run cannot train on its slice, or the sum of `hours_by_item` costs more than `limit`."""
    spent = estimated = 0.0
    for run in to_train:
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
        hours, price = hours_by_item(run, name), prices.get(name)
        if hours is None or price is None:
            what = "there is no plan of its cost" if hours is None else f"plan.prices has no price for {name}"
            raise UserError(
                f"plan.spending_limit is {limit:g}, but for {where} on {name} {what}; add {name} to plan.topologies "
                "and plan.prices, and run snakemake plan, with the options of this command."
            )
        estimated += hours["steps"] * price
        spent += sum(hours.values()) * price
    if limit is not None and spent > limit:
        raise UserError(
            f"according to the plans, the pending steps cost about {spent:,.2f}, more than plan.spending_limit, "
            f"{limit:g}: the steps {estimated:,.2f}, and the other lines of `snakemake plan` the rest."
        )


def unplannable(run: RunToPlan, name: str) -> str | None:
    """Return why there can be no plan of a run on an accelerator of the config, None if there can."""
    if run["recipe"].get("backend") == "tensorflow":
        return "its plan is of the step on JAX, but it trains on TensorFlow"
    if not is_tpu(name):
        return "only TPUs are supported"
    try:
        topology(name)
    except UserError:
        return "slices of this size are not supported"
    return None
