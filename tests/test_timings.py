"""Timings of a run, and the costliest operations of a profile: from the trainer's history to the report."""

import csv

import pytest
from conftest import ROOT
from tpulm.core.files import write_json
from tpulm.report.jobs import account
from tpulm.report.page import sections
from tpulm.report.sources import Sources
from tpulm.training.history import History

pytestmark = pytest.mark.unit
FOUND = {"steps": [3, 4], "operations": [("fusion.3 (jvp(gelu)/mul, again)", 0.512), ("dot.1", 0.25)]}


def written(folder, found):
    """Return the timings of a segment of four steps with a profile that ended at the last."""
    history = History(0, 4, 10, lambda line: None)
    history.devices = '{"cpu": 1}'
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


def shown(tmp_path):
    """Return what the page says of the training of runs a and b."""
    runs = [
        {"stage": "mlm", "name": name, "label": f"mlm/{name}", "folder": f"mlm/{name}", "log": f"logs/{name}"}
        for name in "ab"
    ]
    recipe = {
        "title": "x", "runs": runs, "texts": [], "prices": {}, "cpu_watts": 10.0, "cpu_price": None,
        "rules": {}, "configfiles": [],
    }  # fmt: skip
    write_json(tmp_path / "jobs.json", account([], recipe, []))
    files = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*.*") if path.is_file()}
    found = {section["id"]: section["html"] for section in sections(recipe, Sources(files), ROOT / "report/page")}
    return found["training"]


def test_the_report_names_the_costliest_operations_of_a_profile(tmp_path):
    profiled = written(tmp_path / "mlm/a", FOUND)
    rows = list(csv.DictReader(open(profiled)))
    assert [row["step"] for row in rows if row["profile"]] == ["4"]
    written(tmp_path / "mlm/b", None)
    html = shown(tmp_path)
    for cell in (">3 to 4<", ">fusion.3 (jvp(gelu)/mul, again)<", ">51.2 %<", ">dot.1<", ">25.0 %<"):
        assert cell in html, cell
    assert html.count("fusion.3") == 1
