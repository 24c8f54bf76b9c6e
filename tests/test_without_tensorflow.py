"""A masked run is trained, exported, measured and asked without the library of the other backend."""

import json
from contextlib import contextmanager

import pytest
import warm
from conftest import Workflow, configured, copied, outside

THEIRS = """
import json, sys
from pathlib import Path
from tpulm.training.tensorflow_model import load_model
from transformers import AutoTokenizer, pipeline

folder, prompts = Path(sys.argv[1]), json.loads(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(folder)
fill = pipeline("fill-mask", model=load_model(folder), tokenizer=tokenizer, framework="tf", dtype=None)
print("RESULT" + json.dumps([fill(prompt) for prompt in prompts]))
"""
PROMPTS = ["Return the [MASK] of the list.", "The [MASK] is a string, isn't it ?"]
# Of a masked run: what is made by a model that is trained, and opened to measure, to ask and to score.
FILES = [f"results/{name}.json" for name in ("mlm/tiny/metrics", "mlm/tiny/fill_mask", "evaluation/mlm/tiny/scores")]


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


def test_jax_trains_measures_and_scores_without_tensorflow_and_answers_as_its_pipeline(trained, tmp_path):
    built, run = copied(trained, tmp_path), "mlm.runs.tiny"
    changes = {f"{run}.backend": "jax", f"{run}.steps": 10, f"{run}.schedule": {"shape": "constant"}}
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    changes |= {f"{run}.model.{key}": size for key, size in sizes.items()}
    configured(built, changes | {"prompts.fill_mask": PROMPTS}, "config.yaml")
    with without("tensorflow", tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", warm.QUICK["XLA_FLAGS"])
        built(*FILES, "--cores", "2")
    found = json.loads((built / "results/mlm/tiny/fill_mask.json").read_text())
    answers = warm.result(warm.run("tensorflow", THEIRS, str(built / "results/mlm/tiny/model"), json.dumps(PROMPTS)))
    for item, theirs in zip(found, answers, strict=True):
        assert [list(answer) for answer in item["answers"]] == [["score", "token", "token_str", "sequence"]] * 5
        for ours, their in zip(item["answers"], theirs, strict=True):
            assert ours["score"] == pytest.approx(their["score"], abs=2e-6)
            assert ours | {"score": 0} == {key: their[key] for key in ours} | {"score": 0}


@pytest.mark.long
def test_tensorflow_measures_asks_and_scores_without_jax(trained, tmp_path):
    built = copied(trained, tmp_path)
    before = [(built / file).read_bytes() for file in FILES]
    with without("jax", tmp_path):
        done = built(*FILES, "--cores", "2", "--forcerun", "evaluate_mlm", "fill_mask", "score_mlm")
    assert all(f"done    {rule} " in done.stdout for rule in ("evaluate_mlm", "fill_mask", "score_mlm"))
    assert [(built / file).read_bytes() for file in FILES] == before
