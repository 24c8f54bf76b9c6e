"""The published recipes at tiny sizes: their keys, from a dataset on a hub to a published model."""

import io
import json
from pydoc_data.topics import topics

import loopback_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, write_yaml
from tpulm.config.reading import read_yaml
from tpulm.report.tables import held_out

pytestmark = pytest.mark.long
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXTS = sorted(topics.values())
ROWS = {"train": TEXTS[6:], "validation": TEXTS[:3], "test": TEXTS[3:6]}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub on loopback; eight virtual CPUs stand for the cores of a v3-8."""
    with loopback_hub.served() as found:
        for name, value in (("HF_ENDPOINT", found.url), ("HF_HOME", str(tmp_path / "home"))):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HF_TOKEN", loopback_hub.TOKEN)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setenv("TPULM_ANY_DEVICES", "1")
        yield found


def serve(hub, text):
    """Put the dataset of a text on the hub, a Parquet file for each of its splits, and name its commit."""
    files = {}
    for split in text["splits"]:
        sink = io.BytesIO()
        pq.write_table(pa.table({"text": ROWS[split]}), sink)
        files[f"{text['name']}/{split}-00000-of-00001.parquet"] = sink.getvalue()
    configs = "".join(f"  - {{split: {split}, path: {text['name']}/{split}-*}}\n" for split in text["splits"])
    files["README.md"] = f"---\nconfigs:\n- config_name: {text['name']}\n  data_files:\n{configs}---\n".encode()
    repository = hub.repositories.setdefault(f"datasets/{text['dataset']}", loopback_hub.Repository(False))
    text["revision"] = repository.commit("main", "data", files)


def tiny_recipe(hub, recipe, steps):
    """Return the config of a recipe with fewer steps, whose texts are on the hub and that publishes there; its run."""
    config = read_yaml(ROOT / f"recipes/{recipe}.yaml")
    texts = [config["corpus"], *([config["finetune"]["text"]] if "finetune" in config else [])]
    for text in texts:
        serve(hub, text)
    stage = config.get("mlm") or config["finetune"]
    (run,) = stage["runs"].values()
    run |= {"steps": steps, "checkpoint_every": steps // 2, "evaluate_every": steps // 4, "keep_checkpoints": "last"}
    if run["schedule"].get("warmup_steps"):
        run["schedule"]["warmup_steps"] = 1
    if "last_steps" in run["published"]:
        run["published"]["last_steps"] = steps // 4
    config["publish"] = {"hub": "me/tiny_recipe"}
    return config, run


def finished(workflow, config):
    """Run a tiny_recipe to the published model; return the rows of its figures beside the published ones."""
    write_yaml(workflow / "tiny_recipe.yaml", config)
    arguments = ("--configfile", "tiny_recipe.yaml", "--cores", "2")
    workflow("publish", "report", *arguments)
    results = workflow / "results"
    (found,) = json.loads((results / "compare/published.json").read_text())
    printed = workflow("compare", *arguments).stdout
    page = (results / "report.html").read_text()
    for row in found["rows"]:
        assert row["verdict"] in page and all(word in printed for word in row["verdict"].split())  # in several lines
    return results, {row["figure"]: row for row in found["rows"]}


def test_the_recipe_of_the_masked_model(fresh, hub):
    config, run = tiny_recipe(hub, "wikitext103-roberta-base", 8)
    length = config["tfrecords"]["sequence_length"]
    config["tokenizer"] |= {"vocab_size": 500}
    config["tfrecords"]["shards"]["train"] = 2
    run |= {"batch_size": 8 * run["microbatches"]}
    run["model"] |= TINY
    results, rows = finished(fresh, config)
    answers = rows.pop(config["prompts"]["fill_mask"][0])
    assert answers["published"] == "be, (nothing), work, act, have" and " of 5 are the same" in answers["verdict"]
    history = (results / "mlm/roberta-base/history.csv").read_text().splitlines()[1:]
    losses = [float(line.split(",")[1]) for line in history]
    trained = rows["train loss, mean of the last 2 steps"]
    assert trained["reached"] == pytest.approx(sum(losses[-2:]) / 2) and trained["published"] == 0.7074
    assert trained["verdict"] == "not the same: another vocabulary"
    metrics = json.loads((results / "mlm/roberta-base/metrics.json").read_text())
    assert rows["validation loss of the best checkpoint"]["reached"] == held_out(metrics)["validation"]["loss"]
    files = hub.repositories["models/me/tiny_recipe-mlm-roberta-base"].files()
    assert files["model.safetensors"] == (results / "mlm/roberta-base/model/model.safetensors").read_bytes()
    assert json.loads(files["config.json"])["max_position_embeddings"] == length + 4


def test_the_recipe_of_gemma(trained, fresh, hub):
    config, run = tiny_recipe(hub, "imdb-gemma-7b", 8)
    config["base"]["gemma-7b"] = {"preset": str(trained / "results/base/small/preset")}
    results, rows = finished(fresh, config)
    mean = "mean of the last 8 steps"
    assert list(rows) == [
        f"train loss, {mean}", f"train accuracy, {mean}", "seconds per step, median, on 8 x cpu",
    ]  # fmt: skip
    files = hub.repositories["models/me/tiny_recipe-finetune-imdb"].files()
    assert any(name.endswith("adapter_model.safetensors") for name in files)
