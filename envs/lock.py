"""Resolve the locked environments again, after a change of envs/*.in. `make lock` runs this, users never do.

{stage}.in    what a stage asks for
{stage}.txt   its lock, one line per package: version and hashes, as `uv pip` and `pip` read them
{stage}.yaml  the same pins as a conda environment, for the stages that rules name

A lock holds the hashes of what CPython 3.11 on Linux can install: wheels for x86_64 and aarch64, and the source
distribution only where there is no wheel. Versions stay as they are locked unless a .in file asks for others; to
upgrade, delete the .txt first. A package that only one processor has carries a marker that says so.

The openers have PyTorch's build for CPUs, which lies in an index of its own: UV_TORCH_BACKEND=cpu names it to uv, here
and when they are installed, or UV_FIND_LINKS a folder that holds the wheel.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path

import conda

ENVS = Path(__file__).parent
# Newer than any tag in use: which of the wheels a machine can take is the installer's choice.
GLIBC = "manylinux_2_40"
MACHINES = ("x86_64", "aarch64")
# TensorFlow for TPUs is a package of its own, a release behind, with the same files: nothing may bring the other one.
# It loads no libtpu that JAX could use, hence an environment in which only TensorFlow trains on a TPU.
TENSORFLOW_TPU = [
    'tensorflow; sys_platform == "never"',
    'tensorflow-text; sys_platform == "never"',
    "libtpu==0.0.21.1",
    # Of the workflow's version, and not of TensorFlow's, whose program needs a setuptools of 2025.
    "tensorboard",
]
# What is resolved together, and so installs together; (stages, machines, overrides). Later ones keep to the versions
# of the first, apart from the packages that they replace.
TOGETHER = [
    (("bootstrap", "workflow", "data", "archive", "tensorflow", "jax", "harness", "test"), MACHINES, []),
    (("tensorflow-gpu", "jax-gpu", "harness-gpu"), MACHINES, []),
    (("tensorflow-tpu",), ("x86_64",), TENSORFLOW_TPU),
    (("openers",), ("x86_64",), []),
    (("openers-transformers4",), ("x86_64",), []),
    (("openers-minicons",), ("x86_64",), []),
    (("openers-harness",), ("x86_64",), []),
    (("openers-crates",), ("x86_64",), []),
]
# What only opens results, as users have it elsewhere: each an environment by itself, which agrees with no other.
ALONE = ("openers", "openers-transformers4", "openers-minicons", "openers-harness", "openers-crates")
REPLACED = r"(tensorflow|tensorflow-text|tf-keras|libtpu)=="


def pins(text: str) -> list[str]:
    """Return the `name==version` of every line of a lock."""
    return re.findall(r"^[A-Za-z0-9._-]+==[^\s;\\]+", text, re.M)


def compiled(output: Path, stages: tuple[str, ...], constraints: list[str], *arguments: str) -> str:
    """Return what `uv pip compile` resolves stages to, in the format of the file `output`, which may exist."""
    (output.parent / "constraints.txt").write_text("\n".join(constraints))
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    command += ["--python-version", "3.11", "--constraint", str(output.parent / "constraints.txt")]
    command += [*arguments, "--output-file", str(output), *(str(ENVS / f"{stage}.in") for stage in stages)]
    subprocess.run(command, check=True)
    return output.read_text()


def hashes(package: dict) -> set[str]:
    """Return the sha256 of a package's wheels, as pylock.toml lists them, or of its source where it has none."""
    return {file["hashes"]["sha256"] for file in package.get("wheels") or [package["sdist"]]}


def locked(folder: Path, stage: str, versions: list[str], machines: tuple[str, ...], *arguments: str) -> dict[str, str]:
    """Return the line of each pin of a stage's lock, for all machines."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    known: defaultdict[str, list[str]] = defaultdict(list)
    for machine in machines:
        output = folder / f"pylock.{stage}-{machine}.toml"
        where = ("--python-platform", f"{machine}-{GLIBC}", "--format", "pylock.toml")
        for package in tomllib.loads(compiled(output, (stage,), versions, *where, *arguments))["packages"]:
            pin = f"{package['name']}=={package['version']}"
            found[pin] |= hashes(package)
            known[pin].append(machine)
    lines = {}
    for pin in sorted(found):
        marker = "" if len(known[pin]) == len(machines) else f' ; platform_machine == "{known[pin][0]}"'
        lines[pin] = f"{pin}{marker}" + "".join(f" --hash=sha256:{sha256}" for sha256 in sorted(found[pin])) + "\n"
    return lines


def main() -> None:
    """Write every lock, and the conda environments."""
    versions: list[str] = []
    lines: dict[str, str] = {}  # one per pin, so that a package has the same in every lock
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for stages, machines, overrides in TOGETHER:
            (folder / "overrides.txt").write_text("\n".join(overrides))
            arguments = ("--override", str(folder / "overrides.txt")) if overrides else ()
            paths = [ENVS / f"{stage}.txt" for stage in stages]
            preferred = sorted({pin for path in paths if path.exists() for pin in pins(path.read_text())})
            output = folder / f"{stages[0]}.txt"
            output.write_text("".join(f"{pin}\n" for pin in preferred))
            kept = [] if stages[0] in ALONE else versions
            kept = [pin for pin in kept if not (overrides and re.match(REPLACED, pin))]
            where = ("--python-platform", f"{machines[0]}-{GLIBC}")
            resolved = pins(compiled(output, stages, kept, *where, *arguments))
            for stage, path in zip(stages, paths, strict=True):
                stage_lines = locked(folder, stage, resolved, machines, *arguments)
                lines = stage_lines | lines
                path.write_text("".join(lines[pin] for pin in stage_lines))
            versions = versions or resolved
    conda.main()


if __name__ == "__main__":
    main()
