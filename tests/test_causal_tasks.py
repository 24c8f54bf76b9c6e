"""Causal models on tasks: heads as those of transformers, chains that begin at a base model or a tuned one."""

import json
from pathlib import Path

import numpy as np
import pytest
import test_causal
import test_lora
from conftest import copied
from openers import LOCKS
from safetensors.numpy import load_file, save_file
from test_staleness import listed
from test_task_training import RECIPE, rows
from test_transformers import export
from tpulm.core.scores import read_scores

jax_backend, preset, vocabulary = test_causal.jax_backend, test_lora.preset, test_lora.vocabulary
IDS = [[2, 15, 16, 17, 18, 19, 20, 1], [2, 21, 22, 1, 0, 0, 0, 0]]
LABELS = {"class": ["a", "b", "c"], "number": []}
THEIRS = """
import json, sys
import torch, transformers
folder, ids = json.loads(sys.argv[1])
model, told = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
with torch.no_grad():
    ids = torch.tensor(ids)
    logits = model.eval()(input_ids=ids, attention_mask=(ids != 0).long()).logits
print("RESULT" + json.dumps({"missing": sorted(told["missing_keys"]), "logits": logits.tolist()}))
"""


def opened(folder, predict="class", weights=True, seed=0):
    """Return the model of a preset with a head."""
    from tpulm.models.task_models import build_task_model
    from tpulm.training.jax_run import distributed
    from tpulm.training.task_run import task_step

    step = task_step(RECIPE | {"predict": predict, "seed": seed}, Path(folder), {"labels": LABELS[predict]})
    return build_task_model(step, distributed(step), Path(folder), weights)


def logits_of(model, ids):
    ids = np.array(ids, np.int32)
    return np.asarray(model({"token_ids": ids, "padding_mask": (ids != 0).astype(np.int32)}, training=False))


def values(model):
    return {variable.path: np.asarray(variable.value) for variable in model.trainable_variables}


def test_a_head_reads_the_last_token_whatever_the_padding(jax_backend, preset):
    model = opened(preset)
    logits = logits_of(model, IDS)
    assert logits.shape == (2, 3) and logits_of(opened(preset, "number"), IDS).shape == (2, 1)
    short = [IDS[1][:4]]
    np.testing.assert_allclose(logits[1:], logits_of(model, short), atol=1e-5)
    ids = np.array(short, np.int32)
    hidden = np.asarray(model.backbone({"token_ids": ids, "padding_mask": np.ones_like(ids)}))
    kernel = values(model)["task_head/output_dense/kernel"]
    np.testing.assert_allclose(logits[1:], hidden[:, 3] @ kernel, atol=1e-5)
    assert "task_head/output_dense/bias" not in values(model)


def test_random_weights_are_drawn_by_the_seed_in_the_place_of_the_models_own(jax_backend, preset):
    own, one, again, other = (
        values(opened(preset, weights=weights, seed=seed))
        for weights, seed in ((True, 0), (False, 1), (False, 1), (False, 2))
    )
    assert list(own) == list(one)
    table = "token_embedding/embeddings"
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(own[table], one[table]) and not np.array_equal(one[table], other[table])
    assert abs(one[table].std() / own[table].shape[1] ** -0.5 - 1) < 0.1


