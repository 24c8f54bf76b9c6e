"""Read, complete and check the config: every mistake is one sentence, before any job starts."""

import copy
import difflib
import json
import math
import os
from pathlib import Path

import jsonschema
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError

from lib.errors import UserError
from lib.mesh import check_mesh
from lib.roberta_sizes import sizes_of
from lib.tpu import topology

SCHEMA = Path(__file__).parents[2] / "schemas" / "config.schema.yaml"
SPLITS = ("train", "validation", "test")
# Which keys of a text source belong to which source; the others belong to all.
SOURCE_KEYS = {"files": {"files"}, "unit": {"files"}, "column": {"files", "hub"}} | dict.fromkeys(
    ("dataset", "name", "revision", "splits"), {"hub"}
)
# Model types that transformers 4.57 offers as masked language models for TensorFlow; not esm, whose model folder
# would lack a variable (two have one name).
ARCHITECTURES = (
    "albert", "bert", "camembert", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "flaubert", "funnel",
    "layoutlm", "longformer", "mobilebert", "mpnet", "rembert", "roberta", "roberta-prelayernorm", "roformer", "tapas",
    "xlm", "xlm-roberta",
)  # fmt: skip
DEEPEST = 20  # levels of a config
JAX_KEYS = ("mesh", "accumulate", "rematerialise", "steps_per_dispatch")
TRAINED_HERE = ("model", "vocab_size", "sequence_length", "steps", "checkpoint_every", "batch_size", "learning_rate")


def read_yaml(path: str | Path) -> object:
    """Read YAML 1.2, where 1e-4 is a number and `yes` is text. Raises UserError for what is no YAML."""
    try:
        with open(path, encoding="utf-8") as file:
            return YAML(typ="safe", pure=True).load(file)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}.") from None
    except DuplicateKeyError as error:
        # The key stands in quotes in the library's message, whose other lines are advice to programmers.
        key = error.problem.split('"')[1] if '"' in error.problem else "?"
        raise UserError(f'{path}, line {error.problem_mark.line + 1}: the key "{key}" stands twice.') from None
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        problem = " ".join(str(getattr(error, "problem", None) or error).split()).rstrip(".")
        raise UserError(f"{where}: not valid YAML: {problem}.") from None
    except ValueError as error:  # a number or a date that Python cannot hold
        raise UserError(f"{path} holds a value that cannot be read: {' '.join(str(error).split())[:100]}.") from None
    except RecursionError:
        raise UserError(f"{path} nests too deep to be read.") from None


def read_config(paths: list[str], overrides: dict) -> dict:
    """Return the config of the YAML files `paths`, later ones over earlier ones, with `overrides` over all.

    Defaults are filled in. Raises UserError at the first thing that is wrong.
    """
    config: dict = {}
    for path in paths:
        part = read_yaml(path)
        if not isinstance(part, dict):
            raise UserError(f"{path} holds {describe(part)}; allowed: keys and values, such as `corpus: ...`.")
        merge(config, part)
    merge(config, typed(overrides))
    return complete(config, ", ".join(map(str, paths)))


def complete(config: dict, source: str) -> dict:
    """Return `config` checked and with its defaults filled in; `source` opens each message."""
    schema = read_yaml(SCHEMA)
    try:
        check_plain(config)
        errors = sorted(
            jsonschema.Draft202012Validator(schema).iter_errors(config),
            key=lambda error: ([str(key) for key in error.absolute_path], error.validator != "additionalProperties"),
        )
        if errors:
            raise UserError(sentence(errors[0]))
        check_given(config)
        filled = fill(schema, copy.deepcopy(config), schema)
        check_complete(filled)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return in_order(filled)


