"""Publishing: repositories of a hub and folders of a bucket, both on loopback and on connections that break; cards."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict

import loopback_bucket
import loopback_hub
import pytest
import yaml
from conftest import ROOT, write_yaml
from huggingface_hub import DatasetCard, DatasetCardData, ModelCard, ModelCardData, constants
from loopback_hub import TOKEN
from tpulm.config.evaluations import Evaluations
from tpulm.config.outline import Outline
from tpulm.config.publications import card_inputs, card_recipe, history_entry, publications_of
from tpulm.config.reading import complete, read_yaml
from tpulm.core import job_record, ledger
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.release import publishing
from tpulm.release.publishing import published_files
from tpulm.report import cards
from tpulm.report.tables import held_out
from tpulm.specs.artifacts import CARD, TOKENIZER_FILES
from tpulm.specs.scores import token_scores

RECIPE = {
    "repository": "me/models-mlm-tiny", "type": "model", "branch": "main", "private": True, "name": "mlm/tiny",
}  # fmt: skip
KEY = "models/me/models-mlm-tiny"


@pytest.fixture
def server(monkeypatch):
    """A hub on loopback, with a token that it knows; no time passes between attempts."""
    with loopback_hub.served() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)  # where this process has not read it, and in those of jobs
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(publishing, "WAITS", (0.0,) * 7)
        yield found


@pytest.fixture
def artifact(tmp_path):
    here = tmp_path / "artifact"
    (here / "train").mkdir(parents=True)
    (here / "config.json").write_text("{}\n")
    (here / CARD).write_text("---\nlicense: mit\n---\n\n# A model\n")
    (here / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    (here / ".snakemake_timestamp").write_text("")
    for number in range(3):
        (here / f"train/{number}.tfrecord").write_bytes(b"record %d" % number)
    return here


def published(artifact, before=None, **changes):
    """Publish a folder after the receipt `before`; return the receipt."""
    return publishing.publish_to_hub(RECIPE | changes, published_files([""], [artifact]), before or {}, print)


def held(artifact):
    """Return what a repository is to hold of a folder."""
    files = (path for path in artifact.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(artifact)): path.read_bytes() for path in files}


def hashes_of(artifact):
    """Return what a receipt is to say of a folder."""
    return {path: hashlib.sha256(content).hexdigest() for path, content in held(artifact).items()}


def test_a_repository_holds_the_files_and_the_receipt_says_which(server, artifact):
    receipt = published(artifact)
    found = server.repositories[KEY]
    assert found.private and found.files() == held(artifact)
    place = "me/models-mlm-tiny@main"
    assert receipt == {"place": place, "commit": found.branches["main"][-1], "files": hashes_of(artifact)}
    assert server.cards == [(artifact / CARD).read_text()]  # validated before it was committed
    # What is unchanged makes no commit, what is gone goes, and what others put there stays.
    assert published(artifact) == receipt and server.counts["commits"] == 1
    others = {"picture.png": b"mine", "onnx/config.json": b"mine", "train/8.tfrecord": b"mine"}
    found.commit("main", "by hand", found.files() | others)
    (artifact / "config.json").write_text('{"a": 1}\n')
    (artifact / "train/2.tfrecord").unlink()
    elsewhere = published(artifact, before=receipt | {"place": "me/other@main"})
    assert found.files() == held(artifact) | others | {"train/2.tfrecord": b"record 2"}
    published(artifact, before=receipt | elsewhere | {"files": receipt["files"]})
    assert found.files() == held(artifact) | others
    assert server.counts["commits"] == 3 and server.counts["large files"] == 4  # none was sent again


def test_what_was_sent_is_known_when_snakemake_has_deleted_the_receipt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    log, receipt = "logs/publish/hub/a.log", {"place": "me/a@main", "files": {"b": "0"}}
    monkeypatch.setattr(job_record, "current", [ledger.path_of(log)])
    assert publishing.last_receipt(log) == {}
    publishing.write_receipt("results/a.json", receipt)
    assert read_json("results/a.json") == receipt
    (tmp_path / "results/a.json").unlink()
    assert publishing.last_receipt(log) == receipt


def test_broken_connections_change_nothing(server, artifact):
    for method, path, how in (
        ("GET", KEY, "reset"), ("POST", "/repos/create", "lost"), ("GET", "/tree/", "503"),
        ("POST", "/preupload/", "429"), ("POST", "/objects/batch", "half"), ("PUT", "/large/", "lost"),
        ("POST", "/commit/", "lost"),
    ):  # fmt: skip
        server.break_off(method, path, how)
    receipt = published(artifact, before={"place": "me/models-mlm-tiny@main", "files": {"gone.json": "0"}})
    found = server.repositories[KEY]
    assert server.counts["broken"] == 7 and server.counts["commits"] == 1
    assert found.files() == held(artifact) and receipt["commit"] == found.branches["main"][-1]


def test_a_job_that_gave_up_goes_on_where_it_was(server, artifact, monkeypatch):
    monkeypatch.setattr(publishing, "WAITS", (0.0,))
    server.break_off("POST", "/commit/", "reset", times=2)
    with pytest.raises(UserError, match="^me/models-mlm-tiny cannot be published: "):
        published(artifact)
    assert server.counts["large files"] == 4 and server.counts["commits"] == 0
    published(artifact)
    assert server.counts["large files"] == 4 and server.counts["commits"] == 1
    assert server.repositories[KEY].files() == held(artifact)


def test_a_repository_that_is_public_or_closed_is_refused(server, artifact, monkeypatch):
    published(artifact, private=False)
    with pytest.raises(UserError, match="^me/models-mlm-tiny is public .*publish.private is true"):
        published(artifact)
    server.break_off("GET", KEY, "403")
    with pytest.raises(UserError, match=r"HF_TOKEN \(HTTP 403\)"):
        published(artifact, private=False)
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    with pytest.raises(UserError, match=r"HF_TOKEN \(HTTP 401\)"):
        published(artifact, private=False)


def test_of_many_files_those_that_name_the_others_come_last(server, artifact, monkeypatch):
    monkeypatch.setattr(publishing, "AT_ONCE", 2)
    published(artifact)
    found = server.repositories[KEY]
    commits = [files for _, files in found.commits.values()]
    assert [*map(len, commits)] == [0, 2, 4, 6] and CARD not in commits[2]


@pytest.fixture(scope="module")
def storage():
    with loopback_bucket.in_place_of_google() as found:
        yield found


def test_a_folder_of_a_bucket(storage, artifact, capsys):
    folder = f"gs://{loopback_bucket.BUCKET}/models/mlm-tiny"

    def publish(before):
        return publishing.publish_to_bucket(folder, published_files([""], [artifact]), before, print)

    def objects():
        found = storage.objects("models/mlm-tiny/")
        return {name.removeprefix("models/mlm-tiny/"): content for name, content in found.items()}

    storage.faults(fail=0.2)
    first = publish({})
    storage.faults(fail=0.0)
    assert objects() == held(artifact) and first == {"place": folder, "files": hashes_of(artifact)}
    assert publish(first) == first and ": 0 of 6 files" in capsys.readouterr().out
    storage.put("models/mlm-tiny/4bit/model.safetensors", b"mine")
    storage.put("models/mlm-tiny/checkpoints/00000010/weights.safetensors", b"10")
    (artifact / "train/2.tfrecord").unlink()
    (artifact / "config.json").write_text('{"a": 1}\n')
    second = publish(first)["files"]
    others = {"4bit/model.safetensors": b"mine", "checkpoints/00000010/weights.safetensors": b"10"}
    assert objects() == held(artifact) | others
    assert [path for path in second if second[path] != first["files"][path]] == ["config.json"]


def with_publish(workflow, **section):
    """Write a config that publishes; return the arguments that name it."""
    config = read_yaml(workflow / "config.yaml") | {"publish": section}
    write_yaml(workflow / "publish.yaml", config)
    return ["--configfile", "publish.yaml"]


def listed(workflow, *arguments):
    """Return the rules that a dry run lists, with their wildcards."""
    printed = workflow("-n", *arguments).stdout
    return re.findall(r"^would run  (publish_\w+|train_\w+|write_c\w+|export_\w+)\b", printed, re.M)


def test_publish_is_its_own_target_and_its_receipts_are_no_input_of_training(built, server, monkeypatch):
    workflow = built
    shutil.rmtree(workflow / "results/mlm/tiny/checkpoints/00000020")
    asked = with_publish(workflow, hub="me/models", sync="every 1")
    receipt = "results/publish/hub/checkpoints/mlm/tiny/{:08d}.json"
    one = ["export_mlm_at_step", "publish_to_hub", "write_card"]
    assert sorted(listed(workflow, receipt.format(10), *asked)) == one  # needs nothing that is after it
    # In order: the models' branch ends with the newest.
    assert sorted(listed(workflow, receipt.format(20), *asked)) == sorted([*one, *one, "train_mlm_tensorflow"])
    # `snakemake` alone publishes nothing, and what trains waits for no receipt.
    assert not [rule for rule in listed(workflow, *asked) if rule.startswith("publish")]
    done = workflow("publish", "-n", check=False)
    assert done.returncode == 1 and "error: publish is missing" in done.stdout
    monkeypatch.delenv("HF_TOKEN")
    done = workflow("results/publish/hub/tokenizer.json", *asked, check=False)
    assert done.returncode == 1 and re.search("error: HF_TOKEN .*publish.hub", done.stdout)
    assert not (workflow / "results/tokenizer/README.md").exists() and not server.repositories


def test_a_checkpoint_and_then_the_model_go_to_hub_and_bucket(built, server, storage, monkeypatch):
    workflow = built
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    place = f"gs://{loopback_bucket.BUCKET}/whole"
    section = {"hub": "me/models", "gcs": place, "artifacts": ["mlm"], "license": "mit"}
    asked = with_publish(workflow, **section, sync="every 1")
    receipts = [f"results/publish/{to}/checkpoints/mlm/tiny/00000010.json" for to in ("hub", "gcs")]
    printed = workflow(*receipts, *asked).stdout
    found, model = server.repositories[KEY], workflow / "results/mlm/tiny/model"
    newest = found.files()  # while the run goes on
    file, last = "model.safetensors", held(model)
    assert newest.keys() == last.keys() | {CARD} and newest[file] != last[file]
    told = ModelCard(newest[CARD].decode()).text
    assert "after step 10 of a training of 20" in told and 'subfolder="checkpoints/00000010"' in told
    printed += workflow("publish", *with_publish(workflow, **section)).stdout
    assert found.files() == held(model)
    # The checkpoint opens as the model that it was.
    opened = newest | {CARD: (workflow / f"results/publish/cards/mlm/tiny/00000010/{CARD}").read_bytes()}
    files = held(workflow / "results/mlm/tiny/checkpoints/00000010") | opened
    own = {f"checkpoints/00000010/{path}": content for path, content in files.items()}
    assert {path: content for path, content in found.files("checkpoints").items() if "/" in path} == own
    objects = {name.removeprefix("whole/mlm-tiny/"): content for name, content in storage.objects("whole/").items()}
    assert objects == held(model) | own
    for path in [*(workflow / "results/publish").rglob("*"), *(workflow / "logs/publish").rglob("*")]:
        assert path.is_dir() or TOKEN.encode() not in path.read_bytes()
    assert TOKEN not in printed


def artifacts_of(workflow, **section):
    """Return what the config of a workflow can publish, by name, and its evaluations."""
    config = read_yaml(workflow / "config.yaml") | ({"publish": section} if section else {})
    outline = Outline(complete(config, "config.yaml"))
    return publications_of(outline), Evaluations(outline, os.path.exists)


def facts(workflow, publication, evaluations):
    def here(path):
        return str(workflow / path.replace("<results>", "results"))

    files = card_inputs(publication, evaluations).items()
    found = {name: here(given) if isinstance(given, str) else [*map(here, given)] for name, given in files}
    return cards.read_facts(found)


def test_every_card_says_what_was_measured_and_is_what_the_hub_reads(trained):
    publications, evaluations = artifacts_of(trained, hub="me/models", license="apache-2.0")
    assert list(publications) == [
        "tokenizer", "tfrecords", "tokens/small/corpus/concat-64", "tokens/small/finetune-text/pad-64", "mlm/tiny",
        "base/small", "transformers/base/small", "finetune/python",
    ]  # fmt: skip
    for name, publication in publications.items():
        known = facts(trained, publication, evaluations)
        text = cards.card(card_recipe(publication, evaluations.outline), known)
        _, head, body = text.split("---\n", 2)
        of, data = (DatasetCard, DatasetCardData) if publication.type == "dataset" else (ModelCard, ModelCardData)
        told = yaml.safe_load(head)
        assert of(text).data.to_dict() == told == data(**yaml.safe_load(head)).to_dict()
        assert told["license"] == "apache-2.0"
        for block in re.findall(r"```python\n(.*?)```", body, re.S):
            compile(block, name, "exec")
        assert f"| train | {known['corpus']['splits']['train']['documents']:,} |" in body
        if publication.run:
            assert f"step {known['state']['best']['step']}, the best" in body
            for state in known["states"]:
                evaluation = state["evaluation"]
                assert f"| {state['step']} | " in body and f" | {evaluation['loss']:.4g} | " in body
            test = held_out(known["metrics"])["test"]
            results = {
                (found["dataset"]["split"], metric["type"]): metric["value"]
                for found in told["model-index"][0]["results"]
                for metric in found["metrics"]
            }
            assert results["test", "loss"] == round(test["loss"], 4) and len(results) == 4


def test_a_card_without_a_hub_names_the_folder(trained):
    publications, evaluations = artifacts_of(trained)
    tokenizer = publications["tokenizer"]
    text = cards.card(card_recipe(tokenizer, evaluations.outline), facts(trained, tokenizer, evaluations))
    assert 'from_pretrained("results/tokenizer")' in text and "license" not in text


def text_of_card(recipe, length):
    """Return the text of a model's card with figures that are made up."""
    figures, alone = {"loss": 1.0, "accuracy": 0.5, "predictions": 100}, {"token frequencies": {"loss": 2.0}}
    metrics = {"parameters": 9, "scores": list(map(asdict, token_scores("corpus", "test", "all", figures, alone)))}
    facts = {"metrics": metrics, "scores": [], "corpus": {}, "manifest": {"sequence_length": length}}
    return cards.model(recipe, facts | {"state": {"best": {"step": 10, "evaluation": {"loss": 1.0}}}})[1]


