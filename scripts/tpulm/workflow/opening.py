"""How a causal model is opened to be scored, asked by lm-evaluation-harness, or asked as it was at a checkpoint."""

from collections.abc import Callable, Mapping
from typing import Any

from snakemake.io import ancient

from tpulm.config.model import Model
from tpulm.config.runs import Run, pick

OF_FETCHED = 0  # the seed that samples of a model are drawn by which has no run of its own


def opened(models: Mapping[str, Model]) -> dict[str, Callable[[Any], Any]]:
    """Return the inputs that open one of these models, by the wildcard `model`.

    The preset folder is `ancient`: its fingerprint tells of a change.
    """
    return {
        "base": lambda wildcards: ancient(models[wildcards.model].preset),
        "fingerprint": lambda wildcards: models[wildcards.model].fingerprint,
        "best": lambda wildcards: models[wildcards.model].tuned,
    }


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
        return {"key": run.key, **model.named, **run.opening()}
    by = opener(run)
    kept = pick(by.recipe, "precision", "mesh", "layout", "host_device_count", *by.determinism_keys)
    seed = by.recipe["seed"] if by.stage == "base" else OF_FETCHED
    return {"key": run.key, **model.named, **kept, "cpu_threads": run.config["cpu_threads"], "seed": seed}
