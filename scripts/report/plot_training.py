"""Plot a run's loss, accuracy and learning rate over its steps.

input.history   CSV: step, loss, accuracy, learning_rate
input.states    state.json of each checkpoint: the held-out loss and accuracy there
output          SVG
"""

import csv

import numpy as np
from tpulm.core.files import read_json
from tpulm.core.job import job
from tpulm.report.charts import BLUE, GREY, LIGHT, NUMBER, ORANGE, save_svg
from tpulm.report.curves import kept

EACH, HELD_OUT = "training, each step", "held-out (validation)"


def line(steps, values, name, **mark):
    """Return a layer of a line, of so many points as can be seen; `name` is in the legend."""
    index = kept(values)
    rows = [{"step": int(steps[i]), "value": float(values[i])} for i in index]
    scale = {"domain": [EACH, mean_of, HELD_OUT], "range": [LIGHT, BLUE, ORANGE]}
    color = {"datum": name, "scale": scale, "title": None}
    return {"data": {"values": rows}, "mark": {"type": "line", **mark}, "encoding": {"color": color}}


def panel(title, layers, height, scale):
    """Return layers over the steps, below each other."""
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

    # The mean of a window that grows with the run, so that long and short runs both read well.
    window = max(1, len(loss) // 50)
    mean_of = f"training, mean of {window} steps"
    layers = []
    for values in (loss, accuracy):
        mean = np.convolve(values, np.ones(window) / window, "valid")
        layers.append([line(step, values, EACH, strokeWidth=0.8), line(step[window - 1 :], mean, mean_of)])
    held = {int(row["step"]): float(row["held_out_loss"]) for row in rows if row.get("held_out_loss")}
    held |= {state["step"]: state["evaluation"]["loss"] for state in states}
    layers[0].append(line(sorted(held), [held[at] for at in sorted(held)], HELD_OUT, point=True))
    text = {"step": best["step"], "value": best["evaluation"]["loss"], "text": f"best {best['evaluation']['loss']:.3f}"}
    mark = {"type": "text", "align": "right", "dy": 14, "color": ORANGE}
    layers[0].append({"data": {"values": [text]}, "mark": mark, "encoding": {"text": {"field": "text"}}})
    # What predicts numbers has no accuracy.
    measured = {state["step"]: state["evaluation"]["accuracy"] for state in states if "accuracy" in state["evaluation"]}
    if measured:
        layers[1].append(line(list(measured), list(measured.values()), HELD_OUT, point=True))
    rates = {"data": {"values": [{"step": int(step[i]), "value": float(rate[i])} for i in kept(rate)]}}
    panels = [
        panel("loss, nats per token", layers[0], 200, False),
        panel("accuracy", layers[1], 130, True),
        panel("learning rate", [rates | {"mark": {"type": "line", "color": GREY}}], 70, True),
    ]
    title = f"{snakemake.wildcards.stage}: {snakemake.wildcards.run}"
    save_svg({"title": title, "vconcat": panels, "resolve": {"scale": {"x": "shared"}}}, snakemake.output[0])
