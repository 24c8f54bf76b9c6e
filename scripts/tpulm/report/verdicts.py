"""Judge each model in a sentence or two: what it is better and worse than, and what to do next.

The tokenizer and the records are judged only if they are unusual. docs/verdicts.md lists the rules.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from tpulm.report.curves import held_out
from tpulm.report.sources import Sources
from tpulm.report.standing import FORGOTTEN, MUCH, RIGHT, forgotten, standing
from tpulm.specs.artifacts import MANIFEST, TEST
from tpulm.specs.scores import BITS_PER_BYTE, LOSS, RESPONSES, TOKENS, WORSE, Score, find_scores, scores_in
from tpulm.workflow.reasons import are_mappings, differences, format_value

# Relative changes of the validation loss below this count as none.
CHANGE = 0.01
# Factors of the suggested steps: for a model with a warning, and for another one; the largest by a curve.
MANY, TWICE, MOST = 10, 2, 100
# If the validation loss falls by at least this share, more steps help a model that has forgotten much.
FAST = 0.05
# Share by which the validation loss may exceed the training loss.
GAP = 0.1
# Share by which the mean training loss before the last checkpoint may exceed the lowest before any.
DIVERGED = 0.1
# Tokens of an English word by OpenAI's tokenizers: "1 token is about 3/4 of a word" (its help page on tokens).
USUAL_TOKENS = 4 / 3
# Up to this mean length in characters, white space divides a text into words.
LONGEST_WORD = 12
# Limits of the shares of unknown tokens and of white space.
UNKNOWN, WHITESPACE = 0.001, 0.2
# Share of a vocabulary that should occur in a text with TOKENS_PER_PIECE times as many tokens.
USED, TOKENS_PER_PIECE = 0.5, 10
# Limit of the share of padding in records.
PADDING = 0.5
# The score of a run that is compared with that of its earlier run, by stage.
COMPARED = {
    "mlm": {"group": TOKENS, "metric": LOSS, "split": TEST},
    "base": {"metric": BITS_PER_BYTE, "set": "corpus", "split": TEST},
    "finetune": {"metric": BITS_PER_BYTE, "set": "finetune-text", "split": TEST},
}


@dataclass(frozen=True)
class Verdict:
    """A judgement on a model, the tokenizer or a set of records.

    label     the run, such as mlm/tiny; "tokenizer"; or the folder of the records
    warning   whether a model is no better than something much simpler, or the tokenizer lacks characters
    """

    label: str
    sentence: str
    warning: bool


def verdicts(runs: Iterable[dict[str, Any]], scores: Iterable[Mapping[str, Any]], sources: Sources) -> list[Verdict]:
    """Return verdicts on the tokenizer and the records if they are unusual, and on each evaluated run.

    They are in the order of the workflow, because a change of an earlier artifact makes the later ones anew.

    runs    from `result_section.describe_runs`; scores  from `curves.final_scores`
    """
    scores, runs = list(scores), list(runs)
    results = list(of_tokenizer(sources))
    if results and any(run["stage"] == "mlm" for run in runs):
        results[-1] = replace(results[-1], sentence=f"{results[-1].sentence} {AGAIN}")
    results += of_records(sources)
    corpus = sources.json("corpus/corpus.json") or {"splits": {"train": {}}}
    assessed, good_models = [], defaultdict(list)  # good_models: labels by base model
    for run in (run for run in runs if run["figures"]):
        own_scores = [row["score"] for row in scores if row["model"] == run["label"]]
        assessment, warning = standing(
            run["stage"], own_scores + run["losses"], corpus["splits"]["train"].get("characters")
        )
        next_step = advice(course_of(run, sources), warning, run, lead_of_ngrams(run["stage"], own_scores))
        assessment = f"{assessment} {earlier_score(run, own_scores + run['losses'], sources)}".rstrip()
        responses = None if warning else next((score for score in own_scores if score.group == RESPONSES), None)
        if responses and not responses.few and (responses.high or responses.value) >= RIGHT:
            next_step = DONE[responses.value >= RIGHT]
            good_models[run.get("base")].append(run["label"])
        assessed.append((run, assessment, warning, next_step))
    for run, assessment, warning, next_step in assessed:
        if derived := good_models[run["label"]]:
            next_step = LEAVE.format(" and ".join(derived), "is" if len(derived) == 1 else "are")
        base = run.get("base")
        bad_base = not good_models[base] and any(result.label == base and result.warning for result in results)
        # Learning comes before retention, and a lower rate is suggested once.
        retention = "" if warning or LONGER in next_step or "learning_rate" in next_step else keeping(run)
        first = FIRST.format(base) if bad_base and next_step not in DONE.values() else ""
        sentences = assessment, first, next_step, retention
        results.append(Verdict(run["label"], " ".join(filter(None, sentences)), warning))
    return results


def earlier_score(run: Mapping[str, Any], scores: Iterable[Score], sources: Sources) -> str:
    """Return the score of the earlier run of this name on the same items, with its values of the keys that differ."""
    *earlier, kept = sources.json(f"history/{run['label']}.json") or [None]
    score = next(find_scores(scores, **COMPARED[run["stage"]]), None)
    if not earlier or score is None:
        return ""
    before = scores_in(earlier[-1]["metrics"]) + scores_in({"scores": earlier[-1]["scores"]})
    other = next(find_scores(before, **COMPARED[run["stage"]], items=score.items), None)
    if other is None:
        return ""
    changes = differences(earlier[-1]["recipe"], kept["recipe"])
    values = [
        f"another {key}" if isinstance(old, dict) or are_mappings(old) else f"{key}: {format_value(old)}"
        for key, (old, _) in changes.items()
    ]
    return f"Before{', with ' * bool(values)}{' and '.join(values)}, it had {other.value:.2f}."


def of_tokenizer(sources: Sources) -> Iterator[Verdict]:
    """Yield a verdict for each unusual measure of the tokenizer on the validation split."""
    figures = sources.json("tokenizer/metrics.json")
    if not figures:
        return
    per_word, trained_here = figures["tokens_per_word"], "training_documents" in figures
    unknown = figures["unknown_rate"] - figures.get("unknown_written", 0.0)
    if unknown > UNKNOWN:
        flaw = f"{unknown:.1%} of the tokens are unknown: models cannot read or write their characters."
        trained_on_part = trained_here and figures["training_documents"] < figures["corpus_documents"]
        remedy = PART if trained_on_part else "Add text with them to the training split." if trained_here else ANOTHER
        remedy = COVERED[figures["model"] == "wordpiece"] if figures.get("rare_characters") else remedy
        yield Verdict("tokenizer", f"{flaw} {remedy}", True)
    if figures.get("whitespace_rate", 0.0) > WHITESPACE:
        flaw = f"{figures['whitespace_rate']:.0%} of the tokens are only white space, which leaves less room for text. "
        remedy = FEWER.get(figures.get("whitespace"), ANOTHER) if figures.get("characters_known") else ANOTHER
        yield Verdict("tokenizer", f"{flaw}{remedy}", False)
    elif per_word > 2 * USUAL_TOKENS and figures["characters"] < LONGEST_WORD * figures["words"]:
        flaw = f"{per_word:.1f} tokens per word, where tokenizers of large models have {USUAL_TOKENS:.1f} in English. "
        remedy = "A larger tokenizer.vocab_size gives fewer." if trained_here else ANOTHER
        yield Verdict("tokenizer", f"{flaw}{remedy}", False)
    pieces = sources.json("tokenizer/pieces.json")
    count = sum(row["used"] + row["unused"] for row in pieces["lengths"]) if pieces else 0
    if trained_here and figures["vocabulary_used"] < USED and figures["tokens"] > TOKENS_PER_PIECE * count > 0:
        flaw = f"Only {figures['vocabulary_used']:.0%} of its pieces occur in the validation split"
        yield Verdict("tokenizer", f"{flaw}: a smaller tokenizer.vocab_size makes smaller models.", False)


def of_records(sources: Sources) -> Iterator[Verdict]:
    """Yield a verdict for each set of training records that is mostly padding, or whose text spells special tokens."""
    for file in sources.names(f"*{MANIFEST}"):
        manifest = sources.json(file)
        split = manifest["splits"].get("train")
        if spelled := (split or {}).get("special_tokens_in_text"):
            flaw = f"The training text spells {spelled:,} special tokens, such as [MASK], which models read as these. "
            flaw += "If they are not meant, remove them from the text."
            yield Verdict(file.removesuffix(f"/{MANIFEST}"), flaw, False)
        if manifest["packing"] != "pad" or not split or not split["records"] or "documents" not in split:
            continue
        length = (split["tokens"] - split["dropped_tokens"]) / split["records"]
        padding = 1 - length / manifest["tokens_per_record"]
        if padding > PADDING:
            shorter = "" if split["dropped_tokens"] else "a smaller sequence_length, or "
            flaw = f"{padding:.0%} of the tokens of these records are padding, which takes time and teaches nothing. "
            flaw += f"A record has {length:.0f} tokens of text on average. Use {shorter}packing: concat."
            yield Verdict(file.removesuffix(f"/{MANIFEST}"), flaw, False)


# By whether the score itself is high enough, or only a value in its interval.
DONE = {
    True: "For the finetuning text, nothing is left to do.",
    False: "More held-out prompts would show whether anything is left to do.",
}
LONGER = "train longer"
PART = "It was trained on a part of the text: train it on more (tokenizer.train_on)."
ANOTHER = "Another tokenizer fits this text better."
COVERED = (
    "A larger tokenizer.character_coverage, byte_fallback: true or tokenizer.model: byte-level-bpe covers them.",
    "A larger tokenizer.character_coverage or tokenizer.model: byte-level-bpe covers them.",
)
AGAIN = "Only masked models use this tokenizer. After a change to it, the next run trains them again."
FIRST = "First improve {}, which it is made from."
LEAVE = "Leave it as it is: {} {} made from it and good."
# By tokenizer.whitespace: how to have fewer tokens of white space.
FOLD = "tokenizer.whitespace: fold. Then one space takes the place of all white space, and line breaks are lost."
FEWER = {
    "keep": "Set tokenizer.whitespace: runs. Then several spaces are one token, and nothing is lost. "
    f"Or, only if layout means nothing in this text, set {FOLD}",
    "runs": f"Only if layout means nothing in this text, set {FOLD}",
}


def keeping(run: Mapping[str, Any]) -> str:
    """Return advice for a finetuning to forget less; empty if it forgets little."""
    if run["stage"] != "finetune" or forgotten(run["losses"]) <= FORGOTTEN:
        return ""
    return f"If it has to keep more of the corpus, try {lower_rate(run, 3, 'a third')}: it then learns more slowly."


def lower_rate(run: Mapping[str, Any], times: int, share: str) -> str:
    """Return words for the learning rate of a run divided by `times`, with its key; share  that quotient in words."""
    return f"{run['key']}.learning_rate: {run['learning_rate'] / times:.2g}, {share} of today's"


@dataclass(frozen=True)
class Course:
    """Validation losses of a training by step of its checkpoints, and mean training losses between them."""

    held_out: dict[int, float]
    train: list[float]

    @property
    def best(self) -> int:
        """Step with the lowest validation loss."""
        return min(self.held_out, key=lambda step: self.held_out[step])

    @property
    def change(self) -> float | None:
        """Share by which the validation loss fell between the last two checkpoints; None for one only."""
        losses = list(self.held_out.values())
        return None if len(losses) < 2 else 1 - losses[-1] / losses[-2]

    def times(self, ratio: float) -> int:
        """Return by how many times the steps the validation loss falls to 1 / `ratio` at the earliest, at most MOST.

        The loss falls with a power of the steps (Kaplan et al. 2020), at most that between the last two checkpoints,
        where the learning rate may have decayed, and as long as there is more text to learn.
        """
        (before, higher), (after, lower) = list(self.held_out.items())[-2:]
        power = math.log(higher / lower) / math.log(after / before)
        return math.ceil(min(MOST, ratio ** (1 / power)))


def course_of(run: dict[str, Any], sources: Sources) -> Course | None:
    """Return the losses of a run; None without checkpoints."""
    history = sources.columns(f"{run['folder']}/history.csv")
    curve = held_out(run, {}, [], sources)
    if curve is None:
        return None
    losses = dict(zip(curve["steps"], curve["values"], strict=True))
    steps, train_losses = (list(map(float, history.get(name, []))) for name in ("step", "loss"))
    ends = [bisect_right(steps, step) for step in (0, *losses)]
    spans = [train_losses[start:stop] for start, stop in pairwise(ends)]
    return Course(losses, [fmean(span) for span in spans if span])


def lead_of_ngrams(stage: str, scores: Iterable[Score]) -> float:
    """Return by which factor a base model has more bits per byte than a 5-gram model; 1.0 if it is not worse."""
    score = next(find_scores(scores, metric=BITS_PER_BYTE, set="corpus", split=TEST), None)
    if stage != "base" or score is None or score.few:
        return 1.0
    ngram = score.baselines.get("5-gram", math.inf)
    return score.value / ngram if score.verdict_against(ngram) == WORSE else 1.0


def advice(course: Course | None, warning: bool, run: Mapping[str, Any], lead: float) -> str:
    """Return the next thing to do; empty without a course. lead  by which factor a 5-gram model is better.

    Training and validation loss are not compared in finetuning, because its texts differ by design.
    """
    if course is None:
        return ""
    last, change = max(course.held_out), course.change
    loss, lowest = course.held_out[last], course.held_out[course.best]
    if loss > (1 + CHANGE) * lowest:
        if course.train and course.train[-1] > (1 + DIVERGED) * min(course.train):
            risen = f"The losses have risen again, in training from {min(course.train):.2f} to {course.train[-1]:.2f}"
            return f"{risen}: try {lower_rate(run, 3, 'a third')}, or more {run['key']}.schedule.warmup_steps."
        epochs = run["figures"].get("epochs")
        passes = f", after {epochs:,.0f} passes over its text" if epochs and epochs >= 2 else ""
        risen = f"The validation loss has risen from {lowest:.2f} at step {course.best:,} to {loss:.2f}{passes}"
        return (
            f"{risen}: the weights of step {course.best:,} are used. Train on more text, or reduce {run['key']}.steps."
        )
    forgot = run["stage"] == "finetune" and forgotten(run["losses"]) > MUCH
    if warning and forgot and (change is None or change < FAST):
        remedy = f"try {lower_rate(run, 10, 'a tenth')}, and lower still if that fails"
        return f"Its learning_rate is probably too high: {remedy}."
    falling = change is not None and change > CHANGE
    times = course.times(lead) if falling and lead > 1 else MOST
    factor, reached = MANY if warning else TWICE, ""
    if times < MOST:
        factor, reached = times, "; at this rate, it reaches the 5-gram model after that many steps at the earliest"
    longer = f"{LONGER}, such as {run['key']}.steps: {factor * last} instead of {last}{reached}"
    if falling:
        fell = f"The validation loss was still falling, by {change:.1%} between the last two checkpoints"
        return f"{fell}: {longer}."
    if warning and change is None:
        every = f"{run['key']}.checkpoint_every: {last}"
        return f"With only one checkpoint, it cannot be seen whether it was still learning: {longer}, with {every}."
    if warning:
        rate, key = run["learning_rate"], f"{run['key']}.learning_rate"
        return f"Try {key}: {3 * rate:.2g} or {rate / 3:.2g} instead of {rate:.2g}, then more steps."
    if course.train and run["stage"] != "finetune" and loss > (1 + GAP) * course.train[-1]:
        known = f"loss {course.train[-1]:.2f} in training, {loss:.2f} in validation"
        return f"It knows its training text better than held-out text ({known}): train on more text."
    if change is None:
        return f"With a second checkpoint (a lower {run['key']}.checkpoint_every), more can be said."
    return "The validation loss has levelled off: a larger model or more text will do more than more steps."
