"""The rules of the house: what makes reruns exact and the workflow legible, held against the files as they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from lib.dependencies import imported

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"
STAGES = ["controller", "data", "tensorflow", "jax", "report", "test"]


def rules():
    """Return (name, text) of every rule that runs a script."""
    found = []
    for file in sorted((ROOT / "rules").glob("*.smk")):
        _, *parts = re.split(r"^ *rule (\w+):\n", file.read_text(), flags=re.M)
        found += [(name, body) for name, body in zip(parts[::2], parts[1::2], strict=True) if "script:" in body]
    return found


def pins(lock):
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", lock.read_text(), re.M))


def test_there_are_rules_to_check():
    assert len(rules()) > 20


@pytest.mark.parametrize(("name", "body"), rules(), ids=lambda value: value if "\n" not in value else "")
def test_a_rule_has_a_script_of_its_name_and_declares_its_code(name, body):
    assert f'"../scripts/{name}.py"' in body
    assert (SCRIPTS / f"{name}.py").is_file()
    stage = re.search(r'conda:\s+"\.\./envs/(\w+)\.yaml"', body)[1]
    assert f'library("{name}", "{stage}")' in body
    assert '"""' in body and "log:" in body and "threads:" in body


def test_every_script_belongs_to_a_rule():
    assert {path.stem for path in SCRIPTS.glob("*.py")} == {name for name, _ in rules()}


def test_imports_are_followed_through_modules_and_functions(tmp_path):
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "a.py").write_text("import os\nfrom lib.b import x\n")
    (lib / "b.py").write_text("def f():\n    from lib import c\n")
    (lib / "c.py").write_text("if True:\n    import lib.d\n")
    (lib / "d.py").write_text("")
    (lib / "unused.py").write_text("")
    script = tmp_path / "s.py"
    script.write_text("from lib import a, nothing\n")
    assert {path.stem for path in imported(script, tmp_path)} == {"a", "b", "c", "d"}


IMPORT_ALL = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
importlib.import_module("lib." + sys.argv[2])
print("\\n".join(name for name in sys.modules if name.startswith("lib.")))
"""


@pytest.mark.parametrize("module", ["mlm_data", "tuning", "tfrecord", "corpus", "tokenizer"])
def test_what_python_really_imports_is_among_the_declared(module):
    code = "import os; os.environ['KERAS_BACKEND'] = 'jax'\n" + IMPORT_ALL
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPTS), module], capture_output=True, text=True, check=True
    )
    path = SCRIPTS / "lib" / f"{module}.py"
    declared = {f"lib.{file.stem}" for file in imported(path, SCRIPTS) | {path}}
    assert set(done.stdout.split()) <= declared


@pytest.mark.parametrize("stage", STAGES)
def test_a_stages_lock_is_a_part_of_the_local_one(stage):
    lock, everything = pins(ROOT / f"envs/{stage}.txt"), pins(ROOT / "envs/local.txt")
    assert lock and set(lock.items()) <= set(everything.items())
    assert (ROOT / f"envs/{stage}.txt").read_text().count("--hash=sha256:") >= len(lock)


# Whole environments for machines with accelerators, the stages that differ there, and what may differ in them.
NVIDIA = r"nvidia-.*|jax-cuda12-.*"
TENSORFLOW_TPU = r"libtpu|tensorflow|tensorflow-text|tensorflow-tpu|tf-keras|tensorboard.*|markdown|werkzeug"
VARIANTS = {
    "gpu": (["jax-gpu", "tensorflow-gpu"], NVIDIA),
    "tpu": (["jax-tpu"], "(?!)"),  # nothing: the compiler that plans is the one that trains
    "tpu-tensorflow": (["tensorflow-tpu"], TENSORFLOW_TPU),
}


@pytest.mark.parametrize("machine", VARIANTS)
def test_a_variant_differs_in_what_the_accelerator_wants_alone(machine):
    stages, allowed = VARIANTS[machine]
    everything, local, test = (pins(ROOT / f"envs/{name}.txt") for name in (machine, "local", "test"))
    assert all(re.fullmatch(allowed, name) for name, _ in set(everything.items()) - set(local.items()))
    assert all(name in test or re.fullmatch(allowed, name) for name in set(local) - set(everything))
    text = (ROOT / f"envs/{machine}.txt").read_text()
    assert len(everything) > 100 and text.count("--hash=sha256:") >= len(everything)
    for stage in stages:
        lock = pins(ROOT / f"envs/{stage}.txt")
        assert lock and set(lock.items()) <= set(everything.items())


def test_tensorflow_is_in_an_environment_once():
    """tensorflow and tensorflow-tpu are packages with the same files."""
    for lock in (ROOT / "envs").glob("*.txt"):
        assert not {"tensorflow", "tensorflow-tpu"} <= set(pins(lock)), lock


def test_conda_environments_are_in_step_with_the_locks():
    sys.path.insert(0, str(ROOT / "envs"))
    from conda_environments import STAGES as stages
    from conda_environments import VARIANTS as variants
    from conda_environments import environment

    built = stages + variants
    assert set(variants) == {stage for stages, _ in VARIANTS.values() for stage in stages}
    assert {path.stem for path in (ROOT / "envs").glob("*.yaml")} == set(built)
    for stage in built:
        assert (ROOT / f"envs/{stage}.yaml").read_text() == environment((ROOT / f"envs/{stage}.txt").read_text())


def test_no_lock_names_a_registry():
    for lock in (ROOT / "envs").iterdir():
        if lock.is_file():
            assert not re.search(r"https?://|--(extra-)?index-url", lock.read_text()), lock