@pytest.mark.unit
def test_a_folder_is_published_again_when_the_file_of_its_fingerprint_changes():
    config = read_yaml(ROOT / "config.yaml")
    run = config["finetune"]["runs"]["python"]
    whole = {key: value for key, value in run.items() if key != "rank"} | {"method": "full"}
    config["finetune"]["runs"] = {"merged": run | {"merge": True}, "whole": whole}
    publications = publications_of(Outline(complete(config, "config.yaml"))).values()
    folders = {publication.files[""]: publication.changed_by for publication in publications if "" in publication.files}
    models = ("base/small/preset", "finetune/merged/model", "finetune/whole/model")
    exported = ("base/small", "finetune/merged", "finetune/whole")
    assert set(folders) == {*models, *(f"transformers/{name}" for name in exported)}
    assert folders == {folder: f"<results>/{folder}.json" for folder in folders}


@pytest.mark.unit
def test_a_card_of_a_model_that_starts_from_another_names_that():
    origin = {"pretrained": "FacebookAI/roberta-base", "revision": "a" * 40}
    config = read_yaml(ROOT / "config.yaml") | {"tokenizer": origin}
    run = config["mlm"]["runs"]["tiny"]
    del run["model"]
    run |= {"init": origin, "backend": "jax"}
    outline = Outline(complete(config, "config.yaml"))
    text = text_of_card(card_recipe(publications_of(outline)["mlm/tiny"], outline), 8)
    assert all(told in text for told in ("9 parameters", "from FacebookAI/roberta-base", "8 tokens"))