@pytest.mark.long
@pytest.mark.parametrize("which", LOCKS)
def test_transformers_computes_the_same(jax_backend, openers, preset, tmp_path, which):
    export(preset, tmp_path / "theirs")
    model, folder = opened(preset), tmp_path / "theirs"
    kernel = np.random.default_rng(0).normal(0.0, 0.3, values(model)["task_head/output_dense/kernel"].shape)
    model.head.output_dense.kernel.assign(kernel.astype(np.float32))
    score = {"score.weight": np.ascontiguousarray(kernel.astype(np.float32).T)}
    arrays = {name: array for file in folder.glob("*.safetensors") for name, array in load_file(file).items()}
    for file in (*folder.glob("*.safetensors"), folder / "model.safetensors.index.json"):
        file.unlink()
    save_file(arrays | score, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    labels = {"id2label": dict(enumerate(LABELS["class"])), "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config | labels))
    found = openers.result(which, THEIRS, [str(folder), IDS])
    assert found["missing"] == []
    theirs = np.array(found["logits"])
    assert np.abs(theirs - logits_of(model, IDS)).max() < 1e-4 < np.abs(theirs).max()


MODELS = ["base/small", "finetune/python"]
TASK = {
    "source": "files", "files": ["tasks/*.jsonl"], "held_out": {"validation": 0.2, "test": 0.2}, "models": MODELS,
    "steps": 40, "checkpoint_every": 20, "batch_size": 16, "learning_rates": [3e-3], "sequence_length": 24,
    "baselines": ["majority", "random_weights"], "schedule": {"shape": "linear", "warmup_steps": 4},
    "keep_checkpoints": "all", "seeds": [0],
}  # fmt: skip


def given(trained, tmp_path):
    """Return a folder with finished runs and a task, and what names the task on the command line."""
    workflow = copied(trained, tmp_path)
    (workflow / "tasks").mkdir()
    lines = [json.dumps({key: row[key] for key in ("text", "label")}) for row in rows(200, 0)]
    (workflow / "tasks/a.jsonl").write_text("\n".join(lines) + "\n")
    return workflow, ["--config", f"evaluation={json.dumps({'tasks': {'words': TASK}})}"]


def test_chains_of_causal_models_follow_from_their_presets(trained, tmp_path):
    workflow, config = given(trained, tmp_path)
    found = listed(workflow, "tasks", *config)
    chains = [f"evaluation/tasks/words/{model}/{weights}-rate-0.003-seed-0" for model in MODELS
              for weights in ("pretrained", "random")]  # fmt: skip
    assert {job for job in found if job.startswith("train_task")} == {
        f"train_task:{chain},{step:08d}" for chain in chains for step in (20, 40)
    }
    # A model that LoRA has tuned is merged first, and its overlap is that of both texts.
    assert {
        "export_finetune:python",
        *(f"find_overlap:tasks/words,{name}" for name in ("corpus", "finetune-text")),
    } <= found


@pytest.mark.long
def test_a_task_is_learned_from_each_checkpoint(trained, tmp_path):
    """Of a model of each stage, and from what is selected; thinning waits for it, and the report draws it."""
    workflow, _ = given(trained, tmp_path)
    models = ["mlm/tiny", *MODELS]
    task = TASK | {"models": models, "checkpoints": "all", "checkpoint_every": 40, "predict": "class"}
    kept = {"tiny": {"keep_checkpoints": "last"}}
    config = ["--config", f"evaluation={json.dumps({'tasks': {'words': task}})}", f"mlm={json.dumps({'runs': kept})}"]
    figures = [f"results/figures/checkpoints/{model}.svg" for model in models]
    thinned = "results/mlm/tiny/checkpoints/00000010"
    workflow("--cores", "2", "tasks", f"{thinned}/pruned.json", *figures, *config)
    place = workflow / "results/evaluation/tasks/words"
    for model, steps in zip(models, ((10, 20), (10, 20), (5, 10)), strict=True):
        for step in steps:
            said, (score,) = read_scores(place / f"{model}/{step:08d}/scores.json")
            assert (said["model"], score.step) == (model, step)
            assert "same model from random weights" in score.baselines
            assert not (place / f"{model}/{step:08d}/random-rate-0.003-seed-0").exists()
        assert "accuracy on task" in (workflow / f"results/figures/checkpoints/{model}.svg").read_text()
    assert not (workflow / thinned / "weights.safetensors").exists()
    for model in MODELS:
        said, (score,) = read_scores(place / f"{model}/scores.json")
        assert said == {"model": model, "kind": "causal"} and "same model from random weights" in score.baselines
        assert score.value > 0.9 > score.baselines["most frequent label"], model
    first = [load_file(place / model / "pretrained-rate-0.003-seed-0/checkpoints/00000040/weights.safetensors")
             for model in MODELS]  # fmt: skip
    assert list(first[0]) == list(first[1])
    assert not np.array_equal(*(arrays["token_embedding/embeddings"] for arrays in first))
    # What is gone is neither made nor trained again.
    assert "Nothing to be done" in workflow("-n", "tasks", *figures, *config).stdout
    found = listed(workflow, "tasks", "--config", config[1].replace('"batch_size": 16', '"batch_size": 8'), config[2])
    jobs = {job for job in found if job.startswith(("train_task", "export"))}
    assert {job for job in jobs if "tiny" in job and "00000010" in job} == set()
    assert "train_task:evaluation/tasks/words/mlm/tiny/00000020/pretrained-rate-0.003-seed-0,00000040" in jobs
    assert not any(job.startswith(("train_mlm", "train_base", "train_finetune")) for job in found)
