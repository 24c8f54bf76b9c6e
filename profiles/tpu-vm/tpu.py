#!/usr/bin/env python3
"""Runs the jobs of a Snakemake workflow on Cloud TPU VMs through `gcloud`; README.md beside this says how to use it.

Snakemake's cluster-generic executor calls `submit`, `status` and `cancel`. They only write and read the folder of a job
under .snakemake/tpu-vm/jobs; the work is done by one keeper, a process that `submit` starts beside Snakemake:

- a job that asks for no TPU runs on this machine;
- the jobs of a run that ask for the same slice run one after another on one queued resource, which the keeper creates,
  waits for, sets up, replaces when it is preempted, and deletes when it idles;
- when Snakemake ends, however it does, the keeper ends what still runs, deletes all, and ends.

Each job runs under `work`, which ends it when its standard input ends: that of a job on a TPU VM is held, through ssh,
by the keeper. So no job outlives the keeper, and a keeper that was killed leaves nothing but resources, which the next
one finds by their names and deletes before it runs anything.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import queue
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

STATE = Path(".snakemake") / "tpu-vm"
JOBS = STATE / "jobs"
IDENTITY = STATE / "folder"  # eight digits that tell this folder's resources from others'
LOCK = STATE / "keeper.lock"  # held by the keeper; holds the process id of its Snakemake
PROFILE = Path(os.path.abspath(__file__)).parent

# What the user of the profile may set in the environment; None where there is no default.
SETTINGS = {
    "TPU_PROJECT": None,
    "TPU_ZONE": None,
    "TPU_MOUNT": None,
    "TPU_TIER": "spot",
    "TPU_ENVIRONMENT": "tpu",
    "TPU_RUNTIME": "",
    "TPU_PREFIX": "snakemake",
    "TPU_NETWORK": "",
    "TPU_SUBNETWORK": "",
    "TPU_INTERNAL_IPS": "",
    "TPU_SERVICE_ACCOUNT": "",
    "TPU_IDLE_MINUTES": "5",
    "TPU_MAX_HOURS": "24",
    "TPU_POLL_SECONDS": "15",
}
CHOICES = {"TPU_TIER": ("spot", "on-demand", "flex-start"), "TPU_ENVIRONMENT": ("tpu", "tpu-tensorflow")}
# Google's images for JAX and PyTorch, by kind of TPU.
RUNTIMES = {"v5e": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e"}
OLDER_RUNTIME = "tpu-ubuntu2204-base"

ATTEMPTS = 6  # of a call of gcloud that fails for a reason that may pass
PREEMPTIONS = 20  # of one job, before it is given up: a segment that outlasts its slices so often never ends
LOST = 5  # connections of one job to a slice that is well
CALL_SECONDS = 600  # that one call of gcloud may take
SETUP_SECONDS = 3600  # that setting up a worker may take
# What no repetition mends, in what gcloud says.
PERMANENT = re.compile(
    r"PERMISSION_DENIED|INVALID_ARGUMENT|UNAUTHENTICATED|gcloud auth login|unrecognized arguments|invalid choice"
    # Not the quota of requests per minute, which opens with "Quota exceeded for quota metric".
    r"|[Qq]uota (limit )?'|Invalid value|required property|argument --|TPU_MOUNT has to"
)
# gcloud's own words only: a command that it runs on a worker may not find this and that.
MISSING = re.compile(r"^ERROR: \(gcloud.*(NOT_FOUND|was not found)", re.MULTILINE)
PRESENT = re.compile(r"ALREADY_EXISTS|already exists")
ENDED = "tpu-vm: the job ended with "  # the last line of `work`, and how it tells the end of a job from a lost VM


class Refused(Exception):
    """What ends a job: one sentence for the user."""


class Missing(Exception):
    """There is no such resource."""


class Stopped(Exception):
    """The keeper is to end, or the job was cancelled."""


def main(arguments: list[str]) -> None:
    """Run one of the commands; a mistake of the user's ends in one sentence and exit code 1."""
    commands = {
        "preflight": preflight,
        "submit": submit,
        "status": status,
        "cancel": cancel,
        "keep": keep,
        "work": work,
        "launch": launch,
        "list": list_resources,
        "clean": clean,
    }
    parser = argparse.ArgumentParser(description="Run jobs on Cloud TPU VMs; see README.md of the profile.")
    parser.add_argument("command", choices=commands)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parsed = parser.parse_args(arguments)
    try:
        commands[parsed.command](*parsed.arguments)
    except Refused as refused:
        sys.exit(f"error: {refused}")


