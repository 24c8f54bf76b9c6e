"""Which single changes a plan is made of, beside the run itself; what each costs is compiled in test_plan.py."""

import json

import warm

# Says of each change what the step would be that is measured: in the place of the compiler, the step's own description.
CHANGES = """
import json, sys
from collections import defaultdict
from tpulm.training import runtime
runtime.start(1)
from tpulm.core.accelerators import topology
from tpulm.planning import plan

def measure(step, *rest):
    return defaultdict(lambda: [step.remat, step.model.precision, step.microbatches])

plan.measure, found = measure, []
for stage, recipe in json.loads(sys.argv[1]):
    changes = plan.alternatives(stage, recipe, topology("v5e-8"), "the.run")
    found.append([[change["key"], change["value"], change["memory"]] for change in changes])
print("RESULT" + json.dumps(found))
"""
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
COMMON = {
    "microbatches": 1, "steps_per_execution": 1, "remat": False, "seed": 0, "optimizer": {}, "batch_size": 32,
    "sequence_length": 32, "mesh": [-1, 1], "host_device_count": 1, "resources": {"hosts": 1}, "checkpoint_every": 10,
}  # fmt: skip
MASKED = COMMON | {
    "model": {"architecture": "roberta"} | SIZES, "vocabulary": {"size": 320, "pad": 3},
    "masking": {"mlm_probability": 0.15, "mask_replace_prob": 0.8, "random_replace_prob": 0.1},
}  # fmt: skip
LORA = COMMON | {"base": {"preset": "gemma_2b_en"}, "method": "lora", "rank": 4}
# A model on a task, as its plan has it.
FIXED = ("remat", "microbatches", "steps_per_execution", "masking")
TASK = {key: value for key, value in MASKED.items() if key not in FIXED} | {"precision": "float32", "batch_size": 8}
TASK |= {"predict": "class", "outputs": 2, "head": {}}


def test_each_change_is_one_of_the_run():
    runs = [
        ("mlm", MASKED | {"precision": "mixed_bfloat16", "remat": True, "microbatches": 2, "batch_size": 16}),
        ("mlm", MASKED | {"precision": "float32", "batch_size": 6}),  # not four parts
        ("finetune", LORA | {"precision": "float32"}),
        ("mlm", TASK),
    ]
    small, narrow, lora, task = warm.result(warm.run("jax", CHANGES, json.dumps(runs)))
    assert small == [
        ["remat", False, [False, "mixed_bfloat16", 2]], ["precision", "float32", [True, "float32", 2]],
        ["microbatches", 1, [True, "mixed_bfloat16", 1]],
    ]  # fmt: skip
    assert [change[:2] for change in narrow] == [["remat", True], ["precision", "mixed_bfloat16"]]
    assert [change[:2] for change in lora[1:]] == [
        ["precision", "mixed_bfloat16"], ["precision", "bfloat16"], ["microbatches", 4],
    ]  # fmt: skip
    assert [change[:2] for change in task] == [["precision", "mixed_bfloat16"]]
