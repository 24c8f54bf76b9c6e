"""Snakemake in a fork of a process that has imported it: a dry run takes a third of the time."""

import multiprocessing
import os
import sys
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["snakemake.cli"])


def snakemake(arguments: list[str], folder: Path, environment: dict[str, str], terminal: Path) -> int:
    """Run `snakemake` in a folder; what it prints goes to the file `terminal`. Returns its exit code."""
    process = SERVER.Process(target=_main, args=(arguments, folder, environment, terminal))
    process.start()
    try:
        process.join()
    finally:
        if process.is_alive():  # a test that was broken off
            process.kill()
    return process.exitcode


def _main(arguments: list[str], folder: Path, environment: dict[str, str], terminal: Path) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(terminal, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    script = Path(sys.executable).with_name("snakemake")
    sys.argv = [str(script), *arguments]
    # The paths of pytest would let the copy of the workflow find the modules of the original.
    ours = [str(folder) for folder in Path(__file__).parents[:2]] + [str(Path(__file__).parents[1] / "scripts"), ""]
    sys.path[:] = [str(script.parent), *(path for path in sys.path if path not in ours)]
    from snakemake.cli import main

    main()
