"""Plans as rows of a table, for the terminal and the page."""

from collections.abc import Iterable, Mapping

HEAD = [
    "run", "slice", "fits", "GiB / device", "of", "ms / step", "at least", "bound by", "tokens/s", "MFU", "hours",
    "cost",
]  # fmt: skip


def name_of(plan: Mapping) -> str:
    """Return what a plan is of, its folder below results/plan/: such as mlm/tiny or tasks/modules/mlm/tiny."""
    run = f"{plan['stage']}/{plan['run']}"
    return f"tasks/{plan['task']}/{run}" if "task" in plan else run


def rows_of(plans: Iterable[Mapping]) -> list[list]:
    """Return a row of HEAD for each plan, and one below it for each change that was compiled with it."""
    rows = []
    for plan in plans:
        name = name_of(plan)
        if not plan["planned"]:
            rows.append([name, plan["topology"], "unplanned", *[None] * 9])
            continue
        rows.append([name, plan["topology"], *figures_of(plan), *in_all(plan)])
        for change in plan["alternatives"]:
            words = f"  {change['key']}: {str(change['value']).lower()}"
            rows.append([words, plan["topology"], *figures_of(change), None, None])
    return rows


def figures_of(plan: Mapping) -> list:
    """Return what a plan says of a step; what it does not know is None."""
    memory, step = plan["memory"], plan["estimated_seconds"]
    held = [significant(memory["total"] / 2**30), round(memory["hbm"] / 2**30)]
    if step is None:
        return ["no", *held, *[None] * 5]
    least = plan["lower_bound_seconds"]
    time = [round(step * 1e3, 2), round(least * 1e3, 2), plan["bound_by"], round(plan["tokens_per_second"])]
    return ["yes", *held, *time, f"{plan['model_flops_utilisation']:.0%}"]


def in_all(plan: Mapping) -> list:
    """Return hours and cost of all steps of a plan."""
    return [None if plan[key] is None else significant(plan[key]) for key in ("hours", "cost_of_run")]


def significant(value: float) -> float:
    """Return a number with three significant digits, two after the point at the most where it is large."""
    return round(value, 2) if abs(value) >= 1 else float(f"{value:.3g}")


def as_text(rows: list[list]) -> list[str]:
    """Return lines of a table for a terminal, HEAD first; numbers to the right."""
    shown = [HEAD, *([show(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(HEAD))]
    right = [any(isinstance(row[column], int | float) for row in rows) for column in range(len(HEAD))]
    return [
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in shown
    ]


def show(value: object) -> str:
    """Return a value as text, None as a dash."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)


def notes_of(plans: Iterable[Mapping]) -> list[str]:
    """Return the sentences of plans that do not fit or could not be made."""
    return [
        plan["sentence"] if plan["planned"] else f"{plan['recipe']['where']} on {plan['topology']}: {plan['reason']}"
        for plan in plans
        if not plan["planned"] or plan["sentence"]
    ]
