"""Compute the `resources` that the jobs of a run request: memory, accelerators, hosts and runtime.

If its device is a CPU, the memory of a host includes weights, gradients and activations. A request for memory errs on
the high side, because a scheduler ends a job that takes more.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpulm.config.model_sizes import (
    FLOAT32,
    STORED,
    ModelSize,
    is_converted,
    model_bytes,
    model_size,
    optimizer_bytes,
    weight_bytes,
)  # fmt: skip
from tpulm.config.outline import Model, Run
from tpulm.core.accelerators import gres
from tpulm.core.devices import accelerator_here
from tpulm.corpus.sources import Part
from tpulm.specs.record_arrays import EVALUATION_BATCH, predictions_per_record
from tpulm.specs.texts import sources_of

MB = 10**6
# Bytes of a process without its model: interpreter, libraries, batches, the compiler at work.
PROCESS = 4 * 10**9
SHARD = 2 * 10**9  # bytes of a file of weights for transformers


def mem_mb(model: Model, job: str) -> int:
    """Return the megabytes that a job of a model requests: its `resources.mem_gb`, or else what the model needs.

    job  a rule of the model's stage, without its framework: a key of JOBS
    """
    mem_gb = model.recipe["resources"]["mem_gb"]
    return 1000 * mem_gb if mem_gb else -(-(PROCESS + JOBS[job](model)) // MB)


def loading(size: ModelSize, stored: int) -> int:
    """Return the bytes of a model on the host while it is loaded: a variable is read before its old value goes.

    stored  bytes of a weight
    """
    return stored * size.parameters + 2 * FLOAT32 * size.table


def on_cpu(model: Model) -> bool:
    """Return whether a run's devices share the main memory, according to its config."""
    return not model.recipe["resources"].get("accelerator")


