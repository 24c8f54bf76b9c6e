"""Plot the scores of a run's checkpoints against the tokens that it has seen.

input.scores    scores.json of each checkpoint
output          SVG
params.recipe   tokens_per_step
"""

from collections import defaultdict

from tpulm.core.job import job
from tpulm.report.charts import GREY, NUMBER, save
from tpulm.report.curves import lines
from tpulm.specs.scores import read_scores


def panel(title, points, chances):
    """Return lines with their intervals, and a rule for what chance scores."""
    rule = {"type": "rule", "strokeDash": [3, 3], "color": GREY}
    chance = {
        "data": {"values": [{"value": chance} for chance in chances]},
        "mark": rule,
        "encoding": {"y": {"field": "value", **NUMBER}},
    }
    layers = lines(points, "")["layer"]
    return {"title": title, "width": 620, "height": 200, "layer": [*layers, chance]}


with job(snakemake.log[0], snakemake.wildcards.chain):
    panels = defaultdict(list)
    chances = defaultdict(set)
    for path in snakemake.input.scores:
        for score in read_scores(path)[1]:
            better = "higher" if score.higher_is_better else "lower"
            title = f"{score.metric.replace('_', ' ')} on {score.group}, {better} is better (dashed: chance)"
            point = {"tokens": score.step * snakemake.params.recipe["tokens_per_step"], "name": score.on}
            panels[title].append(point | {"value": score.value, "low": score.low, "high": score.high})
            chances[title] |= {score.chance} - {None}
    drawn = [panel(title, points, sorted(chances[title])) for title, points in panels.items()]
    save({"vconcat": drawn, "resolve": {"scale": {"color": "independent"}}}, snakemake.output[0])