# What Snakemake calls


def preflight() -> None:
    """Check settings, and what the jobs ask for that standard input lists: see scripts/lib/preflight.py."""
    check_settings()
    for request in json.load(sys.stdin)["jobs"]:
        asked(request)


def submit(jobscript: str) -> None:
    """Hand a job to the keeper, started here if there is none; print the job's id."""
    script = Path(jobscript).read_text()
    properties = json.loads(re.search(r"^# properties = (.*)$", script, re.MULTILINE)[1])
    job = asked(properties)
    check_settings()
    ensure_keeper(os.getppid())
    name = f"{job['rule']}-{properties['jobid']}-{os.urandom(3).hex()}"
    folder = JOBS / f".{name}"
    folder.mkdir()
    (folder / "script").write_text(script)
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "status").write_text("running")
    folder.rename(JOBS / name)
    print(name)


def asked(properties: dict) -> dict:
    """Return what a job asks for, from what Snakemake says of it.

    run is told by the folder of the job's log, logs/STAGE/RUN: the jobs of one run share it.
    run_hosts are the hosts that the run trains on, also where this job, such as an evaluation, takes one of them.
    Raises Refused where the accelerator is no TPU slice, or has another number of hosts.
    """
    resources, rule = properties["resources"], properties.get("rule") or properties["groupid"]
    where, accelerator = properties.get("where", f"rule {rule}"), resources.get("accelerator")
    if accelerator and not re.fullmatch(r"v(2|3|4|5e|5p|6e)-[1-9]\d*", accelerator):
        raise Refused(
            f"{where} asks for the accelerator {accelerator}, and profiles/tpu-vm has TPU slices only, such as "
            "v5e-8: change resources.accelerator of the run, or use another profile."
        )
    log = (properties.get("log") or [rule])[0]
    run = "-".join(Path(log).parent.parts[1:]) or rule
    hosts = resources.get("hosts") or 1
    run_hosts = resources.get("run_hosts") or hosts
    if rule == "train_mlm_tensorflow" and accelerator and setting("TPU_ENVIRONMENT") != "tpu-tensorflow":
        raise Refused(
            f"{run} trains with TensorFlow on a {accelerator}, and TPU_ENVIRONMENT is {setting('TPU_ENVIRONMENT')}; "
            "set it to tpu-tensorflow, or let the run have `backend: jax`."
        )
    if accelerator:
        check_hosts(run, run_hosts, accelerator, slice_hosts(accelerator))
    return {
        "rule": rule,
        "accelerator": accelerator,
        "run": run,
        "hosts": hosts,
        "run_hosts": run_hosts,
        "minutes": resources.get("runtime"),
        "threads": properties["threads"],
    }


def slice_hosts(accelerator: str) -> int:
    """Return how many hosts a slice has, as Google documents it: one up to a size, and then one for four chips."""
    kind, size = accelerator.split("-")
    # The sizes of v5e and v6e count chips, those of the others cores, of which a chip has two.
    return 1 if int(size) <= 8 else int(size) // (4 if kind in ("v5e", "v6e") else 8)


def check_hosts(run: str, hosts: int, accelerator: str, found: int) -> None:
    """Raise Refused where a run trains on another number of hosts than its slice has: it would use a part of it."""
    if hosts != found:
        raise Refused(f"resources.hosts of {run} is {hosts}, and a {accelerator} has {found} hosts; allowed: {found}.")


def status(name: str) -> None:
    """Print whether a job is running, or ended with success or failed; as failed, too, when its keeper is gone."""
    path = JOBS / name / "status"
    found = path.read_text() if path.exists() else "lost"
    with open(LOCK, "a") as lock:
        if found == "running" and taken(lock.fileno()):
            found = path.read_text()  # the keeper may have ended between the two looks
            found = "lost" if found == "running" else found
    if found == "lost":
        print("error: the keeper of the TPUs is gone; run snakemake again to go on.", file=sys.stderr)
        found = "failed"
    print(found)


def cancel(*names: str) -> None:
    """Ask the keeper to end these jobs; Snakemake gives this command two seconds."""
    for name in names:
        with contextlib.suppress(OSError):
            (JOBS / name / "cancelled").touch()


