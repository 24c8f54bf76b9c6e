"""Environments as users have them, in which what comes out is opened: envs/openers*.txt, installed once per session.

They have the Python that runs the tests. With TPULM_OPENERS, a folder, they are kept there for the next session.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

ENVS = Path(__file__).parents[1] / "envs"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# By the transformers that they have; the others that open results are in the newest one.
LOCKS = {"transformers 5": "openers", "transformers 4": "openers-transformers4"}
# What results are held against.
OTHERS = {"llama.cpp": "openers-llama", "harness": "openers-harness", "crates": "openers-crates"}


class Openers:
    """The environments, each made when it is first asked for."""

    def __init__(self, folder: Path):
        """Make them in `folder`, where those that are there already are taken."""
        self.folder = Path(os.environ.get("TPULM_OPENERS", folder))

    def python(self, which: str) -> Path:
        """Return the Python of an environment, by its name in LOCKS or OTHERS."""
        lock = ENVS / f"{(LOCKS | OTHERS)[which]}.txt"
        place, digest = self.folder / lock.stem, hashlib.sha256(lock.read_bytes()).hexdigest()
        made = place / f"{digest}-{PYTHON}"
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock"):
            if not made.exists():
                shutil.rmtree(place, ignore_errors=True)
                install(place, lock)
                made.touch()
        return place / "bin" / "python"

    def __call__(self, which: str, program: str, *arguments: str, folder: Path | None = None) -> str:
        """Run a program in an environment, in a folder, without network; return what it printed."""
        command = [str(self.python(which)), "-c", program, *arguments]
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "KERAS", "TF_"))}
        environment = kept | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            pytest.fail(f"{which} ended with {done.returncode}:\n{done.stderr[-5000:]}")
        return done.stdout

    def result(self, which: str, program: str, job: object):
        """Run a program that takes a JSON value, sys.argv[1]; return what it printed as JSON after the word RESULT."""
        return json.loads(self(which, program, json.dumps(job)).rpartition("RESULT")[2])


def install(place: Path, lock: Path) -> None:
    """Make an environment of a lock. PyTorch's build for CPUs is in an index of its own, unless a folder has it.

    llama-cpp-python is compiled, without the instructions that only this machine may have: some virtual ones name more
    than they execute.
    """
    environment = {"CMAKE_ARGS": "-DGGML_NATIVE=OFF"} | os.environ
    if "PIP_FIND_LINKS" in environment:
        environment.setdefault("UV_FIND_LINKS", environment["PIP_FIND_LINKS"])
    if "UV_FIND_LINKS" not in environment:
        environment.setdefault("UV_TORCH_BACKEND", "cpu")
    uv = str(Path(sys.executable).with_name("uv"))
    python = str(place / "bin" / "python")
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, str(place)],
        [uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python, str(lock)],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            pytest.fail(f"{lock.name} cannot be installed:\n{done.stderr[-3000:]}")
