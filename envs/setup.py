"""Make the environment .venv of a folder of this workflow, from the locks, with the Python that runs this.

    python3.11 envs/setup.py local

`make setup` runs it, and so does a rebuild from an archive. It needs a package index, the one that pip is set to.
"""

import subprocess
import sys
import venv
from pathlib import Path

ENVS = Path(__file__).resolve().parent


def main(environment: str) -> None:
    """Install an environment: local, gpu, tpu or tpu-tensorflow."""
    lock = ENVS / f"{environment}.txt"
    if sys.version_info[:2] != (3, 11):
        sys.exit(f"error: this is Python {sys.version.split()[0]}; the locks are for Python 3.11.")
    if not lock.is_file():
        sys.exit(f"error: {environment} is no environment of {ENVS}; allowed: local, gpu, tpu, tpu-tensorflow.")
    folder = ENVS.parent / ".venv"
    venv.create(folder, with_pip=True, symlinks=True)
    python, uv = (str(folder / "bin" / name) for name in ("python", "uv"))
    for command in (
        [python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(ENVS / "bootstrap.txt")],
        [uv, "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode", "--python", python, str(lock)],
        [python, str(ENVS / "mend_transformers.py")],
        [python, str(ENVS / "mend_snakemake.py")],
    ):  # fmt: skip
        done = subprocess.run(command, check=False)
        if done.returncode:
            sys.exit(f"error: the environment cannot be made: `{' '.join(command)}` ended with {done.returncode}.")


if __name__ == "__main__":
    main(*sys.argv[1:])
