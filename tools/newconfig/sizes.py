"""Choose the sizes of vocabularies and models, and the steps that a text is enough for."""

import math
import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from sentencepiece import SentencePieceProcessor
from tpulm.config.model_sizes import model_size
from tpulm.config.outline import Outline
from tpulm.core.accelerators import GIB, GPU_MEMORY, GPU_PATTERN, TPUS, parse_gpu, slice_hosts, topology
from tpulm.core.errors import UserError, suggestion
from tpulm.specs.record_arrays import predictions_per_record
from tpulm.specs.training_step import MOST_HOST_DEVICES
from tpulm.tokenization.pipeline import Recipe
from tpulm.tokenization.sentencepiece_bpe import train_vocabulary
from tpulm.tokenization.training import COVERAGE, train
from tpulm.tokenization.words import most_of
from tpulm.workflow.resources import mem_mb

from newconfig.sample import Text

TRIAL = 1_000_000  # characters that a trial vocabulary is trained on
MOST_EPOCHS = 100  # of any text
BYTES, FEW = 256, 512  # pieces of single bytes in a causal vocabulary; a size that they take much of


def vocabulary(text: Text, training: float, most: int) -> tuple[int, int, float, float]:
    """Return sizes up to `most` that the text has enough pieces for, and tokens per character. Raises UserError.

    training  number of characters that are not held out

    Each is first of masked and then of causal models. The tokens are those of records: of whole documents, with special
    tokens around each.
    """
    ends = np.cumsum([len(document) for document in text.sample])
    alphabet = len(most_of(Counter("".join(text.sample)), COVERAGE))
    trial = list(text.sample[: int(np.searchsorted(ends, min(TRIAL, training))) + 1])
    characters, whitespace = sum(map(len, trial)), "runs" if text.runs else "keep"
    smallest = alphabet + 64
    size = max(smallest, min(most, text.characters // 100))
    while size >= smallest:
        try:
            # A trial has more pieces, an eighth to a half, since the run is trained on other documents.
            asked = 3 * min(size, characters // 100) // 2
            train([trial], Recipe("unigram", max(9 * smallest // 8, asked), whitespace=whitespace))
            size = max(smallest, size // 64 * 64)
            tokenizer, _ = train([trial], Recipe("unigram", max(smallest, min(size, asked)), whitespace=whitespace))
            masked = sum(len(one.ids) for one in tokenizer.encode_batch_fast(trial))
            causal_size = max(size + BYTES if size < FEW else size, alphabet + BYTES + 64)
            if causal_size > size:
                train_vocabulary(trial, 9 * causal_size // 8, "base.NAME.vocab_size")
            pieces = SentencePieceProcessor(model_proto=train_vocabulary(trial, causal_size, "base.NAME.vocab_size"))
            causal = sum(map(len, pieces.encode(trial))) + 2 * len(trial)
            return size, causal_size, masked / characters, causal / characters
        except UserError:
            size = max(smallest, 2 * size // 3) if size > smallest else 0
    words = len({word for document in text.sample for word in document.split()})
    raise UserError(
        f"{text.found}, {alphabet:,} different characters: {words:,} different words are too few for a vocabulary of "
        f"{smallest:,} pieces; allowed: text with more different words, or --finetune MODEL, which needs no vocabulary."
    )


def steps(stage: str, tokens: float, record: tuple[int, int], epochs: int, bounds: tuple[int, int], parts: int) -> dict:
    """Return the values of a run that set its steps and batch size; `tokens` are those of the training split.

    record  batch size and tokens of a record; bounds  fewest steps, if they are MOST_EPOCHS at most, and most steps
    """
    per_epoch = tokens / math.prod(record)
    number = min(max(epochs * per_epoch, bounds[0]), bounds[1], max(30, MOST_EPOCHS * per_epoch))
    number = 10 * parts * max(1, round(number / (10 * parts)))
    values = {"every": number // parts, "batch": record[0], "warmup": number // 15, "decay": number // 3}
    values |= {"steps": f"{number}   # about {number / per_epoch:,.1f} epochs"}
    return {f"{stage}_{name}": value for name, value in values.items()}


def small_models(text: Text, characters: float, devices: int = 1) -> tuple[str, dict]:
    """Return the template with models that train in minutes on CPUs, and its values; characters  of training text."""
    size, causal_size, *rates = vocabulary(text, characters, 4096 if text.characters < 16e6 else 8192)
    masked, causal = (rate * characters for rate in rates)
    batches = [-(-batch // devices) * devices for batch in (32, 16)]
    values = steps("masked", masked, (batches[0], 128), 40, (300, 1500), 3)
    values |= steps("causal", causal, (batches[1], 128), 20, (300, 900), 3)
    values |= {"size": size, "causal_size": causal_size}
    values |= {"dropout": 0.0 if masked > 3e5 else 0.1}  # a short text is read many times
    # Parts of 512 tokens fit the caches of a CPU.
    masked_parts, causal_parts = (f"microbatches: {batch * 128 // 512}" for batch in batches)
    return "small", values | {"devices": masked_parts, "same": causal_parts, "plan": ""}


@dataclass(frozen=True)
class Machine:
    """What an accelerator has: devices, hosts, bytes of a device, and whether `snakemake plan` compiles for it."""

    devices: int
    hosts: int
    memory: float
    plans: bool


def machine_of(accelerator: str) -> Machine:
    """Return what an accelerator has. Raises UserError for an unknown one."""
    if re.fullmatch(GPU_PATTERN, accelerator):
        kind, devices = parse_gpu(accelerator)
        if kind not in GPU_MEMORY:
            known = [*(f"{name}:{devices}" for name in GPU_MEMORY), *(f"{name}-{devices}" for name in TPUS)]
            hint = suggestion(accelerator, known, "allowed")
            raise UserError(f"--accelerator is {accelerator}, a GPU of unknown memory{hint}")
        return Machine(devices, 1, GPU_MEMORY[kind] * GIB, False)
    if accelerator in GPU_MEMORY:
        raise UserError(f"--accelerator is {accelerator} without a number of GPUs; allowed: {accelerator}:1, for one.")
    try:
        found = topology(accelerator)
    except UserError as error:
        raise UserError(f"--accelerator: {str(error).rstrip('.')}; or GPUs, such as h100:4.") from None
    if found.devices > MOST_HOST_DEVICES:
        raise UserError(
            f"--accelerator: {accelerator} has {found.devices:,} devices; allowed: {MOST_HOST_DEVICES} at most."
        )
    return Machine(found.devices, slice_hosts(accelerator), found.hbm, True)


def for_accelerator(text: Text, characters: float, accelerator: str) -> tuple[str, dict]:
    """Return the template with models that fit an accelerator and a text, and its values. Raises UserError."""
    machine = machine_of(accelerator)
    devices, hosts, room = machine.devices, machine.hosts, 8 if machine.memory < 12 * GIB else 16
    plan = f"{{topologies: [{accelerator}]}}   # `snakemake plan` estimates memory and time" if machine.plans else ""
    each = max(2, min(room, 512 // devices))
    parts = max(1, 512 // (each * devices))
    size, causal_size, *rates = vocabulary(text, characters, min(32_768, max(4096, text.characters // 1000)))
    masked, causal = (rate * characters for rate in rates)
    epochs = 1000 * parts * each * devices * 512 / masked
    if epochs > MOST_EPOCHS:
        few = f"{masked:,.0f} tokens are too few for RoBERTa-base: 1,000 steps would be {epochs:,.0f} epochs"
        text.notes.append(f"the models are small because {few}; allowed: {MOST_EPOCHS}")
        (template, values), parts = small_models(text, characters, devices), 1
    else:
        template, values = "large", {"size": size, "causal_size": causal_size}
        values |= {"shards": min(1024, max(4, text.characters // 400_000_000))}
        values |= steps("masked", masked, (parts * each * devices, 512), 40, (1000, 100_000), 10)
        values |= steps("causal", causal, (parts * each // 2 * devices, 1024), 4, (500, 10_000), 5)
    shared = f"""<<: &slice {{precision: mixed_bfloat16, microbatches: {parts}, host_device_count: {devices},
                  keep_checkpoints: last, resources: {{accelerator: "{accelerator}", hosts: {hosts}}}}}"""
    return template, values | {"devices": shared, "same": "<<: *slice", "plan": plan}


def estimate(config: Mapping) -> str:
    """Return how long the runs take by the speed of matrix products of a thread on this machine, and what they lack."""
    one, other, times = np.ones((2048, 512), np.float32), np.ones((512, 512), np.float32), []
    for _ in range(10):
        start = time.perf_counter()
        one @ other
        times.append(time.perf_counter() - start)
    speed, found, threads = 2 * 2048 * 512 * 512 / min(times), [], config["cpu_threads"]
    for run in Outline(config).runs.values():
        recipe, size, length = run.recipe, model_size(run), run.tokens_per_step // run.recipe["batch_size"]
        masking = recipe.get("masking")
        head = predictions_per_record(length, masking["mlm_probability"]) / length if masking else 1
        weights = size.parameters - size.table * (1 - head) + 2 * size.layers * size.hidden * length
        flops = (4 if size.adapters else 6) * weights * run.tokens_per_step * recipe["steps"]
        minutes = flops / speed / threads / 60
        found.append(f"{run.key} {f'{minutes:.1f} min' if minutes >= 1 else 'less than a minute'}")
    where = "one CPU thread" if threads == 1 else f"{threads} CPU threads"
    said = f"{', '.join(found)}, each on {where}, at the measured {speed / 1e9:.0f} GFLOP/s of one."
    needed = max(mem_mb(run, "train") for run in Outline(config).runs.values()) / 1000
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if needed > memory:
        said += (
            f" It needs about {needed:,.0f} GB of memory, and this machine has {memory:,.0f}: name an --accelerator."
        )
    return f"{said} Training may take twice as long, and the other jobs take minutes."
