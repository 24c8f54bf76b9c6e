"""The checkpoint that is a run's model: selected by the held-out loss, or by a score of each checkpoint."""

import json
import shutil

import pytest
from conftest import ROOT, copied
from tpulm.config.evaluations import selecting
from tpulm.config.reading import merge, read_config, read_yaml
from tpulm.config.runs import runs_of
from tpulm.core.errors import UserError
from tpulm.core.scores import read_scores, write_scores

SETS = {"blimp": {"files": ["pairs.jsonl"]}}


def config_of(tmp_path, **changes):
    """Return the shipped config with keys of `evaluation` replaced, and those of other sections."""
    evaluation = {key: changes.pop(key) for key in list(changes) if key not in ("mlm", "base")}
    config = read_yaml(ROOT / "config.yaml") | {"evaluation": {"checkpoints": "all"} | evaluation}
    merge(config, changes)
    (tmp_path / "config.json").write_text(json.dumps(config))
    return read_config([tmp_path / "config.json"], {})


@pytest.mark.unit
def test_the_files_of_a_model_are_those_of_what_selects(tmp_path):
    small = runs_of(config_of(tmp_path))[1]
    checkpoint = "<results>/base/small/checkpoints/00000800"
    assert (small.best, small.state) == (f"{checkpoint}/best.safetensors", f"{checkpoint}/state.json")
    runs = runs_of(config_of(tmp_path, select_by="bits_per_byte"))
    assert [run.best for run in runs] == [f"{run.folder}/selected.safetensors" for run in runs]
    assert [selecting(run)["on"] for run in runs] == [
        "corpus validation", "corpus validation", "finetune-text validation",
    ]  # fmt: skip
    asked = {"source": "files", "files": ["a.jsonl"], "template": "{q}", "response": "{a}"}
    config = config_of(tmp_path, select_by="bits_per_byte")
    config["finetune"]["text"] = asked
    assert selecting(runs_of(config)[2])["on"] == "finetune-text validation, responses"
    by_pairs = runs_of(config_of(tmp_path, select_by="blimp", pairs={"sets": SETS}))[0]
    assert selecting(by_pairs) == {"group": "pairs", "on": "blimp"}
    assert by_pairs.state == "<results>/mlm/tiny/selected.json"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"select_by": "made"}, "allowed: loss, bits_per_byte"),
        ({"select_by": "bits_per_byte", "checkpoints": "last"}, "evaluation.checkpoints is last"),
        ({"select_by": "bits_per_byte", "base": {"small": {"keep_checkpoints": "last"}}},
         "base.small.keep_checkpoints is last"),
        ({"select_by": "bits_per_byte", "text": {"masked_documents": 0}}, "evaluation.text.masked_documents is 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_selected_by_is_named(tmp_path, changes, said):
    with pytest.raises(UserError, match=f"evaluation.select_by is .*{said}"):
        config_of(tmp_path, **changes)


CONFIG = ["--config", "evaluation={checkpoints: all, select_by: bits_per_byte}"]
RUN = "base/small"


def test_the_checkpoint_that_scores_best_is_selected(trained, tmp_path):
    workflow = copied(trained, tmp_path)
    scores = workflow / f"results/evaluation/{RUN}"
    said, known = read_scores(scores / "scores.json")
    for step, bits in ((10, 2.5), (20, 3.5)):  # the later one has the lower loss
        folder = scores / f"{step:08d}"
        folder.mkdir()
        changed = [
            type(score)(**vars(score) | {"step": step, "value": bits if score.on == "corpus validation" else 6 - bits})
            for score in known
        ]
        write_scores(folder / "scores.json", said["model"], said["kind"], changed)
        shutil.copy(scores / "items.parquet", folder)
    workflow("--cores", "1", f"results/{RUN}/selected.json", *CONFIG)
    folder = workflow / f"results/{RUN}"
    found, last = (
        json.loads(path.read_text()) for path in (folder / "selected.json", folder / "checkpoints/00000020/state.json")
    )
    first = json.loads((folder / "checkpoints/00000010/state.json").read_text())
    assert found == last | {"best": found["best"]} and last["best"]["step"] == 20
    assert found["best"] == {
        "step": 10, "evaluation": first["evaluation"], "score": "text, bits_per_byte: corpus validation", "value": 2.5,
    }  # fmt: skip
    weights = folder / "checkpoints/00000010/weights.safetensors"
    assert (folder / "selected.safetensors").read_bytes() == weights.read_bytes()


@pytest.mark.long
def test_a_selected_checkpoint_is_exported(trained, tmp_path):
    workflow = copied(trained, tmp_path)
    targets = [f"results/{RUN}/metrics.json", f"results/evaluation/{RUN}/scores.json"]
    workflow("--cores", "2", *targets, *CONFIG)
    best = json.loads((workflow / f"results/{RUN}/selected.json").read_text())["best"]
    by_step = {
        step: next(
            score.value
            for score in read_scores(workflow / f"results/evaluation/{RUN}/{step:08d}/scores.json")[1]
            if score.on == "corpus validation"
        )
        for step in (10, 20)
    }
    assert best["step"] == min(by_step, key=by_step.get) and best["value"] == by_step[best["step"]]
    _, scores = read_scores(workflow / f"results/evaluation/{RUN}/scores.json")
    assert next(score.value for score in scores if score.on == "corpus validation") == best["value"]
    assert json.loads((workflow / f"results/{RUN}/metrics.json").read_text())["best_step"] == best["step"]
