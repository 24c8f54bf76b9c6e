"""Runs: what the config says of each, and what follows from it."""

import ast
import re

import pytest
from conftest import ROOT
from tpulm.config.outline import Outline
from tpulm.config.reading import read_config, read_yaml
from tpulm.core.errors import UserError
from tpulm.specs.training_step import determinism_metrics
from tpulm.workflow import resources
from tpulm.workflow.resources import resources_of

pytestmark = pytest.mark.unit
CONFIG = str(ROOT / "config.yaml")


def config_with(**overrides):
    return read_config([CONFIG], overrides)


def run_of(stage, name, **overrides):
    return Outline(config_with(**overrides)).runs[f"{stage}/{name}"]


def test_a_base_model_that_is_fetched_is_opened_as_its_runs_or_as_it_says():
    run = read_yaml(CONFIG)["finetune"]["runs"]["python"] | {"base": "given"}
    other = run | {"mesh": [2, -1]}

    def opening(runs, **keys):
        given = {"preset": "hf://some/base", "revision": "a" * 40} | keys
        harness = {"harness": {"piqa": {"revision": "a" * 40}}}
        found = config_with(base={"given": given}, finetune={"runs": runs}, evaluation=harness)
        return Outline(found).models["base/given"].opening

    assert opening({"b": run})["mesh"] == [1, 8] and opening({"b": run})["host_device_count"] == 8
    assert opening({"b": run}) == opening({"a": run, "b": run})
    with pytest.raises(UserError, match=r"base\.given lacks mesh, .* finetune\.runs\.a and finetune\.runs\.b"):
        opening({"a": other, "b": run})
    assert opening({"a": other, "b": run}, mesh=[4, -1])["mesh"] == [4, -1]
    with pytest.raises(UserError, match=r"base\.given\.mesh is \[3, -1\], .* host_device_count, 8"):
        opening({"b": run}, mesh=[3, -1], host_device_count=8)
    with pytest.raises(UserError, match=r"base\.given has preset and .*steps"):
        opening({"b": run}, steps=3)


def test_segments_share_the_schedule_and_not_the_number_of_steps():
    run = run_of("mlm", "tiny")
    longer = run_of("mlm", "tiny", mlm={"runs": {"tiny": {"steps": 3150}}})
    assert run.segment_ends == [1050, 2100] and longer.segment_ends == [1050, 2100, 3150]
    assert run.segment(1050) == longer.segment(1050)
    assert run.segment(2100)["schedule"] == {"knots": [[1050, 0.002], [2100, 0.0]]}
    assert longer.segment(2100)["schedule"] == {"knots": [[1050, 0.002], [2100, 0.002]]}
    assert "steps" not in run.segment(1050)


def test_determinism_is_in_a_recipe_only_where_bytes_are_not_promised():
    free = {"determinism": "steps"}
    base, tuned = run_of("base", "small"), run_of("finetune", "python")
    end = base.segment_ends[0]
    free_base = run_of("base", "small", base={"small": free})
    free_tuned = run_of("finetune", "python", finetune={"runs": {"python": free}})
    recipes = [(base.segment(end), free_base.segment(end)), (base.plan_recipe(), free_base.plan_recipe())]
    recipes.append((tuned.opening, free_tuned.opening))
    for promising, other in recipes:
        assert other == promising | free and determinism_metrics(promising) == {}
        assert determinism_metrics(other) == free | {"bytes_promised": False}


def test_patience_is_in_a_segment_only_where_it_can_have_run_out():
    run = run_of("mlm", "tiny", mlm={"runs": {"tiny": {"steps": 1500, "checkpoint_every": 300, "patience": 2}}})
    assert ["patience" in run.segment(last) for last in run.segment_ends] == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("keep", "thinned"),
    [("all", []), ("last", [300, 600, 900, 1200]), ("every 2", [300, 900]), ("every 100", [300, 600, 900, 1200])],
)
def test_what_is_thinned_is_never_the_last(keep, thinned):
    kept = {"steps": 1500, "checkpoint_every": 300, "keep_checkpoints": keep}
    run = run_of("mlm", "tiny", mlm={"runs": {"tiny": kept}})
    assert run.prune_marks == [f"<results>/mlm/tiny/checkpoints/{step:08d}/pruned.json" for step in thinned]