def activations(model: Model, backward: bool) -> int:
    """Return the bytes of the activations of a microbatch, all devices together.

    Korthikanti et al. 2022, equation 2, for 16-bit numbers: s b h (34 + 5 a s / h) for each layer in a backward pass,
    else for one; with remat, 2 s b h for each layer, and one layer. Float32 takes twice that. Logits, probabilities and
    gradients of logits are float32.
    """
    recipe, size = model.recipe, model_size(model)
    length = model.sequence_length
    records = -(-recipe.get("batch_size", EVALUATION_BATCH) // recipe.get("microbatches", 1))
    if model.stage == "mlm" and not backward:
        records = min(records, EVALUATION_BATCH)
    wide = 2 if recipe.get("precision", "float32") == "float32" else 1
    inputs = 2 * length * records * size.hidden
    layer = length * records * (34 * size.hidden + 5 * size.heads * length)
    if not backward:
        layers = layer
    else:
        layers = inputs * size.layers + layer if recipe.get("remat") else layer * size.layers
    if "predict" in recipe:  # a classification head
        return wide * layers
    masked = model.stage == "mlm" and "masking" in recipe  # only a model that is trained has masking
    predicted = predictions_per_record(length, recipe["masking"]["mlm_probability"]) if masked else length
    logits = 3 * FLOAT32 * records * predicted * size.vocabulary
    return wide * layers + logits


def memory_to_open(model: Model) -> int:
    """Return the bytes on the host of a model that is opened to run; an int8 base is quantized on the host."""
    recipe, size = model.recipe, model_size(model)
    rounded = recipe.get("base_precision") == "int8"
    read = loading(size, STORED[recipe["precision"]]) if rounded else 2 * FLOAT32 * size.table
    return read + (model_bytes(model) if on_cpu(model) or rounded else 0)


def training(model: Model) -> int:
    """Return the bytes that a host needs to train.

    It writes at once its share of weights and optimizer state, for a snapshot, or all of one of them, for a checkpoint
    if hosts share no folder.
    """
    weights, state = weight_bytes(model), optimizer_bytes(model)
    hosts = model.recipe["resources"]["hosts"]
    written = max((weights + state) // hosts, max(weights, state))
    phases = model.by_phase if isinstance(model, Run) else [model]
    computed = max(activations(phase, backward=True) for phase in phases)
    here = state + weights + computed if on_cpu(model) else 0  # also the gradients
    fresh = loading(model_size(model), 0) + (model_bytes(model) if on_cpu(model) else 0)
    return (fresh if model.stage != "finetune" else memory_to_open(model)) + here + written


def opened_causal(model: Model) -> int:
    """Return the bytes of opening a causal model; the weights of a checkpoint are read before they are assigned."""
    return memory_to_open(model) + (weight_bytes(model) if model.weights else 0)


def evaluating(model: Model) -> int:
    """Return the bytes of evaluating a model: the model, and the activations of one layer."""
    return opened_causal(model) + (activations(model, backward=False) if on_cpu(model) else 0)


def exporting(model: Model) -> int:
    """Return the bytes of exporting a finetuned model, which with LoRA is merged into another one in float32."""
    return opened_causal(model) + (FLOAT32 * model_size(model).parameters if model.recipe["method"] == "lora" else 0)


def converting(size: ModelSize) -> int:
    """Return the bytes of saving a model for transformers: the model, and two shards."""
    return loading(size, FLOAT32) + min(2 * SHARD, FLOAT32 * size.parameters)


def copies(number: int) -> Callable[[Model], int]:
    """Return a function of a model that returns the bytes of `number` copies of its trained weights."""
    return lambda model: number * weight_bytes(model)


def opened_masked(model: Model) -> int:
    """Return the bytes of opening the folder of a masked model."""
    return (2 if model.backend == "tensorflow" else 3) * weight_bytes(model)


def measured_masked(model: Model) -> int:
    """Return the bytes of evaluating a masked model; TensorFlow does so on the CPU, whatever has trained the model."""
    here = model.backend == "tensorflow" or on_cpu(model)
    return opened_masked(model) + activations(model, backward=False) * here


# Bytes that the rules which run a model hold in addition to PROCESS.
JOBS: dict[str, Callable[[Model], int]] = {
    "train": training,
    # The weights as read, as converted, and as written.
    "fetch_mlm": copies(3),
    "export_mlm": copies(3),
    "predict_task": lambda model: 3 * weight_bytes(model) + activations(model, backward=False) * on_cpu(model),
    "fill_mask": opened_masked,
    "continue_prompts": evaluating,
    "evaluate_mlm": measured_masked,
    # Built without an accelerator, then given the weights of a checkpoint.
    "export_base": copies(2),
    "evaluate_base": evaluating,
    "export_lora": lambda model: 3 * FLOAT32 * model_size(model).adapters,
    "export_finetune": exporting,
    "fetch_base": lambda model: loading(model_size(model), FLOAT32) if is_converted(model) else 0,
    "export_transformers": lambda model: converting(model_size(model)),
    # The table as it is stored, in float32, and as it is written; PROCESS has room for a matrix of a block.
    "export_gguf": lambda model: 3 * FLOAT32 * model_size(model).table,
    "generate": evaluating,
    "evaluate_finetune": evaluating,
    "run_harness": evaluating,
    # As many tokens at once as the measurements above.
    "score_mlm": measured_masked,
    "score_causal": evaluating,
}


def resources_of(model_of: Callable[[Any], Model], job: str, prefix: str, hosts: bool = False) -> dict[str, Callable]:
    """Return the resources of a rule that runs a model.

    model_of  returns the model of a job's wildcards
    job       key of JOBS
    prefix    of a module's paths, which distinguishes its runs from those of other modules
    hosts     whether the rule trains, on all hosts of a run

    run_key      name of the run, such as mlm.runs.tiny; backend  jax or tensorflow
    accelerator  as the config names it; gres  a host's share of it, in the notation of schedulers
    hosts        processes that train together; nodes, tasks  the same for schedulers; tasks_per_gpu  0, or Slurm's
                 executor would start `tasks` for each GPU
    device       1 if this machine has an accelerator: profiles/default lets one job at a time have it
    run_hosts    for a job that does not train: number of hosts on which its run trains, if several
    mem_mb       of each host; runtime  minutes, of one attempt
    """

    def configured(wildcards: Any) -> dict:
        return model_of(wildcards).recipe["resources"]

    def several(wildcards: Any) -> int | None:
        number = configured(wildcards)["hosts"]
        return number if number > 1 else None

    # Snakemake does not request a resource that is None.
    resources: dict[str, Callable] = {
        "run_key": lambda wildcards: f"{prefix}{model_of(wildcards).key}",
        "backend": lambda wildcards: model_of(wildcards).backend,
        "accelerator": lambda wildcards: configured(wildcards).get("accelerator"),
        "gres": lambda wildcards: gres(configured(wildcards).get("accelerator"), configured(wildcards)["hosts"]),
        "device": lambda wildcards: 1 if accelerator_here() else None,
        "mem_mb": lambda wildcards: mem_mb(model_of(wildcards), job),
        # A segment that ran out of time gets twice, then three times as much.
        "runtime": lambda wildcards, attempt: attempt * configured(wildcards)["runtime"],
        "tasks_per_gpu": lambda wildcards: 0 if several(wildcards) else None,
    }
    return resources | dict.fromkeys(("hosts", "nodes", "tasks") if hosts else ("run_hosts",), several)


def snapshots_of(run_of: Callable[[Any], Run], located: Callable[[str], str]) -> dict[str, Callable]:
    """Return the resources of a rule that trains for snapshots and profiles; see tpulm.training.

    run_of   returns the run of a job's wildcards
    located  returns the path or URL of an artifact

    snapshots  their folder; snapshot_every  minutes; profile  steps to trace, such as 10-20
    """
    return {
        "snapshots": lambda wildcards: located(run_of(wildcards).snapshots(int(wildcards.step))),
        "snapshot_every": lambda wildcards: run_of(wildcards).recipe["resources"]["snapshot_every"],
        "profile": lambda wildcards: "-".join(map(str, run_of(wildcards).recipe["profile"].get("steps", []))) or None,
    }


def tokenizer_threads(text: Mapping, parts: Sequence[Part]) -> int:
    """Return the threads of the job that trains the tokenizer.

    It is one if the training split is a single part of a text that is not on a hub, so that the job of a small text
    need not wait for a training until two are free. Such a part may be large, if its file is compressed or in columns,
    but the second thread saves little there. Unigram's trainer always has two threads, since its bytes depend on their
    number; here they share one processor. text, parts  the corpus and its parts
    """
    known = all(recipe["source"] != "hub" for _, recipe in sources_of("", text).values())
    return 1 if known and sum(part.split == "train" for part in parts) == 1 else 2
