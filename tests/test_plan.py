"""Plans: the TPU compiler's figures, the very step of the trainers, what does not fit, what costs too much."""

import json
import re
import runpy
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import warm
from conftest import ROOT, configured, copied
from test_causal import SIZES
from test_mlm_tensorflow import MASKING
from tpulm.config.model_sizes import checkpoint_bytes
from tpulm.config.outline import Outline
from tpulm.config.reading import read_config
from tpulm.core.accelerators import topology
from tpulm.core.errors import UserError
from tpulm.report.tables import notes_of
from tpulm.workflow import budget

compiler = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not to be had here")

OPTIMIZER = {"weight_decay": 0.01, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "global_clipnorm": None}
LION = {"name": "lion", "weight_decay": 0.01, "beta_1": 0.9, "beta_2": 0.99}
MUON = OPTIMIZER | {"name": "muon", "momentum": 0.95, "adam_lr_ratio": 0.5}
ADAFACTOR = {"name": "adafactor", "weight_decay": 0.01}
COMMON = {"microbatches": 1, "steps_per_execution": 1, "remat": False, "seed": 0, "optimizer": OPTIMIZER}
COMMON |= {"alternatives": False, "host_device_count": 1, "checkpoint_every": 10, "resources": {"hosts": 1}}

PLAN = """
import json, sys
from tpulm.training import runtime
runtime.start(1)
import jax
from tpulm.planning.plan import with_cost, plan, shortage
from tpulm.core.accelerators import topology
found = []
for stage, recipe, name, *effort in json.loads(sys.argv[1]):
    jax.config.update("jax_exec_time_optimization_effort", *(effort or [0.0]))
    made = plan(stage, recipe, topology(name), f"{stage}.runs.x")
    made["sentence"] = None if made["memory"]["fits"] else shortage(made, f"{stage}.runs.x", name)
    found.append(made)
print("RESULT" + json.dumps(found))
"""


def plans(folder, *wanted):
    return warm.result(warm.run("tpu", PLAN, json.dumps(wanted), folder=folder))


def test_the_shipped_configs():
    """The published tuning is bound by memory; the same made fast is not."""
    plans = json.loads((ROOT / "benchmarks/results/recipe_plans.json").read_text())
    for name, tokens, bound in (("imdb-gemma-7b", 2 * 128, "memory"), ("imdb-gemma-7b-fast", 64 * 128, "compute")):
        plan = plans[f"{name}.yaml"]["finetune.runs.imdb"]["v3-8"]
        assert max(plan["seconds"], key=plan["seconds"].get) == bound and plan["total"] < plan["hbm"]
        # 8.5e9 parameters, four FLOPs each for a token: forward, and back through weights that are not trained.
        assert plan["model_flops"] == pytest.approx(4 * 8.54e9 * tokens, rel=0.02)