@pytest.mark.unit
def test_a_card_and_the_history_tell_the_phases():
    config = read_yaml(ROOT / "config.yaml")
    run = config["base"]["small"]
    longer = {"until": run["steps"], "sequence_length": 512, "batch_size": 4, "rope_theta": 90000}
    run["phases"] = [{"until": run["checkpoint_every"]}, longer]
    run["model"] |= {"architecture": "mistral"}
    outline = Outline(complete(config, "config.yaml"))
    recipe = card_recipe(publications_of(outline)["base/small"], outline)
    assert history_entry(outline.runs["base/small"])["recipe"]["phases"] == run["phases"]
    assert recipe["training"]["phases"] == run["phases"] and recipe["model"]["rope_max_wavelength"] == 90000
    assert "512 tokens" in text_of_card(recipe, 128)


# As a card says, with the files of the repository in the working folder; the model is what was published.
BLOCK = r"```python\n(.*?)```"
USE = f"""
import os, re, sys
from huggingface_hub import snapshot_download
for repository, kind in [argument.split(":") for argument in sys.argv[1:]]:
    os.chdir(snapshot_download(repository, repo_type=kind))
    for block in re.findall({BLOCK!r}, open("README.md").read(), re.S):
        if "transformers" not in block or "AutoTokenizer" in block:
            exec(block, globals())
    print(repository, "used")
print(next(iter(examples))["input_ids"].shape)
"""


