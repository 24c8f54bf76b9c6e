"""Plot the scores of a run's checkpoints against the tokens that it has seen.

input.scores    scores.json of each checkpoint
output          SVG
params.recipe   tokens_per_step
"""

from collections import defaultdict

from tpulm.core.job import job
from tpulm.core.scores import read_scores

with job(snakemake.log[0], snakemake.wildcards.chain):
    from tpulm.report.style import GREY, plt, save

    panels: dict = defaultdict(lambda: defaultdict(list))
    for path in snakemake.input.scores:
        for score in read_scores(path)[1]:
            seen = score.step * snakemake.params.recipe["tokens_per_step"]
            better = "higher" if score.higher_is_better else "lower"
            said = f"{score.metric.replace('_', ' ')} on {score.group}, {better} is better"
            panels[said][score.on].append((seen, score))
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(8, 3 * len(panels)), sharex=True, squeeze=False, layout="constrained"
    )
    for panel, (said, lines) in zip(axes[:, 0], panels.items(), strict=True):
        for on, points in lines.items():
            tokens, scores = zip(*sorted(points, key=lambda point: point[0]), strict=True)
            (drawn,) = panel.plot(tokens, [score.value for score in scores], "o-", markersize=4, label=on)
            if all(score.low is not None for score in scores):
                limits = [[score.low for score in scores], [score.high for score in scores]]
                panel.fill_between(tokens, *limits, color=drawn.get_color(), alpha=0.12, linewidth=0)
        chances = {score.chance for points in lines.values() for _, score in points} - {None}
        for chance in sorted(chances):
            panel.axhline(chance, color=GREY, linestyle=":", label="chance")
        panel.set_title(said, fontsize=10)
        panel.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    axes[-1, 0].set_xlabel("tokens seen in training")
    axes[0, 0].figure.suptitle(f"{snakemake.wildcards.chain}: scores of its checkpoints", fontweight="bold")
    save(figure, snakemake.output[0])
