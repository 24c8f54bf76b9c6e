"""Compare the runs of several experiments: losses, accuracies and scores, in one table each.

    python tools/compare.py results experiments/sums/results

It reads the results as they are: it takes no lock and builds nothing. Losses are per token of a model's own tokenizer;
hold bits per byte against each other, of the same text.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from tpulm.config.runs import STAGES  # noqa: E402
from tpulm.config.sweeps import differing  # noqa: E402
from tpulm.core.errors import UserError  # noqa: E402
from tpulm.core.files import read_json  # noqa: E402
from tpulm.core.scores import read_scores  # noqa: E402
from tpulm.report.tables import aligned, compared, markdown  # noqa: E402


def trained(run: Path) -> dict[str, Any]:
    """Return what a run was trained with: steps and peak learning rate, and what its segments have in common."""
    segments = [read_json(state)["recipe"] for state in sorted(run.glob("checkpoints/*/state.json"))]
    if not segments:
        return {}
    rate = max(rate for segment in segments for _, rate in segment["schedule"]["knots"])
    own = ("first", "last", "schedule")
    return {key: value for key, value in segments[-1].items() if key not in own} | {
        "steps": segments[-1]["last"],
        "learning_rate": rate,
    }


def scores_of(folder: Path, model: str) -> Iterator[list[str]]:
    """Yield the cells of each score of a model, STAGE/RUN, of those that stand for others."""
    for path in sorted(folder.glob(f"evaluation/**/{model}/scores.json")):
        for score in read_scores(path)[1]:
            if score.leads and score.step is None:
                limits = "" if score.low is None else f" [{score.low:.4f}, {score.high:.4f}]"
                name = f"{score.metric.replace('_', ' ')}: {score.on}"
                yield [name, str(folder / model), f"{score.value:.4f}{limits}", str(score.items)]


def tables(folders: list[Path]) -> Iterator[str]:
    """Yield the tables. Raises UserError for a folder without finished runs."""
    runs: dict[str, list[tuple[Path, Path]]] = {stage: [] for stage in STAGES}
    for folder in folders:
        found = {stage: sorted(folder.glob(f"{stage}/*/metrics.json")) for stage in STAGES}
        if not any(found.values()):
            raise UserError(f"{folder} has no finished runs; allowed: folders with results, such as results.")
        for stage, paths in found.items():
            runs[stage] += [(folder, path.parent) for path in paths]
    groups: list[dict[str, Any]] = []
    for stage, own in runs.items():
        settings = differing([trained(run) for _, run in own])
        groups += [
            {"stage": stage, "name": str(run), "runs": 1, "settings": differ}
            for (_, run), differ in zip(own, settings, strict=True)
        ]
    every = [one for own in runs.values() for one in own]
    yield markdown(compared(groups, [read_json(run / "metrics.json") for _, run in every]))
    cells = [cell for folder, run in every for cell in scores_of(folder, str(run.relative_to(folder)))]
    if cells:
        yield aligned([["score", "model", "value, 95 %", "items"], *sorted(cells)])


def main() -> None:
    """Print the tables of the folders that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="results of an experiment, such as results")
    try:
        for table in tables(parser.parse_args().folders):
            print(table)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
