"""Checks that a schema cannot express: keys that depend on each other's values, or on files. All raise UserError.

`recipe` is what the config says of a run, with its defaults; `where` is its key, such as mlm.runs.tiny.
"""

import os
import re
from collections.abc import Mapping

from tpulm.config.model_sizes import base_backbone, preset_parameters
from tpulm.config.outline import Outline, same_origin
from tpulm.config.phase_checks import check_phases
from tpulm.config.publications import check_publish
from tpulm.config.record_sets import check_records_elsewhere
from tpulm.config.report import check_published
from tpulm.config.tasks import check_tasks, unused_positions
from tpulm.core.accelerators import TPUS, check_slice, is_tpu, parse_tpu, topology
from tpulm.core.errors import UserError, describe, did_you_mean, did_you_mean_path
from tpulm.core.secrets import find_secret
from tpulm.core.user_files import check_file
from tpulm.specs import causal_vocabularies as vocabularies
from tpulm.specs.causal_families import FAMILIES, refuse_bypassed
from tpulm.specs.masked_sizes import check_heads, sizes_of
from tpulm.specs.phases import phases_of
from tpulm.specs.published_models import name_of_preset
from tpulm.specs.texts import GEMMA, PLAIN, chat_template_files, sources_of, template_fields
from tpulm.specs.training_step import check_batch_size, check_mesh

NAME_ON_HUB = r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*"


def check_values(config: dict) -> None:
    """Check a config that is valid by its schema and has its defaults."""
    check_strings("", config)
    finetune = config["finetune"]
    if "corpus" in config:
        check_text("corpus", config["corpus"])
    else:
        check_without_corpus(config)
    if "text" in finetune:
        check_text("finetune.text", finetune["text"])
    if "tokenizer" in config:
        check_pinned("tokenizer", config["tokenizer"], "pretrained")
        for name, recipe in config["tokenizer"]["compare_with"].items():
            check_pinned(f"tokenizer.compare_with.{name}", recipe, "pretrained")
    check_records_elsewhere(config)
    for name, recipe in config["mlm"]["runs"].items():
        check_masked_model(f"mlm.runs.{name}", recipe, config)
    for name, recipe in config["base"].items():
        check_base(f"base.{name}", recipe, config)
    for name, recipe in finetune["runs"].items():
        check_finetune_run(f"finetune.runs.{name}", recipe, config["base"], finetune["text"])
        check_start(name, finetune["runs"])
    for name, recipe in config["evaluation"]["tasks"].items():
        check_pinned(f"evaluation.tasks.{name}", recipe, "dataset")
    for name, recipe in config["evaluation"]["pairs"]["sets"].items():
        check_pinned(f"evaluation.pairs.sets.{name}", recipe, "dataset")
    check_plan(config["plan"])
    check_prompts(config["prompts"])


def check_without_corpus(config: Mapping) -> None:
    """Check that nothing in a config is made from a corpus. Raises UserError."""
    needing = [section for section in ("tokenizer", "tfrecords") if section in config]
    needing += [f"mlm.runs.{name}" for name in config["mlm"]["runs"]]
    needing += [f"base.{name}.model" for name, recipe in config["base"].items() if "model" in recipe]
    if needing:
        raise UserError(f"corpus is missing; {needing[0]} needs it.")
    if not config["base"]:
        raise UserError("the config has neither corpus, a text to train on, nor base, a model to finetune.")


def check_outline(outline: Outline) -> None:
    """Check the tasks of a config, what it publishes, and the published runs that it repeats."""
    check_tasks(outline, check_training, check_jax_run)
    check_publish(outline)
    check_published(outline.runs.values(), outline.config)


