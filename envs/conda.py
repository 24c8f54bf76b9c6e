"""Write the `conda:` files of the stages that rules name, from their locks, hashes included.

{stage}.txt   the lock
{stage}.yaml  the same pins as a conda environment: Python from conda, the rest through pip

`python envs/conda.py jax=jax-gpu` writes jax.yaml from jax-gpu.txt, for machines with that accelerator.
"""

import sys
from pathlib import Path

STAGES = ["workflow", "data", "archive", "tensorflow", "jax", "harness"]


def environment(lock: str) -> str:
    """Return the text of a conda environment file that installs the requirements of `lock`."""
    pins = "".join(f'      - "{line.replace(chr(34), chr(39))}"\n' for line in lock.splitlines())
    return f"channels:\n  - conda-forge\ndependencies:\n  - python=3.11\n  - pip\n  - pip:\n{pins}"


def main(*variants: str) -> None:
    """Write the file of every stage, from the lock of the same name or, given `STAGE=LOCK`, from another."""
    locks = {stage: stage for stage in STAGES} | dict(variant.split("=") for variant in variants)
    for stage, lock in locks.items():
        path = Path(__file__).with_name(f"{stage}.yaml")
        path.write_text(environment(path.with_name(f"{lock}.txt").read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
