"""Print where each artifact and each key of the config has its code, as two Markdown tables. `make architecture`.

Artifacts and their rules are those of reference.py; a script has the name of its rule. A key's rows are the modules,
scripts and rules that name it in quotes.
"""

import argparse
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from reference import all_rules, artifacts  # noqa: E402
from tpulm.config.reading import schema  # noqa: E402
from tpulm.config.schema import resolve  # noqa: E402


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
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    print(*artifacts(all_rules()), sep="\n")
    print("\n| key | named in |\n| --- | --- |")
    for key in dict.fromkeys(keys(schema())):
        print(f"| `{key}` | {', '.join(f'`{file}`' for file in naming(key))} |")


if __name__ == "__main__":
    main()
