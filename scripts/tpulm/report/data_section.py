"""Build the template contexts of the page's sections on text, tokenizer, records, samples and partitioning.

Each context is for the template of report/page/ of the same name, and has the names of the files to link to.
"""

import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from tpulm.report import charts
from tpulm.report.sources import Sources, drop_reasons, source_of
from tpulm.specs.artifacts import MANIFEST

WORDS = re.compile(r"\s+|\w+|[^\w\s]")
COMMON = 0.5  # share of characters in common from which the others are marked
LINE = re.compile(r"\S(?:[^\n]*\S)?")  # a line without the white space at its ends


def marked(before: str, after: str) -> tuple[Markup, Markup]:
    """Return two texts as HTML: removed words of the first are <del>, added words of the second are <ins>."""
    old_words, new_words = WORDS.findall(before), WORDS.findall(after)
    old_html = new_html = ""
    matcher = difflib.SequenceMatcher(None, old_words, new_words, autojunk=False)
    same = sum(len("".join(old_words[block.a :][: block.size]).strip()) for block in matcher.get_matching_blocks())
    if 2 * same < COMMON * len("".join((before + after).split())):
        return escape(before), escape(after)
    for kind, old_start, old_stop, new_start, new_stop in matcher.get_opcodes():
        removed = str(escape("".join(old_words[old_start:old_stop])))
        added = str(escape("".join(new_words[new_start:new_stop])))
        old_html += removed if kind == "equal" else wrapped(removed, "del")
        new_html += added if kind == "equal" else wrapped(added, "ins")
    return joined(old_html, "del"), joined(new_html, "ins")


def wrapped(html: str, tag: str) -> str:
    """Return escaped text with a tag around each line, white space at its ends excluded."""
    return LINE.sub(rf"<{tag}>\g<0></{tag}>", html)


def joined(html: str, tag: str) -> Markup:
    """Return HTML with elements of a tag merged if only white space within a line separates them."""
    return Markup(re.sub(rf"</{tag}>([^\S\n]*)<{tag}>", r"\1", html))


# Limits of what the page shows.
SHOWN = 20  # examples of each kind that are shown
SCRIPTS = 12
DEVICES = 256  # devices that a grid shows