def check_plain(value: object, path: tuple = ()) -> None:
    """Check that a config is made of what JSON knows, with numbers that 64 bits hold. Raises UserError.

    YAML knows more: keys that are no text, dates, binary data, infinity, a list that holds itself.
    """
    if len(path) > DEEPEST:
        raise UserError(f"{dotted(path[:3])} nests deeper than {DEEPEST} levels.")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UserError(f"{dotted(path)} has the key {describe(key)}; allowed: text, in quotes if need be.")
            check_plain(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            check_plain(inner, (*path, index))
    elif isinstance(value, int | float):
        if not abs(value) < 2**63:  # also where it is no number
            raise UserError(f"{dotted(path)} is {describe(value)}; allowed: a finite number of 64 bits.")
    elif value is not None and not isinstance(value, str):
        raise UserError(
            f"{dotted(path)} is of the type {type(value).__name__}; allowed: text, a number, true, false or null."
        )


def in_order(value: object) -> object:
    """Return `value` with the keys of its mappings sorted: their order in the file says nothing, and must not rerun."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(item) for item in value] if isinstance(value, list) else value


def merge(target: dict, extra: dict) -> None:
    """Lay `extra` over `target`, mapping by mapping."""
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


def typed(value: object) -> object:
    """Return what `--config` gave, with numbers such as 1e-4 as numbers (Snakemake reads them by YAML 1.1)."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value
        return number if math.isfinite(number) else value
    return value


def fill(schema: dict, value: object, root: dict) -> object:
    """Return `value` with the defaults of `schema` in place of absent keys."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]] | {k: v for k, v in schema.items() if k != "$ref"}
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for key, part in properties.items():
            if "$ref" in part:
                part = root["$defs"][part["$ref"].rsplit("/", 1)[1]] | part
            if key not in value and "default" in part:
                value[key] = copy.deepcopy(part["default"])
        for key in value:
            part = properties.get(key, schema.get("additionalProperties"))
            if isinstance(part, dict):
                value[key] = fill(part, value[key], root)
    if schema.get("type") in ("number", ["number", "null"]) and isinstance(value, int):
        value = float(value)  # 1 and 1.0 mean the same, and must not make anything stale
    if schema.get("type") in ("integer", ["integer", "null"]) and isinstance(value, float):
        value = int(value)
    return value


def describe(value: object) -> str:
    """Return a value as the user wrote it, short."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and abs(value) >= 2**63:
        return f"a number of {value.bit_length()} bits"  # Python refuses to write out the longest
    if not isinstance(value, str):
        return str(value)
    # Quoted as JSON does it, so that a line's end or another invisible character shows.
    text = json.dumps(value, ensure_ascii=not value.isprintable())
    return text if len(text) <= 80 else text[:77] + '..."'


def dotted(path: object) -> str:
    """Return a path of keys and indices as mlm.runs.tiny.steps or prompts.generate[0]."""
    text = ""
    for key in path:
        name = str(key)
        name = name if name.isprintable() and len(name) <= 80 else describe(name)
        text += f"[{key}]" if isinstance(key, int) else f".{name}"
    return text.lstrip(".") or "the config"


KINDS = {
    "object": "a mapping", "array": "a list", "string": "text", "integer": "a whole number",
    "number": "a number", "boolean": "true or false", "null": "null",
}  # fmt: skip


def sentence(error: jsonschema.ValidationError) -> str:
    """Return a schema error as one sentence: the key, what was found, what is allowed."""
    where, found, schema = dotted(error.absolute_path), describe(error.instance), error.schema
    if error.validator == "additionalProperties":
        known = sorted(schema.get("properties", {}))
        key = next(k for k in error.instance if k not in known)
        near = difflib.get_close_matches(str(key), known, 1)
        hint = f'; did you mean "{near[0]}"?' if near else f"; known: {', '.join(known)}."
        return f"{where} has no key {describe(str(key))}{hint}"
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        return f"{where} lacks the key {missing}."
    if "propertyNames" in error.schema_path and error.validator == "pattern":
        return (
            f"{where} has the name {describe(error.instance)}; allowed: up to 64 of a-z, 0-9, _ and -, "
            "the first a letter or a digit."
        )
    if error.validator == "enum":
        return f"{where} is {found}; allowed: {', '.join(map(str, error.validator_value))}."
    if error.validator == "pattern" and where.endswith("accelerator"):
        return f"{where} is {found}; allowed: a TPU slice such as v5e-8, or GPUs such as h100:4."
    if error.validator == "pattern" and where.endswith("keep_checkpoints"):
        return f"{where} is {found}; allowed: all, last, or every N, such as every 10."
    if error.validator == "pattern" and "revision" in where:
        return f"{where} is {found}; allowed: a commit of 40 hexadecimal digits."
    if error.validator == "anyOf":
        return f"{where} is {found}; allowed: a list of globs, or such a list for train, validation and test."
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    allowed = " or ".join(KINDS[kind] for kind in kinds if kind)
    limits = {
        "minimum": "{} or more", "exclusiveMinimum": "more than {}", "maximum": "at most {}",
        "exclusiveMaximum": "less than {}", "minLength": "at least {} character", "minItems": "at least {} entries",
        "maxItems": "at most {} entries",
    }  # fmt: skip
    bounds = [text.format(schema[name]) for name, text in limits.items() if name in schema]
    if found == '""':
        found = "empty text"
    if isinstance(error.instance, list):
        found = f"a list of {len(error.instance)}"
    return f"{where} is {found}; allowed: {', '.join([allowed, *bounds])}."


def check_given(config: dict) -> None:
    """Check which keys stand together, before the defaults hide what was given. Raises UserError."""
    for name in ("corpus", "tuning"):
        recipe = config.get(name)
        if recipe is None:
            continue
        source = recipe["source"]
        for key in recipe:
            if source not in SOURCE_KEYS.get(key, {source}):
                owner = " and ".join(f"source: {s}" for s in sorted(SOURCE_KEYS[key]))
                raise UserError(f"{name}.{key} is given with source: {source}; it belongs to {owner}.")
        if source == "files" and "files" not in recipe:
            raise UserError(f"{name}.files is missing; source: files needs a list of globs.")
        if source == "hub" and "dataset" not in recipe:
            raise UserError(f"{name}.dataset is missing; source: hub needs the name of a dataset.")
        if source == "hub" and "revision" not in recipe and not os.path.isdir(recipe["dataset"]):
            raise UserError(
                f"{name}.revision is missing; a dataset of the hub is pinned to a commit of 40 hexadecimal digits, "
                "so that it cannot change."
            )
    if config.get("mlm", {}).get("runs"):
        for stage in ("tokenizer", "tfrecords"):
            if stage not in config:
                raise UserError(f"{stage} is missing; mlm.runs need it.")
    if "tfrecords" in config and "tokenizer" not in config:
        raise UserError("tokenizer is missing; tfrecords need it.")
    tokenizer = config.get("tokenizer", {"vocab_size": 0})
    if ("vocab_size" in tokenizer) == ("pretrained" in tokenizer):
        raise UserError("tokenizer needs one of vocab_size (train one) and pretrained (use one that exists).")
    pretrained = tokenizer.get("pretrained")
    if pretrained and not os.path.isdir(pretrained) and "revision" not in tokenizer:
        raise UserError(
            f"tokenizer.pretrained is {describe(pretrained)}, which is no local folder; a name on the hub needs "
            "tokenizer.revision, a commit of 40 hexadecimal digits."
        )
    if "revision" in tokenizer and not pretrained:
        raise UserError("tokenizer.revision is given without tokenizer.pretrained; it pins a name on the hub.")
    for name, recipe in config.get("mlm", {}).get("runs", {}).items():
        given = [key for key in JAX_KEYS if key in recipe and recipe["backend"] == "tensorflow"]
        if given:
            raise UserError(
                f"mlm.runs.{name}.{given[0]} is given with backend: tensorflow; it belongs to backend: jax."
            )
    for name, recipe in config.get("base", {}).items():
        where = f"base.{name}"
        if "preset" in recipe:
            extra = sorted(set(recipe) - {"preset", "revision"})
            if extra:
                raise UserError(f"{where} has preset and {extra[0]}; a preset is used as it is, so only revision fits.")
            check_preset(where, recipe)
        else:
            missing = [key for key in TRAINED_HERE if key not in recipe]
            if len(missing) == len(TRAINED_HERE):
                raise UserError(f"{where} needs preset (use a model) or model (train one here).")
            if missing:
                raise UserError(f"{where} lacks the key {missing[0]}.")
            if "revision" in recipe:
                raise UserError(f"{where}.revision is given without {where}.preset; it pins a model of a hub.")


def check_preset(where: str, recipe: dict) -> None:
    """Check that a model from a hub is pinned. Raises UserError."""
    preset, described = recipe["preset"], describe(recipe["preset"])
    if preset.startswith("hf://") and "revision" not in recipe:
        raise UserError(
            f"{where}.revision is missing; {described} is pinned to a commit of 40 hexadecimal digits, "
            "so that it cannot change."
        )
    if preset.startswith("kaggle://") and not preset.rsplit("/", 1)[1].isdigit():
        raise UserError(
            f"{where}.preset is {described}; allowed: a kaggle handle that ends in its version, such as .../1."
        )
    if not preset.startswith("hf://") and "revision" in recipe:
        raise UserError(f"{where}.revision is given, but {described} has none; it belongs to hf:// presets.")
    if preset.startswith((".", "/")) and not os.path.isfile(f"{preset}/config.json"):
        raise UserError(f"{where}.preset is {described}, which is no preset folder: it holds no config.json.")


def check_complete(config: dict) -> None:
    """Check what a schema cannot say, on the config with its defaults. Raises UserError."""
    length = config.get("tfrecords", {}).get("sequence_length", 0)
    for name, recipe in config["mlm"]["runs"].items():
        where = f"mlm.runs.{name}"
        check_training(where, recipe)
        masking = recipe["masking"]
        if masking["mask"] + masking["random"] > 1:
            raise UserError(
                f"{where}.masking: mask {masking['mask']:g} and random {masking['random']:g} add up to more than 1."
            )
        if recipe["precision"] == "bfloat16":
            raise UserError(f"{where}.precision is bfloat16; allowed: float32, mixed_bfloat16.")
        model = recipe["model"]
        if recipe["backend"] == "jax":
            check_mesh(where, recipe)
            sizes = sizes_of(model, f"{where}.model")
        elif recipe["resources"]["hosts"] > 1:
            raise UserError(
                f"{where}.resources.hosts is {recipe['resources']['hosts']}; allowed with backend: tensorflow: 1."
            )
        elif recipe["batch_size"] % recipe["cpu_devices"]:
            raise UserError(
                f"{where}.batch_size is {recipe['batch_size']}; "
                f"allowed: a multiple of cpu_devices, {recipe['cpu_devices']}."
            )
        heads, hidden = model.get("num_attention_heads"), model.get("hidden_size")
        if heads and hidden and hidden % heads:
            raise UserError(
                f"{where}.model.hidden_size is {hidden}; allowed: a multiple of num_attention_heads, {heads}."
            )
        # What the config leaves out has the default of the model's library, which for many differs by architecture.
        positions = (sizes if recipe["backend"] == "jax" else model).get("max_position_embeddings")
        # RoBERTa counts positions from the id after the pad token's: 3 in a tokenizer trained here, 1 in its own.
        after_pad = 2 if "pretrained" in config["tokenizer"] else 4
        extra = after_pad if model["architecture"] in ("roberta", "xlm-roberta", "camembert") else 0
        if positions is not None and positions < length + extra:
            raise UserError(
                f"{where}.model.max_position_embeddings is {positions}; allowed: {length + extra} or more "
                f"for tfrecords.sequence_length {length}."
            )
        if model["architecture"] not in ARCHITECTURES:
            near = difflib.get_close_matches(model["architecture"], ARCHITECTURES, 1)
            hint = f'; did you mean "{near[0]}"?' if near else f"; allowed: {', '.join(ARCHITECTURES)}."
            raise UserError(f"{where}.model.architecture is {describe(model['architecture'])}{hint}")
        for key in model:
            if key == "vocab_size" or key.endswith("_token_id"):
                raise UserError(f"{where}.model.{key} is given; it comes from the tokenizer.")
    for name, recipe in config["base"].items():
        where = f"base.{name}"
        if "preset" in recipe:
            continue
        check_training(where, recipe)
        check_mesh(where, recipe)
        check_precision(where, recipe)
        model = recipe["model"]
        if model["num_query_heads"] % model["num_key_value_heads"]:
            raise UserError(
                f"{where}.model.num_query_heads is {model['num_query_heads']}; allowed: a multiple of "
                f"num_key_value_heads, {model['num_key_value_heads']}."
            )
        if model["head_dim"] % 2 or model["intermediate_dim"] % 2:
            key = "head_dim" if model["head_dim"] % 2 else "intermediate_dim"
            raise UserError(f"{where}.model.{key} is {model[key]}; allowed: an even number.")
    for name, recipe in config["lora"]["runs"].items():
        where = f"lora.runs.{name}"
        if recipe["base"] not in config["base"]:
            known = ", ".join(config["base"]) or "none"
            raise UserError(f"{where}.base is {describe(recipe['base'])}; allowed: a name under base: {known}.")
        check_training(where, recipe)
        check_mesh(where, recipe)
        if recipe["method"] == "full":
            check_precision(where, recipe)
    if config["lora"]["runs"] and "tuning" not in config:
        raise UserError("tuning is missing; lora.runs need a text to tune on.")
    for key, names in (("topologies", config["plan"]["topologies"]), ("prices", config["plan"]["prices"])):
        for name in names:
            try:
                topology(name)
            except UserError as error:
                raise UserError(f"plan.{key}: {error}") from None
    for index, prompt in enumerate(config["prompts"]["fill_mask"]):
        if prompt.count("[MASK]") != 1:
            raise UserError(
                f"prompts.fill_mask[{index}] is {describe(prompt)}, with {prompt.count('[MASK]')} times [MASK]; "
                "allowed: one."
            )


def check_training(where: str, recipe: dict) -> None:
    """Check the steps of a run against each other. Raises UserError."""
    steps, every, schedule = recipe["steps"], recipe["checkpoint_every"], recipe["schedule"]
    if steps % every:
        raise UserError(f"{where}.steps is {steps}; allowed: a multiple of checkpoint_every, {every}.")
    if schedule["warmup_steps"] >= steps:
        raise UserError(
            f"{where}.schedule.warmup_steps is {schedule['warmup_steps']}; allowed: less than steps, {steps}."
        )
    if schedule["shape"] == "wsd":
        if "decay_steps" not in schedule:
            raise UserError(f"{where}.schedule.decay_steps is missing; shape: wsd needs it.")
        if schedule["warmup_steps"] + schedule["decay_steps"] > steps:
            raise UserError(
                f"{where}.schedule: warmup_steps {schedule['warmup_steps']} and decay_steps {schedule['decay_steps']} "
                f"add up to more than steps, {steps}."
            )
    if schedule["shape"] == "constant" and schedule["final_learning_rate"]:
        raise UserError(f"{where}.schedule.final_learning_rate is given with shape: constant, which has no end.")
    if schedule["shape"] != "wsd" and "decay_steps" in schedule:
        raise UserError(f"{where}.schedule.decay_steps is given with shape: {schedule['shape']}; it belongs to wsd.")
    if schedule["final_learning_rate"] > recipe["learning_rate"]:
        raise UserError(
            f"{where}.schedule.final_learning_rate is {schedule['final_learning_rate']:g}; allowed: at most "
            f"learning_rate, {recipe['learning_rate']:g}."
        )


def check_precision(where: str, recipe: dict) -> None:
    """Check that all parameters can be trained in this precision. Raises UserError.

    In bfloat16 Adam's beta_2, 0.999, rounds to 1: no step would change anything.
    """
    if recipe["precision"] == "bfloat16":
        raise UserError(
            f"{where}.precision is bfloat16; allowed where all parameters are trained: float32, mixed_bfloat16."
        )
