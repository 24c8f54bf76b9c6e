"""The locked environments in envs/: they fit together, and hold what an installer needs and no more."""

import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
ENVS = Path(__file__).parents[1] / "envs"
sys.path.insert(0, str(ENVS))
import conda  # noqa: E402

LOCK_LINE = re.compile(r'([a-z0-9-]+)==(\S+)( ; platform_machine == "(x86_64|aarch64)")?( --hash=sha256:[0-9a-f]{64})+')
STAGES = sorted(path.stem for path in ENVS.glob("*.in"))
OPENERS = {stage for stage in STAGES if stage.startswith("openers")}  # of tests alone, each an environment by itself
# What `make setup` installs, and the locks that it is made of.
ENVIRONMENTS = {
    path.stem: re.findall(r"^-r (\S+)\.txt$", path.read_text(), re.M)
    for path in sorted(ENVS.glob("*.txt"))
    if path.stem not in STAGES
}
# What may differ in a variant for accelerators.
NVIDIA = r"nvidia-.*|jax-cuda12-.*"
TENSORFLOW_TPU = r"libtpu|tensorflow|tensorflow-text|tensorflow-tpu|tf-keras|tensorboard.*|markdown|werkzeug"
VARIANTS = {"jax-gpu": NVIDIA, "tensorflow-gpu": NVIDIA, "tensorflow-tpu": TENSORFLOW_TPU}


def pins(stage: str) -> dict[str, str]:
    return dict(LOCK_LINE.fullmatch(line).group(1, 2) for line in (ENVS / f"{stage}.txt").read_text().splitlines())


@pytest.mark.parametrize("stage", STAGES)
def test_every_line_of_a_lock_is_a_version_with_hashes(stage):
    lines = (ENVS / f"{stage}.txt").read_text().splitlines()
    assert lines == sorted(set(lines)) and all(LOCK_LINE.fullmatch(line) for line in lines)
    assert len(pins(stage)) == len(lines)  # no package twice


@pytest.mark.parametrize("stage", STAGES)
def test_a_lock_has_what_its_stage_asks_for(stage):
    asked, locked = (ENVS / f"{stage}.in").read_text(), pins(stage)
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[a-z0-9-]+\])?(?:==([^\s;]+))?", asked, re.M):
        name = name.replace(".", "-").replace("_", "-").lower()
        if name != "-r":
            assert name in locked and version in ("", locked[name])


def test_the_environments_are_made_of_the_locks():
    assert set(ENVIRONMENTS) == {"local", "gpu", "tpu", "tpu-tensorflow"}
    assert {stage for stages in ENVIRONMENTS.values() for stage in stages} == set(STAGES) - OPENERS


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_locks_of_an_environment_agree(environment):
    assert ENVIRONMENTS[environment][0] == "bootstrap"  # else `uv pip sync` would take itself away
    lines = {line for stage in ENVIRONMENTS[environment] for line in (ENVS / f"{stage}.txt").read_text().splitlines()}
    names = [LOCK_LINE.fullmatch(line)[1] for line in lines]
    assert len(names) == len(set(names))
    # tensorflow and tensorflow-tpu are packages with the same files.
    assert len({"tensorflow", "tensorflow-tpu"} & set(names)) == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_differs_in_what_the_accelerator_wants_alone(variant):
    stage, other = (set(pins(name).items()) for name in (variant.split("-")[0], variant))
    everything = {pin for name in ENVIRONMENTS["local"] for pin in pins(name).items()}
    changed = (stage - other) | (other - everything)
    assert changed and all(re.fullmatch(VARIANTS[variant], name) for name, _ in changed)


def test_conda_environments_are_in_step_with_the_locks(tmp_path):
    rules = "".join(path.read_text() for path in (ENVS.parent / "rules").glob("*.smk"))
    assert set(conda.STAGES) == set(re.findall(r"\.\./envs/(\w+)\.yaml", rules))
    assert {path.stem for path in ENVS.glob("*.yaml")} == set(conda.STAGES)
    for stage in conda.STAGES:
        assert (ENVS / f"{stage}.yaml").read_text() == conda.environment((ENVS / f"{stage}.txt").read_text())


def test_a_variant_can_stand_in_for_its_stage_under_conda(tmp_path, monkeypatch):
    for path in ENVS.glob("*.txt"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(conda, "__file__", str(tmp_path / "conda.py"))
    conda.main("jax=jax-gpu")
    assert "jax-cuda12-plugin" in (tmp_path / "jax.yaml").read_text()
    assert (tmp_path / "tensorflow.yaml").read_text() == (ENVS / "tensorflow.yaml").read_text()


def test_no_lock_names_a_registry():
    for path in ENVS.iterdir():
        if path.is_file():
            assert not re.search(r"https?://|--(extra-)?index-url|files\.", path.read_text()), path
