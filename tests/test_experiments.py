"""Experiments beside each other in one folder: results and logs of each, the lock, cleaning, the past, modules."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, Workflow, copied, existing, reduced, write_yaml
from kills import fingerprints
from test_module import ONSTART, OUTER
from tpulm.config.reading import read_yaml
from tpulm.core.folder_lock import lock_of
from tpulm.core.ledger import jobs_of, maker_of, makers, read_from, repair_of, target_of

WORDS = "the quick brown fox jumps over a lazy dog while seven wizards box with jugs of liquor".split()


def text(seed: int) -> str:
    """Return 300 documents."""
    return "\n".join(" ".join(WORDS[(seed + row * word) % len(WORDS)] for word in range(3, 30)) for row in range(300))


def configure(workflow, name, experiment=None, seed=1, **sections):
    """Write NAME.yaml, a config that needs neither TensorFlow nor JAX, and its text."""
    (workflow / f"{name}.txt").write_text(text(seed))
    config = {"experiment": experiment} if experiment else {}
    config |= {"corpus": {"source": "files", "files": [f"{name}.txt"], "held_out": {"validation": 0.1, "test": 0.1}}}
    config |= {"tokenizer": {"vocab_size": 40}, "tfrecords": {"sequence_length": 16, "shards": {"train": 2}}} | sections
    write_yaml(workflow / f"{name}.yaml", config)


def run(workflow, name, *arguments, **options):
    """Run Snakemake with the config NAME.yaml."""
    return workflow(*(arguments or ["tfrecords"]), "--cores", "2", "--configfile", f"{name}.yaml", **options)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three configs that have run in one folder: one without an experiment, two with."""
    workflow = Workflow(tmp_path_factory.mktemp("three") / "workflow")
    for seed, (name, experiment) in enumerate({"plain": None, "one": "one", "two": "two"}.items(), start=1):
        configure(workflow, name, experiment, seed)
        run(workflow, name)
    return workflow


def test_going_back_and_forth_runs_nothing(three):
    for name in ("two", "plain", "one", "two"):
        assert "Nothing to be done" in run(three, name, "tfrecords", "-n").stdout
    places = [three / "results", three / "experiments/one/results", three / "experiments/two/results"]
    assert len({(place / "tokenizer/tokenizer.json").read_text() for place in places}) == 3
    assert all(list((place.parent / "logs").rglob("*.log")) for place in places)


def test_an_experiment_has_the_bytes_of_its_config_without_one(three):
    configure(three, "other", "other")
    (three / "other.yaml").write_text((three / "one.yaml").read_text().replace("experiment: one", "experiment: other"))
    run(three, "other")
    assert fingerprints(three / "experiments/other/results") == fingerprints(three / "experiments/one/results")


def test_cleaning_and_verifying_see_one_experiment(three):
    stray = three / "experiments/one/results/stray.txt"
    stray.write_text("of no job")
    before = fingerprints(three / "experiments/two/results") | fingerprints(three / "results")
    for name in ("plain", "one", "two"):
        run(three, name, "clean_delete")
    assert not stray.exists()
    assert fingerprints(three / "experiments/two/results") | fingerprints(three / "results") == before
    shard = three / "experiments/two/results/tfrecords/train/00000-of-00002.tfrecord"
    kept = shard.read_bytes()
    shard.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    done = run(three, "two", "verify", check=False)
    assert done.returncode == 1 and "00000-of-00002" in done.stdout
    assert run(three, "one", "verify").returncode == 0
    shard.write_bytes(kept)


