"""What is used of lm-evaluation-harness 0.4.13 beyond its documented interface."""

from typing import Any

from lm_eval.tasks import TaskManager


def pin(manager: TaskManager, entry: Any, revision: str) -> None:
    """Have the data of a task, an entry of the manager's index, read at a commit of the hub.

    Why: a task names a dataset of the hub without a revision, so that its examples may change.
    Until: the manager takes a revision.
    """
    described, entry.yaml_path = manager._factory._load_full_config(entry), None
    entry.cfg = described | {"dataset_kwargs": (described.get("dataset_kwargs") or {}) | {"revision": revision}}
