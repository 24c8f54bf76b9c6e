"""Describe an artifact in a card, README.md: its data, procedure and figures, and how to use it.

input            JSON and CSV files that tpulm.config.publications.facts_of names: metrics, scores, corpus, manifest,
                 state, history, timings, states, those that there are of the artifact
output           Markdown, with the metadata of the Hugging Face Hub in its head
params.recipe    what tpulm.config.publications.card_recipe takes of the config
"""

from tpulm.core.files import write_text
from tpulm.core.job import job

with job(snakemake.log[0], f"card {snakemake.wildcards.card}"):
    from tpulm.report.cards import card, read_facts

    facts = read_facts(dict(snakemake.input.items()))
    write_text(snakemake.output[0], card(snakemake.params.recipe, facts))
