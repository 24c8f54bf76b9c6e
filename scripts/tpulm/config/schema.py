"""The config against its schema: the first error in one sentence, then the defaults."""

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
    """Yield an error for each key that is given although another key of its mapping has a value that does not use it.

    rules  by key: the other key, and the values with which the key is used
    """
    if not isinstance(instance, dict):
        return
    for key, rule in rules.items():
        for other, values in rule.items():
            part = schema["properties"][other]
            value = instance.get(other, part.get("default"))
            # What is no value of the other key has an error of its own.
            if key in instance and value in part["enum"] and value not in values:
                owners = " or ".join(f"{other}: {owner}" for owner in values)
                problem = f"is given with {other}: {value}; it is allowed with {owners}."
                yield jsonschema.ValidationError(problem, path=[key])


ConfigValidator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"only_with": only_with})


def validate(config: dict, schema: dict) -> None:
    """Check `config`, as it was given, against `schema`. Raises UserError for the first error in the order of keys."""
    check_plain(config)
    errors = sorted(
        ConfigValidator(schema).iter_errors(config),
        key=lambda error: ([str(key) for key in error.absolute_path], error.validator != "additionalProperties"),
    )
    if errors:
        raise UserError(sentence(errors[0]))


def check_plain(value: object, path: tuple = ()) -> None:
    """Check that a config is made of what JSON knows, with numbers that 64 bits hold. Raises UserError.

    YAML knows more: keys that are no text, dates, binary data, infinity, a list that holds itself.
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
        if not abs(value) < 2**63:  # also where it is no number
            raise UserError(f"{dotted(path)} is {describe(value)}; allowed: a finite number of 64 bits.")
    elif value is not None and not isinstance(value, str):
        raise UserError(
            f"{dotted(path)} is of the type {type(value).__name__}; allowed: text, a number, true, false or null."
        )


FLOATS, INTEGERS = ("number", ["number", "null"]), ("integer", ["integer", "null"])


def resolve(schema: dict, root: dict) -> dict:
    """Return `schema` with what it refers to in `root` merged in; its own keywords win."""
    if "$ref" not in schema:
        return schema
    return root["$defs"][schema["$ref"].removeprefix("#/$defs/")] | schema


def typed(schema: dict, value: Any, root: dict) -> Any:
    """Return `value` with text that reads as a number as one, where the schema allows no text.

    Snakemake reads --config and the config of a module by YAML 1.1, in which 1e-4 is text.
    """
    schema = resolve(schema, root)
    choices = [schema, *(resolve(part, root) for key in ("anyOf", "oneOf") for part in schema.get(key, []))]
    if isinstance(value, dict):
        properties = {key: part for choice in choices for key, part in choice.get("properties", {}).items()}
        others = next((part for one in choices if isinstance(part := one.get("additionalProperties"), dict)), {})
        return {key: typed(properties.get(key, others), item, root) for key, item in value.items()}
    if isinstance(value, list):
        items: dict = next((choice["items"] for choice in choices if "items" in choice), {})
        return [typed(items, item, root) for item in value]
    if isinstance(value, str) and not any(allows_text(choice) for choice in choices):
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(value) if math.isfinite(kind(value)) else value
    return value


def allows_text(schema: dict) -> bool:
    """Return whether text is valid by a schema, as far as its own type says."""
    return "string" in schema.get("type", ()) or any(isinstance(one, str) for one in schema.get("enum", ()))


def fill(schema: dict, value: Any, root: dict) -> Any:
    """Return `value`, which is valid by `schema`, with the defaults of absent keys; mappings are changed in place.

    Numbers get the type that the schema names: 1 and 1.0 mean the same, and must not make anything stale.
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
