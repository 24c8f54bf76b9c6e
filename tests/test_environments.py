"""The locked environments in envs/: they fit together, and hold what an installer needs and no more."""

import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import conda
import pytest
import setup

pytestmark = pytest.mark.unit
ENVS = Path(__file__).parents[1] / "envs"
LOCK_LINE = re.compile(r'([a-z0-9-]+)==(\S+)( ; platform_machine == "(x86_64|aarch64)")?( --hash=sha256:[0-9a-f]{64})+')
STAGES = sorted(path.stem for path in ENVS.glob("*.in"))
# What `make setup` installs: the locks of an environment, and of what is added to it.
LOCKS = {name: [path.stem for path in setup.locks_of([name])] for name in setup.ENVIRONMENTS + setup.ADDITIONS}
# What may differ in a variant for accelerators.
NVIDIA = r"nvidia-.*|jax-cuda12-.*|tensorflow|tensorflow-cpu|tensorflow-text|libclang"
TENSORFLOW_TPU = r"libtpu|libclang|tensorflow|tensorflow-cpu|tensorflow-tpu|tf-keras|tensorboard.*|markdown|werkzeug"
VARIANTS = {"jax-gpu": NVIDIA, "tensorflow-gpu": NVIDIA, "tensorflow-tpu": TENSORFLOW_TPU}
TENSORFLOWS = {"tensorflow", "tensorflow-cpu", "tensorflow-tpu"}  # packages with the same files


def pins(stage: str) -> dict[str, str]:
    return dict(LOCK_LINE.fullmatch(line).group(1, 2) for line in (ENVS / f"{stage}.txt").read_text().splitlines())


@pytest.mark.parametrize("stage", STAGES)
def test_a_lock_has_what_its_stage_asks_for_with_versions_and_hashes(stage):
    lines = (ENVS / f"{stage}.txt").read_text().splitlines()
    assert lines == sorted(set(lines)) and all(LOCK_LINE.fullmatch(line) for line in lines)
    asked, locked = (ENVS / f"{stage}.in").read_text(), pins(stage)
    assert len(locked) == len(lines)  # no package twice
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[a-z0-9-]+\])?(?:==([^\s;]+))?", asked, re.M):
        name = name.replace(".", "-").replace("_", "-").lower()
        if name != "-r":
            assert name in locked and version in ("", locked[name])


@pytest.mark.parametrize(
    ("environment", "machine"), [*product(("local", "gpu", "tpu"), ("x86_64", "aarch64")), ("tpu-tensorflow", "x86_64")]
)
def test_the_locks_of_an_environment_agree(environment, machine):
    assert LOCKS[environment][0] == "bootstrap"  # else `uv pip sync` would take itself away
    # The tests plan with a libtpu that TensorFlow's is too old for.
    for addition in set(setup.ADDITIONS) - ({"tests"} if environment == "tpu-tensorflow" else set()):
        stages = {*LOCKS[environment], *LOCKS[addition]}
        lines = {line for stage in stages for line in (ENVS / f"{stage}.txt").read_text().splitlines()}
        found = [LOCK_LINE.fullmatch(line) for line in lines]
        names = [line[1] for line in found if line[4] in (None, machine)]
        assert len(names) == len(set(names))
        assert len(TENSORFLOWS & set(names)) == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_differs_in_what_the_accelerator_wants_alone(variant):
    stage, other = (set(pins(name).items()) for name in (variant.split("-")[0], variant))
    everything = {pin for name in LOCKS["local"] for pin in pins(name).items()}
    changed = (stage - other) | (other - everything)
    assert changed and all(re.fullmatch(VARIANTS[variant], name) for name, _ in changed)


def test_conda_environments_are_in_step_with_the_locks():
    rules = "".join(path.read_text() for path in (ENVS.parent / "rules").glob("*.smk"))
    assert set(conda.STAGES) == set(re.findall(r"\.\./envs/(\w+)\.yaml", rules))
    assert {path.stem for path in ENVS.glob("*.yaml")} == set(conda.STAGES)
    for stage in conda.STAGES:
        text = conda.environment(stage, stage)
        assert (ENVS / f"{stage}.yaml").read_text() == text
        # pip looks for what TensorFlow's dependents name.
        assert "tensorflow-cpu" not in text and ('"tensorflow==' in text) == (stage in conda.COMPLETE)


