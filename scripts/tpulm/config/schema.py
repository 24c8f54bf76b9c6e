"""Validate a config by its schema, convert its numbers, and fill in its defaults."""

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any

import jsonschema
from jsonschema.protocols import Validator

from tpulm.core.errors import UserError, describe
from tpulm.specs.messages import dotted, sentence

DEEPEST = 20  # levels of a config


def only_with(
    validator: Validator, rules: dict, instance: object, schema: dict
) -> Iterator[jsonschema.ValidationError]:
    """Yield an error for each key that is present although the value of another key excludes it.

    rules  by key: the other key, and the values that allow the key
    """
    if not isinstance(instance, dict):
        return
    for key, rule in rules.items():
        for other_key, values in rule.items():
            part = schema["properties"][other_key]
            value = instance.get(other_key, part.get("default"))
            # An invalid value of the other key has an error of its own.
            if key in instance and value in part["enum"] and value not in values:
                owners = " or ".join(f"{other_key}: {owner}" for owner in values)
                problem = f"is given with {other_key}: {value}; it is allowed with {owners}."
                yield jsonschema.ValidationError(problem, path=[key])


ConfigValidator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"only_with": only_with})


def validate(config: dict, schema: dict) -> None:
    """Check a config without defaults by `schema`. Raises UserError for the first error in the order of keys."""
    check_plain(config)
    errors = sorted(
        ConfigValidator(schema).iter_errors(config),
        key=lambda error: ([str(key) for key in error.absolute_path], error.validator != "additionalProperties"),
    )
    if errors:
        raise UserError(sentence(errors[0]))


def check_plain(value: object, path: tuple = ()) -> None:
    """Check that a config has only types of JSON, and numbers that 64 bits hold. Raises UserError.

    YAML has others: keys that are not text, dates, binary data, infinity, a list that holds itself.
    """
    if len(path) > DEEPEST:
        raise UserError(f"{dotted(path[:3])} is nested deeper than {DEEPEST} levels.")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UserError(f"{dotted(path)} has the key {describe(key)}; allowed: text, in quotes if necessary.")
            check_plain(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            check_plain(inner, (*path, index))
    elif isinstance(value, int | float):
        if not abs(value) < 2**63:  # true for NaN, too
            raise UserError(f"{dotted(path)} is {describe(value)}; allowed: a finite number of 64 bits.")
    elif value is not None and not isinstance(value, str):
        raise UserError(
            f"{dotted(path)} is of the type {type(value).__name__}; allowed: text, a number, true, false or null."
        )


FLOATS, INTEGERS = ("number", ["number", "null"]), ("integer", ["integer", "null"])


def resolve(schema: dict, root: dict) -> dict:
    """Return `schema` merged over the definition in `root` that it refers to."""
    if "$ref" not in schema:
        return schema
    return root["$defs"][schema["$ref"].removeprefix("#/$defs/")] | schema


def typed(schema: dict, value: Any, root: dict) -> Any:
    """Return `value` with text converted to numbers where it reads as one and the schema allows no text.

    Snakemake reads --config and the config of a module by YAML 1.1, in which 1e-4 is text.
    """
    schema = resolve(schema, root)
    choices = [schema, *(resolve(part, root) for key in ("anyOf", "oneOf") for part in schema.get(key, []))]
    if isinstance(value, dict):
        properties = {key: part for choice in choices for key, part in choice.get("properties", {}).items()}
        additional = next(
            (part for choice in choices if isinstance(part := choice.get("additionalProperties"), dict)), {}
        )
        return {key: typed(properties.get(key, additional), item, root) for key, item in value.items()}
    if isinstance(value, list):
        items: dict = next((choice["items"] for choice in choices if "items" in choice), {})
        return [typed(items, item, root) for item in value]
    if isinstance(value, str) and not any(allows_text(choice) for choice in choices):
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(value) if math.isfinite(kind(value)) else value
    return value


def allows_text(schema: dict) -> bool:
    """Return whether the type or the values of a schema allow text."""
    return "string" in schema.get("type", ()) or any(isinstance(value, str) for value in schema.get("enum", ()))


def fill(schema: dict, value: Any, root: dict) -> Any:
    """Return a valid `value` with the defaults of absent keys; mappings are changed in place.

    Numbers get the type of the schema, so that writing 1 for 1.0 makes nothing stale.
    """
    schema = resolve(schema, root)
    if isinstance(value, dict):
        properties = {key: resolve(part, root) for key, part in schema.get("properties", {}).items()}
        for key, part in properties.items():
            if "default" in part:
                value.setdefault(key, copy.deepcopy(part["default"]))
        for key, defaults in schema.get("default_by", {}).items():  # defaults that depend on the value of another key
            for name, default in defaults[value[key]].items():
                value.setdefault(name, default)
        for key in value:
            inner = properties.get(key, schema.get("additionalProperties"))
            if isinstance(inner, dict):
                value[key] = fill(inner, value[key], root)
    if schema.get("type") in FLOATS and isinstance(value, int):
        return float(value)
    if schema.get("type") in INTEGERS and isinstance(value, float):
        return int(value)
    return value
