"""A Slurm of this user's own on this machine: two nodes with eight pretended TPUs each. Nothing of it needs root."""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tpulm.core.accelerators import ANY_DEVICES

NEEDED = ("munged", "slurmctld", "slurmd", "srun")
COMMANDS = ("sbatch", "srun", "squeue", "scancel", "sinfo", "scontrol")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


class Slurm:
    """The daemons, and the environment in which Slurm's commands reach them."""

    def __init__(self, folder: Path):
        """Write their settings; all that they write is in `folder`, too."""
        self.folder = folder
        for name in ("state", "spool", "log", "bin"):
            (folder / name).mkdir(parents=True)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        (folder / "slurm.conf").write_text(self.settings())
        (folder / "gres.conf").write_text("NodeName=n[0-1] Name=tpu Type=v5e Count=8\n")
        # By a wrapper, since jobs of Snakemake lose SLURM_CONF with all other variables of Slurm's.
        for name in COMMANDS:
            wrapper = folder / "bin" / name
            command = shutil.which(name, path=PATH)
            wrapper.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {command} "$@"\n')
            wrapper.chmod(0o755)
        # Its accelerators are names only.
        self.environment = {"PATH": f"{folder}/bin:{os.environ['PATH']}", ANY_DEVICES: "1"}

    def start(self) -> None:
        """Start the daemons. Raises RuntimeError with the log when the nodes do not come up."""
        folder = self.folder
        files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        options = [f"--{option}={folder / file}" for option, file in files.items()]
        self.daemon("munged", "--force", f"--log-file={folder}/log/munged.log", *options)
        self.daemon("slurmctld", "-i")
        self.daemon("slurmd", "-N", "n0")
        self.daemon("slurmd", "-N", "n1")
        for _ in range(3000):
            if self("sinfo", "--noheader", "--format=%T").split() == ["idle"]:
                return
            time.sleep(0.2)
        raise RuntimeError((folder / "log/slurmctld.log").read_text()[-2000:])

    def settings(self) -> str:
        """Return slurm.conf."""
        folder, host, user = self.folder, socket.gethostname().split(".")[0], getpass.getuser()
        return f"""
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=1
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=tpu
ReturnToService=2
MinJobAge=3600
KillWait=2
NodeName=n[0-1] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{free_port()},{free_port()}] CPUs=4 RealMemory=16000 \
Gres=tpu:v5e:8 State=UNKNOWN
PartitionName=tpu Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=9 State=UP
PartitionName=short Nodes=ALL MaxTime=00:30:00 PreemptMode=CANCEL State=UP
"""

    def daemon(self, name: str, *arguments: str) -> None:
        """Start a daemon, which goes to the background by itself."""
        environment = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}
        with open(self.folder / "log" / f"{name}.start", "ab") as said:  # no pipe, which the daemon could keep open
            command = [shutil.which(name, path=PATH), *arguments]
            subprocess.run(command, env=environment, check=True, timeout=600, stdout=said, stderr=said)

    def __call__(self, *command: str) -> str:
        """Run one of Slurm's commands and return what it prints."""
        environment = os.environ | self.environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600)
        return done.stdout

    def jobs(self) -> list[dict[str, str]]:
        """Return all jobs, finished ones too, as `scontrol show jobs` tells of them."""
        lines = self("scontrol", "--oneliner", "show", "jobs").splitlines()
        jobs = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
        return [{"Comment": ""} | job for job in jobs if "JobId" in job]

    def stop(self) -> None:
        """End all jobs and the daemons."""
        with contextlib.suppress(subprocess.SubprocessError):  # also where the daemons never came up
            self("scancel", f"--user={getpass.getuser()}")
            for _ in range(600):
                if not self("squeue", "--noheader").strip():
                    break
                time.sleep(0.1)
        for file in self.folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGTERM)


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
