"""Write the `conda:` files of the stages that rules name, from their locks, hashes included.

{stage}.txt   the lock
{stage}.yaml  the same pins as a conda environment: Python from conda, the rest through pip

`python envs/conda.py jax=plan` writes jax.yaml from plan.txt, which has libtpu, for machines with TPUs; `jax=jax-gpu`,
for those with GPUs.
"""

import re
import sys
from pathlib import Path

STAGES = ["workflow", "data", "archive", "tensorflow", "jax", "plan", "harness", "gguf"]
# What pip, which conda calls, looks for and uv's overrides leave out (envs/lock.py) stands in the locks for GPUs.
COMPLETE = {"tensorflow": "tensorflow-gpu", "jax": "jax-gpu", "plan": "jax-gpu", "harness": "harness-gpu"}
LEFT_OUT = r"^(tensorflow|tensorflow-cpu|tensorflow-text|libclang)==.*\n"


def environment(stage: str, lock: str) -> str:
    """Return the text of a conda environment file of a stage that installs the requirements of `lock`."""
    envs = Path(__file__).parent
    text = (envs / f"{lock}.txt").read_text()
    if "tensorflow-cpu==" in text:
        complete = re.finditer(LEFT_OUT, (envs / f"{COMPLETE[stage]}.txt").read_text(), re.M)
        text = re.sub(LEFT_OUT, "", text, flags=re.M) + "".join(line[0] for line in complete)
    pins = "".join(f'      - "{line.replace(chr(34), chr(39))}"\n' for line in text.splitlines())
    return f"channels:\n  - conda-forge\ndependencies:\n  - python=3.11\n  - pip\n  - pip:\n{pins}"


def main(*variants: str) -> None:
    """Write the file of every stage, from the lock of the same name or, given `STAGE=LOCK`, from another."""
    locks = {stage: stage for stage in STAGES} | dict(variant.split("=") for variant in variants)
    for stage, lock in locks.items():
        Path(__file__).with_name(f"{stage}.yaml").write_text(environment(stage, lock))


if __name__ == "__main__":
    main(*sys.argv[1:])
