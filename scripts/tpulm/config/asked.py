"""What is asked of finished models: which masked ones, and how samples are drawn."""

import os
from collections.abc import Mapping

from tpulm.config.runs import Run, pick


def asked_of(config: Mapping, trained: Mapping[str, Run]) -> tuple[dict[str, Run], dict[str, Run]]:
    """Return the masked models that are asked, by name, and those of them that are measured.

    trained  those that are trained here. A pretrained model is measured where the records are in its vocabulary.
    """
    pretrained = {name: recipe for name, recipe in config["mlm"]["runs"].items() if "pretrained" in recipe}
    asked = {**trained, **{name: Run("mlm", name, config) for name in pretrained}}
    fits = [name for name in pretrained if "tfrecords" in config and same_origin(pretrained[name], config["tokenizer"])]
    return asked, {name: run for name, run in asked.items() if name in trained or name in fits}


def same_origin(one: Mapping, other: Mapping) -> bool:
    """Return whether two sections of the config take what they take from the same folder, or commit of the hub."""
    places = [section.get("pretrained") and os.path.normpath(section["pretrained"]) for section in (one, other)]
    return bool(places[0]) and places[0] == places[1] and one.get("revision") == other.get("revision")


def sampling_of(config: Mapping) -> dict:
    """Return how samples are drawn: of the keys under generation, those that its sampler reads."""
    own = {"greedy": (), "top_k": ("k", "temperature", "seed"), "top_p": ("p", "temperature", "seed")}
    return pick(config["generation"], "sampler", "max_length", "samples", *own[config["generation"]["sampler"]])
