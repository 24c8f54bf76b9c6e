"""What `make` mends in the installed Snakemake: it does the same, and starts faster."""

import importlib.util
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from snakemake.iocontainers import InputFiles, Log, OutputFiles, Params, ResourceList, Snakemake, Wildcards

pytestmark = pytest.mark.unit

# Without and with a use of the libraries.
USED = """
import sys
from urllib.parse import unquote

import snakemake_executor_plugin_kubernetes as for_kubernetes
import snakemake_executor_plugin_slurm.efficiency_report as for_slurm
import snakemake_storage_plugin_gcs as for_gcs
import snakemake.cli
import snakemake.report
from snakemake.iocontainers import Params, Snakemake
from snakemake.persistence import MetadataRecord, PersistenceBase
from snakemake.script import get_language
from snakemake.sourcecache import LocalSourceFile, SourceCache
from yte.value_handler import ValueHandler

LATER = {
    "docutils", "google.cloud.storage", "kubernetes", "nbformat", "numpy", "pandas", "pydantic", "smart_open",
    "sqlalchemy", "sqlmodel",
}
holder = Snakemake.__new__(Snakemake)
holder._safely_store_params(Params(toclone=[{"key": 1}]))
serialized = PersistenceBase._serialize_param_pandas
own = LocalSourceFile(__file__)
assert SourceCache._open(None, own, "r", "utf-8").read() == open(__file__, encoding="utf-8").read()
assert get_language(own, "") == "python"
assert ValueHandler().postprocess({"a": ["b"]}) == {"a": ["b"]}
kept = dict(MetadataRecord(rule="a", params=["1"], input_checksums={"b": "c"}).items())
assert dict(MetadataRecord.model_validate({**kept, "other": 1}).items()) == kept
places = [own.get_cache_path(), LocalSourceFile("a b%20c").get_cache_path()]
print(LATER & set(sys.modules))
assert for_kubernetes.kubernetes.client.V1Job().kind is None
assert for_slurm.parse_maxrss("2048K") == 2.0
from google.api_core.exceptions import ServiceUnavailable
from google.cloud.exceptions import Forbidden
from snakemake.common import parse_uri
from snakemake.persistence import db

times = []


@for_gcs.retry.Retry(predicate=for_gcs.google_cloud_retry_predicate, initial=0.001)
def ask(answer):
    times.append(1)
    if len(times) < 3:
        raise ServiceUnavailable("later")
    return answer


assert ask(4) == 4 and len(times) == 3
assert for_gcs.google.cloud.exceptions.Forbidden is Forbidden and for_gcs.storage.Client.__name__ == "Client"
assert callable(for_gcs.transfer_manager.download_many_to_path)
assert "<img" in snakemake.report.publish_parts(".. image:: a.png", writer_name="html")["body"]
with_database = db.MetadataRecord(rule="a", params=["1"], input_checksums={"b": "c"})
assert list(with_database.items()) == list(kept.items()) and with_database["rule"] == "a"
uris = [parse_uri(own.path), parse_uri("a b%20c")]
assert places == [f"{uri.scheme}/{unquote(uri.uri_path.lstrip('/'))}" for uri in uris]
import numpy

assert ValueHandler().postprocess({"a": numpy.str_("b")}) == {"a": "b"}
print(sorted(LATER & set(sys.modules)))
"""


# What a script gets of Snakemake: an object, unpickled, and a logger; `shell` is the class, not the module so named.
SCRIPT = """
import pickle
import sys

script = pickle.loads({pickled})
logger = {logger}
assert script.params.key == 1 and script.input.text == "a.txt" and list(script.output) == ["b.txt"]
print({{"asyncio", "numpy", "snakemake.io", "snakemake.shell"}} & set(sys.modules))
logger.error("said")
from snakemake import shell
import snakemake.shell

assert shell is snakemake.shell and shell is sys.modules["snakemake.shell"].shell
"""
# A plugin is found wherever Python finds packages; each kind by its prefix.
FOUND = """
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry
from snakemake_interface_storage_plugins.registry import StoragePluginRegistry

print(sorted(ExecutorPluginRegistry().get_registered_plugins()))
print(sorted(StoragePluginRegistry().get_registered_plugins()))
"""
TIMERS = """
import threading

from snakemake.cli import main
from snakemake.scheduling.job_scheduler import JobScheduler

scheduler = JobScheduler.__new__(JobScheduler)
scheduler._open_jobs = threading.Semaphore(0)
for _ in range(2):
    for _ in range(3):
        scheduler._schedule_reevalutation(0.2)
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    print(len(timers), timers[0].daemon)
    scheduler._open_jobs.acquire()
    timers[0].join()
scheduler._schedule_reevalutation(10_000)
"""
SNAKEFILE = """
rule all:
    input:
        "a.txt"

rule a:
    output:
        "a.txt"
    params:
        text="old",
    run:
        open(output[0], "w").write(params.text)
"""


@pytest.fixture(scope="module")
def mends():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "envs"))
        yield __import__("mend_snakemake")


