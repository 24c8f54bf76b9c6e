"""Snakemake in forks of a process that has imported it: a dry run takes a third of the processor time, or a sixth."""

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


class Server:
    """A process that has imported Snakemake and runs it in forks, one at a time."""

    def __init__(self):
        """Start it."""
        command = [sys.executable, __file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.stop)

    def run(
        self, arguments: list[str], folder: Path, environment: dict[str, str], terminal: Path, scripts: str = ""
    ) -> int:
        """Run `snakemake` in a folder; what it prints goes to the file `terminal`. Returns its exit code.

        scripts  their folder, where they stay as they are while the server lives: they are read once, for all runs; in
                 several such folders, they have to be the same
        """
        job = [scripts, arguments, str(folder), environment, str(terminal)]
        try:
            print(json.dumps(job), file=self.process.stdin, flush=True)
            return int(self.process.stdout.readline())
        except BaseException:  # a test that was broken off
            self.stop()
            for server in (shared, steady):
                server.cache_clear()
            raise

    def stop(self) -> None:
        """End the server, and what it runs."""
        self.process.terminate()
        self.process.wait()


@cache
def shared() -> Server:
    """Return the server of this process of the tests, for workflows whose code may change from run to run."""
    return Server()


@cache
def steady() -> Server:
    """Return the server of this process of the tests, for workflows whose code stays as it is."""
    return Server()


def main() -> None:
    """Run what is asked for on standard input until it is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an import prints is no answer
    sys.path.remove(str(TESTS))
    preload()
    child = 0

    def stop(*_) -> None:
        if child:
            os.kill(child, signal.SIGKILL)
        os._exit(1)

    for line in sys.stdin:
        scripts, *job = json.loads(line)
        if scripts:
            read_code(scripts)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        child = os.fork()
        if child == 0:
            answers.close()
            snakemake(*job)
        signal.signal(signal.SIGTERM, stop)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        child = 0
        print(code, file=answers, flush=True)


def preload() -> None:
    """Import what every start of Snakemake imports, and find its plugins."""
    importlib.import_module("snakemake.cli").get_argument_parser()
    importlib.import_module("snakemake.storage")
    importlib.import_module("ruamel.yaml")


@cache
def read_code(folder: str) -> None:
    """Import the modules that the rules import, read the schema, and follow the imports of the scripts."""
    scripts = Path(folder)
    sys.path.insert(0, folder)
    for name in ("workflow.start", "workflow.resources", "corpus.sources"):
        importlib.import_module(f"tpulm.{name}")
    importlib.import_module("tpulm.config.reading").schema()
    imported = importlib.import_module("tpulm.workflow.code_inputs").imported
    for script in scripts.glob("*.py"):
        imported(script, scripts)
    sys.path.remove(folder)


def snakemake(arguments: list[str], folder: str, environment: dict[str, str], terminal: str) -> None:
    """Be the process of one run."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(terminal, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    script = Path(sys.executable).with_name("snakemake")
    sys.argv = [str(script), *arguments]
    sys.orig_argv = [sys.executable, *sys.argv]  # for a Snakemake that starts itself anew
    sys.path[:] = [str(script.parent), *sys.path]
    code = 1
    try:
        importlib.import_module("snakemake.cli").main()
        code = 0
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        if isinstance(exit.code, str):
            print(exit.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