class Wildcards(dict):
    __getattr__ = dict.__getitem__


def asked(given, hosts, prefix=""):
    runs = Outline(config_with(finetune={"runs": {"python": {"resources": given}}})).runs_of("finetune")
    found = resources_of(lambda wildcards: runs[wildcards.run], "train", prefix, hosts)
    wildcards = Wildcards(run="python")
    return {
        name: function(wildcards, 2) if name == "runtime" else function(wildcards) for name, function in found.items()
    }


def test_resources_say_what_and_never_where():
    one = asked({"accelerator": "v5e-8", "mem_gb": 16, "runtime": 30}, hosts=True)
    assert one == {
        "run_key": "finetune.runs.python", "backend": "jax", "accelerator": "v5e-8", "gres": "tpu:v5e:8",
        "mem_mb": 16_000, "runtime": 60, "tasks_per_gpu": None, "hosts": None, "nodes": None, "tasks": None,
        "device": None,
    }  # fmt: skip
    several = asked({"accelerator": "h100:4", "hosts": 2}, hosts=True, prefix="lm/")
    assert several["run_key"] == "lm/finetune.runs.python" and several["gres"] == "gpu:h100:4"
    assert several["hosts"] == several["nodes"] == several["tasks"] == 2 and several["tasks_per_gpu"] == 0
    measuring = asked({"accelerator": "v5e-16", "hosts": 2}, hosts=False)
    assert measuring["run_hosts"] == 2 and measuring["gres"] == "tpu:v5e:8" and "hosts" not in measuring


def test_on_a_machine_with_an_accelerator_one_job_at_a_time_uses_it(monkeypatch):
    monkeypatch.setattr(resources, "accelerator_here", lambda: True)
    assert asked({}, hosts=True)["device"] == 1
    for profile in ("default", "gcs"):  # under which jobs run on this machine
        assert read_yaml(ROOT / f"profiles/{profile}/config.yaml")["resources"] == ["device=1"]


def starts(script):
    """Return of each call in a script that starts a library whether it keeps to the CPU."""
    calls = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)]
    found = [call for call in calls if ast.unparse(call.func).endswith(("runtime.start", "open_causal", "start_for"))]
    kept = "keep_to_cpu()" in script
    return [kept or "on_cpu" in [keyword.arg for keyword in call.keywords] for call in found]


def test_a_job_that_requests_nothing_leaves_accelerators_alone():
    """Its script starts its library on the CPU; one whose rule requests devices does not."""
    found = []
    for rules in sorted((ROOT / "rules").glob("*.smk")):
        for rule in re.split(r"^ *rule ", rules.read_text(), flags=re.M)[1:]:
            script = re.search(r'"\.\./(scripts/.*\.py)"', rule)
            text = (ROOT / script[1]).read_text() if script else ""
            if "JAX_PLATFORMS" not in text:  # a plan sets it itself
                found += [(script[1], on_cpu, "_resources(" in rule) for on_cpu in starts(text)]
    assert len(found) > 15
    for script, on_cpu, requests in found:
        assert on_cpu != requests, script


def test_runs_share_records_where_they_read_the_same():
    python = read_yaml(CONFIG)["finetune"]["runs"]["python"]
    runs = {"other": python | {"rank": 2}, "short": python | {"sequence_length": 32}}
    runs["packed"] = python | {"packing": "concat"}
    config = config_with(finetune={"runs": runs, "shards": {"train": 2}})
    found = Outline(config).records
    assert {folder: dict(records.shards) for folder, records in found.items()} == {
        "tfrecords": {"train": 4, "validation": 1, "test": 1},
        "tokens/small/corpus/concat-64": {"train": 1, "validation": 1, "test": 1},
        "tokens/small/corpus/concat-32": {"validation": 1},
        "tokens/small/finetune-text/pad-64": {"train": 2, "validation": 1, "test": 1},
        "tokens/small/finetune-text/pad-32": {"train": 2, "validation": 1, "test": 1},
        "tokens/small/finetune-text/concat-64": {"train": 2, "validation": 1, "test": 1},
    }
    assert found["tokens/small/finetune-text/pad-32"].tokens_per_record == 33
    assert found["tfrecords"].tokens_per_record == 128