def test_verify_prints_the_command_that_repairs(three):
    """A flipped bit in a file that only its job's record tells of, and a file that is gone."""
    folder = three / "experiments/one/results"
    before = fingerprints(folder)
    pieces = folder / "tokenizer/special_tokens_map.json"
    dates = pieces.stat()
    pieces.write_bytes(pieces.read_bytes().replace(b"C", b"D", 1))
    os.utime(pieces, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    (folder / "corpus/parts/00000.parquet").unlink()
    assert "Nothing to be done" in run(three, "one", "tfrecords", "-n").stdout  # neither is needed
    done = run(three, "one", "verify", check=False)
    assert done.returncode == 1
    first, second = repairs(done.stdout)  # the tokenizer follows from the part
    assert "parts/00000.parquet" in " ".join(first) and str(pieces.relative_to(three.folder)) in second
    for command in (first, second):
        three(*command, "--cores", "2")
    assert fingerprints(folder) == before and run(three, "one", "verify").returncode == 0
    assert "Nothing to be done" in run(three, "one", "tfrecords", "-n").stdout


def repairs(said):
    """Return the arguments of each command that `snakemake verify` prints at its end."""
    lines = [line.removeprefix("[verify] ") for line in said.splitlines()]
    command = next(line for line in lines if line.startswith("snakemake --force "))
    return [part.split()[1:] for part in command.split(" && ")]


def test_a_file_of_a_folder_and_a_checkpoint_are_made_again(trained, tmp_path):
    workflow = copied(trained, tmp_path)
    before = fingerprints(workflow / "results")
    (workflow / "results/base/small/preset/model.weights.h5").unlink()
    shutil.rmtree(workflow / "results/mlm/tiny/checkpoints/00000010")
    refused = workflow("finetune", "--forcerun", "generate", "--cores", "2", check=False).stdout
    assert "error: results/base/small/preset/model.weights.h5 was deleted" in refused
    assert "snakemake --force results/base/small/preset, " in refused
    # What follows from each other is made again by one Snakemake after another, and nothing else is.
    (workflow / "results/tokenizer/tokenizer.json").unlink()
    for damaged in ("tfrecords/train/00000-of-00004.tfrecord", "mlm/tiny/model/model.safetensors"):
        with open(workflow / "results" / damaged, "r+b") as file:
            file.write(b"damaged!")
    done = workflow("verify", check=False)
    assert done.returncode == 1
    printed = "".join(workflow(*command, "--cores", "2").stdout for command in repairs(done.stdout))
    rules = ["export_base", "export_mlm", "train_mlm_tensorflow", "train_tokenizer", "write_shard"]
    assert sorted(re.findall(r"^\S+  done    (\w+)", printed, re.M)) == rules, printed
    assert fingerprints(workflow / "results") == before
    workflow("verify")
    again = re.findall(r"^would run  (\w+)", workflow("-n").stdout, re.M)
    assert not {"export_mlm", "finetune"} & set(again) and not [rule for rule in again if rule.startswith("train")]


def test_a_repair_makes_again_just_what_is_damaged(trained, monkeypatch):
    """The output of each rule, and of each with each of its inputs; Snakemake calls --allowed-rules internal."""
    monkeypatch.chdir(trained.folder)
    known = jobs_of(Path())
    made = makers(known)
    ours = {job["id"]: target_of(path, job) for path, job in made.items() if path.startswith("results/")}
    of_rules = {job["rule"]: job for job in known if job["id"] in ours}
    assert len(of_rules) >= 30
    for job in of_rules.values():
        for path in job["inputs"]:
            if read_from(job, path, made):
                alone = [repair_of([one], known) for one in (path, ours[job["id"]])]
                assert repair_of([ours[job["id"]], path], known) == " && ".join(alone)
    commands = repair_of([ours[job["id"]] for job in of_rules.values()], known).split(" && ")
    for command in commands:
        wanted = [maker_of(path, made) for path in command.split(" --")[1].split()[1:]]
        found = re.findall(r"^would run  (.*?)  reason: ", trained(*command.split()[1:], "-n").stdout, re.M)
        told = [sorted([job["rule"], *job["wildcards"].values()]) for job in wanted]
        assert sorted(sorted(line.split()) for line in found) == sorted(told), command
    assert len(commands) < 20


def test_runs_of_two_folders_are_compared(trained, tmp_path):
    two = shutil.copytree(trained / "results", tmp_path / "two")
    metrics = json.loads((two / "mlm/tiny/metrics.json").read_text())
    metrics["test"]["loss"] = 1.2345
    (two / "mlm/tiny/metrics.json").write_text(json.dumps(metrics))
    tool = [sys.executable, ROOT / "tools/compare.py"]
    lines = subprocess.check_output([*tool, trained / "results", two], text=True).splitlines()
    (one,) = (line for line in lines if str(trained / "results/mlm/tiny") in line and "| mlm " in line)
    (other,) = (line for line in lines if str(two / "mlm/tiny") in line and "| mlm " in line)
    assert "1.2345" in other and "1.2345" not in one
    assert any("bits per byte" in line and str(two / "base/small") in line for line in lines)
    assert not any(", text " in line for line in lines)
    corpus = json.loads((two / "corpus/corpus.json").read_text())
    corpus["splits"]["test"]["fingerprint"] = "0" * 64
    (two / "corpus/corpus.json").write_text(json.dumps(corpus))
    lines = subprocess.check_output([*tool, trained / "results", two], text=True).splitlines()
    (other,) = (
        line for line in lines if line.startswith("| bits per byte: corpus") and str(two / "base/small") in line
    )
    assert "corpus test, text 00000000 " in other and any("different texts" in line for line in lines)
    done = subprocess.run([*tool, tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith(f"error: {tmp_path} has no finished runs")


def test_each_experiment_has_its_own_lock(three):
    with open(three / str(lock_of("experiments/one/"))) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        refused = run(three, "one", "tokenizer", "--forcerun", "evaluate_tokenizer", check=False)
        assert refused.returncode == 1 and "error: " in refused.stdout and "experiments/one" in refused.stdout
        run(three, "two", "tokenizer", "--forcerun", "evaluate_tokenizer")


def test_the_past_of_each_is_told_apart(three):
    for name, folder in (("plain", ""), ("one", "experiments/one/"), ("two", "experiments/two/")):
        made = makers(jobs_of(three.folder, Path(f"{folder}results/jobs")))
        job = maker_of(f"{folder}results/corpus/parts/00000.parquet", made)
        assert f"{name}.txt" in job["inputs"]
        tokenizer = maker_of(f"{folder}results/tokenizer/tokenizer.json", made)
        assert all(path.startswith(f"{folder}results/") for path in tokenizer["inputs"])
    told = subprocess.run(
        [sys.executable, "tools/provenance.py", "experiments/two/results/tfrecords/manifest.json"],
        cwd=three.folder, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    assert "two.txt" in told and "one.txt" not in told and "plain.txt" not in told


def test_what_was_replaced_is_not_told_as_what_was_read(three):
    """Another text in the same folder: what was made of the first one says so."""
    configure(three, "first", "again", 1)
    run(three, "first", "tfrecords")
    configure(three, "second", "again", 5)
    run(three, "second", "corpus")
    tool = [sys.executable, "tools/provenance.py", "experiments/again/results/tfrecords/manifest.json"]
    told = subprocess.run(tool, cwd=three.folder, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "replaced since by build_corpus experiments/again/logs/" in told
    assert "second.txt" not in told


def test_the_past_survives_touch_and_the_loss_of_what_snakemake_knows(fresh):
    configure(fresh, "first")
    run(fresh, "first", "corpus")
    tool = [sys.executable, "tools/provenance.py", "results/corpus/corpus.json"]
    told = subprocess.check_output(tool, cwd=fresh.folder, text=True)
    configure(fresh, "first")
    config = read_yaml(fresh / "first.yaml")
    config["corpus"]["held_out"]["validation"] = 0.2
    write_yaml(fresh / "first.yaml", config)
    run(fresh, "first", "--touch", "corpus")
    shutil.rmtree(fresh / ".snakemake")
    assert subprocess.check_output(tool, cwd=fresh.folder, text=True) == told
    with open(fresh / "results/corpus/corpus.json", "a") as file:
        file.write(" ")
    said = run(fresh, "first", "verify", check=False)
    assert said.returncode == 1 and "results/corpus/corpus.json is corrupt: " in said.stdout


def test_an_archive_of_an_experiment_is_whole(three):
    run(three, "two", "archive")
    [archive] = (three / "experiments/two/results/archive").glob("*.zip")
    done = subprocess.run([sys.executable, archive], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout
    with zipfile.ZipFile(archive) as kept:
        names = kept.namelist()
    assert "experiments/two/results/tfrecords/manifest.json" in names
    assert not [name for name in names if name.startswith(("results/", "experiments/one/"))]


def test_data_of_the_harness_is_of_the_experiment(fresh):
    """recipes/tasks/last-word.yaml names a file below results/."""
    harness = {"last-word": {"file": "recipes/tasks/last-word.yaml"}}
    reduced(fresh, evaluation={"harness": harness}, experiment="one")
    target = "experiments/one/results/evaluation/harness/last-word/items.json"
    printed = fresh(target, "-n", "--verbose", "--configfile", "small.yaml").stdout
    [given] = set(re.findall(r"^rule read_harness_task:\n +input: (.+)$", printed, re.M))
    assert "experiments/one/results/evaluation/texts/corpus.parquet" in given.split(", ")
    assert not [path for path in given.split(", ") if path.startswith("results/")]


def test_an_experiment_of_a_module_is_below_its_prefix(fresh, tmp_path):
    configure(fresh, "small", "inner")
    outer = existing(tmp_path / "outer")
    outer.folder.mkdir()
    (outer / "profiles").symlink_to(fresh / "profiles")
    for name in ("small.yaml", "small.txt"):
        (fresh / name).rename(outer / name)
    (outer / "Snakefile").write_text(OUTER.format(snakefile=str(fresh / "Snakefile"), onstart=ONSTART))
    outer("lm_tfrecords", "--cores", "2")
    manifest = json.loads((outer / "lm/experiments/inner/results/tfrecords/manifest.json").read_text())
    assert manifest["splits"]["train"] and (outer / "lm/experiments/inner/logs").is_dir()
    assert "Nothing to be done" in outer("lm_tfrecords", "-n").stdout


def test_the_name_of_an_experiment_cannot_lead_elsewhere(fresh):
    configure(fresh, "bad", "../up")
    done = run(fresh, "bad", "tfrecords", "-n", check=False)
    assert done.returncode == 1 and done.stdout.count("error: bad.yaml: experiment") == 1
    assert not (fresh / "experiments").exists()


def test_the_page_is_of_the_config_that_is_named(three):
    with open(three / "one.yaml", "a") as file:
        file.write("title: The first of three\n")
    worker = subprocess.Popen(["sleep", "600"])
    lock = three / str(lock_of("experiments/one/"))
    lock.write_text(f"{worker.pid} 00:00:00 token {os.uname().nodename}\n")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    page = subprocess.Popen([sys.executable, "tools/watch.py", "--configfile", "one.yaml"], cwd=three.folder, **pipes)
    try:
        address, said = page.stdout.readline().strip(), page.stdout.readline()
        assert "one.yaml" in said and "experiments/one/results/" in said
        with urllib.request.urlopen(address, timeout=60) as answer:
            text = answer.read().decode()
        assert "The first of three" in text
        assert re.search(r"tfrecords/manifest.json</code> <span[^>]*>older than this run", text)
    finally:
        for one in (page, worker):
            one.kill()
            one.wait()
