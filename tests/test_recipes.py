"""The recipes: complete, and what their comments say of them."""

import re

import pytest
from conftest import ROOT, task_runs_of
from tpulm.config.model_sizes import checkpoint_bytes, model_size
from tpulm.config.outline import Outline
from tpulm.config.reading import read_config, read_yaml
from tpulm.core.accelerators import is_tpu, slice_hosts
from tpulm.specs.masked_sizes import sizes_of
from tpulm.workflow.budget import most_at_once

pytestmark = pytest.mark.unit
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


def runs(name):
    return {run.key: run for run in Outline(read_config([str(ROOT / f"recipes/{name}.yaml")], {})).runs.values()}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_says_what_it_keeps_measures_and_asks_for(path):
    written = read_yaml(path)
    sections = [run for run in written.get("mlm", {}).get("runs", {}).values() if "pretrained" not in run]
    sections += written.get("finetune", {}).get("runs", {}).values()
    sections += [base for base in written.get("base", {}).values() if "model" in base]
    sections = [section for section in sections if "pretrained" not in section]  # those are only asked
    found = runs(path.stem)
    tasks = task_runs_of(read_config([str(path)], {}))
    assert len(sections) == len(found) and (found or tasks)
    for section in sections:
        assert {"keep_checkpoints", "resources", "evaluate_every"} <= set(section)
    for run in (*found.values(), *tasks):
        asked = run.recipe["resources"]
        if is_tpu(asked["accelerator"]):
            assert asked["hosts"] == slice_hosts(asked["accelerator"])
        planned = {"segments": len(run.segment_ends), "keep_checkpoints": run.recipe["keep_checkpoints"]}
        assert most_at_once(planned, len(run.segment_ends)) * checkpoint_bytes(run) < 300e9


def test_a_task_trains_for_the_epochs_that_it_names():
    path = ROOT / "recipes/glue-modernbert-base.yaml"
    found = task_runs_of(read_config([str(path)], {}))
    chains = {chain.task: chain.recipe for chain in found}
    mnli = next(chain.checkpoint()["best"] for chain in found if chain.task == "mnli")
    assert {chain.task for chain in found if chain.start == [mnli]} == {"rte", "mrpc", "stsb"}
    assert all(chain.start in ([], [mnli]) for chain in found) and len(found) == 25
    named = re.findall(r"steps: (\d+) +# (\d+) epochs of ([\d,]+)", path.read_text())
    assert len(named) == len(chains) == 8
    for steps, epochs, examples in named:
        recipe = next(recipe for recipe in chains.values() if recipe["steps"] == int(steps))
        seen = recipe["steps"] * recipe["batch_size"]
        assert seen / int(examples.replace(",", "")) == pytest.approx(int(epochs), 1e-2)
        assert recipe["schedule"]["warmup_steps"] == round(0.06 * recipe["steps"])
        assert recipe["splits"]["validation"] == recipe["splits"]["test"]


def test_the_published_run_has_the_numbers_of_its_card():
    names = ("", "-tensorflow", "-128")
    on_jax, card, article = (runs(f"wikitext103-roberta-base{name}")["mlm.runs.roberta-base"] for name in names)
    for run in (on_jax, card, article):
        recipe, schedule = run.recipe, run.recipe["schedule"]
        assert recipe["steps"] == 14_675 + 278_825 == 500 * (300_917 // 512)
        assert (schedule["shape"], schedule["warmup_steps"], recipe["learning_rate"]) == ("linear", 14_675, 1e-4)
        assert recipe["precision"] == "mixed_bfloat16" and recipe["optimizer"]["weight_decay"] == 1e-3
        assert run.tokens_per_step == 512 * 512
        assert recipe["steps"] % recipe["checkpoint_every"] == 0 and recipe["evaluate_every"] == 587
        assert recipe["resources"]["accelerator"] == "v3-8" and recipe["batch_size"] % (8 * recipe["microbatches"]) == 0
    assert card.records == on_jax.records and card.records.sequence_length == 512
    assert (on_jax.backend, card.backend, article.backend) == ("jax", "tensorflow", "tensorflow")
    different = {key for key in card.recipe if card.recipe[key] != on_jax.recipe[key]}
    assert different == {"backend", "mesh"}
    assert sizes_of(card.plan_recipe()["model"], "x") == sizes_of(on_jax.plan_recipe()["model"], "x")


def test_the_sizes_that_the_recipes_name():
    def parameters(recipe, key):
        return model_size(runs(recipe)[key])

    gemma = parameters("imdb-gemma-7b", "finetune.runs.imdb")
    assert (gemma.parameters, gemma.adapters) == (8_537_680_896, 11_067_392)
    assert parameters("imdb-gemma-2b-one-gpu", "finetune.runs.imdb").adapters == 1_363_968
    assert parameters("imdb-gemma-7b-full-v5e-64", "finetune.runs.imdb").adapters == 0
    llama = runs("fineweb-edu-llama-1b")["base.llama-1b"]
    tokens = llama.recipe["steps"] * llama.recipe["batch_size"] * llama.recipe["sequence_length"]
    assert model_size(llama).parameters == 1_107_363_840 and 18.5 < tokens / 1_107_363_840 < 19.5