@pytest.fixture(scope="module")
def mended(mends, tmp_path_factory):
    """Return a folder with copies of the packages, mended twice."""
    folder = tmp_path_factory.mktemp("mended")
    for package in {mend[0] for mend in mends.MENDS}:
        shutil.copytree(Path(importlib.util.find_spec(package).origin).parent, folder / package)
    for package, file, wrong, right in 2 * mends.MENDS:
        mends.mend(folder / package, {file: (wrong, right)})
    return folder


def run(folder, *arguments, path=None):
    """Run Python in a folder, with the mended packages, which are there or in another one."""
    environment = os.environ | {"PYTHONPATH": str(path or folder)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def test_libraries_are_imported_when_they_are_used(mended):
    (mended / "used.py").write_text(USED)
    done = run(mended, "used.py")
    imported = ["docutils", "google.cloud.storage", "kubernetes", "numpy", "pandas", "pydantic", "smart_open"]
    assert done.stdout.splitlines() == ["set()", str([*imported, "sqlalchemy", "sqlmodel"])], done.stderr


def preamble(folder):
    """Return what Snakemake's preamble makes the logger of a script of, and the pickled object, as code."""
    text = (folder / "snakemake/script/__init__.py").read_text().replace("{{", "{").replace("}}", "}")
    logger = re.search(r"^ +logger = (type.*);$", text, re.M)[1]
    names = InputFiles(fromdict={"text": "a.txt"}), OutputFiles(["b.txt"]), Params(fromdict={"key": 1})
    rest = (Wildcards(), 1, ResourceList(), Log(), {}, "a", None)
    return logger, pickle.dumps(Snakemake(*names, *rest), protocol=4)


def test_a_script_gets_what_it_did(mended):
    logger, pickled = preamble(mended)
    (mended / "script.py").write_text(SCRIPT.format(pickled=pickled, logger=logger))
    done = run(mended, "script.py")
    assert done.stdout.splitlines() == ["set()"] and "said" in done.stderr, done.stderr


def test_plugins_are_found(mended):
    done = run(mended, "-c", FOUND)
    assert done.stdout.splitlines() == [
        "['cluster-generic', 'dryrun', 'kubernetes', 'local', 'slurm', 'slurm-jobstep', 'touch']", "['gcs']"
    ], done.stderr  # fmt: skip


def test_a_changed_snakefile_is_parsed_again(mended, tmp_path):
    """And one that is as it was is not, whose lines errors name as before; what is kept may be damaged."""
    folder = tmp_path
    snakefile, kept = folder / "Snakefile", folder / ".snakemake/parsed"

    def snakemake():
        done = run(folder, "-m", "snakemake", "-c1", "-F", "--quiet", "all", path=mended)
        made = folder / "a.txt"
        return done.returncode, made.exists() and made.read_text(), done.stdout + done.stderr

    snakefile.write_text(SNAKEFILE)
    assert snakemake()[:2] == (0, "old")
    [parsed] = kept.iterdir()
    before = parsed.stat().st_mtime_ns
    assert snakemake()[:2] == (0, "old") and parsed.stat().st_mtime_ns == before
    snakefile.write_text(SNAKEFILE.replace("old", "new"))
    assert snakemake()[:2] == (0, "new") and parsed.stat().st_mtime_ns > before
    parsed.write_text("[1, 2")
    assert snakemake()[:2] == (0, "new")
    snakefile.write_text(SNAKEFILE.replace("params.text)", "params.text + 1)"))
    for _ in range(2):
        code, _, said = snakemake()
        assert code == 1 and "line 12" in said


def test_nothing_waits_for_the_timer(mended):
    """One at a time is due, which is no reason to stay; who is woken can start the next."""
    done = run(mended, "-c", TIMERS)
    assert done.stdout.splitlines() == ["1 True", "1 True"], done.stderr


def test_another_version_is_refused(mends, tmp_path):
    (tmp_path / "efficiency_report.py").write_text("import polars\n")
    with pytest.raises(ValueError, match="is of another version"):
        mends.mend(tmp_path, {"efficiency_report.py": ("import pandas\n", "import later\n")})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["x.yaml", "target"],
            "Config file target cannot be read: No such file or directory. All words after --config",
        ),
        (["none.yaml"], "Config file none.yaml cannot be read: No such file or directory. "),
        (["bad.yaml"], "Config file bad.yaml is not valid JSON or YAML: mapping values are not allowed here in "),
        (["folder.yaml"], "Config file folder.yaml cannot be read: Is a directory.\n"),
        (["latin.yaml"], "Config file latin.yaml is not UTF-8 text: "),
        (["list.yaml"], "Config file list.yaml must be given as JSON or YAML with keys at top level."),
    ],
)
def test_a_config_file_that_cannot_be_read_is_named(mended, tmp_path, arguments, said):
    files = {"x": b"a: 1\n", "bad": b"a: 1\n b: 2\n", "latin": b"a: \xff\n", "list": b"- a\n"}
    for name, content in files.items():
        (tmp_path / f"{name}.yaml").write_bytes(content)
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "Snakefile").write_text("rule a:\n    output:\n        'a'\n")
    done = run(tmp_path, "-m", "snakemake", "-n", "--configfile", *arguments, path=mended)
    assert done.returncode == 1 and done.stdout.startswith(f"WorkflowError:\n{said}") and not done.stderr
