"""Plans of tasks: the very step that a model is finetuned with, what all chains take, the spending limit."""

import json

import pytest
import warm
from conftest import evaluations_of
from test_plan import compiler
from test_tasks import FILES, config_of
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import PAD_ID
from tpulm.workflow import budget
from tpulm.workflow.budget import plan_recipe

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
ROBERTA = SIZES | {"architecture": "roberta", "max_position_embeddings": 36}
MODERN = SIZES | {"architecture": "modernbert", "max_position_embeddings": 64}
RUN = {"steps": 2, "checkpoint_every": 2, "batch_size": 4, "learning_rate": 1e-3}
MODELS = {
    "mlm": {"runs": {
        "tensorflow": RUN | {"backend": "tensorflow", "model": ROBERTA},
        "jax": RUN | {"backend": "jax", "model": ROBERTA},
        "given": {"backend": "jax", "pretrained": "given", "revision": "a" * 40},
    }},
    "base": {}, "finetune": {}, "tokenizer": {"vocab_size": 320},
    "tfrecords": {"sequence_length": 32, "shards": {"train": 1, "validation": 1, "test": 1}},
}  # fmt: skip
TASK = FILES | {"batch_size": 8, "sequence_length": 32, "host_device_count": 8}
LABELS = {"class": ["a", "b", "c"], "number": []}

# Lowers the step of each task twice on eight virtual devices: as train_task builds it, and as its plan does.
SAME = """
import hashlib, json, sys
from pathlib import Path
from tpulm.training import runtime
runtime.start(1, 8)
import jax, numpy as np
from tpulm.specs.classification_heads import masked_model, outputs_of
from tpulm.specs.training_step import TrainingStep
from tpulm.planning.abstract_run import AbstractRun
from tpulm.training.device_batches import batches
from tpulm.training.jax_trainer import Trainer
from tpulm.training.task_run import build_task_run, task_step

def trained(recipe, folder, labels):
    step = task_step(recipe, Path(folder), {"labels": labels})
    trainer = Trainer(build_task_run(step, Path(folder), weights=False))
    arrays = {name: np.zeros((step.batch_size, *shape), kind) for name, (shape, kind) in step.record_arrays.items()}
    load = lambda step, rows: {name: array[rows] for name, array in arrays.items()}
    batch = next(batches(load, (0, 1), step.batch_size, 1, trainer.run.distribution))
    return trainer.dispatch.lower(trainer.state, trainer.frozen, batch, np.float32(0)).as_text()

for planned, recipe, folder, labels in json.loads(sys.argv[1]):
    found = masked_model(json.loads((Path(folder) / "config.json").read_text())) if folder == "given" else {}
    known = planned | found | {"outputs": outputs_of(planned["predict"], labels)}
    texts = [AbstractRun(TrainingStep.of("mlm", "x", known), jax.devices()).lowered().as_text()]
    texts += [trained(recipe, folder, labels)]
    print("RESULT", len(texts[0]), *(hashlib.sha256(text.encode()).hexdigest() for text in texts))
"""


def exported(folder, config, path):
    """Write the config.json that a model on a task has: of a run as export_mlm writes it."""
    from tpulm.models.transformers_config import model_config

    _, name = path.split("/")
    (folder / name).mkdir(exist_ok=True)
    run = config["mlm"]["runs"][name]
    ids = {"special_ids": {"cls": 0, "sep": 1, "pad": PAD_ID}, "vocab_size": 320, "sequence_length": 32}
    made = model_config(run.get("model", MODERN), ids, "x", run["backend"])
    made.classifier_pooling = "mean" if "pretrained" in run else "cls"
    (folder / name / "config.json").write_text(made.to_json_string())