def check_strings(where: str, value: object) -> None:
    """Check that no string of a value is a secret, which pages would show, or a path that Snakemake cannot read."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            check_strings(f"{where}.{key}" if where else str(key), part)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            check_strings(f"{where}[{number}]", part)
    elif isinstance(value, str):
        if secret := find_secret(value.encode()):
            raise UserError(
                f"{where} has {secret[0]}, which pages and archives would show; allowed: text without secrets."
            )
        if os.path.exists(value):
            check_file(where, value)


def check_text(where: str, text: dict) -> None:
    """Check the sources of a text."""
    check_chat(where, text)
    for key, recipe in sources_of(where, text).values():
        check_source(key, recipe)
        whole = next((name for name in ("response", "messages") if name in recipe), None)
        if whole and "c4" in text["filters"]:
            raise UserError(f"{where}.filters.c4 removes lines from documents, but {key}.{whole} needs all lines.")


def check_source(where: str, recipe: Mapping) -> None:
    """Check that a dataset of the hub is pinned, and templates."""
    for name in ("template", "response"):
        if name in recipe:
            template_fields(f"{where}.{name}", recipe[name])
    check_pinned(where, recipe, "dataset")


def check_chat(where: str, text: Mapping) -> None:
    """Check that conversations and a chat template come together, and that the template is pinned. Raises UserError."""
    chats = [key for key, recipe in sources_of(where, text).values() if "messages" in recipe]
    template = text.get("chat_template")
    allowed = (
        f"allowed: {GEMMA}, {PLAIN}, a .jinja file, or a tokenizer that has one (a local folder, or a name on the hub)"
    )
    if chats and template is None:
        raise UserError(f"{where}.chat_template is missing; {chats[0]}.messages requires it; {allowed}.")
    if template is None:
        return
    if not chats:
        raise UserError(f"{where}.chat_template is set, but no source has messages.")
    files = chat_template_files(template)
    if template in (GEMMA, PLAIN) or (files and os.path.isfile(files[0])):
        return
    if files or os.path.isdir(template):
        raise UserError(f"{where}.chat_template is {template}, which has no chat template; {allowed}.")
    check_pinned(where, text, "chat_template", "chat_template_revision")


def check_pinned(where: str, recipe: Mapping, key: str, revision: str = "revision") -> None:
    """Check that a key of a recipe, if it is set, names a local folder or a pinned repository. Raises UserError."""
    name = recipe.get(key)
    if name is not None and os.path.isfile(name):
        raise UserError(f"{where}.{key} is {describe(name)}, a file; allowed: the folder that has it.")
    if name is not None and revision not in recipe and not os.path.isdir(name):
        raise UserError(
            f"{where}.{key} is {describe(name)}, which is not a local folder; a name on the hub needs "
            f"{where}.{revision}, a commit of 40 hexadecimal digits."
        )
    if name is not None and not os.path.isdir(name) and not re.fullmatch(NAME_ON_HUB, name):
        raise UserError(
            f"{where}.{key} is {describe(name)}, which is neither a local folder nor a name on the hub; allowed: the "
            "path of a folder, or OWNER/NAME."
        )


def check_masked_model(where: str, recipe: dict, config: dict) -> None:
    """Check a masked language model: one that is trained here, or a pretrained one."""
    if "pretrained" in recipe:
        check_pinned(where, recipe, "pretrained")
        return
    if "init" in recipe:
        check_pinned(f"{where}.init", recipe["init"], "pretrained")
        if not same_origin(recipe["init"], config["tokenizer"]):
            pretrained = config["tokenizer"].get("pretrained")
            origin = (
                f"tokenizer.pretrained is {describe(pretrained)}" if pretrained else "the tokenizer is trained here"
            )
            raise UserError(
                f"{where}.init is {with_revision(recipe['init'])}, but {origin}; allowed: tokenizer.pretrained and "
                "revision as in init, because a model needs records of its own tokenizer."
            )
    check_mlm_run(where, recipe, config)


def with_revision(recipe: Mapping) -> str:
    """Return the name and the revision of a pretrained model, as a sentence has them."""
    return f"{recipe['pretrained']} at revision {recipe['revision']}" if "revision" in recipe else recipe["pretrained"]


def check_jax_run(where: str, recipe: dict) -> None:
    """Check how a run on JAX is spread over devices."""
    check_mesh(where, recipe)
    for key, axes in recipe["layout"].items():
        try:
            re.compile(key)
        except re.error as error:
            raise UserError(f"{where}.layout: {describe(key)} is not a valid regular expression: {error}.") from None
        named = [axis for axis in axes if axis]
        if len(set(named)) < len(named):
            raise UserError(
                f"{where}.layout: {describe(key)} names the axis {max(named, key=named.count)} twice; allowed: each "
                "axis of the mesh once."
            )


def check_mlm_run(where: str, recipe: dict, config: dict) -> None:
    """Check a masked language model."""
    check_training(where, recipe)
    masking = recipe["masking"]
    if masking["mask_replace_prob"] + masking["random_replace_prob"] > 1:
        raise UserError(
            f"{where}.masking: mask_replace_prob {masking['mask_replace_prob']:g} and "
            f"random_replace_prob {masking['random_replace_prob']:g} add up to more than 1."
        )
    if recipe["backend"] == "jax":
        check_jax_run(where, recipe)
        sizes = {} if "init" in recipe else sizes_of(recipe["model"], f"{where}.model")
    else:
        check_replicas(where, recipe)
        if config["tfrecords"]["packing"] == "segments":
            raise UserError(
                f"tfrecords.packing is segments, which {where} cannot read with backend: tensorflow; allowed: "
                "concat, pad."
            )
        # Absent keys have the defaults of transformers, which differ by architecture.
        sizes = recipe.get("model", {})
        check_heads(sizes, f"{where}.model")
    length = config["tfrecords"]["sequence_length"]
    lengths = {"tfrecords": length}
    for key, phase in check_phases(where, recipe, length, ("corpus", config["corpus"])).items():
        if config["tfrecords"]["source"] == "files" and not phase.is_plain:
            raise UserError(f"{key} is given with tfrecords.source: files; allowed: records of the corpus.")
        lengths[key] = phase.sequence_length
    if "model" in recipe:  # the sizes of another model are known when it has been fetched
        for key, length in lengths.items():
            check_positions(f"{where}.model", recipe, sizes, config, f"{key}.sequence_length", length)


def check_replicas(where: str, recipe: dict) -> None:
    """Check hosts, batch and optimizer of a run on TensorFlow."""
    optimizer = recipe["optimizer"]["name"]
    if optimizer != "adamw":
        raise UserError(f"{where}.optimizer.name is {optimizer}; allowed with backend: tensorflow: adamw.")
    hosts, devices = recipe["resources"]["hosts"], recipe["host_device_count"]
    if hosts > 1:
        raise UserError(f"{where}.resources.hosts is {hosts}; allowed with backend: tensorflow: 1.")
    check_batch_size(where, recipe["batch_size"], devices, recipe["microbatches"], "host_device_count")


def check_positions(where: str, recipe: dict, sizes: dict, config: dict, key: str, length: int) -> None:
    """Check the architecture, and that it has a position for each token of a record of the length that `key` sets."""
    positions = sizes.get("max_position_embeddings")
    needed = length + unused_positions(recipe["model"], config, where, recipe["backend"])
    if positions is not None and positions < needed:
        raise UserError(
            f"{where}.max_position_embeddings is {positions}; allowed: {needed} or more for {key} {length}."
        )


def check_base(where: str, recipe: dict, config: dict) -> None:
    """Check a base model: a preset in a local folder, or a model that is trained here."""
    if "preset" in recipe:
        check_preset(f"{where}.preset", recipe["preset"])
        return
    check_training(where, recipe)
    check_jax_run(where, recipe)
    query, key_value = (recipe["model"][f"num_{kind}_heads"] for kind in ("query", "key_value"))
    if query % key_value:
        raise UserError(
            f"{where}.model.num_query_heads is {query}; allowed: a multiple of num_key_value_heads, {key_value}."
        )
    check_heads_of(f"{where}.model", recipe["model"])
    check_packing(where, recipe, recipe["model"])
    check_phases(where, recipe, recipe["sequence_length"], ("corpus", config["corpus"]))
    name = recipe["model"]["architecture"]
    if recipe["tokenizer"] == "byte-level-bpe" and not vocabularies.VOCABULARY_KINDS[name].byte_level:
        allowed = ", ".join(other for other, kind in vocabularies.VOCABULARY_KINDS.items() if kind.byte_level)
        raise UserError(
            f"{where}.tokenizer is byte-level-bpe with the architecture {name}; allowed: bpe, or one of the "
            f"architectures {allowed}."
        )


# Presets of keras-hub whose tokenizers tpulm.tokenization.conversion cannot write; schemas/presets.txt is without them.
WITHOUT_COUNTERPART = ("phi3_", "rwkv7_", "bart_", "blip2_opt_", "bloom", "falcon_", "gpt_oss_")


def check_preset(where: str, preset: str) -> None:
    """Check that a preset is a folder, a handle of a hub, or one of keras-hub's names."""
    if os.path.isdir(preset):
        if not os.path.isfile(f"{preset}/config.json"):
            raise UserError(f"{where} is {describe(preset)}, which is not a preset folder: it has no config.json.")
        return
    if (name_of_preset(preset) or "").startswith(WITHOUT_COUNTERPART):
        raise UserError(
            f"{where} is {describe(preset)}, whose tokenizer has no counterpart in the library tokenizers; allowed: "
            "a name of schemas/presets.txt."
        )
    if not preset.startswith(("hf://", "kaggle://")):
        names = preset_parameters()
        of_hub = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", preset) and not os.path.isdir(preset.partition("/")[0])
        if preset not in names:
            near = did_you_mean_path(preset) if "/" in preset else did_you_mean(preset, names)
            hint = f'; did you mean "hf://{preset}"?' if of_hub else near or "."
            raise UserError(
                f"{where} is {describe(preset)}, and there is no such folder; allowed: a preset folder, an hf:// or "
                f"kaggle:// handle, or the name of a causal preset of keras-hub{hint}"
            )
        if preset.endswith("_assistant"):
            raise UserError(
                f"{where} is {describe(preset)}, which only drafts tokens for another model; allowed: "
                f"{preset.removesuffix('_assistant')}."
            )


