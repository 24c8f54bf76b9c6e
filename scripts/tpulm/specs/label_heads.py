"""Heads for labels of masked models on tasks: what they predict, and what the config.json of the model says of them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tpulm.specs.masked_sizes import ATTENTION_DROPOUT, EPSILON, KINDS, TYPES, config_recipe

CLASS, NUMBER = "class", "number"
# Whose weights a model on a task starts from: the model's, or random ones, as a baseline.
PRETRAINED, RANDOM = "pretrained", "random"
# What models on JAX do not have of their own, but may be opened with.
EITHER = (EPSILON, TYPES)
# What transformers' RobertaConfig has where a run on TensorFlow says nothing, and JAX has otherwise.
OF_TRANSFORMERS: dict[str, Any] = {EPSILON: 1e-12, ATTENTION_DROPOUT: 0.1}


@dataclass(frozen=True)
class LabelHead:
    """A head for labels on a masked model.

    predict   CLASS or NUMBER
    outputs   labels, or 1 for a number
    dropout   of what the layers of the head read; None for that of the hidden states, or of ModernBERT none
    pooling   which hidden states a ModernBERT's head reads, see `tpulm.models.task_models.ModernBertHead`
    epsilon   of the normalizations of its masked model; None for the built-in one
    """

    predict: str
    outputs: int
    dropout: float | None = None
    pooling: str = "cls"
    epsilon: float | None = None

    @classmethod
    def of(cls, recipe: Mapping) -> Self:
        """Return the head of a recipe: predict, outputs, and head, see `masked_model`."""
        return cls(recipe["predict"], recipe["outputs"], **recipe["head"])


def outputs_of(predict: str, labels: Collection) -> int:
    """Return the outputs of a head; labels  of the task, see task.json."""
    return 1 if predict == NUMBER else len(labels)


def masked_model(config: Mapping) -> dict:
    """Return what the recipe of a task's step says of a masked model, from its config.json.

    model, vocabulary, head
    """
    head = {"dropout": config.get("classifier_dropout"), "epsilon": config.get(EPSILON)}
    return {
        "model": without_either(config_recipe(config)),
        "vocabulary": {"size": config["vocab_size"], "pad": config["pad_token_id"]},
        "head": head | {"pooling": config.get("classifier_pooling", "cls")},
    }


def exported_model(model: Mapping, backend: str) -> dict:
    """Return `model`, a run's in the config, with what its export is going to say that the config leaves out."""
    kind = KINDS.get(model["architecture"])
    built_in = kind.built_in if kind else {}
    return {**(OF_TRANSFORMERS if backend == "tensorflow" else built_in), **model}


def without_either(model: Mapping) -> dict:
    """Return what a config says of a model without the keys EITHER.

    In RoBERTas of runs on TensorFlow they are 1e-12 and 2 by default, of those on JAX always 1e-5 and 1: a model is
    finetuned with its own epsilon, and with the one token type that there is in a text.
    """
    return {key: value for key, value in model.items() if key not in EITHER}