@compiler
def test_plan_and_trainer_compile_the_same_program(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", warm.QUICK["XLA_FLAGS"])  # what is compared is the program before XLA's passes
    cases = [
        ("mlm/tensorflow", {"predict": "number", "mesh": [4, 2]}),
        ("mlm/given", {"predict": "class", "precision": "mixed_bfloat16"}),
    ]
    wanted = []
    for model, changes in cases:
        sections = MODELS | {"evaluation": {"tasks": {"x": TASK | changes | {"models": [model]}}}}
        config = config_of(tmp_path, TASK, **sections)
        planned = evaluations_of(config).runs_by_plan[f"tasks/x/{model}"]
        exported(tmp_path, config, model)
        folder, recipe = model.partition("/")[2], planned[0].segment(2)
        wanted.append((plan_recipe(planned), recipe, folder, LABELS[changes["predict"]]))
    done = warm.run("tpu", SAME, json.dumps(wanted), folder=tmp_path)
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert len(lines) == len(cases)
    for (model, _), (length, plan, trainer) in zip(cases, lines, strict=True):
        assert int(length) > 10_000 and trainer == plan, model
    assert len({plan for _, plan, *_ in lines}) == len(cases)


def test_all_chains_of_a_model_on_a_task_have_one_plan(tmp_path):
    run = RUN | {"backend": "jax", "model": ROBERTA, "steps": 6, "keep_checkpoints": "all"}
    task = FILES | {"learning_rates": [1e-3, 1e-4], "seeds": [0, 1, 2], "checkpoints": "all"}
    given = {"backend": "jax", "pretrained": "given", "revision": "a" * 40}
    other = MODELS | {"mlm": {"runs": {"jax": run, "given": given}}}
    found = evaluations_of(config_of(tmp_path, task, **other)).runs_by_plan
    assert list(found) == ["mlm/jax", "tasks/x/mlm/jax", "tasks/x/mlm/given"]
    # Of the model, of its checkpoints at steps 2, 4 and 6, and of random weights, which are the same for all.
    assert [len(chains) for chains in found.values()] == [1, 6 * 5, 6 * 2]
    masked = plan_recipe(found["tasks/x/mlm/jax"])
    assert (masked["where"], masked["steps"], masked["chains"]) == ("evaluation.tasks.x", 4, 30)
    assert masked["vocabulary"]["size"] == 320 and not {"seed", "learning_rate", "weights"} & set(masked)
    assert plan_recipe(found["mlm/jax"]) == found["mlm/jax"][0].plan_recipe()
    assert len({chain.folder for chain in found["tasks/x/mlm/jax"]}) == 30


def test_what_a_plan_reads_of_models_from_elsewhere(tmp_path):
    def planned(models, tokenizer):
        task = FILES | {"models": models, "sequence_length": 8}
        return evaluations_of(config_of(tmp_path, task, **(MODELS | {"tokenizer": tokenizer}))).runs_by_plan

    given, *_ = planned(["mlm/given"], MODELS["tokenizer"])["tasks/x/mlm/given"]
    task = {"task": "<results>/evaluation/tasks/x/task.json"}
    assert given.plan_inputs == task | {"manifest": [], "init": ["<results>/mlm/given/model/config.json"]}
    assert "model" not in given.plan_recipe()
    ours, *_ = planned(["mlm/jax"], {"pretrained": "given", "revision": "a" * 40})["tasks/x/mlm/jax"]
    assert ours.plan_inputs == task | {"manifest": "<results>/tfrecords/manifest.json", "init": []}
    assert "vocabulary" not in ours.plan_recipe()


def test_the_budget_counts_each_chain_by_its_share_of_the_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = {"where": "evaluation.tasks.x", "steps": 100, "predict": "class", "batch_size": 1024}
    plan = {"planned": True, "sentence": None, "hours": 8.0, "estimate_error": 0.5}
    plan |= {"recipe": recipe | {"chains": 4}}
    folder = tmp_path / "results/plan/tasks/x/mlm/tiny"
    folder.mkdir(parents=True)
    (folder / "v5e-8.json").write_text(json.dumps(plan))
    chain = {"jobs": 1, "evaluate_every": None, "checkpoint_every": 50, "steps": 50, "checkpoints": 1}
    # One more seed: the step is the same, and so is its plan.
    chain |= {"recipe": recipe | {"chains": 5}, "plans": "results/plan/tasks/x/mlm/tiny"}
    chain |= {"checkpoint_bytes": 10, "accelerator": "v5e-8"}
    hours = budget.hours_by_item(chain, "v5e-8")
    assert (hours["steps"], hours["error"]) == (1.0, 0.5)
    cost = 2 * sum(hours.values()) * 2.0
    budget.check_budget([chain, chain], cost + 0.1, {"v5e-8": 2.0})
    with pytest.raises(UserError, match=rf" {cost:.2f}, .*plan\.spending_limit, .*: the steps 4\.00"):
        budget.check_budget([chain, chain], cost - 0.1, {"v5e-8": 2.0})
    with pytest.raises(UserError, match=r"^plan.spending_limit is 5, .*evaluation\.tasks\.x on v5e-8"):
        budget.check_budget([chain | {"recipe": recipe | {"predict": "number"}}], 5, {"v5e-8": 2.0})
