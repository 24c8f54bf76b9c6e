"""Models that are finetuned on tasks: heads are those of transformers, chains are trained and scored, reruns exact."""

import copy
import json
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import warm
from conftest import Workflow, copied, once, outside, shared, write_yaml
from openers import LOCKS
from safetensors.numpy import load_file, save_file
from test_masked_folders import CONFIG, given, tiny_folder  # noqa: F401 (a fixture)
from test_modernbert import exported  # noqa: F401 (a fixture)
from test_plan import compiler
from test_staleness import listed
from tpulm.core.files import read_json
from tpulm.specs.scores import read_scores

PREDICTS = {"class": 3, "number": 1}
# Logits of a model with a new head, whose variables are drawn once more, biases too; all variables into a file.
OURS = """
import json, sys
import numpy as np
from pathlib import Path
from safetensors.numpy import save_file
from tpulm.training import runtime
folder, out, recipe, labels, ids = *sys.argv[1:3], *map(json.loads, sys.argv[3:])
runtime.start(1)
from tpulm.models import masked_models
from tpulm.models.task_models import build_task_model
from tpulm.training.jax_run import distribute_step
from tpulm.training.task_run import task_step
step = task_step(recipe, Path(folder), {"labels": labels})
model = build_task_model(step, distribute_step(step, masked_models), Path(folder), weights=True)
dice = np.random.default_rng(1)
for variable in model.head.trainable_variables:
    if variable.path.startswith("task_head"):
        variable.assign(dice.normal(0.0, 0.3, variable.shape).astype("f4"))
ids = np.array(ids, "int32")
inputs = {"token_ids": ids, "padding_mask": (ids != 3).astype("int32")}
arrays = {variable.path: variable.numpy() for variable in model.trainable_variables}
save_file(arrays | {"logits": np.asarray(model(inputs, training=False))}, out)
print("RESULT" + json.dumps([tuple(arrays[name].shape) for name in arrays if name.startswith("task_head")]))
"""
THEIRS = """
import json, sys
import torch, transformers
folder, kind, ids = json.loads(sys.argv[1])
model, told = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
ids = torch.tensor(ids)
with torch.no_grad():
    logits = model.eval()(input_ids=ids, attention_mask=(ids != 3).long()).logits
print("RESULT" + json.dumps({"missing": sorted(told["missing_keys"]), "logits": logits.tolist()}))
"""
IDS = [[0, 5, 6, 7, 8, 9, 10, 1], [0, 11, 12, 1, 3, 3, 3, 3]]
RECIPE = {
    "key": "evaluation.tasks.x", "sequence_length": 8, "batch_size": 4, "precision": "float32", "mesh": [1, 1],
    "host_device_count": 1, "seed": 0, "optimizer": {},
}  # fmt: skip
HEADS = {"task_head/dense": "classifier.dense", "task_head/output_dense": "classifier.out_proj"}


def head_of_theirs(kind, arrays):
    """Return the variables of our head by PyTorch's names."""
    names = {"task_head/output_dense": "classifier"} if kind == "modernbert" else HEADS
    found = {}
    for ours, theirs in names.items():
        found[f"{theirs}.weight"] = np.ascontiguousarray(arrays[f"{ours}/kernel"].T)
        found[f"{theirs}.bias"] = arrays[f"{ours}/bias"]
    return found


def ours(folder, out, predict):
    labels = list(map(str, range(PREDICTS[predict])))
    recipe = RECIPE | {"predict": predict}
    return warm.run("jax", OURS, str(folder), str(out), *map(json.dumps, (recipe, labels, IDS)))


