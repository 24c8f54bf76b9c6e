"""Recipes, the sections of runs in the config: groups of their keys, and functions that select and compare values."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

STAGES = ("mlm", "base", "finetune")
# Keys of a run on JAX that set how a step is computed, without determinism.
JAX_KEYS = ("mesh", "layout", "microbatches", "remat", "steps_per_execution")
# Keys that every training step takes from its run.
STEP_KEYS = ("batch_size", "optimizer", "precision", "seed")
# Keys that open a fetched base model.
FETCHED_KEYS = ("precision", "mesh", "layout", "host_device_count", "determinism")
# Keys of LoRA.
LORA_KEYS = ("rank", "alpha", "targets", "base_precision")


def pick(recipe: Mapping, *keys: str) -> dict:
    """Return the items of a recipe with these keys. Raises KeyError for a key that it lacks."""
    return {key: recipe[key] for key in keys}


def given_keys(recipe: Mapping, *keys: str) -> dict:
    """Return the items of a recipe with those of these keys that it has."""
    return {key: recipe[key] for key in keys if key in recipe}


def determinism_of(recipe: Mapping) -> str:
    """Return `determinism` of the recipe of a job, which only has it if it is not bytes."""
    return recipe.get("determinism", "bytes")


def differing(recipes: list[Mapping]) -> list[dict[str, Any]]:
    """Return for each recipe, in order, the values that are not the same in all recipes, by dotted key."""
    flat = [dict(flattened(recipe)) for recipe in recipes]
    keys = sorted({key for recipe in flat for key in recipe})
    varying = [key for key in keys if len({json.dumps(recipe.get(key)) for recipe in flat}) > 1]
    return [{key: recipe[key] for key in varying if key in recipe} for recipe in flat]


def flattened(recipe: Mapping, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by dotted key."""
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
