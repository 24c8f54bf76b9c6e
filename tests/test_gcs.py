"""Google Cloud Storage: records read while a model trains, results in a bucket, all on a network that fails."""

import contextlib
import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from conftest import Workflow, configured, reduced
from kills import TIMED, fingerprints, flipped, wait_for
from loopback_bucket import BUCKET, in_place_of_google
from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.corpus import documents
from tpulm.corpus.documents import DocumentFile, read_array, read_texts
from tpulm.corpus.files import read_files, unchanged
from tpulm.corpus.parts import describe_files
from tpulm.corpus.rows import Form
from tpulm.corpus.sources import source_files
from tpulm.records import masked_batches, order, reader
from tpulm.records.masked_batches import evaluation_batches, training_batch
from tpulm.records.reader import Records, open_records
from tpulm.records.shards import unpadded
from tpulm.records.tfrecord import write_records
from tpulm.records.token_counts import count_tokens, maskable_ids
from tpulm.release.provenance import provenance

LENGTH, VOCABULARY, SHARDS = 16, 64, (1500, 40, 2500, 1000)
MASKING = {"mlm_probability": 0.15, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}
RECIPE = {"batch_size": 32, "seed": 15, "masking": MASKING}
FAILING = {"fail": 0.1, "hang": 0.02}
FAILURES = ("429", "503", "reset", "lost", "cut")  # as the bucket counts them


@pytest.fixture(scope="module")
def server():
    with in_place_of_google() as bucket:
        yield bucket


@pytest.fixture
def cloud(server):
    server.faults(fail=0.0, hang=0.0, only="")
    bucket.file_system.cache_clear()  # another test may have set how long it waits
    return server


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """Five blocks of records in four shards, none of which begins with a block."""
    folder = tmp_path_factory.mktemp("records")
    (folder / "train").mkdir()
    dice, shards = np.random.default_rng(0), []
    for number, records in enumerate(SHARDS):
        name = f"train/{number:05d}-of-00004"
        ids = dice.integers(5, VOCABULARY, (records, LENGTH)).astype(np.int64)
        written = write_records(folder / f"{name}.tfrecord", folder / f"{name}.index", [unpadded(ids)])
        shards.append({"file": f"{name}.tfrecord", "index": f"{name}.index"} | written)
    content = {
        "sequence_length": LENGTH, "tokens_per_record": LENGTH, "packing": "concat", "vocab_size": VOCABULARY,
        "special_ids": {"cls": 0, "sep": 1, "unk": 2, "pad": 3, "mask": 4},
    }  # fmt: skip
    path = folder / "manifest.json"
    path.write_text(json.dumps(content | {"splits": {"train": {"shards": shards}}}))
    return path


def uploaded(manifest, cloud, prefix):
    """Put the records into the bucket below `prefix`; return the URL of the manifest as a rule's input has it."""
    for file in (manifest.parent / "train").iterdir():
        cloud.put(f"{prefix}/train/{file.name}", file.read_bytes())
    cloud.put(f"{prefix}/manifest.json", manifest.read_bytes())
    return f"gs://{BUCKET}/{prefix}/manifest.json"


def test_what_is_streamed_is_what_lies_on_the_disk(manifest, cloud, monkeypatch):
    """Over an epoch and into the next, from any step, with one request in ten failing and one in fifty hanging."""
    there = uploaded(manifest, cloud, "same")
    for module in (order, masked_batches, reader):
        monkeypatch.setattr(module, "BLOCK", 256)
    for module in (order, masked_batches):
        monkeypatch.setattr(module, "WINDOW", 4)
    monkeypatch.setattr(bucket, "STALLED", 2)
    local = Records(manifest, "train")
    cloud.faults(**FAILING, hang_seconds=4.0)
    before = cloud.faults()
    streamed = open_records(there, "train")
    streamed.verify()
    assert len(streamed) == len(local) == sum(SHARDS)
    for step in [*range(0, 165, 15), 5000]:
        here, there = (training_batch(records, RECIPE, step) for records in (local, streamed))
        assert all((here[name] == there[name]).all() for name in here) and set(here) == set(there)
        assert len(streamed.blocks) <= 12  # two windows, and the one that a batch straddles
    for here, there in zip(evaluation_batches(local), evaluation_batches(streamed), strict=True):
        assert all((here[name] == there[name]).all() for name in here)
    counts, others = (count_tokens(records, maskable_ids) for records in (local, streamed))
    assert (counts == others).all() and counts.sum() > 0
    done = cloud.faults() - before
    assert sum(done[kind] for kind in FAILURES) >= 5 and done["hang"]