def test_a_head_is_that_of_transformers(given, tmp_path):  # noqa: F811
    """Its variables have the names and shapes of theirs; the values are held against PyTorch's in a long test."""
    shapes = warm.result(ours(given, tmp_path / "out", "class"))
    arrays = load_file(tmp_path / "out")
    outputs, hidden = PREDICTS["class"], CONFIG["hidden_size"]
    assert arrays["logits"].shape == (2, outputs)
    assert sorted(shapes) == sorted([[hidden, hidden], [hidden], [hidden, outputs], [outputs]])
    # The head is on top of the model's own weights, and nothing of the masked model's head is left.
    words = arrays["roberta.embeddings/word_embeddings/embeddings"]
    theirs = load_file(given / "model.safetensors")["roberta.embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(words, theirs)
    assert not [name for name in arrays if name.startswith("lm_head")]


def test_a_model_of_a_run_on_tensorflow_is_opened_with_its_own_epsilon(given, tmp_path):  # noqa: F811
    """There it is 1e-12 by default, and there are two token types, of which a text has one."""
    found = []
    for name, epsilon in (("one", 1e-5), ("other", 0.5)):
        config = CONFIG | {"layer_norm_eps": epsilon, "type_vocab_size": 2, "vocab_size": 22}
        (given / "config.json").write_text(json.dumps(config))
        ours(given, tmp_path / name, "number")
        found.append(load_file(tmp_path / name)["logits"])
    assert np.abs(found[0] - found[1]).max() > 1e-3


@pytest.mark.long
@pytest.mark.parametrize(("pooling", "predict"), [("roberta", "class"), ("cls", "number"), ("mean", "class")])
@pytest.mark.parametrize("which", LOCKS)
def test_transformers_computes_the_same(openers, given, exported, tmp_path, predict, pooling, which):  # noqa: F811
    kind, name = ("roberta", "Roberta") if pooling == "roberta" else ("modernbert", "ModernBert")
    folder = shutil.copytree(given if kind == "roberta" else exported, tmp_path / "model")
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    config |= {"num_labels": PREDICTS[predict]} | ({"classifier_pooling": pooling} if kind == "modernbert" else {})
    labels = {"id2label": {str(number): str(number) for number in range(PREDICTS[predict])}}
    (folder / "config.json").write_text(json.dumps(config | (labels if predict == "number" else {})))
    ours(folder, tmp_path / "out", predict)
    arrays = load_file(tmp_path / "out")
    save_file(tensors | head_of_theirs(kind, arrays), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | labels))
    found = openers.result(which, THEIRS, [str(folder), f"{name}ForSequenceClassification", IDS])
    assert found["missing"] == []
    theirs = np.array(found["logits"])
    assert np.abs(theirs - arrays["logits"]).max() < 1e-4 < np.abs(theirs).max()


WORDS = "the of and to a is in if or return value list string object function method class".split()


def rows(count, seed):
    """Return texts of which a model can learn everything from one word."""
    dice = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        words = [WORDS[number] for number in dice.integers(0, 10, 6)]
        label = int(dice.integers(0, 2))
        words[int(dice.integers(0, 6))] = ("list", "string")[label]
        other = WORDS[int(dice.integers(0, 9))]
        found.append({"text": " ".join(words), "label": label, "other": other})
    return found


TRAINING = {
    "steps": 60, "checkpoint_every": 30, "batch_size": 16, "learning_rates": [3e-3], "sequence_length": 16,
    "schedule": {"shape": "constant", "warmup_steps": 4},
}  # fmt: skip
TASKS = {
    "which": TRAINING | {
        "source": "files", "files": ["which/*.jsonl"], "held_out": {"validation": 0.2, "test": 0.2}, "seeds": [0],
        "title": "list or string", "metrics": ["accuracy", "f1"], "baselines": ["majority", "bag_of_words"],
    },
    "pair": TRAINING | {
        "source": "hub", "dataset": "set", "splits": {"train": "train", "validation": "test", "test": "test"},
        "predict": "number", "text_pair": "other", "seeds": [0], "baselines": ["majority", "random_weights"],
        "steps": 120, "checkpoint_every": 120,
    },
}  # fmt: skip
FORMS = {
    "corpus": {"source": "python-docs"},
    "mlm": {"runs": {"asked": {"pretrained": "given", "backend": "jax"}}},
    "evaluation": {"tasks": TASKS},
}


