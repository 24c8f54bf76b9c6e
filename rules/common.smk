"""What the stages share: the checked config, the names of runs, segments, and the code that a rule depends on."""

import os
import re
import sys
from collections import Counter
from pathlib import Path

SCRIPTS = Path(workflow.basedir) / "scripts"
if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))

from lib import bucket
from lib.config import SPLITS, read_config
from lib.dependencies import imported
from lib.errors import UserError
from lib.keras_jax import tpu_here
from lib.folder import (
    check_clock,
    check_start,
    check_writable,
    enter,
    identity,
    join,
    last_start,
    unwritable,
    wait_for_jobs,
)
from lib.preflight import preflight, requests
from lib.retraining import note
from lib.schedule import segment_schedule
from lib.spending import chain_of, check, pending
from snakemake.io import sourcecache_entry

# Each segment waits for the one before: Snakemake walks such chains by recursion.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 100_000))

# A config named on the command line replaces the embedded one; Snakemake alone would merge the two.
CONFIG_FILES = [os.path.relpath(path) for path in workflow.config_settings.configfiles or ["config.yaml"]]
try:
    checked = read_config(CONFIG_FILES, workflow.config_settings.config)
except UserError as error:
    sys.exit(f"error: {error}")
if not workflow.config_settings.configfiles:

    configfile: "config.yaml"


config.clear()
config.update(checked)

try:
    if not workflow.is_main_process:
        join()
        check_start()
except UserError as error:
    sys.exit(f"error: {error}")

started = last_start() if workflow.is_main_process else 0


onstart:
    try:
        if located("results") == "results":
            check_writable()
        else:
            bucket.check_writable(located("results"))
            bucket.claim(located(".belongs-to"), identity())
        if not workflow.local_exec and wait_for_jobs(
            lambda text: print(f"note: {text}", file=sys.stderr, flush=True)
        ):
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # to see what those jobs have made
        enter(started)
        if not workflow.touch:
            check(
                pending(planned_runs(), segments_to_train()),
                config["plan"]["spending_limit"],
                config["plan"]["prices"],
            )
            preflight(requests(workflow.dag.needrun_jobs(), named), workflow.executor_settings, workflow.basedir)
            check_clock(
                [
                    *SCRIPTS.rglob("*.py"),
                    *(Path(file) for source in SOURCES.values() for files in source.values() for file in files),
                ]
            )
    except UserError as error:
        sys.exit(f"error: {error}")


MLM, BASE, LORA = config["mlm"]["runs"], config["base"], config["lora"]["runs"]
TRAINED_BASES = [name for name, recipe in BASE.items() if "model" in recipe]
COLLECTIONS = ["corpus", "tuning"] if "tuning" in config else ["corpus"]
# Every run that is trained here: its stage, name, folder, and what the config says of it.
TRAINED = (
    [("mlm", name, f"results/mlm/{name}", recipe) for name, recipe in MLM.items()]
    + [("base", name, f"results/base-training/{name}", BASE[name]) for name in TRAINED_BASES]
    + [("lora", name, f"results/lora/{name}", recipe) for name, recipe in LORA.items()]
)
CHAINS = {folder: recipe for _, _, folder, recipe in TRAINED}
# What of a run's recipe its segments take, beside what all have.
JAX_KEYS = ["mesh", "accumulate", "rematerialise", "steps_per_dispatch"]
SEGMENT_KEYS = {
    "mlm": ["model", "masking"],
    "base": ["sequence_length", "model"],
    "lora": ["sequence_length"],
}


def library(script: str, environment: str) -> list:
    """Return a rule's code as inputs: its script, the modules that this imports, its environment's lock.

    Snakemake itself follows a script's own text only, and the environment only under --sdm.
    """
    path = SCRIPTS / f"{script}.py"
    lock = Path(workflow.basedir) / "envs" / f"{environment}.txt"
    files = [path, *sorted(imported(path, SCRIPTS)), lock]
    # Relative, so that the folder can be moved without making anything stale.
    return [own_source(os.path.relpath(file)) for file in files]


def own_source(path: str) -> str:
    """Return a file of the workflow's own source as an input, which no storage provider takes into its bucket.

    What is `local` would keep its job on this machine then; what is in Snakemake's cache of sources does not.
    """
    stored = workflow.storage_settings.default_storage_provider
    return sourcecache_entry(path, path) if stored else local(path)