# What the user calls


def list_resources() -> None:
    """Print name and state of each queued resource of this folder."""
    check_settings(work=False)
    found = own_resources()
    for name, state in found.items():
        print(name, state)
    if not found:
        place = f"{setting('TPU_ZONE')} of {setting('TPU_PROJECT')}"
        print(f"none whose name begins with {prefix()} in {place}", file=sys.stderr)


def clean() -> None:
    """Delete all queued resources of this folder, unless a keeper is at work here."""
    check_settings(work=False)
    STATE.mkdir(parents=True, exist_ok=True)
    with open(LOCK, "a") as lock:
        if not taken(lock.fileno()):
            raise Refused("a snakemake uses the TPUs of this folder; stop it, and they are deleted.")
        delete_all(own_resources())


# Settings and names


def setting(name: str) -> str:
    """Return a setting, or its default."""
    return os.environ.get(name) or SETTINGS[name] or ""


def number(name: str) -> float:
    """Return a setting that is a number. Raises Refused for another text."""
    try:
        return float(setting(name))
    except ValueError:
        raise Refused(f"{name} is {setting(name)!r}; allowed: a number.") from None


def check_settings(work: bool = True) -> None:
    """Raise Refused where a setting is missing or wrong, or there is no gcloud.

    work  whether workers are wanted: to look and to delete, TPU_MOUNT is not
    """
    needed = [name for name, default in SETTINGS.items() if default is None and (work or name != "TPU_MOUNT")]
    missing = [name for name in needed if not setting(name)]
    if missing:
        names = " and ".join([", ".join(missing[:-1]), missing[-1]] if missing[1:] else missing)
        raise Refused(f"profiles/tpu-vm needs {names} in the environment; its README.md says what that means.")
    for name, allowed in CHOICES.items():
        if setting(name) not in allowed:
            raise Refused(f"{name} is {setting(name)}; allowed: {', '.join(allowed)}.")
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,19}", setting("TPU_PREFIX")):
        raise Refused(
            f"TPU_PREFIX is {setting('TPU_PREFIX')}; allowed: up to 20 small letters, digits, hyphens, a letter first."
        )
    for name in ("TPU_IDLE_MINUTES", "TPU_MAX_HOURS", "TPU_POLL_SECONDS"):
        number(name)
    if not shutil.which("gcloud"):
        raise Refused("gcloud is not on PATH; install the Google Cloud CLI.")


def prefix() -> str:
    """Return how the names of this folder's resources begin, whatever machine works in it, and of no other folder's."""
    if not IDENTITY.exists():
        STATE.mkdir(parents=True, exist_ok=True)
        new = STATE / f".folder-{os.getpid()}"
        new.write_text(os.urandom(4).hex())
        with contextlib.suppress(FileExistsError):  # of two processes at once, the first gives the name
            os.link(new, IDENTITY)
        new.unlink()
    return f"{setting('TPU_PREFIX')}-{IDENTITY.read_text()}-"


def resource_name(run: str, accelerator: str) -> str:
    """Return a new name for a resource, at most 63 characters; a name is never used twice."""
    return f"{prefix()}{re.sub('[^a-z0-9]+', '-', run.lower())[:20].strip('-')}-{accelerator[:6]}-{os.urandom(3).hex()}"


def software() -> str:
    """Return the folder of a worker's software, for sh on the worker: named by what it is made from."""
    names = ("bootstrap.txt", f"{setting('TPU_ENVIRONMENT')}.txt", "mend_transformers.py")
    sources = [Path("envs") / name for name in names]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    return f"$HOME/.cache/tpu-vm/{digest}"


# gcloud


def place() -> list[str]:
    """Return the arguments that say where; --quiet, so that nothing is asked."""
    return [f"--zone={setting('TPU_ZONE')}", f"--project={setting('TPU_PROJECT')}", "--quiet"]


