"""Write and verify checkpoints: arrays as safetensors, and everything else that the next segment needs as JSON.

weights.safetensors    the model's variables
optimizer.safetensors  the optimizer's variables
best.safetensors       the model's variables at the step with the lowest held-out loss so far; after an early stop
                       the others are empty
state.json             step; evaluation at this step; best (step and evaluation); evaluations_since_best;
                       stopped_at, the step of an early stop, otherwise null; the segment's recipe;
                       attention, its implementation, where an accelerator could have several;
                       sha256 of the three files above; previous_sha256, of the state.json before, null for the first

So each state authenticates its files and, through the previous states, the entire chain. The data position and the
random numbers need no state: both are functions of the step.
"""

import math
import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tpulm.core import processes
from tpulm.core.arrays import save_arrays
from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write, read_json, sha256, sha256_of_each, write_json
from tpulm.records.order import epochs
from tpulm.specs.artifacts import CHECKPOINT_ARRAYS, CHECKPOINT_FILES
from tpulm.specs.phases import begins_phase, tokens_until
from tpulm.training.history import History

if TYPE_CHECKING:
    from tpulm.training.segment import Segment


def verified_previous(files: list[str]) -> dict[str, str] | None:
    """Return the paths of the checkpoint that a segment starts from by part, None for the first segment.

    Raises UserError for a file that does not match state.json; of several processes, only their parent checks.
    """
    if not files:
        return None
    parts = dict(zip(CHECKPOINT_FILES, files, strict=True))
    if not processes.is_worker():
        verify_checkpoint(parts)
    return parts


def verify_checkpoint(parts: dict[str, str]) -> dict:
    """Return the state of a checkpoint whose files match it. Raises UserError naming a damaged file."""
    state = read_state(parts["state"])
    digests = sha256_of_each(parts[part] for part in CHECKPOINT_ARRAYS)
    for part, digest in zip(CHECKPOINT_ARRAYS, digests, strict=True):
        if digest != state["sha256"][part]:
            raise UserError(
                f"{parts[part]} is corrupt: its SHA-256 is not the one in state.json beside it; "
                "delete the file and run again."
            )
    return state


def read_state(path: str) -> dict:
    """Return the contents of a state.json. Raises UserError if it is damaged."""
    try:
        state = read_json(path)
        known = {"step", "evaluation", "best", "stopped_at"} <= set(state)
        if known and set(state["sha256"]) == set(CHECKPOINT_ARRAYS):
            return state
    except (ValueError, TypeError, KeyError):
        pass
    raise UserError(f"{path} is corrupt: it is not the state of a checkpoint; delete the file and run again.")


def save_checkpoint(
    segment: "Segment",
    weights: Mapping[str, object],
    optimizer: Mapping[str, object],
    evaluation: dict[str, float],
    save_arrays: Callable[[str, Any], None] = save_arrays,
    is_main_process: bool = True,
    notes: dict | None = None,
) -> None:
    """Write the checkpoint at the end of a segment.

    weights, optimizer  named arrays, as `save_arrays` takes them
    evaluation  held-out figures at that step, with `loss`; lower is better
    is_main_process  whether this process writes best and state, too
    notes       further entries of the state on how the segment was trained

    Raises UserError if the held-out loss is not finite; nothing is written then.
    """
    recipe, outputs, previous = segment.recipe, segment.outputs, segment.previous
    step, loss = recipe["last"], evaluation["loss"]
    if not math.isfinite(loss):
        raise UserError(
            f"the held-out loss is {loss} at step {step}: the run diverged; the last checkpoint is kept. "
            "Lower learning_rate, or set global_clipnorm."
        )
    best, best_arrays, since_best = {"step": step, "evaluation": evaluation}, outputs["weights"], 0
    if previous and not begins_phase(recipe):  # the model of a phase is not one of the phase before
        before = read_state(previous["state"])
        if loss >= before["best"]["evaluation"]["loss"]:
            best, best_arrays, since_best = before["best"], previous["best"], before["evaluations_since_best"] + 1
    save_arrays(outputs["weights"], weights)
    save_arrays(outputs["optimizer"], optimizer)
    if not is_main_process:
        return
    with atomic_write(outputs["best"]) as partial:
        shutil.copyfile(best_arrays, partial)
    state = {
        "step": step,
        "evaluation": evaluation,
        "best": best,
        "evaluations_since_best": since_best,
        "stopped_at": None,
        **(notes or {}),
    }
    write_state(segment, state)


def write_state(segment: "Segment", state: dict) -> None:
    """Write state.json with the SHA-256 of the other files, which exist already."""
    outputs, previous = segment.outputs, segment.previous
    digests = sha256_of_each(outputs[part] for part in CHECKPOINT_ARRAYS)
    state |= {
        "recipe": segment.recipe,
        "sha256": dict(zip(CHECKPOINT_ARRAYS, digests, strict=True)),
        "previous_sha256": sha256(previous["state"]) if previous else None,
    }
    write_json(outputs["state"], state)


def how_trained(state: dict) -> dict:
    """Return {"attention": its implementation} of a state of a checkpoint, for a run's metrics; {} if it has none."""
    return {key: state[key] for key in ("attention",) if key in state}


def trained_for(state: dict, manifest: dict) -> dict:
    """Return steps (those before an early stop) and epochs (two decimals) of a run, for its metrics.

    state  of its last checkpoint; manifest  of the records that it was trained on
    """
    steps = state["stopped_at"] or state["step"]
    records = sum(shard["records"] for shard in manifest["splits"]["train"]["shards"])
    read = tokens_until(state["recipe"], steps, manifest["sequence_length"]) // manifest["sequence_length"]
    return {"steps": steps, "epochs": round(epochs(1, read, records), 2)}


def finish_if_stopped(segment: "Segment") -> bool:
    """Write the outputs of this segment if the run has stopped before it, and return whether it has.

    A run stops when the last `recipe["patience"]` evaluations brought no new lowest held-out loss. Then the best
    weights are those of the previous checkpoint. Weights and optimizer are empty, since nothing trains on from them.
    """
    recipe, outputs, previous = segment.recipe, segment.outputs, segment.previous
    if not previous:
        return False
    before, patience = read_state(previous["state"]), recipe.get("patience")
    if before["stopped_at"] is None and not (patience and before["evaluations_since_best"] >= patience):
        return False
    stopped_at = before["stopped_at"] or before["step"]
    # A hard link would not do: Snakemake touches outputs, so the previous checkpoint would be newer than its results.
    with atomic_write(outputs["best"]) as partial:
        shutil.copyfile(previous["best"], partial)
    save_arrays(outputs["weights"], {})
    save_arrays(outputs["optimizer"], {})
    entries = {key: before[key] for key in ("evaluation", "best", "evaluations_since_best")} | how_trained(before)
    write_state(segment, {"step": recipe["last"], **entries, "stopped_at": stopped_at})
    empty_history = History(recipe["first"], recipe["last"], 0, segment.say)
    empty_history.write(outputs["history"], outputs["timings"], bool(recipe.get("evaluate_every")))
    best = before["best"]
    segment.say(
        f"stopped at step {stopped_at}: no held-out loss below the {best['evaluation']['loss']:.4f} of step "
        f"{best['step']} since then"
    )
    return True
