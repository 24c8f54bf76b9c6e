"""Write the reference pages of the documentation: every key of the config, every artifact, every target. `make docs`.

    python tools/reference.py FOLDER

Keys are read from schemas/config.schema.yaml, artifacts and targets from the rules as Snakemake reads them with configs
that together use every rule.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from snakemake.api import OutputSettings, SnakemakeApi
from snakemake.settings.types import Quietness

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from tpulm.compat.snakemake import workflow_of  # noqa: E402
from tpulm.config.reading import schema  # noqa: E402
from tpulm.config.schema import resolve  # noqa: E402
from tpulm.specs.artifacts import SPLITS  # noqa: E402
from tpulm.specs.messages import allowed_by  # noqa: E402

# Two configs that together use every rule: with a model that is trained, and with what is fetched or exists.
TRAINED = """
corpus: {source: python-docs}
tokenizer: {vocab_size: 400}
tfrecords: {sequence_length: 64}
mlm:
  runs:
    run: {backend: jax, model: {architecture: roberta, max_position_embeddings: 68}, steps: 1, checkpoint_every: 1,
          batch_size: 8, learning_rate: 1e-3}
"""
FETCHED = """
corpus: {source: python-docs}
tokenizer: {pretrained: FOLDER}
tfrecords:
  source: files
  sequence_length: 128
  files: {train: [FOLDER/train.tfrecord], validation: [FOLDER/validation.tfrecord], test: [FOLDER/test.tfrecord]}
mlm: {runs: {fetched: {pretrained: FOLDER, backend: jax}}}
base: {fetched: {preset: FOLDER}}
"""
ARCHIVE = "models-1"  # NAME-VERSION where the config sets neither
CONFIG = """\
# Config

Every key of `config.yaml`. NAME stands for a name that you choose. A key without a default and without *required* is
optional and not set by default. Paths are relative to the folder in which you start `snakemake`."""
ARTIFACTS = """\
# Artifacts

Every artifact below `results/`, with the rule that writes it, in the order of the stages. The script of a rule has the
same name, and its first lines describe each output: `train_tokenizer` of `rules/tokenizer.smk` runs
`scripts/tokenizer/train_tokenizer.py`.

Names in capitals vary. RUN, TASK and NAME are names in the config. STEP is a number of steps. COLLECTION is `corpus` or
`finetune-text`. RECORDS is `tfrecords` or a folder below `tokens/`. STAGE is `mlm`, `base` or `finetune`; CHAIN and
MODEL are STAGE/RUN, or a model on a task. PART and SHARD are numbers. FETCHED is the folder of a downloaded masked
model, CARD the folder of an artifact that has a card, PLANNED a run or a task, SEARCHED what is searched for in
training text, and PAIRS a set of pairs."""
TARGETS = """\
# Targets

Run `snakemake TARGET` with one of these targets, or with the path of any file below `results/`."""
TARGET = "Target: "  # how the docstring of a rule begins that users name
TRAINING = "every run that is trained"  # the keys that masked models, base models and finetuning share
FEW = 3  # keys that a mapping shares with the one that it is in; fewer are described again


def workflow_rules(folder: Path, config: str) -> list[Any]:
    """Return the rules of the workflow with a config, in the order in which the files of rules/ name them."""
    path = folder / "config.yaml"
    path.write_text(config.replace("FOLDER", str(folder)))
    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
        return list(workflow_of(api, ROOT / "Snakefile", [path], cores=1).rules)


def all_rules() -> list[Any]:
    """Return every rule once, file by file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split in SPLITS:
            (folder / f"{split}.tfrecord").touch()
        (folder / "config.json").write_text('{"model_type": "roberta"}')
        rules = [rule for config in (TRAINED, FETCHED) for rule in workflow_rules(folder, config)]
    files = list(dict.fromkeys(rule.snakefile for rule in rules))
    once = {rule.name: rule for rule in reversed(rules)}
    return sorted(once.values(), key=lambda rule: (files.index(rule.snakefile), rule.lineno))


