"""Tabulate the continuations of each prompt before and after finetuning, side by side.

input    generations.json
output   HTML
"""

from tpulm.core.files import read_json, write_text
from tpulm.core.job import job
from tpulm.report.html import code, page, section, table

run = snakemake.wildcards.run

with job(snakemake.log[0], "report"):
    generations = read_json(snakemake.input[0])
    parts = []
    for item in generations["prompts"]:
        rows = [[code(before), code(after)] for before, after in zip(item["before"], item["after"], strict=True)]
        parts.append(section(f"“{item['prompt']}”", "", table(["before tuning", "after tuning"], rows)))
    sampling = ", ".join(f"{key} {value}" for key, value in generations["sampling"].items())
    text = f"The same prompts and the same random numbers on both sides ({sampling})."
    write_text(snakemake.output[0], page(f"Generations: {run}", text, "".join(parts)))
