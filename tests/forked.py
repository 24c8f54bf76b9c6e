"""Snakemake in forks of a process that has imported it: a dry run takes a third of the processor time, or a sixth.

    python tests/forked.py serve ADDRESS PROCESS

serves at a socket for as long as a process lives; all processes of the tests have one server. Snakemake starts itself,
too, for the jobs of a scheduler and anew, and it starts scripts: `interpreter` makes a Python in which these are forks
as well.
"""

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
ANSWER = 16  # bytes
# Scripts that take seconds to import a library.
BESIDE = {
    "jax": {
        "train_base", "export_base", "evaluate_base", "train_finetune", "export_lora", "export_full", "export_merged",
        "evaluate_finetune", "generate", "train_mlm_jax",
    },
    "tensorflow": {"train_mlm_tensorflow"},
}  # fmt: skip
# Those that take one library or the other, or start devices in a way of their own.
ALONE = {"export_mlm", "evaluate_mlm", "fill_mask", "plan_training"}


class Process:
    """A program that a server runs, with what subprocess.Popen offers. It is killed where this process ends before.

    job          script, or None for `snakemake`; arguments; folder; environment; scripts, the folder of the workflow's
                 scripts where they stay as they are while the server lives: they are read once for all runs, and in
                 several such folders have to be the same; None otherwise; python, in which it starts others
    descriptors  its standard input, output and error; without them, `stdout` is where to read what it prints
    """

    def __init__(self, address: str, job: dict, descriptors: tuple[int, int, int] | None = None):
        """Start it, as the leader of a process group."""
        self.stdout, self.returncode = None, None
        self.args = [job["script"] or "snakemake", *job["arguments"]]
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
        """Kill the process, unless it has ended."""
        self.send_signal(signal.SIGKILL)


# Of the Python that `interpreter` makes, at every start.
CUSTOMIZE = """
import os, sys
_, first, second, *_ = [*sys.orig_argv, "", ""]
if (first, second) == ("-m", "snakemake") or os.path.basename(first) == "snakemake" or "/.snakemake/scripts/" in first:
    sys.path.insert(0, {tests!r})
    import forked
    forked.relay({address!r}, {steady!r})
"""


def interpreter(address: str, steady: bool) -> None:
    """Make ADDRESS.python/bin/python: a Python with the packages of this one, whose Snakemake is forked by the server.

    steady  whether the scripts of the folders in which it runs stay as they are, see Process; they are forked, too
    """
    import sysconfig

    folder = Path(f"{address}.python")
    packages = folder / sysconfig.get_path("purelib", vars={"base": ""}).lstrip("/")
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").write_text(f"home = {os.path.dirname(sys._base_executable)}\n")
    (folder / "bin/python").symlink_to(sys._base_executable)
    (packages / "packages.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    code = CUSTOMIZE.format(tests=str(TESTS), address=address, steady=steady)
    (packages / "sitecustomize.py").write_text(code)


def relay(address: str, steady: bool) -> None:
    """Be the program that this process was to be, which a server runs: pass signals on, and end as it does."""
    _, program, *arguments = sys.orig_argv
    script = program if "/.snakemake/scripts/" in program else None
    name = script and script.split(".")[-2]
    if program == "-m":
        arguments = arguments[1:]
    scripts = os.path.abspath("scripts") if steady and os.path.isdir("scripts/tpulm") else None
    if script and (name in ALONE or not scripts):
        return
    job = {"script": script, "arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    job |= {"scripts": scripts, "python": sys.executable}
    library = next((library for library, scripts in BESIDE.items() if name in scripts), None)
    process = Process(beside(library, address) if library else address, job, (0, 1, 2))
    for passed in (signal.SIGTERM, signal.SIGINT):
        signal.signal(passed, lambda number, _: os.killpg(process.pid, number))
    code = process.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def beside(library: str, address: str) -> str:
    """Return the address of a server that has imported a library: a fork of that of Snakemake, made for the first."""
    found = f"{address}.{library}"
    if not os.path.exists(found):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            socket.send_fds(connection, [b"\0"], [0, 1, 2])
            connection.sendall(json.dumps({"library": library}).encode())
    while not os.path.exists(found):
        time.sleep(0.05)
    return found


def start(address: str, process: int) -> None:
    """Start a server that lives as long as a process. Raises RuntimeError where it ends before it serves."""
    import subprocess

    command = [sys.executable, __file__, "serve", address, str(process)]
    log = Path(f"{address}.log")
    with open(log, "w") as said:  # not this process's own output, which would stay open as long as the server lives
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
    while not os.path.exists(address):
        if server.poll() is not None:
            raise RuntimeError(f"the server of Snakemake ended before it began: {log.read_text()[-2000:]}")
        time.sleep(0.05)


def serve(address: str, process: int) -> None:
    """Run what is asked for, each in a process of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that supervise
    listener, libraries = socket.socket(socket.AF_UNIX), set()
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
        library = job.get("library")
        if job.get("scripts") and not job["script"]:
            read_code(job["scripts"])
        if library not in libraries and os.fork() == 0:
            listener.close()
            if not library:
                supervise(connection, job, descriptors)
            close([connection.detach(), *descriptors])
            preload_library(library)
            serve(f"{address}.{library}", process)
        libraries |= {library} - {None}
        connection.close()
        close(descriptors)


def close(descriptors: list[int]) -> None:
    """Close file descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def supervise(connection: socket.socket, job: dict, descriptors: list[int]) -> None:
    """Run a job and answer with its exit code; kill it and what it runs when nobody waits for it any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        connection.close()
        program(job, descriptors)
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


def preload() -> None:
    """Import what every start of Snakemake imports, and find its plugins; and what scripts import that use a bucket."""
    importlib.import_module("snakemake.cli").get_argument_parser()
    importlib.import_module("snakemake.storage")
    importlib.import_module("ruamel.yaml")
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # as tpulm.core.bucket has it
    importlib.import_module("gcsfs")


def preload_library(library: str) -> None:
    """Import what trainers import."""
    sys.path.insert(0, str(TESTS))
    importlib.import_module("warm").preload(library)
    sys.path.remove(str(TESTS))


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


def program(job: dict, descriptors: list[int]) -> None:
    """Be the process of a program."""
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    close(set(descriptors) - {0, 1, 2})
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where what runs the tests ignores it
    script = job["script"] or str(Path(sys.executable).with_name("snakemake"))
    sys.argv = [script, *job["arguments"]]
    sys.executable = job["python"]
    sys.orig_argv = [sys.executable, *sys.argv]  # for a Snakemake that starts itself anew
    folders = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [os.path.dirname(script), *folders, *sys.path]
    code = 1
    try:
        if job["script"]:
            try:
                importlib.import_module("runpy").run_path(script, run_name="__main__")
            finally:
                threading._shutdown()
                atexit._run_exitfuncs()
        else:
            cli = importlib.import_module("snakemake.cli")
            if folders:  # there may be plugins
                cli.ExecutorPluginRegistry().collect_plugins()
            kubernetes = importlib.import_module("kubernetes.config.kube_config")  # which reads it when it is imported
            kubernetes.KUBE_CONFIG_DEFAULT_LOCATION = os.environ.get("KUBECONFIG", "~/.kube/config")
            cli.main()
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
    sys.path.remove(str(TESTS))
    preload()
    serve(sys.argv[2], int(sys.argv[3]))