def located(path: str) -> str:
    """Return where an artifact lies: its path, or its URL where results go to Google Cloud Storage."""
    settings = workflow.storage_settings
    bucket = settings.default_storage_provider == "gcs"
    return f"{settings.default_storage_prefix.rstrip('/')}/{path}" if bucket else path


def in_place(files: list[str]) -> list:
    """Return files as inputs that are read where they lie: from a bucket, a script gets their URLs.

    Other inputs are copied from there to the machine of the job first.
    """
    return [file if located(file) == file else storage.gcs(located(file), retrieve=False) for file in files]


def one_of(names) -> str:
    """Return a wildcard constraint that matches just these names; with no names, nothing."""
    return "|".join(map(re.escape, names)) or "(?!)"


def pick(recipe: dict, *keys: str) -> dict:
    """Return these keys of a recipe, for a rule's params."""
    return {key: recipe[key] for key in keys}


def segment_ends(recipe: dict) -> list[int]:
    """Return the last step of each segment of a run."""
    return list(range(recipe["checkpoint_every"], recipe["steps"] + 1, recipe["checkpoint_every"]))


def segment(stage: str, recipe: dict, last: int) -> dict:
    """Return the recipe of the segment that ends at step `last`: its part of the schedule, and its stage's keys.

    The total number of steps is not in it, so that a longer run keeps the segments it had; nor is patience
    where it cannot have run out: the first evaluation is always the best so far.
    """
    first = last - recipe["checkpoint_every"]
    curve = recipe["schedule"] | {"learning_rate": recipe["learning_rate"]}
    evaluations = first // recipe["checkpoint_every"]
    patience = recipe["patience"]
    keys = SEGMENT_KEYS[stage] + (method_keys(recipe) if stage == "lora" else [])
    keys += [] if recipe.get("backend") == "tensorflow" else JAX_KEYS
    return {
        "first": first,
        "last": last,
        "schedule": segment_schedule(curve, recipe["steps"], first, last),
        **pick(recipe, "batch_size", "optimizer", "precision", "cpu_devices", "seed", *keys),
        "cpu_threads": config["cpu_threads"],
        **({"patience": patience} if patience and evaluations > patience else {}),
    }


CHECKPOINT = {
    "weights": "weights.safetensors",
    "optimizer": "optimizer.safetensors",
    "best": "best.safetensors",
    "state": "state.json",
}


def checkpoint_files(folder: str) -> dict:
    """Return the files of a checkpoint, by name, for `unpack` in an input and for outputs."""
    return {name: f"{folder}/{file}" for name, file in CHECKPOINT.items()}


def previous_checkpoint(chain: str, recipe: dict, last: int) -> list[str]:
    """Return the files of the checkpoint that a segment starts from: none for the first.

    The arrays are `ancient`: it is state.json, with their checksums, that says whether they are others than before.
    """
    first = last - recipe["checkpoint_every"]
    files = checkpoint_files(f"{chain}/{first:08d}")
    return [file if name == "state" else ancient(file) for name, file in files.items()] if first else []


def last_checkpoint(chain: str, recipe: dict, file: str) -> str:
    """Return this file of the checkpoint at which a run ends."""
    return f"{chain}/{recipe['steps']:08d}/{file}"


def thinned(chain: str, recipe: dict) -> list[str]:
    """Return the marks of the checkpoints that `keep_checkpoints` lets go: never the last one, which exports read."""
    ends, keep = segment_ends(recipe), recipe["keep_checkpoints"]
    every = {"all": 1, "last": len(ends)}.get(keep) or int(keep.split()[1])
    return [
        f"{chain}/checkpoints/{last:08d}/thinned.json"
        for number, last in enumerate(ends[:-1], start=1)
        if number % every
    ]


def next_state(chain: str, step: int) -> str:
    """Return the state.json of the checkpoint after `step`."""
    return f"{chain}/checkpoints/{step + CHAINS[chain]['checkpoint_every']:08d}/state.json"


def segment_files(folder: str, recipe: dict, file: str) -> list[str]:
    """Return this file of every checkpoint of a run, in order."""
    return [f"{folder}/checkpoints/{last:08d}/{file}" for last in segment_ends(recipe)]


