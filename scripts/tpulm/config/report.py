"""The recipe of the report's page, the comparisons of models, and the check of published figures."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tpulm.config.evaluations import Evaluations
from tpulm.config.outline import Model, Outline, Run
from tpulm.config.sweeps import group_name, repetitions
from tpulm.core.errors import UserError, describe
from tpulm.specs.artifacts import PUBLISHED_FIGURES
from tpulm.specs.recipes import STAGES


def page_recipe(
    outline: Outline, rules: Mapping[str, str], configfiles: Iterable[str], prefixed: Callable[[str], str] = str
) -> dict[str, Any]:
    """Return the recipe of the report's page: title, results, runs (`page_run`), texts, prices, CPU costs, rules.

    rules        the stage of each rule, by its name
    configfiles  paths of the config; none for a module
    prefixed     returns a path with the prefix of the module that this workflow is, if it is one
    """
    config = outline.config
    return {
        "title": config["title"],
        "results": prefixed("<results>"),
        "runs": [page_run(run, prefixed) for run in outline.runs.values()],
        "texts": list(outline.texts),
        "prices": dict(config["plan"]["prices"]),
        "cpu_watts": config["report"]["cpu_watts"],
        "cpu_price": config["report"]["cpu_price"],
        "rules": dict(rules),
        "configfiles": list(map(str, configfiles)),
    }


def page_run(run: Run, prefixed: Callable[[str], str]) -> dict[str, Any]:
    """Return the part of a page's recipe for a run: its stage, name, label, config key, learning rate, folder and log.

    log  grows while it trains; base  label of its base model, for stage finetune only; phases  if the config has some:
    what each takes of the records, and its last step
    """
    base = {"base": f"base/{run.recipe['base']}"} if run.stage == "finetune" else {}
    phases = [phase.entry | {"until": phase.until} for phase in run.phases]
    return (base | ({"phases": phases} if run.recipe.get("phases") else {})) | {
        "stage": run.stage,
        "name": run.name,
        "label": run.path,
        "key": run.key,
        "learning_rate": run.recipe.get("learning_rate"),
        "folder": run.path,
        "log": prefixed(f"<logs>/{run.stage}/{run.name}/metrics.jsonl"),
    }


def comparisons(config: Mapping, models: Iterable[Model]) -> list[dict[str, Any]]:
    """Return the comparisons: names of two models, first and second, and the runs of each, firsts and seconds.

    evaluation.compare names them. By default, every model is compared with the first one of its stage, and every
    finetuned model with its base model. Raises UserError for a name that no model has.
    """
    runs = list(models)
    # Models that differ in their seeds only, by the name of the group: STAGE/RUN.
    groups = {
        f"{group[0].stage}/{group_name([run.name for run in group])}": [run.path for run in group]
        for group in repetitions(runs)
    }
    pairs = [tuple(pair) for pair in config["evaluation"]["compare"]] or list(default_pairs(runs, groups))
    single = {run.path: [run.path] for run in runs} | groups
    for name in (name for pair in pairs for name in pair):
        if name not in single:
            raise UserError(
                f"evaluation.compare has {describe(name)}; allowed: {', '.join(sorted(single)) or 'none: no runs'}."
            )
    return [
        {"first": first, "second": second, "firsts": single[first], "seconds": single[second]}
        for first, second in pairs
    ]


def default_pairs(runs: list[Model], groups: Mapping[str, list[str]]) -> Iterable[tuple[str, str]]:
    """Yield the names of two models for each comparison that is made by default."""
    for stage in STAGES:
        first, *others = [name for name in groups if name.startswith(f"{stage}/")] or [""]
        yield from ((first, second) for second in others)
    group_of = {model: name for name, models in groups.items() for model in models}
    pairs = [
        (group_of[f"base/{run.recipe['base']}"], group_of[run.path])
        for run in runs
        if run.stage == "finetune" and f"base/{run.recipe['base']}" in group_of
    ]
    yield from dict.fromkeys(pairs)


def folders_compared(pairs: Iterable[Mapping], evaluations: Evaluations) -> list[tuple[str, str]]:
    """Return each compared model, STAGE/RUN, with each of its folders of scores; pairs  see `comparisons`."""
    models = dict.fromkeys(model for pair in pairs for model in pair["firsts"] + pair["seconds"])
    return [(model, str(Path(file).parent)) for model in models for file in evaluations.of_model(model)]


def check_published(runs: Iterable[Run], config: Mapping) -> None:
    """Check that runs have the figures that the config gives of their publications. Raises UserError."""
    for run in runs:
        published, where = run.recipe.get("published", {}), f"{run.key}.published"
        last = published.get("last_steps", 1)
        if last > run.recipe["steps"]:
            raise UserError(f"{where}.last_steps is {last}; allowed: at most steps, {run.recipe['steps']}.")
        figures = [*PUBLISHED_FIGURES, *(["answers"] if run.stage == "mlm" else [])]
        if published and not any(key in published for key in figures):
            raise UserError(f"{where} has no figure; allowed: {', '.join(figures)}.")
        prompts = config["prompts"]["fill_mask"]
        for prompt in published.get("answers", {}):
            if prompt not in prompts:
                allowed = ", ".join(map(describe, prompts)) or "none, because there are none"
                raise UserError(f"{where}.answers has {describe(prompt)}; allowed: prompts.fill_mask: {allowed}.")
        for key in published.get("differs", {}):
            if key not in published or key not in PUBLISHED_FIGURES:
                raise UserError(f"{where}.differs has {describe(key)}; allowed: numbers under {where}.")
