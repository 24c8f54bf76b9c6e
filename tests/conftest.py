"""What the tests share: a copy of the workflow to run in, and one whole run of the shipped config."""

import compileall
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import forked
import pytest
from filelock import FileLock
from openers import Openers
from ruamel.yaml import YAML
from tpulm.config.evaluations import Evaluations
from tpulm.config.outline import Outline
from tpulm.config.reading import merge_mappings, read_yaml
from tpulm.core import ledger
from tpulm.specs.artifacts import TOKENIZER_FILES
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
PARTS = [
    "Snakefile",
    "config.yaml",
    "pyproject.toml",
    "rules",
    "scripts",
    "schemas",
    "envs",
    "profiles",
    "report",
    "recipes",
    "tools",
]


class Workflow:
    """A copy of the workflow in a folder of its own."""

    steady = False  # whether its code stays as it is, and so is read once for all its runs
    servers: Path  # folder of the sockets of tests/forked.py, and of what copies are made of
    environment: dict[str, str]  # in which the servers start

    def __init__(self, folder: Path):
        """Copy the workflow to `folder`; in a session of tests with the bytecode of its modules, compiled once."""
        self.folder, parts = folder, ROOT
        if hasattr(self, "servers"):
            parts = self.servers / "parts"
            with FileLock(f"{parts}.lock"):
                if not parts.exists():
                    copy_parts(ROOT, parts)
                    compileall.compile_dir(parts / "scripts/tpulm", quiet=1)
        copy_parts(parts, folder)

    def __call__(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
        """Run `snakemake` with these arguments, forked; stdout and stderr come together."""
        with tempfile.TemporaryFile("w+") as terminal:
            code = self.start(*arguments, output=terminal.fileno()).wait()
            terminal.seek(0)
            done = subprocess.CompletedProcess(["snakemake", *arguments], code, terminal.read())
        return self.checked(done) if check else done

    def start(
        self, *arguments: str, environment: dict[str, str] | None = None, output: int | None = None
    ) -> forked.Process:
        """Start `snakemake` with these arguments, forked, in an environment: that of the tests, unless given."""
        job = {"arguments": arguments, "folder": str(self.folder), "environment": environment or outside()}
        job["python"] = self.python(self.steady)
        job["scripts"] = str(self / "scripts") if self.steady else None
        with open(os.devnull) as nothing:
            return forked.Process(self.server(self.steady), job, output and (nothing.fileno(), output, output))

    @classmethod
    def folder_of(cls, steady: bool) -> str:
        """Return the folder of the server for workflows of this kind."""
        folder = cls.servers / ("steady" if steady else "any")
        folder.mkdir(exist_ok=True)
        return str(folder)

    @classmethod
    def python(cls, steady: bool = False) -> str:
        """Return a Python in which Snakemake, as for workflows of this kind, and its scripts are forked."""
        return forked.python_of(cls.folder_of(steady), steady, session(), cls.environment)

    @classmethod
    def server(cls, steady: bool = False) -> str:
        """Return the address of the server for workflows of this kind, which the first that asks for it starts."""
        return forked.server(cls.folder_of(steady), "snakemake", session())

    def as_a_user(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
        """Run `snakemake` with these arguments in a process of its own, with a pipe for its output."""
        command = [str(Path(sys.executable).with_name("snakemake")), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=outside(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return self.checked(done) if check else done

    @staticmethod
    def checked(done: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
        """Fail the test with what was printed where the exit code is not 0."""
        if done.returncode:
            pytest.fail(f"{' '.join(done.args)} ended with {done.returncode}:\n{done.stdout[-6000:]}")
        return done

    def __truediv__(self, path: str) -> Path:
        return self.folder / path


def copy_parts(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, folder / part)
        else:
            shutil.copy2(source / part, folder / part)


def open_vocabulary(path: Path):
    """Return the tokenizer of a vocabulary file or of a preset folder, as rule write_base_tokenizer makes it."""
    from tpulm.tokenization.conversion import convert
    from tpulm.tokenization.tokenizer import TextTokenizer

    return TextTokenizer(convert(path))


def write_tokenizer_to(out: Path, source: Path, key: str = "tokenizer.pretrained") -> int:
    """Write the tokenizer of a folder below `out`, as a job does for `key`; return its size."""
    from tpulm.tokenization.folder import write_tokenizer  # it imports transformers

    out.mkdir(exist_ok=True)
    return write_tokenizer(source, [out / name for name in TOKENIZER_FILES.values()], f"{key} is {source}")


def outside() -> dict[str, str]:
    """Return the environment without what the tests add to it."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "KERAS_BACKEND"))}


def session() -> int:
    """Return the process with which the session of tests ends."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def shared(tmp_path_factory) -> Path:
    """Return a folder that all processes of the tests have in common."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


# The groups of tests that take long, in the order in which they start: what mostly waits beside what mostly computes,
# and what needs no fixture `trained` while that is made. A group is run by one process.
FIRST = [
    "slurm",
    "causal",
    "tuned_only",
    "attention",
    "plan",
    "keys_of_runs",
    "keys_of_texts",
    "task_training",
    "gcs",
    "experiments",
    "harness",
    "hosts",
    "without_tensorflow",
    "mlm_jax",
    "tpu_vm",
    "workflow",
    "gke",
    "resume",
]
# Files that are one group: they import JAX in their own process.
TOGETHER = dict.fromkeys(("lora", "transformers", "byte_level"), "causal")
# Files whose tests share nothing: each test is a group of its own.
APART = {"docs", "faults", "resume", "staleness", "tpu_vm"}


def group_and_name(nodeid: str) -> tuple[str, str]:
    """Return the group of a test, and what FIRST calls it."""
    path, _, test = nodeid.partition("::")
    name = Path(path).stem.removeprefix("test_")
    if name == "staleness" and re.search("changed_key|line_added|edit_reruns|only_their_code|new_and_renamed", test):
        # These begin from states; of each half, a process has them.
        of_texts = re.search(r"\[(jax|more|tasks)\]|line_added", test)
        name = "keys_of_texts" if of_texts else "keys_of_runs"
    name = TOGETHER.get(name, name)
    return nodeid if name in APART else name, name


class Groups(LoadScopeScheduling):
    """Gives each group of tests to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_and_name(nodeid)[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log) -> Groups:
    """Have the tests distributed by groups."""
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the groups that take long first."""
    place = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(group_and_name(item.nodeid)[1], len(FIRST)))


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Hold `make check` to its promise: TensorFlow takes seconds to import, and no unit test needs it."""
    if item.config.option.markexpr.startswith("unit") and sys.modules.get("tensorflow"):
        pytest.fail("tensorflow was imported: by this test, or by a file of tests when it was collected")


@pytest.fixture(scope="session")
def openers(tmp_path_factory) -> Openers:
    """Environments with transformers 5 and 4, PyTorch and PEFT, for long tests: tests/openers.py."""
    return Openers(shared(tmp_path_factory) / "openers")


@pytest.fixture(scope="session")
def finished_workflow(tmp_path_factory) -> Workflow:
    """The shipped config, run from scratch once, with its report; for long tests, which must not change it."""

    def build(workflow: Workflow) -> str:
        return workflow.as_a_user("--cores", "2").stdout + workflow.as_a_user("--report", "report.zip").stdout

    return once(shared(tmp_path_factory) / "finished", build)


def once(folder: Path, build: Callable[[Workflow], str]) -> Workflow:
    """Return the workflow in `folder`, which is built by the first process of the tests that asks for it."""
    printed = folder / "terminal.txt"
    with FileLock(f"{folder}.lock"):
        if printed.is_file():
            return existing(folder)
        workflow = Workflow(folder)
        printed.write_text(build(workflow))
    return workflow


@pytest.fixture(scope="session", autouse=True)
def in_common(tmp_path_factory) -> None:
    """The servers of a session, and one cache of compiled programs, where each workflow would have its own."""
    Workflow.servers = shared(tmp_path_factory)
    folder = Workflow.servers / "compiled"
    folder.mkdir(exist_ok=True)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
    os.environ.setdefault("TF_XLA_FLAGS", f"--tf_xla_persistent_cache_directory={folder}")
    Workflow.environment = outside()
    # A test that imports TensorFlow imports Keras, too, whose backend tests of JAX in the same process cannot change.
    os.environ["KERAS_BACKEND"] = "jax"


# Values that must never be seen again: each is in the environment of the workflow below.
CANARIES = {
    "HF_TOKEN": "hf_canaryCanaryCanaryCanary0001",
    "KAGGLE_KEY": "canary0002canary0002canary0002ab",
    "WANDB_API_KEY": "canary0003canary0003canary0003canary0003",
}
CREDENTIALS = {"type": "service_account", "private_key": "-----BEGIN KEY-----\ncanary0004canary0004canary0004\n"}


@pytest.fixture(scope="session")
def secrets(tmp_path_factory) -> dict[str, str]:
    """An environment that holds CANARIES, and names a file with CREDENTIALS."""
    file = tmp_path_factory.mktemp("credentials") / "key.json"
    file.write_text(json.dumps(CREDENTIALS))
    return CANARIES | {"KAGGLE_USERNAME": "user", "GOOGLE_APPLICATION_CREDENTIALS": str(file)}


@pytest.fixture(scope="session")
def trained(tmp_path_factory, secrets) -> Workflow:
    """Every stage of the shipped config cut down, run once with secrets in the environment; not to be changed."""

    def build(workflow: Workflow) -> str:
        reduced(workflow)
        (workflow / "small.yaml").rename(workflow / "config.yaml")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in secrets.items():
                patch.setenv(name, value)
            return workflow("--cores", "2").stdout + workflow("--report", "report.zip").stdout

    return once(shared(tmp_path_factory) / "trained", build)


def existing(folder: Path) -> Workflow:
    workflow = Workflow.__new__(Workflow)
    workflow.folder = folder
    return workflow


def write_yaml(path: Path, config: dict) -> None:
    with open(path, "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)


DELETE = object()


def config_with(config: dict, changes: dict) -> dict:
    """Return a copy of a config with values at dotted paths replaced, added or, with DELETE, deleted."""
    config = copy.deepcopy(config)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = config
        for key in parents:
            place = place.setdefault(key, {})
        if value is DELETE:
            del place[last]
        else:
            place[last] = copy.deepcopy(value)  # a value that stands twice must not become one by an anchor
    return config


def configured(workflow: Workflow, changes: dict, name: str = "changed.yaml") -> tuple[str, str]:
    """Write the config of a workflow with changes, see `config_with`, as a file; return its option."""
    # Written as JSON, which is YAML, and quicker than its library. A value that stands twice must not become an anchor.
    (workflow / name).write_text(json.dumps(config_with(read_yaml(workflow / "config.yaml"), changes)))
    return "--configfile", name


def evaluations_of(config):
    """Return the evaluations of a completed config whose artifacts are not made."""
    return Evaluations(Outline(config), lambda path: False)


def task_runs_of(config):
    return list(evaluations_of(config).task_runs.values())


def copied(workflow: Workflow, folder: Path) -> Workflow:
    """Return a copy of a workflow with its results, in a new folder, to be changed."""
    shutil.copytree(workflow.folder, folder / "copy", symlinks=True)
    return existing(folder / "copy")


@pytest.fixture
def built(trained, tmp_path) -> Workflow:
    """A copy of `trained`, to be changed, but for its code."""
    workflow = copied(trained, tmp_path)
    workflow.steady = True
    return workflow


@pytest.fixture
def fresh(tmp_path) -> Workflow:
    """A copy in which nothing has been built."""
    return Workflow(tmp_path / "workflow")


# The shipped config with every size cut down, for tests that need all stages and not what they learn. Its masked model
# is a RoBERTa on TensorFlow, so that both libraries train in it.
SMALL = """
corpus: {max_documents: 600, held_out: {validation: 0.004, test: 0.004}}
tokenizer: {vocab_size: 400}
mlm:
  runs:
    tiny:
      backend: tensorflow
      model: {architecture: roberta, num_hidden_layers: 1, intermediate_size: 512, max_position_embeddings: 132,
              hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0}
      steps: 20
      checkpoint_every: 10
      batch_size: 8
      microbatches: 1
      schedule: {shape: wsd, warmup_steps: 2, decay_steps: 8}
base:
  small:
    {model: {num_layers: 1, dropout: 0.1}, vocab_size: 400, steps: 20, checkpoint_every: 10, batch_size: 4,
     microbatches: 1, schedule: {shape: wsd, warmup_steps: 2, decay_steps: 5}}
finetune:
  text: {max_documents: 300, held_out: {validation: 0.004, test: 0.004}}
  runs:
    python: {steps: 10, checkpoint_every: 5, batch_size: 4, schedule: {shape: linear, warmup_steps: 2}}
generation: {max_new_tokens: 16, samples: 2}
evaluation: {text: {masked_documents: 2}}
"""


def reduced(workflow: Workflow, **sections: dict) -> None:
    """Write small.yaml into a workflow: the shipped config, cut down, with whole `sections` replaced."""
    config = read_yaml(workflow / "config.yaml")
    for run in (config["mlm"]["runs"]["tiny"], config["base"]["small"], config["finetune"]["runs"]["python"]):
        del run["schedule"]  # its steps are longer than the cut-down runs
    config.get("evaluation", {}).pop("tasks", None)  # tests/test_task_training.py has its own
    merge_mappings(config, YAML(typ="safe", pure=True).load(SMALL))
    write_yaml(workflow / "small.yaml", config | sections)


def write_record(folder: Path, log: str, rule: str, start: float, end: float, inputs=(), outputs=(), **more) -> None:
    """Append a job that succeeded to the ledger of a folder.

    inputs, outputs  their paths, or their SHA-256 by path; more  facts of its end
    """
    host = {"processors": 2, "processor": "x", "python": "3.11.2", "machine": "x86_64", "system": "Linux"}
    began = {"event": "start", "time": start, "rule": rule, "script": f"scripts/x/{rule}.py", "wildcards": {}}
    began |= {"recipe": {}, "code": {}, "packages": {}, "host": host}
    began["inputs"] = inputs if isinstance(inputs, dict) else dict.fromkeys(inputs)
    ended = {"event": "end", "time": end, "exit": 0, "cpu_seconds": end - start, "memory_bytes": 1} | more
    sums = outputs if isinstance(outputs, dict) else dict.fromkeys(outputs)
    ended["outputs"] = {path: {"bytes": 1, "sha256": digest} for path, digest in sums.items()}
    for line in (began, ended):
        ledger.append(folder / ledger.path_of(log), line)
