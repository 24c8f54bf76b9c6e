"""What corpus.json says of a text, as tables."""

from tpulm.config.artifacts import SPLITS
from tpulm.report.html import table

REASONS = {
    "empty": "empty", "short": "short", "duplicates": "in another split", "near_duplicates": "near-duplicates",
    "contaminated": "contaminated",
}  # fmt: skip


def corpus_tables(corpus: dict) -> tuple[str, str]:
    """Return a sentence about the sources of a text, and its tables as HTML."""
    sentence = f"{source_of(corpus)} The last columns of the first table count documents that were dropped."
    tables = [splits_table, responses_table, sources_table, filters_table, pairs_table, contamination_table]
    return sentence, "".join(make(corpus) for make in tables)


def source_of(corpus: dict) -> str:
    """Return where a text is from, in a sentence."""
    if "sources" in corpus:
        return "Several sources; a weight says how often each training document of a source is taken."
    version = f" of Python {corpus['python_version']}" if "python_version" in corpus else ""
    return f"Source: {corpus['source']}{version}."


def splits_table(corpus: dict) -> str:
    """Return the figures of each split."""
    found = {key.removeprefix("dropped_") for figures in corpus["splits"].values() for key in figures}
    reasons = {reason: name for reason, name in REASONS.items() if reason in found}
    rows = [
        [split, figures["documents"], figures["characters"], figures["words"]]
        + [figures.get(f"dropped_{reason}", 0) for reason in reasons]
        for split, figures in corpus["splits"].items()
    ]
    return table(["split", "documents", "characters", "words", *reasons.values()], rows)


def responses_table(corpus: dict) -> str:
    """Return how many documents have responses, which alone count; nothing where all of a text counts."""
    rows = [
        [split, figures["responses"]["documents"], figures["responses"]["characters"]]
        for split, figures in corpus["splits"].items()
        if "responses" in figures
    ]
    return table(["split", "documents with responses", "characters of responses"], rows) if rows else ""


def loss_table(manifest: dict) -> tuple[str, str]:
    """Return a sentence about records where the responses count, and how many of their tokens are predicted as HTML."""
    rows = [
        [split, entry["records"], entry["target_tokens"], entry["loss_tokens"]]
        + [f"{entry['loss_tokens'] / entry['target_tokens']:.1%}", entry["records_without_loss"]]
        for split, entry in manifest["splits"].items()
    ]
    head = ["split", "records", "tokens", "tokens of responses", "share", "records without a response"]
    return "Models are trained and measured on the tokens of responses only.", table(head, rows)


def sources_table(corpus: dict) -> str:
    """Return how many documents of each source are in each split; nothing where there is one source."""
    if "sources" not in corpus:
        return ""
    rows = [
        [name, source["source"], source["weight"], *(source["splits"][split]["documents"] for split in SPLITS)]
        for name, source in corpus["sources"].items()
    ]
    return table(["source", "kind", "weight", *(f"{split} documents" for split in SPLITS)], rows)


def pairs_table(corpus: dict) -> str:
    """Return near-duplicates that were dropped, each with what was kept in its place."""
    pairs = corpus.get("near_duplicates", {}).get("examples", [])
    rows = [[pair["dropped"], pair["kept"]] for pair in pairs]
    return table(["dropped as near-duplicate", "kept"], rows) if rows else ""


def contamination_table(corpus: dict) -> str:
    """Return contaminated documents that were dropped, each with what it shares with a held-out text."""
    examples = corpus.get("decontaminate", {}).get("examples", [])
    rows = [[example["text"], example["ngram"]] for example in examples]
    return table(["dropped as contaminated", "shared n-gram"], rows) if rows else ""


def filters_table(corpus: dict) -> str:
    """Return how many documents each filter dropped, and how many lines were taken out of others."""
    splits = corpus["splits"]
    found = sorted(
        {key.removeprefix("dropped_") for figures in splits.values() for key in figures if "dropped_" in key}
    )
    rows = [
        [reason, *(splits[split].get(f"dropped_{reason}", 0) for split in SPLITS)]
        for reason in found
        if reason not in REASONS
    ]
    text = table(["dropped by the filter", *SPLITS], rows) if rows else ""
    sources = corpus.get("sources", {"": corpus})
    lines = [
        [f"{name} {rule}".strip(), count]
        for name, source in sources.items()
        for rule, count in source.get("removed_lines", {}).items()
    ]
    return text + (table(["lines taken out by the filter c4", "lines"], lines) if lines else "")