def check_packing(where: str, recipe: dict, model: dict) -> None:
    """Check that an architecture that is trained here can read the records of a run."""
    name = model["architecture"]
    if recipe["packing"] == "segments" and not FAMILIES[name].segments:
        raise UserError(f"{where}.packing is segments, which {name} cannot read; allowed: concat, pad.")


def check_heads_of(where: str, model: dict) -> None:
    """Check that twice the number of heads divides hidden_dim, where an architecture has no head_dim."""
    hidden, heads = model["hidden_dim"], model["num_query_heads"]
    if not FAMILIES[model["architecture"]].head_dim and hidden % (2 * heads):
        raise UserError(f"{where}.hidden_dim is {hidden}; allowed: a multiple of twice num_query_heads, {2 * heads}.")


def check_finetune_run(where: str, recipe: dict, bases: dict, text: dict) -> None:
    """Check a finetuning run; `bases` are the base models by name, `text` is finetune.text."""
    if recipe["base"] not in bases:
        known = ", ".join(bases) or "none"
        raise UserError(f"{where}.base is {describe(recipe['base'])}; allowed: a name under base: {known}.")
    check_training(where, recipe)
    check_jax_run(where, recipe)
    if recipe["base_precision"] == "float32" and recipe["precision"] == "bfloat16":
        raise UserError(
            f"{where}.base_precision is float32 with precision: bfloat16; for float32 weights and bfloat16 "
            "arithmetic, set precision: mixed_bfloat16."
        )
    phases = check_phases(where, recipe, recipe["sequence_length"], ("finetune.text", text))
    lengths = {where: recipe["sequence_length"]} | {key: phase.sequence_length for key, phase in phases.items()}
    base = bases[recipe["base"]]
    if recipe["method"] == "lora":
        refuse_bypassed(base_backbone(base)[0], where, tuple(recipe["targets"]), recipe["base_precision"])
    if "model" in base:
        check_packing(where, recipe, base["model"])
        learned = phases_of(base, base["sequence_length"])[-1].sequence_length
        for key, length in lengths.items():
            if length > learned:
                raise UserError(
                    f"{key}.sequence_length is {length}; allowed: at most that of "
                    f"base.{recipe['base']}, {learned}, because it has learned no positions after that."
                )