def create_arguments(name: str, accelerator: str) -> list[str]:
    """Return the arguments of gcloud that create a queued resource with one node of its own name."""
    kind, size = accelerator.split("-")
    tier = setting("TPU_TIER")
    optional = {
        "--network": setting("TPU_NETWORK"),
        "--subnetwork": setting("TPU_SUBNETWORK"),
        "--service-account": setting("TPU_SERVICE_ACCOUNT"),
    }
    return [
        *(["alpha"] if tier == "flex-start" else []),
        *("compute", "tpus", "queued-resources", "create", name),
        f"--node-id={name}",
        f"--accelerator-type={'v5litepod' if kind == 'v5e' else kind}-{size}",
        f"--runtime-version={setting('TPU_RUNTIME') or RUNTIMES.get(kind, OLDER_RUNTIME)}",
        # What the trainers may do with it is for the service account to say.
        "--scopes=https://www.googleapis.com/auth/cloud-platform",
        *(f"{flag}={value}" for flag, value in optional.items() if value),
        *(["--internal-ips"] if setting("TPU_INTERNAL_IPS") else []),
        *(["--spot"] if tier == "spot" else []),
        *(
            ["--provisioning-model=flex-start", f"--max-run-duration={int(3600 * number('TPU_MAX_HOURS'))}s"]
            if tier == "flex-start"
            else []
        ),
        *place(),
    ]


def ssh_arguments(node: str, worker: int | str, command: str) -> list[str]:
    """Return the arguments of gcloud that run a line of sh on one worker.

    One worker a call: gcloud reaches several at once only with a key in an ssh agent.
    """
    # A network may forget a connection on which nothing is said for minutes, and neither end would hear of it.
    alive = "--ssh-flag=-oServerAliveInterval=30"
    internal = ["--internal-ip"] if setting("TPU_INTERNAL_IPS") else []
    address = ["compute", "tpus", "tpu-vm", "ssh", node, f"--worker={worker}", alive, *internal]
    return [*address, *place(), f"--command={command}"]


def gcloud(arguments: list[str], stop: threading.Event | None = None, seconds: float = CALL_SECONDS) -> str:
    """Call gcloud and return what it prints; a failure that may pass is tried again, later and later.

    Raises Missing where there is no such resource, Refused for what does not pass, Stopped when `stop` is set.
    """
    said, pause = "", number("TPU_POLL_SECONDS") / 15
    what = " ".join(["gcloud", *arguments[: arguments.index("--quiet")]])
    for attempt in range(ATTEMPTS):
        if attempt and (stop or threading.Event()).wait(pause * 2**attempt):
            raise Stopped
        # A request to create is not broken off: it could succeed after all, when nobody looks any more.
        code, printed, said = call(arguments, None if "create" in arguments else stop, seconds)
        if code == 0:
            return printed
        missing = MISSING.search(said)
        if missing and not {"create", "list"} & set(arguments):
            raise Missing
        if PRESENT.search(said) and "create" in arguments:
            return ""  # an earlier attempt got through, and its answer did not
        if missing or PERMANENT.search(said):
            raise Refused(f"`{what}` failed: {last_line(said)}")
    raise Refused(f"`{what}` failed {ATTEMPTS} times; the last time: {last_line(said)}")


