"""What the page says of data and models, in the order of the data: text, tokenizer, records, samples, partitioning.

Each function returns what a template of the same name in report/page/ shows, and the names of the files that this is
from, to which the template links.
"""

import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from tpulm.report import charts
from tpulm.report.sources import Sources, reasons_of, source_of
from tpulm.specs.artifacts import MANIFEST

WORDS = re.compile(r"\s+|\w+|[^\w\s]")
LINE = re.compile(r"\S(?:[^\n]*\S)?")  # what is between the white space of a line


def marked(before: str, after: str) -> tuple[Markup, Markup]:
    """Return both texts as HTML: in the first, what is gone is <del>, in the second, what is new is <ins>."""
    one, other = WORDS.findall(before), WORDS.findall(after)
    left = right = ""
    for kind, start, stop, begin, end in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        old, new = (str(escape("".join(words))) for words in (one[start:stop], other[begin:end]))
        left += old if kind == "equal" else wrapped(old, "del")
        right += new if kind == "equal" else wrapped(new, "ins")
    return joined(left, "del"), joined(right, "ins")


def wrapped(html: str, tag: str) -> str:
    """Return escaped text with a tag around what each of its lines has beside white space at its ends."""
    return LINE.sub(rf"<{tag}>\g<0></{tag}>", html)


def joined(html: str, tag: str) -> Markup:
    """Return HTML in which elements of a tag are one where only white space of a line is between them."""
    return Markup(re.sub(rf"</{tag}>([^\S\n]*)<{tag}>", r"\1", html))


SHOWN = 20  # examples of a kind
SCRIPTS = 12  # of which there is a row
DEVICES = 256  # that a grid shows, at most


def texts(recipe: Mapping[str, Any], sources: Sources) -> list[dict[str, Any]]:
    """Return each collection of texts."""
    found = []
    for name in recipe["texts"]:
        file = f"{name}/corpus.json"
        corpus = sources.json(file)
        if not corpus:
            continue
        parts = corpus.get("sources", {})
        found.append(
            {
                "name": name,
                "file": file,
                "sentence": Markup('<span class="name">{}</span>').format(source_of(corpus)),
                "source": corpus.get("source")
                or " and ".join(dict.fromkeys(part["source"] for part in parts.values())),
                "splits": corpus["splits"],
                "reasons": reasons_of(corpus["splits"]),
                "responses": [split for split, figures in corpus["splits"].items() if "responses" in figures],
                "sources": parts,
                "removed": [
                    (f"{key} {rule}".strip(), count)
                    for key, source in ({"": corpus} | parts).items()
                    for rule, count in source.get("removed_lines", {}).items()
                ],
                "pairs": [
                    marked(pair["kept"], pair["dropped"])[::-1]
                    for pair in corpus.get("near_duplicates", {}).get("examples", [])[:SHOWN]
                ],
                "contaminated": corpus.get("decontaminate", {}).get("examples", [])[:SHOWN],
            }
        )
    return found


def tokenizer(sources: Sources) -> dict[str, Any]:
    """Return how the tokenizer cuts text."""
    file, pieces_file = "tokenizer/metrics.json", "tokenizer/pieces.json"
    pieces = sources.json(pieces_file)
    found: dict[str, Any] = {"measured": sources.json(file), "file": file, "pieces": pieces, "pieces_file": pieces_file}
    found["beside"] = beside_others(file, pieces_file, sources)
    if pieces:
        counted = [
            {"characters": row["characters"], "pieces": row[key], "which": which}
            for row in pieces["lengths"]
            for key, which in (("used", "occur"), ("unused", "do not"))
        ]
        found["lengths"] = charts.bars(counted, "characters", "pieces", ("characters", "pieces"), "which")
        found["words"] = charts.bars(pieces["words"], "tokens", "words", ("tokens per word", "words"))
        found["hardest"] = pieces["hardest"][:SHOWN]
    return found


def beside_others(file: str, pieces_file: str, sources: Sources) -> dict[str, Any] | None:
    """Return the figures of the tokenizer and of those it is compared with, and their tokens per word by kind of text.

    None where it is compared with none.
    """
    others = sources.names("tokenizer/compared/*/metrics.json")
    files = {"this one": (file, pieces_file)}
    files |= {name.split("/")[2]: (name, name.replace("metrics.json", "pieces.json")) for name in others}
    if not others or not all(sources.json(one) for pair in files.values() for one in pair):
        return None

    def per_word(key: str, kind: str) -> dict[str, list[float | None]]:
        found = [
            {row[kind]: row["tokens_per_word"] for row in sources.json(pieces).get(key, ())}
            for _, pieces in files.values()
        ]
        return {name: [own.get(name) for own in found] for name in found[0]}

    return {
        "files": [one for pair in files.values() for one in pair],
        "figures": {name: sources.json(figures) for name, (figures, _) in files.items()},
        "scripts": dict(list(per_word("scripts", "script").items())[:SCRIPTS]),
        "sources": per_word("sources", "source"),
    }