def check_start(name: str, runs: Mapping[str, dict]) -> None:
    """Check that a finetuning run starts from another one of the same shape, and that no run starts from itself."""
    where, recipe, seen = f"finetune.runs.{name}", runs[name], [name]
    while "init" in recipe:
        before = recipe["init"]
        others = ", ".join(run for run in runs if run != name) or "none"
        if before not in runs or before in seen:
            raise UserError(
                f"{where}.init is {describe(runs[name]['init'])}; allowed: a name under finetune.runs that does not "
                f"start from this run: {others}."
            )
        lora = ("rank", "alpha", "targets") if recipe["method"] == "lora" else ()
        for key in ("base", "method", *lora):
            if recipe[key] != runs[before][key]:
                raise UserError(
                    f"{where}.init is {describe(before)}, whose {key} is {runs[before][key]}, but here it is "
                    f"{recipe[key]}; allowed: the same."
                )
        where, recipe, seen = f"finetune.runs.{before}", runs[before], [*seen, before]


def check_training(where: str, recipe: dict) -> None:
    """Check the steps and learning rates of a run against each other, its optimizer and its TPU slice."""
    accelerator, optimizer = recipe["resources"].get("accelerator"), recipe["optimizer"]
    if accelerator and is_tpu(accelerator):
        try:
            check_slice(accelerator)
        except UserError as error:
            raise UserError(f"{where}.resources.accelerator: {error}") from None
        if recipe.get("backend") == "tensorflow" and not TPUS[parse_tpu(accelerator)[0]].tensorflow:
            raise UserError(
                f"{where}.resources.accelerator is {accelerator}, which TensorFlow does not support; allowed: backend: "
                "jax, or another TPU."
            )
    if optimizer["name"] == "lion" and not optimizer["beta_1"]:
        raise UserError(f"{where}.optimizer.beta_1 is 0; allowed with name: lion: more than 0, less than 1.")
    if optimizer["name"] == "muon" and recipe.get("method") == "lora":
        raise UserError(
            f"{where}.optimizer.name is muon, which is for whole matrices and not for LoRA's factors; allowed with "
            "method: lora: adamw, lion, adafactor."
        )
    steps, every, schedule = recipe["steps"], recipe["checkpoint_every"], recipe["schedule"]
    warmup, decay = schedule["warmup_steps"], schedule.get("decay_steps", 0)
    if steps % every:
        raise UserError(f"{where}.steps is {steps}; allowed: a multiple of checkpoint_every, {every}.")
    evaluations, at_once = recipe["evaluate_every"], recipe.get("steps_per_execution", 1)
    if evaluations and (every % evaluations or evaluations % at_once):
        also = f" that is a multiple of steps_per_execution, {at_once}" if at_once > 1 else ""
        raise UserError(
            f"{where}.evaluate_every is {evaluations}; allowed: a divisor of checkpoint_every, {every}{also}."
        )
    check_traced(where, recipe)
    if warmup >= steps:
        raise UserError(f"{where}.schedule.warmup_steps is {warmup}; allowed: less than steps, {steps}.")
    if warmup + decay > steps:
        raise UserError(
            f"{where}.schedule: warmup_steps {warmup} and decay_steps {decay} add up to more than steps, {steps}."
        )
    if schedule["final_learning_rate"] > recipe["learning_rate"]:
        raise UserError(
            f"{where}.schedule.final_learning_rate is {schedule['final_learning_rate']:g}; allowed: at most "
            f"learning_rate, {recipe['learning_rate']:g}."
        )


