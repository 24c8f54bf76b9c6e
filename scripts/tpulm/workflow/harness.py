"""How the base models are opened that tasks of lm-evaluation-harness are run on."""

from collections.abc import Mapping

from tpulm.config.runs import Run, pick

OF_FETCHED = 0  # the seed that samples of a model are drawn by which has no run of its own


def opener(config: Mapping, name: str) -> Run:
    """Return the run that says where and how a base model is opened.

    Its own, or for a model that was fetched the first finetuning run on it, by name: what it takes to tune a model is
    enough to ask it. One that nothing tunes is opened with the defaults of the schema.
    """
    tuning = sorted(run for run, recipe in config["finetune"]["runs"].items() if recipe["base"] == name)
    if "model" in config["base"][name] or not tuning:
        return Run("base", name, config)
    return Run("finetune", tuning[0], config)


def opening_of_base(config: Mapping, run: Run) -> dict:
    """Return what it takes to open a base model: of the run that `opener` returns, and the seed of the model's own."""
    kept = pick(run.recipe, "precision", "mesh", "layout", "host_device_count", *run.determinism_keys)
    seed = run.recipe["seed"] if run.stage == "base" else OF_FETCHED
    return kept | {"cpu_threads": config["cpu_threads"], "seed": seed}