@pytest.mark.long
def test_everything_is_published_and_used_as_its_card_says(built, server, storage, openers, tmp_path, monkeypatch):
    workflow = built
    place = f"gs://{loopback_bucket.BUCKET}/all"
    asked = with_publish(workflow, hub="me/models", gcs=place, license="mit", sync="every 1")
    server.break_off("PUT", "/large/", "half")
    server.break_off("POST", "/commit/", "503")
    workflow("publish", "--cores", "2", *asked)
    assert len(server.repositories) == 8 and len(list((workflow / "results/publish").rglob("*.json"))) == 2 * (8 + 6)
    assert "Nothing to be done" in workflow("publish", "-n", *asked).stdout
    assert re.search(r"\b0 files", workflow("clean", *asked).stdout)
    workflow("verify", *asked)
    # A checkpoint that is published again takes nothing of a finished model away.
    found = server.repositories[KEY]
    before = found.files()
    workflow("results/publish/hub/checkpoints/mlm/tiny/00000010.json", *asked, "--forcerun", "publish_to_hub")
    assert found.files() == before
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    repositories = [f"me/models-{name}:model" for name in ("tokenizer", "mlm-tiny", "base-small", "finetune-python")]
    command = [sys.executable, "-c", USE, *repositories, "me/models-tfrecords:dataset"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(" used\n") == 5, done.stderr[-3000:]
    assert done.stdout.endswith("(128,)\n")
    [program] = re.findall(BLOCK, before[CARD].decode(), re.S)  # it needs PyTorch, and finds the downloaded model
    assert "token_str" in openers("transformers 5", program)


@pytest.mark.long
def test_results_in_a_bucket_are_published_from_there(fresh, server, storage):
    text = {"source": "python-docs", "max_documents": 200, "held_out": {"validation": 0.004, "test": 0.004}}
    section = {"hub": "me/models", "artifacts": ["tokenizer"]}
    write_yaml(fresh / "config.yaml", {"corpus": text, "tokenizer": {"vocab_size": 300}, "publish": section})
    stored = f"gs://{loopback_bucket.BUCKET}/stored"
    asked = ["--workflow-profile", "profiles/gcs", "--default-storage-prefix", stored]
    fresh("publish", *asked)
    objects = storage.objects("stored/results/")
    files = server.repositories["models/me/models-tokenizer"].files()
    assert {f"stored/results/tokenizer/{path}": content for path, content in files.items()}.items() <= objects.items()
    assert set(files) == {CARD, *TOKENIZER_FILES.values()}
    assert "stored/results/publish/hub/tokenizer.json" in objects
