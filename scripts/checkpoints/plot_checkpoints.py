"""Plot the scores of a run's checkpoints against the tokens that it has seen.

input.scores    scores.json of each checkpoint
output          SVG
params.recipe   tokens_per_step
"""

from collections import defaultdict

from tpulm.core.job import job
from tpulm.core.scores import read_scores
from tpulm.report.charts import GREY, NUMBER, save


def panel(title, points, chances):
    """Return lines with their intervals, and a rule for what chance scores."""
    x = {"field": "tokens", **NUMBER, "title": "tokens seen in training", "axis": {"format": "~s"}}
    y = {"field": "value", **NUMBER, "title": None, "scale": {"zero": False}}
    color = {"field": "on", "type": "nominal", "title": None, "sort": None}
    known = [point for point in points if point["low"] is not None]
    band = {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": color | {"legend": None}}
    rule = {"type": "rule", "strokeDash": [3, 3], "color": GREY}
    layers = [
        {"data": {"values": known}, "mark": {"type": "area", "opacity": 0.12}, "encoding": band},
        {
            "data": {"values": points},
            "mark": {"type": "line", "point": True},
            "encoding": {"x": x, "y": y, "color": color},
        },
        {"data": {"values": [{"value": chance} for chance in chances]}, "mark": rule, "encoding": {"y": y}},
    ]
    return {"title": title, "width": 620, "height": 200, "layer": layers}


with job(snakemake.log[0], snakemake.wildcards.chain):
    panels = defaultdict(list)
    chances = defaultdict(set)
    for path in snakemake.input.scores:
        for score in read_scores(path)[1]:
            better = "higher" if score.higher_is_better else "lower"
            title = f"{score.metric.replace('_', ' ')} on {score.group}, {better} is better (dashed: chance)"
            point = {"tokens": score.step * snakemake.params.recipe["tokens_per_step"], "on": score.on}
            panels[title].append(point | {"value": score.value, "low": score.low, "high": score.high})
            chances[title] |= {score.chance} - {None}
    drawn = [panel(title, points, sorted(chances[title])) for title, points in panels.items()]
    save({"vconcat": drawn, "resolve": {"scale": {"color": "independent"}}}, snakemake.output[0])
