"""Download published presets of keras-hub, pinned to a version or commit."""

import os
from pathlib import Path

from tpulm.core import processes
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, sha256_of_each


def locate(preset: str, revision: str | None, where: str) -> Path:
    """Return a local folder with the files of a preset, downloaded where it is not local.

    preset    a folder, hf://OWNER/NAME (at `revision`), kaggle://OWNER/MODEL/keras/VARIANT/VERSION, or a
              preset name of keras-hub, which this version of keras-hub pins to such a version
    where     the config key of the preset. Raises UserError, naming it, when there is no such preset or no way to it.
    """
    if os.path.isdir(preset):
        return Path(preset)
    try:
        if preset.startswith("hf://"):
            import huggingface_hub

            return Path(huggingface_hub.snapshot_download(preset.removeprefix("hf://"), revision=revision))
        import kagglehub

        from tpulm.compat.keras_hub import built_in_presets

        handle = preset if preset.startswith("kaggle://") else built_in_presets()[preset]["kaggle_handle"]
        return Path(kagglehub.model_download(handle.removeprefix("kaggle://")))
    except Exception as error:  # of any of the libraries that fetch: network, credentials, terms not accepted
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else ""
        raise UserError(
            f"{where} is {preset}, which could not be downloaded ({type(error).__name__}: {reason}); it needs the "
            "network and, for a gated model, accepted terms and credentials in the environment: HF_TOKEN, or "
            "KAGGLE_USERNAME and KAGGLE_KEY."
        ) from None


def refuse_damaged(folder: str | Path, fingerprint: str | Path) -> None:
    """Raise UserError where a file of a preset folder is not the one whose SHA-256 its fingerprint, JSON, has.

    If several processes train together, only their parent does this.
    """
    if processes.is_worker():
        return
    expected = read_json(fingerprint)
    paths = [Path(folder, name) for name in expected]
    for path, digest, found in zip(paths, expected.values(), sha256_of_each(paths), strict=True):
        if found != digest:
            raise UserError(
                f"{path} is damaged: its SHA-256 is not that in {fingerprint}; snakemake --force {folder}, with the "
                "options of this command, writes it again."
            )


def is_keras_preset(folder: Path) -> bool:
    """Return whether a folder is a Keras preset, and not a model of another library that keras-hub can convert."""
    config = folder / "config.json"
    return config.is_file() and "registered_name" in read_json(config)
