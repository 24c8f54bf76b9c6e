"""Compare the runs in one page: held-out figures of every model.

input.mlm, input.base, input.lora   metrics.json of each run; absent where the config has none
output                              HTML
"""

from pathlib import Path

from lib.files import read_json, write_text
from lib.job import job
from lib.page import page, section, table

with job(snakemake.log[0], "report"):
    metrics = {
        stage: {Path(path).parent.name: read_json(path) for path in getattr(snakemake.input, stage)}
        for stage in ("mlm", "base", "lora")
    }
    parts = []
    if metrics["mlm"]:
        rows = []
        for run, figures in metrics["mlm"].items():
            for split in ("validation", "test"):
                f = figures[split]
                losses = [f["loss"], f["unigram_entropy"], f["unigram_entropy"] - f["loss"]]
                rows.append([run, split, figures["parameters"], *losses, f["accuracy"], f["perplexity"]])
        head = ["run", "split", "parameters", "loss", "unigram entropy", "from context", "accuracy", "perplexity"]
        text = "Loss in nats per masked token. The unigram entropy is the loss of a model that knows frequencies only."
        parts.append(section("Masked language models", text, table(head, rows)))
    if metrics["base"]:
        rows = [
            [name, split, figures["parameters"], *(figures[split][key] for key in ("loss", "accuracy", "perplexity"))]
            for name, figures in metrics["base"].items()
            for split in ("validation", "test")
        ]
        head = ["base", "split", "parameters", "loss", "accuracy", "perplexity"]
        parts.append(section("Base models", "Loss in nats per token of the corpus.", table(head, rows)))
    if metrics["lora"]:
        rows = []
        for run, figures in metrics["lora"].items():
            for text, loss in figures["loss"].items():
                before, after = loss["before"], loss["after"]
                change = f"{after['loss'] / before['loss'] - 1:+.1%}"
                losses = [before["loss"], after["loss"], change]
                rows.append([run, text.replace("_", ", "), *losses, before["accuracy"], after["accuracy"]])
        head = ["run", "text", "loss before", "loss after", "change", "accuracy before", "accuracy after"]
        parts.append(section("Tuning", "On the tuning text, and on the corpus: what was forgotten.", table(head, rows)))
        rows = [
            [run, f["trainable_parameters"], f["total_parameters"], f"{f['trainable_share']:.2%}"]
            for run, f in metrics["lora"].items()
        ]
        parts.append(section("", "", table(["run", "trainable parameters", "all parameters", "share"], rows)))
        rows = [
            [run, name.replace("_", " "), f["samples"]["before"][name], f["samples"]["after"][name]]
            for run, f in metrics["lora"].items()
            for name in ("python_token_rate", "python_parse_share")
        ]
        text = (
            "Of the generated samples: the share of tokens that only Python has, and of samples that parse as Python."
        )
        parts.append(section("Likeness to Python", text, table(["run", "figure", "before", "after"], rows)))
    text = "On text that no model was trained on. Validation chose the best checkpoint; test is only reported."
    write_text(snakemake.output[0], page("Held-out figures", text, "".join(parts)))