def base_tokenizer(wildcards) -> str:
    """Return what tokenizes for a base model: its own vocabulary, which is there before the model, or its folder."""
    trained = wildcards.name in TRAINED_BASES
    folder = ancient(f"results/base/{wildcards.name}")
    return f"results/base-training/{wildcards.name}/vocabulary.spm" if trained else folder


def preset_files(wildcards) -> list[str]:
    """Return the files of a base model that is a local folder, hidden ones aside; none where it is downloaded."""
    folder = Path(BASE[wildcards.name]["preset"])
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    hidden = lambda path: any(part.startswith(".") for part in path.relative_to(folder).parts)
    return [local(str(path)) for path in sorted(files) if not hidden(path)]


def base_of(wildcards) -> str:
    """Return the preset folder that a run starts from.

    Snakemake knows a folder by its date alone: `ancient`, since the fingerprint beside it says what it holds.
    """
    return ancient(f"results/base/{LORA[wildcards.run]['base']}")


def fingerprint_of(wildcards) -> str:
    """Return the fingerprint of the preset folder that a run starts from."""
    return f"results/base/{LORA[wildcards.run]['base']}.json"


def tokens_of(collection: str, split: str):
    """Return an input function: the tokens of a split, in the vocabulary of a run's base model."""
    return lambda w: f"results/tokens/{LORA[w.run]['base']}/{collection}-{split}.safetensors"


def best_of(wildcards) -> str:
    """Return the best checkpoint's tuned variables, which the last checkpoint of the chain holds."""
    return last_checkpoint(f"results/lora/{wildcards.run}/checkpoints", LORA[wildcards.run], "best.safetensors")


def method_keys(recipe: dict) -> list[str]:
    """Return what says how a base is tuned: the method, and for LoRA its rank."""
    return ["method", "rank"] if recipe["method"] == "lora" else ["method"]


def sampling() -> dict:
    """Return how samples are drawn: of the config's keys, those that its sampler reads."""
    sampler = config["generation"]["sampler"]
    own = {"greedy": [], "top_k": ["k", "temperature", "seed"], "top_p": ["p", "temperature", "seed"]}[sampler]
    return pick(config["generation"], "sampler", "max_length", "samples", *own)


def hub_model(base: dict) -> dict:
    """Return name and revision of a base model on the Hugging Face hub, null for one from elsewhere."""
    preset = base.get("preset", "")
    named = preset.startswith("hf://")
    return {"hub_name": preset.removeprefix("hf://") if named else None, "hub_revision": base.get("revision")}


def tuned(run: str, *keys: str) -> dict:
    """Return what it takes to open a finished run, and these keys of its recipe."""
    kept = pick(LORA[run], *method_keys(LORA[run]), "seed", "precision", "mesh", "cpu_devices", *keys)
    return kept | {"cpu_threads": config["cpu_threads"]}


def config_key(stage: str, name: str) -> str:
    """Return how the config names a run."""
    return f"base.{name}" if stage == "base" else f"{stage}.runs.{name}"


def run_of(stage: str, name: str) -> dict:
    """Return the recipe of a run."""
    return {"mlm": MLM, "base": BASE, "lora": LORA}[stage][name]


def needs_manifest(stage: str, name: str) -> bool:
    """Return whether only the TFRecords' manifest says how large the vocabulary of a run is."""
    planned = stage == "mlm" and MLM[name]["backend"] == "jax"
    return planned and "pretrained" in config["tokenizer"]


def plan_recipe(stage: str, name: str) -> dict:
    """Return what a plan takes of a run: what decides its step, and how long it trains."""
    recipe = run_of(stage, name)
    where = {"where": config_key(stage, name)}
    if recipe.get("backend") == "tensorflow":
        return where | {"backend": "tensorflow"}
    keys = SEGMENT_KEYS[stage] + (method_keys(recipe) if stage == "lora" else []) + JAX_KEYS
    kept = where | pick(recipe, "batch_size", "optimizer", "precision", "seed", "steps", *keys)
    if stage == "base":
        return kept | pick(recipe, "vocab_size")
    if stage == "lora":
        base = BASE[recipe["base"]]
        return kept | {"base": {key: base[key] for key in ("model", "vocab_size", "preset", "revision") if key in base}}
    kept["sequence_length"] = config["tfrecords"]["sequence_length"]
    own = "vocab_size" in config["tokenizer"]
    # A tokenizer that is trained here has its pad token at 3: see special_ids in the manifest.
    return kept | ({"vocabulary": {"size": config["tokenizer"]["vocab_size"], "pad": 3}} if own else {})


