"""What the TPU compiler says of a run's step, and what follows from it. Needs lib.keras_jax.start first."""

import contextlib
import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import jax
from jax.experimental import topologies

from lib.abstract import Run
from lib.compiled import cache_folder
from lib.errors import UserError
from lib.files import read_json, sha256, write_json
from lib.hlo import collective_bytes
from lib.keras_jax import set_precision
from lib.mesh import check_mesh
from lib.tpu import GIB, Topology

# What is wanted, and what the compiler leaves to a program on this chip.
EXHAUSTED = re.compile(
    r"(?:HLO temporaries \(|Used )([\d.]+)([KMGT])(?:\) exceeds available HBM \(| of )([\d.]+)([KMGT])"
)
# To count FLOPs and bytes: no loops of the compiler's own making. Memory is always that of the program as it runs.
UNROLLED = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}
VIRTUAL = 512  # cpu_devices at the most, as schemas/config.schema.yaml says
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def plan(stage: str, recipe: dict, slice_: Topology, where: str) -> dict:
    """Return the plan of a run on a TPU slice: see README for what it holds.

    Raises UserError when the run cannot be on such a slice, whatever its memory.
    """
    found = measure(stage, recipe, slice_, where)
    memory = found["memory"]
    found["advice"] = [] if memory["fits"] else advice(stage, recipe, slice_, where, memory["usable"])
    found["changes"] = changes(stage, recipe, slice_, where) if recipe["changes"] else []
    return found


def measure(stage: str, recipe: dict, slice_: Topology, where: str, usable: float = math.inf) -> dict | None:
    """Return memory, cost and modelled time of a run's step on a slice.

    usable  bytes of HBM: a run whose weights and optimizer alone need more is not compiled, and None returned for it
    """
    set_precision(recipe["precision"])
    devices = topologies.get_topology_desc(
        platform="tpu", topology_name=slice_.compiler_name, **slice_.compiler_options
    ).devices
    if len(devices) != slice_.devices:
        raise ValueError(f"{slice_.name} has {len(devices)} devices for the compiler, and {slice_.devices} in lib.tpu")
    run = Run(stage, recipe, devices, where)
    sizes = run.distribution.sizes
    used = math.prod(sizes.values())
    weights, optimizer = (run.bytes_per_device(part.variables) for part in (run.model, run.optimizer))
    if weights + optimizer > usable:
        return None
    # Loops of the program: over the steps of a dispatch, of which one is wanted; over the parts of a step, all of them.
    turns = [1] * (recipe["steps_per_dispatch"] > 1) + [recipe["accumulate"]]
    said = compiled(run.lowered(), slice_, used, turns)
    fits = said["arguments"] is not None
    flops, moved, sent = said["flops"], said["bytes"], said["collective_bytes"]
    again = recipe["accumulate"] - 1
    if again and fits:
        # Not what the part alone sends: in a loop, the compiler sums most gradients over devices once, after all parts.
        part = compiled(run.lowered_part(), slice_, used)
        flops, moved = flops + again * part["flops"], moved + again * part["bytes"]
    time = {
        "compute": flops / slice_.flops,
        "memory": moved / slice_.hbm_bandwidth,
        "interconnect": sum(sent.values()) / slice_.ici_bandwidth,
    }
    step = max(time.values()) if fits else None
    model_flops, tokens = run.model_flops(), run.tokens_per_step()
    return {
        "mesh": sizes,
        "devices": used,
        "undivided": run.distribution.notes,
        "memory": {
            "hbm": slice_.hbm,
            "usable": said["usable"],
            "weights": weights,
            "optimizer": optimizer,
            "gradients": run.bytes_per_device(run.model.trainable_variables),
            "arguments": said["arguments"],
            "temporaries": said["temporaries"],
            "program": said["program"],
            "total": said["total"],
            "fits": fits,
        },
        "cost": {"flops": flops, "bytes": moved, "collective_bytes": sent},
        "seconds": time | {"step": step},
        "bound_by": max(time, key=time.get) if step else None,
        "tokens_per_step": tokens,
        "tokens_per_second": tokens / step if step else None,
        "model_flops_per_step": model_flops,
        "model_flops_utilisation": model_flops / (step * used * slice_.flops) if step else None,
        # weights, two moments of Adam, and the best weights so far
        "checkpoint_bytes": 4 * sum(math.prod(v.shape) * 4 for v in run.model.trainable_variables),
    }


def compiled(lowered: jax.stages.Lowered, slice_: Topology, devices: int, turns: Sequence[int] = ()) -> dict:
    """Return what the compiler says of a program, per device: bytes of memory, FLOPs, bytes moved and sent.

    turns  see `collective_bytes`; FLOPs and bytes moved are counted once in all loops

    The same program for the same slice and compiler is compiled once in a folder. Where it does not fit, the
    compiler stops and says only how much it needs in all, and how much is usable: then arguments is None; where it
    does, usable is.
    """
    text = lowered.as_text()
    readers = [Path(__file__), Path(__file__).with_name("hlo.py")]  # of what the compiler says
    words = [version("libtpu"), version("jax"), slice_.compiler_name, text, str([*turns]), *map(sha256, readers)]
    key = hashlib.sha256(" ".join(words).encode()).hexdigest()
    kept = Path(cache_folder("plans")) / f"{key}.json"
    if kept.is_file():
        return read_json(kept)
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        wanted = EXHAUSTED.search(str(error))
        if not wanted:
            raise
        # The message says temporaries, but counts the arguments among them.
        found = {"arguments": None, "temporaries": None, "program": None}
        found["total"], found["usable"] = (
            round(float(number) * UNITS[unit]) for number, unit in (wanted.group(1, 2), wanted.group(3, 4))
        )
        found |= {"flops": 0.0, "bytes": 0.0, "collective_bytes": {}}
    else:
        memory = program.memory_analysis()
        if loops(program.as_text()) > text.count("stablehlo.while"):
            # Multiplications that wait for parts of their operands, piece by piece: counted once, like all loops.
            # Without them a program that fits may not: then the count stays too low.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                program = lowered.compile(compiler_options=UNROLLED)
        cost, sent = program.cost_analysis(), collective_bytes(program.as_text(), devices, turns)
        total = (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
            + memory.generated_code_size_in_bytes
        )
        found = {
            "arguments": memory.argument_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
            "program": memory.generated_code_size_in_bytes,
            "total": total,
            "usable": None,
            "flops": float(cost["flops"]),
            "bytes": float(cost["bytes accessed"]),
            "collective_bytes": sent,
        }
    write_json(kept, found)
    return found


