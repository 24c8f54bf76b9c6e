"""Snakemake and its jobs in forks of processes that have imported what these import, which is most of their work.

    python tests/forked.py serve ADDRESS PROCESS PRELOADED

serves at a socket for as long as a process lives; all processes of the tests have one server of a kind. Snakemake
starts scripts, and itself, too: anew, and for the jobs of a scheduler. `python_of` makes a Python in which these are
forks.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
# What libraries read while they are imported: a job with other values needs a process that imports them itself.
READ_ON_IMPORT = (
    "CUDA", "DATASETS", "HF_", "HUGGING", "JAX", "KERAS", "LD_", "NPROC", "OMP_", "PYTHON", "TF", "TPU", "TRANSFORMERS",
    "XLA",
)  # fmt: skip
# The first when a device is used; the last three are those of profiles/tpu-vm.
READ_LATE = {"XLA_FLAGS", "HF_TOKEN", "TPU_PROJECT", "TPU_VM", "TPU_ZONE"}
# What Snakemake sets for a job of one thread.
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "GOTO", "OPENBLAS", "MKL")}


ANSWER = 16  # bytes


class Process:
    """A job that a server runs, with what subprocess.Popen offers. It is killed where this process ends before.

    job          folder; environment; arguments; python, in which it starts others; for Snakemake:
                 scripts, their folder where they stay as they are while the server lives: they are read once for all
                 runs, and in several such folders have to be the same; None otherwise
    descriptors  its standard input, output and error; without them, `stdout` is where to read what it prints
    """

    def __init__(self, address: str, job: dict, descriptors: tuple[int, int, int] | None = None):
        """Start it, as the leader of a process group."""
        self.args, self.stdout, self.returncode = ["snakemake", *job["arguments"]], None, None
        opened = []
        if descriptors is None:
            opened = [os.open(os.devnull, os.O_RDONLY), *os.pipe()]
            self.stdout = open(opened.pop(1))  # noqa: SIM115 (the user of this reads it)
            descriptors = opened[0], opened[1], opened[1]
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(address)
        socket.send_fds(self.connection, [b"\0"], descriptors)
        self.connection.sendall(json.dumps(job).encode())
        self.connection.shutdown(socket.SHUT_WR)
        for descriptor in opened:
            os.close(descriptor)
        self.pid = self.answer()

    def answer(self) -> int:
        """Return the server's next answer: first the process id, then the exit code."""
        found = self.connection.recv(ANSWER, socket.MSG_WAITALL)
        if not found:
            raise RuntimeError("the server of forks has ended")
        return int(found)

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None and select.select([self.connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Return the exit code when it has ended."""
        if self.returncode is None:
            self.returncode = self.answer()
            self.connection.close()
        return self.returncode

    def communicate(self) -> tuple[str, None]:
        """Return what is printed up to the end."""
        with self.stdout:
            printed = self.stdout.read()
        self.wait()
        return printed, None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def server(folder: str, preloaded: str, process: int, environment: dict[str, str] | None = None) -> str:
    """Return the address of the server in a folder that has this preloaded, which the first who asks for it starts.

    preloaded  snakemake; light, jax: what scripts import; warm-LIBRARY: what programs of tests/warm.py do
    process    with which it ends
    """
    address = f"{folder}/{preloaded}"
    with open(f"{address}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(address):
            start(address, process, preloaded, environment)
    return address


# Of the Python that `python_of` makes, at every start.
CUSTOMIZE = """
import os, sys
_, first, second, *_ = [*sys.orig_argv, "", ""]
if (first, second) == ("-m", "snakemake") or os.path.basename(first) == "snakemake" or "/.snakemake/scripts/" in first:
    sys.path.insert(0, {tests!r})
    import forked
    forked.client({folder!r}, {steady!r}, {process!r}, {environment!r})
    sys.path.pop(0)
"""


def python_of(folder: str, steady: bool, process: int, environment: dict[str, str]) -> str:
    """Return a Python with the packages of this one, in which Snakemake and the scripts of its jobs are forks.

    folder       of the server of Snakemake; those of the scripts are in the one above
    steady       whether the scripts of the folders in which Snakemake runs stay as they are, see Process
    process      with which the servers end
    environment  in which they start
    """
    place, environment = Path(folder, "python"), environment | ONE_THREAD
    installed = sysconfig.get_path("purelib")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            packages.mkdir(parents=True)
            (place / "bin").mkdir()
            (place / "pyvenv.cfg").write_text(
                f"home = {os.path.dirname(sys._base_executable)}\ninclude-system-site-packages = false\n"
            )
            (place / "bin/python").symlink_to(sys._base_executable)
            (packages / "packages.pth").write_text(f"import site; site.addsitedir({installed!r})\n")
            (packages / "sitecustomize.py").write_text(CUSTOMIZE.format(tests=str(TESTS), **locals()))
    return str(place / "bin/python")


def client(folder: str, steady: bool, process: int, environment: dict[str, str]) -> None:
    """Be what this process's arguments name, in a fork: pass signals on, and end as it does.

    Return where this process has to be that itself.
    """
    _, program, *arguments = sys.orig_argv
    job = {"folder": os.getcwd(), "environment": dict(os.environ), "python": sys.executable}
    if "/.snakemake/scripts/" in program:
        if not alike(environment, job["environment"]):
            return
        with open(program, "rb") as file:
            script = file.read()
        # A script begins with the params of its rule, which have the name of the environment, see `code_digest`.
        preloaded = "jax" if re.search(rb"\.py jax [0-9a-f]+", script) else "light"
        job["arguments"] = [program]
        address = server(os.path.dirname(folder), preloaded, process, environment)
    else:
        job["arguments"] = arguments[1:] if program == "-m" else arguments
        job["scripts"] = os.path.abspath("scripts") if steady and os.path.isdir("scripts/tpulm") else None
        address = server(folder, "snakemake", process, environment)
    running = Process(address, job, (0, 1, 2))
    for passed in (signal.SIGTERM, signal.SIGINT):
        signal.signal(passed, lambda number, _: os.killpg(running.pid, number))
    code = running.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


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
    log = f"{address}.log"  # not this process's own output, which would stay open as long as the server lives
    # A child of none of the jobs, which a scheduler ends with all their children.
    launch = ["sh", "-c", '"$@" > "$0" 2>&1 < /dev/null & echo $!', log, *command]
    place = os.path.dirname(address)  # not that of a workflow, whose processes are found by it
    done = subprocess.run(
        launch, stdout=subprocess.PIPE, start_new_session=True, env=environment, cwd=place, check=True
    )
    while not os.path.exists(address):
        if has_ended(int(done.stdout)):
            raise RuntimeError(f"{address} ended before it began: {Path(log).read_text()[-2000:]}")
        time.sleep(0.05)


def has_ended(process: int) -> bool:
    """Return whether a process is gone, or waits for its parent to ask how it ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def serve(address: str, process: int, preloaded: str) -> None:
    """Run what is asked for, each in a process of its own."""
    sys.path.remove(str(TESTS))
    program = preload(preloaded)
    gc.collect()
    gc.freeze()  # no fork looks for garbage among what was imported
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
        _, descriptors, *_ = socket.recv_fds(connection, 1, 3)
        with connection.makefile() as request:
            job = json.load(request)
        if job.get("scripts"):
            read_code(job["scripts"])
        if os.fork() == 0:
            listener.close()
            supervise(connection, job, descriptors, program)
        connection.close()
        close(descriptors)


def close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def supervise(connection: socket.socket, job: dict, descriptors: list[int], program: Callable) -> None:
    """Run a job and answer with its exit code; kill it and what it runs when nobody waits for it any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        connection.close()
        be(job, descriptors, program)
    close(descriptors)
    with contextlib.suppress(OSError):
        connection.sendall(b"%*d" % (ANSWER, child))
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(connection, 0)  # only whether it was closed
    if ended not in dict(poll.poll()):
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        connection.sendall(b"%*d" % (ANSWER, code))
    finally:
        os._exit(0)


def preload(what: str) -> Callable:
    """Import what is used by every start of Snakemake, or by the jobs of an environment; return what a fork then does.

    Nothing of this project, but for programs of tests/warm.py: the code of a workflow may be another, and is its own.
    """
    if what.startswith("warm-"):
        sys.path.insert(0, str(TESTS))
        warm = importlib.import_module("warm")
        sys.path.pop(0)
        warm.preload(what.partition("-")[2])
        return warm.execute
    if what == "snakemake":
        importlib.import_module("snakemake.cli").get_argument_parser()  # finds the plugins, too
        importlib.import_module("snakemake.storage")
        importlib.import_module("ruamel.yaml")
        importlib.import_module("kubernetes.config.kube_config")  # 700 modules, see `snakemake` below
        for name in ("fsspec", "jinja2.sandbox", "smart_open"):
            importlib.import_module(name)
        return snakemake
    for name in ("snakemake.iocontainers", "snakemake.logging", "numpy", "pyarrow.parquet", "safetensors.numpy"):
        importlib.import_module(name)
    if what == "light":
        importlib.import_module("pyarrow.compute")
        os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # as tpulm.core.bucket has it
        importlib.import_module("gcsfs")
        return script
    sys.path.insert(0, str(TESTS.parent / "scripts"))
    importlib.import_module("tpulm.training.runtime").start(1)
    importlib.import_module("keras_hub")
    sys.path.pop(0)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tpulm"]:
        del sys.modules[name]
    return script


@cache
def read_code(folder: str) -> None:
    """Import the modules that the rules import, read the schema, and follow the imports of the scripts."""
    sys.path.insert(0, folder)
    of_workflow = ("keeping", "pace", "publishing", "reasons", "resources", "start", "terminal")
    for name in ("corpus.files", "corpus.sources", *(f"workflow.{module}" for module in of_workflow)):
        importlib.import_module(f"tpulm.{name}")
    importlib.import_module("tpulm.config.reading").schema()
    imported_files = importlib.import_module("tpulm.core.code_digest").imported_files
    for script in Path(folder).glob("*/*.py"):
        imported_files(script.relative_to(folder).as_posix())
    sys.path.remove(folder)


def be(job: dict, descriptors: list[int], program: Callable) -> None:
    """Be the process of a job: a program that is given the job."""
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    close(set(descriptors) - {0, 1, 2})
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where what runs the tests ignores it
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
    program = Path(sys.executable).with_name("snakemake")
    sys.executable = job["python"]
    sys.argv = [str(program), *job["arguments"]]
    sys.orig_argv = [sys.executable, *sys.argv]  # for a Snakemake that starts itself anew
    folders = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [str(program.parent), *folders, *sys.path]
    cli = importlib.import_module("snakemake.cli")
    if folders:  # there may be plugins
        cli.ExecutorPluginRegistry().collect_plugins()
    kubernetes = importlib.import_module("kubernetes.config.kube_config")  # which reads it when it is imported
    kubernetes.KUBE_CONFIG_DEFAULT_LOCATION = os.environ.get("KUBECONFIG", "~/.kube/config")
    cli.main()


def script(job: dict) -> None:
    sys.executable = job["python"]
    (path,) = sys.argv = job["arguments"]
    sys.path[:] = [str(Path(path).parent), *sys.path]
    try:
        runpy.run_path(path, run_name="__main__")
    finally:  # as Python ends
        threading._shutdown()
        atexit._run_exitfuncs()


if __name__ == "__main__":
    serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
