"""What `make` mends in the installed Snakemake: it does the same, and starts faster."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

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


@pytest.fixture
def mends(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "envs"))
    return __import__("mend_snakemake")


@pytest.fixture
def mended(mends, tmp_path):
    """Return a folder with copies of the packages, mended twice."""
    for package in {mend[0] for mend in mends.MENDS}:
        shutil.copytree(Path(importlib.util.find_spec(package).origin).parent, tmp_path / package)
    for package, file, wrong, right in 2 * mends.MENDS:
        mends.mend(tmp_path / package, {file: (wrong, right)})
    return tmp_path


def test_libraries_are_imported_when_they_are_used(mended):
    environment = os.environ | {"PYTHONPATH": str(mended)}
    program = mended / "used.py"
    program.write_text(USED)
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True)
    imported = ["docutils", "google.cloud.storage", "kubernetes", "numpy", "pandas", "pydantic", "smart_open"]
    assert done.stdout.splitlines() == ["set()", str([*imported, "sqlalchemy", "sqlmodel"])], done.stderr


def test_another_version_is_refused(mends, tmp_path):
    (tmp_path / "efficiency_report.py").write_text("import polars\n")
    with pytest.raises(ValueError, match="is of another version"):
        mends.mend(tmp_path, {"efficiency_report.py": ("import pandas\n", "import later\n")})
