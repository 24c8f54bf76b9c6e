"""Plans as rows of a table, for the terminal and the report."""

from lib.files import read_json

HEAD = ["run", "slice", "fits", "GiB / device", "of", "ms / step", "bound by", "tokens/s", "MFU", "hours", "cost"]


def rows_of(paths: list[str]) -> list[list]:
    """Return a row of HEAD for each plan."""
    return [row_of(read_json(path)) for path in paths]


def row_of(plan: dict) -> list:
    """Return a plan as a row of HEAD; what it does not know is None."""
    name = f"{plan['stage']}/{plan['run']}"
    if not plan["planned"]:
        return [name, plan["topology"], "unplanned", *[None] * 8]
    memory, step = plan["memory"], plan["seconds"]["step"]
    held = [significant(memory["total"] / 2**30), round(memory["hbm"] / 2**30)]
    if step is None:
        return [name, plan["topology"], "no", *held, *[None] * 6]
    return [
        name,
        plan["topology"],
        "yes",
        *held,
        round(step * 1e3, 2),
        plan["bound_by"],
        round(plan["tokens_per_second"]),
        f"{plan['model_flops_utilisation']:.0%}",
        significant(plan["hours"]),
        None if plan["cost_of_run"] is None else significant(plan["cost_of_run"]),
    ]


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


def notes_of(paths: list[str]) -> list[str]:
    """Return the sentences of plans that do not fit or could not be made."""
    plans = [read_json(path) for path in paths]
    return [
        plan["sentence"] if plan["planned"] else f"{plan['recipe']['where']} on {plan['topology']}: {plan['reason']}"
        for plan in plans
        if not plan["planned"] or plan["sentence"]
    ]
