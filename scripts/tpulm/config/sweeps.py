"""Sweeps: a run of the config with lists of values in place of one becomes a run for each combination of them."""

import copy
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from tpulm.config.outline import Model
from tpulm.core.errors import UserError, describe
from tpulm.specs.recipes import differing

KEY = "sweep"
MOST = 1000  # runs of a sweep
# Keys by which repetitions of a run differ, or which say nothing of what it computes.
IGNORED = ("seed", "resources", "published")
LONGEST = 64  # name of a run, see $defs/name of the schema


def expand(config: dict) -> dict:
    """Return a config, as it was given, with the runs of its sweeps in place of those that have a sweep.

    A run `tiny` with `sweep: {learning_rate: [1e-4, 3e-4], seed: [0, 1]}` becomes tiny-learning_rate-1e-4-seed-0 and
    so on; a key such as optimizer.weight_decay is one of a mapping. What is no mapping is left to the schema.

    Raises UserError for a sweep that is none, and for names that stand already.
    """
    config = dict(config)
    for stage in ("mlm", "finetune"):
        section = config.get(stage)
        if isinstance(section, dict) and isinstance(section.get("runs"), dict):
            config[stage] = section | {"runs": expanded(f"{stage}.runs", section["runs"])}
    if isinstance(config.get("base"), dict):
        config["base"] = expanded("base", config["base"])
    return config


def expanded(where: str, runs: dict) -> dict:
    """Return runs by name, those of sweeps included; `where` is the key that holds them. Raises UserError."""
    found = {name: recipe for name, recipe in runs.items() if not (isinstance(recipe, dict) and KEY in recipe)}
    for name in (name for name in runs if name not in found):
        for variant, recipe in variants(f"{where}.{name}", str(name), runs[name]):
            if variant in found:
                raise UserError(
                    f"{where}.{name}.{KEY} creates a run named {variant}, but {where} already has a run of this name; "
                    "rename one of them."
                )
            found[variant] = recipe
    return found


def variants(where: str, name: str, recipe: dict) -> Iterator[tuple[str, dict]]:
    """Yield name and recipe of each run of a sweep, in the order of its values. Raises UserError."""
    axes = checked(f"{where}.{KEY}", recipe[KEY])
    for values in itertools.product(*axes.values()):
        variant = copy.deepcopy({key: value for key, value in recipe.items() if key != KEY})
        for key, value in zip(axes, values, strict=True):
            put(variant, key.split("."), value, f"{where}.{KEY}")
        parts = [f"{key.rpartition('.')[2]}-{in_a_name(value)}" for key, value in zip(axes, values, strict=True)]
        full = "-".join([name, *parts])
        if len(full) > LONGEST:
            raise UserError(f"{where}.{KEY} creates a run named {full}; allowed: up to {LONGEST} characters.")
        yield full, variant


def checked(where: str, sweep: Any) -> dict[str, list]:
    """Return a sweep as it was given. Raises UserError where it is no mapping of keys to lists of different values."""
    if not isinstance(sweep, dict) or not sweep:
        found = "empty" if sweep == {} else describe(sweep)
        raise UserError(f"{where} is {found}; allowed: lists of values by key, such as {{seed: [0, 1, 2]}}.")
    count = 1
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            found = "an empty list" if values == [] else describe(values)
            raise UserError(f"{where}.{key} is {found}; allowed: a list of values, such as [0, 1, 2].")
        names = [in_a_name(value) for value in values]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice or any(isinstance(value, dict) for value in values):
            found = f"{twice} twice" if twice else "a mapping"
            raise UserError(f"{where}.{key} holds {found}; allowed: numbers, texts and lists, without duplicates.")
        count *= len(values)
    if count > MOST:
        raise UserError(f"{where} creates {count:,} runs; allowed: at most {MOST:,}.")
    return {str(key): values for key, values in sweep.items()}


def put(recipe: dict, path: list[str], value: Any, where: str) -> None:
    """Set a value in a recipe, at a path of keys. Raises UserError where there is no mapping to set it in."""
    for key in path[:-1]:
        recipe = recipe.setdefault(key, {})
        if not isinstance(recipe, dict):
            raise UserError(f"{where}.{'.'.join(path)} is given, but {key} is not a mapping.")
    recipe[path[-1]] = value


def in_a_name(value: Any) -> str:
    """Return a value as it stands in the name of a run: 1e-4, 0_15 for 0.15, 1x8 for a list."""
    if isinstance(value, list):
        return "x".join(map(in_a_name, value))
    if isinstance(value, float):
        value = short_number(value)
    return re.sub(r"[^a-z0-9_-]", "_", str("none" if value is None else value).lower())


def short_number(value: float) -> str:
    """Return a number as people write it: 0.15 from a tenth to a million, otherwise 3e-4; 1.0 is 1."""
    if value == 0 or not 0.1 <= abs(value) < 1e6:
        sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
        if not isinstance(exponent, int) or value == 0:
            return f"{value:g}"
        rest = "".join(map(str, digits[1:]))
        return f"{'-' if sign else ''}{digits[0]}{'.' if rest else ''}{rest}e{exponent + len(rest)}"
    return f"{value:.12g}"


def repetitions(runs: Iterable[Model]) -> list[list[Model]]:
    """Return runs in groups that differ by nothing but IGNORED, in their order."""
    groups: dict[str, list[Model]] = {}
    for run in runs:
        kept = {key: value for key, value in run.recipe.items() if key not in IGNORED}
        groups.setdefault(f"{run.stage} {json.dumps(kept, sort_keys=True)}", []).append(run)
    return list(groups.values())


def groups_of(runs: Iterable[Model]) -> list[dict[str, Any]]:
    """Return of each group of `repetitions` its stage, name, how many runs it has, and its settings.

    Settings are what the groups of a stage do not have in common, by dotted key.
    """
    found = []
    groups = repetitions(runs)
    for stage in dict.fromkeys(group[0].stage for group in groups):
        own = [group for group in groups if group[0].stage == stage]
        settings = differing([{k: v for k, v in group[0].recipe.items() if k not in IGNORED} for group in own])
        found += [
            {"stage": stage, "name": group_name([run.name for run in group]), "runs": len(group), "settings": differ}
            for group, differ in zip(own, settings, strict=True)
        ]
    return found


def group_name(names: list[str]) -> str:
    """Return the name of a group of runs: that of the runs, without the seed where a sweep made them."""
    common = {re.sub(r"-seed-\d+", "", name) for name in names}
    return common.pop() if len(common) == 1 else ", ".join(names)
