"""The calls of gcloud, the Google Cloud CLI: queued resources, their nodes, and ssh to the workers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable

from tpulm.core.accelerators import TPUS, cloud_tpu_type, parse_tpu
from tpulm.core.errors import UserError

from tpu_vm.settings import number, setting
from tpu_vm.state import name_prefix, say

ATTEMPTS = 6  # of a call that fails for a reason that may pass
CALL_SECONDS = 600  # that one call may take
# What no repetition mends, in what gcloud says.
PERMANENT = re.compile(
    r"PERMISSION_DENIED|INVALID_ARGUMENT|UNAUTHENTICATED|gcloud auth login|unrecognized arguments|invalid choice"
    # Not the quota of requests per minute, which opens with "Quota exceeded for quota metric".
    r"|[Qq]uota (limit )?'|Invalid value|required property|argument --|TPU_MOUNT has to"
)
# gcloud's own words only: a command that it runs on a worker may not find this and that.
MISSING = re.compile(r"^ERROR: \(gcloud.*(NOT_FOUND|was not found)", re.MULTILINE)
PRESENT = re.compile(r"ALREADY_EXISTS|already exists")


class Missing(Exception):
    """There is no such resource."""


class Stopped(Exception):
    """The supervisor is to end, or the job was cancelled."""


def location() -> list[str]:
    """Return the arguments that say where; --quiet, so that nothing is asked."""
    return [f"--zone={setting('TPU_ZONE')}", f"--project={setting('TPU_PROJECT')}", "--quiet"]


def create_arguments(name: str, accelerator: str) -> list[str]:
    """Return the arguments that create a queued resource with one node of its own name."""
    tier = setting("TPU_TIER")
    optional = {
        "--network": setting("TPU_NETWORK"),
        "--subnetwork": setting("TPU_SUBNETWORK"),
        "--service-account": setting("TPU_SERVICE_ACCOUNT"),
    }
    arguments = [
        *(["alpha"] if tier == "flex-start" else []),
        *("compute", "tpus", "queued-resources", "create", name),
        f"--node-id={name}",
        f"--accelerator-type={cloud_tpu_type(accelerator)}",
        f"--runtime-version={setting('TPU_RUNTIME') or TPUS[parse_tpu(accelerator)[0]].runtime}",
        # What the trainers may do with it is for the service account to say.
        "--scopes=https://www.googleapis.com/auth/cloud-platform",
        *(f"{flag}={value}" for flag, value in optional.items() if value),
    ]
    if setting("TPU_INTERNAL_IPS"):
        arguments.append("--internal-ips")
    if tier == "spot":
        arguments.append("--spot")
    if tier == "flex-start":
        seconds = int(3600 * number("TPU_MAX_HOURS"))
        arguments += ["--provisioning-model=flex-start", f"--max-run-duration={seconds}s"]
    return [*arguments, *location()]


def ssh_arguments(node: str, worker: int | str, command: str) -> list[str]:
    """Return the arguments that run a line of sh on one worker.

    One worker a call: gcloud reaches several at once only with a key in an ssh agent.
    """
    # A network may forget a connection on which nothing is said for minutes, and neither end would hear of it.
    alive = "--ssh-flag=-oServerAliveInterval=30"
    internal = ["--internal-ip"] if setting("TPU_INTERNAL_IPS") else []
    address = ["compute", "tpus", "tpu-vm", "ssh", node, f"--worker={worker}", alive, *internal]
    return [*address, *location(), f"--command={command}"]


def run(arguments: list[str], stop: threading.Event | None = None, seconds: float = CALL_SECONDS) -> str:
    """Call gcloud and return what it prints; a failure that may pass is tried again, later and later.

    Raises Missing where there is no such resource, UserError for what does not pass, Stopped when `stop` is set.
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
            raise UserError(f"`{what}` failed: {error_line(said)}")
    raise UserError(f"`{what}` failed {ATTEMPTS} times; the last error: {error_line(said)}")


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


def error_line(said: str) -> str:
    """Return the line with the error in what gcloud said, as a sentence."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no reason given"]
    found = next((line for line in lines if line.upper().startswith("ERROR")), lines[-1])
    return found.rstrip(".")[:400] + "."


def own_resources(stop: threading.Event | None = None) -> dict[str, str]:
    """Return the state of each queued resource of this folder, by name."""
    printed = run(["compute", "tpus", "queued-resources", "list", *location(), "--format=json"], stop)
    found = {entry["name"].split("/")[-1]: entry.get("state", {}).get("state", "") for entry in json.loads(printed)}
    return {name: state for name, state in found.items() if name.startswith(name_prefix())}


def describe(kind: str, name: str, stop: threading.Event | None = None) -> dict:
    """Return what Google says of a queued resource (`queued-resources`) or a node (`tpu-vm`). Raises Missing."""
    return json.loads(run(["compute", "tpus", kind, "describe", name, *location(), "--format=json"], stop))


def delete(name: str) -> None:
    """Delete a queued resource with its node, and see that it is gone: some states refuse it for a while."""
    refused = None
    for attempt in range(3 * ATTEMPTS):
        time.sleep(min(60, number("TPU_POLL_SECONDS") / 15 * attempt))
        try:
            run(["compute", "tpus", "queued-resources", "delete", name, "--force", *location()])
            describe("queued-resources", name)
        except Missing:
            return
        except UserError as error:
            refused = error
    told = " ".join(["gcloud compute tpus queued-resources delete", name, "--force", *location()])
    raise UserError(f"{name} still exists and may cost money; delete it manually: `{told}`. {refused or ''}".strip())


def delete_all(names: Iterable[str]) -> None:
    """Delete resources that were left behind. Raises UserError, once all have had their turn, for those that resist."""
    refusals = []
    for name in names:
        say(f"deleting {name}, which is left from an earlier run")
        try:
            delete(name)
        except UserError as refused:
            refusals.append(str(refused))
    if refusals:
        raise UserError(" ".join(refusals))
