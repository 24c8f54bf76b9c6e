"""Programs in forks of a process that has imported a library: TensorFlow and JAX take seconds to import.

A program has a process of its own all the same: devices and threads are settled once per process. What it prints, its
exit code and its environment are those of `python -c PROGRAM ARGUMENTS`. All processes of the tests have one server of
a library, see tests/forked.py.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import forked

SCRIPTS = Path(__file__).parents[1] / "scripts"
# Compiling is most of what a tiny model costs.
QUICK = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
SETTLED: dict[str, str] = {}  # the environment that a library was imported in, and what its import added

# A script by hand, as its rule would run it; what it makes goes to debug/.
DEBUG = """
import runpy, sys
runpy.run_path("tools/debug.py", run_name="__main__")
"""


def start(
    library: str, program: str, *arguments: str, folder: Path | None = None, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess:
    """Run a program beside a library that is imported, in a folder and an environment; it can import the package.

    What was settled before the import stays as it was: a program that sets it, sets it to the same.

    library    tensorflow, jax, tpu: JAX as plans take it, with the TPU compiler; ledger: neither, records in buckets
    arguments  sys.argv[1:] of the program
    """
    from conftest import Workflow, session  # not where it serves

    started = Workflow.environment | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    address = forked.server(str(Workflow.servers), f"warm-{library}", session(), started)
    job = {"program": program, "arguments": arguments, "folder": str(folder or Path.cwd())}
    job["environment"] = dict(environment)
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr, open(os.devnull) as nothing:
        code = forked.Process(address, job, (nothing.fileno(), stdout.fileno(), stderr.fileno())).wait()
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(list(arguments), code, stdout.read(), stderr.read())


def run(
    library: str, program: str, *arguments: str, folder: Path | None = None, code: int = 0
) -> subprocess.CompletedProcess:
    """Run a program as `start` does. It has to end with this code.

    With jax, XLA compiles for a CPU without optimization: what is trained has other bytes than in a job of Snakemake.
    """
    environment = os.environ | (QUICK if library == "jax" else {})
    done = start(library, program, *arguments, folder=folder, environment=environment)
    assert done.returncode == code, done.stderr[-3000:]
    return done


def result(done: subprocess.CompletedProcess):
    """Return what a program printed as JSON after the word RESULT."""
    return json.loads(done.stdout.rpartition("RESULT")[2])


def preload(library: str) -> None:
    """Import what programs use, without starting a device, after which a process can be forked no more."""
    sys.path.insert(0, str(SCRIPTS))
    if library == "tensorflow":
        from tpulm.training import tensorflow_trainer  # noqa: F401

        importlib.import_module("transformers.models.roberta.modeling_tf_roberta")  # after it is told what to leave out
    elif library == "ledger":
        from tpulm.core import bucket, job_record  # noqa: F401

        importlib.import_module("gcsfs")
    else:
        if library == "tpu":
            os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_LOAD_LIBRARY": "1", "TPU_SKIP_MDS_QUERY": "1"}
        from tpulm.training import runtime

        runtime.start(1)
        import keras_hub  # noqa: F401
        from tpulm.planning import plan  # noqa: F401
        from tpulm.training import (
            jax_run,  # noqa: F401
            jax_trainer,  # noqa: F401
        )
    SETTLED.update(os.environ)


def execute(job: dict) -> None:
    """Be the process of a program that `start` has asked for."""
    os.environ.update(SETTLED | job["environment"])
    sys.argv = ["-c", *job["arguments"]]
    exec(compile(job["program"], "program", "exec"), {"__name__": "__main__"})
