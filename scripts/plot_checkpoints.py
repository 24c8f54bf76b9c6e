"""Plot the scores of a run's checkpoints against the tokens that it has seen.

input.scores    scores.json of each checkpoint
output          SVG
params.recipe   tokens_per_step
"""

from collections import defaultdict

from tpulm.core.job import job
from tpulm.core.scores import read_scores

HEADS = {"text": "bits per byte, lower is better", "pairs": "accuracy on pairs, higher is better"}

with job(snakemake.log[0], snakemake.wildcards.chain):
    from tpulm.report.style import GREY, plt, save

    lines: dict = defaultdict(lambda: defaultdict(list))
    for path in snakemake.input.scores:
        for score in read_scores(path)[1]:
            seen = score.step * snakemake.params.recipe["tokens_per_step"]
            lines[score.group][score.metric, score.on].append((seen, score))
    groups = [group for group in HEADS if group in lines]
    figure, panels = plt.subplots(
        len(groups), 1, figsize=(8, 3 * len(groups)), sharex=True, squeeze=False, layout="constrained"
    )
    for panel, group in zip(panels[:, 0], groups, strict=True):
        for (_, on), points in lines[group].items():
            tokens, scores = zip(*sorted(points, key=lambda point: point[0]), strict=True)
            (drawn,) = panel.plot(tokens, [score.value for score in scores], "o-", markersize=4, label=on)
            if all(score.low is not None for score in scores):
                limits = [[score.low for score in scores], [score.high for score in scores]]
                panel.fill_between(tokens, *limits, color=drawn.get_color(), alpha=0.12, linewidth=0)
        chances = {score.chance for points in lines[group].values() for _, score in points} - {None}
        for chance in chances:
            panel.axhline(chance, color=GREY, linestyle=":", label="chance")
        panel.set_title(HEADS[group], fontsize=10)
        panel.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    panels[-1, 0].set_xlabel("tokens seen in training")
    panels[0, 0].figure.suptitle(f"{snakemake.wildcards.chain}: scores of its checkpoints", fontweight="bold")
    save(figure, snakemake.output[0])
