"""Plans of tasks: the very step that a model is finetuned with, what all chains take, the spending limit."""

import json

import warm
from test_tasks import FILES, config_of
from tpulm.config.artifacts import PAD_ID
from tpulm.config.masked_sizes import told
from tpulm.config.planned import planned_of

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
ROBERTA = SIZES | {"architecture": "roberta", "max_position_embeddings": 36}
MODERN = SIZES | {"architecture": "modernbert", "max_position_embeddings": 64}
CAUSAL = {"num_layers": 1, "num_query_heads": 8, "num_key_value_heads": 8, "hidden_dim": 32, "intermediate_dim": 64}
CAUSAL |= {"head_dim": 4}
TRAINING = {"steps": 2, "checkpoint_every": 2, "batch_size": 4, "learning_rate": 1e-3}
MODELS = {
    "mlm": {"runs": {
        "tensorflow": TRAINING | {"backend": "tensorflow", "model": ROBERTA},
        "jax": TRAINING | {"backend": "jax", "model": ROBERTA},
        "modern": TRAINING | {"backend": "jax", "model": MODERN},
        "given": {"backend": "jax", "pretrained": "given", "revision": "a" * 40},
    }},
    "base": {"small": TRAINING | {"sequence_length": 32, "vocab_size": 320, "model": CAUSAL}},
    "finetune": {}, "tokenizer": {"vocab_size": 320},
    "tfrecords": {"sequence_length": 32, "shards": {"train": 1, "validation": 1, "test": 1}},
}  # fmt: skip
TASK = FILES | {"batch_size": 8, "sequence_length": 32, "host_device_count": 8}
LABELS = {"class": ["a", "b", "c"], "number": [], "token-classes": ["a", "b", "c", "d"]}

# Lowers the step of each task twice on eight virtual devices: as train_task builds it, and as its plan does.
SAME = """
import hashlib, json, sys
from pathlib import Path
from tpulm.training import runtime
runtime.start(1, 8)
import jax, numpy as np
from tpulm.config.label_heads import masked_model, outputs_of
from tpulm.config.training_step import ModelSpec, TrainingStep
from tpulm.models.building import build_model, distribute
from tpulm.models.causal import save_preset
from tpulm.planning.abstract_run import AbstractRun
from tpulm.training.feeding import batches
from tpulm.training.jax_trainer import Trainer
from tpulm.training.task_run import build_task_run, task_step

def trained(recipe, folder, labels, weights):
    step = task_step(recipe, Path(folder), {"labels": labels})
    trainer = Trainer(build_task_run(step, Path(folder), weights))
    arrays = {name: np.zeros((step.batch_size, *shape), kind) for name, (shape, kind) in step.record_arrays.items()}
    load = lambda step, rows: {name: array[rows] for name, array in arrays.items()}
    batch = next(batches(load, (0, 1), step.batch_size, 1, trainer.run.distribution))
    return trainer.step.lower(trainer.state, trainer.frozen, batch, np.float32(0)).as_text()

base, *tasks = json.loads(sys.argv[1])
spec = ModelSpec.of("base", "base.small", base)
save_preset(build_model(spec, distribute(spec)), "small")
for stage, planned, recipe, folder, labels in tasks:
    found = masked_model(json.loads((Path(folder) / "config.json").read_text())) if folder == "given" else {}
    known = planned | found | {"outputs": outputs_of(planned["predict"], labels)}
    texts = [AbstractRun(TrainingStep.of(stage, "x", known), jax.devices()).lowered().as_text()]
    texts += [trained(recipe, folder, labels, weights) for weights in ((False, True) if stage == "base" else (False,))]
    print("RESULT", len(texts[0]), *(hashlib.sha256(text.encode()).hexdigest() for text in texts))
"""


def exported(folder, config, path):
    """Write the config.json that a model on a task has: of a run as export_mlm writes it."""
    from tpulm.models.transformers_config import model_config

    _, name = path.split("/")
    (folder / name).mkdir(exist_ok=True)
    run = config["mlm"]["runs"][name]
    ids = {"special_ids": {"cls": 0, "sep": 1, "pad": PAD_ID}, "vocab_size": 320, "sequence_length": 32}
    model, backend = run.get("model", MODERN), run["backend"]
    made = model_config(model | (told(model, "x") if backend == "jax" else {}), ids, "x", backend)
    made.classifier_pooling = "mean" if "pretrained" in run else "cls"
    (folder / name / "config.json").write_text(made.to_json_string())


def test_plan_and_trainer_compile_the_same_program(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", warm.QUICK["XLA_FLAGS"])  # what is compared is the program before XLA's passes
    cases = [
        ("mlm/tensorflow", {"predict": "class", "mesh": [8, 1]}),
        ("mlm/jax", {"predict": "number", "mesh": [4, 2]}),
        ("mlm/modern", {"predict": "token-classes", "precision": "mixed_bfloat16"}),
        ("mlm/given", {"predict": "class"}),
        ("base-training/small", {"predict": "class", "mesh": [2, 4]}),
    ]
    wanted = []
    for model, changes in cases:
        sections = MODELS | {"evaluation": {"tasks": {"x": TASK | changes | {"models": [model]}}}}
        config = config_of(tmp_path, TASK, **sections)
        planned = planned_of(config)[f"tasks/x/{model}"]
        if model.startswith("mlm/"):
            exported(tmp_path, config, model)
        stage = "mlm" if model.startswith("mlm/") else "base"
        folder, recipe = model.partition("/")[2], planned.run.segment(2)
        wanted.append((stage, planned.recipe, recipe, folder, LABELS[changes["predict"]]))
    base = config["base"]["small"]
    done = warm.run("tpu", SAME, json.dumps([base, *wanted]), folder=tmp_path)
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert len(lines) == len(cases)
    for (model, _), (length, plan, *trainers) in zip(cases, lines, strict=True):
        assert int(length) > 10_000 and set(trainers) == {plan}, model
    assert len({plan for _, plan, *_ in lines}) == len(cases)
