"""Make the environment .venv of this folder from the locks, or add to it. `make setup` runs this.

    python3 envs/setup.py local         # an environment: local, gpu, tpu or tpu-tensorflow
    python3 envs/setup.py slurm         # what a profile needs, beside it: slurm, gke, gcs or tpu-vm
    python3 envs/setup.py tests         # what the tests need, beside it

What was installed before stays, apart from another environment. Without --python it takes the oldest supported Python
with a working venv that is on PATH. Without one, it installs uv with the pip or the venv of the Python that is there;
uv takes, or downloads, the oldest supported Python. Packages come from the index that pip is set to.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ENVS = Path(__file__).resolve().parent
ENVIRONMENTS = ("local", "gpu", "tpu", "tpu-tensorflow")
ADDITIONS = ("slurm", "gke", "gcs", "tpu-vm", "tests")
# Read with a pattern: any Python 3 may run this, and older ones have no parser of TOML.
REQUIRES = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ENVS.parent / "pyproject.toml").read_text())
SUPPORTED = [f"3.{minor}" for minor in range(int(REQUIRES[1]), int(REQUIRES[2]))]
# What a Python answers that can make an environment: Debian has venv, and ensurepip, in a package of its own.
ASK = "import sys; print('%d.%d' % sys.version_info[:2]); import ensurepip, venv"
INSTALL_UV = ("-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(ENVS / "bootstrap.txt"))
UV = ENVS.parent / ".venv-uv"  # until .venv has its own
ASKED = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}


def version_of(python):
    """Return the version of a program if it is a Python, such as 3.11, and whether it can make environments."""
    path = shutil.which(python)
    asked = path and subprocess.run([path, "-c", ASK], **ASKED)
    return (asked.stdout.strip(), asked.returncode == 0) if asked else ("", False)


def find_python(named):
    """Return the Python to use, and its version: the one that is named, or the oldest on PATH.

    None, and the version that uv is to find, where uv can be installed. Exits where it cannot.
    """
    allowed = f"{', '.join(SUPPORTED[:-1])} or {SUPPORTED[-1]}"
    candidates = [named] if named else [f"python{version}" for version in SUPPORTED] + ["python3"]
    found = {python: version_of(python) for python in candidates}
    working = {version: python for python, (version, works) in reversed(found.items()) if works}
    for version in SUPPORTED:
        if version in working:
            return working[version], version
    if not named and uv_installer():
        return None, SUPPORTED[0]
    for python, (version, _) in found.items():
        if version in SUPPORTED:
            sys.exit(f"error: {python} has no working venv; on Debian and Ubuntu: apt-get install python{version}-venv")
    if named:
        what = f"Python {found[named][0]}" if found[named][0] else "no Python"
        sys.exit(f"error: {named} is {what}; allowed: Python {allowed}.")
    sys.exit(
        f"error: no Python {allowed} is on this machine, and python3 has neither venv nor pip, which install one; on "
        "Debian and Ubuntu: apt-get install python3-venv; or name a Python: make PYTHON=/path/to/python3"
    )


def uv_installer():
    """Return how this machine can install uv: "uv", if it is there, "pip", "venv", or None."""
    if shutil.which("uv"):
        return "uv"
    pip = shutil.which("python3") and subprocess.run(["python3", "-m", "pip", "--version"], **ASKED).returncode == 0
    return "pip" if pip else "venv" if version_of("python3")[1] else None


def make_by_uv(folder, version):
    """Make the environment with a Python that uv finds or downloads, and return uv."""
    how = uv_installer()
    if how == "pip":
        run("python3", *INSTALL_UV, "--upgrade", "--target", str(UV))
    elif how == "venv":
        run("python3", "-m", "venv", "--clear", str(UV))
        run(str(UV / "bin/python"), *INSTALL_UV)
    uv = "uv" if how == "uv" else str(UV / "bin/uv")
    if subprocess.run([uv, "venv", "--quiet", "--clear", "--python", version, str(folder)], check=False).returncode:
        sys.exit(
            f"error: no Python {version} is on this machine, and uv cannot download one; on Debian and Ubuntu: apt-get "
            f"install python{version}-venv; or name a Python: make PYTHON=/path/to/python3"
        )
    return uv


def locks_of(names):
    """Return the lock files that environments and additions are made of."""
    files = []
    for name in names:
        path = ENVS / f"{name}.txt"
        files += [ENVS / line[3:] for line in path.read_text().splitlines() if line.startswith("-r ")] or [path]
    return list(dict.fromkeys(files))


def run(*command):
    """Run a command; exit where it fails."""
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(f"error: the environment cannot be made: `{' '.join(command)}` ended with {done.returncode}.")


def check_cache():
    """Exit if the folder for caches cannot be written: Snakemake would end in a traceback."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        problem = "" if os.access(folder, os.W_OK) else "Permission denied"
    except OSError as error:
        problem = error.strerror
    if problem:
        sys.exit(f"error: {folder} cannot be written ({problem}); set XDG_CACHE_HOME to a folder for caches that can.")


def main(names, named_python):
    """Make what is installed in .venv what `names` and earlier calls ask for."""
    check_cache()
    unknown = [name for name in names if name not in ENVIRONMENTS + ADDITIONS]
    if unknown:
        sys.exit(f"error: {unknown[0]} is no environment; allowed: {', '.join(ENVIRONMENTS + ADDITIONS)}.")
    folder = ENVS.parent / ".venv"
    ready = folder / "installed.json"
    before = json.loads(ready.read_text()) if ready.exists() else {"names": ["local"]}
    environment = [name for name in [*names, *before["names"]] if name in ENVIRONMENTS][0]
    wanted = [environment, *(name for name in ADDITIONS if name in [*before["names"], *names])]
    locks = locks_of(wanted)
    after = {"names": wanted, "locks": hashlib.sha256(b"".join(path.read_bytes() for path in locks)).hexdigest()}
    if before == {**before, **after} and not named_python:
        return
    python, after["python"] = find_python(named_python)
    if before == after:
        return
    packages = sum(path.read_text().count("==") for path in locks)
    print(f"installing {packages} packages of {' and '.join(wanted)} in .venv; that takes some minutes", flush=True)
    ready.unlink(missing_ok=True)
    own, uv = (str(folder / "bin" / name) for name in ("python", "uv"))
    if before.get("python") != after["python"] and python:
        run(python, "-m", "venv", "--clear", str(folder))
    elif before.get("python") != after["python"]:
        uv = make_by_uv(folder, after["python"])
    if (folder / "bin/pip").exists():  # uv makes environments without it
        run(own, *INSTALL_UV)
    run(uv, "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode", "--python", own, *map(str, locks))
    shutil.rmtree(UV, ignore_errors=True)
    ready.write_text(json.dumps(after) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--python", help="the Python of the environment, a path or a name on PATH")
    options = parser.parse_args()
    main(options.names, options.python)
