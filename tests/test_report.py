"""The page of a finished run, in a browser: every section, narrow and wide, light and dark; and while it runs."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT
from page_reader import Page, check_page
from tpulm.report.page import SECTIONS

# Sections of the example run: it has one run of each stage, and nothing of it is planned.
SHOWN = [name for name in SECTIONS if name not in ("runs", "plan")]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or ""
needs_browser = pytest.mark.skipif(
    not BROWSER or not find_spec("playwright"), reason="no Chromium here; apt-get install chromium"
)
# Where neither users nor namespaces can be set apart, as in a container.
ARGUMENTS = ["--no-sandbox"] if os.geteuid() == 0 else []


@pytest.fixture(scope="module")
def report(trained) -> Path:
    """The page of a finished run."""
    return trained / "results/report.html"


@pytest.fixture(scope="module")
def browser():
    """A Chromium without a network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield opened
        opened.close()


def opened(browser, address: str, width: int, scheme: str, complaints: list, scripts: bool = True):
    """Return an open page; what its console says and what it asks a network for goes to `complaints`."""
    size = {"width": width, "height": 900}
    page = browser.new_context(viewport=size, color_scheme=scheme, java_script_enabled=scripts).new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    known = ("data:", address)
    page.on("request", lambda request: request.url.startswith(known) or complaints.append(request.url))
    page.goto(address)
    if scripts:
        page.wait_for_selector("html[data-ready]")
    return page


def test_the_page_is_one_small_file_with_the_numbers_of_the_files_that_it_links_to(trained, report):
    text = report.read_text()
    assert len(text.encode()) < 400_000  # and 3.7 MB for 50 runs of 20,000 steps
    elements = re.sub(r"(?s)(<script[^>]*>).*?</script>", r"\1", text)
    assert not re.search(r"<(script|img|iframe|link)[^>]+(src|href)=[\"'](?!data:)", elements)
    assert re.findall('<section id="([a-z]+)"', text) == SHOWN
    page = Page(text)
    results = trained / "results"
    assert check_page(page, results) > 200 and all(page.figures) and all(table["files"] for table in page.tables)
    for run in page.scripts["curves-data"]:
        history = next(file for file in page.links if file.endswith(f"/{run['name']}/history.csv"))
        rows = (results / history).read_text().splitlines()[1:]
        known = {tuple(map(float, row.split(",")[:2])) for row in rows}
        assert set(zip(run["loss"]["steps"], run["loss"]["values"], strict=True)) <= known and len(known) > 5


@needs_browser
def test_every_figure_is_there_without_scripts_and_accessible(browser, report):
    from axe_playwright_python.sync_playwright import Axe

    complaints: list[str] = []
    page = opened(browser, report.as_uri(), 390, "light", complaints, scripts=False)
    assert page.locator(".plot svg:visible").count() == page.locator("figure").count() > 5
    for width, scheme in ((390, "dark"), (1600, "light")):
        page = opened(browser, report.as_uri(), width, scheme, complaints)
        for drawing in page.locator(".plot svg:visible").all():
            assert drawing.get_attribute("role") == "img" and len(drawing.get_attribute("aria-label")) > 20
            assert drawing.bounding_box()["width"] > min(300, width / 2)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert Axe().run(page).response["violations"] == []
    assert complaints == []


@needs_browser
def test_curves_can_be_read_off_by_keyboard_and_pointer(browser, report):
    complaints: list[str] = []
    page = opened(browser, report.as_uri(), 1600, "light", complaints)
    page.locator(".cursor input").focus()
    page.keyboard.press("Home")
    first = page.locator(".reading").inner_text()
    page.keyboard.press("End")
    assert page.locator(".reading").inner_text() != first
    plot = page.locator("#curves svg:visible")
    plot.hover(position={"x": plot.bounding_box()["width"] / 2, "y": 100})
    assert 300 < int(page.locator(".cursor input").input_value()) < 700
    assert complaints == []


@pytest.fixture
def watched(trained, tmp_path):
    """A look at a finished run in whose folder a workflow seems to be at work: address, process, workflow, folder."""
    shutil.copytree(trained / "results", tmp_path / "results")
    shutil.copytree(trained / "logs", tmp_path / "logs")
    shutil.copy2(trained / "config.yaml", tmp_path)
    (tmp_path / ".snakemake").mkdir()
    worker = subprocess.Popen(["sleep", "600"])
    words = f"{worker.pid} 00:00:00 token {os.uname().nodename}"
    (tmp_path / ".snakemake/workflow.flock").write_text(words)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "tools/watch.py", "-d", tmp_path], cwd=ROOT, **pipes)
    yield process.stdout.readline().strip(), process, worker, tmp_path
    for one in (process, worker):
        one.kill()
        one.wait()


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def grow(folder: Path) -> None:
    """Make a step more of a run that seems to be trained."""
    (folder / "results/mlm/tiny/history.csv").unlink()
    with open(folder / "logs/mlm/tiny/metrics.jsonl", "a") as log:
        record = {"step": 21, "last_step": 30, "loss": 1.25, "learning_rate": 0.1, "tokens": 64}
        log.write(json.dumps(record | {"tokens_per_second": 9.0, "mfu": None}) + "\n")


def test_a_look_while_it_runs(watched):
    address, process, worker, folder = watched
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", address)
    status, text = get(address)
    assert status == 200 and 'data-live="sections"' in text
    assert get(f"{address}../config.yaml")[0] == 404  # tests/test_demo.py has more of the server that both use
    changed = json.loads(get(f"{address}sections")[1])
    assert [section["id"] for section in changed["sections"]] == SHOWN and not changed["ended"]
    versions = "&".join(f"{section['id']}={section['version']}" for section in changed["sections"])
    grow(folder)
    for _ in range(120):
        changed = json.loads(get(f"{address}sections?{versions}")[1])["sections"]
        if changed:
            break
        time.sleep(0.5)
    assert [section["id"] for section in changed] == ["training"] and "1.25" in changed[0]["html"]
    worker.kill()
    worker.wait()
    while not json.loads(get(f"{address}sections?{versions}")[1])["ended"]:
        time.sleep(0.2)
    assert process.wait(30) == 0


@needs_browser
def test_an_open_page_follows_the_run(watched, browser):
    address, process, worker, folder = watched
    complaints: list[str] = []
    page = opened(browser, address, 1600, "light", complaints)
    summary, before = (page.locator(f"#{name}").get_attribute("data-version") for name in ("summary", "training"))
    grow(folder)
    plan = {"stage": "base", "run": "small", "topology": "v5e-8", "planned": False, "reason": "no compiler"}
    (folder / "results/plan/base/small").mkdir(parents=True)
    (folder / "results/plan/base/small/v5e-8.json").write_text(json.dumps(plan | {"recipe": {"where": "base.small"}}))
    page.locator(f"#training:not([data-version='{before}'])").wait_for()
    page.locator("#plan").wait_for()  # a section that was empty until now
    page.locator("#training .reading").wait_for()
    assert page.locator("#training .reading").count() == 1
    assert page.locator("#summary").get_attribute("data-version") == summary
    worker.kill()
    worker.wait()
    page.locator("#state", has_text="ended").wait_for()
    assert process.wait(30) == 0 and complaints == []
