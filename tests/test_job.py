"""What every script says, and what it does with a signal."""

import errno
import socket
import subprocess
import sys

import pytest
from conftest import ROOT
from tpulm.core import processes
from tpulm.core.job import fault_of_machine

pytestmark = pytest.mark.unit

# The signal comes while Python runs a finalizer, and then while a library's `except Exception` could take it.
STOPPED = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts in the background ignore it
sys.path.insert(0, sys.argv[1])
from tpulm.core.job import job

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.Signals[sys.argv[3]])

with job("job.log", "test") as say:
    if sys.argv[2] == "finalizer":
        del (held := [Finalized()])[0]
    else:
        try:
            os.kill(os.getpid(), signal.Signals[sys.argv[3]])
        except Exception:
            pass
    time.sleep(300)
    say("went on")
"""


@pytest.mark.parametrize(("where", "name"), [("finalizer", "SIGTERM"), ("finalizer", "SIGINT"), ("library", "SIGTERM")])
def test_a_signal_is_heard_wherever_it_comes(tmp_path, where, name):
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, str(ROOT / "scripts"), where, name],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    log = (tmp_path / "job.log").read_text()
    assert log.startswith(f"stopped by {name}; ") and "the next snakemake resumes this job" in log
    assert log.count("\n") == 1 and done.stderr == f"[test] {log}"


QUOTES = """
import sys
sys.path.insert(0, sys.argv[1])
from tpulm.core.errors import UserError
from tpulm.core.job import job

with job("job.log", "mlm x") as say:
    say("Return the [MASK]  ->  list, \\n, \\r, \u2028, value")
    raise UserError("the disk\\nis full.")
"""


def test_a_message_is_a_line_whatever_it_quotes(tmp_path):
    command = [sys.executable, "-c", QUOTES, str(ROOT / "scripts")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    lines = ["Return the [MASK]  ->  list, \\n, \\n, \\n, value", "error: the disk\\nis full."]
    assert (done.returncode, done.stderr.splitlines()) == (1, [f"[mlm x] {line}" for line in lines])
    assert (tmp_path / "job.log").read_text().splitlines() == lines


def test_only_what_the_operating_system_says_is_a_fault_of_the_machine():
    """A hub that refuses a download says "Permission denied", too; safetensors has no errno for a full disk."""
    refused = RuntimeError("403: Permission denied: this model is gated")
    full = RuntimeError("I/O error: No space left on device (os error 28)")
    assert fault_of_machine(refused) is None
    assert fault_of_machine(PermissionError(errno.EACCES, "x", "results/x")) == "Permission denied: results/x"
    assert fault_of_machine(full).startswith("No space left on device: I/O error")


def test_a_port_for_several_processes_is_kept_until_they_have_ended():
    with processes.reserved_port() as port:
        for family in (socket.AF_INET, socket.AF_INET6):
            with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
                other.bind(("", port))
        with socket.socket(socket.AF_INET6) as coordinator:  # as gRPC binds it
            coordinator.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            coordinator.bind(("", port))


HELD = """
import subprocess, sys
held = bytearray(b"x") * 300_000_000
print(subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, text=True, check=True).stdout)
"""
PEAK = f"""
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
from tpulm.core.job_record import peak_memory
before = peak_memory()
held = bytearray(b"x") * 50_000_000
print(before, peak_memory())
"""


def test_the_memory_of_a_job_is_not_that_of_the_program_that_started_it():
    done = subprocess.run([sys.executable, "-c", HELD, PEAK], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before < 100e6 and 50e6 < after < before + 70e6
