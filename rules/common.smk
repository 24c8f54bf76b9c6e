"""Shared by all stages: the checked config, its runs, the paths of artifacts, and the checks before the first job."""

import os
import re
import sys
from functools import cache
from pathlib import Path

# `basedir` would be the folder of the outer workflow if this is a module of another workflow.
ROOT = Path(str(workflow.current_basedir)).parent
if str(ROOT / "scripts") not in sys.path:
    sys.path.insert(0, str(ROOT / "scripts"))

from snakemake.io import local

from tpulm.compat.snakemake import config_given, is_main, replace_handler
from tpulm.specs.artifacts import (
    ADAPTER_FILES,
    GGUF_TYPES,
    MODEL_FILES,
    SPLITS,
    TOKENIZER_FILES,
    TRAINED_ON,
    lengths_file,
)
from tpulm.specs.causal_vocabularies import vocabulary_of, vocabulary_recipe
from tpulm.config.evaluations import Evaluations, overlaps_of
from tpulm.config.outline import Outline, sampling_of, segment_outputs
from tpulm.config.report import page_recipe
from tpulm.config.reading import complete, read_config, schema
from tpulm.config.schema import typed
from tpulm.config.sweeps import groups_of, repetitions
from tpulm.specs.recipes import STAGES, pick
from tpulm.specs.shards import files_of_shard
from tpulm.core.code_digest import code_digest
from tpulm.core.experiments import check_config
from tpulm.workflow.disk import fetched_bytes
from tpulm.workflow.keeping import KEEP, Keeper
from tpulm.workflow.paths import Paths, local_files, preset_files
from tpulm.workflow.resources import MB, mem_mb, resources_of, snapshots_of, tokenizer_threads
from tpulm.workflow.start import Start, or_exit, say
from tpulm.workflow.terminal import Terminal
from tpulm.workflow.tracking import specification

# Each segment depends on the previous one, and Snakemake follows such chains by recursion.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 100_000))

IS_MAIN = is_main(workflow)
if IS_MAIN and workflow.is_main_process:
    replace_handler(workflow, Keeper if KEEP in os.environ else Terminal, always=KEEP in os.environ)
# A config on the command line replaces config.yaml. Snakemake's `configfile:` would merge the two, read 1e-4 as text,
# and report invalid YAML without file and line.
GIVEN, OVERRIDES = config_given(workflow)
CONFIG_FILES = [os.path.relpath(path) for path in GIVEN or ["config.yaml"] if IS_MAIN]
if IS_MAIN:
    if not GIVEN:
        or_exit(check_config, workflow.overwrite_workdir is not None)
    config = or_exit(read_config, CONFIG_FILES, OVERRIDES)
else:
    config = or_exit(complete, typed(schema(), config, schema()), "the config of the module")

PATHS = or_exit(Paths, workflow, storage, ROOT)
# The models that are trained, opened and scored.
OUTLINE = or_exit(Outline, config)
EVALUATED = or_exit(Evaluations, OUTLINE, PATHS.exists)
# Every text and set of records by its folder below results/, every run by its path.
TEXTS, RECORDS, RUNS = OUTLINE.texts, OUTLINE.records, OUTLINE.runs
or_exit(lambda: [records.shards for records in RECORDS.values()])  # so that a UserError about external shards comes now
# By name: masked models and base models, those that are fetched, too; and those that are trained here.
MASKED, BASES = OUTLINE.of_stage("mlm"), OUTLINE.of_stage("base")
MLM, TRAINED_BASES, FINETUNE = map(OUTLINE.runs_of, STAGES)
# Every run, also of models on tasks, by its path, which is the wildcard `chain`.
ALL_RUNS = EVALUATED.all_runs
# An input that is read where it is, not copied from a bucket first; the path or URL of an artifact.
in_place, located = PATHS.in_place, PATHS.located


pathvars:
    results="results",
    logs="logs",


