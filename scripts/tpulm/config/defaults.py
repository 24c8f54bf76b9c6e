"""Fill in the defaults of the schema."""

import copy
from typing import Any

FLOATS, INTEGERS = ("number", ["number", "null"]), ("integer", ["integer", "null"])


def resolve(schema: dict, root: dict) -> dict:
    """Return `schema` with what it refers to in `root` merged in; its own keywords win."""
    if "$ref" not in schema:
        return schema
    return root["$defs"][schema["$ref"].removeprefix("#/$defs/")] | schema


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
