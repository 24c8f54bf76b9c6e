"""Models that can be finetuned on tasks: those of the config, and what stands in the way of one."""

from collections.abc import Mapping

from tpulm.config.asked import asked_of
from tpulm.config.label_heads import exported_model, without_either
from tpulm.config.masked_sizes import sizes_of
from tpulm.config.runs import Run, runs_of
from tpulm.core.errors import UserError
from tpulm.core.scores import CAUSAL, MASKED


def kind_of(path: str) -> str:
    """Return whether a model is masked or causal; path  below results/, such as mlm/tiny."""
    return MASKED if path.startswith("mlm/") else CAUSAL


def candidates(config: Mapping) -> dict[str, Run]:
    """Return the models of a completed config by their paths below results/, such as mlm/tiny or finetune/python."""
    causal = [Run("base", name, config) for name in config["base"]]
    causal += [Run("finetune", name, config) for name in config["finetune"]["runs"]]
    return masked_candidates(config) | {run.folder.removeprefix("results/"): run for run in causal}


def masked_candidates(config: Mapping) -> dict[str, Run]:
    """Return the masked models of a completed config, pretrained ones, too, as `candidates` does."""
    trained = {run.name: run for run in runs_of(config) if run.stage == "mlm"}
    asked, _ = asked_of(config, trained)
    return {f"mlm/{name}": run for name, run in asked.items()}


def obstacle(run: Run) -> str | None:
    """Return why JAX cannot open a model, as far as the config tells; None where it can, as every causal one.

    Of a model that is fetched, its config.json tells, which another job reads.
    """
    if run.stage != "mlm" or "model" not in run.recipe:
        return None
    try:
        sizes_of(without_either(exported_model(run.recipe["model"], run.backend)), f"{run.key}.model")
    except UserError as error:
        return str(error)
    return None
