"""An experiment is a folder: its config, results, logs, lock and past; copies, misspelled names, earlier kinds."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, Workflow, copied, existing, reduced, write_yaml
from kills import fingerprints
from tpulm.config.reading import read_yaml
from tpulm.core.folder_lock import LOCK
from tpulm.core.ledger import jobs_of, maker_of, makers, read_from, repair_of, target_of
from tpulm.release.provenance import provenance

MANIFEST = "results/tfrecords/manifest.json"
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards box with jugs of liquor".split()


def text(seed: int) -> str:
    return "\n".join(" ".join(WORDS[(seed + row * word) % len(WORDS)] for word in range(3, 30)) for row in range(300))


def configure(workflow, name, seed=1, **sections):
    """Write the config of an experiment, one that needs neither TensorFlow nor JAX, and its text."""
    folder = workflow / "experiments" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.txt").write_text(text(seed))
    config = {"corpus": {"source": "files", "files": ["own.txt"], "held_out": {"validation": 0.1, "test": 0.1}}}
    config |= {"tokenizer": {"vocab_size": 40}, "tfrecords": {"sequence_length": 16, "shards": {"train": 2}}} | sections
    write_yaml(folder / "config.yaml", config)


def run(workflow, name, *arguments, **options):
    return workflow("-d", f"experiments/{name}", *(arguments or ["tfrecords"]), "--cores", "2", **options)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    workflow = Workflow(tmp_path_factory.mktemp("both") / "workflow")
    workflow.steady = True
    for seed, name in enumerate(("one", "two"), 1):
        configure(workflow, name, seed)
        run(workflow, name)
    return workflow


def test_going_back_and_forth_runs_nothing(both):
    for name in ("one", "two"):
        said = run(both, name, "tfrecords", "-n").stdout
        assert "Nothing to be done" in said and "note: " not in said
    places = [both / f"experiments/{name}" for name in ("one", "two")]
    assert len({(place / "results/tokenizer/tokenizer.json").read_text() for place in places}) == 2
    assert all(list((place / "logs").rglob("*.log")) for place in places)
    assert not (both / "results").exists() and not (both / ".snakemake/metadata").exists()


def copy_of_one(workflow, name, *without):
    folder = workflow / "experiments" / name
    return shutil.copytree(workflow / "experiments/one", folder, ignore=shutil.ignore_patterns(*without))


def test_a_copied_experiment_stays_fresh_and_a_changed_copy_does_not(both):
    copy = copy_of_one(both, "copy")
    assert "Nothing to be done" in run(both, "copy", "tfrecords", "-n").stdout
    config = read_yaml(copy / "config.yaml")
    config["corpus"]["seed"] = 5
    write_yaml(copy / "config.yaml", config)
    assert "seed was 0 and is 5" in run(both, "copy", "corpus", "-n").stdout
    copy_of_one(both, "bare", ".snakemake")
    said = run(both, "bare", "tfrecords", "-n").stdout
    assert re.search(r"^note: results/ has no \.snakemake/metadata .*--touch", said, re.M)


def test_what_is_misspelled_or_forgotten_is_answered_with_what_to_type(both):
    def refused(*arguments):
        done = both(*arguments, check=False)
        assert done.returncode == 1 and "Traceback" not in done.stdout
        (sentence,) = re.findall("^error: (.*)$", done.stdout, re.M)
        return sentence

    def told(tool, *arguments):
        command = [sys.executable, f"tools/{tool}.py", "-d", *arguments]
        done = subprocess.run(command, cwd=both.folder, capture_output=True, text=True)
        (sentence,) = done.stderr.splitlines()
        assert done.returncode == 1 and sentence.startswith("error: ")
        return sentence

    assert "did you mean experiments/one?" in refused("-d", "experiments/oen", "tfrecords", "--cores", "2")
    assert "did you mean experiments/one?" in told("provenance", "experiments/oen", "results/x")
    assert not (both / "experiments/oen").exists()
    for target in ("one", "experiments/one"):
        assert "did you mean -d experiments/one?" in refused("-n", target)
    configure(both, "typo", title=3)
    assert "experiments/typo/config.yaml: title is 3; " in refused("-d", "experiments/typo", "-n")
    assert "run `snakemake -d experiments/one" in told("try", "experiments/one", "tiny")
    configure(both, "earlier", experiment="earlier")  # the key of an earlier version
    sentence = refused("-d", "experiments/earlier", "-n")
    assert "experiment" in sentence and "snakemake -d experiments/NAME" in sentence


def test_cleaning_sees_one_experiment(both):
    stray = both / "experiments/one/results/stray.txt"
    stray.write_text("of no job")
    before = fingerprints(both / "experiments/two/results")
    advice = "to delete these files: snakemake clean_delete -d experiments/one\n"
    assert advice in run(both, "one", "clean").stdout and "to delete" not in run(both, "two", "clean").stdout
    run(both, "one", "clean_delete")
    assert not stray.exists() and fingerprints(both / "experiments/two/results") == before


def test_verify_prints_the_command_that_repairs(both):
    folder = both / "experiments/one/results"
    before = fingerprints(folder)
    pieces = folder / "tokenizer/special_tokens_map.json"
    dates = pieces.stat()
    pieces.write_bytes(pieces.read_bytes().replace(b"C", b"D", 1))
    os.utime(pieces, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    (folder / "corpus/parts/00000.parquet").unlink()
    done = run(both, "one", "verify", check=False)
    assert done.returncode == 1
    first, second = repairs(done.stdout)  # the tokenizer follows from the part
    assert "parts/00000.parquet" in " ".join(first) and "results/tokenizer/special_tokens_map.json" in second
    for command in (first, second):
        both(*command, "--cores", "2")
    assert fingerprints(folder) == before
    assert "Nothing to be done" in run(both, "one", "tfrecords", "-n").stdout


def repairs(said):
    """Return the arguments of each command that `snakemake verify` prints at its end."""
    lines = [line.removeprefix("[verify] ") for line in said.splitlines()]
    command = next(line for line in lines if line.startswith("snakemake --force "))
    return [part.split()[1:] for part in command.split(" && ")]


def test_a_file_of_a_folder_is_made_again(trained, tmp_path):
    workflow = copied(trained, tmp_path)
    workflow.steady = True
    before = fingerprints(workflow / "results")
    (workflow / "results/base/small/preset/model.weights.h5").unlink()
    refused = workflow("finetune", "--forcerun", "generate", "--cores", "2", check=False).stdout
    assert "error: results/base/small/preset/model.weights.h5 was deleted" in refused
    assert "snakemake --force results/base/small/preset, " in refused
    done = workflow("verify", check=False)
    (command,) = repairs(done.stdout)
    printed = workflow(*command, "--cores", "2").stdout
    assert done.returncode == 1 and re.findall(r"^\S+  done    (\w+)", printed, re.M) == ["export_base"], printed
    assert fingerprints(workflow / "results") == before
    again = re.findall(r"^would run  (\w+)", workflow("-n").stdout, re.M)
    assert not [rule for rule in again if rule.startswith(("train", "finetune"))]


def test_a_repair_makes_again_just_what_is_damaged(trained, monkeypatch):
    """The output of each rule, and of each with each of its inputs; Snakemake calls --allowed-rules internal."""
    workflow = existing(trained.folder)
    workflow.steady = True
    monkeypatch.chdir(workflow.folder)
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
        found = re.findall(r"^would run  (.*?)  reason: ", workflow(*command.split()[1:], "-n").stdout, re.M)
        told = [sorted([job["rule"], *job["wildcards"].values()]) for job in wanted]
        assert sorted(sorted(line.split()) for line in found) == sorted(told), command
    assert len(commands) < 20


def test_runs_of_two_folders_are_compared(trained, tmp_path):
    two = shutil.copytree(trained / "results", tmp_path / "two")
    metrics = json.loads((two / "mlm/tiny/metrics.json").read_text())
    next(row for row in metrics["scores"] if (row["metric"], row["split"]) == ("loss", "test"))["value"] = 1.2345
    (two / "mlm/tiny/metrics.json").write_text(json.dumps(metrics))
    tool = [sys.executable, ROOT / "tools/compare.py"]
    (tmp_path / "one").symlink_to(trained / "results")
    lines = subprocess.check_output([*tool, "one", "two"], text=True, cwd=tmp_path).splitlines()
    one, other = (next(line for line in lines if f"{name}/mlm/tiny" in line) for name in ("one", "two"))
    assert "1.2345" in other and "1.2345" not in one and max(map(len, lines)) <= 100
    assert not any(", text " in line for line in lines)
    corpus = json.loads((two / "corpus/corpus.json").read_text())
    corpus["splits"]["test"]["fingerprint"] = "0" * 64
    (two / "corpus/corpus.json").write_text(json.dumps(corpus))
    lines = subprocess.check_output([*tool, "one", "two"], text=True, cwd=tmp_path).splitlines()
    assert any(", text 00000000 " in line and "two/base/small" in line for line in lines)
    done = subprocess.run([*tool, tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith(f"error: {tmp_path} ")


def test_the_past_tells_of_replaced_files(both):
    """Another text in the same folder: files that were made of the first one say so."""
    folder = copy_of_one(both, "again")
    configure(both, "again", 5)
    run(both, "again", "corpus")
    told = "\n".join(provenance(MANIFEST, folder))
    assert "replaced since by build_corpus corpus/corpus" in told and "own.txt" not in told


def test_the_past_survives_touch_and_the_loss_of_what_snakemake_knows(both):
    folder = copy_of_one(both, "touched")
    told = list(provenance(MANIFEST, folder))
    configure(both, "touched", corpus={"source": "files", "files": ["own.txt"], "held_out": {"validation": 0.2}})
    run(both, "touched", "--touch", "tfrecords")
    shutil.rmtree(folder / ".snakemake")
    assert list(provenance(MANIFEST, folder)) == told
    with open(folder / MANIFEST, "a") as file:
        file.write(" ")
    said = run(both, "touched", "verify", check=False)
    assert said.returncode == 1 and f"{MANIFEST} is corrupt: " in said.stdout


def test_each_experiment_has_its_own_lock_and_a_whole_archive(both):
    with open(both / "experiments/one" / LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        refused = run(both, "one", "tokenizer", "--forcerun", "evaluate_tokenizer", check=False)
        assert refused.returncode == 1 and "error: jobs of a snakemake that was killed" in refused.stdout
        run(both, "two", "archive")
    [archive] = (both / "experiments/two/results/archive").glob("*.zip")
    done = subprocess.run([sys.executable, archive], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout
    with zipfile.ZipFile(archive) as kept:
        names, jobs = kept.namelist(), json.loads(kept.read("jobs.json"))
    assert "results/tfrecords/manifest.json" in names
    assert not [name for name in names if name.startswith(("experiments/", "../"))]
    assert {"own.txt"} == {path for job in jobs for path in job["inputs"] if not path.startswith(("results/", "../"))}


def test_data_of_the_harness_is_of_the_experiment(both):
    """recipes/tasks/last-word.yaml names a file below results/."""
    reduced(both, evaluation={"harness": {"last-word": {"file": "../../recipes/tasks/last-word.yaml"}}})
    (both / "experiments/asked").mkdir()
    (both / "small.yaml").rename(both / "experiments/asked/config.yaml")
    target = "results/evaluation/harness/last-word/items.json"
    printed = run(both, "asked", target, "-n", "--verbose").stdout
    [given] = set(re.findall(r"^rule read_harness_task:\n +input: (.+)$", printed, re.M))
    assert "results/evaluation/texts/corpus.parquet" in given.split(", ")
