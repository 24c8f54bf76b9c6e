"""Timings of a run, and the costliest operations of a profile: from the trainer's history to the report."""

import csv
import runpy
from types import SimpleNamespace

import pytest
from conftest import ROOT
from tpulm.training.history import History

pytestmark = pytest.mark.unit
FOUND = {"steps": [3, 4], "operations": [("fusion.3 (jvp(gelu)/mul, again)", 0.512), ("dot.1", 0.25)]}


def written(folder, found):
    """Return the timings of a segment of four steps with a profile that ended at the last."""
    history = History(0, 4, 10, lambda line: None)
    history.devices = "1 cpu"
    history.add([1.0, 1.0], [0.5, 0.5], [2.0, 2.0], [0.1, 0.1])
    history.profiled(None)
    history.add([1.0, 1.0], [0.5, 0.5], [2.0, 2.0], [0.1, 0.1])
    history.profiled(found)
    history.profiled(found)  # as at the end of the segment, again
    again = History(0, 4, 10, lambda line: None)
    again.restore(history.state())
    folder.mkdir(parents=True)
    again.write(str(folder / "history.csv"), str(folder / "timings.csv"))
    return folder / "timings.csv"


def page(tmp_path, *timings):
    """Return what scripts/tabulate_timings.py makes of timings."""
    given = SimpleNamespace(timings=[str(path) for path in timings])
    job = SimpleNamespace(input=given, output=[str(tmp_path / "timings.html")], log=[str(tmp_path / "log")])
    runpy.run_path(str(ROOT / "scripts/tabulate_timings.py"), init_globals={"snakemake": job})
    return (tmp_path / "timings.html").read_text()


def test_the_report_names_the_costliest_operations_of_a_profile(tmp_path):
    profiled = written(tmp_path / "results/mlm/a", FOUND)
    rows = list(csv.DictReader(open(profiled)))
    assert [row["step"] for row in rows if row["profile"]] == ["4"]
    html = page(tmp_path, profiled, written(tmp_path / "results/mlm/b", None))
    for cell in ("3 to 4", "fusion.3 (jvp(gelu)/mul, again)", "51.2%", "dot.1", "25.0%"):
        assert f">{cell}</td>" in html
    assert html.count("fusion.3") == 1


def test_without_a_profile_the_report_says_nothing_of_operations(tmp_path):
    assert "costliest" not in page(tmp_path, written(tmp_path / "results/mlm/a", None))
