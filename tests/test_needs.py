"""What jobs need: memory and disk, from the size of the model."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import ROOT
from tpulm.config.model_sizes import causal_size, checkpoint_bytes, model_size, optimizer_bytes
from tpulm.config.outline import Outline
from tpulm.config.reading import read_config
from tpulm.core.errors import UserError
from tpulm.records.order import epochs, epochs_of
from tpulm.specs.published_models import MODELS
from tpulm.training.checkpoint import trained_for
from tpulm.workflow import disk
from tpulm.workflow.resources import mem_mb
from tpulm.workflow.start import check_until

pytestmark = pytest.mark.unit
GEMMA_7B = 8_537_680_896


def runs(recipe="config.yaml", **overrides):
    return {run.key: run for run in Outline(read_config([str(ROOT / recipe)], overrides)).runs.values()}


def tuned(**overrides):
    overrides = {"finetune": {"runs": {"imdb": overrides}}}
    return runs("recipes/imdb-gemma-7b.yaml", **overrides)["finetune.runs.imdb"]


def test_the_size_of_a_base_model_in_a_folder_is_its_own(tmp_path):
    family, sizes = MODELS["gemma3_1b"]
    config = {"registered_name": f"keras_hub>{family}", "config": {**sizes, "num_layers": 2}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    base = {"base": {"gemma-7b": {"preset": str(tmp_path)}}}
    found = model_size(runs("recipes/imdb-gemma-7b.yaml", **base)["finetune.runs.imdb"])
    assert (found.layers, found.parameters) == (2, causal_size(family, config["config"]).parameters)
    # Of one that only its hub knows, that of Gemma 7B.
    base["base"]["gemma-7b"] = {"preset": "hf://some/model", "revision": "a" * 40}
    assert model_size(runs("recipes/imdb-gemma-7b.yaml", **base)["finetune.runs.imdb"]).parameters == GEMMA_7B


def test_memory_for_gemma_7b_is_that_of_its_weights():
    run, rounded = tuned(), tuned(precision="bfloat16", base_precision="int8")
    whole = 4 * GEMMA_7B / 1e6
    # Adapters are written without the base model; merged, it is in float32, 34 GB.
    assert mem_mb(run, "export_lora") < 0.2 * whole
    assert whole < mem_mb(run, "export_finetune") < 1.4 * whole
    # On the chips: the host has a process, a table that is read, and adapters.
    for job in ("train", "generate", "evaluate_finetune"):
        assert 4000 < mem_mb(run, job) < 0.4 * whole
    # Rounded on the host, from bfloat16.
    assert 0.75 * whole < mem_mb(rounded, "train") < 1.2 * whole


def test_memory_on_a_cpu_and_of_folders_for_transformers():
    config = read_config([str(ROOT / "recipes/imdb-gemma-7b.yaml")], {})
    asked = config["finetune"]["runs"]["imdb"]["resources"]
    rented = mem_mb([*Outline(config).runs.values()][0], "train")
    del asked["accelerator"]
    assert mem_mb([*Outline(config).runs.values()][0], "train") > rented + 4 * GEMMA_7B / 1e6
    merged = tuned(merge=True)
    assert mem_mb(merged, "export_transformers") > 4 * GEMMA_7B / 1e6
    [preset] = Outline(read_config([str(ROOT / "recipes/imdb-gemma-7b.yaml")], {})).of_stage("base").values()
    assert mem_mb(preset, "export_transformers") == mem_mb(merged, "export_transformers")
    # Fetching takes as much only where a model is converted.
    assert mem_mb(preset, "fetch_base") == 4000
    assert mem_mb(replace(preset, base={"preset": "hf://some/model"}), "fetch_base") > 4 * GEMMA_7B / 1e6


@pytest.mark.parametrize(("name", "share"), [("adamw", 8), ("lion", 4), ("muon", 4), ("adafactor", 0)])
def test_checkpoints_hold_weights_twice_and_the_optimizer(name, share):
    run = runs(base={"small": {"optimizer": {"name": name, "weight_decay": 0.01}}})["base.small"]
    weights = model_size(run).parameters
    assert checkpoint_bytes(run) == 8 * weights + optimizer_bytes(run)
    share *= weights
    share += 8 * model_size(run).table if name == "muon" else 0
    assert optimizer_bytes(run) == share if share else optimizer_bytes(run) < 0.1 * weights


def job(*outputs):
    return SimpleNamespace(output=outputs)


def needs(jobs, recipe="config.yaml", **overrides):
    config = read_config([str(ROOT / recipe)], overrides)
    outline = Outline(config)
    run = next(iter(outline.runs.values()))
    planned = {"path": run.path, "checkpoints": 3, "checkpoint_bytes": checkpoint_bytes(run)}
    chains = {run.path: run, "chain": replace(run, task="x")}
    return run, disk.needs_of(jobs, outline, chains, [planned, planned | {"path": "chain"}])


def test_disk_is_for_checkpoints_and_models():
    jobs = [job("results/mlm/tiny/model/model.safetensors"), job("results/figures/x.svg")]
    run, (chain, on_task, model) = needs(jobs)
    assert chain.bytes == 3 * checkpoint_bytes(run) + 12 * model_size(run).parameters  # and a snapshot
    assert chain.what.startswith("3 of mlm.runs.tiny ") and on_task.what.startswith("checkpoints of tasks ")
    assert on_task.bytes == 3 * checkpoint_bytes(run)
    assert model.bytes == 4 * model_size(run).parameters
    _, found = needs([job("results/base/gemma-7b/preset")], "recipes/imdb-gemma-7b.yaml")
    assert found[-1].bytes == 2 * GEMMA_7B


def test_disk_for_masked_models_from_elsewhere(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "roberta", "hidden_size": 1024, "vocab_size": 50}')
    place = {"pretrained": str(tmp_path)}
    config = read_config([str(ROOT / "config.yaml")], {})
    trained = config["mlm"]["runs"]["tiny"]
    asked = {key: value for key, value in trained.items() if key not in ("model", "steps", "checkpoint_every")}
    config["mlm"]["runs"] = {"asked": asked | place, "tiny": trained | {"init": place}}
    jobs = [job(f"results/mlm/{folder}/model.safetensors") for folder in ("asked/model", "tiny/init")]
    outline = Outline(config)
    [models, *_] = disk.needs_of(jobs, outline, outline.runs, [])
    assert models.bytes == 2 * 4 * model_size(outline.runs["mlm/tiny"]).parameters > 10**8


def test_no_size_that_is_a_guess_refuses_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1_000_000_000))
    monkeypatch.chdir(tmp_path)  # results of the example run, where it has run here, would be free again
    place = {"pretrained": "me/given", "revision": 40 * "a"}
    config = read_config([str(ROOT / "config.yaml")], {})
    config["mlm"]["runs"] = {"tiny": config["mlm"]["runs"]["tiny"] | {"init": place}}
    jobs = [job(f"results/mlm/tiny/{folder}/model.safetensors") for folder in ("model", "init")]
    outline = Outline(config)
    found = disk.needs_of(jobs, outline, outline.runs, [])
    said = []
    disk.check_space(found, jobs, str(tmp_path), said.append)
    assert len(said) == 1 and "2.8 GB" in said[0] and "1.0 GB are free" in said[0]
    with pytest.raises(UserError, match=r" 3\.8 GB .*corpus 1\.0 GB"):
        disk.check_space([*found, disk.Need(1_000_000_001, "corpus 1.0 GB")], jobs, str(tmp_path), said.append)


def test_too_little_disk_is_refused_and_enough_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: SimpleNamespace(free=4_000_000_000))
    old = tmp_path / "old"
    old.write_bytes(bytes(1000))
    wanted = [disk.Need(3_000_000_000, "models 3.0 GB"), disk.Need(1_000_001_000, "two 1.0 GB"), disk.Need(0, "none")]
    said = []
    # What a job writes anew is free again.
    disk.check_space(wanted, [job(str(old))], str(tmp_path), said.append)
    needed = "4.0 GB of disk in {}/ (models 3.0 GB; two 1.0 GB)"
    assert needed.format(tmp_path) in said[0]
    with pytest.raises(UserError, match=rf"{re.escape(needed.format(tmp_path))}, but 4\.0 GB are free"):
        disk.check_space(wanted, [], str(tmp_path), said.append)
    disk.check_space(wanted, [], "gs://bucket/results", said.append)
    assert needed.format("gs://bucket/results") in said[1] and "free" not in said[1]
    disk.check_space([disk.Need(0, "none")], [], str(tmp_path), said.append)
    assert len(said) == 2


def test_until_a_rule_that_trains_is_refused():
    def segment(rule, step):
        output = [f"results/base/small/checkpoints/{step:08d}/state.json"]
        return SimpleNamespace(rule=SimpleNamespace(name=rule), output=output)

    jobs = [segment("train_base", 100), segment("train_base", 200), segment("train_finetune", 300)]
    before = {id(jobs[1]): jobs[:1], id(jobs[2]): jobs[1:2]}

    def needed(job):
        return before.get(id(job), [])

    check_until(needed, jobs, {"train_finetune"})
    check_until(needed, jobs[1:], {"train_base"})  # one of them is left to do
    with pytest.raises(UserError, match=r"--until is train_base, .*such as results/base/small/checkpoints/00000200/"):
        check_until(needed, jobs, {"train_base"})


def test_epochs_are_passes_over_the_records():
    assert epochs(293_500, 512, 300_544) == 500
    assert epochs_of({"first": 100, "last": 200, "batch_size": 16}, 3200) == "epochs 0.50 to 1.00, of 3,200 records"
    manifest = {"sequence_length": 8, "splits": {"train": {"shards": [{"records": 2000}, {"records": 1200}]}}}
    state = {"step": 400, "stopped_at": None, "recipe": {"batch_size": 16}}
    assert trained_for(state, manifest) == {"steps": 400, "epochs": 2.0}
    assert trained_for(state | {"stopped_at": 300}, manifest) == {"steps": 300, "epochs": 1.5}
