"""How good every model is, as tables: a reader sees score, interval, baselines and chance, and reads what they say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape

from tpulm.core.scores import IN_TRAINING, Score
from tpulm.report.html import Raw, section, table
from tpulm.report.style import BLUE, GREY, ORANGE

Row = tuple[str, Score]  # model, its score
GROUPS = {
    "text": ("Held-out text", "How well a model predicts text that it was not trained on."),
    "pairs": (
        "Pairs of sentences",
        "How often a model finds the good sentence of a pair likelier than the broken one.",
    ),
    "task": ("Tasks", "What a model has learned from examples of a task, on examples that it has not seen."),
    "harness": (
        "Tasks of lm-evaluation-harness",
        "Questions that a causal model answers without having been trained on them, as published models are compared.",
    ),
}
NAMES = {
    "bits_per_byte": "bits per byte",
    "acc": "accuracy (acc)",
    "acc_norm": "accuracy, answers weighed by their length (acc_norm)",
}
BEFORE = "before finetuning"  # as evaluations name it, too, among what stands beside a score
WIDTH, HEIGHT, EDGE = 170, 22, 8  # pixels of a chart


def scores_tables(rows: Sequence[Row], bases: Mapping[str, str]) -> str:
    """Return the scores of all models as HTML: a section for each group and metric, models side by side.

    bases  the base model of each finetuned one, whose score stands beside its own
    """
    parts = []
    for group in [*GROUPS, *sorted({score.group for _, score in rows} - set(GROUPS))]:
        title, text = GROUPS.get(group, (group, ""))
        own = [(model, score) for model, score in rows if score.group == group]
        for metric in dict.fromkeys(score.metric for _, score in own):
            same = [(model, score) for model, score in own if score.metric == metric]
            better = "higher" if same[0][1].higher_is_better else "lower"
            head = f"{title}: {NAMES.get(metric, metric.replace('_', ' '))}, {better} is better"
            parts.append(section(head, text, metric_table(same, bases)))
            text = ""
    return "".join(parts)


def metric_table(rows: Sequence[Row], bases: Mapping[str, str]) -> str:
    """Return the rows of one metric, by what they were measured on; columns that all rows leave empty are left out."""
    found: list[list] = []
    before = {(model, score.on): score.value for model, score in rows}
    rows = [(model, beside_base(score, before.get((bases.get(model, ""), score.on)))) for model, score in rows]
    for on in dict.fromkeys(score.on for _, score in rows):
        same = [(model, score) for model, score in rows if score.on == on]
        scale = limits(score for _, score in same)
        for place, (model, score) in enumerate(same):
            lines = [] if score.low is None or score.high is None else [f"{score.low:.3f} to {score.high:.3f}"]
            lines += [f"{len(score.seeds)} seeds"] if score.seeds else []
            beside = [f"{name} {value:.3f}" for name, value in score.baselines.items()]
            found.append(
                [on if place == 0 else "", whole([model]), score.value, whole(lines), chart(score, scale)]
                + [whole(beside), score.chance, score.items, reading(score)]
            )
    head = ["measured on", "model", "score", "95 % interval", "", "beside", "chance"]
    head += ["items", "which says"]
    kept = [column for column in range(len(head)) if any(row[column] not in (None, "") for row in found)]
    return table([head[column] for column in kept], [[row[column] for column in kept] for row in found], 3)


def beside_base(score: Score, before: float | None) -> Score:
    """Return a score with that of the base model beside it, unless there is none or an evaluation has put it there.

    In the training text of each, the two models have other items.
    """
    if before is None or score.on.endswith(IN_TRAINING):
        return score
    return replace(score, baselines={BEFORE: before} | score.baselines)


def whole(lines: Sequence[str]) -> Raw:
    """Return lines of a cell that are not broken."""
    return Raw("".join(f'<div style="white-space: nowrap">{escape(line)}</div>' for line in lines))


def numbers(score: Score) -> list[float]:
    """Return all numbers that a chart of a score shows."""
    known = (score.value, score.low, score.high, score.chance, *score.baselines.values())
    return [number for number in known if number is not None]


def limits(scores: Iterable[Score]) -> tuple[float, float]:
    """Return the ends of the axis that charts of these scores share."""
    shown = [number for score in scores for number in numbers(score)]
    return min(shown), max(shown)


def chart(score: Score, scale: tuple[float, float]) -> Raw:
    """Return a score as a point with its interval, simpler models and chance as strokes, on an axis of `scale`."""
    low, high = scale

    def place(value: float) -> str:
        share = (value - low) / (high - low) if high > low else 0.5
        return f"{EDGE + share * (WIDTH - 2 * EDGE):.1f}"

    def stroke(value: float, colour: str, name: str, dashes: str = "") -> str:
        x = place(value)
        title = f"<title>{escape(name)} {value:.3f}</title>"
        ends = f'x1="{x}" x2="{x}" y1="3" y2="{HEIGHT - 3}"'
        return f'<line {ends} stroke="{colour}" stroke-width="2"{dashes}>{title}</line>'

    middle = HEIGHT // 2
    parts = [f'<line x1="{EDGE}" x2="{WIDTH - EDGE}" y1="{middle}" y2="{middle}" stroke="#e4e7eb"/>']
    if score.chance is not None:
        parts.append(stroke(score.chance, GREY, "chance", ' stroke-dasharray="3 2"'))
    parts += [stroke(value, ORANGE, name) for name, value in score.baselines.items()]
    if score.low is not None and score.high is not None:
        ends = f'x1="{place(score.low)}" x2="{place(score.high)}"'
        parts.append(f'<line {ends} y1="{middle}" y2="{middle}" stroke="{BLUE}" stroke-width="3" opacity=".45"/>')
    parts.append(f'<circle cx="{place(score.value)}" cy="{middle}" r="4" fill="{BLUE}"/>')
    label = escape(f"score {score.value:.3f}")
    return Raw(f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>')


def legend() -> Raw:
    """Return what the marks of the charts mean; the tables take more room than others."""
    return Raw(
        "<style>body { max-width: 78rem; }</style>\n"
        f'<p><span style="color:{BLUE}">●</span> the model, with its 95 % interval &nbsp; '
        f'<span style="color:{ORANGE}">|</span> simpler models, or the same one before &nbsp; '
        f'<span style="color:{GREY}">¦</span> a guess</p>\n'
    )


def reading(score: Score) -> str:
    """Return what a score says beside chance and simpler models, in words."""

    def beside(value: float) -> str:
        if score.low is not None and score.high is not None and score.low <= value <= score.high:
            return "level with"
        return "better than" if (score.value > value) == score.higher_is_better else "worse than"

    known = score.baselines | ({} if score.chance is None else {"chance": score.chance})
    words: dict[str, list[str]] = {}
    for name, value in known.items():
        words.setdefault(beside(value), []).append(name)
    return "; ".join(f"{how} {', '.join(names)}" for how, names in words.items())