NARROW = {"mesh": [1, 1], "precision": "mixed_bfloat16", "remat": True}
SMALL = {
    "model": {
        "architecture": "roberta", "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 1024, "hidden_dropout_prob": 0.0,
    },
    "masking": MASKING, "vocabulary": {"size": 1024, "pad": 3}, "mesh": [-1, 1], "precision": "float32",
    "sequence_length": 128, **COMMON, "batch_size": 32,
}  # fmt: skip
# Large by its vocabulary alone: the compiler takes long for dropout, and for what is in a layer. Keys that could
# help are set already, but for the mesh: each suggestion is compiled.
LARGE = SMALL | NARROW | {"vocabulary": {"size": 1_000_000, "pad": 3}, "sequence_length": 64, "batch_size": 1}
LARGE["model"] = SMALL["model"] | {"hidden_size": 2048, "num_attention_heads": 8, "intermediate_size": 512}
GEMMA = COMMON | NARROW | {"vocab_size": 1024}
GEMMA["model"] = {"num_layers": 1, "num_query_heads": 4, "num_key_value_heads": 4, "hidden_dim": 256}
GEMMA["model"] |= {"intermediate_dim": 1024, "head_dim": 64}
WINDOWS = {"num_query_heads": 8, "num_key_value_heads": 1, "attention_logit_soft_cap": 50.0}
WINDOWS |= {"use_sliding_window_attention": True, "sliding_window_size": 150}
LLAMA = {key: size for key, size in GEMMA["model"].items() if key != "head_dim"} | {"architecture": "llama3"}
PLANNED = {
    "does not fit": ("mlm", LARGE),
    "kernel": ("base", GEMMA | {
        "model": GEMMA["model"] | WINDOWS, "mesh": [2, 4], "batch_size": 8, "packing": "segments",
        "sequence_length": 512,
    }),
}  # fmt: skip
SPREAD = GEMMA | {
    "model": LLAMA, "mesh": [8, 1], "batch_size": 128, "sequence_length": 120, "microbatches": 2,
    "layout": {".*token_embedding/(reverse_)?embeddings": [None, None]},
}  # fmt: skip
SPREAD_TABLE = GEMMA | {"mesh": [8, 1], "batch_size": 256, "sequence_length": 256, "microbatches": 4, "remat": False}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The plans of PLANNED: in one process, as its first program takes the compiler longest."""
    slices = {"does not fit": "v5e-4"}  # to which fewer meshes are suggested
    wanted = [(*run, slices.get(name, "v5e-8"), -1.0) for name, run in PLANNED.items()]
    return dict(zip(PLANNED, plans(tmp_path_factory.mktemp("compiled"), *wanted), strict=True))


@compiler
def test_a_run_that_does_not_fit_says_what_would_help(compiled):
    plan = compiled["does not fit"]
    memory = plan["memory"]
    assert memory["usable"] == 15.75 * 2**30  # of 16 GiB, as the compiler says for this chip
    matrices = 2048 * (1_000_000 + 508 + 5 * 2048 + 2 * 512)  # tables, attention and head, feed-forward
    assert memory["weights"] == pytest.approx(4 * matrices, rel=1e-3)
    assert memory["optimizer"] == pytest.approx(2 * memory["weights"], rel=1e-6)
    assert not memory["fits"] and plan["estimated_seconds"] is None and plan["lower_bound_seconds"] is None
    assert memory["weights"] + memory["optimizer"] < memory["total"] < 2 * (memory["weights"] + memory["optimizer"])
    assert plan["sentence"].startswith("mlm.runs.x does not fit v5e-4: ")
    for part in (f" {memory['total'] / 2**30:.1f} GiB", " 15.8 ", "it fits with mesh: [1, -1] ("):
        assert part in plan["sentence"], part


# Measures a run of which the compiler says what stands in argv; says what is suggested to runs, if all of it did fit.
ANSWERED = """
import json, sys
from tpulm.training import runtime
runtime.start(1)
import jax
from tpulm.specs.training_step import TrainingStep
from tpulm.core.accelerators import topology
from tpulm.planning import cost_model
from tpulm.planning import plan
(stage, recipe, name, said), *runs = json.loads(sys.argv[1])
cost_model.topologies.get_topology_desc = lambda **options: type("Devices", (), {"devices": jax.devices()})
cost_model.analyze_program = lambda *arguments: said
measured = cost_model.measure(TrainingStep.of(stage, "mlm.runs.x", recipe), topology(name))
plan.measure = lambda *arguments: {"memory": {"fits": True, "total": 2**30}}
found = [plan.advice(*run[:2], topology(run[2]), "mlm.runs.x", 16 * 2**30, 20) for run in runs]
print("RESULT" + json.dumps([measured, found]))
"""


def test_what_the_compiler_takes_fits_and_what_is_suggested_the_config_allows(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    small = {"model": {"architecture": "roberta"} | sizes, "masking": MASKING}
    small |= {"vocabulary": {"size": 320, "pad": 3}, "mesh": [1, 1], "precision": "float32", "sequence_length": 32}
    said = {"arguments": 10 * 2**30, "temporaries": 5 * 2**30, "program": 2**20, "total": 15.7 * 2**30, "usable": None}
    said |= {"flops": 1.0, "bytes": 1.0, "collective_bytes": {}, "link_seconds": 0.0, "uncounted": []}
    said |= {"program_sha256": "0" * 64}
    taken = ("mlm", small | COMMON | {"batch_size": 2}, "v5e-1", said)
    run = small | COMMON | {"remat": True, "precision": "mixed_bfloat16", "batch_size": 8}
    virtual = run | {"mesh": [-1, 1], "host_device_count": 8}
    several = run | {"mesh": [1, -1], "host_device_count": 6, "resources": {"hosts": 3}}
    wanted = [("mlm", changed, "v5e-4") for changed in (run | {"mesh": [1, 1]}, virtual, several)]
    measured, found = warm.result(warm.run("tpu", ANSWERED, json.dumps([taken, *wanted]), folder=tmp_path))
    assert measured["memory"]["fits"] and measured["memory"]["total"] == said["total"]
    layer, attended = 4 * 32 * 32 + 2 * 32 * 64, 2 * 32 * 32  # multiplications of a token; both ways
    head = (32 * 32 + 320 * 32) * 5 / 32  # where it predicts: 15 % of the places, and a few to spare
    assert measured["model_flops_per_step"] == 3 * 2 * 32 * 2 * (layer + head + attended)
    one, virtual, several = ([words.removesuffix(" (1.0 GiB)") for words in words_of] for words_of in found)
    parts, half = [f"microbatches: {parts}" for parts in (2, 4, 8)], "batch_size: 4"
    meshes = [f"mesh: [{rows}, -1], host_device_count: {rows}" for rows in (2, 4)]
    assert one == [*parts, "mesh: [1, -1]", *meshes, half]
    # Two parts, or half the batch, cannot be spread over eight virtual devices.
    assert virtual == ["mesh: [1, -1]", "mesh: [2, -1]", "mesh: [4, -1]"]
    assert several == [*parts, "mesh: [2, -1]", "mesh: [4, -1], host_device_count: 12", half]


@compiler
def test_a_plan_compiles_the_kernel_of_attention(compiled):
    """Documents apart, a sliding window and soft caps, keys of one head for four devices, gradients computed again."""
    fused = compiled["kernel"]
    assert fused["attention"] == {"implementation": "splash", "reason": None}
    assert fused["memory"]["fits"] and fused["cost"]["uncounted"] == []
    assert "reduce-scatter" in fused["cost"]["collective_bytes"]  # as tests/test_cost_model.py has it


@compiler
def test_weights_that_are_sharded_over_the_batch_are_gathered_block_by_block(tmp_path):
    """With remat: in each part forward and backward, and gradients are scattered; activations stay where they are."""
    plan, table = plans(tmp_path, ("base", SPREAD, "v5e-8", 0.0), ("base", SPREAD_TABLE, "v5e-8", -1.0))
    weights, computed = 2 * (4 * 256 * 256 + 3 * 256 * 1024), 8 * plan["cost"]["flops"] / plan["model_flops_per_step"]
    assert 1.2 < computed < 4 / 3 and plan["cost"]["uncounted"] == []  # the head is not computed again
    gathers, sent = 2 * 2 * weights * 7 / 8, plan["cost"]["collective_bytes"]
    assert gathers <= sent["all-gather"] < 1.2 * gathers  # and arrays of losses
    # The compiler scatters by passing on from device to device. The tables' gradients are summed.
    assert 0 < sent["collective-permute"] <= 2 * (2 * weights) * 7 / 8
    assert set(sent) == {"all-gather", "collective-permute", "all-reduce"}
    assert sent["all-reduce"] == pytest.approx(2 * (2 * 4 * 1024 * 256) * 7 / 8, rel=0.1)
    # By keras-hub's layout of Gemma: records stay. Parts are turns of a loop; future tokens are computed, and masked.
    assert 1 < 8 * table["cost"]["flops"] / table["model_flops_per_step"] < 1.2
    assert table["cost"]["collective_bytes"]["all-gather"] < 4 * 2 * (8 * table["memory"]["weights"]) * 7 / 8


@pytest.mark.long  # four programs
@compiler
def test_single_changes_cost_what_the_changed_run_does(tmp_path):
    one, remat = plans(
        tmp_path, ("mlm", SMALL | {"alternatives": True}, "v5e-8"), ("mlm", SMALL | {"remat": True}, "v5e-8")
    )
    assert remat["cost"]["flops"] > 1.2 * one["cost"]["flops"]
    changes = {change["key"]: change for change in one["alternatives"]}
    assert list(changes) == ["remat", "precision", "microbatches"]
    for same in ("memory", "seconds", "lower_bound_seconds", "estimated_seconds", "bound_by"):
        assert changes["remat"][same] == remat[same]
    assert changes["precision"]["value"] == "mixed_bfloat16" and changes["precision"]["seconds"] != one["seconds"]
    # The arithmetic is narrower, weights are not.
    assert changes["precision"]["memory"]["weights"] == one["memory"]["weights"]


# Lowers each run twice on eight virtual devices: by the trainer with values, by the plan without.
SAME = """
import hashlib, json, sys
from tpulm.training import runtime
runtime.start(1, 8)
import jax, numpy as np
from keras_hub.src.models.gemma import gemma_attention
from tpulm.models import causal, masked_models
from tpulm.models.preset_folders import save_preset
from tpulm.planning.abstract_run import AbstractRun
from tpulm.specs.training_step import TrainingStep
from tpulm.training.device_batches import batches
from tpulm.training.jax_run import build_run
from tpulm.training.jax_trainer import Trainer