def call(arguments: list[str], stop: threading.Event | None, seconds: float) -> tuple[int, str, str]:
    """Call gcloud once; return its exit code and what it printed to either stream. Raises Stopped."""
    process = subprocess.Popen(
        ["gcloud", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + seconds
    while True:
        try:
            printed, said = process.communicate(timeout=0.2)
            return process.returncode, printed, said
        except subprocess.TimeoutExpired:
            stopped = stop is not None and stop.is_set()
            if stopped or time.monotonic() > deadline:
                # With its ssh; and no wait for the ends of its streams, which others may still hold.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if stopped:
                    raise Stopped from None
                return 1, "", f"no answer within {seconds} seconds"


def last_line(said: str) -> str:
    """Return the line with the error in what gcloud said, as a sentence."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no reason given"]
    found = next((line for line in lines if line.upper().startswith("ERROR")), lines[-1])
    return found.rstrip(".")[:400] + "."


def own_resources(stop: threading.Event | None = None) -> dict[str, str]:
    """Return the state of each queued resource of this folder, by name."""
    printed = gcloud(["compute", "tpus", "queued-resources", "list", *place(), "--format=json"], stop)
    found = {entry["name"].split("/")[-1]: entry.get("state", {}).get("state", "") for entry in json.loads(printed)}
    return {name: state for name, state in found.items() if name.startswith(prefix())}


def describe(kind: str, name: str, stop: threading.Event | None = None) -> dict:
    """Return what Google says of a queued resource (`queued-resources`) or a node (`tpu-vm`). Raises Missing."""
    return json.loads(gcloud(["compute", "tpus", kind, "describe", name, *place(), "--format=json"], stop))


def delete(name: str) -> None:
    """Delete a queued resource with its node, and see that it is gone: some states refuse it for a while."""
    refused = None
    for attempt in range(3 * ATTEMPTS):
        time.sleep(min(60, number("TPU_POLL_SECONDS") / 15 * attempt))
        try:
            gcloud(["compute", "tpus", "queued-resources", "delete", name, "--force", *place()])
            describe("queued-resources", name)
        except Missing:
            return
        except Refused as error:
            refused = error
    told = " ".join(["gcloud compute tpus queued-resources delete", name, "--force", *place()])
    raise Refused(f"{name} is still there and may cost money; delete it by hand: `{told}`. {refused or ''}".strip())


def delete_all(names: Iterable[str]) -> None:
    """Delete resources that were left behind. Raises Refused, once all have had their turn, for those that resist."""
    refusals = []
    for name in names:
        say(f"deleting {name}, which was left behind")
        try:
            delete(name)
        except Refused as refused:
            refusals.append(str(refused))
    if refusals:
        raise Refused(" ".join(refusals))


# The keeper


def taken(descriptor: int) -> bool:
    """Return whether a lock could be taken at once."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ensure_keeper(controller: int) -> None:
    """See that this Snakemake has a keeper; wait for that of an earlier one to end."""
    STATE.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o664)
    told = False
    while not taken(descriptor):
        if os.pread(descriptor, 20, 0).decode() == str(controller):
            return
        if not told:
            say("waiting until the TPUs of the snakemake before are deleted")
        told = True
        time.sleep(0.5)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(controller).encode(), 0)
    shutil.rmtree(JOBS, ignore_errors=True)
    JOBS.mkdir()
    # The lock goes with the descriptor. Not stdout: Snakemake waits until that of `submit` is closed.
    subprocess.Popen(
        [sys.executable, __file__, "keep", str(controller)], stdin=subprocess.DEVNULL, stdout=2, pass_fds=[descriptor],
        start_new_session=True,
    )  # fmt: skip


def say(text: str) -> None:
    """Tell the user, on the terminal if it is still there, and in a log."""
    with contextlib.suppress(OSError):
        print(f"[tpu-vm] {text}", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError), open(STATE / "log", "a") as log:
        print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=log)


