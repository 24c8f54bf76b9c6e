"""What the config says of archives, signatures, and the history of runs."""

from collections.abc import Mapping
from typing import Any

from tpulm.config.publications import publications_of
from tpulm.config.runs import Run


def archive_of(config: Mapping) -> str:
    """Return the path of the archive."""
    section = config["archive"]
    return f"results/archive/{section['name']}-{section['version']}.zip"


def signatures_of(config: Mapping) -> dict[str, dict[str, Any]]:
    """Return the signature of every model by its path: files, what the rule reads; folder, and names of files in it."""
    found = {}
    for name, publication in publications_of(config).items():
        if publication.kind not in ("mlm", "base", "adapter", "model", "transformers"):
            continue
        files = [f"results/{file}" for file in publication.files.values()]
        folder = f"results/{publication.folder}" if publication.folder else files[0].rpartition("/")[0]
        # Its card, too, where that lies beside it: the programs that check a signature allow no other files.
        files += [f"{folder}/README.md"] if files and f"results/{publication.card}" == folder else []
        names = [file.removeprefix(f"{folder}/") for file in files]
        found[f"results/archive/models/{name.replace('/', '-')}.sig"] = {
            "files": files or [folder],
            "folder": folder,
            "names": names,
        }
    return found


def kept_of(run: Run) -> dict[str, Any]:
    """Return what the history keeps of a run's config: the keys that decide what is trained."""
    keys = ("base", "steps", "learning_rate", "schedule", *run.step_keys)
    recipe = {key: run.recipe[key] for key in keys if key in run.recipe}
    return {"stage": run.stage, "name": run.name, "recipe": recipe}
