"""Export the best checkpoint of a masked language model as a Hugging Face model folder.

input.manifest    tfrecords/manifest.json: vocabulary size and special ids
input.tokenizer   tokenizer.json, tokenizer_config.json, special_tokens_map.json
input.best        safetensors: the model's variables at the step with the lowest held-out loss
input.init        config.json of the model that the run started from; none for a run from scratch
output            config.json, model.safetensors (with PyTorch's names), files of the tokenizer
params.recipe     backend, and model or init, see the config
"""

import shutil

from tpulm.core.arrays import load_arrays
from tpulm.core.files import atomic_write, read_json, write_json, write_text
from tpulm.core.job import job
from tpulm.models.masked_models import MODULES
from tpulm.models.weight_names import to_transformers
from tpulm.specs.masked_architectures import find_architecture

run = snakemake.wildcards.run

with job(snakemake.log[0], f"mlm {run}"):
    from tpulm.models.masked_folders import pytorch_arrays
    from tpulm.models.tensor_files import save_tensors
    from tpulm.models.transformers_config import init_config, model_config
    from transformers.models.auto.modeling_tf_auto import TF_MODEL_FOR_MASKED_LM_MAPPING_NAMES

    recipe = snakemake.params.recipe
    jax, init = recipe["backend"] == "jax", snakemake.input.init
    manifest = read_json(snakemake.input.manifest)
    where = f"mlm.runs.{run}"
    if init:
        config = init_config(init[0], manifest, where, recipe["backend"])
    else:
        config = model_config(recipe["model"], manifest, f"{where}.model", recipe["backend"])
    config_json, weights, *tokenizer = snakemake.output
    architecture = config.model_type
    if jax:
        config.architectures = [MODULES[architecture].PYTORCH_CLASS]
    else:
        config.architectures = [TF_MODEL_FOR_MASKED_LM_MAPPING_NAMES[architecture].removeprefix("TF")]
    write_text(config_json, config.to_json_string())
    arrays = load_arrays(snakemake.input.best)
    if jax:
        named = to_transformers(arrays, config.pad_token_id)
    else:
        named = pytorch_arrays(arrays)
    save_tensors(weights, named)
    for source, target in zip(snakemake.input.tokenizer, tokenizer, strict=True):
        with atomic_write(target) as partial:
            shutil.copyfile(source, partial)
    if not find_architecture(architecture, where, recipe["backend"]).token_types:
        # The model refuses token_type_ids, which the tokenizer would return by default.
        _, settings, _ = tokenizer
        write_json(settings, read_json(settings) | {"model_input_names": ["input_ids", "attention_mask"]})
