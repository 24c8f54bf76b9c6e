"""Write a config."""

import glob
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from textwrap import wrap
from typing import Any

from tpulm.core.bucket import remote

from newconfig.prompts import prompts_of
from newconfig.sample import HELD_OUT, LARGEST, Text
from newconfig.sizes import for_accelerator, small_models

BETWEEN = ",\n" + 21 * " "  # prompts, a line each
ENOUGH = 200_000_000  # characters; the steps on CPUs read a fraction of it


def config_of(text: Text, paths: Sequence[str], accelerator: str | None) -> str:
    """Return the config in YAML. Raises UserError."""
    # At least some documents and records are held out, and no more than are evaluated in seconds.
    least = HELD_OUT / text.documents
    share = min(LARGEST, max(0.05, 10_000 / text.characters, least), max(2e6 / text.characters, least))
    share = float(f"{share:.2g}")
    enough = ENOUGH if text.words else ENOUGH // 5  # without words, a vocabulary takes longer
    limit = 0 if accelerator else int(enough / text.characters * text.documents)
    splits = text.source.get("splits", text.source.get("files"))
    without_files = 3 - len(splits) if isinstance(splits, dict) else 2
    characters = text.characters * text.training * (1 - without_files * share)
    characters = min(characters, enough) if limit else characters
    template, values = for_accelerator(text, characters, accelerator) if accelerator else small_models(text, characters)
    masks, beginnings = prompts_of(text)
    values |= {
        "found": text.found,
        "notes": "\n".join(line for note in text.notes for line in wrap(f"# {note}.", 118, subsequent_indent="# ")),
        "title": quoted(f"Language models of {place_of(paths).stem or 'text'}"),
        "source": lines_of(text.source),
        "share": f"{share:g}",
        "limit": f"{limit}   # of each split; enough for these steps" if 0 < limit < text.documents else "",
        "runs": ", whitespace: runs" if text.runs else "",
        "why": "by the size of the text" + ("" if text.words else "; unigram needs no spaces between words"),
        "masks": quoted(masks),
        "beginnings": f"[{BETWEEN.join(map(quoted, beginnings))}]",
    }
    config, models = (Path(__file__).with_name(f"{name}.template").read_text("utf-8") for name in ("config", template))
    lines = Template(config.replace("$models\n", models)).substitute(values).split("\n")
    lines = [line for line in lines if not line.endswith(": ")]  # a key without a value
    return "".join(f"{line}\n" for line, after in zip(lines, lines[1:], strict=False) if line or after)


def place_of(paths: Sequence[str]) -> Path:
    """Return the file or folder that a text is named after."""
    return Path(paths[0]).parent if len(paths) > 1 or glob.has_magic(paths[0]) else Path(paths[0])


def name_of(paths: Sequence[str]) -> str:
    """Return the name of the experiment on a text."""
    return re.sub("[^a-z0-9_-]+", "-", place_of(paths).stem.lower())[:64].strip("-_") or "text"


def lines_of(source: Mapping) -> str:
    """Return the keys that name a text as lines of the config."""
    return "\n".join(f"  {key}: {quoted(value)}" for key, value in source.items())


def seen_from(folder: Path, source: Mapping) -> dict:
    """Return the keys that name a text, with its files as they are named in a folder."""

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {split: moved(files) for split, files in value.items()}
        if isinstance(value, list):
            return [moved(file) for file in value]
        if remote(value) or os.path.isabs(value):
            return value
        return os.path.relpath(os.path.join(glob.escape(os.getcwd()), value), glob.escape(os.path.realpath(folder)))

    return {key: moved(value) if key == "files" else value for key, value in source.items()}


def quoted(value: object) -> str:
    """Return a value as JSON, which is YAML, too; a word as it is."""
    plain = isinstance(value, str) and re.fullmatch("[a-z]+", value) and value not in ("true", "false", "null", "yes")
    return str(value) if plain else json.dumps(value, ensure_ascii=False)