def quickly(workflow, *arguments):
    """Run Snakemake where XLA does not optimize what it compiles; return what it printed."""
    workflow.steady = True
    running = workflow.start(*arguments, environment=outside() | warm.QUICK)
    printed, _ = running.communicate()
    assert running.returncode == 0, printed[-6000:]
    return printed


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Every form of a task on a tiny model with random weights, run once; not to be changed."""

    def build(workflow: Workflow) -> str:
        tiny_folder(workflow.folder)
        (workflow / "which").mkdir()
        (workflow / "set").mkdir()
        lines = [json.dumps({key: row[key] for key in ("text", "label")}) for row in rows(200, 0)]
        (workflow / "which/a.jsonl").write_text("\n".join(lines) + "\n")
        for seed, (split, count) in enumerate({"train": 120, "test": 40}.items()):
            pairs = [row | {"label": row["label"] * 2.5} for row in rows(count, seed)]
            (workflow / f"set/{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
        write_yaml(workflow / "config.yaml", FORMS)
        return quickly(workflow, "tasks", "--cores", "1")  # of two at once, each would compile what is the same

    return once(shared(tmp_path_factory) / "scored", build)


def scores_at(workflow, task):
    return read_scores(workflow / f"results/evaluation/tasks/{task}/mlm/asked/scores.json")


def test_every_form_of_a_task_is_learned_and_scored(scored):
    said, (accuracy, f1) = scores_at(scored, "which")
    assert said == {"model": "mlm/asked", "kind": "masked"}
    assert accuracy.on == "list or string" and accuracy.items == 40 and accuracy.chance == 0.5
    assert accuracy.value > 0.9 and len(accuracy.seeds) == 1
    assert set(accuracy.baselines) == {"most frequent label", "bag of words (logistic regression)"}
    assert accuracy.baselines["bag of words (logistic regression)"] > 0.9
    assert accuracy.baselines["most frequent label"] < 0.7 < accuracy.low <= accuracy.value <= accuracy.high
    assert f1.value > 0.9 and f1.chance is None
    head, *chains = (scored / "results/evaluation/tasks/which/mlm/asked/chains.csv").read_text().splitlines()
    assert head == "weights,rate,seed,validation_accuracy,validation_f1,test_accuracy,test_f1,selected"
    assert [line.split(",")[:3] for line in chains] == [["pretrained", "0.003", "0"]]
    _, (pearson,) = scores_at(scored, "pair")
    assert pearson.value == np.mean(pearson.seeds) > 0.8 and pearson.metric == "pearson" and pearson.items == 40
    assert pearson.baselines["mean"] == 0.0 and set(pearson.baselines) == {"mean", "same model from random weights"}
    assert pearson.on == "pair (development set, which also selects)"


# What the demo answers, as it opens the models of tasks.
DEMO = """
import json, sys
from pathlib import Path
from tpulm.core.errors import UserError
from tpulm.demo.choice import of_tasks
from tpulm.training import runtime
runtime.start(1)
tasks, found = of_tasks(Path("results"), "asked"), []
for name, prompt in json.loads(sys.argv[1]):
    try:
        tasks[name].opened.answer(prompt, {}, found.append)
    except UserError as error:
        found.append(str(error))
