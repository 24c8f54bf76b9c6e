"""An experiment: a folder with config.yaml, its results, its logs and what Snakemake knows of them."""

import argparse
import contextlib
import difflib
import os
import shlex
from pathlib import Path

from tpulm.core.errors import UserError

CONFIG = Path("config.yaml")
ROOT = Path(__file__).resolve().parents[3]  # the folder of the workflow


def check_config(made: bool) -> None:
    """Raise UserError where this folder has no config.yaml.

    made  whether `snakemake -d` may have made the folder, whose name is misspelled then: one that has nothing but the
          log of this command is deleted again
    """
    if CONFIG.is_file():
        return
    here = Path.cwd()
    own, logs = here / ".snakemake", [*here.glob(".snakemake/log/*")]
    if made and [*here.iterdir()] in ([], [own]) and [*own.glob("*")] in ([], [own / "log"]) and len(logs) < 2:
        os.chdir(here.parent)
        with contextlib.suppress(OSError):  # of a mount, or a parent that has more
            for log in logs:
                log.unlink()
            for folder in (own / "log", own, here, here.parent):
                if folder.exists():
                    folder.rmdir()
    raise UserError(f"{typed_path(here)} has no config.yaml; {nearest(here)}")


def find_experiment(name: str) -> Path | None:
    """Return the folder of the experiment that is named by its name or its folder; None where there is none."""
    with contextlib.suppress(OSError):  # a name that is too long
        folders = (Path(name), Path("experiments") / name)
        return next((folder for folder in folders if (folder / CONFIG).is_file()), None)
    return None


def nearest(folder: Path) -> str:
    """Return which experiment may have been meant, or how to begin one."""
    names = sorted(path.parent.name for path in folder.parent.glob(f"*/{CONFIG}"))
    close = difflib.get_close_matches(folder.name, names, n=1)
    if close:
        return f"did you mean {typed_path(folder.parent / close[0])}?"
    return (
        f"allowed: a folder with a config.yaml{', such as ' + typed_path(folder.parent / names[0]) if names else ''}."
    )


def typed_path(folder: Path) -> str:
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


def from_workflow(path: str | Path) -> str:
    """Return a path as a user types it in the folder of the workflow: relative to it, whole where it is elsewhere."""
    if "://" in str(path) or Path.cwd().resolve() == ROOT:
        return str(path)
    absolute = Path(os.path.abspath(path))
    return str(absolute.relative_to(ROOT) if absolute.is_relative_to(ROOT) else absolute)


def directory_option() -> str:
    """Return the option -d of a command that a user types in the workflow's folder; empty where this is that folder."""
    here = Path.cwd()
    return "" if here.resolve() == ROOT else f"-d {shlex.quote(from_workflow(here))} "
