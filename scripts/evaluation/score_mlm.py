"""Score a masked language model by pseudo-log-likelihood, with the library that has trained it, in float32.

input.material    Parquet files of held-out documents and of pairs of sentences
input.ngrams      Parquet files: costs of the same texts by n-gram models
input.overlaps    JSON: items in a training text
input.model       Hugging Face model folder
output.scores     JSON: model, kind (masked) and scores, see tpulm.specs.scores
output.by_item    Parquet: score (its name), item, value
params.recipe     key and path of the model, step of a checkpoint; documents of each split; length (limit in tokens);
                  backend; cpu_threads, without an accelerator; with backend jax also batch_size, microbatches, mesh,
                  layout, host_device_count; determinism, if it is steps
"""

from pathlib import Path

from tpulm.core.job import job
from tpulm.specs.recipes import determinism_of
from tpulm.specs.scores import MASKED

recipe = snakemake.params.recipe
folder = Path(snakemake.input.model[0]).parent

with job(snakemake.log[0], f"evaluation {recipe['path']}") as say:
    from tpulm.evaluation.item_means import write_scored
    from tpulm.evaluation.rows import costs_of, encode_passages, fitting, masked_rows
    from tpulm.evaluation.text_scores import Material
    from tpulm.tokenization.tokenizer import TextTokenizer

    tokenizer = TextTokenizer.load(folder / "tokenizer.json", folder / "special_tokens_map.json")
    material = Material.of(snakemake.input, MASKED, recipe["documents"])
    encoded = encode_passages(tokenizer, material.passages)
    length = fitting(recipe["length"], folder)
    rows = masked_rows(encoded, tokenizer, length)
    if recipe["backend"] == "tensorflow":
        from tpulm.evaluation.tensorflow_scoring import score
        from tpulm.specs.record_arrays import EVALUATION_BATCH
        from tpulm.training import tensorflow_runtime
        from tpulm.training.tensorflow_model import load_model

        tensorflow_runtime.start(recipe["cpu_threads"], 1, tpu=False)
        nats = score(load_model(folder), rows, len(encoded), EVALUATION_BATCH * length, length)
    if recipe["backend"] == "jax":
        from tpulm.training import runtime

        runtime.start(recipe["cpu_threads"], recipe["host_device_count"], determinism=determinism_of(recipe))
        from tpulm.evaluation.jax_scoring import Scorer
        from tpulm.models.loading import load_masked
        from tpulm.models.sharding import on_one_host
        from tpulm.records.masked_batches import masked_lm

        model, distribution = load_masked(folder, recipe["key"], on_one_host(recipe, snakemake.resources))
        tokens = recipe["batch_size"] // recipe["microbatches"] * length
        nats = Scorer(model, distribution, masked_lm, tokens, length)(rows, len(encoded))
    costs = costs_of(material.passages, encoded, nats)
    scored = material.scored(recipe["path"], MASKED, costs)
    write_scored(snakemake.output, recipe, MASKED, scored, say)
