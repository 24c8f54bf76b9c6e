"""What the user of the profile may set in the environment; README.md of the profile explains each setting."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from tpulm.core.accelerators import IDLE_MINUTES
from tpulm.core.errors import UserError

# Defaults; None where there is none, and the setting has to be given.
SETTINGS = {
    "TPU_PROJECT": None,
    "TPU_ZONE": None,
    "TPU_MOUNT": None,
    "TPU_TIER": "spot",
    "TPU_RUNTIME": "",
    "TPU_PREFIX": "snakemake",
    "TPU_NETWORK": "",
    "TPU_SUBNETWORK": "",
    "TPU_INTERNAL_IPS": "",
    "TPU_SERVICE_ACCOUNT": "",
    "TPU_IDLE_MINUTES": str(IDLE_MINUTES),
    "TPU_MAX_HOURS": "24",
    "TPU_POLL_SECONDS": "15",
}
TIERS = ("spot", "on-demand", "flex-start")
PYPROJECT = Path(os.path.realpath(__file__)).parents[3] / "pyproject.toml"
NUMBERS = ("TPU_IDLE_MINUTES", "TPU_MAX_HOURS", "TPU_POLL_SECONDS")


def setting(name: str) -> str:
    """Return a setting, or its default."""
    return os.environ.get(name) or SETTINGS[name] or ""


def number(name: str) -> float:
    """Return a setting that is a number. Raises UserError for another text."""
    try:
        return float(setting(name))
    except ValueError:
        raise UserError(f"{name} is {setting(name)!r}; allowed: a number.") from None


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> None:
    """Raise UserError where workers, which get this machine's version of Python, could not be set up with it."""
    least, above = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', PYPROJECT.read_text()).groups()
    if not (3, int(least)) <= version < (3, int(above)):
        raise UserError(
            f"python3 is Python {version[0]}.{version[1]} here, and workers get the same version; allowed: "
            f"3.{least} to 3.{int(above) - 1}, such as in the environment of this folder: . .venv/bin/activate"
        )


def check_settings(mount: bool = True) -> None:
    """Raise UserError where a setting is missing or wrong, or there is no gcloud.

    mount  whether TPU_MOUNT is needed: to look and to delete, it is not
    """
    needed = [name for name, default in SETTINGS.items() if default is None and (mount or name != "TPU_MOUNT")]
    missing = [name for name in needed if not setting(name)]
    if missing:
        names = " and ".join([", ".join(missing[:-1]), missing[-1]] if missing[1:] else missing)
        raise UserError(f"profiles/tpu-vm needs {names} in the environment; see its README.md.")
    if setting("TPU_TIER") not in TIERS:
        raise UserError(f"TPU_TIER is {setting('TPU_TIER')}; allowed: {', '.join(TIERS)}.")
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,19}", setting("TPU_PREFIX")):
        raise UserError(
            f"TPU_PREFIX is {setting('TPU_PREFIX')}; allowed: up to 20 lowercase letters, digits and hyphens, "
            "beginning with a letter."
        )
    for name in NUMBERS:
        number(name)
    if not shutil.which("gcloud"):
        raise UserError("gcloud is not on PATH; install the Google Cloud CLI.")
