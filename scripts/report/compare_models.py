"""Test whether models differ: paired permutation tests over items, Welch's t-test over seeds.

input.scores, input.by_item   scores.json and items.parquet of every model, in the order of params.recipe
output.csv                    a row for each pair of models and score, see tpulm.evaluation.significance
output.table                  the same as Markdown tables, which `snakemake compare` prints
params.recipe                 models: STAGE/RUN of each file; pairs: first, second, firsts, seconds, see
                              tpulm.config.report
"""

from tpulm.core.files import write_text
from tpulm.core.job import job
from tpulm.evaluation.significance import COLUMNS, Trained, compare_scores, read_values
from tpulm.report.tables import as_csv, table_of_tests
from tpulm.specs.scores import read_scores

recipe = snakemake.params.recipe

with job(snakemake.log[0], "compare"):
    scores: dict[str, dict] = {model: {} for model in recipe["models"]}
    items: dict[str, dict] = {model: {} for model in recipe["models"]}
    for model, scores_file, items_file in zip(
        recipe["models"], snakemake.input.scores, snakemake.input.by_item, strict=True
    ):
        scores[model] |= {score.name: score for score in read_scores(scores_file)[1] if score.step is None}
        items[model] |= read_values(items_file)

    def trained(name: str, models: list[str]) -> Trained:
        """Return a model with the scores and items of its runs."""
        return Trained(name, [scores[model] for model in models], [items[model] for model in models])

    rows = [
        row
        for pair in recipe["pairs"]
        for row in compare_scores(trained(pair["first"], pair["firsts"]), trained(pair["second"], pair["seconds"]))
    ]
    rounded = [{key: round(cell, 9) if isinstance(cell, float) else cell for key, cell in row.items()} for row in rows]
    write_text(snakemake.output.csv, as_csv(rounded, COLUMNS))
    write_text(snakemake.output.table, table_of_tests(rows))
