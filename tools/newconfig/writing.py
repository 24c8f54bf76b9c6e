"""Write a config."""

import glob
import json
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from textwrap import wrap

from newconfig.prompts import prompts_of
from newconfig.sample import HELD_OUT, LARGEST, Text
from newconfig.sizes import for_accelerator, small_models

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
    named = Path(paths[0]).parent if len(paths) > 1 or glob.has_magic(paths[0]) else Path(paths[0])
    name = re.sub("[^a-z0-9_-]+", "-", named.stem.lower())[:64].strip("-_") or "text"
    name = f"{name}-text" if name in ("results", "logs") else name
    values |= {
        "found": text.found,
        "notes": "\n".join(line for note in text.notes for line in wrap(f"# {note}.", 118, subsequent_indent="# ")),
        "title": quoted(f"Language models of {named.stem or 'text'}"),
        "experiment": quoted(name),
        "source": "\n".join(f"  {key}: {quoted(value)}" for key, value in text.source.items()),
        "share": f"{share:g}",
        "limit": f"{limit}   # of each split; enough for these steps" if 0 < limit < text.documents else "",
        "runs": ", whitespace: runs" if text.runs else "",
        "why": "by the size of the text" + ("" if text.words else "; unigram needs no spaces between words"),
        "masks": quoted(masks),
        "beginnings": quoted(beginnings),
    }
    config, models = (Path(__file__).with_name(f"{name}.template").read_text("utf-8") for name in ("config", template))
    lines = Template(config.replace("$models\n", models)).substitute(values).split("\n")
    lines = [line for line in lines if not line.endswith(": ")]  # a key without a value
    return "".join(f"{line}\n" for line, after in zip(lines, lines[1:], strict=False) if line or after)


def quoted(value: object) -> str:
    """Return a value as JSON, which is YAML, too; a word as it is."""
    plain = isinstance(value, str) and re.fullmatch("[a-z]+", value) and value not in ("true", "false", "null", "yes")
    return str(value) if plain else json.dumps(value, ensure_ascii=False)
