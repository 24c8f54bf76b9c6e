"""Turn the best checkpoint of a masked language model into a Hugging Face model folder.

input.manifest    tfrecords/manifest.json: vocabulary size and special ids
input.tokenizer   tokenizer.json, tokenizer_config.json, special_tokens_map.json
input.best        safetensors, the model's variables at the step with the lowest held-out loss
input.state       JSON: which step that was
output            config.json, model.safetensors (PyTorch's names), the tokenizer's files, README.md (model card)
params.recipe     model, as in the config
"""

import shutil

from lib.arrays import load_arrays
from lib.files import read_json, whole, write_text
from lib.job import job

run = snakemake.wildcards.run

with job(snakemake.log[0], f"mlm {run}"):
    from lib.mlm_config import TF_MODEL_FOR_MASKED_LM_MAPPING_NAMES, model_config
    from lib.mlm_export import save_model

    model = snakemake.params.recipe["model"]
    manifest, best = read_json(snakemake.input.manifest), read_json(snakemake.input.state)["best"]
    config = model_config(model, manifest, f"mlm.runs.{run}.model")
    config_json, weights, *tokenizer = snakemake.output[:-1]
    config.architectures = [TF_MODEL_FOR_MASKED_LM_MAPPING_NAMES[model["architecture"]].removeprefix("TF")]
    write_text(config_json, config.to_json_string())
    arrays = load_arrays(snakemake.input.best)
    save_model(weights, arrays)
    for source, target in zip(snakemake.input.tokenizer, tokenizer, strict=True):
        with whole(target) as partial:
            shutil.copyfile(source, partial)
    write_text(
        snakemake.output.card,
        f"""---
library_name: transformers
pipeline_tag: fill-mask
---

# {run}

A masked language model ({model["architecture"]}, {sum(a.size for a in arrays.values()):,} parameters), trained from
scratch on sequences of {manifest["sequence_length"]} tokens. These are the weights of step {best["step"]}, the best on
the validation split: loss {best["evaluation"]["loss"]:.4f} nats per masked token, perplexity
{best["evaluation"]["perplexity"]:.2f}, accuracy {best["evaluation"]["accuracy"]:.4f}.

    from transformers import pipeline
    pipeline("fill-mask", model="FOLDER")("Text with one [MASK].")
""",
    )
