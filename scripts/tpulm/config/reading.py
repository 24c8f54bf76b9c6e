"""Read, check and complete the config: each mistake is a UserError before any job starts."""

import copy
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError

from tpulm.config.checks import check_jax_run, check_outline, check_values
from tpulm.config.outline import Outline
from tpulm.config.schema import check_plain, fill, typed, validate
from tpulm.config.sweeps import expand
from tpulm.core.errors import UserError, describe, one_line
from tpulm.core.experiments import from_workflow
from tpulm.specs.recipes import FETCHED_KEYS, pick
from tpulm.specs.texts import chat_template_of, sources_of

SCHEMA = Path(__file__).parents[3] / "schemas" / "config.schema.yaml"


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML 1.2 file, where 1e-4 is a number and `yes` is text. Raises UserError."""
    name = from_workflow(path)
    try:
        with open(path, encoding="utf-8") as file:
            return YAML(typ="safe", pure=True).load(file)
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}.") from None
    except DuplicateKeyError as error:
        # The key stands in quotes in the library's message, whose other lines are advice to programmers.
        key = error.problem.split('"')[1] if '"' in error.problem else "?"
        raise UserError(f'{name}, line {error.problem_mark.line + 1}: the key "{key}" occurs twice.') from None
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}, line {mark.line + 1}" if mark else name
        problem = one_line(getattr(error, "problem", None) or error)
        raise UserError(f"{where}: not valid YAML: {problem}.") from None
    except ValueError as error:  # a number or a date that Python cannot hold
        raise UserError(f"{name} holds a value that cannot be read: {one_line(error)}.") from None
    except RecursionError:
        raise UserError(f"{name} is nested too deeply.") from None


@cache
def schema() -> dict:
    """Return the schema of the config, which must not be changed.

    PyYAML reads it, since its parser is in C. So the file must mean the same in YAML 1.1.
    """
    return yaml.load(SCHEMA.read_bytes(), yaml.CSafeLoader)


def read_config(paths: Sequence[str | Path], overrides: dict) -> dict:
    """Return the completed config of YAML files, later ones over earlier ones, with `overrides` over all.

    Raises UserError for the first mistake.
    """
    config: dict = {}
    for path in paths:
        part, name = read_yaml(path), from_workflow(path)
        if part is None:
            raise UserError(f"{name} is empty; recipes/ has complete configs to begin with.")
        if not isinstance(part, dict):
            raise UserError(f"{name} holds {describe(part)}; allowed: keys and values, such as `corpus: ...`.")
        merge_mappings(config, part)
    merge_mappings(config, typed(schema(), overrides, schema()))
    return complete(config, ", ".join(map(from_workflow, paths)))


def complete(config: dict, source: str) -> dict:
    """Return `config` checked, its sweeps expanded, its defaults filled in; `source` opens each message."""
    try:
        check_plain(config)
        config = expand(config)
        validate(config, schema())
        filled = fill(schema(), copy.deepcopy(config), schema())
        fit_devices_to_mesh(filled)
        converse_as_tuned(filled)
        check_values(filled)
        open_as_tuned(filled, config.get("base", {}))
        check_outline(Outline(filled))
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return in_order(filled)


def fit_devices_to_mesh(config: dict) -> None:
    """Set host_device_count to the devices of the mesh where the config lacks it, whatever the accelerator is."""
    sections = config["mlm"]["runs"], config["base"], config["finetune"]["runs"], config["evaluation"]["tasks"]
    for recipe in (recipe for section in sections for recipe in section.values()):
        recipe.setdefault("host_device_count", max(1, math.prod(size for size in recipe["mesh"] if size != -1)))


def converse_as_tuned(config: dict) -> None:
    """Set the chat template of the finetuning text to that of its models. Raises UserError if theirs differ."""
    text, bases = config["finetune"].get("text", {}), config["base"]
    if "chat_template" in text or not any("messages" in recipe for _, recipe in sources_of("", text).values()):
        return
    tuned = {run["base"] for run in config["finetune"]["runs"].values()} or bases
    templates = {name: chat_template_of(bases[name]) for name in sorted(tuned) if name in bases}
    (first, template), *others = templates.items() if templates else [("", {})]
    for name, other in others:
        if other != template:
            raise UserError(
                f"finetune.text.chat_template is missing; base.{first} and base.{name} have chat templates of their "
                f"own, {template['chat_template']} and {other['chat_template']}; allowed: one for all runs."
            )
    text |= template


def open_as_tuned(config: dict, sections: Mapping) -> None:
    """Set the keys that open a fetched base model to those of its runs. Raises UserError if its runs differ."""
    for name, base in config["base"].items():
        if "preset" not in base:
            continue
        runs = {key: run for key, run in sorted(config["finetune"]["runs"].items()) if run["base"] == name}
        (first, recipe), *others = runs.items() if runs else [("", base)]
        given = {*sections[name], *(["host_device_count"] if "mesh" in sections[name] else [])}
        absent = [key for key in FETCHED_KEYS if key not in given]
        differing = {key: second for key in absent for second, run in others if run[key] != recipe[key]}
        if differing and config["evaluation"]["harness"]:
            raise UserError(
                f"base.{name} lacks {', '.join(differing)}, needed by evaluation.harness, because "
                f"finetune.runs.{first} and finetune.runs.{next(iter(differing.values()))} have different values."
            )
        base |= pick(recipe, *absent)
        check_jax_run(f"base.{name}", base | {"batch_size": 0, "checkpoint_every": 0})  # nothing is trained


def in_order(value: Any) -> Any:
    """Return `value` with the keys of its mappings sorted, so that their order in the file reruns nothing."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(item) for item in value] if isinstance(value, list) else value


def merge_mappings(target: dict, extra: dict) -> None:
    """Lay `extra` over `target`, mapping by mapping."""
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            merge_mappings(target[key], value)
        else:
            target[key] = copy.deepcopy(value)
