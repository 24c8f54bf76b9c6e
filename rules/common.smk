"""Shared by all stages: the checked config, its runs, the paths of artifacts, and the checks before the first job."""

import os
import re
import sys
from pathlib import Path

# If this is a module of another workflow, `workflow.basedir` is the folder of the other workflow.
ROOT = Path(str(workflow.current_basedir)).parent
if str(ROOT / "scripts") not in sys.path:
    sys.path.insert(0, str(ROOT / "scripts"))

from snakemake.io import local

from tpulm.compat.snakemake import config_given, is_main, replace_handler
from tpulm.specs.artifacts import (
    ADAPTER_FILES,
    GGUF_KINDS,
    MODEL_FILES,
    SPLITS,
    TOKENIZER_FILES,
    TRAINED_ON,
    experiment_folder,
    lengths_file,
)
from tpulm.specs.causal_families import vocabulary_of, vocabulary_recipe
from tpulm.config.exported_models import Model, is_measured, masked_models, sampling_of
from tpulm.config.report import page_recipe
from tpulm.config.reading import complete, read_config, schema
from tpulm.config.schema import typed
from tpulm.config.runs import by_stage, record_sets_of, runs_of, segment_outputs
from tpulm.specs.recipes import pick
from tpulm.config.sweeps import groups_of, repetitions
from tpulm.workflow.disk import fetched_bytes
from tpulm.workflow.resources import MB, converting_mb, fetching_mb, mem_mb
from tpulm.workflow.paths import Paths, local_files, preset_files
from tpulm.workflow.resources import resources_of, snapshots_of, tokenizer_threads
from tpulm.workflow.inputs import ShardInputs
from tpulm.workflow.start import Start, or_exit, say
from tpulm.workflow.terminal import Terminal
from tpulm.workflow.tracking import specification

# Each segment depends on the previous one, and Snakemake follows such chains by recursion.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 100_000))

IS_MAIN = is_main(workflow)
if IS_MAIN and workflow.is_main_process:
    replace_handler(workflow, Terminal)
# A config on the command line replaces config.yaml. Snakemake's `configfile:` would merge the two, read 1e-4 as text,
# and report invalid YAML without file and line.
GIVEN, OVERRIDES = config_given(workflow)
CONFIG_FILES = [os.path.relpath(path) for path in GIVEN or ["config.yaml"] if IS_MAIN]
if IS_MAIN:
    config = or_exit(read_config, CONFIG_FILES, OVERRIDES)
else:
    config = or_exit(complete, typed(schema(), config, schema()), "the config of the module")

RUNS = runs_of(config)
STAGE_RUNS = by_stage(RUNS)
MLM, TRAINED_BASES, FINETUNE = STAGE_RUNS["mlm"], STAGE_RUNS["base"], STAGE_RUNS["finetune"]
# Masked models that predict, including pretrained ones.
INFERENCE_MODELS = masked_models(config)
# Those of them that are evaluated on the records of this config.
EVALUATED_MODELS = {name: run for name, run in INFERENCE_MODELS.items() if is_measured(run)}
OPENED = STAGE_RUNS | {"mlm": INFERENCE_MODELS}
BASE = config["base"]
# Every set of records by its folder below results/, which is the wildcard `records`.
RECORD_SETS = or_exit(record_sets_of, config, RUNS)
# Every run by its folder below results/. Every chain of checkpoints, also of tasks, which is the wildcard `chain`.
RUN_FOLDERS = {run.path: run for run in RUNS}
CHAINS = dict(RUN_FOLDERS)
# Every text by its folder below results/: its key in the config, and its section of the config.
TEXTS = {"corpus": ("corpus", config["corpus"])}
if "text" in config["finetune"]:
    TEXTS["finetune-text"] = ("finetune.text", config["finetune"]["text"])

PLACE = or_exit(Paths, workflow, storage, ROOT, experiment_folder(config))
code_inputs, in_place, located = PLACE.code_inputs, PLACE.in_place, PLACE.located


pathvars:
    results=PLACE.resolved("<results>"),
    logs=PLACE.resolved("<logs>"),


or_exit(PLACE.check, workflow.pathvars)
START = or_exit(Start, workflow, config, RUNS, PLACE, {"configfiles": CONFIG_FILES, "config": OVERRIDES})


onstart:
    or_exit(START.before_jobs)


onsuccess:
    START.after_jobs()


onerror:
    START.after_jobs()


if workflow.is_main_process:
    for text in or_exit(START.notes):
        say(text)


def one_of(names) -> str:
    """Return a wildcard constraint that matches only these names; without names, it matches nothing."""
    return "|".join(map(re.escape, names)) or "(?!)"


def of_stage(stage: str):
    """Return a function from wildcards to the run of this stage."""
    return lambda wildcards: OPENED[stage][wildcards.run]


def asks(run_of, job: str, hosts: bool = False) -> dict:
    """Return the resources of a rule that loads the model of a run; with `hosts`, on all hosts of the run."""
    return resources_of(run_of, job, PLACE.prefixed(""), hosts)


def asks_to_train(run_of, hosts: bool = True) -> dict:
    """Return the resources of a rule that trains a run; with `hosts`, on all hosts of the run."""
    return asks(run_of, "train", hosts) | snapshots_of(run_of, PLACE.located)


def previous_checkpoint(run, last: int) -> list[str]:
    """Return the files of the checkpoint that a segment starts from; none for the first segment.

    The arrays are `ancient`, because state.json changes with them: it has their checksums.
    """
    first = last - run.recipe["checkpoint_every"]
    files = run.checkpoint(first).items() if first else []
    return [file if name == "state" else ancient(file) for name, file in files]


def base_of(wildcards) -> str:
    """Return the preset folder that a finetuning run starts from; `ancient`, because its fingerprint shows changes."""
    return ancient(Model(FINETUNE[wildcards.run]).preset)


def fingerprint_of(wildcards) -> str:
    """Return the fingerprint of the preset folder that a finetuning run starts from."""
    return Model(FINETUNE[wildcards.run]).fingerprint


wildcard_constraints:
    split=one_of(SPLITS),
    step=r"\d{8,9}",
    run="[a-z0-9][a-z0-9_-]{0,63}",
    collection=one_of(TEXTS),
    records=one_of(RECORD_SETS),
    shard=r"\d{5}",
    shards=r"\d{5}",