def texts(recipe: Mapping[str, Any], sources: Sources) -> list[dict[str, Any]]:
    """Return the context of each collection of texts: sizes, dropped documents, duplicates, contamination."""
    collections = []
    for name in recipe["texts"]:
        file = f"{name}/corpus.json"
        corpus = sources.json(file)
        if not corpus:
            continue
        parts = corpus.get("sources", {})
        collections.append(
            {
                "name": name,
                "file": file,
                "sentence": Markup('<span class="name">{}</span>').format(source_of(corpus)),
                "source": corpus.get("source")
                or " and ".join(dict.fromkeys(part["source"] for part in parts.values())),
                "splits": corpus["splits"],
                "reasons": drop_reasons(corpus["splits"]),
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
    return collections


def tokenizer(sources: Sources) -> dict[str, Any]:
    """Return metrics, charts and comparison of the tokenizer."""
    file, pieces_file = "tokenizer/metrics.json", "tokenizer/pieces.json"
    pieces = sources.json(pieces_file)
    context: dict[str, Any] = {"file": file, "measured": sources.json(file), "pieces_file": pieces_file}
    context |= {"pieces": pieces, "beside": beside_others(file, pieces_file, sources)}
    if pieces:
        lengths = [
            {"characters": row["characters"], "pieces": row[key], "which": which}
            for row in pieces["lengths"]
            for key, which in (("used", "occur"), ("unused", "do not"))
        ]
        context["lengths"] = charts.bars(lengths, "characters", "pieces", ("characters", "pieces"), "which")
        context["words"] = charts.bars(pieces["words"], "tokens", "words", ("tokens per word", "words"))
        context["hardest"] = pieces["hardest"][:SHOWN]
    return context


def beside_others(file: str, pieces_file: str, sources: Sources) -> dict[str, Any] | None:
    """Return metrics, and tokens per word by script and source, of all tokenizers; None without any to compare with."""
    others = sources.names("tokenizer/compared/*/metrics.json")
    files = {"this one": (file, pieces_file)}
    files |= {name.split("/")[2]: (name, name.replace("metrics.json", "pieces.json")) for name in others}
    if not others or not all(sources.json(name) for pair in files.values() for name in pair):
        return None

    def per_word(key: str, kind: str) -> dict[str, list[float | None]]:
        rates = [
            {row[kind]: row["tokens_per_word"] for row in sources.json(pieces).get(key, ())}
            for _, pieces in files.values()
        ]
        return {name: [by_name.get(name) for by_name in rates] for name in rates[0]}

    return {
        "files": [name for pair in files.values() for name in pair],
        "figures": {name: sources.json(figures) for name, (figures, _) in files.items()},
        "scripts": dict(list(per_word("scripts", "script").items())[:SCRIPTS]),
        "sources": per_word("sources", "source"),
    }


def records(sources: Sources) -> dict[str, Any]:
    """Return the manifest of each set of records."""
    sets = []
    for file in sources.names(f"*{MANIFEST}"):
        manifest = sources.json(file)
        sets.append(manifest | {"name": file.removesuffix(f"/{MANIFEST}"), "file": file})
    responses = [each for each in sets if all("loss_tokens" in split for split in each["splits"].values())]
    return {"sets": sets, "responses": responses}


def masks(sources: Sources) -> dict[str, Any] | None:
    """Return the answers of masked models to prompts, one column for each model; None without any."""
    files = sources.names("mlm/*/fill_mask.json")
    if not files:
        return None
    answers = {file: {row["prompt"]: row["answers"] for row in sources.json(file)} for file in files}
    prompts = dict.fromkeys(prompt for rows in answers.values() for prompt in rows)
    rows = [{"prompt": prompt, "cells": [answers[file].get(prompt, []) for file in files]} for prompt in prompts]
    return {"runs": [file.split("/")[1] for file in files], "files": files, "rows": rows}


def generations(sources: Sources) -> list[dict[str, Any]]:
    """Return pairs of samples of each base model and its finetuned model, with the differences marked."""
    return [
        {
            "name": file.split("/")[1],
            "file": file,
            "sampling": sources.json(file)["sampling"],
            "prompts": [
                {
                    "prompt": item["prompt"],
                    "cut": item["cut"],
                    "pairs": [marked(*pair) for pair in zip(item["before"], item["after"], strict=True)],
                }
                for item in sources.json(file)["prompts"]
            ],
        }
        for file in sources.names("finetune/*/generations.json")
    ]


def continuations(sources: Sources) -> list[dict[str, Any]]:
    """Return the samples of each base model that no run finetunes."""
    files = sources.names("base/*/generations.json")
    return [{"name": file.split("/")[1], "file": file, **sources.json(file)} for file in files]


def responses(sources: Sources) -> list[dict[str, Any]]:
    """Return responses of each finetuned model to held-out prompts: up to SHOWN wrong, right, and long ones."""
    runs = []
    for file in sources.names("evaluation/responses/*/*/responses.json"):
        by_verdict: dict[str, list[dict]] = {}
        for row in sources.json(file)["rows"]:
            verdict = "" if "long" in row else "right" if row["after"] == row["response"] else "wrong"
            by_verdict.setdefault(verdict, []).append(row | {"verdict": verdict})
        shown = [row for verdict in ("wrong", "right", "") for row in by_verdict.get(verdict, [])[:SHOWN]]
        right, wrong = (len(by_verdict.get(verdict, [])) for verdict in ("right", "wrong"))
        runs.append({"name": file.split("/")[3], "file": file, "rows": shown, "right": right, "asked": right + wrong})
    return [run for run in runs if run["rows"]]


def partitioning(sources: Sources) -> dict[str, Any]:
    """Return the sharding of the variables of each finetuned model; equal layers appear once."""
    runs = []
    for file in sources.names("finetune/*/partitioning.json"):
        record = sources.json(file)
        mesh, seen, variables = record["mesh"], set(), []
        for variable in record["variables"]:
            path = re.sub(r"(?<=_)\d+(?=/)", "*", variable["path"])
            signature = (path, str(variable["shape"]), str(variable["spec"]), variable["note"])
            if signature in seen:
                continue
            seen.add(signature)
            variables.append(
                {
                    "path": path,
                    "shape": " × ".join(map(str, variable["shape"])),
                    "spec": ", ".join(axis or "·" for axis in variable["spec"]) if any(variable["spec"]) else "–",
                    "trainable": variable["trainable"],
                    "note": variable["note"],
                    "grid": grid(mesh, variable["spec"]),
                    "bytes": variable["bytes_per_device"],
                }
            )
        totals = {
            "cut": sum(any(variable["spec"]) for variable in record["variables"]),
            "all": len(record["variables"]),
            "held": sum(variable["bytes_per_device"] for variable in record["variables"]),
        }
        runs.append({"name": file.split("/")[1], "file": file, "mesh": mesh, "variables": variables} | totals)
    return {"runs": runs}


def grid(mesh: Mapping[str, int], spec: list[str | None]) -> Markup:
    """Return the devices of a mesh as HTML cells, colored by the shard of a variable that they hold."""
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
    """Return an HTML bar whose width is a share, 0 to 1."""
    return Markup('<i class="share" style="--share:{:.4f}"></i>').format(share)
