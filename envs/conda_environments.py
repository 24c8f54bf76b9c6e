"""Write the `conda:` file of every stage, and of its variants for accelerators, from its lock, hashes included.

{stage}.txt   requirements with hashes, as `uv pip compile` writes them
{stage}.yaml  the same pins as a conda environment: Python from conda, the rest through pip
"""

from pathlib import Path

STAGES = ["controller", "data", "tensorflow", "jax", "report"]
VARIANTS = ["jax-gpu", "jax-tpu", "tensorflow-gpu", "tensorflow-tpu"]


def environment(lock: str) -> str:
    """Return the text of a conda environment file that installs the requirements of `lock`."""
    requirements = lock.replace("\\\n", " ").splitlines()
    lines = [" ".join(line.split()) for line in requirements if line.strip() and not line.startswith("#")]
    pins = "".join(f'      - "{line.replace(chr(34), chr(39))}"\n' for line in lines)
    return f"channels:\n  - conda-forge\ndependencies:\n  - python=3.11\n  - pip\n  - pip:\n{pins}"


if __name__ == "__main__":
    for stage in STAGES + VARIANTS:
        lock = Path(__file__).with_name(f"{stage}.txt")
        lock.with_suffix(".yaml").write_text(environment(lock.read_text()))
