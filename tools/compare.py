"""Compare the runs of several experiments: losses, accuracies and scores, in one table each.

    python tools/compare.py . experiments/sums

It reads finished results: it takes no lock and builds nothing. Losses are per token of a model's own tokenizer. Models
with different tokenizers compare by bits per byte.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from tpulm.core import bucket  # noqa: E402
from tpulm.core.errors import UserError  # noqa: E402
from tpulm.core.files import read_json  # noqa: E402
from tpulm.report.tables import aligned, comparison_rows, fitted, markdown, score_in_words  # noqa: E402
from tpulm.specs.recipes import STAGES, differing  # noqa: E402
from tpulm.specs.scores import read_scores  # noqa: E402


def trained(run: Path, steps: int) -> dict[str, Any]:
    """Return the recipe of a run's last segment, with steps and peak learning rate; nothing of a model as it was given.

    steps  of metrics.json: checkpoints beyond them are of an earlier, longer run, or were copied after an early stop
    """
    segments = [read_json(state)["recipe"] for state in sorted(run.glob("checkpoints/*/state.json"))]
    segments = [segment for segment in segments if segment["first"] < steps]
    if not segments:
        return {}
    own = ("first", "last", "schedule")
    recipe = {key: value for key, value in segments[-1].items() if key not in own}
    return recipe | {"steps": steps, "learning_rate": max(peak(segment["schedule"]) for segment in segments)}


def peak(schedule: Mapping) -> float:
    """Return the highest learning rate of a segment, see `tpulm.specs.schedule.segment_schedule`."""
    return schedule["cosine"]["peak"] if "cosine" in schedule else max(rate for _, rate in schedule["knots"])


def texts_of(folder: Path) -> dict[tuple[str, str | None], str]:
    """Return the fingerprint of each split of the texts, by the name of the text and the split."""
    return {
        (path.parent.name, split): facts["fingerprint"]
        for path in folder.glob("*/corpus.json")
        for split, facts in read_json(path)["splits"].items()
    }


def scores_of(folder: Path, model: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the text and the cells of each score of a model, STAGE/RUN, of those that stand for others."""
    texts = texts_of(folder)
    for path in sorted(folder.glob(f"evaluation/**/{model}/scores.json")):
        for score in read_scores(path)[1]:
            if score.leads and score.step is None:
                name, value = score_in_words(score)
                yield texts.get((score.set, score.split), ""), [name, str(folder / model), value, str(score.items)]


def table_of_scores(rows: list[tuple[str, list[str]]]) -> Iterator[str]:
    """Yield the table of what `scores_of` yields, with the text of a score where its name stands for several."""
    texts: dict[str, set[str]] = {}
    for text, (name, *_) in rows:
        texts.setdefault(name, set()).update({text} - {""})
    several = {name for name, found in texts.items() if len(found) > 1}
    cells = [[f"{name}, text {text[:8]}" if text and name in several else name, *rest] for text, (name, *rest) in rows]
    yield aligned([["score", "model", "value, 95 %", "items"], *sorted(cells)])
    if several:
        yield "Experiments have different texts under the same name. Compare only scores with the same text.\n"


def tables(names: list[str]) -> Iterator[str]:
    """Yield the tables. Raises UserError for a folder without finished runs."""
    remote = next(filter(bucket.remote, names), None)
    if remote:
        raise UserError(f"{remote} is in a bucket; copy it here first: gcloud storage cp -r {remote} FOLDER.")
    folders = list(map(Path, names))
    runs: dict[str, list[tuple[Path, Path]]] = {stage: [] for stage in STAGES}
    for folder in folders:
        found = {stage: sorted(folder.glob(f"{stage}/*/metrics.json")) for stage in STAGES}
        if not any(found.values()):
            raise UserError(f"{folder} has no finished runs; run `snakemake`, or name a folder with results.")
        for stage, paths in found.items():
            runs[stage] += [(folder, path.parent) for path in paths]
    metrics = {run: read_json(run / "metrics.json") for own in runs.values() for _, run in own}
    groups: list[dict[str, Any]] = []
    for stage, own in runs.items():
        recipes = {run: trained(run, metrics[run].get("steps", 0)) for _, run in own}
        of_trained = {run: recipe for run, recipe in recipes.items() if recipe}
        settings = dict(zip(of_trained, differing(list(of_trained.values())), strict=True))
        groups += [{"stage": stage, "name": str(run), "runs": 1, "settings": settings.get(run, {})} for run in recipes]
    every = [one for own in runs.values() for one in own]
    yield markdown(comparison_rows(groups, [metrics[run] for _, run in every]))
    scores = [score for folder, run in every for score in scores_of(folder, str(run.relative_to(folder)))]
    if scores:
        yield from table_of_scores(scores)
    if written := [str(file) for folder in dict.fromkeys(folders) for file in sorted(folder.glob("compare/*.csv"))]:
        yield f"with all digits, as `snakemake compare` wrote them: {', '.join(written)}"


def main() -> None:
    """Print the tables of the folders that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", help="experiments, or folders of results")
    try:
        given = map(Path, parser.parse_args().folders)
        folders = [str(path / "results" if (path / "results").is_dir() else path) for path in given]
        print("\n".join(fitted("\n".join(tables(folders)))), flush=True)
    except UserError as error:
        sys.exit(f"error: {error}")
    except BrokenPipeError:
        # What reads has enough; Python would say so when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, LookupError, TypeError) as error:
        sys.exit(f"error: a file of the results cannot be read: {error!r}; it may be written at this moment.")


if __name__ == "__main__":
    main()
