"""Write the card of an artifact, README.md: usage, data, training procedure and figures.

input            JSON and CSV files that tpulm.config.publications.card_inputs returns: metrics, scores, corpus,
                 manifest, state, history, timings, states
output           Markdown, with YAML metadata of the Hugging Face Hub
params.recipe    from tpulm.config.publications.card_recipe
"""

from tpulm.core.files import write_text
from tpulm.core.job import job

with job(snakemake.log[0], f"card {snakemake.wildcards.card}"):
    from tpulm.report.cards import card, read_facts

    facts = read_facts(dict(snakemake.input.items()))
    write_text(snakemake.output[0], card(snakemake.params.recipe, facts))
