"""Snakemake and its jobs in forks of processes that have imported what these import, which is most of their work.

    python tests/forked.py serve ADDRESS PROCESS PRELOADED
    python tests/forked.py run ADDRESS ARGUMENT...

The first serves at a socket for as long as a process lives; all processes of the tests have one server of a kind. The
second is `snakemake` with these arguments. `python_of` writes a program that is `python`, with forks for jobs.
"""

import fcntl
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
# What libraries read while they are imported: a job with other values needs a process that imports them itself.
READ_ON_IMPORT = (
    "CUDA", "DATASETS", "HF_", "HUGGING", "JAX", "KERAS", "LD_", "NPROC", "OMP_", "PYTHON", "TF", "TPU", "TRANSFORMERS",
    "XLA",
)  # fmt: skip
READ_LATE = {"HF_TOKEN"}
# What Snakemake sets for a job of one thread.
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "GOTO", "OPENBLAS", "MKL")}


def run(address: str, job: dict, outputs: list[int]) -> int:
    """Have a server run a job; return its exit code. Where this process ends before, the job is killed.

    job      folder; environment; arguments, and for Snakemake:
             scripts, their folder where they stay as they are while the server lives: they are read once for all runs,
             and in several such folders have to be the same; None otherwise
             python, the program that runs scripts; None for Python itself
    outputs  the files that take stdout and stderr
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"\0"], outputs)
        connection.sendall(json.dumps(job).encode())
        connection.shutdown(socket.SHUT_WR)
        return int(connection.recv(16))


def server(folder: str, preloaded: str, process: int, environment: dict[str, str] | None = None) -> str:
    """Return the address of the server in a folder that has this preloaded, which the first who asks for it starts.

    preloaded  snakemake, light, jax, tensorflow
    process    with which it ends
    """
    address = f"{folder}/{preloaded}"
    with open(f"{address}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(address):
            start(address, process, preloaded, environment)
    return address


PYTHON = """#!{python} -IS
import sys
sys.path.append({tests!r})
import forked
forked.client({folder!r}, {process}, {environment!r})
"""


def python_of(folder: str, process: int, environment: dict[str, str]) -> str:
    """Return a program that is Python, but runs the scripts of Snakemake's jobs in forks of servers in a folder.

    process      with which they end
    environment  in which they start
    """
    program = Path(folder, "python")
    environment = environment | ONE_THREAD
    with open(f"{program}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            text = PYTHON.format(python=sys.executable, tests=str(TESTS), **locals())
            program.with_suffix(".new").write_text(text)
            program.with_suffix(".new").chmod(0o755)
            program.with_suffix(".new").rename(program)
    return str(program)


def client(folder: str, process: int, environment: dict[str, str]) -> None:
    """Be Python with this process's arguments."""
    _, *arguments = sys.argv
    here = dict(os.environ)
    if len(arguments) == 1 and "/.snakemake/scripts/" in arguments[0] and alike(environment, here):
        with open(arguments[0], "rb") as file:
            script = file.read()
        # The lock of a rule's environment is among the inputs, which a script begins with.
        preloaded = next((name for name in ("tensorflow", "jax") if f"envs/{name}.txt".encode() in script), "light")
        address = server(folder, preloaded, process, environment)
        sys.exit(run(address, {"arguments": arguments, "folder": os.getcwd(), "environment": here}, [1, 2]))
    os.execv(sys.executable, [sys.executable, *arguments])


def alike(environment: dict[str, str], other: dict[str, str]) -> bool:
    """Return whether what libraries read while they are imported is the same in two environments."""
    one, two = (
        {key: value for key, value in values.items() if key.startswith(READ_ON_IMPORT) and key not in READ_LATE}
        for values in (environment, other)
    )
    return one == two