print("RESULT" + json.dumps(found))
"""


def test_the_demo_predicts_what_was_scored(scored):
    asked, wanted, tasks = [], [], scored / "results/evaluation/tasks"
    chain = [("weights", "=", "pretrained"), ("split", "=", "test")]
    for task in ("which", "pair"):
        predicted = pq.read_table(tasks / task / "mlm/asked/predictions.parquet", filters=chain).to_pylist()
        values = {row["item"]: row["prediction"] for row in predicted}
        for row in pq.read_table(tasks / task / "test.parquet").slice(0, 3).to_pylist():
            asked.append((f"{task}: mlm/asked", [row["text"], row["text_pair"]] if task == "pair" else row["text"]))
            wanted.append(values[row["item"]])
    asked.append(("which: mlm/asked", ["a", "b"]))
    *found, refused = warm.result(warm.run("jax", DEMO, json.dumps(asked), folder=scored.folder))
    assert refused == "this task takes one text."
    names = json.loads((tasks / "which/task.json").read_text())["labels"]
    for answer, value in zip(found[:3], wanted[:3], strict=True):
        assert answer["labels"][0][0] == str(names[int(value)])
        assert sum(share for _, share in answer["labels"]) == pytest.approx(1)
    assert [answer["number"] for answer in found[3:]] == pytest.approx(wanted[3:], rel=1e-4)


def state(workflow, chain, step):
    return read_json(workflow / f"results/evaluation/tasks/{chain}/checkpoints/{step:08d}/state.json")


def test_a_chain_is_as_a_runs(scored):
    """Each segment goes on from the one before, and a checkpoint that is not the last is thinned by default."""
    first, last = (state(scored, "which/mlm/asked/pretrained-rate-0.003-seed-0", step) for step in (30, 60))
    assert last["recipe"]["first"] == 30 and last["previous_sha256"]
    assert set(last["evaluation"]) == {"loss", "accuracy", "predictions"}
    of_numbers = state(scored, "pair/mlm/asked/pretrained-rate-0.003-seed-0", 120)
    assert set(of_numbers["evaluation"]) == {"loss", "predictions"}
    kept = scored / "results/evaluation/tasks/which/mlm/asked/pretrained-rate-0.003-seed-0/checkpoints/00000030"
    assert not (kept / "weights.safetensors").exists() and (kept / "pruned.json").exists()
    assert first["evaluation"]["loss"] > last["evaluation"]["loss"]


def test_the_same_chain_has_the_same_bytes(scored, tmp_path):
    workflow = copied(scored, tmp_path)
    folder = workflow / "results/evaluation/tasks/pair/mlm/asked/pretrained-rate-0.003-seed-0/checkpoints/00000120"
    before = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    (folder / "state.json").unlink()
    quickly(workflow, str((folder / "state.json").relative_to(workflow.folder)))
    assert {path.name: path.read_bytes() for path in folder.glob("*.safetensors")} == before


def test_predictions_that_are_no_numbers_are_refused(scored, tmp_path):
    """NaN is refused for labels, too, where the likeliest would be the first."""
    workflow, folder = copied(scored, tmp_path), "results/evaluation/tasks/which/mlm/asked"
    workflow.steady = True
    best = f"{folder}/pretrained-rate-0.003-seed-0/checkpoints/00000060/best.safetensors"
    arrays = load_file(workflow / best)
    output = next(name for name in arrays if name.endswith("output_dense/kernel"))
    save_file(arrays | {output: np.full_like(arrays[output], np.nan)}, workflow / best)
    done = workflow(f"{folder}/predictions.parquet", check=False)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    assert re.search(f"error: evaluation.tasks.which .*{best}.* 40 of 40 .*validation", done.stdout)
    assert not (workflow / f"{folder}/predictions.parquet").exists()


@pytest.mark.long  # tests/test_task_plan.py has the program of a plan, and tests/test_plan.py its rule
@compiler
def test_a_model_on_a_task_has_a_plan_and_a_cost(scored, tmp_path):
    """The plan is that of all its chains; one of them, with another seed, is still to be trained."""
    workflow = copied(scored, tmp_path)
    config = copy.deepcopy(FORMS)
    config["evaluation"]["tasks"] = {"which": TASKS["which"] | {"seeds": [0, 1], "resources": {"accelerator": "v5e-8"}}}
    config["plan"] = {"topologies": ["v5e-8"], "prices": {"v5e-8": 3.6e9}}
    write_yaml(workflow / "config.yaml", config)
    printed = workflow("plan", "--cores", "2").stdout
    plan = json.loads((workflow / "results/plan/tasks/which/mlm/asked/v5e-8.json").read_text())
    assert (plan["task"], plan["stage"], plan["run"], plan["recipe"]["chains"]) == ("which", "mlm", "asked", 2)
    assert plan["planned"] and plan["memory"]["fits"] and plan["tokens_per_step"] == 16 * 16
    cost = plan["estimated_seconds"] * 60 * 2 * 1e6
    assert plan["cost_of_run"] == pytest.approx(cost)
    assert re.search(rf"^.*steps, estimated +\S+ +{cost / 2:,.2f}$", printed, re.M)


@pytest.mark.long
def test_a_task_is_learned_from_each_checkpoint(trained, tmp_path):
    """Of the model, and from what is selected; thinning waits for it, and the report draws it."""
    workflow = copied(trained, tmp_path)
    (workflow / "which").mkdir()
    lines = [json.dumps({key: row[key] for key in ("text", "label")}) for row in rows(200, 0)]
    (workflow / "which/a.jsonl").write_text("\n".join(lines) + "\n")
    task = TASKS["which"] | {"checkpoints": "all", "steps": 40, "checkpoint_every": 40, "baselines": ["random_weights"]}
    thinned, figure = "results/mlm/tiny/checkpoints/00000010", "results/figures/checkpoints/mlm/tiny.svg"

    def config(**changes):
        tasks = {"tasks": {"which": task | changes}}
        kept = {"runs": {"tiny": {"keep_checkpoints": "last"}}}
        return "--config", f"evaluation={json.dumps(tasks)}", f"mlm={json.dumps(kept)}"

    workflow("--cores", "2", "tasks", f"{thinned}/pruned.json", figure, *config())
    place = workflow / "results/evaluation/tasks/which/mlm/tiny"
    for step in (10, 20):
        said, (score, _) = read_scores(place / f"{step:08d}/scores.json")
        assert (said["model"], score.step) == ("mlm/tiny", step)
        assert "same model from random weights" in score.baselines
        assert not (place / f"{step:08d}/random-rate-0.003-seed-0").exists()
    assert "accuracy on task" in (workflow / figure).read_text()
    assert not (workflow / thinned / "weights.safetensors").exists()
    # What is gone is neither made nor trained again.
    assert "Nothing to be done" in workflow("-n", "tasks", figure, *config()).stdout
    found = listed(workflow, "tasks", *config(batch_size=8))
    jobs = {job for job in found if job.startswith(("train_task", "export"))}
    assert not any("tiny" in job and "00000010" in job for job in jobs)
    assert "train_task:evaluation/tasks/which/mlm/tiny/00000020/pretrained-rate-0.003-seed-0,00000040" in jobs
    assert not any(job.startswith("train_mlm") for job in found)


@pytest.mark.long
def test_the_embedded_task_is_learned_better_than_without_the_model(finished_workflow):
    """Majority and random weights are beaten; bag of words is reported, whoever wins."""
    _, scores = read_scores(finished_workflow / "results/evaluation/tasks/modules/mlm/tiny/scores.json")
    [score] = [score for score in scores if score.part == "whole"]
    majority, random = (score.baselines[name] for name in ("most frequent label", "same model from random weights"))
    assert majority < score.low and random < score.low
    assert "bag of words (logistic regression)" in score.baselines and len(score.seeds) == 2
