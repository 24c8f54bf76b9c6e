"""What is known of the text that models were trained on.

The first part follows "Datasheets for Datasets" (Gebru et al. 2021), the second the European Commission's template of
July 2025 for the public summary of training content (Regulation (EU) 2024/1689, article 53 (1) d). What the records of
the corpus cannot know is marked as to be written.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OPEN = "*To be written.*"
PLACE = ("source", "dataset", "name", "revision", "license", "implementation", "python_version", "weight")
# Sources of the config, as the Commission's template sorts them.
KINDS = {
    "hub": "publicly available datasets",
    "python-docs": "publicly available datasets",
    "python-source": "publicly available datasets",
    "files": "other sources: files of the provider, of which the records do not say where they are from",
}


def data_sheet(
    recipe: Mapping[str, Any],
    corpora: Mapping[str, Mapping],
    tasks: Mapping[str, Mapping],
    outside: Mapping[str, str | None],
) -> str:
    """Return the data sheet as Markdown.

    recipe   title, license, completed (the config)
    corpora  the content of each corpus.json, by path
    tasks    the content of each task.json, by path
    outside  files that the workflow read and did not make, with their sha256
    """
    parts = [f"# Data sheet: {recipe['title']}\n"]
    for path, corpus in sorted(corpora.items()):
        name = Path(path).parent.name
        section = text_section(recipe["completed"], name)
        parts += [f"## {'The corpus' if name == 'corpus' else 'The text of the finetuning'}, `{path}`\n"]
        parts += sources_table(corpus, section), counts_table(corpus), filters_list(section)
    if tasks:
        parts += ["## Examples of tasks, on which models are finetuned to be measured\n", tasks_table(recipe, tasks)]
    files = [[f"`{path}`", f"`{digest or 'not known'}`"] for path, digest in outside.items()]
    if files:
        parts += ["## Files that were read\n", table(["file", "SHA-256"], files)]
    parts += ["## What the records do not say\n", questions(), european_summary(recipe, corpora)]
    return "\n".join(parts)


def text_section(config: Mapping, name: str) -> Mapping:
    """Return the section of the config that a corpus was made by."""
    return config["corpus"] if name == "corpus" else config["finetune"].get("text", {})


def sources_of(corpus: Mapping) -> dict[str, Mapping]:
    """Return the sources of a corpus by name."""
    return dict(corpus["sources"]) if "sources" in corpus else {"": corpus}


def sources_table(corpus: Mapping, section: Mapping) -> str:
    """Return a row for each source: what and where it is, and its license."""
    given = section.get("sources", {"": section})
    rows = []
    for name, source in sources_of(corpus).items():
        facts = {key: source[key] for key in PLACE if key in source and key != "license"}
        for key in ("dataset", "revision"):
            facts |= {key: given.get(name, {})[key]} if key in given.get(name, {}) and key not in facts else {}
        said = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items())
        rows.append([name or "the text", said, source.get("license") or license_of(source)])
    return table(["source", "what it is", "license"], rows)


def license_of(source: Mapping) -> str:
    """Return the license of a source, where it is known without asking."""
    if str(source.get("source", "")).startswith("python-"):
        return "PSF-2.0 (Python's own documentation and source)"
    return OPEN


def counts_table(corpus: Mapping) -> str:
    """Return documents, characters and words of each split, and what was dropped, by reason."""
    splits = corpus["splits"]
    keys = [key for key in next(iter(splits.values())) if key != "fingerprint"]
    numbers = [key for key in keys if all(isinstance(figures.get(key), int) for figures in splits.values())]
    rows = [[key.replace("_", " "), *(f"{figures[key]:,}" for figures in splits.values())] for key in numbers]
    return table(["", *splits], rows)


def tasks_table(recipe: Mapping[str, Any], tasks: Mapping[str, Mapping]) -> str:
    """Return a row for each task: what and where its examples are, their license, and how many each split has."""
    rows = []
    for path, task in sorted(tasks.items()):
        given = recipe["completed"]["evaluation"]["tasks"][Path(path).parent.name]
        facts = [f"{key} {given[key]}" for key in ("source", "dataset", "name", "revision") if given.get(key)]
        counts = [f"{split} {figures['examples']:,}" for split, figures in task["splits"].items()]
        rows.append([f"`{path}`", ", ".join(facts) or "files", license_of(given), ", ".join(counts)])
    return table(["task", "what it is", "license", "examples"], rows)


def filters_list(section: Mapping) -> str:
    """Return what the config says of filters, near-duplicates and contamination."""
    keys = ("min_characters", "filters", "near_duplicates", "decontaminate", "max_documents", "held_out")
    lines = [
        f"- {key.replace('_', ' ')}: `{json.dumps(section[key], sort_keys=True)}`" for key in keys if section.get(key)
    ]
    return (
        "A document is in one split only: where it is also held out, it is not trained on.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def questions() -> str:
    """Return the questions of the data sheet that only people can answer."""
    asked = (
        "For what purpose was the text collected, by whom, and who paid for it?",
        "Does it hold personal data, or what may offend? Were the people asked?",
        "In which languages is it, and who speaks in it?",
        "Who keeps it, and how does one report an error, or have something removed?",
    )
    return "\n".join(f"- {question} {OPEN}" for question in asked) + "\n"


def european_summary(recipe: Mapping[str, Any], corpora: Mapping[str, Mapping]) -> str:
    """Return the public summary of training content, as far as the records know."""
    characters = sum(corpus["splits"]["train"]["characters"] for corpus in corpora.values())
    kinds: dict[str, list[str]] = {}
    for corpus in corpora.values():
        for name, source in sources_of(corpus).items():
            called = source.get("dataset") or name or source.get("source", "?")
            kinds.setdefault(KINDS.get(source.get("source", ""), "other sources"), []).append(str(called))
    listed = [f"{kind}: {', '.join(sorted(set(names)))}" for kind, names in sorted(kinds.items())]
    filtered = any(recipe["completed"]["corpus"].get(key) for key in ("filters", "near_duplicates"))
    rows = [
        ["1.1 Provider, authorised representative", OPEN],
        ["1.2 Model, date of placing on the market", f"{recipe['title']}; date: {OPEN}"],
        ["1.3 Modalities, size of the training data", f"text only, {characters:,} characters; languages: {OPEN}"],
        ["2.1-2.6 Data sources", "; ".join(listed) or OPEN],
        ["2.3 Crawled or scraped by the provider", "the workflow crawls nothing; of the sources themselves: " + OPEN],
        ["2.4 User data", OPEN],
        ["2.5 Synthetic data", OPEN],
        ["3.1 Respect of reservations of rights (text and data mining)", OPEN],
        ["3.2 Removal of illegal content", f"{'quality filters, see above; ' if filtered else ''}{OPEN}"],
        ["License of what was made", recipe["license"] or OPEN],
    ]
    head = "## Public summary of training content (European Union, general-purpose models)\n\n"
    return head + table(["section of the template", "answer"], rows)


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