def trained(step):
    trainer, steps = Trainer(build_run(step, masked_models if step.masking else causal)), step.steps_per_execution
    arrays = {name: np.zeros((step.batch_size, *shape), kind) for name, (shape, kind) in step.record_arrays.items()}
    load = lambda step, rows: {name: array[rows] for name, array in arrays.items()}
    batch = next(batches(load, (0, steps), step.batch_size, steps, trainer.run.distribution))
    rates = np.zeros(steps, np.float32)
    arguments = (trainer.state, trainer.frozen, batch, rates[0] if steps == 1 else rates)
    return trainer.dispatch.lower(*arguments).as_text()

for stage, recipe in json.loads(sys.argv[1]):
    # A plan has the sizes of a base model that is trained here; its trainer has the folder of it.
    known = {} if stage != "finetune" else {"base": {"preset": "base"}}
    gemma_attention.running_on_tpu = lambda: True  # a trainer sees a TPU, a plan does not
    texts = [trained(TrainingStep.of(stage, "m", recipe, **known))]
    gemma_attention.running_on_tpu = lambda: False
    plans = [recipe] + ([recipe | known] if known else [])  # a plan of a preset reads its sizes
    for planned in plans:
        texts.append(AbstractRun(TrainingStep.of(stage, "m", planned), jax.devices()).lowered().as_text())
    print("RESULT", stage, len(texts[0]), *(hashlib.sha256(text.encode()).hexdigest() for text in texts))
    if stage == "base":
        save_preset(build_run(TrainingStep.of(stage, "m", recipe), causal).model, "base")
