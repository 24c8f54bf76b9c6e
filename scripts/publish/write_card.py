"""Describe an artifact in a card, README.md: its data, procedure and figures, and how to use it.

input            the JSON and CSV files that tpulm.config.publications.facts_of names: metrics, corpus, manifest, state,
                 history, timings, states, those that there are of the artifact
output           Markdown, with the metadata of the Hugging Face Hub in its head
params.recipe    what tpulm.config.publications.card_recipe takes of the config, and the license or null
"""

import csv
from pathlib import Path

from tpulm.core.files import read_json, write_text
from tpulm.core.job import job

with job(snakemake.log[0], f"card {snakemake.wildcards.card}"):
    from tpulm.report.cards import card

    facts: dict = {}
    for name, paths in snakemake.input.items():
        path = Path(paths[0])
        if name == "states":
            facts[name] = [read_json(path) for path in paths]
        elif path.suffix == ".json":
            facts[name] = read_json(path)
        elif path.suffix == ".csv":
            with open(path, encoding="utf-8") as file:
                facts[name] = list(csv.DictReader(file))
    write_text(snakemake.output[0], card(snakemake.params.recipe, facts))
