"""Which checkpoints of a run are looked at, and which is its model: that of the lowest held-out loss or best score."""

from collections.abc import Mapping

from tpulm.config.evaluation_names import VALIDATION
from tpulm.config.evaluations import Evaluations
from tpulm.config.runs import BITS_PER_BYTE, LOSS, Run, by_stage, runs_of
from tpulm.core.errors import UserError


def checkpoints_named(which: str, run: Run) -> list[int]:
    """Return the steps of a run's checkpoints that `which` names beside the best one: best, last or all."""
    ends = run.segment_ends
    return {"best": [], "last": ends[-1:], "all": ends}[which]


def selecting(run: Run) -> dict[str, str]:
    """Return what tells the score that a run's checkpoint is selected by: group, and on what it is measured."""
    if run.selected_by == BITS_PER_BYTE:
        text = "finetune-text" if run.stage == "finetune" else "corpus"
        return {"group": "text", "on": f"{text} {VALIDATION}"}
    return {"group": "pairs", "on": run.selected_by}


def check_selection(config: Mapping) -> None:
    """Check that every checkpoint has the score that selects, and that the selected one is there. Raises UserError."""
    found = config["evaluation"]
    by, where = found["select_by"], "evaluation.select_by"
    if by == LOSS:
        return
    known = [LOSS, BITS_PER_BYTE, *found["pairs"]["sets"]]
    if by not in known:
        raise UserError(f"{where} is {by}; allowed: {', '.join(known)} (loss, or a score: of text, or a set of pairs).")
    if found["checkpoints"] != "all":
        raise UserError(
            f"{where} is {by}, and evaluation.checkpoints is {found['checkpoints']}; allowed with it: all, since the "
            "scores of all are compared."
        )
    stages = by_stage(runs_of(config))
    evaluated = Evaluations(config, stages["mlm"], stages["mlm"], stages["base"], stages["finetune"], [])
    for run in runs_of(config):
        if run.recipe["keep_checkpoints"] != "all":
            raise UserError(
                f"{where} is {by}, and {run.key}.keep_checkpoints is {run.recipe['keep_checkpoints']}; allowed with "
                "it: all, since any of them may be selected when the last is scored."
            )
        if by == BITS_PER_BYTE and not evaluated.documents_of(run):
            key = "masked_documents" if run.stage == "mlm" else "documents"
            raise UserError(f"{where} is {by}, and evaluation.text.{key} is 0; allowed with it: 1 or more.")
