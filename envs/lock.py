"""Resolve the locked environments again, after a change of envs/*.in. `make lock` runs this, users never do.

{stage}.in    what a stage asks for
{stage}.txt   its lock, one line per package: version, marker and hashes, as `uv pip` and `pip` read them
{stage}.yaml  the same pins as a conda environment, for the stages that rules name

One lock serves every Python of `requires-python` in pyproject.toml, on Linux on x86-64 and ARM64. It holds the hashes
of the wheels that these install, and of the source distribution only where one of them has no wheel. A package that
only some of them have carries a marker. Versions stay as they are locked unless a .in file asks for others; to upgrade,
delete the .txt first.

The openers have PyTorch's build for CPUs, which lies in an index of its own: UV_TORCH_BACKEND=cpu names it to uv, here
and when they are installed, or UV_FIND_LINKS a folder that holds the wheel.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from itertools import product
from pathlib import Path
from urllib.parse import unquote

import conda
from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ENVS = Path(__file__).parent
REQUIRES = tomllib.loads((ENVS.parent / "pyproject.toml").read_text())["project"]["requires-python"]
PYTHONS = [f"3.{minor}" for minor in range(30) if f"3.{minor}" in SpecifierSet(REQUIRES)]
ALL = list(product(PYTHONS, ("x86_64", "aarch64")))
X86_64 = list(product(PYTHONS, ("x86_64",)))
# tensorflow-cpu is tensorflow without the code for GPUs, half as large. It is for x86-64; on ARM64 `tensorflow` itself
# is without. What depends on TensorFlow names `tensorflow`. keras-hub does without tensorflow-text, TensorFlow without
# libclang: a quarter of a gigabyte.
TENSORFLOW_CPU = [
    'tensorflow==2.21.0; platform_machine != "x86_64"',
    'tensorflow-text; sys_platform == "never"',
    'libclang; sys_platform == "never"',
]
TENSORFLOW_GPU = ['tensorflow-cpu; sys_platform == "never"']
# TensorFlow for TPUs is a package of its own, a release behind, with the same files: nothing may bring the other one.
# It loads no libtpu that JAX could use, hence an environment in which only TensorFlow trains on a TPU.
TENSORFLOW_TPU = [
    'tensorflow; sys_platform == "never"',
    'tensorflow-text; sys_platform == "never"',
    "libtpu==0.0.21.1",
    # Of the workflow's version, and not of TensorFlow's, whose program needs a setuptools of 2025.
    "tensorboard",
]
FIRST = ("bootstrap", "workflow", "data", "archive", "tensorflow", "jax", "plan", "harness", "gguf")
PROFILES = ("slurm", "gke", "gcs", "tpu-vm")
# What is resolved together, and so installs together; (stages, targets, overrides). Later ones keep to the versions
# of the first, apart from the packages that they replace.
TOGETHER = [
    ((*FIRST, *PROFILES, "test"), ALL, TENSORFLOW_CPU),
    (("tensorflow-gpu", "jax-gpu", "harness-gpu"), ALL, TENSORFLOW_GPU),
    (("tensorflow-tpu",), X86_64, TENSORFLOW_TPU),
]
# What only opens results, as users have it elsewhere: each an environment by itself, which agrees with no other. So is
# that which builds the documentation, on any machine.
ALONE = (
    "openers",
    "openers-transformers4",
    *(f"openers-{name}" for name in ("crates", "harness", "llama")),
)
REPLACED = r"(tensorflow|tensorflow-cpu|tensorflow-text|tf-keras|libtpu)=="


Targets = list[tuple[str, str]]  # the Pythons and machines that a lock serves


def compiled(folder: Path, output: str, stages: tuple[str, ...], targets: Targets, *arguments: str) -> str:
    """Return what `uv pip compile` resolves stages to, for all targets, in the format of the file `output`.

    folder  of the file, which may exist
    """
    cpython = "sys_platform == 'linux' and platform_python_implementation == 'CPython'"
    environments = [
        f"python_version == '{python}' and platform_machine == '{machine}' and {cpython}" for python, machine in targets
    ]
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "lock"\nversion = "0"\nrequires-python = "{REQUIRES}"\n[tool.uv]\n{environments = }\n'
    )
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    command += [
        "--universal",
        "--fork-strategy",
        "fewest",
        "--python-version",
        targets[0][0],
        "--directory",
        str(folder),
    ]
    command += ["--constraint", "constraints.txt", "--override", "overrides.txt", *arguments]
    subprocess.run([*command, "--output-file", output, *(str(ENVS / f"{stage}.in") for stage in stages)], check=True)
    return (folder / output).read_text()


def line_of(package: dict, targets: Targets) -> str:
    """Return the line of a lock for a package as pylock.toml describes it; empty where no target installs it."""
    marker = Marker(package.get("marker", "python_version > '3'"))
    own, hashes = [], set()
    for python, machine in targets:
        where = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
        where |= {"sys_platform": "linux", "platform_system": "Linux", "platform_python_implementation": "CPython"}
        if marker.evaluate(where):
            own.append((python, machine))
            wheels = {
                wheel["hashes"]["sha256"] for wheel in package.get("wheels", ()) if installs(wheel, python, machine)
            }
            hashes |= wheels or {package["sdist"]["hashes"]["sha256"]}
    pin = f"{package['name']}=={package['version']}"
    if not own:  # what PyPy needs
        return ""
    if own != targets:
        (machine,) = {machine for _, machine in own}
        if own != [target for target in targets if target[1] == machine]:
            raise ValueError(f"{pin} is for {own}; a lock can only say for which machine a package is")
        pin += f' ; platform_machine == "{machine}"'
    return pin + "".join(f" --hash=sha256:{sha256}" for sha256 in sorted(hashes)) + "\n"


def installs(wheel: dict, python: str, machine: str) -> bool:
    """Return whether a Python installs a wheel. Which glibc the wheel needs is left to the installer."""
    version = tuple(map(int, python.split(".")))
    known = {
        (tag.interpreter, tag.abi)
        for tag in (
            *cpython_tags(version, abis=[f"cp{version[0]}{version[1]}"], platforms=["any"]),
            *compatible_tags(version, platforms=["any"]),
        )
    }
    tags = parse_wheel_filename(unquote(wheel["url"].rpartition("/")[2]))[3]
    return any(
        (tag.interpreter, tag.abi) in known and re.fullmatch(rf"any|(many)?linux.*_{machine}", tag.platform)
        for tag in tags
    )


def lock(
    folder: Path,
    stages: tuple[str, ...],
    targets: Targets,
    overrides: list[str],
    versions: list[str],
    lines: dict[str, str],
) -> list[str]:
    """Write the locks of stages that install together; return the versions of all of them.

    versions  to keep to
    lines     of the locks before, by what stands before the hashes: a package has the same line in every lock
    """
    (folder / "overrides.txt").write_text("\n".join(overrides))
    (folder / "constraints.txt").write_text("\n".join(versions))
    paths = [ENVS / f"{stage}.txt" for stage in stages]
    locked = {line.partition(" --hash")[0] for path in paths if path.exists() for line in path.open()}
    (folder / "together.txt").write_text("\n".join(sorted(locked)))
    together = compiled(folder, "together.txt", stages, targets).splitlines()
    (folder / "constraints.txt").write_text("\n".join(together))
    for stage, path in zip(stages, paths, strict=True):
        toml = compiled(folder, f"pylock.{stage}.toml", (stage,), targets, "--format", "pylock.toml")
        own = sorted(line_of(package, targets) for package in tomllib.loads(toml)["packages"])
        path.write_text("".join(lines.setdefault(line.partition(" --hash")[0], line) for line in own))
    return together


def main() -> None:
    """Write every lock, and the conda environments."""
    first: list[str] = []
    lines: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        for stages, targets, overrides in TOGETHER:
            kept = [pin for pin in first if not re.match(REPLACED, pin)]
            versions = lock(Path(name), stages, targets, overrides, kept, lines)
            first = first or versions
        for stage in ALONE:
            lock(Path(name), (stage,), X86_64, [], [], lines)
        lock(Path(name), ("docs",), ALL, [], [], lines)
    conda.main()


if __name__ == "__main__":
    main()
