"""Tabulate the held-out metrics of every model, to compare the runs.

input.mlm, input.base, input.finetune   metrics.json of each run; absent where the config has none
output                              HTML
"""

from pathlib import Path

from tpulm.core.files import read_json, write_text
from tpulm.core.job import job
from tpulm.report.html import page, section, table


def only(figures: dict) -> str:
    """Return what to add to the name of a text of which not all tokens are predicted."""
    return ", responses only" if figures["predicted"] == "responses" else ""


with job(snakemake.log[0], "report"):
    metrics = {
        stage: {Path(path).parent.name: read_json(path) for path in getattr(snakemake.input, stage)}
        for stage in ("mlm", "base", "finetune")
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
            [name, f"{split}{only(figures[split])}", figures["parameters"]]
            + [figures[split][key] for key in ("loss", "accuracy", "perplexity")]
            for name, figures in metrics["base"].items()
            for split in ("validation", "test")
        ]
        head = ["base", "split", "parameters", "loss", "accuracy", "perplexity"]
        parts.append(section("Base models", "Loss in nats per token of the corpus.", table(head, rows)))
    if metrics["finetune"]:
        rows = []
        for run, figures in metrics["finetune"].items():
            for text, loss in figures["loss"].items():
                before, after = loss["before"], loss["after"]
                change = f"{after['loss'] / before['loss'] - 1:+.1%}"
                losses = [before["loss"], after["loss"], change]
                name = text.replace("_", ", ") + only(loss)
                rows.append([run, name, *losses, before["accuracy"], after["accuracy"]])
        head = ["run", "text", "loss before", "loss after", "change", "accuracy before", "accuracy after"]
        parts.append(
            section(
                "Finetuning", "On the text to finetune on, and on the corpus: what was forgotten.", table(head, rows)
            )
        )
        rows = [
            [run, f["trainable_parameters"], f["total_parameters"], f"{f['trainable_share']:.2%}"]
            for run, f in metrics["finetune"].items()
        ]
        parts.append(section("", "", table(["run", "trainable parameters", "all parameters", "share"], rows)))
    rows = [[run, f["steps"], f["epochs"]] for runs in metrics.values() for run, f in runs.items()]
    if rows:
        text = "An epoch is one pass over the records of the training split."
        parts.append(section("How long they were trained", text, table(["run", "steps", "epochs"], rows)))
    text = "On text that no model was trained on. Validation chose the best checkpoint; test is only reported."
    unpromised = [name for runs in metrics.values() for name, f in runs.items() if not f.get("bytes_promised", True)]
    if unpromised:
        text += f" Other runs with determinism: steps may give other bytes: {', '.join(unpromised)}."
    write_text(snakemake.output[0], page("Held-out figures", text, "".join(parts)))
