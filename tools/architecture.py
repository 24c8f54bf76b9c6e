"""Print the code of each artifact and each key of the config, as two Markdown tables. `make architecture`.

An artifact's rows are read from the outputs of the rules: the rule has the name of its script. A key's rows are the
modules, scripts and rules that name it in quotes.
"""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from tpulm.config.reading import schema  # noqa: E402
from tpulm.config.schema import resolve  # noqa: E402

RULE = re.compile(r"^ *(?:use rule \w+ as|rule) (\w+)(?: with)?:\n(.*?)(?=^ *(?:use )?rule |\Z)", re.M | re.S)
OUTPUT = re.compile(r"^( +)output:\n((?:\1 +[^\n]*\n)+)", re.M)


def artifacts() -> Iterator[tuple[str, str, str]]:
    """Yield of each rule with outputs what it makes, as its file writes it, its name, and its file."""
    for path in sorted((ROOT / "rules").glob("*.smk")):
        for rule, body in RULE.findall(path.read_text(encoding="utf-8")):
            for _, made in OUTPUT.findall(body):
                yield " ".join(made.split()).rstrip(","), rule, f"rules/{path.name}"


def keys(part: dict, above: str = "") -> Iterator[str]:
    """Yield every key below a part of the schema; NAME stands for a name that the user gives."""
    part = resolve(part, schema())
    for choice in (*part.get("anyOf", ()), *part.get("oneOf", ())):
        yield from keys(choice, above)
    for name, inner in part.get("properties", {}).items():
        yield f"{above}{name}"
        yield from keys(inner, f"{above}{name}.")
    if isinstance(part.get("additionalProperties"), dict):
        yield from keys(part["additionalProperties"], f"{above}NAME.")


def naming(key: str) -> list[str]:
    """Return the files that name a key, by its last part; of one that is passed on unnamed, those of its mapping."""
    above, _, last = key.rpartition(".")
    quoted = re.compile(rf'["\']{re.escape(last)}["\']')
    files = [*(ROOT / "scripts").rglob("*.py"), *(ROOT / "rules").glob("*.smk")]
    found = sorted(str(file.relative_to(ROOT)) for file in files if quoted.search(file.read_text(encoding="utf-8")))
    return found or naming(above)


def main() -> None:
    """Print the tables."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    print("| artifact | rule and script | in |\n| --- | --- | --- |")
    for made, rule, file in artifacts():
        print(f"| `{made}` | `{rule}` | `{file}` |")
    print("\n| key | named in |\n| --- | --- |")
    for key in dict.fromkeys(keys(schema())):
        print(f"| `{key}` | {', '.join(f'`{file}`' for file in naming(key))} |")


if __name__ == "__main__":
    main()
