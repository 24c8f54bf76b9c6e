"""Recipes: what the config says of a run, by its keys."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

STAGES = ("mlm", "base", "finetune")
# Keys of a run on JAX that say how a step is computed, beside determinism.
JAX_KEYS = ("mesh", "layout", "microbatches", "remat", "steps_per_execution")
# Keys that every training step takes from its run.
STEP_KEYS = ("batch_size", "optimizer", "precision", "seed")
# Keys that say how a base model that is fetched is opened.
FETCHED_KEYS = ("precision", "mesh", "layout", "host_device_count", "determinism")
# Keys that say which layers LoRA adapts, and how.
LORA_KEYS = ("rank", "alpha", "targets", "base_precision")


def pick(recipe: Mapping, *keys: str) -> dict:
    """Return these keys of a recipe."""
    return {key: recipe[key] for key in keys}


def given(recipe: Mapping, *keys: str) -> dict:
    """Return those of these keys that a recipe has."""
    return {key: recipe[key] for key in keys if key in recipe}


def differing(recipes: list[Mapping]) -> list[dict[str, Any]]:
    """Return of each recipe the values, by dotted key, that not all recipes have in common."""
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