"""


@compiler
def test_plan_and_trainer_compile_the_same_program(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", warm.QUICK["XLA_FLAGS"])  # what is compared is the program before XLA's passes
    base = {"model": SIZES, "vocab_size": 320}
    common = COMMON | {"batch_size": 8, "sequence_length": 32, "precision": "float32"}
    roberta = {"architecture": "roberta", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    roberta |= {"intermediate_size": 64, "max_position_embeddings": 36, "hidden_dropout_prob": 0.1}
    lora = {"base": base, "method": "lora", "rank": 2, "alpha": 4.0, "targets": ["query", "output", "ffn"]}
    lora |= {"mesh": [2, 4], "base_precision": "int8", "optimizer": ADAFACTOR, "steps_per_execution": 2}
    lora |= {"responses": True}
    whole = base | {"mesh": [2, 4], "remat": True, "packing": "segments", "microbatches": 2, "optimizer": LION}
    whole |= {"layout": {".*ffw.*kernel": ["batch", None]}}
    masked = {"model": roberta, "masking": MASKING, "vocabulary": {"size": 320, "pad": 3}, "mesh": [4, 2]}
    masked |= {"optimizer": MUON}
    runs = [("base", common | whole), ("finetune", common | lora), ("mlm", common | masked)]
    done = warm.run("tpu", SAME, json.dumps(runs), folder=tmp_path)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert [line[1] for line in lines] == [stage for stage, _ in runs]
    for _, stage, length, trainer, *plans in lines:
        assert int(length) > 10_000 and set(plans) == {trainer}, stage
    assert len({line[3] for line in lines}) == len(runs)


@pytest.mark.unit
def test_the_stage_says_what_it_cannot_plan(tmp_path, capsys):
    recipe = {"compiler": False, "topologies": ["v5e-8"]}
    job = SimpleNamespace(params=SimpleNamespace(recipe=recipe), log=[str(tmp_path / "plan.log")])
    runpy.run_path(str(ROOT / "scripts/plan/plan.py"), {"snakemake": job})
    assert "ENVIRONMENT=tpu" in capsys.readouterr().err
    plan = {"planned": True, "sentence": None, "topology": "v5e-8"}
    plan |= {"recipe": {"where": "mlm.runs.x", "backend": "tensorflow"}}
    failed = {"planned": False, "reason": "no such mesh", "topology": "v5e-8", "recipe": {"where": "base.y"}}
    on_jax, none = notes_of([plan, failed])
    assert on_jax.startswith("mlm.runs.x trains on TensorFlow") and none == "base.y on v5e-8: no such mesh"


@pytest.fixture(scope="module")
def planned(trained, tmp_path_factory):
    """The cut-down run with a plan of every run for one slice; its masked model is on JAX, and so not trained yet."""
    workflow = copied(trained, tmp_path_factory.mktemp("planned"))
    workflow.steady = True
    plan = {"topologies": ["v5e-8"], "prices": {"v5e-8": 3600.0}}
    configured(workflow, {"mlm.runs.tiny.backend": "jax", "plan": plan}, "config.yaml")
    printed = workflow("plan", "--cores", "2").stdout
    (workflow / "plan.txt").write_text(printed)
    return workflow


def read(workflow, stage, run):
    return json.loads((workflow / f"results/plan/{stage}/{run}/v5e-8.json").read_text())


@compiler
def test_every_run_has_a_plan(planned):
    printed = (planned / "plan.txt").read_text()
    assert printed.count(" measured steps of other programs on v5e") == 1 and "; none of this workflow." in printed
    base, lora, jax = read(planned, "base", "small"), read(planned, "finetune", "python"), read(planned, "mlm", "tiny")
    for plan in (base, lora, jax):
        assert plan["planned"] and plan["memory"]["fits"] and plan["sentence"] is None
        step, peaks = plan["estimated_seconds"], topology("v5e-8")
        least = max(plan["cost"]["flops"] / peaks.flops, plan["cost"]["bytes"] / peaks.hbm_bandwidth)
        assert plan["lower_bound_seconds"] == max(least, plan["seconds"]["interconnect"]) < step
        assert plan["tokens_per_second"] == pytest.approx(plan["tokens_per_step"] / step)
        assert plan["cost_of_run"] == pytest.approx(step * plan["recipe"]["steps"])  # an hour costs 3,600
        assert plan["memory"]["arguments"] >= plan["memory"]["weights"] + plan["memory"]["optimizer"]
    variables = json.loads((planned / "results/finetune/python/partitioning.json").read_text())["variables"]
    assert lora["memory"]["weights"] == sum(variable["bytes_per_device"] for variable in variables)
    assert re.search(r"^.*mlm/tiny .* v5e-8 +yes ", printed, re.M)
    hours = jax["hours"]  # of all runs, the one that has not been trained
    assert re.search(rf"^.*steps, estimated +{hours:,.2f} +{hours * 3600:,.2f}$", printed, re.M)
    # It makes nothing stale, and is no leftover.
    assert "Nothing to be done" in planned("finetune", "base", "-n").stdout
    assert "results/plan" not in planned("clean").stdout


@compiler
def test_what_is_pending_costs_too_much_and_does_not_start(planned, tmp_path):
    """Pending is what Snakemake would train, not only what has another recipe: the base is trained again, and tuned."""
    workflow = copied(planned, tmp_path)
    changes = {"plan.spending_limit": 0.0, "base.small.learning_rate": 0.001}
    configured(workflow, changes | {"mlm.runs.tiny.resources": {"accelerator": "v5e-8"}}, "config.yaml")
    elsewhere = ("--executor", "cluster-generic", "--cluster-generic-submit-cmd", "false", "--jobs", "1")
    refused = workflow("mlm", *elsewhere, check=False)
    assert refused.returncode == 1 and "start   " not in refused.stdout
    assert re.search(r"error: .*plan\.spending_limit, 0:", refused.stdout)
    # What trains nothing is not held up.
    printed = workflow("plan", *elsewhere).stdout
    runs = [read(planned, stage, run) for stage, run in (("mlm", "tiny"), ("base", "small"), ("finetune", "python"))]
    hours = sum(run["hours"] for run in runs)
    trained = Outline(read_config([str(workflow / "config.yaml")], {})).runs.values()
    disk = sum(2 * checkpoint_bytes(run) for run in trained)
    assert re.search(rf"^.*steps, estimated +{hours:,.2f} +{hours * 3600:,.2f}$", printed, re.M)
    assert f"{disk / 1e9:,.2f} GB of checkpoints" in printed


def spends(plan, tmp_path, monkeypatch):
    """Keep this plan of a run; return the run, of which half the steps are to be trained."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results/plan/finetune/x"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "v5e-8.json").write_text(json.dumps(plan))
    run = {"stage": "finetune", "name": "x", "jobs": 1, "steps": 50, "checkpoints": 4, "checkpoint_bytes": 10}
    run |= {"checkpoint_every": 50, "evaluate_every": 25}
    return run | {"recipe": STEP, "accelerator": "v5e-8", "plans": "results/plan/finetune/x"}