def loops(text: str) -> int:
    """Return the number of loops in a compiled program."""
    return text.count(" while(")


def variants(recipe: dict, stage: str, devices: int) -> Iterator[tuple[str, dict]]:
    """Yield what may make a run smaller, in words and as a recipe, the gentlest changes of the result first.

    Not all of it is allowed by the config, or fits the slice.
    """
    if not recipe["rematerialise"]:
        yield "rematerialise: true", recipe | {"rematerialise": True}
    lora = stage == "lora" and recipe["method"] == "lora"
    precision = "bfloat16" if lora else "mixed_bfloat16"
    if recipe["precision"] != precision:
        yield f"precision: {precision}", recipe | {"precision": precision}
        yield (
            f"precision: {precision} with rematerialise: true",
            recipe | {"precision": precision, "rematerialise": True},
        )
    for parts in (2, 4, 8, 16):
        accumulate = recipe["accumulate"] * parts
        yield f"accumulate: {accumulate}", recipe | {"accumulate": accumulate}
    size = 1
    while size <= devices:
        # The config refuses a mesh that the virtual devices do not fit.
        virtual = math.lcm(size, recipe["cpu_devices"])
        if [size, -1] != recipe["mesh"] and virtual <= VIRTUAL:
            words = "" if virtual == recipe["cpu_devices"] else f", cpu_devices: {virtual}"
            yield f"mesh: [{size}, -1]{words}", recipe | {"mesh": [size, -1], "cpu_devices": virtual}
        size *= 2
    if recipe["batch_size"] > 1 and recipe["batch_size"] % 2 == 0:
        yield f"batch_size: {recipe['batch_size'] // 2}", recipe | {"batch_size": recipe["batch_size"] // 2}


def changes(stage: str, recipe: dict, slice_: Topology, where: str) -> list[dict]:
    """Return what each single change of how a step is computed would make of memory and modelled time."""
    lora = stage == "lora" and recipe["method"] == "lora"
    precisions = ["float32", "mixed_bfloat16", *(["bfloat16"] if lora else [])]
    single = [("rematerialise", not recipe["rematerialise"])]
    single += [("precision", precision) for precision in precisions if precision != recipe["precision"]]
    if recipe["accumulate"] > 1:
        single.append(("accumulate", 1))
    elif recipe["batch_size"] % 4 == 0:
        single.append(("accumulate", 4))
    found = []
    for key, value in single:
        try:
            check_mesh(where, recipe | {key: value})
            made = measure(stage, recipe | {key: value}, slice_, where)
        except UserError:  # such as a batch that cannot be cut into so many parts on this mesh
            continue
        kept = ("memory", "seconds", "bound_by", "tokens_per_second", "model_flops_utilisation")
        found.append({"key": key, "value": value} | {name: made[name] for name in kept})
    return found


def advice(stage: str, recipe: dict, slice_: Topology, where: str, usable: int, most: int = 3) -> list[str]:
    """Return up to `most` changes with which a run fits in `usable` bytes of HBM, each compiled.

    The config allows each: `recipe` has cpu_devices, resources and checkpoint_every for that, which change no step.
    """
    found: list[str] = []
    for words, changed in variants(recipe, stage, slice_.devices):
        try:
            check_mesh(where, changed)
            made = measure(stage, changed, slice_, where, usable)
        except UserError:
            continue
        if made and made["memory"]["fits"]:
            found.append(f"{words} ({made['memory']['total'] / GIB:.1f} GiB)")
        if len(found) == most:
            break
    return found


def shortage(found: dict, where: str, name: str) -> str:
    """Return the sentence for a plan that does not fit."""
    memory = found["memory"]
    over = memory["total"] - memory["usable"]
    helps = (
        f"it fits with {'; or with '.join(found['advice'])}"
        if found["advice"]
        else "none of the changes that were tried makes it fit"
    )
    return (
        f"{where} does not fit {name}: a device needs {memory['total'] / GIB:.1f} GiB of HBM and has "
        f"{memory['usable'] / GIB:.1f} for a program, {over / GIB:.1f} too little; {helps}."
    )


def in_money(found: dict, recipe: dict) -> dict:
    """Return a plan with what the whole run takes: hours, money at `price_per_hour`, bytes of a checkpoint."""
    step, price = found["seconds"]["step"], recipe["price_per_hour"]
    hours = None if step is None else step * recipe["steps"] / 3600
    return found | {
        "hours": hours,
        "price_per_hour": price,
        "cost_of_run": None if price is None or hours is None else hours * price,
    }
