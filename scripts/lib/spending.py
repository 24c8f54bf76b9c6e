"""What the steps that are still to be trained will take, by the plans that there are."""

import json

from lib import bucket
from lib.errors import UserError


def plan_of(run: dict, topology: str) -> dict | None:
    """Return the plan of a run on a slice; None where there is none, or one of another recipe.

    run  recipe, and the folder `plans`: as `pending` in rules/common.smk lists them
    """
    try:
        (plan,) = map(json.loads, bucket.contents([f"{run['plans']}/{topology}.json"]))
    except ValueError:  # not there, or damaged
        return None
    kept = {key: value for key, value in plan["recipe"].items() if key != "price_per_hour"}
    return plan if kept == run["recipe"] else None


def take(run: dict, topology: str) -> dict | None:
    """Return hours, cost (None without a price) and bytes on disk of a run's pending steps; None if unplanned."""
    plan = plan_of(run, topology)
    if plan is None or not plan["planned"] or plan["hours"] is None:
        return None
    share = run["steps"] / plan["recipe"]["steps"]
    price = plan["recipe"]["price_per_hour"]
    hours = plan["hours"] * share
    return {
        "hours": hours,
        "cost": None if price is None else hours * price,
        "bytes": plan["checkpoint_bytes"] * run["checkpoints"],
    }


def totals(pending: list[dict], topologies: list[str]) -> list[str]:
    """Return a line per slice: what all pending steps take there, one run after another."""
    if not pending:
        return ["Every run of the config is trained: nothing is pending."]
    lines = []
    for topology in topologies:
        found = [take(run, topology) for run in pending]
        known = [part for part in found if part]
        if not known:
            continue
        hours, disk = sum(part["hours"] for part in known), sum(part["bytes"] for part in known)
        costs = [part["cost"] for part in known]
        money = "no price given" if None in costs else f"{sum(costs):,.2f} at the given price"
        missing = len(found) - len(known)
        rest = f"; {missing} of {len(found)} pending runs are not planned there" if missing else ""
        lines.append(
            f"pending on {topology}: {hours:,.2f} hours modelled, {money}, {disk / 1e9:,.2f} GB of checkpoints{rest}"
        )
    return lines


def check(pending: list[dict], limit: float | None) -> None:
    """Refuse to start what does not fit, or costs more than `limit`. Raises UserError.

    pending  with `accelerator`, the slice that the profile asks for, None where it asks for none
    """
    spent = 0.0
    for run in pending:
        topology = run["accelerator"]
        if topology is None:
            continue
        plan = plan_of(run, topology)
        if plan and plan["planned"] and plan["sentence"]:
            raise UserError(plan["sentence"])
        if limit is None:
            continue
        part = take(run, topology)
        if part is None or part["cost"] is None:
            what = "no plan says what it costs" if part is None else f"plan.prices names no price for {topology}"
            raise UserError(
                f"plan.spending_limit is {limit:g}, and of {run['recipe']['where']} on {topology} {what}; "
                f"name {topology} under plan.topologies and plan.prices and run: snakemake plan"
            )
        spent += part["cost"]
    if limit is not None and spent > limit:
        raise UserError(
            f"the pending steps cost {spent:,.2f} by their plans, more than plan.spending_limit, {limit:g}."
        )
