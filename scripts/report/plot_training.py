"""Plot a run's loss, accuracy and learning rate over its steps.

input.history   CSV: step, loss, accuracy, learning_rate
input.states    state.json of each checkpoint, with held-out loss and accuracy
output          SVG
"""

import csv

import numpy as np
from tpulm.core.files import read_json
from tpulm.core.job import job
from tpulm.report.charts import BLUE, GREY, LIGHT, NUMBER, ORANGE, save_svg
from tpulm.report.curves import thinned_indices

EACH, HELD_OUT = "training, each step", "held-out (validation)"


def line(steps, values, name, **mark):
    """Return a layer with a line, thinned to visible points; name  in the legend."""
    index = thinned_indices(values)
    rows = [{"step": int(steps[i]), "value": float(values[i])} for i in index]
    scale = {"domain": [EACH, mean_of, HELD_OUT], "range": [LIGHT, BLUE, ORANGE]}
    color = {"datum": name, "scale": scale, "title": None}
    return {"data": {"values": rows}, "mark": {"type": "line", **mark}, "encoding": {"color": color}}


def panel(title, layers, height, scale):
    """Return a panel of layers over the steps; scale  whether the axis of values begins at 0."""
    x = {"field": "step", **NUMBER, "title": "step", "scale": {"nice": False}}
    y = {"field": "value", **NUMBER, "title": title, "scale": {"zero": scale}}
    return {"width": 620, "height": height, "layer": layers, "encoding": {"x": x, "y": y}}


with job(snakemake.log[0], f"{snakemake.wildcards.stage} {snakemake.wildcards.run}"):
    with open(snakemake.input.history, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = ("step", "loss", "accuracy", "learning_rate")
    step, loss, accuracy, rate = (np.array([float(row[name]) for row in rows]) for name in names)
    states = [read_json(path) for path in snakemake.input.states]
    best, stopped_at = states[-1]["best"], states[-1]["stopped_at"]
    states = [state for state in states if stopped_at is None or state["step"] <= stopped_at]

    # The window of the mean grows with the run, so that long and short runs are both readable.
    window = max(1, len(loss) // 50)
    mean_of = f"training, mean of {window} steps"
    layers = []
    for values in (loss, accuracy):
        mean = np.convolve(values, np.ones(window) / window, "valid")
        layers.append([line(step, values, EACH, strokeWidth=0.8), line(step[window - 1 :], mean, mean_of)])
    losses = {int(row["step"]): float(row["held_out_loss"]) for row in rows if row.get("held_out_loss")}
    losses |= {state["step"]: state["evaluation"]["loss"] for state in states}
    layers[0].append(line(sorted(losses), [losses[at] for at in sorted(losses)], HELD_OUT, point=True))
    text = {"step": best["step"], "value": best["evaluation"]["loss"], "text": f"best {best['evaluation']['loss']:.3f}"}
    mark = {"type": "text", "align": "right", "dy": 14, "color": ORANGE}
    layers[0].append({"data": {"values": [text]}, "mark": mark, "encoding": {"text": {"field": "text"}}})
    # Models that predict numbers have no accuracy.
    evaluations = {state["step"]: state["evaluation"] for state in states}
    accuracies = {at: evaluation["accuracy"] for at, evaluation in evaluations.items() if "accuracy" in evaluation}
    if accuracies:
        layers[1].append(line(list(accuracies), list(accuracies.values()), HELD_OUT, point=True))
    rates = {"data": {"values": [{"step": int(step[i]), "value": float(rate[i])} for i in thinned_indices(rate)]}}
    panels = [
        panel("loss, nats per token", layers[0], 200, False),
        panel("accuracy", layers[1], 130, True),
        panel("learning rate", [rates | {"mark": {"type": "line", "color": GREY}}], 70, True),
    ]
    title = f"{snakemake.wildcards.stage}: {snakemake.wildcards.run}"
    save_svg({"title": title, "vconcat": panels, "resolve": {"scale": {"x": "shared"}}}, snakemake.output[0])
