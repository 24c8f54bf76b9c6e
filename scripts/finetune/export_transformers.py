"""Save a causal language model as a folder that transformers loads: AutoModelForCausalLM, AutoTokenizer.

input.preset    preset folder: a base model, a full finetuning, or one with its LoRA weights merged; of a base model,
                its fingerprint, too
output          config.json, generation_config.json, model.safetensors (of more than 2 GB several, with an index; of
                the type that the preset's weights have), tokenizer.json, tokenizer_config.json,
                special_tokens_map.json; tokenizer.model, where it is one of SentencePiece. Logits are the preset's, and
                so are ids, see tpulm.tokenization.fast
params.recipe   cpu_threads
"""

from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.tokenization.causal import load_tokenizer
from tpulm.training import runtime

stage, run = snakemake.wildcards.stage, snakemake.wildcards.run

with job(snakemake.log[0], f"{stage} {run}") as say:
    runtime.start(snakemake.params.recipe["cpu_threads"], repeats=False, on_cpu=True)
    from tpulm.models.causal import atomic_folder, load_on_host
    from tpulm.models.transformers_causal import save_shards, tensors_of, transformers_config
    from tpulm.tokenization.fast import is_byte_level, save_fast

    preset = snakemake.input[0]
    tokenizer = load_tokenizer(preset, lambda: None)
    model = load_on_host(preset)
    byte_level = is_byte_level(tokenizer)
    config = transformers_config(model, tokenizer.special, byte_level)
    ids = {key: value for key, value in config.items() if key.endswith("_token_id")}
    with atomic_folder(snakemake.output[0]) as partial:
        write_json(partial / "config.json", config)
        write_json(partial / "generation_config.json", ids)
        save_fast(tokenizer, partial)
        save_shards(partial, tensors_of(model, byte_level))
    say(f"saved as {snakemake.output[0]}")
