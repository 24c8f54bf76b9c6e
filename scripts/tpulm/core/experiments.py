"""Find, check and enter an experiment: a folder with config.yaml, results, logs and Snakemake's metadata."""

import argparse
import contextlib
import difflib
import os
import shlex
from pathlib import Path

from tpulm.core.errors import UserError

CONFIG = Path("config.yaml")
ROOT = Path(__file__).resolve().parents[3]  # the folder of the workflow


def check_config(may_be_new: bool) -> None:
    """Raise UserError if this folder has no config.yaml, and delete it if a misspelled -d has just created it.

    may_be_new  whether `snakemake -d` was given: a folder that holds at most the log of this command is then deleted,
                its parent too if that is empty, and the working folder becomes the parent
    """
    if CONFIG.is_file():
        return
    here = Path.cwd()
    snakemake_folder, logs = here / ".snakemake", [*here.glob(".snakemake/log/*")]
    if (
        may_be_new
        and [*here.iterdir()] in ([], [snakemake_folder])
        and [*snakemake_folder.glob("*")] in ([], [snakemake_folder / "log"])
        and len(logs) < 2
    ):
        os.chdir(here.parent)
        with contextlib.suppress(OSError):  # the folder is a mount, or its parent holds more
            for log in logs:
                log.unlink()
            for folder in (snakemake_folder / "log", snakemake_folder, here, here.parent):
                if folder.exists():
                    folder.rmdir()
    raise UserError(f"{typed_path(here)} has no config.yaml; {nearest(here)}")


def find_experiment(name: str) -> Path | None:
    """Return the folder of an experiment, given its name or folder; None without such an experiment."""
    with contextlib.suppress(OSError):  # a name that is too long
        folders = (Path(name), Path("experiments") / name)
        return next((folder for folder in folders if (folder / CONFIG).is_file()), None)
    return None


def nearest(folder: Path) -> str:
    """Return the end of an error: the experiment beside `folder` with a similar name, else an example of one."""
    names = sorted(path.parent.name for path in folder.parent.glob(f"*/{CONFIG}"))
    close = difflib.get_close_matches(folder.name, names, n=1)
    if close:
        return f"did you mean {typed_path(folder.parent / close[0])}?"
    return (
        f"allowed: a folder with a config.yaml{', such as ' + typed_path(folder.parent / names[0]) if names else ''}."
    )


def typed_path(folder: Path) -> str:
    """Return the last two parts of a folder's path, as users type it: experiments/tiny."""
    return "/".join(folder.parts[-2:])


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add the option -d of snakemake to a parser."""
    parser.add_argument("-d", "--directory", type=Path, help="folder of the experiment; default: this folder")


def check_home() -> None:
    """Raise UserError if this user has no home folder: libraries fail without one when they are imported."""
    try:
        Path.home()
    except RuntimeError:
        raise UserError("this user has no home folder; set HOME to a folder that can be written.") from None


def enter(arguments: argparse.Namespace) -> None:
    """Change to the folder of -d, with paths of --configfile made absolute. Raises UserError for an absent folder."""
    check_home()
    if arguments.directory is None:
        return
    if getattr(arguments, "configfile", None):
        arguments.configfile = [path.absolute() for path in arguments.configfile]
    if not arguments.directory.is_dir():
        raise UserError(f"{arguments.directory} is no folder; {nearest(arguments.directory.absolute())}")
    os.chdir(arguments.directory)


def from_workflow(path: str | Path) -> str:
    """Return a path as typed in the folder of the workflow: relative in it, otherwise absolute."""
    if "://" in str(path) or Path.cwd().resolve() == ROOT:
        return str(path)
    absolute = Path(os.path.abspath(path))
    return str(absolute.relative_to(ROOT) if absolute.is_relative_to(ROOT) else absolute)


def directory_option() -> str:
    """Return "-d FOLDER " for a command typed in the workflow's folder, with the space; "" in the workflow's folder."""
    here = Path.cwd()
    return "" if here.resolve() == ROOT else f"-d {shlex.quote(from_workflow(here))} "
