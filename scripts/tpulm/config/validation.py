"""Check a config against its schema; the first error ends in one sentence."""

from collections.abc import Iterator

import jsonschema
from jsonschema.protocols import Validator

from tpulm.config.messages import describe, dotted, sentence
from tpulm.core.errors import UserError

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
                owners = " and ".join(f"{other}: {owner}" for owner in values)
                problem = f"is given with {other}: {value}; it belongs to {owners}."
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
