"""Programs in forks of a process that has imported a library: TensorFlow and JAX take seconds to import.

A program has a process of its own all the same: devices and threads are settled once per process. What it prints, its
exit code and its environment are those of `python -c PROGRAM ARGUMENTS`.
"""

import atexit
import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "scripts"
# Compiling is most of what a tiny model costs.
QUICK = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}


class Server:
    """A process that has imported a library and runs a program at a time, in a fork."""

    def __init__(self, library: str):
        """Start it; `library` is tensorflow, jax, or tpu: JAX as plans take it, with the TPU compiler."""
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, library], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        atexit.register(self.process.stdin.close)

    def run(self, program: str, *arguments: str, folder: Path, environment: dict) -> subprocess.CompletedProcess:
        """Run a program in a folder, with these arguments in sys.argv[1:]."""
        with tempfile.TemporaryDirectory() as outputs:
            paths = [f"{outputs}/{name}" for name in ("stdout", "stderr")]
            job = {"program": program, "arguments": arguments, "folder": str(folder), "outputs": paths}
            print(json.dumps(job | {"environment": environment}), file=self.process.stdin, flush=True)
            code = int(self.process.stdout.readline())
            return subprocess.CompletedProcess(list(arguments), code, *(Path(path).read_text() for path in paths))


@cache
def server(library: str) -> Server:
    """Return the server of a library in this process of the tests."""
    return Server(library)


def run(
    library: str, program: str, *arguments: str, folder: Path | None = None, code: int = 0
) -> subprocess.CompletedProcess:
    """Run a program beside a library that is imported; it can import the package. It has to end with this code.

    With jax, XLA compiles for a CPU without optimization: what is trained has other bytes than in a job of Snakemake.
    """
    environment = os.environ | (QUICK if library == "jax" else {})
    done = server(library).run(program, *arguments, folder=folder or Path.cwd(), environment=environment)
    assert done.returncode == code, done.stderr[-3000:]
    return done


def result(done: subprocess.CompletedProcess):
    """Return what a program printed as JSON after the word RESULT."""
    return json.loads(done.stdout.rpartition("RESULT")[2])


def preload(library: str) -> None:
    """Import what programs use, without starting a device, after which a process can be forked no more."""
    if library == "tensorflow":
        import transformers.models.roberta.modeling_tf_roberta  # noqa: F401
        from tpulm.training import tensorflow_evaluation, tensorflow_trainer  # noqa: F401

        return
    if library == "tpu":
        os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_LOAD_LIBRARY": "1", "TPU_SKIP_MDS_QUERY": "1"}
    from tpulm.training import runtime

    runtime.start(1)
    import keras_hub  # noqa: F401
    from tpulm.planning import plan  # noqa: F401
    from tpulm.training import jax_run, jax_trainer  # noqa: F401


def serve(library: str) -> None:
    """Run programs until the process of the tests has ended."""
    sys.path.insert(0, str(SCRIPTS))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an import prints is no answer
    preload(library)
    gc.collect()
    gc.freeze()  # no fork looks for garbage among what was imported
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(execute(json.loads(line)))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, file=answers, flush=True)


def execute(job: dict) -> int:
    """Run a program in this process, which is its own; return its exit code."""
    for number, path in enumerate(job["outputs"], 1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
    os.chdir(job["folder"])
    # What was settled before the import stays as it was: a program that sets it, sets it to the same.
    os.environ.update(job["environment"])
    sys.argv = ["-c", *job["arguments"]]
    code = 0
    try:
        exec(compile(job["program"], "program", "exec"), {"__name__": "__main__"})
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve(sys.argv[1])
