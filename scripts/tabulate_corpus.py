"""Tabulate the text that was read and how the tokenizer splits it.

input.corpora     corpus.json of each collection
input.tokenizer   tokenizer/metrics.json; absent where the config has no tokenizer
input.manifests   manifest.json of each set of records that says which tokens belong to a response
output            HTML
"""

from pathlib import Path

from tpulm.core.files import read_json, write_text
from tpulm.core.job import job
from tpulm.report.corpus_table import corpus_tables, loss_table
from tpulm.report.html import page, section, table

with job(snakemake.log[0], "report"):
    parts = []
    for path in snakemake.input.corpora:
        parts.append(section(Path(path).parent.name, *corpus_tables(read_json(path))))
    for path in snakemake.input.manifests:
        name = str(Path(path).parent).partition("results/")[2]
        parts.append(section(name, *loss_table(read_json(path))))
    for path in snakemake.input.tokenizer:
        figures = read_json(path)
        rows = [[name.replace("_", " "), value] for name, value in figures.items() if isinstance(value, int | float)]
        text = "Measured on the validation split. Entropy in nats per token."
        if "training_documents" in figures:
            text += " Training documents are those of the training split, the corpus here, that it was trained on."
        parts.append(section("tokenizer", text, table(["figure", "value"], rows)))
    write_text(snakemake.output[0], page("Text and tokenizer", "What the models were trained on.", "".join(parts)))
