"""Convert the records of 0.2.0 to the ledger, once: entries of jobs, receipts of publishing, earlier runs.

Until 0.4.0. The bytes of inputs, modules and packages stay unknown, and entries of jobs if results are in a bucket.
"""

import contextlib
import json
from pathlib import Path

from tpulm.core import bucket, ledger

ENDING = ".jobs.jsonl"
RECEIPTS = Path(".snakemake") / "published"


def take_over(results: str) -> None:
    """Write records of 0.2.0 into the ledger of results, a folder or a URL, if it has none."""
    name = ledger.name_here(f"{results}/").rstrip("/")
    here = Path(ledger.COPIES, results.removeprefix(bucket.SCHEME)) if bucket.remote(results) else Path(results)
    place = here / "jobs"
    if place.is_dir():
        return
    if bucket.remote(results):
        if bucket.sizes(f"{results}/jobs"):
            return
        bucket.copy(f"{results}/history", here / "history")
    logs = here.with_name("logs")
    for old in sorted(logs.rglob(f"*{ENDING}")):
        lines = [json.dumps(converted(line)) + "\n" for line in ledger.read_record(old)]
        new = place / old.relative_to(logs).with_name(old.name.removesuffix(ENDING) + ".jsonl")
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text("".join(lines))
    for receipt in (RECEIPTS / name).rglob("*.json"):
        take_note(place / receipt.relative_to(RECEIPTS / name).with_suffix(".jsonl"), "receipt", receipt)
    history = here / "history"
    for run in [*history.rglob("[!.]*.json"), *history.rglob(".*.json")]:  # a hidden one is a copy
        take_note(place / run.relative_to(here).with_name(f"{run.stem.lstrip('.')}.jsonl"), "kept_run", run)


def converted(line: dict) -> dict:
    """Return a line of a record of 0.2.0 in the form of the ledger."""
    if line["event"] != "start":
        return line
    code = [path for path in line["inputs"] if {"scripts", "envs"} & {*Path(path).parts[:-1]}]
    inputs = dict.fromkeys(ledger.name_here(path) for path in line["inputs"] if path not in code)
    scripts = [path for path in code if "scripts" in Path(path).parts and "tpulm" not in Path(path).parts]
    added = {"script": scripts[0] if scripts else "", "code": {}, "packages": {}, "inputs": inputs}
    return line | added


def take_note(record: Path, name: str, file: Path) -> None:
    """Add the content of a file, a receipt or earlier runs, to a record as notes, if it has none of this name."""
    with contextlib.suppress(OSError, ValueError):  # an unreadable file is left out
        if not ledger.notes_of(record, name):
            content = json.loads(file.read_text(encoding="utf-8"))
            for value in content if isinstance(content, list) else [content]:
                ledger.append(record, {"event": "note", name: value})
