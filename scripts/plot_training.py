"""Plot a run's loss, accuracy and learning rate over its steps.

input.history   CSV: step, loss, accuracy, learning_rate
input.states    state.json of each checkpoint: the held-out loss and accuracy there
output          SVG
"""

import csv

import numpy as np
from tpulm.core.files import read_json
from tpulm.core.job import job

with job(snakemake.log[0], f"{snakemake.wildcards.stage} {snakemake.wildcards.run}"):
    from tpulm.report.style import BLUE, GREY, ORANGE, plt, save

    with open(snakemake.input.history, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = ("step", "loss", "accuracy", "learning_rate")
    step, loss, accuracy, rate = (np.array([float(row[name]) for row in rows]) for name in names)
    states = [read_json(path) for path in snakemake.input.states]
    best, stopped_at = states[-1]["best"], states[-1]["stopped_at"]
    states = [state for state in states if stopped_at is None or state["step"] <= stopped_at]

    figure, (top, middle, bottom) = plt.subplots(
        3, 1, figsize=(8, 6.6), sharex=True, height_ratios=[3, 2, 1], layout="constrained"
    )
    # The mean of a window that grows with the run, so that long and short runs both read well.
    window = max(1, len(loss) // 50)
    for axis, values in ((top, loss), (middle, accuracy)):
        mean = np.convolve(values, np.ones(window) / window, "valid")
        axis.plot(step, values, color=BLUE, alpha=0.25, linewidth=0.8, label="training, each step")
        axis.plot(step[window - 1 :], mean, color=BLUE, linewidth=1.8, label=f"training, mean of {window} steps")
    held = {int(row["step"]): float(row["held_out_loss"]) for row in rows if row.get("held_out_loss")}
    held |= {state["step"]: state["evaluation"]["loss"] for state in states}
    top.plot(*zip(*sorted(held.items()), strict=True), "o-", color=ORANGE, markersize=5, label="held-out (validation)")
    top.annotate(
        f"best {best['evaluation']['loss']:.3f}", (best["step"], best["evaluation"]["loss"]),
        xytext=(0, -16), textcoords="offset points", ha="right", color=ORANGE,
    )  # fmt: skip
    top.set_ylabel("loss, nats per token")
    top.set_title(f"{snakemake.wildcards.stage}: {snakemake.wildcards.run}")
    top.legend()
    measured = [(state["step"], state["evaluation"]["accuracy"]) for state in states]
    middle.plot(*zip(*measured, strict=True), "o-", color=ORANGE, markersize=5)
    middle.set_ylabel("accuracy")
    bottom.plot(step, rate, color=GREY, linewidth=1.8)
    bottom.set_ylabel("learning rate")
    bottom.set_xlabel("step")
    bottom.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    save(figure, snakemake.output[0])