def plain(path: str) -> str:
    """Return the path of an output with its wildcards as names in capitals, without what they match."""
    named = re.sub(r"\{(\w+)(,[^{}]*(\{[^{}]*\}[^{}]*)*)?\}", lambda found: found[1].upper(), path)
    return named.replace(ARCHIVE, "NAME-VERSION")


def folders(paths: list[str]) -> str:
    """Return paths of files as code, those of one folder together."""
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        by_folder.setdefault(folder, []).append(name)
    cells = []
    for folder, names in by_folder.items():
        own = ", ".join(f"`{name}`" for name in names)
        one = f"`{folder}/{names[0]}`" if len(names) == 1 else f"`{folder}/`: {own}"
        cells.append(one if folder else own)
    return "<br>".join(cells)


def artifacts(rules: list[Any]) -> Iterator[str]:
    """Yield the lines of the page of artifacts."""
    yield ARTIFACTS
    making = [rule for rule in rules if rule.output]
    for file, group in groupby(making, key=lambda rule: Path(rule.snakefile).name):
        about = re.match(r'"""(.*?)(\n\n|""")', (ROOT / "rules" / file).read_text(encoding="utf-8"), re.S)
        yield from ("", f"## {Path(file).stem}", "", cell(about and about[1]), "")
        yield from ("| artifacts | rule | what it does |", "| --- | --- | --- |")
        for rule in group:
            paths = dict.fromkeys(plain(str(path)).removeprefix("results/") for path in rule.output)
            yield f"| {folders(list(paths))} | `{rule.name}` | {cell(rule.docstring)} |"


def targets(rules: list[Any]) -> Iterator[str]:
    """Yield the lines of the page of targets."""
    yield from (TARGETS, "", "| target | what it does |", "| --- | --- |")
    for rule in sorted(rules, key=lambda rule: rule.name):
        if (rule.docstring or "").startswith(TARGET):
            yield f"| `snakemake {rule.name}` | {cell(rule.docstring.removeprefix(TARGET))} |"


def cell(text: str | None) -> str:
    """Return a text for a cell of a table, with what Markdown would read as markup escaped outside of code."""
    pieces = re.split(r"(`[^`]*`)", " ".join((text or "").split()))
    escaped = [re.sub(r"([*<\[\]])", r"\\\1", piece) if index % 2 == 0 else piece for index, piece in enumerate(pieces)]
    joined = "".join(escaped).replace("|", "\\|")
    return joined[:1].upper() + joined[1:] if re.match(r"\w+[ ,;]|\w+$", joined) else joined


def anchor(path: str) -> str:
    """Return the name that other pages link a mapping of the config by."""
    return f"config-{re.sub(r'[ ._[]', '-', path.lower().replace(']', ''))}"


def required_of(mapping: dict) -> dict[str, list[str]]:
    """Return the keys that a mapping of the schema requires, by when it does: "" is always."""
    found = {"": list(mapping.get("required", ()))}
    for rule in (mapping, *mapping.get("allOf", ())):
        if needed := rule.get("else", {}).get("required"):
            found[f" without `{rule['if']['required'][0]}`"] = list(needed)
    return {when: keys for when, keys in found.items() if keys}


# What a key that holds mappings has, by what follows it in their paths.
KINDS = {"": "a mapping", ".NAME": "mappings by name", "[N]": "a list of mappings"}


