"""Error messages for the config: one sentence with the key, its value and what is allowed."""

from collections.abc import Iterable
from typing import Any

import jsonschema

from tpulm.core.errors import describe, suggestion

TYPES = {
    "object": "a mapping", "array": "a list", "string": "text", "integer": "a whole number",
    "number": "a number", "boolean": "true or false", "null": "null",
}  # fmt: skip
LIMITS = {
    "minimum": "{} or more", "exclusiveMinimum": "more than {}", "maximum": "at most {}",
    "exclusiveMaximum": "less than {}", "multipleOf": "a multiple of {}", "minLength": "not empty",
    "maxLength": "at most {} characters", "minItems": "at least {} entries", "maxItems": "at most {} entries",
    "uniqueItems": "without duplicates",
}  # fmt: skip
# Until 0.4.0: new names of keys that 0.2.0 or a version before it had.
RENAMED = {
    "accumulate": "microbatches", "changes": "alternatives", "clip_norm": "global_clipnorm",
    "cpu_devices": "host_device_count", "lora": "finetune", "mask": "mask_replace_prob", "memory_gb": "mem_gb",
    "minutes": "runtime", "random": "random_replace_prob", "rate": "mlm_probability", "rematerialise": "remat",
    "steps_per_dispatch": "steps_per_execution", "tuning": "finetune.text", "unit": "sample_by",
}  # fmt: skip


def dotted(path: Iterable[object]) -> str:
    """Return a path of keys and indices as text, such as mlm.runs.tiny.steps or prompts.generate[0]."""
    text = ""
    for key in path:
        name = str(key)
        name = name if name.isprintable() and len(name) <= 80 else describe(name)
        text += f"[{key}]" if isinstance(key, int) else f".{name}"
    return text.lstrip(".") or "the config"


def sentence(error: jsonschema.ValidationError) -> str:
    """Return a schema error as one sentence: the key, its value, what is allowed."""
    where, found, schema = dotted(error.absolute_path), describe(error.instance), error.schema
    if "message" in schema:
        return schema["message"].format(where=where, found=found, missing=missing_key(error))
    if error.validator == "only_with":
        return f"{where} {error.message}"
    if message := removed(where, error):
        return message
    if error.validator == "additionalProperties":
        return unknown_key(where, error.instance, sorted(schema.get("properties", {})))
    if error.validator == "required":
        return f"{where} lacks the key {next(key for key in error.validator_value if key not in error.instance)}."
    if error.validator == "dependentRequired":
        key, needed = next(
            (key, required)
            for key, required_keys in error.validator_value.items()
            for required in required_keys
            if key in error.instance and required not in error.instance
        )
        path = list(error.absolute_path)
        return f"{dotted([*path, needed])} is missing; {dotted([*path, key])} needs it."
    return f"{where} is {found_at_length(error)}; allowed: {allowed(error)}."


def removed(where: str, error: jsonschema.ValidationError) -> str:
    """Return the sentence for a key or a value that version 0.3.0 removed; "" for another one. Until 0.4.0."""
    reasons = error.schema.get("removed", {})
    if error.validator == "enum":
        reason = reasons.get(error.instance) if isinstance(error.instance, str) else None
        return f"{where} is {describe(error.instance)}, which version 0.3.0 removed: {reason}." if reason else ""
    if error.validator == "additionalProperties":
        key = next((key for key in error.instance if key in reasons), None)
        return f"{dotted([*error.absolute_path, key])} was removed in version 0.3.0: {reasons[key]}." if key else ""
    return ""


def missing_key(error: jsonschema.ValidationError) -> str:
    """Return the first key that the schema of an error requires and its mapping lacks; "" without one."""
    required = error.schema.get("required", [])
    absent = [key for key in required if isinstance(error.instance, dict) and key not in error.instance]
    return dotted([*error.absolute_path, absent[0]]) if absent else ""


def unknown_key(where: str, keys: Iterable[str], known: list[str]) -> str:
    """Return the sentence for the first unknown key of a mapping, a renamed one before others."""
    unknown = [key for key in keys if key not in known]
    renamed = [key for key in unknown if RENAMED.get(key, "").split(".")[0] in known]
    if renamed:
        return f"{where} has no key {describe(renamed[0])}; use {RENAMED[renamed[0]]}."
    return f"{where} has no key {describe(unknown[0])}{suggestion(unknown[0], known, 'known')}"


def found_at_length(error: jsonschema.ValidationError) -> str:
    """Return the value of an error in words, a list by its length, a mapping by its keys."""
    if isinstance(error.instance, list):
        return f"a list of {len(error.instance)}"
    if isinstance(error.instance, dict) and error.instance:
        return f"a mapping of {describe(', '.join(map(str, error.instance)))}"
    return describe(error.instance) if error.instance != "" else "empty text"


def allowed(error: jsonschema.ValidationError) -> str:
    """Return in words what the schema of an error allows."""
    if error.validator == "enum" and "allowed" not in error.schema:
        return ", ".join(map(str, error.validator_value))
    return allowed_by(error.schema)


def allowed_by(schema: dict[str, Any]) -> str:
    """Return in words which values a part of the schema allows."""
    if "allowed" in schema:
        return schema["allowed"]
    types = schema.get("type", [])
    words = [TYPES[name] for name in ([types] if isinstance(types, str) else types)]
    limits = LIMITS | ({"minItems": "not empty"} if schema.get("minItems") == 1 else {})
    if "minItems" in schema and schema["minItems"] == schema.get("maxItems"):
        limits = limits | {"minItems": "exactly {} entries", "maxItems": ""}
    bounds = [text.format(schema[name]) for name, text in limits.items() if text and name in schema]
    return ", ".join([*([" or ".join(words)] if words else []), *bounds])
