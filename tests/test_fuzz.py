"""Files from elsewhere, damaged in any way: each is read, or refused in one sentence that names what it was given as.

A few examples, always the same ones, for every kind of file; many for `make test-all`, of a seed that a failure prints.
An example is a list of changes to the files of a sound folder: bits, cuts, numbers that are sizes, values of JSON.
"""

import json
import random
import shutil
import time
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from test_corpus import parquet, write
from test_made_elsewhere import EXPECTED, WHOLE, records
from test_masked_folders import tiny_folder
from test_zip import forged
from tpulm.core.errors import UserError
from tpulm.core.foreign_folders import check_folder, check_preset
from tpulm.corpus.files import read_files
from tpulm.corpus.rows import ChatTemplate, Form
from tpulm.models.masked_folders import save_folder
from tpulm.models.peft import ADAPTER, additions
from tpulm.records.external import take_shard
from tpulm.records.tfrecord import scan
from tpulm.release.rebuild import unpack
from tpulm.release.verify import damages_of, read_manifest
from tpulm.tokenization.folder import save_pretrained

pytestmark = pytest.mark.unit

SIZES = [0, 1, 255, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["", "../x", "/etc/passwd", 10**30, -1, "keras.layers.Lambda", "a" * 3000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
PLACE = st.floats(0, 1, exclude_max=True)
BYTES = st.one_of(
    st.tuples(st.just("flip"), PLACE, st.integers(0, 7)),
    st.tuples(st.just("cut"), PLACE, st.none()),
    st.tuples(st.just("put"), PLACE, st.binary(min_size=1, max_size=12)),
    st.tuples(st.just("put"), PLACE, st.sampled_from([number.to_bytes(8, "little") for number in SIZES])),
    st.tuples(st.just("put"), st.sampled_from([0.0]), st.sampled_from([n.to_bytes(8, "little") for n in SIZES])),
    st.tuples(st.just("add"), PLACE, st.binary(max_size=40)),
)
VALUES = st.tuples(st.just("value"), PLACE, JSON)
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
WORDS = [
    "{{", "}}", "{%", "%}", " for a in ", "range(9)", " if ", " else ", " endfor ", " endif ", "messages", "message",
    ".content", "['role']", "|", "tojson", "bos_token", "a", "==", "'user'", " generation ", " endgeneration ", "\n",
    " set x = ", "(", ")", "[0]", "*", "-", "999999", "raise_exception('x')", " macro m() ", " endmacro ", ".__class__",
]  # fmt: skip


def paths_of(value, path=()):
    """Yield the path of every value of some JSON."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths_of(inner, (*path, key))


def changed(content: bytes, change: tuple, is_json: bool) -> bytes:
    """Return the content of a file after a change."""
    how, place, what = change
    at = int(place * len(content))
    if how == "value":
        if not is_json:
            return content
        try:
            root = [json.loads(content)]
        except (ValueError, RecursionError):
            return content
        paths = list(paths_of(root[0]))
        *path, last = (0, *paths[int(place * len(paths))])
        inner = root
        for key in path:
            inner = inner[key]
        inner[last] = what
        return json.dumps(root[0]).encode()
    if not content:
        return what if how == "add" else content
    if how == "flip":
        return content[:at] + bytes([content[at] ^ 1 << what]) + content[at + 1 :]
    if how == "cut":
        return content[:at]
    return content[:at] + (what or b"") + content[at + (len(what or b"") if how == "put" else 0) :]


def masked_model(place: Path):
    """Return a folder of transformers, and what opens it as the rule does."""
    folder, out = tiny_folder(place), place / "out"

    def read() -> None:
        out.mkdir()
        outputs = out / "config.json", out / "model.safetensors"
        try:
            save_folder(folder, "x", "jax", *map(str, outputs))
        finally:
            assert all(path.exists() for path in outputs) or not list(out.iterdir())
            shutil.rmtree(out)

    return folder, read


def tokenizer(place: Path):
    """Return a folder with a tokenizer, and what reads it."""
    folder = tiny_folder(place)
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
    return folder, lambda: save_pretrained(str(folder), None, str(place / "out"), "x")


def preset(place: Path):
    """Return the folder of a preset of keras-hub, and what looks into it."""
    folder = place / "preset"
    described = {"module": "keras_hub.src.models.gemma", "class_name": "GemmaBackbone", "registered_name": "a>b"}
    write_json(
        folder / "config.json", described | {"config": {"dtype": {"module": "keras", "class_name": "DTypePolicy"}}}
    )
    write_json(folder / "model.weights.json", {"metadata": {}, "weight_map": {"a": "model_00000.weights.h5"}})
    with h5py.File(folder / "model_00000.weights.h5", "w") as file:
        file["layers/a/vars/0"] = np.ones((4, 4), "f4")
        file["layers/b/vars/0"] = np.ones(3, "f4")
    return folder, lambda: check_preset(folder, "x")


def adapter(place: Path):
    """Return the folder of an adapter of PEFT, and what reads it."""
    folder, name = place / "adapter", "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    write_json(folder / ADAPTER[0], {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})
    save_file({f"{name}A.weight": np.ones((2, 6), "f4"), f"{name}B.weight": np.ones((8, 2), "f4")}, folder / ADAPTER[1])

    def read() -> None:
        check_folder(folder, "x")
        additions(folder, "x")

    return folder, read


def shard(place: Path):
    """Return a folder with TFRecords, and what takes and reads them."""
    source = place / "shards/a.tfrecord"
    source.parent.mkdir()
    source.write_bytes(records(WHOLE, WHOLE, WHOLE))

    def read() -> None:
        target = place / "out/train/00000-of-00001.tfrecord"
        try:
            take_shard(str(source), target, EXPECTED)
            list(scan(target))
        finally:
            shutil.rmtree(place / "out", ignore_errors=True)

    return source.parent, read


def archive(place: Path):
    """Return a folder with an archive, and what checks and unpacks it, whatever the check says."""
    folder = place / "archive"
    folder.mkdir()
    files = {"source/config.yaml": b"a: 1", "config/given/1.yaml": b"a: 2"}
    forged(folder / "a.zip", files, configfiles={"config/given/1.yaml": "c.yaml"}, artifacts={}, target="a.zip")

    def read() -> None:
        path, inside = folder / "a.zip", place / "out/in/side"
        damages = damages_of(path)
        assert all(one.isprintable() for one in damages)
        try:
            if not damages:
                with zipfile.ZipFile(path) as opened:
                    unpack(opened, read_manifest(path), inside)
            assert not [one for one in (place / "out").rglob("*") if one.is_file() and inside not in one.parents]
        finally:
            shutil.rmtree(place / "out", ignore_errors=True)

    return folder, read


def texts(place: Path):
    """Return a folder with rows in every format, and what reads them."""
    rows = [{"q": "Who?", "n": 1, "talk": TALK}, {"q": "é\r\nb", "n": 2, "talk": TALK}]
    folder = place / "texts"
    folder.mkdir()
    write(folder / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(folder / "b.json", json.dumps(rows))
    write(folder / "c.csv", 'q,n\nWho?,1\n"é\r\nb",2\n')
    write(folder / "d.parquet", parquet(q=[row["q"] for row in rows], n=[1, 2]))
    form = Form("x", {"template": "{q} {n}"})

    def read() -> None:
        said = None
        for path in sorted(folder.iterdir()):
            try:
                list(read_files([str(path)], "line", form))
            except UserError as error:
                said = error
        if said:
            raise said

    return folder, read


def write_json(path: Path, value: object) -> None:
    """Write JSON, in a folder that need not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


KINDS = [masked_model, tokenizer, preset, adapter, shard, archive, texts]
EXAMPLES = [25, pytest.param(3000, marks=pytest.mark.long)]


def options(examples: int) -> settings:
    """Return settings for so many examples."""
    return settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def seeded(examples: int) -> int:
    """Return a seed: one and the same for few examples. pytest prints it where a test fails."""
    number = 0 if examples == EXAMPLES[0] else random.Random(time.time()).randrange(2**32)
    print(f"seed {number}")
    return number


def check_sentence(error: UserError) -> None:
    """Check that it is one line, which a terminal can show."""
    sentence = str(error)
    assert len(sentence.splitlines()) == 1 and sentence.isprintable() and len(sentence) < 2100, repr(sentence)


@pytest.mark.parametrize("examples", EXAMPLES, ids=["few", "many"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_is_read_or_refused_in_one_sentence(tmp_path, kind, examples):
    folder, read = kind(tmp_path)
    read()
    sound = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    changes = st.lists(st.tuples(st.sampled_from(sorted(sound)), BYTES | VALUES), min_size=1, max_size=3)

    @seed(seeded(examples))
    @options(examples)
    @given(changes)
    def damage(changes):
        for path, content in sound.items():
            for change in (change for name, change in changes if name == path):
                content = changed(content, change, path.suffix in (".json", ".jsonl"))
            path.write_bytes(content)
        try:
            read()
        except UserError as error:
            check_sentence(error)

    damage()


@pytest.mark.parametrize("examples", EXAMPLES, ids=["few", "many"])
def test_a_chat_template_is_rendered_or_refused_in_one_sentence(monkeypatch, examples):
    monkeypatch.setattr("tpulm.corpus.rows.LONGEST", 1)

    @seed(seeded(examples))
    @options(examples)
    @given(st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=25).map("".join))
    def render(template):
        described = {"where": "x", "template": template, "special": None, "bos_token": "<s>", "eos_token": "</s>"}
        try:
            ChatTemplate(described).document("f", TALK)
        except UserError as error:
            check_sentence(error)

    render()