class Keys:
    """The page of keys: a section for each mapping, each of which is described where it is first used."""

    def __init__(self) -> None:
        self.root = schema()
        self.described: dict[str, str] = {}  # where a mapping is, by its content

    def mark(self, part: dict) -> str:
        """Return what tells two parts of the schema apart."""
        return json.dumps(resolve(part, self.root), sort_keys=True)

    def content(self, mapping: dict) -> str:
        """Return what tells the keys of two mappings apart."""
        return json.dumps(mapping["properties"], sort_keys=True)

    def page(self) -> Iterator[str]:
        """Yield the lines."""
        yield CONFIG
        training = {
            "description": "keys of masked models, base models and finetuning runs that are trained here",
            "properties": self.root["$defs"]["training"]["properties"],
        }
        tops = {key: part for key, part in self.root["properties"].items() if not self.inner(part)}
        yield from self.section("top level", {"properties": tops}, 2)
        for key, part in self.root["properties"].items():
            if key == "mlm":
                yield from self.section(TRAINING, training, 2)
            if key not in tops:
                yield from self.section(key, part, 2)

    def inner(self, part: dict) -> list[tuple[str, dict]]:
        """Return the mappings that a key holds, each with what follows the key in its path."""
        part = resolve(part, self.root)
        if part.get("properties"):
            return [("", part)]
        if part.get("items", {}).get("properties"):
            return [("[N]", part["items"])]
        below = part.get("additionalProperties")
        return [(".NAME", resolve(below, self.root))] if isinstance(below, dict) and self.inner(below) else []

    def section(self, path: str, part: dict, level: int, above: tuple[str, dict] = ("", {})) -> Iterator[str]:
        """Yield the section of a mapping, and those of the mappings in it.

        above  the path and the mapping that it is in, whose keys it may share
        """
        ((suffix, mapping),) = self.inner(part)
        properties = mapping["properties"]
        if "learning_rate" in properties and path != TRAINING:
            above = (TRAINING, self.root["$defs"]["training"])
        other = {key: self.mark(one) for key, one in above[1].get("properties", {}).items()}
        own = {key: one for key, one in properties.items() if other.get(key) != self.mark(one)}
        if len(properties) - len(own) < FEW:
            own = properties
        self.described.setdefault(self.content(mapping), anchor(path + suffix))
        title = path if path in (TRAINING, "top level") else f"`{path}{suffix}`"
        yield from ("", f"({anchor(path + suffix)})=", f"{'#' * min(level, 4)} {title}", "")
        if text := mapping.get("description"):
            yield from (f"{cell(text)}.", "")
        for rule in mapping.get("allOf", ()):
            if {"oneOf", "anyOf"} & set(rule) and "message" in rule:
                yield from (cell(rule["message"].format(where=f"`{path}{suffix}`", found="", missing="")), "")
        if len(own) < len(properties):
            shared = ", ".join(f"`{key}`" for key in properties if key not in own)
            yield from (f"As for [{above[0]}](#{anchor(above[0])}): {shared}.", "")
        for when, keys in required_of(mapping).items():
            yield from (f"Required{when}: {', '.join(f'`{key}`' for key in keys)}.", "")
        yield from ("| key | meaning | allowed | default |", "| --- | --- | --- | --- |")
        nested: list[tuple[str, dict]] = []
        for key in own:
            yield self.row(path + suffix, key, mapping, nested)
        for name, inner in nested:
            yield from self.section(name, inner, level + 1, (path + suffix, mapping))

    def row(self, path: str, key: str, mapping: dict, nested: list[tuple[str, dict]]) -> str:
        """Return the row of a key; a mapping that is not described yet is added to `nested`."""
        part = resolve(mapping["properties"][key], self.root)
        inside = self.inner(part)
        meaning, kinds = cell(part.get("description", "")), allowed_by(part).removesuffix(", not empty")
        if part.get("enum"):
            kinds = ", ".join(f"`{'null' if value is None else value}`" for value in part["enum"])
        if inside:
            name = key if path in (TRAINING, "top level") else f"{path}.{key}"
            content = self.content(inside[0][1])
            if content not in self.described:
                nested.append((name, part))
            where = self.described.setdefault(content, anchor(name + inside[0][0]))
            kinds = f"[{KINDS[inside[0][0]]}](#{where})"
        only = [
            f"`{other}: {value}`"
            for other, values in mapping.get("only_with", {}).get(key, {}).items()
            for value in values
        ]
        if only:
            meaning += f" (only with {' or '.join(only)})"
        default = "required" if any(key in keys for keys in required_of(mapping).values()) else ""
        if "default" in part and not inside and not default:
            default = f"`{json.dumps(part['default'], ensure_ascii=False)}`"
        return f"| `{key}` | {meaning} | {kinds} | {default} |"


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    rules = all_rules()
    for name, lines in {"config": Keys().page(), "artifacts": artifacts(rules), "targets": targets(rules)}.items():
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
