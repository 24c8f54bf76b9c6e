"""Save a causal language model as a folder that transformers loads: AutoModelForCausalLM, AutoTokenizer.

input.preset    preset folder: a base model, a full finetuning, or one with merged LoRA weights; and its fingerprint
input.tokenizer tokenizer.json of the base model
input.chat      chat_template.json of the conversations that it was trained on, if any
output.folder   config.json, generation_config.json, model.safetensors (several with an index above 2 GB; of the type of
                the preset's weights), tokenizer.json, tokenizer_config.json, special_tokens_map.json; tokenizer.model
                for SentencePiece; chat_template.jinja, if the tokenizer can express it. Logits and ids are those of
                the preset, see tpulm.tokenization.conversion
output.fingerprint  JSON: the SHA-256 of each of its files
params.recipe   cpu_threads
"""

from pathlib import Path

from tpulm.core.files import fingerprints, read_json, write_json
from tpulm.core.job import job
from tpulm.training import runtime

stage, run = snakemake.wildcards.stage, snakemake.wildcards.run

with job(snakemake.log[0], f"{stage} {run}") as say:
    runtime.start(snakemake.params.recipe["cpu_threads"], repeats=False, on_cpu=True)
    from tpulm.models.preset_folders import atomic_folder, load_on_host
    from tpulm.models.tensor_files import save_shards
    from tpulm.models.transformers_causal import tensors_of, transformers_config
    from tpulm.tokenization.conversion import chat_template, save_folder
    from tpulm.tokenization.tokenizer import TextTokenizer

    preset, tokenizer = snakemake.input[0], TextTokenizer.load(*snakemake.input.tokenizer)
    model = load_on_host(preset)
    config = transformers_config(model, tokenizer.special, tokenizer.byte_level)
    ids = {key: value for key, value in config.items() if key.endswith("_token_id")}
    chat = read_json(snakemake.input.chat[0]) if snakemake.input.chat else None
    template = chat_template(tokenizer, chat) if chat else None
    ending = tokenizer.encode([chat["ending"]])[0] if chat and template else []
    if len(ending) == 1 and ending != [ids["eos_token_id"]]:
        ids["eos_token_id"] = [ids["eos_token_id"], *ending]  # ends an answer within a text
    with atomic_folder(snakemake.output.folder) as partial:
        write_json(partial / "config.json", config)
        write_json(partial / "generation_config.json", ids)
        save_folder(tokenizer, Path(preset), partial)
        save_shards(partial, tensors_of(model, tokenizer.byte_level))
        if template:
            (partial / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_json(snakemake.output.fingerprint, fingerprints(snakemake.output.folder))
    missing = chat and not template
    without = ", without its chat template, which would write other texts than were learned" if missing else ""
    say(f"saved as {snakemake.output.folder}{without}")