STEP = {"where": "finetune.runs.x", "steps": 100, "batch_size": 1024}
KEPT = {
    "planned": True, "sentence": None, "hours": 2.0, "estimate_error": 0.5,
    "recipe": STEP | {"price_per_hour": 3.0},
}  # fmt: skip
PRICES = {"v5e-8": 3.0}


def test_spending(tmp_path, monkeypatch):
    run = spends(KEPT, tmp_path, monkeypatch)
    # 3 jobs: a segment, evaluation and samples. 2 evaluations in the first, of 2 splits in each of the others: 2,048
    # records take a third of 2 steps of 0.02 hours.
    beside = {"set_up": 10 / 60, "started": 3 * 3 / 60, "evaluation": (2 + 4) * 2 * 0.02 / 3, "idle": 5 / 60}
    assert budget.hours_by_item(run, "v5e-8") == pytest.approx({"steps": 1.0, "error": 0.5} | beside)
    # Limited is not what the steps are estimated to cost, but the bill.
    budget.check_budget([run], 5.95, PRICES)
    budget.check_budget([run | {"accelerator": None}], 0.0, PRICES)  # on this machine
    with pytest.raises(UserError, match=r" 5\.94, .*plan\.spending_limit, 5\.93: the steps 3\.00"):
        budget.check_budget([run], 5.93, PRICES)
    # The price is the config's, not that of the day of the plan.
    with pytest.raises(UserError, match=r" 59\.40, .*plan\.spending_limit"):
        budget.check_budget([run], 5.95, {"v5e-8": 30.0})
    budget.check_budget([run | {"recipe": STEP | {"steps": 200, "seed": 1}}], 5.95, PRICES)  # the same step
    told = {"host_device_count": 8, "checkpoint_every": 10, "resources": {"hosts": 2}}  # what suggestions depend on
    assert budget.step_of(KEPT["recipe"] | told) == budget.step_of(STEP)
    budget.check_budget([run | {"recipe": STEP | {"backend": "tensorflow"}}], None, PRICES)
    table = budget.totals([run], ["v5e-8"], {"v5e-8": 4.0})
    rows = [line.rsplit(maxsplit=2)[1:] for line in table[1:-1]]
    assert "v5e-8" in table[0] and rows[0] == ["1.00", "4.00"] and rows[-1] == ["1.98", "7.92"] and len(rows) == 7
    assert sum(float(cost) for _, cost in rows[:-1]) == pytest.approx(7.92, abs=0.02)


