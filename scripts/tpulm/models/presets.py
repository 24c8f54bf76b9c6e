"""Download published presets of keras-hub, pinned to a version or commit."""

import os
from pathlib import Path

from tpulm.core import hub, processes
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, sha256_of_each


def locate(preset: str, revision: str | None, subject: str) -> Path:
    """Return a local folder with the files of a preset; arguments as for `hub.fetch`.

    preset  a folder, an address on a hub, or a preset name of keras-hub, for which keras-hub has a pinned address
    """
    if os.path.isdir(preset) or "://" in preset:
        return hub.fetch(preset, revision, subject)
    from tpulm.compat.keras_hub import built_in_presets

    return hub.fetch(built_in_presets()[preset]["kaggle_handle"], revision, subject)


def refuse_damaged(folder: str | Path, fingerprint: str | Path) -> None:
    """Raise UserError if a file of a preset folder does not have its SHA-256 in the JSON file `fingerprint`.

    Processes that train together leave the check to their parent.
    """
    if processes.is_worker():
        return
    expected = read_json(fingerprint)
    paths = [Path(folder, name) for name in expected]
    for path, digest, actual in zip(paths, expected.values(), sha256_of_each(paths), strict=True):
        if actual != digest:
            raise UserError(
                f"{path} is damaged: its SHA-256 is not that in {fingerprint}; snakemake --force {folder}, with the "
                "options of this command, writes it again."
            )


def is_keras_preset(folder: Path) -> bool:
    """Return whether a folder is a Keras preset, not a model of another library that keras-hub can convert."""
    config = folder / "config.json"
    return config.is_file() and "registered_name" in read_json(config)
