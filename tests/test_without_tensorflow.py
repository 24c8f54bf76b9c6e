"""A masked run is trained, exported, measured and asked without the library of the other backend."""

import json
from contextlib import contextmanager

import pytest
import warm
from conftest import Workflow, configured, copied, outside
from tpulm.config.reading import read_yaml
from tpulm.specs.scores import scores_in

THEIRS = """
import json, sys
from pathlib import Path
from tpulm.records.reader import Records
from tpulm.training.tensorflow_trainer import evaluate
from tpulm.training.tensorflow_model import load_model
from transformers import AutoTokenizer, pipeline

folder, manifest, prompts = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
model = load_model(folder)
fill = pipeline("fill-mask", model=model, tokenizer=AutoTokenizer.from_pretrained(folder), framework="tf", dtype=None)
figures = {split: evaluate(model, Records(manifest, split)) for split in ("validation", "test")}
print("RESULT" + json.dumps({"answers": [fill(prompt) for prompt in prompts], "figures": figures,
                             "parameters": model.num_parameters()}))
"""


@contextmanager
def without(library, folder):
    """Have a library missing from all that a workflow starts; who imports it only where it is there does without."""
    (folder / "stub" / library).mkdir(parents=True)
    missing = f"raise ModuleNotFoundError('No module named {library}', name='{library}')\n"
    (folder / "stub" / library / "__init__.py").write_text(missing)
    (folder / "servers").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "stub"))
        patch.setattr(Workflow, "servers", folder / "servers")  # of its own, which import beside the stub
        patch.setattr(Workflow, "environment", outside())
        yield


@pytest.fixture(scope="module")
def on_jax(trained, tmp_path_factory):
    """The masked run of `trained` on JAX, where nothing can import TensorFlow."""
    folder = tmp_path_factory.mktemp("jax")
    built, run = copied(trained, folder), "mlm.runs.tiny"
    changes = {f"{run}.backend": "jax", f"{run}.steps": 10, f"{run}.schedule": {"shape": "constant"}}
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    changes |= {f"{run}.model.{key}": size for key, size in sizes.items()}
    changes["prompts.fill_mask"] = ["Return the [MASK] of the list.", "The [MASK] is a string, isn't it ?"]
    configured(built, changes, "config.yaml")
    with without("tensorflow", folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", warm.QUICK["XLA_FLAGS"])
        built("mlm", "results/evaluation/mlm/tiny/scores.json", "--cores", "2")
    return built


@pytest.fixture(scope="module")
def by_tensorflow(on_jax):
    """What transformers makes of the folder, with TensorFlow."""
    prompts = read_yaml(on_jax / "config.yaml")["prompts"]["fill_mask"]
    paths = [str(on_jax / f"results/{path}") for path in ("mlm/tiny/model", "tfrecords/manifest.json")]
    return warm.result(warm.run("tensorflow", THEIRS, *paths, json.dumps(prompts)))


def test_the_answers_are_those_of_the_pipeline(on_jax, by_tensorflow):
    found = json.loads((on_jax / "results/mlm/tiny/fill_mask.json").read_text())
    assert len(found) == len(by_tensorflow["answers"]) == 2
    for item, theirs in zip(found, by_tensorflow["answers"], strict=True):
        assert [list(answer) for answer in item["answers"]] == [["score", "token", "token_str", "sequence"]] * 5
        for ours, their in zip(item["answers"], theirs, strict=True):
            assert ours["score"] == pytest.approx(their["score"], abs=2e-6)
            assert ours | {"score": 0} == {key: their[key] for key in ours} | {"score": 0}


def test_the_metrics_are_those_of_tensorflow(on_jax, by_tensorflow):
    found = json.loads((on_jax / "results/mlm/tiny/metrics.json").read_text())
    assert found["parameters"] == by_tensorflow["parameters"]
    ours = {(score.split, score.metric): score for score in scores_in(found)}
    for split, figures in by_tensorflow["figures"].items():
        for metric in ("loss", "accuracy"):
            assert ours[split, metric].value == pytest.approx(figures[metric], rel=1e-5)
        assert ours[split, "loss"].items == figures["predictions"]
        assert ours[split, "loss"].baselines["token frequencies"] > 3.5


@pytest.mark.long
def test_tensorflow_measures_asks_and_scores_without_jax(trained, tmp_path):
    built = copied(trained, tmp_path)
    names = ("mlm/tiny/metrics", "mlm/tiny/fill_mask", "evaluation/mlm/tiny/scores")
    files = [f"results/{name}.json" for name in names]
    before = [(built / file).read_bytes() for file in files]
    with without("jax", tmp_path):
        done = built(*files, "--cores", "2", "--forcerun", "evaluate_mlm", "fill_mask", "score_mlm")
    assert all(f"done    {rule} " in done.stdout for rule in ("evaluate_mlm", "fill_mask", "score_mlm"))
    assert [(built / file).read_bytes() for file in files] == before
