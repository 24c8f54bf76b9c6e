"""Classification heads of masked models on tasks: their settings, also from a config.json."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from tpulm.specs.masked_sizes import config_recipe

CLASS, NUMBER = "class", "number"
# Weights from which a model on a task starts: its own, or random ones, as a baseline.
PRETRAINED, RANDOM = "pretrained", "random"


@dataclass(frozen=True)
class ClassificationHead:
    """A classification head on a masked model.

    predict   CLASS or NUMBER
    outputs   labels, or 1 for a number
    dropout   of the inputs of its layers; None for that of the hidden states, or, for ModernBERT, no dropout
    pooling   hidden states that a ModernBERT's head reads, see `tpulm.models.task_models.ModernBertHead`
    """

    predict: str
    outputs: int
    dropout: float | None = None
    pooling: str = "cls"

    @classmethod
    def of(cls, recipe: Mapping) -> Self:
        """Return the head of a recipe: predict, outputs, and head, see `masked_model`."""
        return cls(recipe["predict"], recipe["outputs"], **recipe["head"])


def outputs_of(predict: str, labels: Collection) -> int:
    """Return the number of outputs of a head; labels  of the task, see task.json."""
    return 1 if predict == NUMBER else len(labels)


def masked_model(config: Mapping) -> dict:
    """Return the recipe of a masked model in a task's step from its config.json: model, vocabulary, head."""
    return {
        "model": config_recipe(config),
        "vocabulary": {"size": config["vocab_size"], "pad": config["pad_token_id"]},
        "head": {"dropout": config.get("classifier_dropout"), "pooling": config.get("classifier_pooling", "cls")},
    }
