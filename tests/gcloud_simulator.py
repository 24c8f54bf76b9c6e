"""A small `gcloud` for tests: queued resources in a file, and processes of this machine as the workers of TPU VMs.

It knows the commands and flags of FLAGS, from the reference of the Google Cloud CLI, and refuses any other, as gcloud
does. The folder in $CLOUD holds

state.json        queued resources by name: state, accelerator, flags
calls.jsonl       the arguments of every call, in order
faults.json       what is to go wrong, see `fault`
environment.json  environment variables of every worker
image/            the home folder of every worker, as its image has it
"""

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

CREATE = {
    "--zone", "--runtime-version", "--accelerator-type", "--node-id", "--internal-ips", "--network", "--scopes",
    "--service-account", "--spot", "--subnetwork", "--valid-until-duration",
}  # fmt: skip
# By command: of the flags in the synopsis of its page, those that the profile uses.
FLAGS = {
    "compute tpus queued-resources create": CREATE,
    "alpha compute tpus queued-resources create": CREATE | {"--max-run-duration", "--provisioning-model"},
    "compute tpus queued-resources describe": {"--zone"},
    "compute tpus queued-resources delete": {"--zone", "--force"},
    "compute tpus queued-resources list": {"--zone"},
    "compute tpus tpu-vm create": {"--accelerator-type", "--spot", "--version", "--zone"},
    "compute tpus tpu-vm delete": {"--zone"},
    "compute tpus tpu-vm list": {"--zone"},
    "compute tpus tpu-vm describe": {"--zone"},
    "compute tpus tpu-vm scp": {"--zone"},
    "compute tpus tpu-vm ssh": {"--internal-ip", "--ssh-flag", "--worker", "--zone", "--command"},
}
GCLOUD_WIDE = {"--format", "--project", "--quiet"}
SWITCHES = {"--force", "--internal-ips", "--internal-ip", "--quiet", "--spot"}
REQUIRED = {
    "queued-resources create": {"--zone", "--accelerator-type", "--runtime-version", "--node-id"},
    "queued-resources delete": {"--zone", "--force"},  # without --force, not one that has a node
    "tpu-vm create": {"--zone", "--accelerator-type", "--version"},
}
HOSTS = {"v4-16": 2}  # of the slices that tests ask for, those with several
QUEUE = ["ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]


class Cloud:
    def __init__(self, folder: Path):
        self.folder = Path(folder)

    @contextlib.contextmanager
    def resources(self):
        """Yield the resources, to be changed by nobody else meanwhile."""
        with open(self.folder / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self.folder / "state.json"
            found = json.loads(path.read_text()) if path.exists() else {}
            yield found
            path.with_suffix(".new").write_text(json.dumps(found))
            os.replace(path.with_suffix(".new"), path)

    def names(self) -> list[str]:
        with self.resources() as found:
            return list(found)

    def calls(self, *words: str) -> list[list[str]]:
        """Return the calls so far whose arguments hold these words."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if set(words) <= set(call)]

    def fault(self, command: str, **what) -> None:
        """Let a command go wrong, the next `times` (1) times.

        error=TEXT       it says so and ends with 1; with done=True, after it did its work
        preempt=TEXT     (ssh) the slice is preempted as soon as the job prints this
        crash=TEXT       (ssh) all processes of worker `worker` are killed as soon as the job prints this
        disconnect=TEXT  (ssh) the connection breaks as soon as the job prints this
        """
        path = self.folder / "faults.json"
        found = json.loads(path.read_text()) if path.exists() else []
        path.write_text(json.dumps([*found, {"command": command, "times": 1, **what}]))

    def next_fault(self, command: str, line: str | None = None) -> dict:
        """Take the next fault of a command: of those that wait for a line of output, only with such a line."""
        with self.resources():
            path = self.folder / "faults.json"
            found = json.loads(path.read_text()) if path.exists() else []
            for fault in found:
                awaited = next((fault[kind] for kind in ("preempt", "crash", "disconnect") if kind in fault), None)
                fits = awaited is None if line is None else awaited is not None and awaited in line
                if fault["command"] == command and fault["times"] and fits:
                    fault["times"] -= 1
                    path.write_text(json.dumps(found))
                    return fault
        return {}


def processes(vm: str) -> list[int]:
    """Return the processes of a VM, `NAME/WORKER`, or of all VMs of a slice, `NAME`."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit():
                environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                place = next((part[13:].decode() for part in environment if part.startswith(b"SIMULATED_VM=")), "")
                if place == vm or place.split("/")[0] == vm:
                    found.append(int(entry))
    return found


def kill(vm: str) -> None:
    """End all processes of a VM or slice, those that they start meanwhile, too."""
    while found := [process for process in processes(vm) if process != os.getpid()]:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)


def refuse(text: str, code: int = 1):
    print(f"ERROR: (gcloud) {text}", file=sys.stderr)
    sys.exit(code)


def parsed(arguments: list[str]) -> tuple[str, str | None, dict[str, str]]:
    """Return command, name and flags; refuse what Google does not document."""
    words = [word for word in arguments if not word.startswith("--")]
    command = next((known for known in FLAGS if words[: len(known.split())] == known.split()), None)
    if command is None:
        refuse(f"Invalid choice: {' '.join(words)}", 2)
    rest = words[len(command.split()) :]
    flags = {}
    for word in (word for word in arguments if word.startswith("--")):
        flag, _, value = word.partition("=")
        if flag not in FLAGS[command] | GCLOUD_WIDE or (flag in SWITCHES) == bool(value):
            refuse(f"unrecognized arguments: {word}", 2)
        flags[flag] = value
    verb = command.split()[-1]
    missing = REQUIRED.get(command.partition("tpus ")[2], {"--zone"}) - set(flags)
    if missing or len(rest) != {"list": 0, "scp": 2}.get(verb, 1):
        refuse(f"argument {' '.join(missing) or rest}: Must be specified.", 2)
    return command, (rest or [None])[0], flags


def create(cloud: Cloud, name: str, flags: dict) -> None:
    with cloud.resources() as found:
        if name in found:
            refuse(f"ALREADY_EXISTS: Resource '{name}' already exists")
        at_once = "--version" in flags  # a VM without a queue
        found[name] = {"state": QUEUE[-1 if at_once else 0], "accelerator": flags["--accelerator-type"]}
        if at_once:
            boot(cloud, name, 1)


def describe(cloud: Cloud, name: str) -> dict:
    """Describe a queued resource; each look at one that waits lets it advance by one state."""
    with cloud.resources() as found:
        if name not in found:
            refuse(f"NOT_FOUND: Resource '{name}' was not found")
        resource = found[name]
        if resource["state"] in QUEUE[:-1]:
            resource["state"] = QUEUE[QUEUE.index(resource["state"]) + 1]
            if resource["state"] == "ACTIVE":
                boot(cloud, name, HOSTS.get(resource["accelerator"], 1))
        elif resource["state"] == "SUSPENDING":
            resource["state"] = "SUSPENDED"
        return {"name": f"projects/p/locations/z/queuedResources/{name}", "state": {"state": resource["state"]}}


def boot(cloud: Cloud, name: str, workers: int) -> None:
    import shutil

    for worker in range(workers):
        shutil.copytree(cloud.folder / "image", cloud.folder / "vms" / name / str(worker), symlinks=True)


def node(cloud: Cloud, name: str) -> dict:
    with cloud.resources() as found:
        state = found.get(name, {}).get("state")
        if state not in ("ACTIVE", "SUSPENDING"):
            refuse(f"NOT_FOUND: Resource '{name}' was not found")
        endpoints = [{"ipAddress": f"10.0.0.{worker}"} for worker in range(HOSTS.get(found[name]["accelerator"], 1))]
        return {"state": "READY" if state == "ACTIVE" else "PREEMPTED", "networkEndpoints": endpoints}


def delete(cloud: Cloud, name: str) -> None:
    """Delete a resource; one that is being provisioned refuses it, and is provisioned then."""
    with cloud.resources() as found:
        if name not in found:
            refuse(f"NOT_FOUND: Resource '{name}' was not found")
        state = found[name]["state"]
        if state == "PROVISIONING":
            found[name]["state"] = "ACTIVE"
        else:
            del found[name]
    if state == "PROVISIONING":
        refuse(f"FAILED_PRECONDITION: {name} is being provisioned")
    kill(name)
    import shutil

    shutil.rmtree(cloud.folder / "vms" / name, ignore_errors=True)


def ssh(cloud: Cloud, name: str, flags: dict) -> int:
    """Run a line of sh on a worker, in its own environment, as long as the connection lasts."""
    import subprocess
    import threading

    if node(cloud, name)["state"] != "READY":
        refuse(f"The TPU VM {name} is in an unusable state")
    vm = f"{name}/{flags.get('--worker', '0')}"
    home = cloud.folder / "vms" / vm
    environment = {
        "PATH": f"{cloud.folder / 'bin'}:/usr/bin:/bin", "HOME": str(home), "SIMULATED_VM": vm,
        "CLOUD": str(cloud.folder),
    }  # fmt: skip
    process = subprocess.Popen(
        ["sh", "-c", flags["--command"]], cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=environment | json.loads((cloud.folder / "environment.json").read_text()), start_new_session=True,
    )  # fmt: skip

    def forward_input() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(0, 4096):
                process.stdin.write(data)
        with contextlib.suppress(OSError):
            process.stdin.close()

    threading.Thread(target=forward_input, daemon=True).start()
    for line in process.stdout:
        with contextlib.suppress(OSError):
            os.write(1, line)
        fault = cloud.next_fault("ssh", line.decode(errors="replace"))
        if "preempt" in fault:
            with cloud.resources() as found:
                found[name]["state"] = "SUSPENDING"
            kill(name)
            return 255
        if "crash" in fault:
            kill(f"{name}/{fault['worker']}")
        if "disconnect" in fault:
            process.stdin.close()
            return 255
    code = process.wait()
    return 255 if code < 0 else code


def main(arguments: list[str]) -> int:
    cloud = Cloud(os.environ["CLOUD"])
    with cloud.resources(), open(cloud.folder / "calls.jsonl", "a") as calls:
        print(json.dumps(arguments), file=calls)
    command, name, flags = parsed(arguments)
    verb = command.split()[-1]
    fault = cloud.next_fault(verb)
    if "error" in fault and not fault.get("done"):
        refuse(fault["error"])
    code = 0
    if verb == "create":
        create(cloud, name, flags)
    elif verb == "delete":
        delete(cloud, name)
    elif verb == "list":
        with cloud.resources() as found:
            entries = [{"name": f"projects/p/locations/z/queuedResources/{key}", "state": {"state": value["state"]}}
                       for key, value in found.items()]  # fmt: skip
        print(json.dumps(entries))
    elif verb == "describe":
        print(json.dumps(node(cloud, name) if "tpu-vm" in command else describe(cloud, name)))
    else:
        code = ssh(cloud, name, flags)
    if "error" in fault:
        refuse(fault["error"])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
