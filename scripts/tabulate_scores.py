"""Tabulate how good every model is: score, baseline, chance, interval.

input.scores    scores.json of every model and evaluation, see tpulm.core.scores; those of checkpoints are not shown
output          HTML
params.recipe   bases: the base model of each finetuned one, both as STAGE/RUN
"""

from pathlib import Path

from tpulm.core.files import write_text
from tpulm.core.job import job
from tpulm.core.scores import read_scores

TEXT = (
    "Scores on what no model was trained on, beside those of simpler models on the same items and of a guess. The "
    "95 % interval says how far a score may move with other items of the same kind. Bits per byte are counted over "
    "the bytes of the text, not over tokens: causal models can be compared by them whatever their vocabulary is, "
    "and so can masked models among each other, whose score of a word also knows what comes after it. What a "
    "tokenizer drops from the text before it cuts it, such as case or accents, costs nothing: compare models whose "
    "tokenizers drop the same."
)

with job(snakemake.log[0], "report"):
    from tpulm.report.html import page
    from tpulm.report.scores_table import legend, scores_tables

    rows = [
        ("/".join(Path(path).parts[-3:-1]), score)
        for path in snakemake.input.scores
        for score in read_scores(path)[1]
        if score.step is None
    ]
    content = (
        legend() + scores_tables(rows, snakemake.params.recipe["bases"]) if rows else "<p>No model was scored.</p>"
    )
    write_text(snakemake.output[0], page("How good", TEXT, content))