def asks(stage: str, hosts: bool = False) -> dict:
    """Return what a job that runs a model asks for, as `resources` of its rule: what, and never where.

    accelerator  as the config names it; gres  a host's share of it, in the notation of schedulers
    hosts        processes that train together; nodes, tasks  the same for schedulers, of which Slurm's executor would
                 take `tasks` for those of each GPU without tasks_per_gpu
    run_hosts    for what is no trainer, and runs on one host of a run that trains on several: how many those are
    mem_mb       of each host; runtime  minutes, of one attempt
    """
    asked = lambda w: run_of(stage, w.get("run") or w.get("name"))["resources"]
    # A resource that is None is not asked for.
    resources = {
        "accelerator": lambda w: asked(w).get("accelerator"),
        "gres": lambda w: gres(asked(w).get("accelerator"), asked(w)["hosts"]),
        "mem_mb": lambda w: 1000 * asked(w)["memory_gb"],
        # A segment that ran out of time has twice, then three times as much.
        "runtime": lambda w, attempt: attempt * asked(w)["minutes"],
    }
    several = lambda w: asked(w)["hosts"] if asked(w)["hosts"] > 1 else None
    names = ("hosts", "nodes", "tasks") if hosts else ("run_hosts",)
    return resources | dict.fromkeys(names, several) | {"tasks_per_gpu": lambda w: 0 if several(w) else None}


def gres(accelerator: str | None, hosts: int) -> str | None:
    """Return an accelerator as a generic resource of each host: tpu:v5e:8 for v5e-8, gpu:h100:4 for h100:4."""
    if accelerator is None or ":" in accelerator:
        return accelerator and f"gpu:{accelerator}"
    kind, size = accelerator.split("-")
    return f"tpu:{kind}:{max(1, int(size) // hosts)}"


def asked_slice(recipe: dict) -> str | None:
    """Return the TPU slice that a run trains on; None where it is this machine, without one, that trains."""
    here = workflow.local_exec and not tpu_here()
    return None if here else recipe["resources"].get("accelerator")


def planned_runs() -> list[dict]:
    """Return every run that is trained here.

    stage, name, chain; segments, and what of the recipe says how long they are and which checkpoints stay; recipe and
    folder of its plans; accelerator
    """
    return [
        {
            "stage": stage,
            "name": name,
            "chain": chain,
            "segments": len(segment_ends(recipe)),
            **pick(recipe, "checkpoint_every", "keep_checkpoints"),
            "recipe": plan_recipe(stage, name),
            "accelerator": asked_slice(recipe),
            "plans": located(f"results/plan/{stage}/{name}"),
        }
        for stage, name, chain, recipe in TRAINED
    ]


def named(job) -> str:
    """Return what to call a job: what the config calls the run that it belongs to, or else its rule."""
    for stage, name, _, _ in TRAINED:
        if job.log and Path(job.log[0]).parent == Path("logs", stage, name):
            return config_key(stage, name)
    return f"rule {job.rule.name}"


def segments_to_train() -> Counter:
    """Return how many segments of each chain the jobs of this Snakemake train."""
    trainers = {"train_mlm_tensorflow", "train_mlm_jax", "train_base", "train_lora"}
    jobs = [job for job in workflow.dag.needrun_jobs() if job.rule.name in trainers]
    return Counter(chain_of(job.output.state) for job in jobs)


def retraining() -> list[str]:
    """Return, for each run that has checkpoints of another recipe, why it trains again."""
    notes = []
    for stage, name, chain, recipe in TRAINED:
        where = config_key(stage, name)
        segments = [segment(stage, recipe, last) for last in segment_ends(recipe)]
        notes.append(note(where, located(chain), recipe["schedule"]["shape"], segments))
    return [text for text in notes if text]


if workflow.is_main_process:
    try:
        notes = [*retraining(), *unwritable()]
    except UserError as error:
        sys.exit(f"error: {error}")
    for text in notes:
        print(f"note: {text}", file=sys.stderr)


wildcard_constraints:
    split=one_of(SPLITS),
    step=r"\d{8,9}",
    run="[a-z0-9][a-z0-9_-]{0,63}",
    name="[a-z0-9][a-z0-9_-]{0,63}",
    collection=one_of(COLLECTIONS),
