"""Sweeps: expand runs with lists of values to a run for each combination, and group runs that repeat each other."""

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
# Keys in which repetitions of a run may differ: they do not change what it computes, the seed aside.
IGNORED = ("seed", "resources", "published")
LONGEST = 64  # name of a run, see $defs/name of the schema


def expand(config: dict) -> dict:
    """Return a config without defaults, each run with a sweep replaced by the runs of the sweep.

    A run `tiny` with `sweep: {learning_rate: [1e-4, 3e-4], seed: [0, 1]}` becomes tiny-learning_rate-1e-4-seed-0 and
    so on; a key such as optimizer.weight_decay is one of a mapping. The schema reports a section that is no mapping.

    Raises UserError for an invalid sweep, and for names that exist already.
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
    """Return recipes of runs by name, with sweeps expanded; where  key of the section. Raises UserError."""
    recipes = {name: recipe for name, recipe in runs.items() if not (isinstance(recipe, dict) and KEY in recipe)}
    for name in (name for name in runs if name not in recipes):
        for variant, recipe in variants(f"{where}.{name}", str(name), runs[name]):
            if variant in recipes:
                raise UserError(
                    f"{where}.{name}.{KEY} creates a run named {variant}, but {where} already has a run of this name; "
                    "rename one of them."
                )
            recipes[variant] = recipe
    return recipes


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
    """Return a sweep. Raises UserError unless it maps keys to lists of different values."""
    if not isinstance(sweep, dict) or not sweep:
        problem = "empty" if sweep == {} else describe(sweep)
        raise UserError(f"{where} is {problem}; allowed: lists of values by key, such as {{seed: [0, 1, 2]}}.")
    count = 1
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            problem = "an empty list" if values == [] else describe(values)
            raise UserError(f"{where}.{key} is {problem}; allowed: a list of values, such as [0, 1, 2].")
        names = [in_a_name(value) for value in values]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice or any(isinstance(value, dict) for value in values):
            problem = f"{twice} twice" if twice else "a mapping"
            raise UserError(f"{where}.{key} holds {problem}; allowed: numbers, texts and lists, without duplicates.")
        count *= len(values)
    if count > MOST:
        raise UserError(f"{where} creates {count:,} runs; allowed: at most {MOST:,}.")
    return {str(key): values for key, values in sweep.items()}


def put(recipe: dict, path: list[str], value: Any, where: str) -> None:
    """Set a value in a recipe, at a path of keys. Raises UserError if one of them is not a mapping."""
    for key in path[:-1]:
        recipe = recipe.setdefault(key, {})
        if not isinstance(recipe, dict):
            raise UserError(f"{where}.{'.'.join(path)} is given, but {key} is not a mapping.")
    recipe[path[-1]] = value


def in_a_name(value: Any) -> str:
    """Return a value as a part of a run's name: 1e-4, 0_15 for 0.15, 1x8 for a list."""
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
    """Return runs in groups whose recipes differ only in the keys IGNORED, in the order of the runs."""
    groups: dict[str, list[Model]] = {}
    for run in runs:
        settings = {key: value for key, value in run.recipe.items() if key not in IGNORED}
        groups.setdefault(f"{run.stage} {json.dumps(settings, sort_keys=True)}", []).append(run)
    return list(groups.values())


def groups_of(runs: Iterable[Model]) -> list[dict[str, Any]]:
    """Return stage, name, number of runs and settings of each group of `repetitions`.

    settings  values by dotted key that differ between the groups of a stage
    """
    rows = []
    groups = repetitions(runs)
    for stage in dict.fromkeys(group[0].stage for group in groups):
        stage_groups = [group for group in groups if group[0].stage == stage]
        settings = differing([{k: v for k, v in group[0].recipe.items() if k not in IGNORED} for group in stage_groups])
        rows += [
            {"stage": stage, "name": group_name([run.name for run in group]), "runs": len(group), "settings": differ}
            for group, differ in zip(stage_groups, settings, strict=True)
        ]
    return rows


def group_name(names: list[str]) -> str:
    """Return the name of a group of runs: their common name without the seed of a sweep, or else all names."""
    common = {re.sub(r"-seed-\d+", "", name) for name in names}
    return common.pop() if len(common) == 1 else ", ".join(names)