def keep(controller: str) -> None:
    """Run the jobs of the Snakemake with this process id until it ends; then delete all."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=wait_for_end, args=(int(controller), stop), daemon=True).start()
    python, refusal = interpreter(int(controller)), None
    try:
        delete_all(own_resources(stop))
    except Refused as refused:
        refusal = str(refused)
    except Stopped:
        return
    here, slices, seen = Here(python), {}, set()
    try:
        while not stop.wait(0.2):
            new = [folder for folder in JOBS.glob("[!.]*") if folder.name not in seen]
            for folder in sorted(new, key=lambda folder: (folder / "script").stat().st_mtime_ns):  # as they came
                seen.add(folder.name)
                job = Job(folder)
                key = (job.run, job.accelerator)
                if not job.accelerator:
                    here.add(job)
                elif refusal:
                    job.fail(refusal)
                else:
                    if key not in slices:
                        slices[key] = Slice(*key, stop)
                    slices[key].jobs.put(job)
            here.start()
    finally:
        stop.set()
        for where in (here, *slices.values()):
            where.close()
        left = [name for used in slices.values() for name in (*used.left, used.name) if name]
        if left:
            names = " and ".join(left)
            say(f"error: {names} may still cost money; to delete it again: `python3 profiles/tpu-vm/tpu.py clean`.")
        elif slices:
            say("no TPU is left")


def wait_for_end(process: int, stop: threading.Event) -> None:
    """Set `stop` when a process has ended."""
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(process)], [], [])
    stop.set()


def interpreter(process: int) -> str:
    """Return the Python that Snakemake runs in: local jobs run in the same."""
    with contextlib.suppress(OSError):
        named = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0].decode()
        found = os.path.join(os.readlink(f"/proc/{process}/cwd"), named) if "/" in named else shutil.which(named)
        if found and os.access(found, os.X_OK):
            return found
    return sys.executable


class Job:
    """A job, by its folder: script, job.json, status, output; `cancelled` when it is to end."""

    def __init__(self, folder: Path):
        """Read what the job asks for."""
        self.folder, self.name = folder, folder.name
        asks = json.loads((folder / "job.json").read_text())
        self.accelerator, self.run, self.rule = asks["accelerator"], asks["run"], asks["rule"]
        self.hosts, self.run_hosts = asks["hosts"], asks["run_hosts"]
        self.minutes, self.threads = asks["minutes"], asks["threads"]

    def end(self, how: str) -> None:
        """Set the status, `success` or `failed`, for `status` to tell."""
        (self.folder / "status.new").write_text(how)
        os.replace(self.folder / "status.new", self.folder / "status")

    def fail(self, why: str) -> None:
        """Let the job fail with a sentence."""
        say(f"error: {self.name}: {why}")
        self.end("failed")

    def cancelled(self) -> bool:
        """Return whether the job is to end."""
        return (self.folder / "cancelled").exists()


class Run:
    """A job at work under `work`, here or on a TPU VM: its output kept, its progress forwarded."""

    def __init__(self, job: Job, command: list[str]):
        """Start it."""
        self.code = None  # the job's exit code; stays None where its place was lost
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
        self.reader = threading.Thread(target=self.read, args=(job,), daemon=True)
        self.reader.start()

    def read(self, job: Job) -> None:
        """Keep the output; forward the lines that the workflow's scripts write: those that open with [label]."""
        with open(job.folder / "output", "a", buffering=1) as output:
            for line in self.process.stdout:
                output.write(line)
                if line.startswith(ENDED):
                    self.code = int(line.removeprefix(ENDED))
                elif re.match(r"\[[a-z]", line):
                    with contextlib.suppress(OSError):
                        print(line, end="", file=sys.stderr, flush=True)
        self.process.wait()

    def ended(self, seconds: float = 0.2) -> bool:
        """Return whether it ended within this time."""
        self.reader.join(seconds)
        return not self.reader.is_alive()

    def end(self) -> None:
        """End it: `work` does when its input ends; where that takes too long, let go of it."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        if not self.ended(30):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.ended(5)


class Here:
    """The jobs of this machine: as many at a time as it has cores for their threads."""

    def __init__(self, python: str):
        """Run jobs in this Python."""
        self.python = python
        self.waiting: list[Job] = []
        self.running: dict[Job, Run] = {}
        self.cores = len(os.sched_getaffinity(0))

    def add(self, job: Job) -> None:
        """Take a job."""
        self.waiting.append(job)

    def start(self) -> None:
        """End what is over, start what there is room for."""
        for job, run in list(self.running.items()):
            if job.cancelled():
                run.end()
            if run.ended(0):
                del self.running[job]
                job.end("success" if run.code == 0 else "failed")
        busy = sum(job.threads for job in self.running)
        while self.waiting and (busy + self.waiting[0].threads <= self.cores or not busy):
            job = self.waiting.pop(0)
            self.running[job] = Run(job, [self.python, __file__, "work", str(job.folder)])
            busy += job.threads

    def close(self) -> None:
        """End all jobs."""
        for run in self.running.values():
            run.end()


class Slice:
    """The jobs of one run that ask for one kind of slice: one after another, on one resource as long as it lives."""

    def __init__(self, run: str, accelerator: str, stop: threading.Event):
        """Wait for jobs."""
        self.run, self.accelerator, self.stop = run, accelerator, stop
        self.jobs: queue.Queue[Job] = queue.Queue()
        self.name: str | None = None  # of the resource, while there may be one
        self.workers = 0  # its hosts, once it is set up
        self.left: list[str] = []  # what could not be deleted
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def close(self) -> None:
        """Wait until what was to be ended and deleted is; `stop` is set."""
        self.thread.join()

    def serve(self) -> None:
        """Run the jobs as they come; delete the resource when none has come for a while, and at the end.

        An error that no job can be told, such as a full disk where its status is written, ends the keeper: Snakemake
        learns from `status` that it is gone.
        """
        idle, why = time.monotonic(), "snakemake ended"
        try:
            while not self.stop.is_set():
                try:
                    job = self.jobs.get(timeout=0.2)
                except queue.Empty:
                    if self.name and time.monotonic() - idle > 60 * number("TPU_IDLE_MINUTES"):
                        self.give_back("no job has come for it")
                    continue
                try:
                    job.end("success" if self.done(job) else "failed")
                except Stopped:
                    job.end("failed")
                except Exception as error:  # whatever it is, the job ends, and the resource does with the keeper
                    job.fail(str(error) if isinstance(error, Refused) else repr(error))
                    if not self.workers:
                        self.give_back("it could not be made ready")
                idle = time.monotonic()
        except Exception as error:
            why = "the keeper cannot go on"
            say(f"error: {why}: {error}.")
        self.stop.set()
        self.give_back(why)

    def give_back(self, why: str) -> None:
        """Delete the resource, if there may be one. One that resists is told, and tried again at the next start."""
        if not self.name:
            return
        say(f"deleting {self.name}: {why}")
        try:
            delete(self.name)
        except Exception as error:  # whatever it is, the keeper's last line names what is left
            say(f"error: {error}")
            self.left.append(self.name)
        self.name, self.workers = None, 0

    def done(self, job: Job) -> bool:
        """Run a job, on a new resource where one is preempted; return whether it succeeded.

        Raises Refused and Stopped.
        """
        preempted = lost = 0
        while preempted <= PREEMPTIONS and lost <= LOST:
            if job.cancelled():
                raise Stopped
            try:
                if not self.workers:
                    self.make_ready(job)
                code = self.attempt(job)
            except Missing:  # preempted and gone while it was asked for
                code = None
            if code == 0:
                return True
            # A VM that is being taken away ends its jobs before Google says so.
            if self.well() and not self.stop.wait(number("TPU_POLL_SECONDS")) and self.well():
                if code is not None:
                    say(f"{job.name} failed on {self.name}; all that it printed: {job.folder / 'output'}")
                    return False
                lost += 1
                say(f"the connection to {self.name} was lost; {job.name} starts again")
            else:
                preempted += 1
                self.give_back("it was preempted")
                say(f"{job.name} starts again on a new {self.accelerator}")
        raise Refused(
            f"its slices were preempted {preempted} times: a smaller checkpoint_every makes shorter jobs."
            if preempted > PREEMPTIONS
            else f"the connection to {self.name} was lost {lost} times."
        )

    def make_ready(self, job: Job) -> None:
        """Create a resource, wait until it is there, set up the software of its workers, once.

        Raises Refused, Stopped, and Missing where it is gone again.
        """
        self.name = self.name or resource_name(self.run, self.accelerator)
        say(f"asking for {self.accelerator} ({setting('TPU_TIER')}): {self.name}")
        gcloud(create_arguments(self.name, self.accelerator), self.stop)
        state = None
        while state != "ACTIVE":
            found = describe("queued-resources", self.name, self.stop).get("state", {})
            if found.get("state") != state:
                say(f"{self.name} is {found.get('state')}")
            state = found.get("state")
            if state == "FAILED":
                reason = found.get("failedData", {}).get("error", {}).get("message", "Google gave no reason")
                raise Refused(f"{self.name} could not be had: {reason.rstrip('.')}.")
            if state in ("SUSPENDING", "SUSPENDED"):
                raise Missing
            if state != "ACTIVE" and (self.stop.wait(number("TPU_POLL_SECONDS")) or job.cancelled()):
                raise Stopped
        workers = len(describe("tpu-vm", self.name, self.stop)["networkEndpoints"])
        check_hosts(job.run, job.run_hosts, self.accelerator, workers)
        self.on_all(workers, setup_command(job))
        self.workers = workers

    def on_all(self, workers: int, command: str) -> None:
        """Run a line of sh on all workers at once. Raises what the first that failed raised."""
        failures: list[Exception] = []

        def run(worker: int) -> None:
            try:
                gcloud(ssh_arguments(self.name, worker, command), self.stop, SETUP_SECONDS)
            except Exception as failure:
                failures.append(failure)

        threads = [threading.Thread(target=run, args=(worker,)) for worker in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def attempt(self, job: Job) -> int | None:
        """Run a job once on worker 0; return its exit code, None where slice or connection were lost before it ended.

        Raises Refused when it takes longer than it may, Stopped when it is to end.
        """
        variables = {"TPU_VM": self.name} | {name: setting(name) for name in ("TPU_ZONE", "TPU_PROJECT")}
        variables |= {"TPU_INTERNAL_IPS": "1"} if setting("TPU_INTERNAL_IPS") else {}
        # transformers looks for TensorFlow under the names of packages, and tensorflow-tpu is not among them.
        variables["FORCE_TF_AVAILABLE"] = "1"
        if job.hosts == 1 < self.workers:
            # One process of a slice with several hosts: it would wait for the others, unless its own chips are all.
            variables |= {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1"}
        pairs = shlex.join(f"{name}={value}" for name, value in variables.items())
        folder, program = shlex.quote(os.getcwd()), shlex.quote(str(PROFILE / "tpu.py"))
        command = f"cd {folder} && exec {software()}/environment/bin/python {program} work {job.folder} {pairs}"
        run = Run(job, ["gcloud", *ssh_arguments(self.name, 0, command)])
        poll, looked = number("TPU_POLL_SECONDS"), time.monotonic()
        deadline = looked + 60 * job.minutes if job.minutes else float("inf")
        try:
            while not run.ended():
                if self.stop.is_set() or job.cancelled():
                    raise Stopped
                if time.monotonic() > deadline:
                    raise Refused(f"it took longer than resources.minutes of {job.run} allows, which is {job.minutes}.")
                if time.monotonic() - looked > poll:
                    if not self.well():
                        return None
                    looked = time.monotonic()
            return run.code
        finally:
            run.end()

    def well(self) -> bool:
        """Return whether the resource is there and its node ready. Raises Refused, Stopped."""
        try:
            state = describe("queued-resources", self.name, self.stop).get("state", {}).get("state")
            return state == "ACTIVE" and describe("tpu-vm", self.name, self.stop).get("state") == "READY"
        except Missing:
            return False


# What runs on the workers


def setup_command(job: Job) -> str:
    """Return the line of sh that lets a worker see this folder and have the software; it can be repeated."""
    folder, proof = shlex.quote(os.getcwd()), shlex.quote(str(job.folder / "script"))
    blind = shlex.quote(f"ERROR: a worker does not see {os.getcwd()}: TPU_MOUNT has to mount it there")
    return (
        f"{{ {setting('TPU_MOUNT')} ; }} >&2 && cd {folder} && test -e {proof} || {{ echo {blind} >&2; exit 1; }}; "
        f"sh {shlex.quote(str(PROFILE / 'setup.sh'))} {software()} {setting('TPU_ENVIRONMENT')} >&2"
    )


def work(folder: str, *variables: str) -> None:
    """Run a job's script here, with these environment variables; end it when standard input ends.

    The last line printed tells the exit code. A second one for the same job first ends the one before, whose
    connection was lost: gcloud itself repeats a command whose connection breaks.
    """
    mine = Path(tempfile.gettempdir()) / f"tpu-vm-{Path(folder).name}"
    lock = os.open(mine, os.O_RDWR | os.O_CREAT, 0o600)
    while not taken(lock):
        with contextlib.suppress(ValueError, ProcessLookupError):
            os.kill(int(os.pread(lock, 20, 0)), signal.SIGTERM)
        time.sleep(0.2)
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    environment = os.environ | dict(pair.split("=", 1) for pair in variables)
    environment["PATH"] = f"{os.path.dirname(sys.executable)}:{environment.get('PATH', os.defpath)}"
    if tpu_here():
        environment["TPU_NAME"] = "local"  # what TensorFlow finds a TPU by
    process = subprocess.Popen(
        ["sh", os.path.join(folder, "script")], env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip

    def end(*_) -> None:
        for sent in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sent)
            time.sleep(10)

    def end_with_input() -> None:
        while os.read(0, 1024):
            pass
        end()

    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end, daemon=True).start())
    threading.Thread(target=end_with_input, daemon=True).start()
    code = process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it may have left behind
    with contextlib.suppress(OSError):
        print(f"{ENDED}{code}", flush=True)
        os.unlink(mine)
    os._exit(min(abs(code), 1))


def tpu_here() -> bool:
    """Return whether this machine has a TPU: a PCI device of Google's."""
    return any(path.read_text().strip() == "0x1ae0" for path in Path("/sys/bus/pci/devices").glob("*/vendor"))


def launch(worker: str, command: str) -> None:
    """Run a line of sh on a host of the slice that this job has, from worker 0: the `launcher` of lib.hosts."""
    node = os.environ.get("TPU_VM")
    line = ["sh", "-c", command] if worker == "0" or not node else ["gcloud", *ssh_arguments(node, worker, command)]
    os.execvp(line[0], line)


if __name__ == "__main__":
    main(sys.argv[1:])