def test_blocks_are_requested_whole_and_ahead(manifest, cloud, monkeypatch):
    """Every byte once per epoch and not record by record; no request waits for the step that needs it."""
    there = uploaded(manifest, cloud, "ahead")
    monkeypatch.setattr(order, "WINDOW", 2)
    streamed = open_records(there, "train")
    # Only requests for these records: gcsfs may still repeat some for which an earlier test no longer waits.
    before, batches = cloud.faults(only="ahead"), -(-sum(SHARDS) // 32)
    for step in range(batches):
        training_batch(streamed, RECIPE, step)
    # Five blocks, three of the cuts between shards within one. With this seed, the next epoch begins with blocks that
    # are still held.
    assert (cloud.faults() - before)["well"] == 8
    steps = 2 * order.BLOCK // 32
    ahead = order.blocks_ahead(len(streamed), RECIPE["seed"], 0)
    soon = [order.batch_records(len(streamed), RECIPE["seed"], 32, step) for step in range(steps)]
    assert set(np.concatenate(soon) // order.BLOCK) <= set(ahead) and len(ahead) == 4


def test_damage_is_never_read(manifest, cloud):
    there = uploaded(manifest, cloud, "damaged")
    shard = manifest.parent / "train/00002-of-00004.tfrecord"
    name = "damaged/train/00002-of-00004.tfrecord"
    cloud.put(name, flipped(shard.read_bytes(), 20_000))
    streamed = open_records(there, "train")
    assert streamed.read(np.arange(1540)).shape == (1540, LENGTH)
    with pytest.raises(UserError, match=r"^gs://bucket/damaged/train/00002\S+ is corrupt"):
        streamed.read(np.arange(1540, 4040))
    cloud.put(name, shard.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"^gs://bucket/damaged/train/00002\S+ has \d+ bytes"):
        open_records(there, "train")
    cloud.put(name, shard.read_bytes())
    index = (manifest.parent / "train/00001-of-00004.index").read_bytes()
    cloud.put("damaged/train/00001-of-00004.index", flipped(index, 9))
    with pytest.raises(UserError, match=r"^gs://bucket/damaged/train/00001\S+index is corrupt"):
        open_records(there, "train")
    cloud.put("nowhere/manifest.json", manifest.read_bytes())
    with pytest.raises(UserError, match=r"^gs://bucket/nowhere/train/00000-of-00004.tfrecord is missing"):
        open_records(there.replace("damaged", "nowhere"), "train")


def test_bytes_that_came_damaged_once_are_asked_for_again(manifest, cloud):
    there = uploaded(manifest, cloud, "again")
    streamed = open_records(there, "train")
    expected = Records(manifest, "train").read(np.arange(100))
    streamed.prepare(np.arange(100), tuple)
    ((shard, (begin, future)),) = streamed.blocks[0].items()
    future._result = flipped(future.result(), 50)
    assert (streamed.read(np.arange(100)) == expected).all()


def test_failures_that_persist_end_in_one_sentence(manifest, cloud):
    there = uploaded(manifest, cloud, "gone")
    streamed = open_records(there, "train")
    cloud.waited.clear()
    cloud.faults(fail=1.0, only="gone")
    with pytest.raises(UserError, match=r"^gs://bucket/gone/train/00000-of-00004.tfrecord cannot be reached: [^\n]+$"):
        streamed.read(np.arange(10))
    assert len(cloud.waited) >= 5 and max(cloud.waited) >= 16  # seconds; each request waits longer every time
    with pytest.raises(UserError, match=r"^gs://bucket/gone/manifest.json cannot be reached: "):
        open_records(there, "train")


def test_documents_are_read_where_they_lie_and_no_others(tmp_path, cloud, monkeypatch):
    """A shard's share of a corpus file: with one request in ten failing, in bytes that are little more than its own."""
    monkeypatch.setattr(documents, "ROW_GROUP", 1000)
    dice = np.random.default_rng(0)
    texts = [f"document {number} {dice.bytes(99).hex()}" for number in range(40_000)]
    with contextlib.closing(DocumentFile(tmp_path / "a.parquet", pa.schema({"text": pa.string()}))) as file:
        file.add(pa.record_batch({"text": texts}))
    content = (tmp_path / "a.parquet").read_bytes()
    cloud.put("corpus/a.parquet", content)
    np.save(tmp_path / "codes.npy", np.arange(100_000) % 251)
    cloud.put("corpus/codes.npy", (tmp_path / "codes.npy").read_bytes())
    before, url = cloud.faults(**FAILING, hang_seconds=0.5), f"gs://{BUCKET}/corpus/a.parquet"
    assert sum(read_texts([url], slice(9_000, 9_500)), []) == texts[9_000:9_500]
    assert sum(read_texts(url, np.array([5, 39_999])), []) == [texts[5], texts[39_999]]
    assert read_array(f"gs://{BUCKET}/corpus/codes.npy", 260, 300).tolist() == [n % 251 for n in range(260, 300)]
    done = cloud.faults(fail=0.0, hang=0.0) - before
    # A row group for the one, the first and the last for the other, and twice the end of the file.
    assert done["bytes of .parquet"] < 0.15 * len(content) and done["bytes of .npy"] < 2000
    cloud.put("corpus/a.parquet", content[:-9] + b"123456789")
    with pytest.raises(UserError, match=r"^gs://bucket/corpus/a.parquet is corrupt"):
        list(read_texts(url))


def test_text_in_a_bucket_is_text_on_the_disk(tmp_path, cloud):
    """Files of each kind, whole and in pieces, with one request in ten failing; and a file that changes meanwhile."""
    line = json.dumps({"text": "two words"}) + "\n"
    content = {
        "a.txt": b"one\r\n\n two\n" * 9, "b.txt.gz": gzip.compress(b"packed\n" * 9), "c.jsonl": line.encode() * 9,
        "d.csv": b"text\nx\ny\n", "e.json": json.dumps([{"text": "z"}]).encode(),
    }  # fmt: skip
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
        cloud.put(f"texts/{name}", data)
    cloud.faults(**FAILING, hang_seconds=0.5)
    recipe = {"source": "files", "sample_by": "paragraph"}
    places = (tmp_path, f"gs://{BUCKET}/texts")
    named = [source_files("corpus", recipe | {"files": [f"{place}/*.*"]})["train"] for place in places]
    assert named[1] == [f"gs://{BUCKET}/texts/{name}" for name in content]
    form = Form("corpus", {"column": "text"})
    read = lambda files, piece=(0, 1): [*read_files(files, "paragraph", form, piece)]  # noqa: E731
    assert read(named[0]) == read(named[1]) and len(named[0]) == 5
    for piece in ((0, 3), (2, 3)):
        assert read(named[0][:1], piece) == read(named[1][:1], piece)
    here, there = (describe_files(files, True) for files in named)
    assert [file | {"path": ""} for file in here] == [file | {"path": ""} for file in there]
    cloud.faults(fail=0.0, hang=0.0)
    with pytest.raises(UserError, match=f"^{named[1][0]} changed while it was read"):
        with unchanged(named[1][0]):
            cloud.put("texts/a.txt", b"other\n")
    with pytest.raises(UserError, match="^corpus.files: .* gs://bucket/nowhere/"):
        source_files("corpus", recipe | {"files": [f"gs://{BUCKET}/nowhere/*.txt"]})


def steady(folder, like=None):
    """Return a copy of the workflow whose code stays as it is, with the config of another one."""
    workflow = Workflow(folder)
    workflow.steady = True
    if like:
        (workflow / "config.yaml").write_bytes((like / "config.yaml").read_bytes())
    return workflow


FIRST = "results/mlm/tiny/checkpoints/00000010/state.json"
SHARD = "results/tfrecords/train/00001-of-00004"


def local_results(workflow):
    """Return the SHA-256 of every result on the disk by its path, but those that a clock decides."""
    return {f"results/{name}": digest for name, digest in fingerprints(workflow / "results").items()}


def stored_results(server, prefix):
    """Return the same of the bucket."""
    return {
        name.removeprefix(f"{prefix}/"): hashlib.sha256(content).hexdigest()
        for name, content in server.objects(f"{prefix}/results/").items()
        if not name.endswith(tuple(TIMED)) and not name.rpartition("/")[2].startswith(".") and "/jobs/" not in name
    }


def jobs(printed):
    """Return the numbers of jobs by rule in what `-n --quiet rules` printed."""
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", printed, re.M)}


def test_text_and_records_in_a_bucket(tmp_path, cloud):
    """With one request in thirty failing, after which Snakemake's plugin waits for seconds."""
    workflow = steady(tmp_path / "workflow")
    (workflow / "text").mkdir()
    for number in range(2):
        text = "".join(f"line {line} of file {number}\n" for line in range(400))
        (workflow / f"text/{number}.txt").write_text(text)
        cloud.put(f"text/{number}.txt", text.encode())
    there = ["--workflow-profile", "profiles/gcs", "--default-storage-prefix", f"gs://{BUCKET}/records"]
    targets = ["results/tfrecords/manifest.json", "--configfile", "small.yaml"]
    shards = {"sequence_length": 128, "shards": {"train": 1, "validation": 1, "test": 1}}
    sections = {"tokenizer": {"vocab_size": 50}, "tfrecords": shards}
    reduced(workflow, corpus={"source": "files", "files": ["text/*.txt"]}, **sections)
    workflow(*targets, "--cores", "2")
    reduced(workflow, corpus={"source": "files", "files": [f"gs://{BUCKET}/text/*.txt"]}, **sections)
    before = cloud.faults(fail=0.03)
    printed = workflow(*targets, "--cores", "2", *there).stdout
    done = cloud.faults(fail=0.0) - before
    assert sum(done[kind] for kind in FAILURES) >= 3, done
    assert not re.search(r"Retrieving \S+ \S+ \S+corpus/(train|validation|test)\.parquet", printed)
    found, here = stored_results(cloud, "records"), local_results(workflow)
    described = [name for name in here if re.search(r"corpus/(parts/\d+|splits|corpus)\.json$", name)]  # have paths
    assert cloud.objects("records/.belongs-to")
    assert found.keys() == here.keys() and {name for name in here if found[name] != here[name]} == set(described)
    shutil.rmtree(workflow / "results")
    assert re.search(r"\[verify\] all \d+ files are ok", workflow("verify", *targets[1:], *there).stdout)
    told = "\n".join(provenance(targets[0], workflow.folder))
    assert all(f"by {rule} " in told for rule in ("write_shard", "build_corpus", "read_part"))
    cloud.put("text/1.txt", b"other\n")
    before = cloud.faults()
    stale = jobs(workflow(*targets, "-n", "--quiet", "rules", *there).stdout)
    assert stale["read_part"] == 1 and "train_tokenizer" in stale  # the other part is as it was
    assert (cloud.faults() - before)["requests"] < 40  # each file looked up by itself would be two or three


def test_a_place_that_cannot_be_used_is_refused(fresh, cloud):
    bucket.check_writable(f"gs://{BUCKET}/probed")
    with pytest.raises(UserError, match="^there is no bucket gs://other"):
        bucket.check_writable("gs://other/probed")
    for identity in ("1 here:/a", "1 here:/a"):
        bucket.claim(f"gs://{BUCKET}/probed/.belongs-to", identity)
    with pytest.raises(UserError, match=f"^gs://{BUCKET}/probed belongs to the working folder here:/a;"):
        bucket.claim(f"gs://{BUCKET}/probed/.belongs-to", "2 there:/a")
    assert cloud.objects("probed") == {"probed/.belongs-to": b"1 here:/a"}
    more = ["--workflow-profile", "profiles/gcs", "--default-storage-prefix", f"gs://{BUCKET}/team/results/mine"]
    assert re.search("^error: --default-storage-prefix ", fresh("-n", *more, check=False).stdout, re.M)


@pytest.mark.long
def test_a_new_machine_continues_from_the_bucket(trained, cloud, tmp_path):
    """As a spot VM that is gone, and the next one: a clone that is newer than all results, with nothing on its disk."""
    there = ["--workflow-profile", "profiles/gcs", "--default-storage-prefix", f"gs://{BUCKET}/spot", "--cores", "1"]
    last = FIRST.replace("10", "20")
    first = steady(tmp_path / "first", trained)
    with open(os.devnull, "w") as nothing:
        running = first.start(last, *there, output=nothing.fileno())
    wait_for(lambda: cloud.objects(f"spot/{FIRST}"), running)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert not cloud.objects(f"spot/{last}")
    before = json.loads(cloud.get(f"/storage/v1/b/{BUCKET}/o?prefix=spot/results/mlm"))["items"]
    shutil.rmtree(first / ".snakemake")
    second = steady(tmp_path / "second", trained)
    for file in second.folder.rglob("*"):
        os.utime(file)
    refused = second(last, *there, check=False)
    assert refused.returncode == 1 and f"gcloud storage rm gs://{BUCKET}/spot/.belongs-to" in refused.stdout
    cloud.delete("spot/.belongs-to")
    printed = second(last, *there).stdout
    assert re.findall(r"start   (train_mlm\w+ \w+ \d+)", printed) == ["train_mlm_tensorflow tiny 00000020"]
    after = json.loads(cloud.get(f"/storage/v1/b/{BUCKET}/o?prefix=spot/results/mlm"))["items"]
    assert [item for item in after if item in before] == before
    found, here = stored_results(cloud, "spot"), local_results(trained)
    assert last in found and found == {name: here[name] for name in found}


@pytest.mark.long  # a quarter of an hour
def test_a_whole_run_on_a_network_that_fails(trained, cloud, tmp_path):
    workflow = steady(tmp_path / "workflow", trained)
    there = ["--workflow-profile", "profiles/gcs", "--default-storage-prefix", f"gs://{BUCKET}/whole"]
    before = cloud.faults(**FAILING, hang_seconds=2.0)
    printed = workflow("--cores", "2", *there).stdout
    done = cloud.faults(fail=0.0, hang=0.0) - before
    found = stored_results(cloud, "whole")
    assert len(found) > 80 and found == local_results(trained) and not (workflow / "results").exists()
    assert {path.name for path in (workflow / "logs").rglob("*")} <= {"trackers.log"}  # of what runs beside Snakemake
    # Records were read where they lie, and never copied here.
    copied = r"Retrieving \S+ \S+ \S+(\.(tfrecord|index)|corpus/(train|validation|test)\.parquet)"
    assert done["records read"] >= 4 and not re.search(copied, printed)
    assert sum(done[kind] for kind in FAILURES) >= 100 and done["hang"] >= 20, done
    assert "Nothing to be done" in workflow("-n", *there).stdout
    other = steady(tmp_path / "elsewhere", workflow)  # a checkout, without what Snakemake noted here
    assert "Nothing to be done" in other("-n", *there).stdout
    workflow("--report", "report.zip", *there)
    with zipfile.ZipFile(workflow / "report.zip") as report:
        assert any(b"mlm-tiny" in report.read(name) for name in report.namelist())
    refused = workflow("clean", *there, check=False).stdout
    assert re.search(f"error: .*gs://{BUCKET}/whole/results", refused)
    kept, shown = "whole/results/jobs/history/mlm/tiny.jsonl", "whole/results/history/mlm/tiny.json"
    (run,) = json.loads(cloud.objects(shown)[shown])
    note = json.dumps({"event": "note", "kept_run": run | {"hash": "0" * 64}})
    cloud.put(kept, f"{note}\n".encode() + cloud.objects(kept)[kept])
    workflow("results/history/mlm/tiny.json", "--cores", "1", "--forcerun", "keep_run", *there)
    assert [run["hash"] for run in json.loads(cloud.objects(shown)[shown])] == ["0" * 64, run["hash"]]
    longer = configured(workflow, {"generation.max_new_tokens": 17})
    stale = jobs(workflow("-n", "--quiet", "rules", *longer, *there).stdout)
    assert stale == {"generate": 1, "write_report": 1, "all": 1, "total": 3}
    last = configured(workflow, {"mlm.runs.tiny.keep_checkpoints": "last"})
    target = FIRST.replace("state", "pruned")
    workflow(target, *last, *there)
    left = sorted(name.rpartition("/")[2] for name in cloud.objects(f"whole/{target.rpartition('/')[0]}/"))
    assert left == ["history.csv", "pruned.json", "state.json", "timings.csv"]
    # A shard that is gone: the training that needs it says how it is written again.
    cloud.delete(f"whole/{SHARD}.tfrecord")
    longer = configured(workflow, {"mlm.runs.tiny.steps": 30})
    refused = workflow("results/mlm/tiny/history.csv", *longer, *there, check=False)
    (said,) = (line for line in refused.stdout.splitlines() if line.startswith("error: "))
    assert refused.returncode == 1 and SHARD.removeprefix("results/tfrecords/") in said
    workflow("tfrecords", *there)
    assert stored_results(cloud, "whole")[f"{SHARD}.tfrecord"] == found[f"{SHARD}.tfrecord"]