def start(address: str, process: int, preloaded: str, environment: dict[str, str] | None) -> None:
    """Start a server that lives as long as a process. Raises RuntimeError where it ends before it serves."""
    command = [sys.executable, __file__, "serve", address, str(process), preloaded]
    log = Path(f"{address}.log")
    with open(log, "w") as said:  # not this process's own output, which would stay open as long as the server lives
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True, env=environment
        )
    while not os.path.exists(address):
        if server.poll() is not None:
            raise RuntimeError(f"{address} ended before it began: {log.read_text()[-2000:]}")
        time.sleep(0.05)


def serve(address: str, process: int, preloaded: str) -> None:
    """Run what is asked for, each in a process of its own."""
    sys.path.remove(str(TESTS))
    preload(preloaded)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that supervise
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.new")
    listener.listen(128)
    os.rename(f"{address}.new", address)
    listener.settimeout(5)
    while True:
        if not os.path.exists(f"/proc/{process}"):
            os._exit(0)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(None)
        _, outputs, *_ = socket.recv_fds(connection, 1, 2)
        with connection.makefile() as request:
            job = json.load(request)
        if job.get("scripts"):
            read_code(job["scripts"])
        if os.fork() == 0:
            listener.close()
            supervise(connection, job, outputs, snakemake if preloaded == "snakemake" else script)
        connection.close()
        for output in outputs:
            os.close(output)


def supervise(connection: socket.socket, job: dict, outputs: list[int], program: Callable) -> None:
    """Run a job and answer with its exit code; kill it and what it runs when nobody waits for it any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        connection.close()
        be(job, outputs, program)
    for output in outputs:
        os.close(output)
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(connection, 0)  # only whether it was closed
    if ended not in dict(poll.poll()):
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        connection.sendall(str(code).encode())
    finally:
        os._exit(0)


def preload(what: str) -> None:
    """Import what is used by every start of Snakemake, or by the jobs of an environment; but nothing of this project.

    The code of a workflow may be another, and is its own.
    """
    if what == "snakemake":
        importlib.import_module("snakemake.cli").get_argument_parser()  # finds the plugins, too
        importlib.import_module("snakemake.storage")
        importlib.import_module("ruamel.yaml")
        return
    for name in ("snakemake.iocontainers", "snakemake.logging", "numpy", "pyarrow.parquet", "safetensors.numpy"):
        importlib.import_module(name)
    if what == "light":
        importlib.import_module("matplotlib.pyplot")
        return
    sys.path.insert(0, str(TESTS.parent / "scripts"))
    if what == "jax":
        importlib.import_module("tpulm.training.runtime").start(1)
        importlib.import_module("keras_hub")
    else:
        importlib.import_module("tpulm.training.tensorflow_runtime")
        importlib.import_module("transformers.models.roberta.modeling_tf_roberta")
    sys.path.pop(0)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tpulm"]:
        del sys.modules[name]


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


def be(job: dict, outputs: list[int], program: Callable) -> None:
    """Be the process of a job: a program that is given the job."""
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    for number, output in enumerate(outputs, 1):
        os.dup2(output, number)
    for output in set(outputs) - {1, 2}:
        os.close(output)
    code = 1
    try:
        program(job)
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


def snakemake(job: dict) -> None:
    """Run Snakemake."""
    program = Path(sys.executable).with_name("snakemake")
    sys.executable = job.get("python") or sys.executable
    sys.argv = [str(program), *job["arguments"]]
    sys.orig_argv = [sys.executable, *sys.argv]  # for a Snakemake that starts itself anew
    sys.path[:] = [str(program.parent), *sys.path]
    importlib.import_module("snakemake.cli").main()


def script(job: dict) -> None:
    """Run a script of a job of Snakemake's."""
    (path,) = sys.argv = job["arguments"]
    sys.path[:] = [str(Path(path).parent), *sys.path]
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    what, place, *rest = sys.argv[1:]
    if what == "serve":
        serve(place, int(rest[0]), rest[1])
    here = {"arguments": rest, "folder": os.getcwd(), "environment": dict(os.environ)}
    sys.exit(run(place, here, [1, 2]))
