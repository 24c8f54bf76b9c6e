"""Plot a run's loss, accuracy and learning rate over its steps.

input.history   CSV: step, loss, accuracy, learning_rate
input.states    state.json of each checkpoint, with held-out loss and accuracy
output          SVG
"""

from pathlib import Path

from tpulm.core.files import read_json
from tpulm.core.job import job
from tpulm.report.charts import training_panels
from tpulm.report.curves import curve, held_out_of
from tpulm.report.sources import columns_of
from tpulm.report.svg import save_svg

with job(snakemake.log[0], f"{snakemake.wildcards.stage} {snakemake.wildcards.run}"):
    history, states = columns_of([Path(snakemake.input.history)]), list(map(read_json, snakemake.input.states))
    # Models that predict numbers have no accuracy.
    curves = {name: curve(history["step"], history.get(name), []) for name in ("loss", "accuracy", "learning_rate")}
    curves["held_out"] = held_out_of(history, states)
    best, name = states[-1]["best"], f"{snakemake.wildcards.stage}: {snakemake.wildcards.run}"
    title = f"{name}; points are the held-out (validation) loss, best {best['evaluation']['loss']:.3f}"
    save_svg({"title": title} | training_panels([{"label": name, **curves}], 700), snakemake.output[0])
