"""Tabulate the text that was read and how the tokenizer splits it.

input.corpora     corpus.json of each collection
input.tokenizer   tokenizer/metrics.json; absent where the config has no tokenizer
output            HTML
"""

from pathlib import Path

from tpulm.core.files import read_json, write_text
from tpulm.core.job import job
from tpulm.report.html import page, section, table

with job(snakemake.log[0], "report"):
    parts = []
    for path in snakemake.input.corpora:
        corpus = read_json(path)
        rows = []
        for split, figures in corpus["splits"].items():
            dropped = [figures[f"dropped_{why}"] for why in ("empty", "short", "duplicates")]
            rows.append([split, figures["documents"], figures["characters"], figures["words"], *dropped])
        head = ["split", "documents", "characters", "words", "empty", "short", "in another split"]
        source = f"Source: {corpus['source']}. The last three columns count documents that were dropped."
        if corpus.get("python_version"):
            source += f" Python {corpus['python_version']}."
        parts.append(section(Path(path).parent.name, source, table(head, rows)))
    for path in snakemake.input.tokenizer:
        figures = read_json(path)
        rows = [[name.replace("_", " "), value] for name, value in figures.items() if isinstance(value, int | float)]
        text = "Measured on the validation split. Entropy in nats per token."
        if "training_documents" in figures:
            text += " Training documents are those of the training split, the corpus here, that it was trained on."
        parts.append(section("tokenizer", text, table(["figure", "value"], rows)))
    write_text(snakemake.output[0], page("Text and tokenizer", "What the models were trained on.", "".join(parts)))
