"""Tabulate what each masked language model predicts for the mask.

input    fill_mask.json of each run
output   HTML
"""

from html import escape
from pathlib import Path

from tpulm.core.files import read_json, write_text
from tpulm.core.job import job
from tpulm.report.html import Raw, page, section, table

with job(snakemake.log[0], "report"):
    runs = {Path(path).parent.name: read_json(path) for path in snakemake.input.predictions}
    parts = []
    for run, prompts in runs.items():
        rows = [
            [
                Raw(escape(item["prompt"]).replace("[MASK]", "<mark>[MASK]</mark>")),
                Raw(
                    "<br>".join(
                        f"{escape(a['token_str']) or '(nothing)'} &nbsp;{a['score']:.3f}" for a in item["answers"]
                    )
                ),
            ]
            for item in prompts
        ]
        parts.append(section(run, "", table(["prompt", "likeliest tokens, with their probability"], rows)))
    write_text(snakemake.output[0], page("Fill-mask", "The masked word, guessed by each model.", "".join(parts)))
