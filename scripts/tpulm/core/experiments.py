"""An experiment: a folder with config.yaml, its results, its logs and what Snakemake knows of them."""

import argparse
import difflib
import os
import shlex
import shutil
from pathlib import Path

from tpulm.core.errors import UserError

CONFIG = Path("config.yaml")
ROOT = Path(__file__).resolve().parents[3]  # the folder of the workflow


def check_config() -> None:
    """Raise UserError where this folder has no config.yaml: of `snakemake -d FOLDER`, which makes a misspelled folder.

    A folder that has nothing but the logs of Snakemake is deleted again.
    """
    if CONFIG.is_file():
        return
    here = Path.cwd()
    inside = [path.relative_to(here).parts for path in here.rglob("*") if path.is_file()]
    if all(parts[:2] == (".snakemake", "log") for parts in inside):
        os.chdir(here.parent)
        shutil.rmtree(here)
    raise UserError(f"{shown(here)} has no config.yaml; {nearest(here)}")


def nearest(folder: Path) -> str:
    """Return which experiment may have been meant, or how to begin one."""
    names = sorted(path.parent.name for path in folder.parent.glob(f"*/{CONFIG}"))
    close = difflib.get_close_matches(folder.name, names, n=1)
    if close:
        return f"did you mean {shown(folder.parent / close[0])}?"
    return f"allowed: a folder with a config.yaml{', such as ' + shown(folder.parent / names[0]) if names else ''}."


def shown(folder: Path) -> str:
    """Return a folder as a user types it: the last two names of its path."""
    return "/".join(folder.parts[-2:])


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add the option -d, which works as that of snakemake."""
    parser.add_argument("-d", "--directory", type=Path, help="folder of the experiment; default: this folder")


def enter(asked: argparse.Namespace) -> None:
    """Go to the folder of -d; the files of --configfile stay those of the folder before. Raises UserError."""
    if asked.directory is None:
        return
    if getattr(asked, "configfile", None):
        asked.configfile = [path.absolute() for path in asked.configfile]
    if not asked.directory.is_dir():
        raise UserError(f"{asked.directory} is no folder; {nearest(asked.directory.absolute())}")
    os.chdir(asked.directory)


def directory_option() -> str:
    """Return the option -d of a command that a user types in the workflow's folder; empty where this is that folder."""
    here = Path.cwd().resolve()
    return f"-d {shlex.quote(str(here.relative_to(ROOT)))} " if ROOT in here.parents else ""
