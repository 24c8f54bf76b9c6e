"""Snakemake in forks of a process that has imported it: a dry run takes a third of the processor time, or a sixth.

    python tests/forked.py serve ADDRESS PROCESS
    python tests/forked.py run ADDRESS ARGUMENT...

The first serves at a socket for as long as a process lives; all processes of the tests have one server. The second is
`snakemake` with these arguments.
"""

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


def run(address: str, job: dict, output: int) -> int:
    """Have a server run `snakemake`; return its exit code. Where this process ends before, it is killed.

    job     arguments; folder; environment; scripts, their folder where they stay as they are while the server lives:
            they are read once for all runs, and in several such folders have to be the same; None otherwise
    output  the file that takes what is printed
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"\0"], [output])
        connection.sendall(json.dumps(job).encode())
        connection.shutdown(socket.SHUT_WR)
        return int(connection.recv(16))


def start(address: str, process: int) -> None:
    """Start a server that lives as long as a process. Raises RuntimeError where it ends before it serves."""
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
    sys.path.remove(str(TESTS))
    preload()
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
        _, (output,), *_ = socket.recv_fds(connection, 1, 1)
        with connection.makefile() as request:
            job = json.load(request)
        if job["scripts"]:
            read_code(job["scripts"])
        if os.fork() == 0:
            listener.close()
            supervise(connection, job, output)
        connection.close()
        os.close(output)


def supervise(connection: socket.socket, job: dict, output: int) -> None:
    """Run a job and answer with its exit code; kill it and what it runs when nobody waits for it any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        connection.close()
        snakemake(job["arguments"], job["folder"], job["environment"], output)
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


def snakemake(arguments: list[str], folder: str, environment: dict[str, str], output: int) -> None:
    """Be the process of one run."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
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
    what, place, *rest = sys.argv[1:]
    if what == "serve":
        serve(place, int(rest[0]))
    here = {"arguments": rest, "folder": os.getcwd(), "environment": dict(os.environ), "scripts": None}
    sys.exit(run(place, here, 1))