or_exit(PATHS.check, workflow.pathvars)
START = or_exit(Start, workflow, EVALUATED, PATHS)


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


def by_name(models):
    """Return a function from the wildcard `run` to the model of this name."""
    return lambda wildcards: models[wildcards.run]


def job_resources(model_of, job: str, hosts: bool = False) -> dict:
    """Return the resources of a rule that opens a model; with `hosts`, on all hosts of its run."""
    return resources_of(model_of, job, PATHS.prefixed(""), hosts)


def training_resources(run_of, hosts: bool = True) -> dict:
    """Return the resources of a rule that trains a run; with `hosts`, on all hosts of the run."""
    return job_resources(run_of, "train", hosts) | snapshots_of(run_of, PATHS.located)


def previous_checkpoint(run, last: int) -> list[str]:
    """Return the files of the checkpoint that a segment starts from; none for the first segment.

    The arrays are `ancient`, because state.json changes with them: it has their checksums.
    """
    return [file if name == "state" else ancient(file) for name, file in run.before(last).items()]


def mixture_of(run, wildcards) -> list[str]:
    """Return the manifests of the records that a segment's phase mixes, see tpulm.specs.phases; none without phases."""
    return list(map(in_place, run.mixture_at(int(wildcards.step))))


def manifests_by_source(run) -> list[str]:
    """Return the manifests of the records that measure the loss of a run by source."""
    return [in_place(records.manifest) for records in run.by_source.values()]


def measured_sources(run) -> dict:
    """Return the key `sources` of a recipe, their names in the order of the manifests; no key without any."""
    return {"sources": list(run.by_source)} if run.by_source else {}


def recipe_at_step(run, wildcards):
    """Return the recipe of a run in its last phase or, where a job has the wildcard `step`, at that checkpoint."""
    return run.recipe_at(int(wildcards.step) if "step" in wildcards.keys() else run.recipe["steps"])


def at_step(run, wildcards):
    """Return the model of a run or, where a job has the wildcard `step`, what it was at that checkpoint."""
    return run.at(int(wildcards.step)) if "step" in wildcards.keys() else run


@cache
def files_of_documents(records: str, split: str) -> list[str]:
    """Return the files with the documents of a split of a set of records, or of the only source that these are of."""
    of = RECORDS[records]
    return split_files(of.collection, split, TEXTS[of.collection].recipe, PARTS[of.collection], of.source)


def documents_of(records: str, wildcards) -> list[str]:
    """Return the files that the documents of a shard are in."""
    files = files_of_documents(records, wildcards.split)
    return [files[number] for number in files_of_shard(int(wildcards.shard), int(wildcards.shards), len(files))]


def layout_of(records: str, split: str) -> dict:
    """Return what the job of a shard takes of its set: also how many shards and files of documents there are."""
    of = RECORDS[records]
    return of.layout | {"shards": of.shards[split], "files": len(files_of_documents(records, split))}


def external_shard(wildcards):
    """Return the external file that becomes a shard; nothing where there is none."""
    files = RECORDS["tfrecords"].external_files[wildcards.split]
    known = int(wildcards.shard) < int(wildcards.shards) == len(files)
    return PATHS.text(files[int(wildcards.shard)]) if known else []


def opening_inputs(model_of) -> dict:
    """Return the inputs that open a causal model; the preset folder is `ancient`: its fingerprint tells of changes."""
    return {
        "base": lambda wildcards: ancient(model_of(wildcards).preset),
        "fingerprint": lambda wildcards: model_of(wildcards).fingerprint,
        "best": lambda wildcards: model_of(wildcards).tuned_weights,
    }


wildcard_constraints:
    split=one_of(SPLITS),
    step=r"\d{8,9}",
    run="[a-z0-9][a-z0-9_-]{0,63}",
    collection=one_of(TEXTS),
    records=one_of(RECORDS),
    shard=r"\d{5}",
    shards=r"\d{5}",
