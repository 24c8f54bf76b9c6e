"""The sources of a text, or of a set of sentence pairs: files or a dataset, divided into a part for each job.

Snakemake needs the parts when it reads the Snakefile: they follow from names and sizes of files only.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpulm.core.errors import UserError
from tpulm.core.user_files import each_once, matching_files, size_of
from tpulm.specs.artifacts import SPLITS
from tpulm.specs.texts import has_responses, sources_of

FORMATS = {".txt": "text", ".jsonl": "jsonl", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
ALLOWED = ".txt, .jsonl, .json, .csv or .parquet, optionally with .gz"
# Bytes of a part, about. Small files share a part, and a large file of lines is read in pieces. Parts of a very large
# source are larger by a power of two, so that there are at most MOST_PARTS.
PART_BYTES = 32 << 20
MOST_PARTS = 2048
# A text of more parts has a file for each part in each split; others have one file for each split.
WHOLE_PARTS = 64


@dataclass(frozen=True)
class Part:
    """The part of a text that one job reads."""

    split: str  # the split that the source names; documents of train may be held out for the others
    files: tuple[str, ...] = ()
    piece: tuple[int, int] = (0, 1)  # which piece of a large file or a dataset, of how many
    source: str = ""  # name of the source where a text has several


def format_of(path: str) -> str:
    """Return the format of a file by its extension; "" if it is not known."""
    return FORMATS.get(Path(path.lower().removesuffix(".gz")).suffix, "")


def gzipped(path: str) -> bool:
    """Return whether a file is compressed by gzip, by its name."""
    return path.lower().endswith(".gz")


def parts_of(where: str, text: dict) -> list[Part]:
    """Return the parts of a text in the order of their documents. The documents are the same for any partition.

    where  config key of the text, for messages. Raises UserError for a glob without files or with other files.
    """
    sources = sources_of(where, text).items()
    return [replace(part, source=name) for name, (key, recipe) in sources for part in parts_of_source(key, recipe)]


def divided(text: Mapping, parts: Sequence[Part]) -> bool:
    """Return whether each part of a text has its own files for the documents of each split.

    One job cannot write a very large text. With max_documents, it can, and only one job can count the documents.
    """
    return len(parts) > WHOLE_PARTS and text["max_documents"] is None


def split_files(collection: str, split: str, text: Mapping, parts: Sequence[Part], source: str = "") -> list[str]:
    """Return the files of a split in order: one, or those of all parts that may have its documents.

    source  the only one whose documents they have; by default all
    """
    if not divided(text, parts):
        return [f"<results>/{collection}/{f'sources/{source}/' if source else ''}{split}.parquet"]
    named = split if split in {part.split for part in parts} else "train"
    numbers = [number for number, part in enumerate(parts) if part.split == named and source in ("", part.source)]
    return [f"<results>/{collection}/{split}/{number:05d}.parquet" for number in numbers]


def part_files(wildcards: Any, parts: Mapping[str, list[Part]], suffix: str) -> list[str]:
    """Return the files of the parts of a text with this suffix, in order; parts by collection.

    wildcards  collection; source, if only its parts are asked for
    """
    folder, source = f"<results>/{wildcards.collection}/parts", wildcards.get("source")
    return [
        f"{folder}/{number:05d}{suffix}"
        for number, part in enumerate(parts[wildcards.collection])
        if source in (None, part.source)
    ]


def parts_of_source(where: str, recipe: Mapping) -> list[Part]:
    """Return the parts of one source of a text, as `parts_of` does."""
    files = source_files(where, recipe)
    if recipe["source"] == "files":
        most = part_bytes(sum(size_of(file) for named in files.values() for file in named))
        return [
            part for split in SPLITS for part in parts_of_files(split, files.get(split, []), recipe["sample_by"], most)
        ]
    named = [split for split in SPLITS if split in recipe["splits"]] if recipe["source"] == "hub" else ["train"]
    dataset = tuple(files.get("dataset", []))
    return [Part(split, dataset, (number, len(named))) for number, split in enumerate(named)]


def source_files(where: str, recipe: Mapping) -> dict[str, list[str]]:
    """Return the local files of a source by split, sorted. Raises UserError for a glob without files."""
    if recipe["source"] == "hub" and os.path.isdir(recipe["dataset"]):
        return {"dataset": sorted(str(path) for path in Path(recipe["dataset"]).rglob("*") if path.is_file())}
    if recipe["source"] != "files":
        return {}
    globs = recipe["files"]
    globs = {"train": globs} if isinstance(globs, list) else globs
    files = {
        split: each_once(path for pattern in patterns for path in expand(where, pattern))
        for split, patterns in globs.items()
    }
    plain = [path for paths in files.values() for path in paths if format_of(path) == "text"]
    if not plain and recipe.get("sample_by", "line") != "line":
        raise UserError(
            f"{where}.sample_by is {recipe['sample_by']}, which only .txt files have; allowed: line, or no sample_by."
        )
    for key in ("template", "messages"):
        if plain and key in recipe:
            raise UserError(
                f"{where}.{key}: {plain[0]} is plain text without fields; allowed: files of the other formats."
            )
    return files


def task_files(where: str, recipe: Mapping) -> dict[str, list[str]]:
    """Return the local files of a task by split. Raises UserError as `source_files` does, and for plain text."""
    files = source_files(where, recipe)
    plain = [path for split in SPLITS for path in files.get(split, []) if format_of(path) == "text"]
    if plain:
        raise UserError(f"{where}.files: {plain[0]} is plain text without fields; allowed: files of the other formats.")
    return files


def benchmark_files(where: str, text: Mapping) -> list[str]:
    """Return the local files whose n-grams training documents must not have, sorted, without repeats."""
    globs = text["decontaminate"]["files"]
    return each_once(path for pattern in globs for path in expand(f"{where}.decontaminate", pattern))


def expand(where: str, pattern: str) -> list[str]:
    """Return the files that `matching_files` finds for a text. Raises UserError as it does, and for another format."""
    paths = matching_files(f"{where}.files", pattern)
    for path in sorted(paths):
        if not format_of(path):
            raise UserError(f"{where}.files: {path} has an unknown extension; allowed: {ALLOWED}.")
    return paths


def part_bytes(total: int) -> int:
    """Return the bytes of a part of a source of `total` bytes."""
    size = PART_BYTES
    while total > size * MOST_PARTS:
        size *= 2
    return size


def parts_of_files(split: str, files: Iterable[str], sample_by: str, most: int) -> Iterator[Part]:
    """Yield the parts of the files of a split, in their order; each of `most` bytes, about."""
    small: list[str] = []
    filled = 0
    for file in files:
        size = size_of(file)
        pieces = -(-size // most) if divisible(file, sample_by) else 1
        if small and (pieces > 1 or filled + size > most):
            yield Part(split, tuple(small))
            small, filled = [], 0
        if pieces > 1:
            yield from (Part(split, (file,), (number, pieces)) for number in range(pieces))
        else:
            small.append(file)
            filled += size
    if small:
        yield Part(split, tuple(small))


def memory_of(part: Part) -> int:
    """Return the MB of memory to request for reading a part, from the size of files that are read whole."""
    whole = [size_of(file) for file in part.files if format_of(file) == "json"]
    piece = size_of(part.files[0]) // part.piece[1] if part.piece[1] > 1 and part.files else 0
    return max(4000, 10 * max(whole, default=0) // 10**6, 10 * piece // 10**6)


def divisible(file: str, sample_by: str) -> bool:
    """Return whether a file can be read in pieces: documents end at line ends, and it is not compressed."""
    kind = format_of(file)
    return not gzipped(file) and (kind == "jsonl" or (kind == "text" and sample_by != "document"))


def read_part_recipe(where: str, text: dict, part: Part) -> dict:
    """Return the recipe of the rule read_part for a part."""
    key, recipe = sources_of(where, text)[part.source]
    forms = ("template", "response"), ("messages",)
    form = next((keys for keys in forms if keys[0] in recipe), ("column",))
    keys = {"files": ("sample_by", *form), "hub": ("dataset", "name", "revision", *form)}
    settings = {key: recipe[key] for key in keys.get(recipe["source"], ()) if key in recipe}
    settings |= {key: text[key] for key in ("seed", "min_characters", "near_duplicates") if key in text}
    settings |= {"filters": text["filters"]} if text["filters"] else {}
    settings |= responses(text)
    if recipe["source"] == "hub":
        settings |= {"splits": {part.split: recipe["splits"][part.split]}}
    if part.piece[1] > 1:
        settings |= {"piece": list(part.piece)}
    return settings | {"key": key, "source": recipe["source"]}


def responses(text: dict) -> dict:
    """Return the key `responses` of a recipe if the responses alone count in any source, otherwise no key."""
    return {"responses": True} if has_responses(text) else {}


def assign_splits_recipe(where: str, text: dict, parts: list[Part]) -> dict:
    """Return the recipe of the rule assign_splits."""
    named = [part.split for part in parts]
    shares = {split: share for split, share in text["held_out"].items() if split not in named}
    # Documents of a named split that are left out may be in other splits.
    most = text["max_documents"] if {"validation", "test"}.intersection(named) else None
    options = {key: text[key] for key in ("near_duplicates",) if key in text}
    if "sources" in text:
        options["sources"] = [part.source for part in parts]
    return {"key": where, "parts": named, "held_out": shares, "max_documents": most} | options


def build_corpus_recipe(where: str, text: dict, parts: Sequence[Part]) -> dict:
    """Return the recipe of the rules build_corpus and split_part."""
    recipe = {"key": where, "max_documents": text["max_documents"]} | responses(text)
    if "sources" not in text:
        return recipe
    sources = [part.source for part in parts]
    weights = {name: weight for name, weight in weights_of(where, text).items() if name in sources}
    return recipe | {"sources": sources, "weights": weights}


def describe_corpus_recipe(where: str, text: dict) -> dict:
    """Return the recipe of the rule describe_corpus."""
    return {"key": where} | ({"weights": weights_of(where, text)} if "sources" in text else {})


def weights_of(where: str, text: dict) -> dict[str, float]:
    """Return the weight of each source by name: how often its documents are taken."""
    return {name: source["weight"] for name, (_, source) in sources_of(where, text).items()}


def pair_sources(name: str, recipe: Mapping) -> list[str]:
    """Return the sorted local files of a set of pairs: those of its globs, or of a local dataset.

    name  under evaluation.pairs.sets. Raises UserError for a glob without files or with other files.
    """
    if "dataset" in recipe:
        folder = Path(recipe["dataset"])
        return sorted(str(path) for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    where = f"evaluation.pairs.sets.{name}"
    paths = each_once(path for pattern in recipe["files"] for path in expand(where, pattern))
    for path in paths:
        if format_of(path) == "text":
            raise UserError(f"{where}.files: {path} has no columns; allowed: {ALLOWED.removeprefix('.txt, ')}.")
    return paths
