"""Plot the scores of a run's checkpoints by training tokens.

input.scores    scores.json of each checkpoint
output          SVG
params.recipe   tokens_per_step; tokens, those of the training up to each step, if phases have others
"""

from collections import defaultdict

from tpulm.core.job import job
from tpulm.report.charts import by_tokens
from tpulm.report.svg import save_svg
from tpulm.specs.scores import read_scores

with job(snakemake.log[0], snakemake.wildcards.chain):
    recipe, panels = snakemake.params.recipe, defaultdict(list)
    tokens = recipe.get("tokens", {})
    for path in snakemake.input.scores:
        for score in read_scores(path)[1]:
            better = "higher" if score.higher_is_better else "lower"
            title = f"{score.metric.replace('_', ' ')} on {score.group}, {better} is better (dashed: chance)"
            panels[title].append((score.on, score, tokens.get(score.step, score.step * recipe["tokens_per_step"])))
    size = {"width": 620, "height": 200}
    drawn = [{"title": title, **size, **by_tokens(scores)} for title, scores in panels.items()]
    save_svg({"vconcat": drawn, "resolve": {"scale": {"color": "independent"}}}, snakemake.output[0])