def records(sources: Sources) -> dict[str, Any]:
    """Return the sets of records and how even their shards are."""
    sets = []
    for file in sources.names(f"*{MANIFEST}"):
        manifest = sources.json(file)
        # The corpus of a base model that is fetched is only evaluated on: it has no training records.
        counts = [shard["records"] for shard in manifest["splits"].get("train", {"shards": []})["shards"]]
        chart = charts.many_bars(counts, ("shard", "records")) if len(counts) > 1 else None
        sets.append(manifest | {"name": file.removesuffix(f"/{MANIFEST}"), "file": file, "chart": chart})
    responses = [found for found in sets if all("loss_tokens" in split for split in found["splits"].values())]
    return {"sets": sets, "responses": responses}


def masks(sources: Sources) -> dict[str, Any] | None:
    """Return the answers of masked models to prompts, a column for each model; None where there are none."""
    files = sources.names("mlm/*/fill_mask.json")
    if not files:
        return None
    answers = {file: {row["prompt"]: row["answers"] for row in sources.json(file)} for file in files}
    prompts = dict.fromkeys(prompt for rows in answers.values() for prompt in rows)
    rows = [{"prompt": prompt, "cells": [answers[file].get(prompt, []) for file in files]} for prompt in prompts]
    return {"runs": [file.split("/")[1] for file in files], "files": files, "rows": rows}


def generations(sources: Sources) -> list[dict[str, Any]]:
    """Return the samples of each finetuned model beside those of its base, with what differs marked."""
    return [
        {
            "name": file.split("/")[1],
            "file": file,
            "sampling": sources.json(file)["sampling"],
            "prompts": [
                {
                    "prompt": item["prompt"],
                    "pairs": [marked(*pair) for pair in zip(item["before"], item["after"], strict=True)],
                }
                for item in sources.json(file)["prompts"]
            ],
        }
        for file in sources.names("finetune/*/generations.json")
    ]


def responses(sources: Sources) -> list[dict[str, Any]]:
    """Return the responses of each finetuned model to held-out prompts, some wrong ones first, then right ones."""
    found = []
    for file in sources.names("evaluation/responses/*/*/responses.json"):
        rows = sources.json(file)["rows"]
        judged = {right: [row for row in rows if (row["after"] == row["response"]) == right] for right in (False, True)}
        shown = [row | {"right": right} for right, own in judged.items() for row in own[:SHOWN]]
        name = file.split("/")[3]
        found.append({"name": name, "file": file, "rows": shown, "right": len(judged[True]), "asked": len(rows)})
    return [run for run in found if run["rows"]]


def partitioning(sources: Sources) -> dict[str, Any]:
    """Return how the variables of each finetuned model lie on its mesh; those of equal layers once."""
    runs = []
    for file in sources.names("finetune/*/partitioning.json"):
        found = sources.json(file)
        mesh, seen, variables = found["mesh"], set(), []
        for variable in found["variables"]:
            path = re.sub(r"(?<=_)\d+(?=/)", "*", variable["path"])
            same = (path, str(variable["shape"]), str(variable["spec"]), variable["note"])
            if same in seen:
                continue
            seen.add(same)
            variables.append(
                {
                    "path": path,
                    "shape": " × ".join(map(str, variable["shape"])),
                    "spec": ", ".join(axis or "·" for axis in variable["spec"]),
                    "trainable": variable["trainable"],
                    "note": variable["note"],
                    "grid": grid(mesh, variable["spec"]),
                    "bytes": variable["bytes_per_device"],
                }
            )
        held = {
            "cut": sum(any(variable["spec"]) for variable in found["variables"]),
            "all": len(found["variables"]),
            "held": sum(variable["bytes_per_device"] for variable in found["variables"]),
        }
        runs.append({"name": file.split("/")[1], "file": file, "mesh": mesh, "variables": variables} | held)
    return {"runs": runs}


def grid(mesh: Mapping[str, int], spec: list[str | None]) -> Markup:
    """Return the devices of a mesh as cells, colored by which part of a variable they hold.

    mesh  its axes, in order
    spec  the axis that each dimension of the variable is cut along, or None
    """
    sizes = list(mesh.values())
    rows, columns = (math.prod(sizes[:-1]), sizes[-1]) if sizes else (1, 1)
    cut = [axis for axis in mesh if axis in spec and mesh[axis] > 1]
    parts = math.prod(mesh[axis] for axis in cut)
    cells = []
    for device in range(min(rows * columns, DEVICES)):
        part, rest, place = 0, device, {}
        for axis, size in reversed(list(mesh.items())):
            rest, place[axis] = divmod(rest, size)
        for axis in cut:
            part = part * mesh[axis] + place[axis]
        cells.append(
            '<i class="whole"></i>' if parts == 1 else f'<i style="--part:{part / max(parts - 1, 1):.3f}"></i>'
        )
    words = "each device holds the whole variable" if parts == 1 else f"sharded along {' and '.join(cut)}"
    return Markup('<span class="mesh-grid" role="img" aria-label="{}" style="--columns:{}">{}</span>').format(
        words, columns, Markup("".join(cells))
    )


def bar(share: float) -> Markup:
    """Return a bar as wide as a share."""
    return Markup('<i class="share" style="--share:{:.4f}"></i>').format(share)
