"""Models that are scored, prompted or finetuned on tasks, and the files that each is made of."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tpulm.config.runs import Run
from tpulm.specs.artifacts import EXPORTED, MODEL_FILES
from tpulm.specs.recipes import pick


@dataclass(frozen=True)
class Model:
    """What a run ends with, or what it was at a checkpoint.

    run  whose model it is: trained here or, of a masked or a base model, from elsewhere
    at   the step of the checkpoint; None for what the run ends with
    """

    run: Run
    at: int | None = None

    @classmethod
    def of(cls, run: Run, wildcards: Any) -> Self:
        """Return what a run ends with or, where a job has the wildcard `step`, what it was at that checkpoint."""
        return cls(run, int(wildcards.step) if "step" in wildcards.keys() else None)

    @property
    def path(self) -> str:
        """Its path below results/, such as mlm/tiny; of a checkpoint mlm/tiny/00000750."""
        path = self.run.path
        return path if self.at is None else f"{path}/{self.at:08d}"

    @property
    def named(self) -> dict:
        """What results say of it: the path of the model that its run ends with; the step, where it is a checkpoint."""
        return {"path": Model(self.run).path, **({} if self.at is None else {"step": self.at})}

    @property
    def weights(self) -> str:
        """The trained variables."""
        return self.run.best if self.at is None else self.run.checkpoint(self.at)["weights"]

    @property
    def tuned(self) -> str | list[str]:
        """Those of a finetuned model, which belong to `preset`; none of another one."""
        return self.weights if self.run.stage == "finetune" else []

    @property
    def exported(self) -> str:
        """The folder of a masked model, in the format of Hugging Face, or the preset folder of a base model."""
        folder = self.run.folder if self.at is None else f"{EXPORTED}/{self.path}"
        return f"{folder}/{'preset' if self.run.stage == 'base' else 'model'}"

    @property
    def files(self) -> list[str]:
        """The files of a masked model's folder."""
        return [f"{self.exported}/{file}" for file in MODEL_FILES]

    @property
    def preset(self) -> str:
        """The preset folder that a causal model is opened from: of a finetuned one, its base model's."""
        return f"<results>/base/{self.run.recipe['base']}/preset" if self.run.stage == "finetune" else self.exported

    @property
    def fingerprint(self) -> str:
        """The file that tells whether `preset` has changed, which Snakemake compares by its date only."""
        return f"{self.preset}.json"


OF_FETCHED = 0  # the seed that samples of a model are drawn by which has no run of its own


def opener(run: Run) -> Run:
    """Return the run that says where and how the model of a run is opened.

    Itself, or for a base model that was fetched the first finetuning run on it, by name: what it takes to tune a model
    is enough to ask it. One that nothing tunes is opened with the defaults of the schema.
    """
    tuned = run.config["finetune"]["runs"].items() if "preset" in run.recipe else ()
    tuning = sorted(name for name, recipe in tuned if recipe["base"] == run.name)
    return Run("finetune", tuning[0], run.config) if tuning else run


def opening(model: Model) -> dict:
    """Return what a job that asks a model takes of the config: what opens it, and which one it is."""
    run = model.run
    if run.stage == "finetune":
        return {"key": run.key, **model.named, **run.loading_params()}
    by = opener(run)
    kept = pick(by.recipe, "precision", "mesh", "layout", "host_device_count", *by.determinism_keys)
    seed = by.recipe["seed"] if by.stage == "base" else OF_FETCHED
    return {"key": run.key, **model.named, **kept, "cpu_threads": run.config["cpu_threads"], "seed": seed}


def masked_models(config: Mapping) -> dict[str, Run]:
    """Return the masked models of a completed config by name, those that are trained here first."""
    runs = (Run("mlm", name, config) for name in config["mlm"]["runs"])
    return {run.name: run for run in sorted(runs, key=lambda run: "pretrained" in run.recipe)}


def is_measured(run: Run) -> bool:
    """Return whether a masked model is measured on the records: one that is trained here, or has their vocabulary."""
    fits = "tfrecords" in run.config and same_origin(run.recipe, run.config["tokenizer"])
    return fits or "pretrained" not in run.recipe


def same_origin(one: Mapping, other: Mapping) -> bool:
    """Return whether two sections of the config take what they take from the same folder, or commit of the hub."""
    places = [section.get("pretrained") and os.path.normpath(section["pretrained"]) for section in (one, other)]
    return bool(places[0]) and places[0] == places[1] and one.get("revision") == other.get("revision")


def sampling_of(config: Mapping) -> dict:
    """Return how samples are drawn: of the keys under generation, those that its sampler reads."""
    own = {"greedy": (), "top_k": ("k", "temperature", "seed"), "top_p": ("p", "temperature", "seed")}
    return pick(config["generation"], "sampler", "max_length", "samples", *own[config["generation"]["sampler"]])