@pytest.mark.parametrize(
    ("plan", "changes", "prices", "said"),
    [
        ({}, {}, {}, "plan.prices .*v5e-8"),
        ({}, {"recipe": STEP | {"rank": 8}}, PRICES, "finetune.runs.x on v5e-8 there is no plan"),  # another step
        ({}, {"recipe": STEP | {"backend": "tensorflow"}}, PRICES, "finetune.runs.x .*v5e-8.* TensorFlow"),
        ({}, {"accelerator": "h100:4"}, PRICES, "h100:4.* only TPUs"),
        # To name it under plan.topologies would be of no use: the config would be refused.
        ({}, {"accelerator": "v5e-12"}, PRICES, "v5e-12.* of this size"),
        ({"sentence": "finetune.runs.x does not fit v5e-8."}, {}, PRICES, "^finetune.runs.x does not fit v5e-8.$"),
        # Of a version that estimated nothing.
        ({"estimate_error": None}, {}, PRICES, "finetune.runs.x on v5e-8 there is no plan"),
        ({"planned": False, "reason": "finetune.runs.x.mesh is 9."}, {}, PRICES, ".*v5e-8: finetune.runs.x.mesh is 9"),
    ],
)
def test_what_no_plan_says_the_cost_of_is_refused(tmp_path, monkeypatch, plan, changes, prices, said):
    kept = {key: value for key, value in (KEPT | plan).items() if (key, value) != ("estimate_error", None)}
    limit = 9.0 if kept["planned"] else None  # what cannot be trained there is refused without a limit, too
    with pytest.raises(UserError, match=said):
        budget.check_budget([spends(kept, tmp_path, monkeypatch) | changes], limit, prices)


def test_checkpoints_at_once_on_the_disk():
    run = {"key": "finetune.runs.x", "segments": 25, "checkpoint_every": 4}
    for keep, todo, most in (
        ("all", 25, 25), ("all", 3, 3), ("last", 25, 2), ("last", 1, 1), ("every 10", 25, 4), ("every 10", 5, 2),
    ):  # fmt: skip
        (found,) = budget.pending([run | {"keep_checkpoints": keep}], {"finetune.runs.x": todo})
        assert (found["steps"], found["checkpoints"]) == (4 * todo, most), (keep, todo)
