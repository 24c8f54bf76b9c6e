"""The report's page: its numbers are those of the files that it links to, and text of users stays text."""

import json
import math
import os
import re
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, write_record
from page_reader import PLANNED, Page, check_page
from tpulm.core import ledger
from tpulm.report import charts, jobs, svg
from tpulm.report.curves import curves_of
from tpulm.report.data_section import marked
from tpulm.report.page import sections, with_keys
from tpulm.report.sources import STYLES, Sources, as_script
from tpulm.report.tables import COLUMNS, aligned, fitted, scores_then_and_now
from tpulm.specs.scores import BASE, KIND, Score, scores_in, token_scores, write_scores
from tpulm.training.history import History

pytestmark = pytest.mark.unit
TEMPLATES = ROOT / "report/page"
RUN = {
    "stage": "mlm", "name": "one", "label": "mlm/one", "key": "mlm.runs.one", "folder": "mlm/one",
    "log": "logs/mlm/one/metrics.jsonl",
}  # fmt: skip
RECIPE = {
    "title": "A <title>", "results": "results", "runs": [RUN], "texts": ["corpus"], "prices": {},
    "cpu_watts": 10.0, "cpu_price": 0.5, "rules": {"read_part": "corpus", "train": "mlm", "tell": "report"},
    "configfiles": ["config.yaml"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def specifications(monkeypatch):
    """The data of a figure in place of its drawing, for page_reader."""
    drawn = {svg.WIDE, svg.HALF}
    monkeypatch.setattr(svg, "figure", lambda look, spec, label, width: as_script("", spec) if width in drawn else "")


def write(folder: Path, name: str, value) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def sources_of(folder: Path) -> Sources:
    """Return the files of a folder, with an account of no jobs."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    if "jobs.json" not in files:
        write(folder, "jobs.json", jobs.account([], RECIPE, []))
        files["jobs.json"] = folder / "jobs.json"
    return Sources(files)


def told(folder: Path, recipe: dict = RECIPE) -> str:
    """Return the HTML of all sections, after a check of each number in it."""
    text = "".join(section["html"] for section in sections(recipe, sources_of(folder), TEMPLATES))
    check_page(Page(text), folder)
    return text


def scored(results: Path, scores: list[Score], name: str = "mlm/one") -> None:
    path = results / f"evaluation/{name}/scores.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_scores(path, "mlm/one", "masked", scores)


@pytest.fixture
def results(tmp_path) -> Path:
    """A run of a masked model with everything that the page tells of it."""
    split = {"documents": 1234, "characters": 56789, "words": 9876, "dropped_empty": 3}
    example = {"dropped": "<script>alert(1)</script> one", "kept": "</script><b>two</b> one"}
    corpus = {"source": "files", "splits": dict.fromkeys(("train", "validation", "test"), split)}
    write(tmp_path, "corpus/corpus.json", corpus | {"near_duplicates": {"examples": [example]}})
    held = {"loss": 5.8456, "accuracy": 0.125, "predictions": 1000}
    alone = {"token frequencies": {"loss": 6.27}}
    scores = [score for split in ("validation", "test") for score in token_scores("corpus", split, "all", held, alone)]
    metrics = {"parameters": 694912, "steps": 4, "epochs": 0.25, "scores": list(map(asdict, scores))}
    write(tmp_path, "mlm/one/metrics.json", metrics)
    rows = [f"{step},{8 / step},{0.001 * step}" for step in range(1, 5)]
    write(tmp_path, "mlm/one/history.csv", "\n".join(["step,loss,learning_rate", *rows, ""]))
    timings = 'step,seconds_per_step,tokens_per_second,devices\n1,9.5,12,"{""cpu"": 1}"\n4,0.064,1600,"{""cpu"": 1}"\n'
    write(tmp_path, "mlm/one/timings.csv", timings)
    evaluation = {"step": 4, "evaluation": held, "stopped_at": None, "best": {"step": 4}, "recipe": {"batch_size": 16}}
    write(tmp_path, "mlm/one/checkpoints/00000004/state.json", evaluation)
    answers = [{"token_str": "<i>a</i>", "score": 0.04}, {"token_str": "", "score": 0.0012}]
    write(tmp_path, "mlm/one/fill_mask.json", [{"prompt": "say <b>[MASK]</b>", "answers": answers}])
    said = {"before": ["an old word of the text"] * 5, "after": ["a new word of the text </pre>"] * 5}
    pairs = [{"prompt": "def "} | said]
    pairs[0]["cut"] = {"before": 5, "after": 0}
    write(tmp_path, "finetune/two/generations.json", {"sampling": {}, "prompts": pairs})
    alone = [{"prompt": "class ", "continuations": ["a text <i>alone</i>"], "cut": 1}]
    write(tmp_path, "base/three/generations.json", {"sampling": {}, "prompts": alone})
    return tmp_path


def test_the_curve_of_a_run_that_trains_again_is_the_new_one(results):
    log = {"last_step": 4, "learning_rate": 0.5, "tokens": 8, "tokens_per_second": 80.0, "mfu": None}
    lines = [json.dumps(log | {"step": step, "loss": 1.0 + step}) for step in (1, 2)]
    write(results, RUN["log"], "\n".join([*lines, ""]))
    now = (results / "mlm/one/history.csv").stat().st_mtime
    os.utime(results / RUN["log"], (now + 5, now + 5))
    found = curves_of(RUN, sources_of(results))
    assert (found["loss"]["steps"], found["loss"]["values"]) == ([1, 2], [2.0, 3.0])
    os.utime(results / RUN["log"], (now - 5, now - 5))  # of the training that is in the history
    assert curves_of(RUN, sources_of(results))["loss"]["steps"] == [1, 2, 3, 4]


def test_what_the_page_has_of_files_that_are_there(results, tmp_path_factory):
    def shown(folder):
        return [section["id"] for section in sections(RECIPE, sources_of(folder), TEMPLATES)]

    assert shown(tmp_path_factory.mktemp("empty")) == ["summary"]
    assert shown(results) == ["summary", "text", "training", "quality", "samples"]
    text = told(results)
    assert "<code>python tools/demo.py results/mlm/one</code>" in text
    assert "edit <code>config.yaml</code>, then type <code>snakemake</code>" in text
    two = told(results, RECIPE | {"configfiles": ["a.yaml", "b.yaml"]})
    assert "then type <code>snakemake --configfile a.yaml b.yaml<" in two
    empty = told(tmp_path_factory.mktemp("empty"))
    assert "tools/demo.py" not in empty and "To follow" not in empty


def test_names_of_files_stay_text(results):
    write(results, 'mlm/<b onclick="x">"/fill_mask.json', [{"prompt": "p", "answers": []}])
    write(results, "mlm/javascript:alert(1)/fill_mask.json", [{"prompt": "p", "answers": []}])
    page = Page(told(results))
    assert {'mlm/<b onclick="x">"/fill_mask.json', "mlm/javascript:alert(1)/fill_mask.json"} <= set(page.links)
    text = told(results)
    assert "<b onclick" not in text and 'href="mlm/javascript%3A' in text


@pytest.mark.parametrize(
    ("said", "html"),
    [
        ("set tokenizer.whitespace: fold. Then", "set <code>tokenizer.whitespace: fold</code>. Then"),
        ("mlm.runs.a-b.steps: 30 instead of 15", "<code>mlm.runs.a-b.steps: 30</code> instead of 15"),
        ("try base.x.learning_rate: 1e-3, a third", "try <code>base.x.learning_rate: 1e-3</code>, a third"),
        ("a loss of 3.15 nats. <b> & today's", "a loss of 3.15 nats. &lt;b&gt; &amp; today&#39;s"),
        ("base/a_b and base/a-learning_rate-1e-4 are", "base/a_b and base/a-learning_rate-1e-4 are"),
    ],
)
def test_keys_of_a_sentence_are_code(said, html):
    assert with_keys(said) == html


def test_a_figure_is_drawn_without_a_script_in_the_colors_of_the_page(monkeypatch):
    monkeypatch.undo()
    look = (TEMPLATES / "figures.json").read_text()
    rows = [{"name": "mlm/<b>", "value": 2.125, "low": 2.0, "high": 2.25}]
    spec = charts.intervals(rows, [{"name": "mlm/<b>", "value": 2.4375, "which": "5-gram"}], "bits")
    text = svg.figure(look, spec, 'A "<label>"', svg.WIDE)
    assert text.startswith("<svg") and 'role="img" aria-label="A &#34;&lt;label&gt;&#34;"' in text
    assert "<title>bits: 2.125; name: mlm/&lt;b&gt;</title>" in text and ">5-gram</text>" in text
    assert "var(--series-1)" in text and "<script" not in text and " id=" not in text
    curve = {"steps": list(range(1, 5001)), "values": [5.0 + 0.1 * (step % 7) for step in range(5000)]}
    panels = charts.training_panels([{"label": "mlm/one", "loss": curve, "held_out": None}], 340)
    text = svg.figure(look, panels, "", 340)
    assert ">2,000</text>" in text and "concat_0_group" in text and len(text) < 20_000


def test_every_number_is_that_of_its_file_and_text_stays_text(results):
    text = told(results)
    assert "5.846" in text and "694,912" in text and "64.0 ms" not in text  # the median of 9.5 s and 64 ms
    assert "<script>alert" not in text and "<b>two" not in text and "<i>a</i>" not in text and "<b>[MASK]" not in text
    assert "&lt;b&gt;[MASK]" in text and "a text &lt;i&gt;alone&lt;/i&gt;" in text and "tokens: 1 of 1" in text
    assert "<del>an old</del> word" in text and "<ins>a new</ins> word" in text
    assert marked("<a> b c", "d e f g h") == ("&lt;a&gt; b c", "d e f g h")  # of which nothing stays


@pytest.mark.parametrize(
    ("style", "value", "text"),
    [
        ("figure", 0.000034, "3.40e-05"),
        ("percent", 0.040568, "4.1 %"),
        ("change", -0.0678, "-6.8 %"),
        ("seconds", 0.0635, "63.5 ms"),
        ("seconds", 306, "5.1 min"),
        ("amount", 694912, "694,912"),
        ("bytes", 131072, "128.0 KiB"),
    ],
)
def test_a_number_reads_well(style, value, text):
    assert STYLES[style](value) == text


def test_thinned_curves_keep_their_peaks_and_their_ends():
    values = np.sin(np.arange(10_000) / 300)
    values[1234], values[8765] = 50, -50
    index = charts.thinned_indices(values)
    assert len(index) <= charts.POINTS and {0, 1234, 8765, 9999} <= set(index) and (np.diff(index) > 0).all()
    assert charts.thinned_indices(values[:400]).tolist() == list(range(400))
    assert len(charts.thinned_indices([math.nan] * 2000)) <= charts.POINTS


def test_a_run_that_still_trains_is_told_by_its_log(results):
    for file in ("history.csv", "timings.csv", "metrics.json"):
        (results / "mlm/one" / file).unlink()
    record = {"step": 2, "last_step": 4, "loss": 3.5, "learning_rate": 0.1, "tokens": 64, "tokens_per_second": 32.0}
    record |= {"mfu": 0.4}
    write(results, "logs/mlm/one/metrics.jsonl", json.dumps(record) + "\n" + '{"step": 3, "lo')
    (run,) = Page(told(results)).scripts["curves-data"]
    assert run["loss"] == {"steps": [2], "values": [3.5]} and run["mfu"]["values"] == [0.4]


def test_scores_come_first_with_their_intervals_and_the_strongest_baseline(results):
    baselines = {"trigrams/Kneser-Ney": 2.4, "unigrams": 4.5}
    score = Score("text", "bits_per_byte", "English prose", 2.125, 2.0, 2.25, False, 577, None, baselines)
    pairs = Score("pairs", "accuracy", "agreement", 0.75, 0.7, 0.8, True, 200, 0.5)
    early = Score("text", "bits_per_byte", "English prose", 3.0, None, None, False, 577, step=2)
    task = Score("task", "accuracy", "does it follow (MNLI, matched)", 0.875, 0.8, 0.9, True, 90)
    some = replace(task, on=f"{task.on}: long ones", value=0.925, part=KIND)
    asked = Score("harness", "acc", "arc: easy, 0 examples shown", 0.625, 0.6, 0.65, True, 80, 0.25)
    second = replace(asked, metric="acc_norm", value=0.635)
    scored(results, [score, pairs, early, task, some, asked, second])
    text = told(results)
    summary = text.partition('id="text-title"')[0]
    assert "2.125" in summary and "2.000" in summary and "trigrams/Kneser-Ney" in summary
    # A task is one of them, whatever marks its title has; a part of its examples is among all scores only.
    assert "(MNLI, matched)" in summary and "0.875" in summary and "0.925" in text and "0.925" not in summary
    # So is a task of the harness, by the first of its measures.
    assert "arc: easy" in summary and "0.6250" in summary and "0.6350" in text and "0.6350" not in summary
    assert "3.000" not in text
    # How many items are in training text has a column where it is known of any.
    assert "in training text" not in text
    scored(results, [replace(score, in_training_text=29), task])
    (table,) = [one for one in Page(told(results)).tables if "in training text" in dict(one["head"]).values()]
    at = [head for _, head in table["head"]].index("in training text")
    assert [row[at][1] for row in table["rows"]] == ["29", "–"]


def test_scores_of_checkpoints_are_drawn_over_the_tokens_seen(results):
    task = Score("task", "accuracy", "a task", 0.5, 0.4, 0.6, True, 90, 0.5, step=2)
    later = replace(task, value=0.75, low=0.7, high=0.8, step=4)
    some = replace(task, part=KIND, on=f"{task.on}: long ones")
    for step, score in ((2, task), (4, later)):
        scored(results, [score, some], f"tasks/one/mlm/one/{step:08d}")
    text = told(results)
    (spec,) = [spec for spec in Page(text).charts if "tokens seen in training" in json.dumps(spec)]
    points = spec["layer"][1]["data"]["values"]
    assert [(point["tokens"], point["value"]) for point in points] == [(2 * 102, 0.5), (4 * 102, 0.75)]
    assert {point["name"] for point in points} == {"mlm/one"} and len(points) == 2


def test_the_first_screen_says_what_the_table_of_scores_says(results):
    pairs = Score("pairs", "accuracy", "made", 0.9125, 0.869, 0.956, True, 160, 0.5, {"5-gram": 0.9062})
    pseudo = Score("text", "pseudo_bits_per_byte", "held out", 2.336, 2.2, 2.4, False, 24, None, {"5-gram": 1.479})
    scored(results, [pairs, pseudo])
    summary = told(results).partition('id="text-title"')[0]
    assert re.findall('class="verdict">(.*?)<', summary) == ["no significant difference"]
    assert "2.336" in summary and "1.479" not in summary
    # A finetuned model is compared with its base model first, whatever is better.
    scored(results, [replace(pairs, baselines={"5-gram": 0.9062, BASE: 0.5}, chance=None)])
    assert re.findall('class="verdict">(.*?)<', told(results).partition('id="text-title"')[0]) == ["better"]


def test_a_wrong_number_of_a_table_or_a_chart_is_found(results):
    """By the check that the other tests of the page rely on."""
    pairs = Score("pairs", "accuracy", "made", 0.75, 0.7, 0.8, True, 160, 0.5, {"5-gram": 0.55})
    scored(results, [pairs])
    page = Page(told(results))
    assert check_page(page, results) > 20
    for wrong in (replace(pairs, high=0.85), replace(pairs, baselines={"5-gram": 0.625})):
        scored(results, [wrong])
        with pytest.raises(AssertionError):
            check_page(page, results)


def test_plans_of_runs_and_of_models_on_tasks_are_shown(results):
    memory = {"arguments": 2**33, "temporaries": 2**30, "program": 0, "total": 2**33 + 2**30, "hbm": 2**34}
    memory |= {"weights": 2**32, "optimizer": 2**32, "gradients": 2**29}
    plan = {"stage": "mlm", "run": "one", "topology": "v5e-8", "planned": True, "hours": 0.5, "memory": memory}
    plan |= PLANNED | {"recipe": {"where": "mlm.runs.one"}}
    plan["alternatives"] = [plan | {"key": "batch_size", "value": 64}]
    large = {"memory": memory | {"arguments": None, "temporaries": None, "total": 2**35}, "estimated_seconds": None}
    large |= {"topology": "v5e-1", "hours": None, "sentence": "mlm.runs.one does not fit v5e-1: <b>"}
    for task in ({}, {"task": "reviews"}):
        write(results, f"plan/{'tasks/reviews/' if task else ''}mlm/one/v5e-8.json", plan | task)
    write(results, "plan/mlm/one/v5e-1.json", plan | large)
    write(results, "plan/mlm/gone/v5e-8.json", plan | {"run": "gone"})  # of a run that the config has no more
    text = "".join(section["html"] for section in sections(RECIPE, sources_of(results), TEMPLATES))
    assert 'name">mlm/one<' in text and 'name">tasks/reviews/mlm/one<' in text and "mlm/gone" not in text
    assert "does not fit v5e-1: &lt;b&gt;" in text
    for shown in ("compute", "1,024", "31%", "500 ms", "9.0 GiB"):
        assert shown in text, shown


def test_the_costliest_operations_of_a_profile_are_named(results):
    found = {"steps": [3, 4], "operations": [("fusion.3 (jvp(gelu)/mul, again)", 0.512), ("dot.1", 0.25)]}
    history, again = (History(0, 4, 10, lambda line: None) for _ in range(2))
    history.devices = '{"cpu": 1}'
    for summary in (None, found):
        history.add([1.0, 1.0], [0.5, 0.5], [2.0, 2.0], [0.1, 0.1])
        history.profiled(summary)
    history.profiled(found)  # as at the end of the segment, again
    again.restore(history.state())
    again.write(*(str(results / f"mlm/one/{name}.csv") for name in ("history", "timings")))
    text = "".join(section["html"] for section in sections(RECIPE, sources_of(results), TEMPLATES))
    for cell in (">3 to 4<", ">fusion.3 (jvp(gelu)/mul, again)<", ">51.2 %<", ">dot.1<", ">25.0 %<"):
        assert cell in text, cell
    assert text.count("fusion.3") == 1


def test_runs_that_differ_by_a_setting_are_compared(results):
    figures = product(("validation", "test"), ("_loss", "_accuracy"), ("", "_std"))
    head = f"stage,run,seeds,settings,{','.join(map(''.join, figures))}"
    rows = [
        "mlm,one,1,learning_rate=0.001 seed=0,5.8,,0.12,,5.9,,0.13,",
        "mlm,many,3,learning_rate=0.1,5.7,0.02,0.14,0.01,5.75,0.03,0.15,0.01",
    ]
    write(results, "compare/runs.csv", "\n".join([head, *rows, ""]))
    many = RUN | {"name": "many", "label": "mlm/many", "folder": "mlm/many"}
    text = told(results, RECIPE | {"runs": [RUN, many]})
    assert "learning_rate=0.1" in text and "5.750" in text and "0.0300" in text


def test_scores_of_before_stand_beside_those_of_today():
    def kept_run(digest, value, items):
        score = Score("text", "bits_per_byte", "English prose", value, value - 0.1, value + 0.1, False, items)
        part = Score("text", "bits_per_byte", "English prose: long", value, None, None, False, items, part=KIND)
        run = {"stage": "mlm", "name": "one", "hash": digest * 64, "recipe": {"seed": int(digest)}}
        loss = {"loss": value + 1, "accuracy": 0.5, "predictions": 100, "frequency_loss": 6.0}
        metrics = {"parameters": 9, "validation": loss, "test": loss}  # as version 0.2.0 wrote them
        return run | {"metrics": metrics, "scores": [asdict(score), asdict(part)]}

    runs = [kept_run("1", 2.5, 40), kept_run("2", 2.25, 50)]
    first, *_ = scores_in(runs[0]["metrics"])
    assert first.baselines == {"token frequencies": 6.0} and (first.set, first.split) == ("corpus", "validation")
    (row, _) = runs[0]["scores"]
    del row["set"]  # as before 0.3.0
    assert scores_in({"scores": [row | {"on": "corpus test"}]})[0].set == "corpus"
    kept_runs = {"results/history/mlm/one": [*runs, kept_run("3", 2.125, 50)], "results/history/mlm/gone": runs[:1]}
    lines = scores_then_and_now(kept_runs, ["mlm/one"]).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    name, then = "bits per byte: English prose", "2.5000 [2.4000, 2.6000]"
    assert [row for row in cells if row[3] == name] == [
        ["mlm", "one 11111111", "", name, then, "40", "", ""],
        ["mlm", "one 11111111", "seed=1", name, then, "40", "2.1250", "40 items then, 50 now"],
        ["mlm", "one 22222222", "seed=2", name, "2.2500 [2.1500, 2.3500]", "50", "2.1250", "-0.1250 better"],
    ]
    assert scores_then_and_now({"results/history/mlm/one": runs[:1]}, ["mlm/one"]) == ""


def test_tables_fit_the_terminal():
    cells = [["model", "settings", "loss", "seeds"], ["mlm/" + "long-" * 30, " ".join(["a=1"] * 40), "2.5", ""]]
    lines = list(fitted(f"{'a sentence ' * 20}\n{aligned([*cells, ['mlm/b', 'a=2', '12.25', '']])}\nresults/a.csv"))
    assert max(map(len, lines)) <= COLUMNS and lines[-1] == "results/a.csv" and "seeds" not in "".join(lines)
    assert lines[-3].split() == ["mlm/b", "a=2", "12.25"] and "|" not in "".join(lines)


def test_jobs_are_followed_from_the_files_back_to_the_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    part, both = "results/x.parquet", ["results/a", "results/b"]
    write_record(tmp_path, "logs/read.log", "read_part", 1000, 1010, ["text.txt"], [part])
    chips = {"accelerators": {"TPU v4": 4}}
    write_record(tmp_path, "logs/mlm/one/00000004.log", "train", 1015, 1026, [part], both, **chips)
    write_record(tmp_path, "logs/tell.log", "tell", 2000, 2001, both, ["results/c"])
    write_record(tmp_path, "logs/other.log", "tell", 1, 2, [], ["results/elsewhere"])
    found = jobs.account(["results/c"], RECIPE, ledger.jobs_of(tmp_path))
    assert [(job["rule"], job["started"], job["seconds"], job["waited"], job["outputs"]) for job in found["jobs"]] == [
        ("read_part", 0, 10, 0, 1), ("train", 15, 11, 5, 2), ("tell", 1000, 1, 974, 1),
    ]  # fmt: skip
    assert found["pauses"] == [{"after": 26, "seconds": 974}] and found["totals"]["elapsed_seconds"] == 27
    # Four chips of 170 W for 11 s.
    assert found["totals"]["thread_seconds"] == 10 + 11 + 1
    assert found["totals"]["watt_hours"] == round((22 * 10 + 11 * 4 * 170) / 3600, 3)
    assert found["totals"]["price"] is None  # of v4-8, none is given


def test_what_was_interrupted_counts(tmp_path, monkeypatch):
    """Nine hours on a slice of two hosts, an hour's pause, a kill, and ten minutes more."""
    monkeypatch.chdir(tmp_path)
    log, hour = "logs/mlm/one/00000004.log", 3600
    path = ledger.path_of(log)
    ledger.append(path, {"event": "start", "time": 1000})
    ledger.append(path, {"event": "end", "time": 1000 + 9 * hour, "cpu_seconds": 500.0, "exit": 1})
    ledger.append(path, {"event": "start", "time": 990 + 10 * hour})
    times = (1000 + 10 * hour, 1600 + 10 * hour)
    chips = {"accelerators": {"TPU v4": 2}, "devices": {"TPU v4": 4}}
    write_record(tmp_path, log, "train", *times, [], ["results/a"], **chips | {"cpu_seconds": 30.0})
    found = jobs.account(["results/a"], RECIPE | {"prices": {"v4-8": 9.0}}, ledger.jobs_of(tmp_path))
    totals = found["totals"]
    assert found["pauses"] == [{"after": 9 * hour, "seconds": hour}]
    assert totals["elapsed_seconds"] == totals["job_seconds"] == 9 * hour + 600
    assert (totals["failed_attempts"], totals["killed_attempts"], totals["thread_seconds"]) == (2, 1, 530)
    assert totals["watt_hours"] == round((530 * 10 + (9 * hour + 600) * 4 * 170) / hour, 3)
    assert totals["price"] == round((9 * hour + 600) / hour * 9 + 530 / hour * 0.5, 6)


def test_while_a_run_trains_files_are_named_without_links(results):
    sources = sources_of(results)
    sources.linked = False
    text = "".join(section["html"] for section in sections(RECIPE, sources, TEMPLATES))
    assert Page(text).links == [] and "<code>corpus/corpus.json</code>" in text


def test_what_only_some_texts_and_runs_have_is_shown(results):
    corpus = json.loads((results / "corpus/corpus.json").read_text())
    source = {"source": "files", "weight": 2.5, "removed_lines": {"end_marks": 97}, "splits": corpus["splits"]}
    del corpus["source"]
    corpus["splits"]["train"] |= {"dropped_c4_sentences": 8, "responses": {"documents": 71, "characters": 7103}}
    write(results, "corpus/corpus.json", corpus | {"sources": {"wi<ki": source}})
    entry = {"records": 3, "tokens": 300, "bytes": 1000, "shards": [{"records": 3}]}
    entry |= {"target_tokens": 297, "loss_tokens": 99, "records_without_loss": 2}
    manifest = {"sequence_length": 100, "packing": "concat", "splits": {"train": entry}}
    write(results, "tokens/small/manifest.json", manifest)
    evaluated = {"splits": {"validation": entry}}  # a corpus for evaluation
    write(results, "tokens/given/manifest.json", manifest | evaluated)
    metrics = json.loads((results / "mlm/one/metrics.json").read_text())
    write(results, "mlm/one/metrics.json", metrics | {"bytes_promised": False})
    write(results, "mlm/asked/metrics.json", metrics | {"parameters": 124_697_433})
    text = told(results)
    filtered = "dropped: by the filter c4_sentences"
    for shown in ("wi&lt;ki", "2.500", "end_marks", ">97<", filtered, "7,103", "33.3 %", "124,697,433"):
        assert shown in text, shown
    assert "may give other bytes" in text and "dropped: also in another" not in text


def test_tokenizers_stand_side_by_side(results):
    figures = {
        "vocab_size": 2048, "tokens_per_word": 1.639, "characters_per_token": 3.768, "vocabulary_used": 0.847,
        "unknown_rate": 0.001, "whitespace_rate": 0.017, "unigram_entropy": 6.234,
    }  # fmt: skip
    row = {"script": "latin", "words": 7, "tokens_per_word": 1.631, "characters_per_token": 4.5, "uncovered_rate": 0.0}
    pieces = {"lengths": [], "words": [], "hardest": [], "examples": [], "unused": 3}
    code = row | {"source": "co<de", "tokens_per_word": 3.217}
    large = {"scripts": [row | {"tokens_per_word": 1.352}], "sources": [code | {"tokens_per_word": 2.171}]}
    write(results, "tokenizer/metrics.json", figures)
    write(results, "tokenizer/pieces.json", pieces | {"scripts": [row, row | {"script": "greek"}], "sources": [code]})
    write(results, "tokenizer/compared/large/metrics.json", figures | {"vocab_size": 65_000, "tokens_per_word": 1.314})
    write(results, "tokenizer/compared/large/pieces.json", pieces | large)
    text = told(results)
    for shown in ("co&lt;de", "3.217", "large", "65,000", "1.314", "1.352", "greek", "2.171"):
        assert shown in text, shown
