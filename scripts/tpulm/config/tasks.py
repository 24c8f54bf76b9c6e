"""Tasks that models are finetuned on: what the config says of each, and which chains of checkpoints there are."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpulm.config.label_heads import CLASS, NUMBER, TOKEN_CLASSES
from tpulm.config.runs import Run, pick
from tpulm.config.task_candidates import candidates, masked_candidates, obstacle
from tpulm.config.task_chains import FOLDER, PRETRAINED, RANDOM, TaskChain

# The metrics that fit what is predicted; the first one is the default.
METRICS = {
    CLASS: ("accuracy", "f1", "matthews"),
    NUMBER: ("pearson", "spearman"),
    TOKEN_CLASSES: ("accuracy", "f1"),
}


@dataclass(frozen=True)
class Task:
    """A task of the config."""

    name: str
    config: Mapping  # all of it, completed

    @property
    def recipe(self) -> dict:
        """What the config says of it."""
        return self.config["evaluation"]["tasks"][self.name]

    @property
    def key(self) -> str:
        """How the config names it."""
        return f"evaluation.tasks.{self.name}"

    @property
    def folder(self) -> str:
        """Where its examples are."""
        return f"{FOLDER}/{self.name}"

    @property
    def metrics(self) -> list[str]:
        """What is measured; the first one selects."""
        return self.recipe.get("metrics", list(METRICS[self.recipe["predict"]][:1]))

    @property
    def reading(self) -> dict:
        """What the job that reads the examples takes of the recipe."""
        recipe = self.recipe
        keys = {
            "python-modules": ("modules",),
            "files": ("files", "text", "text_pair", "label"),
            "hub": ("dataset", "name", "revision", "splits", "text", "text_pair", "label"),
        }
        kept = {key: recipe[key] for key in keys[recipe["source"]] if key in recipe}
        named = self.named_splits
        held_out = {split: share for split, share in recipe["held_out"].items() if split not in named}
        if set(held_out) == {"seed"}:
            held_out = {}
        return {"key": self.key, **pick(recipe, "source", "predict"), "held_out": held_out, **kept}

    @property
    def named_splits(self) -> list[str]:
        """The splits that the source has."""
        recipe = self.recipe
        if recipe["source"] == "hub":
            return list(recipe["splits"])
        files = recipe.get("files")
        return list(files) if isinstance(files, dict) else ["train"]

    @property
    def baselines(self) -> dict:
        """What the job that makes the baselines without a model takes of the recipe."""
        names = [name for name in self.recipe["baselines"] if name != "random_weights"]
        return {"names": names, "predict": self.recipe["predict"]}

    @property
    def scoring(self) -> dict:
        """What the job that makes the scores takes of the recipe."""
        splits = self.recipe.get("splits") or self.recipe.get("files")
        same = isinstance(splits, dict) and "test" in splits and splits.get("validation") == splits["test"]
        return {
            "metrics": self.metrics,
            "title": self.recipe.get("title", self.name),
            "predict": self.recipe["predict"],
            "selected_on_test": same,
        }

    def chains(self, model: Run, at: int | None = None) -> list[TaskChain]:
        """Return the chains of a model: of its weights, then of random ones where they are a baseline.

        at  the step of the checkpoint whose weights those are; random ones are the same for all
        """
        starts = [(PRETRAINED, at)] + ([(RANDOM, None)] if "random_weights" in self.recipe["baselines"] else [])
        return [
            TaskChain(model.stage, model.name, self.config, self.name, start, float(rate), seed, step)
            for start, step in starts
            for rate in self.recipe["learning_rates"]
            for seed in self.recipe["seeds"]
        ]

    @property
    def models(self) -> list[Run]:
        """The models that are finetuned on it."""
        if "models" in self.recipe:
            known = candidates(self.config)
            return [known[path] for path in self.recipe["models"]]
        return [run for run in masked_candidates(self.config).values() if obstacle(run) is None]

    @property
    def left_out(self) -> str | None:
        """A sentence that says which models JAX cannot open, where the config names none; None where it can all."""
        if "models" in self.recipe:
            return None
        found = [run.key for run in masked_candidates(self.config).values() if obstacle(run) is not None]
        return f"{self.key} leaves out {', '.join(found)}, which JAX cannot open." if found else None


def labelled_tasks(config: Mapping) -> list[Task]:
    """Return the tasks of a completed config that some model is finetuned on."""
    tasks = [Task(name, config) for name in config["evaluation"]["tasks"]]
    return [task for task in tasks if task.models]
