"""Evaluate a finetuned model with its base model as baseline, and record the sharding of its variables.

input.base             preset folder
input.fingerprint      SHA-256 of each of its files
input.best             tuned variables of the best checkpoint
input.records          manifest.json of the records of finetune.text; a URL, if they are in a bucket
input.corpus_records   the same for the records of the corpus; none without a corpus
input.by_source        manifests of the records of each source of `sources`
input.state            JSON of the chain's last checkpoint, which names the best
output.metrics         JSON, see tpulm.specs.scores: loss and accuracy on each text, with those of the base model as
                       baselines; best_step, steps, epochs, parameters; attention, the implementation in training if an
                       accelerator has several; with determinism: steps also that key, and bytes_promised: false
output.partitioning    JSON: mesh, and for each variable shape, layout, bytes on a device
params.recipe          batch_size, microbatches, method and keys of LoRA, seed, precision, mesh, layout, cpu_threads,
                       host_device_count; determinism, if it is steps; sources, names of those that phases mix
"""

from tpulm.core.arrays import load_arrays
from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.records.causal_batches import held_out_batches, predicted
from tpulm.records.reader import open_records
from tpulm.specs.scores import BASE, CAUSAL, by_source, token_scores, write_scores
from tpulm.specs.training_step import determinism_metrics
from tpulm.training.opening import open_causal

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"finetune {run}") as say:
    tuning = snakemake.input.records
    texts = {
        ("finetune-text", "validation"): open_records(tuning, "validation"),
        ("finetune-text", "test"): open_records(tuning, "test"),
    }
    for corpus in snakemake.input.corpus_records:
        texts["corpus", "validation"] = open_records(corpus, "validation")
    for text, split, place in by_source("finetune-text", recipe.get("sources", []), snakemake.input.by_source):
        texts[text, split] = open_records(place, split)
    # A model with document masking reads records without segment ids like any other model.
    packings = [records.manifest["packing"] for records in texts.values()]
    packing, where = "segments" if "segments" in packings else "concat", f"finetune.runs.{run}"
    model, distribution = open_causal(where, recipe, snakemake.input.base, snakemake.resources, packing=packing)
    from tpulm.models.sharding import partitioning
    from tpulm.models.variables import assign, count
    from tpulm.records.causal_batches import causal_lm
    from tpulm.training.checkpoint import how_trained, trained_for
    from tpulm.training.evaluation import Evaluator

    evaluator = Evaluator(model, distribution, causal_lm)
    before = {name: evaluator(held_out_batches(records, recipe)) for name, records in texts.items()}
    best = snakemake.input.best
    assign(model.trainable_variables, load_arrays(best), best)
    after = {name: evaluator(held_out_batches(records, recipe)) for name, records in texts.items()}
    scores = [
        score
        for name, records in texts.items()
        for score in token_scores(*name, predicted(records), after[name], {BASE: before[name]})
    ]
    state = read_json(snakemake.input.state)
    trainable, total = count(model.trainable_variables), count(model.variables)
    facts = {"trainable_parameters": trainable, "total_parameters": total, "trainable_share": trainable / total}
    facts |= {"best_step": state["best"]["step"]} | determinism_metrics(recipe) | how_trained(state)
    facts |= trained_for(state, texts["finetune-text", "validation"].manifest)
    write_scores(snakemake.output.metrics, f"finetune/{run}", CAUSAL, scores, **facts)
    for score in scores:
        say(str(score))
    mesh = dict(distribution.sizes)
    write_json(snakemake.output.partitioning, {"mesh": mesh, "variables": partitioning(model, distribution)})