def check_plan(recipe: dict) -> None:
    """Check that the TPU slices of a plan exist."""
    for key in ("topologies", "prices"):
        for name in recipe[key]:
            try:
                topology(name)
            except UserError as error:
                raise UserError(f"plan.{key}: {error}") from None


def check_prompts(recipe: dict) -> None:
    """Check that each prompt of a masked language model has one mask."""
    for index, prompt in enumerate(recipe["fill_mask"]):
        if prompt.count("[MASK]") != 1:
            raise UserError(
                f"prompts.fill_mask[{index}] is {describe(prompt)}, which has [MASK] {prompt.count('[MASK]')} times; "
                "allowed: once."
            )


def check_traced(where: str, recipe: dict) -> None:
    """Check that the profiled steps are whole dispatches of one segment, which is one job. Raises UserError."""
    traced = recipe["profile"].get("steps")
    if not traced:
        return
    (first, last), steps, every = traced, recipe["steps"], recipe["checkpoint_every"]
    if not (first < last <= steps and first // every == (last - 1) // every):
        allowed = f"two steps up to {steps}, the first smaller, without a checkpoint between them (one every {every})"
        raise UserError(f"{where}.profile.steps is {traced}; allowed: {allowed}.")
    at_once = recipe.get("steps_per_execution", 1)
    if first % at_once or last % at_once:
        raise UserError(f"{where}.profile.steps is {traced}; allowed: multiples of steps_per_execution, {at_once}.")
