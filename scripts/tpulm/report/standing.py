"""Say in a sentence or two which baselines a model is better and worse than, by its scores."""

from collections.abc import Sequence

from tpulm.specs.artifacts import TEST
from tpulm.specs.scores import (
    BASE,
    BETTER,
    BITS_PER_BYTE,
    FEWEST,
    FREQUENCIES,
    LOSS,
    RESPONSES,
    TOKENS,
    WORSE,
    Score,
    find_scores,
)

# Characters of training text up to which a 5-gram model is expected to beat a small network.
LITTLE = 20_000_000
# Share by which finetuning may raise the loss on the corpus.
FORGOTTEN = 0.1
# Rise that is much: a sign of too high a learning rate, if the model is no better for it.
MUCH = 1.0
# Share of right responses from which on there is nothing to improve.
RIGHT = 0.99


def standing(stage: str, scores: Sequence[Score], characters: int | None = None) -> tuple[str, bool]:
    """Return how a model compares with its baselines, in words, and whether that is a warning.

    stage       mlm, base or finetune
    scores      of the model at the end of its run, also those in metrics.json
    characters  of the training split of the corpus
    """
    if stage == "mlm":
        return beside_frequencies(scores, "masked token")
    return standing_of_tuned(scores) if stage == "finetune" else standing_of_base(scores, characters)


def standing_of_base(scores: Sequence[Score], characters: int | None) -> tuple[str, bool]:
    """Return the `standing` of a base model."""
    score = next(find_scores(scores, metric=BITS_PER_BYTE, set="corpus", split=TEST), None)
    if score is None or "5-gram" not in score.baselines:
        return beside_frequencies(scores, "token")
    unigram, ngram = score.baselines["unigram"], score.baselines["5-gram"]
    figure = f"{score.value:.2f} bits per byte"
    if score.few:
        return f"It has {figure} on {too_few(score)}", False
    if score.verdict_against(unigram) != BETTER:
        return f"No better than token frequencies: {figure}; token frequencies give {unigram:.2f}.", True
    if score.verdict_against(ngram) != WORSE:
        how = "Better than" if score.verdict_against(ngram) == BETTER else "As good as"
        return f"{how} a 5-gram model of the same text: {figure}, where that has {ngram:.2f}.", False
    sentence = f"Better than token frequencies, worse than a 5-gram model of the same text: {figure}, where that has "
    if characters is not None and characters > LITTLE:
        return f"{sentence}{ngram:.2f}. With so much text, a network should be better.", True
    return f"{sentence}{ngram:.2f}. That is expected after a short training on little text, and can be improved.", False


def standing_of_tuned(scores: Sequence[Score]) -> tuple[str, bool]:
    """Return the `standing` of a finetuned model, compared with its base model."""
    loss = next(find_scores(scores, group=TOKENS, metric=LOSS, set="finetune-text", split=TEST))
    before, after, unit = loss.baselines[BASE], loss.value, "nats per token"
    score = next(find_scores(scores, metric=BITS_PER_BYTE, set="finetune-text", split=TEST), None)
    better, simpler, few = after < before, None, ""
    if score and BASE in score.baselines:
        before, after, unit = score.baselines[BASE], score.value, "bits per byte"
        better, simpler = score.few or score.verdict_against(before) == BETTER, score.baselines.get("5-gram")
        few = f" The score is of {too_few(score)}" if score.few else ""
    verdict = f"{'Better' if better else 'No better'} than its base model on the finetuning text"
    baselines = f"that has {before:.2f}"
    if few:
        verdict, baselines = "On the finetuning text", f"its base model has {before:.2f}"
    elif simpler and simpler < after:
        verdict = f"{verdict}, {'but ' if better else ''}worse than a 5-gram model of it"
        baselines = f"the base model has {before:.2f} and the 5-gram model {simpler:.2f}"
    answers = next(find_scores(scores, group=RESPONSES), None)
    sentences = []
    if answers:
        share = f"{answers.value:.1%}" if RIGHT <= answers.value < 1 else f"{answers.value:.0%}"
        sentence = f"{share} of its responses to {answers.items:,} held-out prompts are right"
        frequent = answers.baselines["most frequent response"]
        if answers.few:
            sentence = f"{sentence}; these are too few to compare, {FEWEST} are needed"
        elif answers.verdict_against(frequent) != BETTER:
            sentence, better = f"{sentence}; the most frequent response alone would be right in {frequent:.0%}", False
        sentences.append(f"{sentence}.")
    sentences.append(f"{verdict}: {after:.2f} {unit}, where {baselines}.{few}")
    if (rise := forgotten(scores)) > FORGOTTEN:
        how_much = "much" if rise > MUCH else "some"
        sentences.append(f"It has forgotten {how_much} of the corpus: the loss there rose by {rise:.0%}.")
    return " ".join(sentences), not better


def too_few(score: Score) -> str:
    """Return in words that a score has too few documents to be compared, and what to change."""
    return (
        f"{score.items} document{'s'[: score.items != 1]}, which are too few to compare: {FEWEST} are needed. "
        "A larger held_out gives more, as does a text of more documents or, for .txt files, a smaller sample_by."
    )


def forgotten(scores: Sequence[Score]) -> float:
    """Return the share by which finetuning has raised the loss on the corpus, 0.0 if that was not measured."""
    loss = next(find_scores(scores, group=TOKENS, metric=LOSS, set="corpus"), None)
    return loss.value / loss.baselines[BASE] - 1 if loss else 0.0


def beside_frequencies(scores: Sequence[Score], what: str) -> tuple[str, bool]:
    """Return the `standing` of a loss, nats per `what`, compared with that of token frequencies."""
    loss = next(find_scores(scores, group=TOKENS, metric=LOSS, split=TEST))
    figure, alone = f"a loss of {loss.value:.2f} nats per {what}", loss.baselines.get(FREQUENCIES)
    if alone is None:  # until 0.4.0: 0.2.0 did not measure it
        return f"It has {figure}.", False
    better = loss.value < alone
    how = "Better" if better else "No better"
    return f"{how} than token frequencies: {figure}; token frequencies give {alone:.2f}.", not better
