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

from ruamel.yaml import YAML
from tpulm.core.bucket import remote

from newconfig.finetuning import Base, held_out_prompts, run_of
from newconfig.prompts import prompts_of
from newconfig.sample import HELD_OUT, LARGEST, Text
from newconfig.sizes import for_accelerator, small_models

BETWEEN, SHORTER = (",\n" + indent * " " for indent in (21, 13))  # prompts, a line each
ENOUGH = 200_000_000  # characters; the steps on CPUs read a fraction of it


def config_of(text: Text, paths: Sequence[str], accelerator: str | None) -> str:
    """Return the config in YAML. Raises UserError."""
    share, training = held_out(text)
    enough = ENOUGH if text.words else ENOUGH // 5  # without words, a vocabulary takes longer
    limit = 0 if accelerator else int(enough / text.characters * text.documents)
    characters = text.characters * training
    characters = min(characters, enough) if limit else characters
    template, values = for_accelerator(text, characters, accelerator) if accelerator else small_models(text, characters)
    masks, beginnings = prompts_of(text)
    values |= said_of(text, f"Language models of {place_of(paths).stem or 'text'}", share) | {
        "source": lines_of(text.source),
        "limit": f"{limit}   # of each split; enough for these steps" if 0 < limit < text.documents else "",
        "runs": ", whitespace: runs" if text.runs else "",
        "why": "by the size of the text" + ("" if text.words else "; unigram needs no spaces between words"),
        "masks": quoted(masks),
        "beginnings": f"[{BETWEEN.join(map(quoted, beginnings))}]",
    }
    return filled(template_named("config").replace("$models\n", template_named(template)), values)


def tuning_config_of(text: Text, base: Base, accelerator: str | None, run: str) -> str:
    """Return the config in YAML that finetunes a model on a text. Raises UserError if it does not fit."""
    share, training = held_out(text)
    values = run_of(base, text, text.documents * training, accelerator)
    text.notes += base.notes
    if text.empty:
        text.notes.append(
            f"of the rows that were read, {text.empty:,} have no prompt or no response; such rows are left out"
        )
    if "messages" in text.source and not base.instructed:
        text.notes.append(f"{base.name} answers no messages yet; it learns the form of the chat template from the rows")
    if repeated := len(text.sample) - len(set(text.sample)):
        text.notes.append(f"rows that repeat others: {repeated:,}; all copies of a row are in one split")
    values |= said_of(text, f"{base.name} tuned on {run}", share) | {
        "run": key_of(run),
        "keys": lines_of(base.keys, 4),
        "source": lines_of(text.source, 4),
        "prompts": f"[{SHORTER.join(map(quoted, held_out_prompts(text)))}]",
    }
    return filled(template_named("finetune"), values)


def held_out(text: Text) -> tuple[float, float]:
    """Return the share of each split without files, and the share of the text that is trained on; note a large one."""
    # At least some documents and records are held out, and no more than are evaluated in seconds.
    least = HELD_OUT / text.documents
    share = min(LARGEST, max(0.05, 10_000 / text.characters, least), max(2e6 / text.characters, least))
    share = float(f"{share:.2g}")
    splits = text.source.get("splits", text.source.get("files"))
    without_files = 3 - len(splits) if isinstance(splits, dict) else 2
    if without_files * share > 0.2:
        held = f"{without_files * share:.0%} of the documents for training"
        text.notes.append(f"{held} are held out, so that scores have enough of them; held_out sets the shares")
    return share, text.training * (1 - without_files * share)


def said_of(text: Text, title: str, share: float) -> dict[str, str]:
    """Return the values of a template that say what was found."""
    notes = "\n".join(line for note in text.notes for line in wrap(f"# {note}.", 118, subsequent_indent="# "))
    return {"found": text.found, "notes": notes, "title": quoted(title), "share": f"{share:g}"}


def template_named(name: str) -> str:
    """Return the text of a template beside this module."""
    return Path(__file__).with_name(f"{name}.template").read_text("utf-8")


def filled(template: str, values: Mapping) -> str:
    """Return a template with its values, without the keys that have none."""
    lines = Template(template).substitute(values).split("\n")
    lines = [line for line in lines if not re.search(r": (   # .*)?$", line)]  # a key without a value
    return "".join(f"{line}\n" for line, after in zip(lines, lines[1:], strict=False) if line or after)


def place_of(paths: Sequence[str]) -> Path:
    """Return the file or folder that a text is named after."""
    return Path(paths[0]).parent if len(paths) > 1 or glob.has_magic(paths[0]) else Path(paths[0])


def name_of(paths: Sequence[str]) -> str:
    """Return the name of the experiment on a text."""
    return re.sub("[^a-z0-9_-]+", "-", place_of(paths).stem.lower())[:64].strip("-_") or "text"


def lines_of(source: Mapping, indent: int = 2) -> str:
    """Return the keys that name a text or a model as lines of the config."""
    return "\n".join(f"{indent * ' '}{key}: {quoted(value)}" for key, value in source.items())


def seen_from(folder: Path, source: Mapping) -> dict:
    """Return the keys that name a text or a model, with its files as they are named in a folder."""

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {split: moved(files) for split, files in value.items()}
        if isinstance(value, list):
            return [moved(file) for file in value]
        if remote(value) or os.path.isabs(value):
            return value
        return os.path.relpath(os.path.join(glob.escape(os.getcwd()), value), glob.escape(os.path.realpath(folder)))

    local = "preset" if os.path.isdir(source.get("preset", "")) else "files"
    return {key: moved(value) if key == local else value for key, value in source.items()}


def key_of(name: str) -> str:
    """Return a name as a key in YAML: in quotes if it would be a number, a date, or a word such as null."""
    return name if isinstance(YAML(typ="safe", pure=True).load(name), str) else json.dumps(name)


def quoted(value: object) -> str:
    """Return a value as JSON, which is YAML, too; a word as it is."""
    plain = isinstance(value, str) and re.fullmatch("[a-z]+", value) and value not in ("true", "false", "null", "yes")
    return str(value) if plain else json.dumps(value, ensure_ascii=False)