def test_a_variant_can_stand_in_for_its_stage_under_conda(tmp_path, monkeypatch):
    for path in ENVS.glob("*.txt"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(conda, "__file__", str(tmp_path / "conda.py"))
    conda.main("jax=jax-gpu")
    assert "jax-cuda12-plugin" in (tmp_path / "jax.yaml").read_text()
    assert (tmp_path / "tensorflow.yaml").read_text() == (ENVS / "tensorflow.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lokal"], "error: lokal is no environment; allowed: local, gpu, tpu, "),
        (["local", "--python", "/bin/true"], "error: /bin/true is no Python; allowed: "),
    ],
)
def test_what_cannot_be_set_up_is_a_sentence(tmp_path, arguments, said):
    (tmp_path / "envs").mkdir()
    for path in (*ENVS.glob("*.txt"), ENVS / "setup.py"):
        (tmp_path / "envs" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ENVS.parent / "pyproject.toml").read_bytes())
    done = subprocess.run([sys.executable, tmp_path / "envs/setup.py", *arguments], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith(said) and not (tmp_path / ".venv").exists()


def test_a_cache_that_cannot_be_written_is_a_sentence():
    absent = {"HOME": "/proc/absent", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, ENVS / "setup.py"], capture_output=True, text=True, env=absent)
    assert done.returncode == 1 and done.stderr.startswith("error: /proc/absent/.cache cannot be written (")
    assert "set XDG_CACHE_HOME" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("machine", "python"),
    [
        ({"python3": ("3.11", True), "python3.12": ("3.12", True)}, ("python3", "3.11")),  # the oldest has no name
        ({"python3": ("3.11", True), "python3.11": ("3.11", True)}, ("python3.11", "3.11")),
        (
            {"python3": ("3.9", True), "python3.11": ("3.11", False), "python3.13": ("3.13", True)},
            ("python3.13", "3.13"),
        ),
    ],
)
def test_the_oldest_python_that_works_is_taken(monkeypatch, machine, python):
    monkeypatch.setattr(setup, "version_of", lambda name: machine.get(name, ("", False)))
    assert setup.find_python(None) == python


@pytest.mark.parametrize(
    ("pythons", "pip", "downloads", "made"),
    [
        ({"python3": ("3.10", False)}, True, True, "pip install"),  # as in Ubuntu 22.04 with python3-pip
        ({"python3": ("3.10", True)}, False, True, "-m venv"),  # with python3-venv
        ({"python3": ("3.10", True)}, False, False, "error: .*uv cannot download.*python3.11-venv"),
        ({"python3": ("3.10", False)}, False, True, "error: no Python 3.11.*neither venv nor pip.*python3-venv"),
        ({"python3": ("3.11", False)}, False, True, "error: python3 has no working venv.*python3.11-venv"),
    ],
)
def test_uv_brings_a_python_where_none_works(monkeypatch, tmp_path, pythons, pip, downloads, made):
    commands = []

    def ran(command, **options):
        commands.append(" ".join(map(str, command)))
        failed = not pip if "--version" in command else not downloads
        return subprocess.CompletedProcess(command, int(failed), "", "")

    monkeypatch.setattr(setup, "version_of", lambda name: pythons.get(name, ("", False)))
    monkeypatch.setattr(setup.shutil, "which", lambda name: name if name in pythons else None)
    monkeypatch.setattr(setup, "run", lambda *command: commands.append(" ".join(map(str, command))))
    monkeypatch.setattr(setup.subprocess, "run", ran)
    if made.startswith("error"):
        with pytest.raises(SystemExit, match=f"^{made}"):
            setup.make_by_uv(tmp_path / ".venv", setup.find_python(None)[1])
        return
    assert setup.find_python(None) == (None, "3.11")
    uv = setup.make_by_uv(tmp_path / ".venv", "3.11")
    assert any(made in command for command in commands)
    assert commands[-1] == f"{uv} venv --quiet --clear --python 3.11 {tmp_path / '.venv'}"
