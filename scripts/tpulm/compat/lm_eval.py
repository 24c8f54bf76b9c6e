"""Private names of lm-evaluation-harness 0.4.13."""

from typing import Any

from lm_eval.tasks import TaskManager


def pin(manager: TaskManager, entry: Any, revision: str) -> None:
    """Pin the dataset of a task, an entry of the manager's index, to a commit of the hub.

    Why: a task names a dataset of the hub without a revision, so that its examples may change.
    Until: the manager takes a revision.
    """
    described, entry.yaml_path = manager._factory._load_full_config(entry), None
    entry.cfg = described | {"dataset_kwargs": (described.get("dataset_kwargs") or {}) | {"revision": revision}}
