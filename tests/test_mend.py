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
import snakemake_executor_plugin_kubernetes as for_kubernetes
import snakemake_executor_plugin_slurm.efficiency_report as for_slurm
from snakemake.iocontainers import Params, Snakemake
from snakemake.persistence import PersistenceBase

holder = Snakemake.__new__(Snakemake)
holder._safely_store_params(Params(toclone=[{"key": 1}]))
serialized = PersistenceBase._serialize_param_pandas
print({"pandas", "kubernetes"} & set(sys.modules))
assert for_kubernetes.kubernetes.client.V1Job().kind is None
assert for_slurm.parse_maxrss("2048K") == 2.0
print(sorted({"pandas", "kubernetes"} & set(sys.modules)))
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
    done = subprocess.run([sys.executable, "-c", USED], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["set()", "['kubernetes', 'pandas']"], done.stderr


def test_another_version_is_refused(mends, tmp_path):
    (tmp_path / "efficiency_report.py").write_text("import polars\n")
    with pytest.raises(ValueError, match="is of another version"):
        mends.mend(tmp_path, {"efficiency_report.py": ("import pandas\n", "import later\n")})
