"""Files from elsewhere, damaged in any way: each is read, or refused in one sentence that names what it was given as.

A few examples, always the same ones, for every kind of file; many for `make test-all`, other ones each time. Hypothesis
prints what reproduces a failure. An example is a list of changes to the files of a sound folder: bits, cuts, numbers
that are sizes, values of JSON.
"""

import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import write_tokenizer_to
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_corpus import parquet, write
from test_external_records import EXPECTED, WHOLE, records
from test_masked_folders import tiny_folder
from tpulm.core.errors import UserError
from tpulm.core.files import write_json
from tpulm.core.foreign_folders import check_preset
from tpulm.corpus.files import read_files
from tpulm.corpus.rows import ChatTemplate, Form
from tpulm.models.masked_folders import save_folder
from tpulm.records.external import take_shard
from tpulm.records.tfrecord import scan

pytestmark = pytest.mark.unit

SIZES = [0, 1, 255, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["", "../x", "/etc/passwd", 10**30, -1, "keras.layers.Lambda", "a" * 3000, "a\nb"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
PLACE = st.floats(0, 1, exclude_max=True)
NUMBER = st.sampled_from([number.to_bytes(8, "little") for number in SIZES])
BYTES = st.one_of(
    st.tuples(st.just("flip"), PLACE, st.integers(0, 7)),
    st.tuples(st.just("cut"), PLACE, st.none()),
    st.tuples(st.just("put"), PLACE, st.binary(min_size=1, max_size=12) | NUMBER),
    st.tuples(st.just("put"), st.just(0.0), NUMBER),
    st.tuples(st.just("add"), PLACE, st.binary(max_size=40)),
)
VALUES = st.tuples(st.just("value"), PLACE, JSON)
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
WORDS = [
    "{{", "}}", "{%", "%}", " for a in ", "range(9)", " if ", " else ", " endfor ", " endif ", "messages", "message",
    ".content", "['role']", "|", "tojson", "bos_token", "a", "==", "'user'", " generation ", " endgeneration ", "\n",
    " set x = ", "(", ")", "[0]", "*", "-", "999999", "raise_exception('x')", " macro m() ", " endmacro ", ".__class__",
]  # fmt: skip
# The same examples each time, for `make test`; others each time.
FEW = settings(max_examples=25, derandomize=True)
MANY = settings(max_examples=3000, print_blob=True)
HOW_MANY = pytest.mark.parametrize("how_many", [FEW, pytest.param(MANY, marks=pytest.mark.long)], ids=["few", "many"])


def fuzz(how_many: settings, check: Callable, *strategies: st.SearchStrategy) -> None:
    @settings(how_many, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.tuples(*strategies))
    def examples(values):
        check(*values)

    examples()


def slots(holder):
    """Yield every place in some JSON: what holds it, and its key or index there."""
    for key, inner in holder.items() if isinstance(holder, dict) else enumerate(holder):
        yield holder, key
        if isinstance(inner, dict | list):
            yield from slots(inner)


def changed(content: bytes, change: tuple) -> bytes:
    how, place, what = change
    at = int(place * len(content))
    if how == "value":
        return with_value(content, place, what)
    if how == "flip":
        return content[:at] + bytes([content[at] ^ 1 << what]) + content[at + 1 :] if content else content
    if how == "cut":
        return content[:at]
    return content[:at] + what + content[at + (len(what) if how == "put" else 0) :]


def with_value(content: bytes, place: float, value: object) -> bytes:
    """Return JSON, or a line of JSON lines, with another value at a place; what is no JSON stays."""
    lines = content.splitlines() or [b""]
    number = int(place * len(lines))
    try:
        root = [json.loads(lines[number])]
    except (ValueError, RecursionError):
        return content
    places = list(slots(root))
    holder, key = places[int(place * 7919 % 1 * len(places))]
    holder[key] = value
    return b"\n".join([*lines[:number], json.dumps(root[0]).encode(), *lines[number + 1 :]])


def check_sentence(error: UserError, named: str) -> None:
    """Check that it is one line, which a terminal can show, and names what it is of."""
    sentence = str(error)
    assert len(sentence.splitlines()) == 1 and len(sentence) < 2100, repr(sentence)
    assert not any(unicodedata.category(one) in ("Cc", "Cs") for one in sentence), repr(sentence)
    assert named in sentence


# Each of these returns a sound folder, and what opens it as a job does, which writes to another folder.


def masked_model(place: Path):
    folder = tiny_folder(place)

    def read(out: Path) -> None:
        outputs = out / "config.json", out / "model.safetensors"
        try:
            save_folder(folder, "x", "jax", *map(str, outputs))
        except UserError:
            assert not list(out.iterdir())
            raise
        assert all(path.exists() for path in outputs)

    return folder, read


def tokenizer(place: Path):
    folder = tiny_folder(place)
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
    return folder, lambda out: write_tokenizer_to(out, folder, "x")


def preset(place: Path):
    folder = place / "preset"
    described = {"module": "keras_hub.src.models.gemma", "class_name": "GemmaBackbone", "registered_name": "a>b"}
    described["config"] = {"dtype": {"module": "keras", "class_name": "DTypePolicy"}}
    write_json(folder / "config.json", described)
    write_json(folder / "model.weights.json", {"metadata": {}, "weight_map": {"a": "model_00000.weights.h5"}})
    with h5py.File(folder / "model_00000.weights.h5", "w") as file:
        file["layers/a/vars/0"] = np.ones((4, 4), "f4")
        file["layers/b/vars/0"] = np.ones(3, "f4")
    return folder, lambda out: check_preset(folder, f"x is {folder}")


def shard(place: Path):
    source = place / "x is a.tfrecord/a.tfrecord"
    source.parent.mkdir()
    source.write_bytes(records(WHOLE, WHOLE, WHOLE))

    def read(out: Path) -> None:
        target = out / "train/00000-of-00001.tfrecord"
        try:
            take_shard(str(source), target, EXPECTED)
        except UserError:
            assert not [path for path in out.rglob("*") if path.is_file()]
            raise
        assert list(scan(target))

    return source.parent, read


def texts(place: Path):
    rows = [{"q": "Who?", "n": 1, "talk": TALK}, {"q": "é\r\nb", "n": 2, "talk": TALK}]
    folder = place / "texts"
    folder.mkdir()
    write(folder / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(folder / "b.json", json.dumps(rows))
    write(folder / "c.csv", 'q,n\nWho?,1\n"é\r\nb",2\n')
    write(folder / "d.parquet", parquet(q=[row["q"] for row in rows], n=[1, 2]))
    form = Form("x", {"template": "{q} {n}"})

    def read(out: Path) -> None:
        for path in sorted(folder.iterdir()):
            try:
                list(read_files([str(path)], "line", form))
            except UserError as error:
                check_sentence(error, str(path))

    return folder, read


@HOW_MANY
@pytest.mark.parametrize("kind", [masked_model, tokenizer, preset, shard, texts])
def test_what_is_damaged_is_read_or_refused_in_one_sentence(tmp_path, kind, how_many):
    folder, read = kind(tmp_path)
    sound = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    described = [path for path in sound if path.suffix in (".json", ".jsonl")]
    damages = st.tuples(st.sampled_from(list(sound)), BYTES)
    if described:
        damages |= st.tuples(st.sampled_from(described), VALUES)

    def check(changes: list) -> None:
        contents = dict(sound)
        for path, change in changes:
            contents[path] = changed(contents[path], change)
        for path, content in contents.items():
            path.write_bytes(content)
        out = tmp_path / "out"
        out.mkdir()
        try:
            read(out)
        except UserError as error:
            assert changes, error
            check_sentence(error, "x is ")
        finally:
            shutil.rmtree(out)

    check([])
    fuzz(how_many, check, st.lists(damages, min_size=1, max_size=3))


@HOW_MANY
def test_a_chat_template_is_rendered_or_refused_in_one_sentence(monkeypatch, how_many):
    monkeypatch.setattr("tpulm.corpus.rows.LONGEST", 1)

    def check(template: str) -> None:
        described = {"where": "x", "template": template, "special": None, "bos_token": "<s>", "eos_token": "</s>"}
        try:
            ChatTemplate(described).document("f", TALK)
        except UserError as error:
            check_sentence(error, "")

    fuzz(how_many, check, st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=25).map("".join))
